"""Callbacks that look at an evaluation only when what is steered during training has arrived."""

from collections.abc import Sequence
from typing import Protocol

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback


class Steering(Protocol):
    """What steers the model towards something on the way."""

    def at_target(self, trainer: pl.Trainer) -> bool:
        """Whether the way is done."""


class OnceArrived(Callback):
    """Before another callback's class: it sees the evaluations after all of `waits_for` have arrived."""

    waits_for: Sequence[Steering] = ()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if all(steering.at_target(trainer) for steering in self.waits_for):
            super().on_validation_end(trainer, pl_module)
