"""The GLUE average: the mean over the tasks of each task's mean over its metrics; AX does not count.

Wang et al. 2019, arXiv:1804.07461, section 3; https://gluebenchmark.com/leaderboard.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..errors import UserError
from ..training.run_folder import read_config, read_metrics
from .sweep import Job, differing

Metrics = Mapping[str, Mapping[str, float | None]]

# task -> (split, metric), averaged first
SCORES: dict[str, tuple[tuple[str, str], ...]] = {
    "cola": (("val", "matthews"),),
    "sst2": (("val", "accuracy"),),
    "mrpc": (("val", "f1"), ("val", "accuracy")),
    "stsb": (("val", "pearson"), ("val", "spearman")),
    "qqp": (("val", "f1"), ("val", "accuracy")),
    "mnli": (("val", "accuracy"), ("val_mismatched", "accuracy")),
    "qnli": (("val", "accuracy"),),
    "rte": (("val", "accuracy"),),
    "wnli": (("val", "accuracy"),),
}


@dataclass(frozen=True, kw_only=True)
class Average:
    """score: None without any task. tasks: those that count. partial: those of which a metric was missing."""

    score: float | None
    tasks: tuple[str, ...]
    partial: tuple[str, ...] = ()

    def __str__(self) -> str:
        score = "none" if self.score is None else f"{self.score:.4f}"
        missing = f", {', '.join(self.partial)} without all of its metrics" if self.partial else ""
        return f"GLUE average over {len(self.tasks)} of {len(SCORES)} tasks: {score} ({', '.join(self.tasks)}{missing})"


def glue_average(runs: Mapping[str, Sequence[Metrics]]) -> Average:
    """task -> what metrics.json holds, of one run or of several that differ in the seed only, which are averaged."""
    scores: dict[str, float] = {}
    partial = []
    for task, wanted in SCORES.items():
        means = []
        for split, metric in wanted:
            values = [metrics.get(split, {}).get(metric) for metrics in runs.get(task, ())]
            means.append([value for value in values if value is not None])
        if any(means):
            scores[task] = fmean(fmean(values) for values in means if values)
        if any(means) and not all(means):
            partial.append(task)
    return Average(score=fmean(scores.values()) if scores else None, tasks=tuple(scores), partial=tuple(partial))


def sweep_averages(jobs: Sequence[Job], fixed: Sequence[str] = ()) -> dict[str, Average]:
    """The average of each setting of a sweep over two GLUE tasks or more: what differs, but for task and seed -> it."""
    found: dict[str, dict[str, dict[object, Metrics]]] = defaultdict(lambda: defaultdict(dict))
    for job in jobs:
        try:
            task = str(read_config(job.folder)["task"]["name"])
        except UserError:
            continue
        metrics = read_metrics(job.folder)
        if task in SCORES and metrics.get("val"):
            words = (f"{key}={value}" for key, value in differing(job, fixed).items() if key not in ("task", "seed"))
            found[" ".join(words)][task][job.folder] = metrics
    if len({task for runs in found.values() for task in runs}) < 2:
        return {}
    return {
        setting: glue_average({task: list(runs.values()) for task, runs in tasks.items()})
        for setting, tasks in found.items()
    }
