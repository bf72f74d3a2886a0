"""How a table of the benchmark looks, and on what machine it was measured."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from attnlab.report.bench.options import BenchOptions


@dataclass(frozen=True, kw_only=True)
class Target:
    """A bound on a ratio: `ratio` stands in the table, met says whether the bound holds."""

    name: str
    ratio: float
    bound: float
    at_most: bool

    @property
    def met(self) -> bool:
        return self.ratio <= self.bound if self.at_most else self.ratio >= self.bound

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{self.name}: {self.ratio:.2f} (target {sign} {self.bound:g})"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One table: its lines as printed, and the numbers behind them for JSON."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    targets: Sequence[Target]
    notes: Sequence[str] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)


def show(result: Result, machine: str, console: Console) -> None:
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title=result.title,
        title_justify="left",
        title_style="bold",
    )
    for index, column in enumerate(result.columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in result.rows:
        table.add_row(*row)
    console.print(table)
    for target in result.targets:
        style = "green" if target.met else "red"
        verdict = "reached" if target.met else "missed"
        console.print(f"  [{style}]{verdict}[/]  {target}", highlight=False)
    for note in (*result.notes, machine):
        console.print(f"  {note}", style="dim", highlight=False, markup=False)
    console.print()


def machine_line(options: BenchOptions) -> str:
    """CPU or GPU model, threads, torch version, number format."""
    import torch

    from attnlab.report.bench.models import autocast_dtype

    dtype = str(autocast_dtype(options.precision) or torch.float32).removeprefix("torch.")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else _cpu()
    count = torch.get_num_threads()
    threads = f"{count} thread{'s' if count > 1 else ''}"
    return f"{device}, {threads}, torch {torch.__version__}, {dtype}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
