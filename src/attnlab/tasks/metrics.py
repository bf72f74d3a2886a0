"""Metrics as torchmetrics objects: accumulated over an epoch and computed once.

Each equals scikit-learn's or scipy's on the same predictions.
"""

from collections.abc import Callable, Mapping
from typing import Any

import datasets
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import (
    BinaryF1Score,
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
    MultilabelExactMatch,
    MultilabelF1Score,
)
from torchmetrics.regression import PearsonCorrCoef, SpearmanCorrCoef
from torchmetrics.retrieval import RetrievalMAP, RetrievalMRR
from torchmetrics.retrieval.base import RetrievalMetric
from torchmetrics.utilities import dim_zero_cat

from attnlab.data.spec import Kind
from attnlab.errors import UserError, closest
from attnlab.tasks.spans import SpanScores
from attnlab.tasks.spec import DEFAULT_METRICS, TaskSpec


class Matthews(MulticlassConfusionMatrix):
    """MCC = (c s - sum_k p_k t_k) / sqrt((s^2 - sum p_k^2) (s^2 - sum t_k^2)), k the classes.

    Gorodkin 2004, as scikit-learn computes it. c correct, s all, p_k predicted as k, t_k truly k. 0
    where the denominator is 0 (all predictions of one class). torchmetrics' own MatthewsCorrCoef
    returns other values there: 0.026 for a CoLA model that always says "acceptable", 1.0 for a
    perfect score on a single class.
    """

    higher_is_better = True

    def compute(self) -> Tensor:
        """Scalar float64 tensor in [-1, 1]."""
        confusion: Tensor = super().compute().double()
        predicted, true, total = confusion.sum(0), confusion.sum(1), confusion.sum()
        above = confusion.trace() * total - (predicted * true).sum()
        below = (total**2 - (predicted**2).sum()) * (total**2 - (true**2).sum())
        return torch.where(below > 0, above / below.clamp(min=1).sqrt(), torch.zeros_like(above))


class _Mean(Metric):
    """Mean over all predictions of an epoch, however they were batched, summed in float64."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.total: Tensor
        self.count: Tensor
        self.add_state("total", default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def _add(self, values: Tensor) -> None:
        self.total += values.double().sum()
        self.count += values.numel()

    def compute(self) -> Tensor:
        """Scalar float64 tensor."""
        return self.total / self.count


class Perplexity(_Mean):
    """exp(mean loss in nats), from 1 on. torchmetrics' own takes logarithms of probabilities, which may be 0."""

    higher_is_better = False

    def update(self, losses: Tensor) -> None:
        """losses (M,)."""
        self._add(losses)

    def compute(self) -> Tensor:
        """Scalar float64 tensor."""
        return super().compute().exp()


class Share(_Mean):
    """Share of predictions that are right, whatever the number of classes."""

    higher_is_better = True

    def update(self, preds: Tensor, target: Tensor) -> None:
        """preds and target (M,) int64."""
        self._add(preds == target)


def _positive(scores: Tensor) -> Tensor:
    """Scores in the same order, above 0: torchmetrics takes the others for not found."""
    return torch.where(scores > 0, scores + 1, 1 / (1 - scores.clamp_max(0)))


class _Ranking(RetrievalMetric):
    """Questions without a right answer don't count, as in the published numbers of WikiQA and TREC-QA."""

    def __init__(self, positive: int) -> None:
        super().__init__(empty_target_action="skip")
        self.positive = positive

    def update(self, scores: Tensor, target: Tensor, groups: Tensor) -> None:
        """scores (B,) any numbers, target (B,) class ids, of which `positive` is right, groups (B,): the question."""
        super().update(_positive(scores), (target == self.positive).long(), indexes=groups)


class MeanAveragePrecision(_Ranking, RetrievalMAP):
    """MAP: of each question the mean, over its right answers, of the precision down to that answer's rank.

    As trec_eval has it.
    """


class MeanReciprocalRank(_Ranking, RetrievalMRR):
    """MRR: of each question 1 / (rank of its first right answer)."""


class PositiveF1(BinaryF1Score):
    """F1 of one of two classes, whichever id it has."""

    def __init__(self, positive: int) -> None:
        super().__init__()
        self.positive = positive

    def update(self, preds: Tensor, target: Tensor) -> None:
        """preds and target (B,) class ids."""
        super().update((preds == self.positive).long(), (target == self.positive).long())


