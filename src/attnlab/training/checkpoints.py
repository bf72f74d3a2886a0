"""Checkpoints that survive a kill, and which of them to go on from.

checkpoints/best.ckpt       best epoch by the task's first metric
checkpoints/last.ckpt       last finished epoch        checkpoints/previous.ckpt   the one before it
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning.callbacks import Callback, ModelCheckpoint

from ..tasks.spec import TaskSpec
from .waiting import OnceArrived, Steering

log = logging.getLogger("attnlab")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint on disk, and how far training had come in it."""

    path: Path
    epochs: int
    step: int


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint at `path` when it is whole; None when there is none; says so when it is damaged."""
    if not path.is_file():
        return None
    try:
        state = torch.load(path, map_location="meta", weights_only=True, mmap=True)
        return Checkpoint(path=path, epochs=int(state["epoch"]) + 1, step=int(state["global_step"]))
    except Exception as error:  # a cut file may raise anything
        log.info("note: %s is damaged (%s): trying another", path, type(error).__name__)
        return None


def checkpoint_to_resume(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a run folder, or None."""
    found = (read_checkpoint(folder / "checkpoints" / f"{name}.ckpt") for name in ("last", "previous", "best"))
    return next((checkpoint for checkpoint in found if checkpoint is not None), None)


def checkpoint_to_keep(folder: Path) -> Checkpoint | None:
    """The best epoch's checkpoint; when that is damaged, the last one's."""
    found = (read_checkpoint(folder / "checkpoints" / f"{name}.ckpt") for name in ("best", "last"))
    return next((checkpoint for checkpoint in found if checkpoint is not None), None)


class WholeCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and moves it there, so that a kill leaves the old one whole.

    The last.ckpt of the epoch before stays as previous.ckpt.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        final = Path(path)
        draft = final.with_name(f".{final.name}.tmp")
        super().save_checkpoint(checkpoint, draft, storage_options)
        if final.name == "last.ckpt" and final.exists():
            final.replace(final.with_name("previous.ckpt"))
        draft.replace(final)


class _BestCheckpoint(OnceArrived, ModelCheckpoint):
    """Keeps the best score when the run folder has been moved since it was written."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        def here(path: str) -> str:
            return str(Path(str(self.dirpath), Path(path).name)) if path else path

        moved = {name: here(state_dict.get(name, "")) for name in ("best_model_path", "kth_best_model_path")}
        models = {here(path): score for path, score in state_dict.get("best_k_models", {}).items()}
        super().load_state_dict(
            {**state_dict, **moved, "dirpath": self.dirpath, "best_k_models": models, "last_model_path": ""}
        )


def build_checkpoints(run_dir: Path, task: TaskSpec, waits_for: Sequence[Steering]) -> list[Callback]:
    """checkpoints/best.ckpt by the task's first metric, and last.ckpt after every epoch."""
    plain: dict[str, Any] = {
        "dirpath": run_dir / "checkpoints",
        "auto_insert_metric_name": False,
        "enable_version_counter": False,
        "save_on_train_epoch_end": False,
    }
    best = _BestCheckpoint(filename="best", monitor=task.monitor, mode=task.mode, save_top_k=1, **plain)
    best.waits_for = waits_for
    last = _BestCheckpoint(filename="last", monitor=None, save_top_k=1, **plain)
    return [best, last]
