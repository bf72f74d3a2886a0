"""The Lightning module: encoder and head, loss, metrics, the walk from softmax to sparse attention."""

from collections.abc import Mapping
from typing import Any

import datasets
import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection
from transformers import PreTrainedModel

from ..attention import attention_statistics, cores, start_recording, stop_recording
from ..attention.dials import dial_metrics
from ..attention.masking import SUBMODULE as MASK
from ..errors import UserError
from ..tasks.heads import build_head, merged
from ..tasks.metrics import build_metrics
from ..tasks.spans import SpanScores
from ..tasks.spec import TaskSpec
from .masking import MaskControl, mask_metrics
from .optim import build_optimizer, linear_schedule

STEPS_WORTH_RECOMPILING = 1000
MOST_OVERFLOWS = 30

Batch = dict[str, Tensor]
Row = dict[str, Any]


class FineTuner(pl.LightningModule):
    """Fine-tunes `model` on `task`. `settings` is the plain config: optim, seed and attn.warmup_ratio are read.

    examples: of the splits that will be scored. `tested` names the one that the trainer's next test scores. After an
    evaluation outside training, `rows[split]` holds every example's prediction (on rank 0) and `attention` what the
    attention did.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        task: TaskSpec,
        settings: Mapping[str, Any],
        mask_control: MaskControl | None = None,
        examples: Mapping[str, datasets.Dataset] | None = None,
    ) -> None:
        super().__init__()
        self.mask_control = mask_control
        self.model = model
        self.task = task
        self.head = build_head(task)
        self.settings = settings
        self.tested = "test"
        examples = examples or {}
        scored = [split for split in dict.fromkeys(("val", "test", *examples)) if split != "train"]
        self.scores = nn.ModuleDict(
            {split: build_metrics(task, settings["task"], examples.get(split)) for split in scored}
        )
        self.losses = nn.ModuleDict({split: MeanMetric() for split in scored})
        self.merged = {split: task.merged_ids(split) for split in scored}
        self.rows: dict[str, list[Row]] = {}
        self.attention: dict[str, float] = {}
        self.overflows = 0

    def forward(self, batch: Batch) -> Tensor:
        """Logits in float32, in the shape that the task's head has."""
        return self.head.logits(self.model, batch)

    # training

    def on_train_epoch_start(self) -> None:
        # Every epoch starts from its own seed, so that a resumed run draws what an unbroken one would have drawn.
        torch.manual_seed(int(self.settings["seed"]) * 100_003 + self.current_epoch * 1_009 + self.global_rank)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        ratio = float(self.settings["attn"].get("warmup_ratio") or 0.0)
        total = self.trainer.estimated_stepping_batches
        steps = ratio * total
        walk = min(1.0, self.global_step / steps) if steps >= 1 else 1.0
        # Leaving the mixture out of the compiled layers means compiling them again: worth it for many steps only.
        walking = walk < 1.0 or (steps >= 1 and total - steps < STEPS_WORTH_RECOMPILING)
        for core in cores(self.model):
            core.walking = walking and not core.dense
            core.walk.fill_(walk)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        losses = self.head.losses(self(batch), batch["labels"])
        loss = (losses * batch["weight"]).mean()
        self.log("train/loss", loss.detach(), prog_bar=True)
        return loss if self.mask_control is None else loss + self.mask_control.penalty()

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        clip = self.settings["optim"].get("grad_clip")
        # the penalty of a mask's logits says nothing of the weights' gradients
        weights = [p for name, p in self.named_parameters() if f".{MASK}." not in name]
        norm = nn.utils.clip_grad_norm_(weights, float(clip) if clip else float("inf"))
        # Gradients are already averaged here, so that every process sees the same norm and stops together. A loss
        # scaler (16-bit) skips steps with an overflow while it looks for its scale, but not forever.
        self.overflows = 0 if torch.isfinite(norm) else self.overflows + 1
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        if self.overflows > (MOST_OVERFLOWS if scaled else 0):
            raise UserError(
                f"the gradient is {float(norm)} at step {self.global_step} (epoch {self.current_epoch}): training "
                "stopped; checkpoints of finished epochs are kept. Remedies: a lower optim.lr, a longer "
                "optim.warmup_ratio, trainer.precision=32"
            )
        self.log("train/grad_norm", norm)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optim = self.settings["optim"]
        optimizer = build_optimizer(self.model, optim, mask_lr=self.settings.get("mask", {}).get("lr"))
        schedule = linear_schedule(
            optimizer,
            total_steps=int(self.trainer.estimated_stepping_batches),
            warmup_ratio=float(optim["warmup_ratio"]),
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    # evaluation

    def on_validation_epoch_start(self) -> None:
        self._start_measuring("val")

    def on_test_epoch_start(self) -> None:
        self._start_measuring(self.tested)

    def on_validation_epoch_end(self) -> None:
        self._finish_measuring("val")

    def on_test_epoch_end(self) -> None:
        self._finish_measuring(self.tested)

    def _start_measuring(self, split: str) -> None:
        self.rows[split] = []
        start_recording(self.model)

    def _finish_measuring(self, split: str) -> None:
        stop_recording(self.model)
        metrics, loss = self.scores[split], self.losses[split]
        assert isinstance(metrics, MetricCollection)
        assert isinstance(loss, MeanMetric)
        values = {f"{split}/{name}": float(value) for name, value in metrics.compute().items()}
        values[f"{split}/loss"] = float(loss.compute())
        spans = self._spans(split)
        if spans is not None:
            answered = self.trainer.state.fn != TrainerFn.FITTING and self.global_rank == 0
            self.rows[split] = spans.answers() if answered else []  # of all processes
            if split == "val":
                self.leave_unanswered_above(values.get("val/no_answer_threshold"))
        metrics.reset()
        loss.reset()
        found = attention_statistics(self.model)
        if found:
            found |= dial_metrics(self.model)
        if self.trainer.sanity_checking:
            return
        self.attention = found
        # The best epoch's validation, repeated after training, is in the log already.
        new = split != "val" or self.trainer.state.fn == TrainerFn.FITTING
        for name, value in values.items():
            self.log(name, value, prog_bar=name == f"{split}/{self.task.metrics[0]}", logger=new)
        if split == "val":
            for name, value in found.items():
                self.log(f"attention/{name}", value, logger=new)
            for name, value in mask_metrics(self.model).items():
                self.log(f"mask/{name}", value, logger=new)
        if spans is None and self.rows[split] and torch.distributed.is_initialized():
            shares: list[Any] = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(shares, self.rows[split])
            self.rows[split] = [row for share in shares for row in share]
        self.rows[split].sort(key=lambda row: row["id"])

    def _spans(self, split: str) -> SpanScores | None:
        """What puts the answers of a span task together."""
        metrics = self.scores[split]
        assert isinstance(metrics, MetricCollection)
        return next((metric for metric in metrics.values() if isinstance(metric, SpanScores)), None)

    def leave_unanswered_above(self, threshold: float | None) -> None:
        """For a span task whose questions may have no answer: the threshold of every split but val, which finds it."""
        for split in self.scores:
            spans = self._spans(split)
            if spans is not None and split != "val":
                spans.threshold = threshold

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, self.tested)

    def _evaluate(self, batch: Batch, split: str) -> None:
        logits = self(batch)
        to = self.merged[split]
        metrics, loss = self.scores[split], self.losses[split]
        assert isinstance(metrics, MetricCollection)
        assert isinstance(loss, MeanMetric)
        predicted = self.head.predictions(logits)
        if to is not None:
            predicted = torch.tensor(to, device=predicted.device)[predicted]
        losses = self.head.losses(logits if to is None else merged(logits, to), batch["labels"])
        metrics.update(preds=predicted, target=batch["labels"], losses=losses, **self.head.scored(logits, batch))
        loss.update(losses)
        if self.trainer.state.fn != TrainerFn.FITTING:
            self.rows[split].extend(self._rows(batch, logits))

    def _rows(self, batch: Batch, logits: Tensor) -> list[Row]:
        answers = self.head.answers(logits)
        if not answers:
            return []
        known = zip(batch["example_id"].tolist(), batch["labels"].tolist(), answers, strict=True)
        return [{"id": i, "label": self.head.label(label)} | answer for i, label, answer in known]
