"""The table a run closes with: what it reached, where it looks, what it cost, where it lies."""

import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..files import size

Metrics = Mapping[str, Mapping[str, float]]

SPLITS = ("train", "val", "test")
# What metrics.json holds beside the scores of splits.
NOT_SPLITS = ("train", "attention", "mask")
BAR_WIDTH = 16
WIDTH = 80
ABSENT = "-"


def print_run_summary(
    run_dir: Path, metrics: Metrics, *, mask: str | None = None, console: Console | None = None
) -> None:
    """Print `run_summary` and, as the last line, the run folder; no colours outside a terminal."""
    console = console or Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH)
    console.print()
    console.print(run_summary(metrics, mask=mask, unicode=console.encoding.startswith("utf")))
    console.print()
    # Never wrapped or shortened: the line is there to be copied.
    line = Text.assemble(("run folder  ", "dim"), (str(run_dir), "bold"))
    console.print(line, soft_wrap=True)


def run_summary(metrics: Metrics, *, mask: str | None = None, unicode: bool = True) -> RenderableType:
    """Metrics, mask and costs on the left, attention density by layer on the right; fits 80 columns.

    metrics has the layout of metrics.json. A part that is missing there is left out. mask: its name.
    """
    kept = _mask(mask, metrics.get("mask", {})) if mask else None
    left = [part for part in (_scores(metrics), kept, _costs(metrics.get("train", {}))) if part]
    right = _attention(metrics.get("attention", {}), unicode)
    page = Table.grid(padding=(0, 4))
    page.add_row(Group(*_spaced(left)), *([right] if right else []))
    return page


def _scores(metrics: Metrics) -> Table | None:
    """A row a metric and a column a split; where there are further splits, with longer names, the other way round."""
    evaluated = [split for split in metrics if split not in NOT_SPLITS]
    scored = {name for split in evaluated for name in metrics[split]}
    # The train part holds costs, too; a score of it is what other splits also have.
    ordered = dict.fromkeys((*SPLITS, *evaluated))
    scores = {split: {k: v for k, v in metrics.get(split, {}).items() if k in scored} for split in ordered}
    splits = [split for split in ordered if scores[split]]
    if not splits:
        return None
    # The loss goes last: what the task is scored by is read first.
    names = sorted(dict.fromkeys(name for split in splits for name in scores[split]), key=lambda name: name == "loss")
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    upright = set(splits) <= set(SPLITS)
    names = names if upright else [name for name in names if name != "loss"]
    table.add_column("metric" if upright else "split", style="cyan")
    for column in splits if upright else names:
        table.add_column(column, justify="right", style="bold" if column == "test" else "")
    for row in names if upright else splits:
        pairs = [(split, row) for split in splits] if upright else [(row, name) for name in names]
        table.add_row(row, *(_cell(scores[split].get(name)) for split, name in pairs))
    return table


def _mask(name: str, mask: Mapping[str, float]) -> Table:
    density = f", allows {100 * mask['density']:.1f} %" if _known(mask, "density") else ""
    return _facts([("mask", f"{name}{density}")])


def _costs(train: Mapping[str, float]) -> Table | None:
    facts: list[tuple[str, str]] = []
    if _known(train, "seconds"):
        facts.append(("time", duration(train["seconds"])))
    if _known(train, "examples_per_second"):
        facts.append(("throughput", f"{train['examples_per_second']:,.1f} examples/s"))
    if _known(train, "steps"):
        facts.append(("steps", f"{train['steps']:,.0f}"))
    if _known(train, "epochs"):
        facts.append(("epochs", f"{train['epochs']:g}"))
    if _known(train, "peak_memory_mb"):
        facts.append(("peak memory", size(train["peak_memory_mb"] * 1e6)))
    return _facts(facts) if facts else None


def _attention(attention: Mapping[str, float], unicode: bool) -> Group | None:
    layers = {
        key.rsplit("_", 1)[-1].lstrip("0") or "0": value
        for key, value in sorted(attention.items())
        if key.startswith("density/layer_")
    }
    if not layers and not _known(attention, "density"):
        return None
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    table.add_column("layer", justify="right", style="cyan")
    table.add_column("attention density", min_width=BAR_WIDTH)
    table.add_column("", justify="right")
    for layer, value in layers.items():
        table.add_row(layer, Text(bar(value, unicode=unicode), style="blue"), f"{value:.3f}")
    if _known(attention, "density"):
        table.add_section()
        mean = attention["density"]
        mean_bar = Text(bar(mean, unicode=unicode), style="bold blue")
        table.add_row("mean", mean_bar, Text(f"{mean:.3f}", style="bold"))
    facts = [("density", "share of allowed pairs with p > 0")]
    if _known(attention, "support"):
        facts.append(("support", f"{attention['support']:.1f} keys a query"))
    if _known(attention, "entropy"):
        facts.append(("entropy", f"{attention['entropy']:.2f} nats"))
    return Group(table, "", _facts(facts))


def _facts(facts: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan")
    table.add_column()
    for fact in facts:
        table.add_row(*fact)
    return table


def bar(share: float, *, width: int = BAR_WIDTH, unicode: bool = True) -> str:
    """A bar of `width` characters at share 1; in eighths of a character, or `#` without Unicode."""
    share = min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
    if not unicode:
        return "#" * max(round(share * width), int(share > 0))
    eighths = max(round(share * width * 8), int(share > 0))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def duration(seconds: float) -> str:
    """`48.2 s`, `2 min 13 s`, `1 h 05 min`."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _known(values: Mapping[str, float], key: str) -> bool:
    value = values.get(key)
    return value is not None and math.isfinite(value)


def _cell(value: object) -> str:
    if value is None:
        return ABSENT
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _spaced(parts: Iterable[RenderableType]) -> list[RenderableType]:
    spaced: list[RenderableType] = []
    for part in parts:
        spaced += [part, ""]
    return spaced[:-1]
