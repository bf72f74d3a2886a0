"""Checkpoints that survive a kill or a full disk, and which of them to go on from.

checkpoints/best.ckpt       best epoch by the task's first metric
checkpoints/last.ckpt       last finished epoch; the same file on disk as best.ckpt where that is the best one
checkpoints/previous.ckpt   the one before it, while training runs
"""

import errno
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from safetensors import SafetensorError
from torch import nn

from ..errors import UserError
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


def require_space(folder: Path, model: nn.Module) -> None:
    """Refuse to train `model` where its checkpoints do not fit: three at once, with AdamW's two moments.

    Raises UserError with what is needed and what is free.
    """
    held = sum(p.numel() * p.element_size() for p in model.parameters())
    moments = 2 * sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    there = {file.stat().st_ino: file.stat().st_size for file in (folder / "checkpoints").glob("*.ckpt")}
    needed = 3 * (held + moments) - sum(there.values())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"the disk of {folder} has {_size(free)} free, and this run writes up to {_size(needed)} of checkpoints: "
            "free some, or write elsewhere with hydra.run.dir=FOLDER (hydra.sweep.dir=FOLDER with -m)"
        )


def disk_is_full(error: BaseException) -> bool:
    """Whether that is what `error` says; safetensors says it in words only."""
    if isinstance(error, SafetensorError):
        return os.strerror(errno.ENOSPC) in str(error)
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_failed(folder: Path, error: BaseException) -> UserError:
    """What to tell the user when writing into the run folder failed."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return UserError(
        f"writing into {folder} failed ({reason}); its disk has {_size(shutil.disk_usage(folder).free)} free. "
        f"The checkpoints of finished epochs are whole: make room, then go on with resume={folder}"
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def drop_spare(folder: Path) -> None:
    """A finished run needs no previous.ckpt."""
    (folder / "checkpoints" / "previous.ckpt").unlink(missing_ok=True)


class WholeCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and moves it there, so that a kill leaves the old one whole.

    The last.ckpt of the epoch before stays as previous.ckpt. Never more than three files are on disk.
    """

    def __init__(self) -> None:
        self._best: int | None = None  # the step that best.ckpt was written at

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        final = Path(path)
        last = final.name == "last.ckpt"
        draft = final.with_name(f".{final.name}.tmp")
        draft.unlink(missing_ok=True)  # of a killed process
        if not (last and self._best == checkpoint["global_step"] and _linked(final.with_name("best.ckpt"), draft)):
            drop_spare(final.parent.parent)  # last.ckpt has been whole for an epoch
            try:
                final.parent.mkdir(parents=True, exist_ok=True)
                torch.save(checkpoint, draft)  # Lightning's own holds it in memory first, then writes it to /tmp
            except BaseException as error:
                draft.unlink(missing_ok=True)  # what was written of it may be all that fills the disk
                if isinstance(error, OSError | RuntimeError):  # RuntimeError: how torch.save reports a full disk
                    raise write_failed(final.parent.parent, error) from error
                raise
        if last and final.exists():
            final.replace(final.with_name("previous.ckpt"))
        draft.replace(final)
        if final.name == "best.ckpt":
            self._best = checkpoint["global_step"]


def _linked(source: Path, target: Path) -> bool:
    """Whether `target` could be made another name of the file `source`."""
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        return False
    return True


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
