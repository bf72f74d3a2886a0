"""What watches a training: its cost, and when to stop it early."""

import logging
import math
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, EarlyStopping, TQDMProgressBar
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from ..tasks.spec import TaskSpec
from .waiting import OnceArrived, Steering

log = logging.getLogger("attnlab")

WARMING_STEPS = 10  # steps in which layers are compiled and memory is found


def forget_peak_memory() -> None:
    """Let the next `peak_memory_mb` count from here on, where the system can (Linux, CUDA)."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb() -> float:
    """Peak memory in MB: GPU memory where one is used, else this process's resident memory."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0:
        return torch.cuda.max_memory_allocated() / 1e6
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


class Meter(Callback):
    """Counts what training costs.

    seconds: wall time of the training steps, evaluation not counted. examples_per_second: over the steps after the
    first ten, in which the layers are compiled (all steps when there are no more). A resumed run counts on.
    """

    COUNTS = ("seconds", "steps", "warm_seconds", "examples", "warm_examples")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps = 0
        self.warm_seconds = 0.0
        self.examples = 0
        self.warm_examples = 0
        self._mark = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.COUNTS}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in self.COUNTS:
            setattr(self, name, state_dict[name])

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        forget_peak_memory()

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
        count = len(batch["example_id"]) * trainer.world_size
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


class ProgressBar(TQDMProgressBar):
    """Lightning's bar with loss and metric, without its logger's version number."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=10)

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        shown: dict[str, Any] = super().get_metrics(trainer, pl_module)
        shown.pop("v_num", None)
        return shown


class EpochLines(Callback):
    """One line an epoch, where a bar would fill a log file."""

    def __init__(self, task: TaskSpec) -> None:
        self.metric = task.monitor

    @rank_zero_only
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        values = trainer.callback_metrics
        shown = [name for name in ("train/loss", self.metric, "attention/density") if name in values]
        line = "  ".join(f"{name} {float(values[name]):.4f}" for name in shown)
        log.info("epoch %d of %d  %s", trainer.current_epoch + 1, trainer.max_epochs, line)


class _EarlyStopping(OnceArrived, EarlyStopping):
    """Lightning's, waiting for what is steered."""


def build_early_stopping(task: TaskSpec, patience: int, waits_for: Sequence[Steering]) -> EarlyStopping:
    """Stop after `patience` evaluations without a better value of the task's first metric."""
    stopping = _EarlyStopping(monitor=task.monitor, mode=task.mode, patience=patience, check_on_train_epoch_end=False)
    stopping.waits_for = waits_for
    return stopping
