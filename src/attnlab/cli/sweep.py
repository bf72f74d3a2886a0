"""The jobs of a sweep: what became of each, the table at the end, and what the sweep leaves in its folder."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from attnlab.errors import UserError
from attnlab.files import shown


@dataclass(kw_only=True)
class Job:
    """One run of the train command; filled in while it goes."""

    overrides: tuple[str, ...]
    folder: Path
    status: str = "running"
    metric: str = ""
    error: Exception | None = None

    def label(self, fixed: Sequence[str]) -> str:
        """The overrides that tell this job from its neighbours."""
        own = [word for word in self.overrides if word.partition("=")[0].lstrip("+~") not in fixed]
        return " ".join(own or self.overrides) or "defaults"


def one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    message = lines[0] if lines else "no message"
    return message if isinstance(error, UserError) else f"{type(error).__name__}: {message}"


def report_failure(job: Job, console: Console) -> None:
    """Says at once why a job failed; the sweep goes on."""
    assert job.error is not None
    if isinstance(job.error, UserError):
        console.print(f"error: {job.error}", markup=False, highlight=False, soft_wrap=True)
    else:
        trace = "".join(traceback.format_exception(job.error))
        console.print(trace, markup=False, highlight=False, soft_wrap=True)


def print_table(jobs: Sequence[Job], total: int, fixed: Sequence[str], console: Console) -> None:
    """Every job in one row, then each failure in one line."""
    root = jobs[0].folder.parent if jobs else Path()
    done = sum(job.status == "done" for job in jobs)
    table = Table(title=f"{done} of {total} jobs done, in {shown(root)}", title_justify="left")
    table.add_column("#", justify="right")
    for name in ("job", "status", "metric", "folder"):
        table.add_column(name, overflow="fold")
    styles = {"done": "green", "failed": "red"}
    for number, job in enumerate(jobs, start=1):
        status = f"[{styles.get(job.status, 'yellow')}]{job.status}[/]"
        folder = job.folder.name if job.folder.parent == root else str(shown(job.folder))
        table.add_row(str(number), job.label(fixed), status, job.metric, folder)
    console.print()
    console.print(table, highlight=False)
    for number, job in enumerate(jobs, start=1):
        if job.error is not None:
            line = f"job {number} failed: {one_line(job.error)}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def write_table(root: Path, jobs: Sequence[Job], fixed: Sequence[str]) -> None:
    """sweep.csv in the sweep's folder, over the one of the job before."""
    from attnlab.report.sweep import save_table  # here, because it takes seconds to import

    save_table(root, jobs, fixed)


def show_density(root: Path, jobs: Sequence[Job], fixed: Sequence[str], console: Console) -> None:
    """Plots score against density, and says where the pictures are."""
    from attnlab.report.sweep import save_density

    files = save_density(root, jobs, fixed)
    if not files:
        console.print("no plot of score against density: fewer than two jobs came to an end", highlight=False)
    for file in files:
        console.print(f"plot {shown(file)}", markup=False, highlight=False, soft_wrap=True)


def show_masks(root: Path, console: Console) -> None:
    """The table and the picture of all masks below `root`, of other sweeps into that folder, too."""
    from attnlab.report.mask_sweep import show_masks as show

    show(root, console)


def show_glue(jobs: Sequence[Job], fixed: Sequence[str], console: Console) -> None:
    """The GLUE average of each setting, where the sweep is over two tasks of it or more."""
    from attnlab.report.glue import sweep_averages

    for setting, average in sweep_averages(jobs, fixed).items():
        line = f"{setting}: {average}" if setting else str(average)
        console.print(line, markup=False, highlight=False, soft_wrap=True)