class Spearman(SpearmanCorrCoef):
    """NaN for constant predictions or targets, as in scipy, where torchmetrics has 0."""

    def compute(self) -> Tensor:
        """Scalar tensor in [-1, 1]."""
        for values in (self.preds, self.target):
            flat = dim_zero_cat(values)
            if len(flat) and bool((flat == flat[0]).all()):
                return torch.full((), torch.nan, device=flat.device)
        return super().compute()


def _of_two(spec: TaskSpec, name: str, instead: str) -> int:
    """Id of the positive class, for a metric that is about one of two."""
    if len(spec.labels) != 2:
        raise UserError(
            f"metric {name!r} is about the positive class of two, but this task has {len(spec.labels)} labels: "
            f"{instead}"
        )
    return spec.positive_id


# By kind of task: name -> a new metric.
_BY_KIND: dict[Kind, dict[str, Callable[[TaskSpec], Metric]]] = {
    "classification": {
        "accuracy": lambda spec: MulticlassAccuracy(num_classes=len(spec.labels), average="micro"),
        "f1": lambda spec: PositiveF1(_of_two(spec, "f1", "use task.metrics=[macro_f1]")),
        "macro_f1": lambda spec: MulticlassF1Score(num_classes=len(spec.labels), average="macro"),
        "matthews": lambda spec: Matthews(num_classes=len(spec.labels)),
        "map": lambda spec: MeanAveragePrecision(_of_two(spec, "map", "answers are right or wrong")),
        "mrr": lambda spec: MeanReciprocalRank(_of_two(spec, "mrr", "answers are right or wrong")),
    },
    "regression": {
        "pearson": lambda _: PearsonCorrCoef(),
        "spearman": lambda _: Spearman(),
    },
    "multilabel": {
        "micro_f1": lambda spec: MultilabelF1Score(num_labels=len(spec.labels), average="micro"),
        "macro_f1": lambda spec: MultilabelF1Score(num_labels=len(spec.labels), average="macro"),
        "exact_match": lambda spec: MultilabelExactMatch(num_labels=len(spec.labels)),
    },
    "multiple_choice": {
        "accuracy": lambda _: Share(),
    },
    "span": {},
    "mlm": {
        "perplexity": lambda _: Perplexity(),
        "accuracy": lambda _: Share(),
    },
}
RANKINGS = ("map", "mrr")
METRICS = tuple(dict.fromkeys(name for known in _BY_KIND.values() for name in known))


def check_metrics(spec: TaskSpec, *, grouped: bool) -> None:
    """UserError for a metric that the kind has not, or a ranking where nothing says what is ranked together."""
    known = DEFAULT_METRICS["span"] if spec.kind == "span" else tuple(_BY_KIND[spec.kind])
    for name in spec.metrics:
        if name not in known:
            raise UserError(f"metric {name!r} does not exist for a {spec.kind} task{closest(name, known)}")
        if name in RANKINGS and not grouped:
            raise UserError(
                f"metric {name!r} ranks the answers to a question: data.group=COLUMN says which rows are of one"
            )


def build_metrics(
    spec: TaskSpec, config: Mapping[str, Any] | None = None, examples: datasets.Dataset | None = None
) -> MetricCollection:
    """Metrics by plain name; `update(preds=..., target=..., losses=..., ...)` gives each what it needs.

    preds: what the head's `predictions` returns; losses: of each prediction, in nats; scores and groups: of answers
    to rank, and which question each belongs to. Undefined correlations (constant predictions) are NaN, as in scipy.
    For kind span: those of `SpanScores` over `examples`, with the options of the `task` group in `config`.
    """
    if spec.kind == "span":
        spans = [] if examples is None else [SpanScores.from_config(config or {}, examples)]
        return MetricCollection(spans, compute_groups=False)
    check_metrics(spec, grouped=True)
    built: dict[str, Metric | MetricCollection] = {name: _BY_KIND[spec.kind][name](spec) for name in spec.metrics}
    # sharing states between metrics is not worth its surprises at this size
    return MetricCollection(built, compute_groups=False)
