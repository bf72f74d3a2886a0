"""What masks cost: a table and a picture of every finished run below a folder, beside what SparseBERT published.

masks.csv     a row a mask: its density, the keys that a query has in the texts there are, the score on each task
              (mean over seeds, standard deviation where there are several), their average and its distance from that
              of no mask; SparseBERT's density and average
masks.png     average score against mask density, ours and the published ones in panels of their own, then each task

Scores are the task's first metric on the validation data; of a language model, its accuracy on masked tokens.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from ..files import shown
from .mask_plot import Dot, masks_figure
from .mask_runs import MaskRow, MaskRun, finished_runs, mask_rows, over_none, tasks_of
from .plots import save_figure
from .published import LEARNED, PATTERNS, SPARSEBERT, Published
from .sweep import write_csv

BESIDE = (f"density ({SPARSEBERT})", f"average ({SPARSEBERT})")


def save_masks(root: Path, runs: Sequence[MaskRun]) -> list[Path]:
    """Write root/masks.csv and root/masks.png of the runs; return the files."""
    rows, tasks, learned = mask_rows(runs), tasks_of(runs), _published_learned(runs)
    numbers = write_csv(root / "masks.csv", *_numbers(rows, tasks, learned))
    ours = [
        Dot(label=row.label, density=row.density, score=row.average, spread=row.spread)
        for row in rows
        if row.average is not None
    ]
    theirs = [Dot(label=p.label, density=p.density, score=p.average) for p in (*PATTERNS.values(), *learned)]
    by_task = {
        f"{task}: {metric}": [
            Dot(label=row.label, density=row.density, score=row.scores[task][0], spread=row.scores[task][1])
            for row in rows
            if task in row.scores
        ]
        for task, metric in tasks.items()
    }
    picture = save_figure(masks_figure(ours, theirs, by_task), root / "masks.png")
    return [numbers, picture]


def show_masks(root: Path, console: Console) -> None:
    """Print the table of all finished runs below root and write its files, where there are two masks to compare."""
    runs = finished_runs(root)
    if len(mask_rows(runs)) < 2:
        console.print("no table of masks: fewer than two masks came to an end", highlight=False)
        return
    console.print()
    console.print(masks_table(runs, console), highlight=False)
    for file in save_masks(root, runs):
        console.print(f"masks {shown(file)}", markup=False, highlight=False, soft_wrap=True)


def _published_learned(runs: Sequence[MaskRun]) -> list[Published]:
    """The published masks of the forms that were learned here."""
    forms = {run.form for run in runs if run.name == "dam"}
    return [row for row in LEARNED if row.form in forms]


def _numbers(
    rows: Sequence[MaskRow], tasks: Mapping[str, str], learned: Sequence[Published]
) -> tuple[list[str], list[dict[str, object]]]:
    names = {task: f"{task} {metric}" for task, metric in tasks.items()}
    columns = [
        "mask",
        "density",
        "keys a query",
        *(column for name in names.values() for column in (name, f"{name} std")),
    ]
    columns += ["average", "average std", "average - none", *BESIDE]
    lines: list[dict[str, object]] = []
    for row in rows:
        line: dict[str, object] = {"mask": row.label, "density": row.density, "keys a query": row.keys}
        for task, (mean, spread) in row.scores.items():
            line |= {names[task]: mean, f"{names[task]} std": spread}
        line |= {"average": row.average, "average std": row.spread, "average - none": over_none(row, rows)}
        lines.append(line | _beside(row.published))
    return columns, [*lines, *({"mask": p.label, **_beside(p)} for p in learned)]


def _beside(published: Published | None) -> dict[str, object]:
    values = (published.density, published.average) if published else (None, None)
    return dict(zip(BESIDE, values, strict=True))


def masks_table(runs: Sequence[MaskRun], console: Console) -> Table:
    """Scores times 100, as GLUE's tables have them; without keys and spreads where the console is too narrow."""
    whole, narrow = (_table(runs, whole=whole) for whole in (True, False))
    needed = console.measure(whole, options=console.options.update(max_width=1000)).maximum
    return whole if needed <= console.width else narrow


def _table(runs: Sequence[MaskRun], *, whole: bool) -> Table:
    rows, tasks, learned = mask_rows(runs), tasks_of(runs), _published_learned(runs)
    beside = bool(learned) or any(row.published for row in rows)
    notes = ["keys: a query has in these texts"] if whole else []
    notes += [f"SB: {SPARSEBERT}, another model; share kept, mean of nine scores"] if beside else []
    several = any(spread is not None for row in rows for _, spread in row.scores.values())
    table = Table(
        title=f"Masks: 100 x score on the validation data{'; ± in masks.csv' if several and not whole else ''}",
        caption="\n".join(notes),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("mask")
    for name in ("density", *(["keys"] if whole else []), *tasks, "mean", "- none", *(["SB"] if beside else [])):
        table.add_column(name, justify="right")
    for row in rows:
        off = over_none(row, rows)
        scores = [*(row.scores.get(task) for task in tasks), None if row.average is None else (row.average, row.spread)]
        table.add_row(
            row.label,
            f"{row.density:.3f}",
            *([] if not whole else [""] if row.keys is None else [f"{row.keys:.1f}"]),
            *(_cell(score, whole) for score in scores),
            "" if off is None else f"{100 * off:+.1f}",
            *([_published_cell(row.published)] if beside else []),
        )
    for published in learned:
        table.add_row(published.label, *[""] * (len(table.columns) - 2), _published_cell(published), style="dim")
    return table


def _cell(score: tuple[float, float | None] | None, spreads: bool) -> str:
    if score is None:
        return ""
    mean, spread = score
    return f"{100 * mean:.1f}" + (f" ± {100 * spread:.1f}" if spreads and spread is not None else "")


def _published_cell(published: Published | None) -> str:
    return "" if published is None else f"{published.density:.3f} {100 * published.average:.1f}"
