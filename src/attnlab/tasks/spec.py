"""The declarative description of a task: its kind, its labels, its metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnlab.data.spec import Kind, check_kind

DEFAULT_METRICS: dict[Kind, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1"),
    "regression": ("pearson", "spearman"),
    "mlm": ("perplexity", "accuracy"),
}
LESS_IS_BETTER = ("perplexity",)


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """labels: in id order, empty for other kinds than classification. The first metric is the one monitored."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    metrics: tuple[str, ...]

    @property
    def num_outputs(self) -> int:
        """Width of the head: one logit a class, or one number."""
        return len(self.labels) if self.kind == "classification" else 1

    @property
    def monitor(self) -> str:
        """Logged name of the metric that chooses the best checkpoint."""
        return f"val/{self.metrics[0]}"

    @property
    def mode(self) -> str:
        """max where more of that metric is better, else min."""
        return "min" if self.metrics[0] in LESS_IS_BETTER else "max"

    @classmethod
    def from_config(cls, task: Mapping[str, Any], labels: Sequence[str]) -> "TaskSpec":
        """labels: `Examples.labels`. Without metrics in the config, the kind's usual ones."""
        kind = check_kind(task.get("kind"))
        metrics = tuple(str(m) for m in (task.get("metrics") or DEFAULT_METRICS[kind]))
        return cls(name=str(task.get("name", "custom")), kind=kind, labels=tuple(labels), metrics=metrics)
