"""What a sweep leaves in its folder: sweep.csv, and the score against the attention density it costs.

sweep.csv     a row a job: what differs, status, val/... and test/... metrics, attention/density, train/seconds, folder
density.csv   a row a point of density.png: means over the runs that differ in nothing but the seed
density.png   a curve an attention, softmax as the reference line

With several tasks or models there is a density_<task>_<model> for each.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Protocol

from ..errors import UserError
from ..files import write_whole
from ..tasks.spec import TaskSpec
from ..training.run_folder import read_config, read_metrics
from .plots import save_figure
from .tradeoff import Picture, Point, tradeoff_figure

# What the picture itself shows: its axes, curves and title, and what it takes the mean over.
SHOWN = {"attn", "sparsity", "sparsity.density", "seed", "task", "task.name", "model", "model.name"}


class Job(Protocol):
    """One job: the words it was started with, its run folder, and what became of it."""

    overrides: tuple[str, ...]
    folder: Path
    status: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the picture needs of a run. wanted: the density it was steered to; setting: what else was swept."""

    task: str
    model: str
    metric: str
    attn: str
    setting: str
    wanted: float | None
    density: float
    score: float


def save_table(root: Path, jobs: Sequence[Job], fixed: Sequence[str] = ()) -> Path:
    """Write root/sweep.csv. fixed: the keys that all jobs share, which get no column."""
    rows: list[dict[str, object]] = []
    for job in jobs:
        metrics = read_metrics(job.folder)
        scores = {f"{split}/{k}": v for split in ("val", "test") for k, v in metrics.get(split, {}).items()}
        inside = job.folder.is_relative_to(root)
        rows.append(
            {
                **differing(job, fixed),
                "status": job.status,
                **scores,
                "attention/density": metrics.get("attention", {}).get("density"),
                "train/seconds": metrics.get("train", {}).get("seconds"),
                "folder": job.folder.relative_to(root) if inside else job.folder,
            }
        )
    typed = dict.fromkeys(key for job in jobs for key in differing(job, fixed))
    scored = dict.fromkeys(key for row in rows for key in row if key.startswith(("val/", "test/")))
    ordered = sorted(scored, key=lambda key: not key.startswith("val/"))
    columns = [*typed, "status", *ordered, "attention/density", "train/seconds", "folder"]
    return write_csv(root / "sweep.csv", columns, rows)


def save_density(root: Path, jobs: Sequence[Job], fixed: Sequence[str] = ()) -> list[Path]:
    """Write the picture and its numbers for each task and model with two points or more; return the pictures."""
    files: list[Path] = []
    every = pictures(jobs, fixed)
    tasks, models = {p.task for p in every}, {p.model for p in every}
    for picture in every:
        if len(picture.points) < 2:
            continue
        parts = ["density", *([picture.task] if len(tasks) > 1 else []), *([picture.model] if len(models) > 1 else [])]
        name = re.sub(r"[^-\w.]", "_", "_".join(parts))
        write_csv(root / f"{name}.csv", *_numbers(picture))
        files.append(save_figure(tradeoff_figure(picture), root / f"{name}.png"))
    return files


def pictures(jobs: Sequence[Job], fixed: Sequence[str] = ()) -> list[Picture]:
    """The points of each task and model, from the jobs that have metrics."""
    # A folder counts once, even when two jobs were sent to it.
    found = {job.folder: run for job in jobs if (run := _run(job, fixed)) is not None}
    by_picture: dict[tuple[str, str, str], list[Run]] = {}
    for run in found.values():
        by_picture.setdefault((run.task, run.model, run.metric), []).append(run)
    return [
        Picture(
            task=task,
            model=model,
            metric=metric,
            points=_points([run for run in runs if not _is_reference(run)]),
            references=_points([run for run in runs if _is_reference(run)]),
        )
        for (task, model, metric), runs in by_picture.items()
    ]


def _is_reference(run: Run) -> bool:
    return run.attn == "softmax" and run.wanted is None


def _points(runs: Sequence[Run]) -> list[Point]:
    alike: dict[tuple[str, str, float | None], list[Run]] = {}
    for run in runs:
        alike.setdefault((run.attn, run.setting, run.wanted), []).append(run)
    return [
        Point(
            attn=attn,
            setting=setting,
            wanted=wanted,
            density=fmean(run.density for run in group),
            score=fmean(run.score for run in group),
            spread=stdev(run.score for run in group) if len(group) > 1 else None,
            runs=len(group),
        )
        for (attn, setting, wanted), group in alike.items()
    ]


def _run(job: Job, fixed: Sequence[str]) -> Run | None:
    metrics = read_metrics(job.folder)
    try:
        config = read_config(job.folder)
    except UserError:
        return None
    metric = TaskSpec.from_config(config["task"], ()).metrics[0]
    score, density = metrics.get("val", {}).get(metric), metrics.get("attention", {}).get("density")
    if score is None or density is None:
        return None
    settings = (f"{key}={value}" for key, value in differing(job, fixed).items() if key not in SHOWN)
    return Run(
        task=str(config["task"]["name"]),
        model=Path(config["model"]["name"]).name,
        metric=metric,
        attn=str(config["attn"]["name"]),
        setting=" ".join(settings),
        wanted=config["sparsity"]["density"],
        density=density,
        score=score,
    )


def differing(job: Job, fixed: Sequence[str]) -> dict[str, str]:
    """key -> value of the job's words, without those that take a key away."""
    words = (word.lstrip("+").partition("=") for word in job.overrides if not word.startswith("~"))
    return {key: value for key, _, value in words if key not in fixed}


def _numbers(picture: Picture) -> tuple[list[str], list[dict[str, object]]]:
    score = f"val/{picture.metric}"
    points = [*picture.points, *picture.references]
    columns = ["attn", "setting", "sparsity.density", "attention/density", score, f"{score} std", "seeds"]
    if not any(point.setting for point in points):
        columns.remove("setting")
    rows: list[dict[str, object]] = [
        {
            "attn": point.attn,
            "setting": point.setting,
            "sparsity.density": point.wanted,
            "attention/density": point.density,
            score: point.score,
            f"{score} std": point.spread,
            "seeds": point.runs,
        }
        for point in points
    ]
    return columns, rows


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())
    return path
