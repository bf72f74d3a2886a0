"""What each kind of task puts on an encoder: the model class, the loss, and how logits become answers.

B examples, C choices, L tokens, K labels, M masked tokens.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from attnlab.data.spec import Kind
from attnlab.tasks.masked import only_at
from attnlab.tasks.spans import span_logits, span_losses
from attnlab.tasks.spec import TaskSpec

Batch = Mapping[str, Tensor]
Answer = dict[str, Any]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Classification:
    """Logits (B, K); cross-entropy in nats; the likeliest class."""

    auto: ClassVar[Any] = AutoModelForSequenceClassification

    def __init__(self, task: TaskSpec) -> None:
        self.task = task

    def logits(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        """In float32."""
        return self.outputs(model(**{key: batch[key] for key in INPUTS if key in batch}))

    def outputs(self, given: Any) -> Tensor:
        """The logits in what a transformers model returned, in float32."""
        logits: Tensor = given.logits
        return logits.float()

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Loss of each example (B,), or of each masked token (M,)."""
        return F.cross_entropy(logits, labels, reduction="none")

    def predictions(self, logits: Tensor) -> Tensor:
        """What the metrics compare with the labels."""
        return logits.argmax(dim=-1)

    def scored(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Further arguments of `MetricCollection.update`, for the metrics that ask for them."""
        if "group" not in batch:
            return {}
        positive = self.task.positive_id
        others = [k for k in range(logits.shape[-1]) if k != positive]
        return {"scores": logits[:, positive] - logits[:, others].logsumexp(-1), "groups": batch["group"]}

    def answers(self, logits: Tensor) -> list[Answer]:
        """Of each example the prediction and probabilities, as they are written to a file."""
        names, shares = self.task.labels, logits.softmax(-1).tolist()
        return [
            {"prediction": names[i], "probabilities": row}
            for i, row in zip(self.predictions(logits).tolist(), shares, strict=True)
        ]

    def label(self, label: Any) -> Any:
        """A label out of a batch, as it is written to a file."""
        return self.task.labels[label]


class Regression(Classification):
    """One number (B, 1); squared error; clipped to the task's range where it is asked, not where it is learned."""

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.mse_loss(logits.squeeze(-1), labels.float(), reduction="none")

    def predictions(self, logits: Tensor) -> Tensor:
        numbers = logits.squeeze(-1).float()
        return numbers if self.task.range is None else numbers.clamp(*self.task.range)

    def answers(self, logits: Tensor) -> list[Answer]:
        return [{"prediction": value} for value in self.predictions(logits).tolist()]

    def label(self, label: Any) -> Any:
        return label


class Multilabel(Classification):
    """Logits (B, K), each label by itself: binary cross-entropy averaged over the labels; those above one half."""

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none").mean(-1)

    def predictions(self, logits: Tensor) -> Tensor:
        return (logits > 0).long()

    def answers(self, logits: Tensor) -> list[Answer]:
        rows = zip(self.predictions(logits).tolist(), logits.sigmoid().tolist(), strict=True)
        return [{"prediction": self.label(flags), "probabilities": shares} for flags, shares in rows]

    def label(self, label: Any) -> Any:
        return [name for name, flag in zip(self.task.labels, label, strict=True) if flag]


class MultipleChoice(Classification):
    """Inputs (B, C, L), a logit for each choice (B, C); cross-entropy over the choices."""

    auto = AutoModelForMultipleChoice

    def answers(self, logits: Tensor) -> list[Answer]:
        rows = zip(self.predictions(logits).tolist(), logits.softmax(-1).tolist(), strict=True)
        return [{"prediction": choice, "probabilities": shares} for choice, shares in rows]

    def label(self, label: Any) -> Any:
        return label


class Span(Classification):
    """Logits (B, L, 2) of start and end; the mean of their cross-entropies. Answers are of all windows of a question,
    so `SpanScores` has them.
    """

    auto = AutoModelForQuestionAnswering

    def logits(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        out = model(**{key: batch[key] for key in INPUTS if key in batch})
        return span_logits(out.start_logits, out.end_logits, batch["attention_mask"])

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return span_losses(logits, labels)

    def scored(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"logits": logits, "offsets": batch["offsets"], "example_id": batch["example_id"]}

    def answers(self, logits: Tensor) -> list[Answer]:
        return []


class MaskedTokens(Classification):
    """Logits (M, vocabulary) of the masked tokens only, where the batch says which they are."""

    auto = AutoModelForMaskedLM

    def logits(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        with only_at(model, batch["masked"]):
            return super().logits(model, batch)

    def answers(self, logits: Tensor) -> list[Answer]:
        return []


HEADS: dict[Kind, type[Classification]] = {
    "classification": Classification,
    "regression": Regression,
    "multilabel": Multilabel,
    "multiple_choice": MultipleChoice,
    "span": Span,
    "mlm": MaskedTokens,
}


def build_head(task: TaskSpec) -> Classification:
    """The head of the task's kind."""
    return HEADS[task.kind](task)


def merged(logits: Tensor, ids: tuple[int, ...]) -> Tensor:
    """Log-probabilities (B, K) in which label k counts as label ids[k]: theirs add up, its own place is -inf."""
    logs = logits.log_softmax(-1)
    columns = [
        torch.logsumexp(logs[:, [k for k, to in enumerate(ids) if to == column]], dim=-1)
        if column in ids
        else torch.full_like(logs[:, 0], float("-inf"))
        for column in range(logs.shape[-1])
    ]
    return torch.stack(columns, dim=-1)
