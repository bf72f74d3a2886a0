"""Cut a training off, and hold what a resumed one ends with against an unbroken one."""

from pathlib import Path

import pytest
import torch
from pytorch_lightning.callbacks import Callback

import attnlab
from attnlab.training import TrainResult, train


class CutError(Exception):
    pass


class _Cut(Callback):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == self.epoch:
            raise CutError


def train_until(epoch: int, config: dict, folder: Path) -> None:
    """Train in `folder` and fail at the start of that epoch, counted from 0."""
    with pytest.raises(CutError):
        train(config, folder, callbacks=[_Cut(epoch)])


def assert_same_weights(one: TrainResult, other: TrainResult) -> None:
    """The saved models are equal to the last bit."""
    theirs = attnlab.load(other.run_dir).state_dict()
    for key, value in attnlab.load(one.run_dir).state_dict().items():
        assert torch.equal(value, theirs[key]), key
