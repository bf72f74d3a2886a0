"""The declarative description of a task: its kind, its labels, its metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from attnlab.errors import UserError, closest

Kind = Literal["classification", "regression"]
DEFAULT_METRICS: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1"),
    "regression": ("pearson", "spearman"),
}


def check_kind(kind: object) -> Kind:
    """The kind of a task as typed, or a UserError that names the two there are."""
    if kind not in DEFAULT_METRICS:
        raise UserError(f"unknown task.kind {str(kind)!r}{closest(str(kind), DEFAULT_METRICS)}")
    return cast(Kind, kind)


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """labels: in id order, empty for regression. The first metric is the one monitored."""

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
        """Logged name of the metric that chooses the best checkpoint; more is better."""
        return f"val/{self.metrics[0]}"

    @classmethod
    def from_config(cls, task: Mapping[str, Any], labels: Sequence[str]) -> "TaskSpec":
        """labels: `Examples.labels`. Without metrics in the config, the kind's usual ones."""
        kind = check_kind(task.get("kind"))
        metrics = tuple(str(m) for m in (task.get("metrics") or DEFAULT_METRICS[kind]))
        return cls(
            name=str(task.get("name", "custom")), kind=kind, labels=tuple(labels), metrics=metrics
        )
