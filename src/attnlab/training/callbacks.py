"""What watches a training: speed and memory, and checkpoints that survive a kill."""

import math
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint

from ..tasks.spec import TaskSpec

WARMING_STEPS = 10  # steps in which layers are compiled and memory is found


def peak_memory_mb() -> float:
    """Peak memory of this process in MB: GPU memory where one is used, else resident memory."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0:
        return torch.cuda.max_memory_allocated() / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


class Meter(Callback):
    """Counts what training costs.

    seconds: wall time of the training steps, evaluation not counted. examples_per_second: over the steps after the
    first ten, in which the layers are compiled (all steps when there are no more).
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps = 0
        self.warm_seconds = 0.0
        self.examples = 0
        self.warm_examples = 0
        self._mark = 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._mark = time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: dict[str, torch.Tensor],
        batch_idx: int,
    ) -> None:
        now = time.perf_counter()
        took, self._mark = now - self._mark, now
        count = len(batch["labels"]) * trainer.world_size
        self.seconds += took
        self.examples += count
        self.steps += 1
        if self.steps > WARMING_STEPS:
            self.warm_seconds += took
            self.warm_examples += count

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._mark = time.perf_counter()

    def summary(self, trainer: pl.Trainer) -> dict[str, float]:
        if self.warm_seconds > 0:
            rate = self.warm_examples / self.warm_seconds
        else:
            rate = self.examples / self.seconds if self.seconds else math.nan
        return {
            "seconds": self.seconds,
            "examples_per_second": rate,
            "epochs": float(trainer.current_epoch),
            "steps": float(trainer.global_step),
            "peak_memory_mb": peak_memory_mb(),
        }


class WholeCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and moves it there, so that a kill leaves the old one whole."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        final = Path(path)
        draft = final.with_name(f".{final.name}.tmp")
        super().save_checkpoint(checkpoint, draft, storage_options)
        draft.replace(final)


def build_checkpoint(run_dir: Path, task: TaskSpec) -> ModelCheckpoint:
    """checkpoints/best.ckpt by the task's first metric, and last.ckpt after every epoch."""
    return ModelCheckpoint(
        dirpath=run_dir / "checkpoints",
        filename="best",
        monitor=task.monitor,
        mode="max",
        save_top_k=1,
        save_last=True,
        auto_insert_metric_name=False,
        enable_version_counter=False,
    )


def build_early_stopping(task: TaskSpec, patience: int) -> EarlyStopping:
    """Stop after `patience` evaluations without a better value of the task's first metric."""
    return EarlyStopping(monitor=task.monitor, mode="max", patience=patience)
