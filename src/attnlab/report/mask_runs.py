"""The finished runs below a folder by their mask: a row a mask, with its density and its score on each task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ..errors import UserError
from ..tasks.spec import LESS_IS_BETTER, TaskSpec
from ..training.run_folder import differences, read_config, read_metrics, read_status
from .published import PATTERNS, Published

ORDER = ("sst2", "cola", "mrpc", "stsb", "rte")  # of GLUE's tables
MEANT = ("task", "seed", "mask")  # a column, what the mean is over, the row itself
Config = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class MaskRun:
    """What the table needs of a run.

    mask: the mask's name with its options that differ between runs; setting: what else differs; metric: what the
    score is; density: share of the pairs kept in a text as long as may be; keys: that a query has in the texts there
    are, which are shorter; form: of a learned mask.
    """

    name: str
    mask: str
    setting: str
    task: str
    metric: str
    seed: int
    density: float
    keys: float | None
    score: float
    form: str | None = None


@dataclass(frozen=True, kw_only=True)
class MaskRow:
    """A mask's means. scores: task -> (mean over seeds, standard deviation where there are several).

    average and keys (a query has, mean over tasks) are None where the mask lacks a task that another has.
    """

    name: str
    mask: str
    setting: str
    density: float
    keys: float | None
    scores: Mapping[str, tuple[float, float | None]]
    average: float | None
    spread: float | None

    @property
    def label(self) -> str:
        return f"{self.mask} {self.setting}".strip()

    @property
    def published(self) -> Published | None:
        """SparseBERT's row of a pattern. A learned mask has none: its lam is the weight of another penalty."""
        return PATTERNS.get(self.name)


def finished_runs(root: Path) -> list[MaskRun]:
    """Every finished run below `root` that has a score."""
    found = []
    for status in sorted(root.glob("**/status.json")):
        folder = status.parent
        if read_status(folder) != "done":
            continue
        try:
            config = read_config(folder)
        except UserError:
            continue
        metrics = read_metrics(folder)
        metric = _metric(config["task"])
        score = metrics.get("val", {}).get(metric)
        if score is not None and "mask" in config:
            found.append((config, metric, score, metrics))
    runs = []
    for config, metric, score, metrics in found:
        # Settings may be a task's own, so they are held against those of the same task.
        alike = [other for other, *_ in found if other["task"]["name"] == config["task"]["name"]]
        mask, setting = _words(config, alike)
        runs.append(
            MaskRun(
                name=str(config["mask"]["name"]),
                mask=mask,
                setting=setting,
                task=str(config["task"]["name"]),
                metric=metric,
                seed=int(config["seed"]),
                density=float(metrics.get("mask", {}).get("density", 1.0)),
                keys=metrics.get("attention", {}).get("support"),
                score=float(score),
                form=config["mask"].get("form"),
            )
        )
    return runs


def mask_rows(runs: Sequence[MaskRun]) -> list[MaskRow]:
    """A row a mask and setting: no mask first, then patterns and learned masks, each from dense to sparse."""
    tasks = tasks_of(runs)
    by_row: dict[tuple[str, str], list[MaskRun]] = {}
    for run in runs:
        by_row.setdefault((run.setting, run.mask), []).append(run)
    rows = []
    for (setting, mask), own in by_row.items():
        scores = {task: mean for task in tasks if (mean := _mean([run.score for run in own if run.task == task]))}
        whole = len(scores) == len(tasks)
        keys = [mean for task in tasks if (mean := _mean([run.keys for run in own if run.task == task and run.keys]))]
        rows.append(
            MaskRow(
                name=own[0].name,
                mask=mask,
                setting=setting,
                density=fmean(run.density for run in own),
                keys=fmean(mean for mean, _ in keys) if len(keys) == len(tasks) else None,
                scores=scores,
                average=fmean(mean for mean, _ in scores.values()) if whole else None,
                spread=_spread_of_average(own, len(tasks)) if whole else None,
            )
        )
    return sorted(rows, key=lambda row: (row.setting, row.name != "none", row.name in ("dam", "file"), -row.density))


def tasks_of(runs: Sequence[MaskRun]) -> dict[str, str]:
    """task -> its metric, in the order of GLUE's tables."""
    found = {run.task: run.metric for run in runs}
    return dict(sorted(found.items(), key=lambda item: ORDER.index(item[0]) if item[0] in ORDER else len(ORDER)))


def over_none(row: MaskRow, rows: Sequence[MaskRow]) -> float | None:
    """The row's average less that of no mask in the same setting; None where there is none or it is that row."""
    base = next((other for other in rows if other.name == "none" and other.setting == row.setting), None)
    if base is None or base is row or base.average is None or row.average is None:
        return None
    return row.average - base.average


def _metric(task: Config) -> str:
    """The first metric of which more is better: of a language model its accuracy, not its perplexity."""
    metrics = TaskSpec.from_config(task, ()).metrics
    return next((metric for metric in metrics if metric not in LESS_IS_BETTER), metrics[0])


def _words(config: Config, alike: Sequence[Config]) -> tuple[str, str]:
    """The mask with its options that differ between runs of that mask, and whatever else differs."""
    varied: set[str] = set()
    for other in alike:
        for key in differences(config, other):
            group, _, name = key.partition(".")
            # the options of two different choices of a group differ in any case
            if name in ("", "name") or _choice(config, group) == _choice(other, group):
                varied.add(key)
    mask = config["mask"]
    if mask["name"] == "dam":
        varied.add("mask.lam" if mask.get("target_density") is None else "mask.target_density")
    options = [key for key in mask if key != "name" and f"mask.{key}" in varied]
    words = []
    for key in sorted(varied):
        group, _, name = key.partition(".")
        if group not in MEANT:
            value = _short(_value(config, key))
            words.append(value if name == "name" else f"{key}={value}")
    return " ".join([str(mask["name"]), *(f"{key}={_short(mask[key])}" for key in options)]), " ".join(words)


def _choice(config: Config, group: str) -> object:
    section = config.get(group)
    return section.get("name") if isinstance(section, Mapping) else None


def _value(config: Config, key: str) -> object:
    group, _, name = key.partition(".")
    section = config.get(group)
    return section.get(name) if isinstance(section, Mapping) else section


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _mean(scores: Sequence[float]) -> tuple[float, float | None] | None:
    if not scores:
        return None
    return fmean(scores), stdev(scores) if len(scores) > 1 else None


def _spread_of_average(runs: Sequence[MaskRun], tasks: int) -> float | None:
    """Standard deviation over seeds of the average over tasks, where every seed has every task."""
    averages = []
    for seed in {run.seed for run in runs}:
        means = {run.task: run.score for run in runs if run.seed == seed}
        if len(means) < tasks:
            return None
        averages.append(fmean(means.values()))
    return stdev(averages) if len(averages) > 1 else None
