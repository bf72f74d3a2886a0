"""The declarative description of a task: its kind, its labels, its metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnlab.data.spec import Kind, check_kind
from attnlab.errors import UserError, closest

DEFAULT_METRICS: dict[Kind, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1"),
    "regression": ("pearson", "spearman"),
    "multilabel": ("micro_f1", "macro_f1", "exact_match"),
    "multiple_choice": ("accuracy",),
    "span": ("f1", "exact_match"),
    "mlm": ("perplexity", "accuracy"),
}
LESS_IS_BETTER = ("perplexity",)


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """labels: in id order, empty where the kind has none. The first metric is the one monitored. positive: the label
    that f1, map and mrr are about, the task's last; a checkpoint's own head may have it at another id.

    range: least and largest answer of a regression, to which predictions are clipped. merge: split -> label -> the
    label that it is scored as there (a model of three classes on a set that knows two).
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    positive: str | None = None
    range: tuple[float, float] | None = None
    merge: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def num_outputs(self) -> int:
        """Width of the head: one logit a label; start and end of a span; else one number."""
        return {"classification": len(self.labels), "multilabel": len(self.labels), "span": 2}.get(self.kind, 1)

    @property
    def positive_id(self) -> int:
        """Id of the positive label, the last where none is named."""
        return self.labels.index(self.positive) if self.positive in self.labels else len(self.labels) - 1

    @property
    def monitor(self) -> str:
        """Logged name of the metric that chooses the best checkpoint."""
        return f"val/{self.metrics[0]}"

    @property
    def mode(self) -> str:
        """max where more of that metric is better, else min."""
        return "min" if self.metrics[0] in LESS_IS_BETTER else "max"

    def merged_ids(self, split: str) -> tuple[int, ...] | None:
        """For each label id the id that it is scored as on `split`; None where each is scored as itself."""
        merge = self.merge.get(split)
        if not merge:
            return None
        ids = {label: index for index, label in enumerate(self.labels)}
        for label in (*merge, *merge.values()):
            if label not in ids:
                raise UserError(f"task.merge.{split}: there is no label {label!r}{closest(label, self.labels)}")
        return tuple(ids[merge.get(label, label)] for label in self.labels)

    @classmethod
    def from_config(cls, task: Mapping[str, Any], labels: Sequence[str]) -> "TaskSpec":
        """labels: `Examples.labels`. Without metrics in the config, the kind's usual ones."""
        kind = check_kind(task.get("kind"))
        metrics = tuple(str(m) for m in (task.get("metrics") or DEFAULT_METRICS[kind]))
        return cls(
            name=str(task.get("name", "custom")),
            kind=kind,
            labels=tuple(labels),
            metrics=metrics,
            positive=str(task["labels"][-1]) if task.get("labels") else None,
            range=_range(task.get("range"), kind),
            merge=_merge(task.get("merge"), kind),
        )


def _range(given: object, kind: Kind) -> tuple[float, float] | None:
    if given is None:
        return None
    if kind != "regression":
        raise UserError(f"task.range={given} is for task.kind=regression; this task is a {kind}")
    numbers = given if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if len(numbers) != 2 or not all(isinstance(one, int | float) for one in numbers) or not numbers[0] < numbers[1]:
        raise UserError(f"task.range={given} must be two numbers, the least and the largest answer, such as [0,5]")
    return float(numbers[0]), float(numbers[1])


def _merge(given: object, kind: Kind) -> Mapping[str, Mapping[str, str]]:
    if given is None:
        return {}
    if (
        kind != "classification"
        or not isinstance(given, Mapping)
        or not all(isinstance(m, Mapping) for m in given.values())
    ):
        raise UserError(
            f"task.merge={given} must say for a split of a classification which label counts as which, such as "
            "{test: {contradiction: neutral}}"
        )
    return given
