"""Checkpoints that survive a kill or a full disk, and which of them to go on from.

checkpoints/best.ckpt       best epoch by the task's first metric
checkpoints/last.ckpt       last finished epoch; the same file on disk as best.ckpt where that is the best one
checkpoints/previous.ckpt   the one before it, while training runs
"""

import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import nn

from ..errors import UserError
from ..files import size
from ..tasks.spec import TaskSpec
from .run_folder import write_failed
from .waiting import OnceArrived, Steering

log = logging.getLogger("attnlab")

BEST, LAST, PREVIOUS = "best.ckpt", "last.ckpt", "previous.ckpt"
DRAFT = ".{}.tmp"


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
    found = (read_checkpoint(folder / "checkpoints" / name) for name in (LAST, PREVIOUS, BEST))
    return next((checkpoint for checkpoint in found if checkpoint is not None), None)


def checkpoint_to_keep(folder: Path) -> Checkpoint | None:
    """The best epoch's checkpoint; when that is damaged, the last one's."""
    found = (read_checkpoint(folder / "checkpoints" / name) for name in (BEST, LAST))
    return next((checkpoint for checkpoint in found if checkpoint is not None), None)


def clear_drafts(folder: Path) -> None:
    """Take away what a killed process left half written."""
    for draft in (folder / "checkpoints").glob(DRAFT.format("*.ckpt")):
        draft.unlink()


def require_space(folder: Path, model: nn.Module, epochs: int) -> None:
    """Refuse to train `model` for so many epochs where the checkpoints, with AdamW's two moments, do not fit.

    Raises UserError with what is needed and what is free.
    """
    held = sum(p.numel() * p.element_size() for p in model.parameters())
    one = held + 2 * sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    there = {file.stat().st_ino: file.stat().st_size for file in (folder / "checkpoints").glob("*.ckpt")}
    needed = max(min(epochs, 3) * one, min(epochs, 2) * one + held) - sum(there.values())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"the disk of {folder} has {size(free)} free, and this run writes up to {size(needed)}: free some, or "
            "write elsewhere with hydra.run.dir=FOLDER (hydra.sweep.dir=FOLDER with -m)"
        )


def drop_spare(checkpoints: Path) -> None:
    """A finished run needs no previous.ckpt."""
    (checkpoints / PREVIOUS).unlink(missing_ok=True)


class WholeCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and moves it there, so that a kill leaves the old one whole.

    The last.ckpt of the epoch before stays as previous.ckpt. No more than three files are on disk, best.ckpt and
    last.ckpt being two names of one where they can be.

    last_is_whole: whether the run goes on from last.ckpt, rather than from another because that one is damaged.
    """

    def __init__(self, *, last_is_whole: bool) -> None:
        self._last_is_whole = last_is_whole
        self._best: int | None = None  # the step that best.ckpt was written at

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        final = Path(path)
        last = final.with_name(LAST)
        draft = final.with_name(DRAFT.format(final.name))
        if not (final == last and self._best == checkpoint["global_step"] and _link(final.with_name(BEST), draft)):
            if self._last_is_whole:
                drop_spare(final.parent)
            else:
                last.unlink(missing_ok=True)
            _write(checkpoint, draft)
        if final == last:
            if self._last_is_whole:
                last.replace(last.with_name(PREVIOUS))
            self._last_is_whole = True
        draft.replace(final)
        if final.name == BEST:
            self._best = checkpoint["global_step"]


def _write(checkpoint: dict[str, Any], draft: Path) -> None:
    """Straight to the disk: Lightning's own holds the whole file in memory first, then writes it to /tmp."""
    draft.parent.mkdir(parents=True, exist_ok=True)
    try:
        with draft.open("wb") as stream:
            torch.save(checkpoint, stream)
    except BaseException as error:
        with suppress(OSError):
            os.truncate(draft, 0)  # the error still holds it open, and it may be all that fills the disk
            draft.unlink()
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__  # torch.save hides it behind an error of its own
        if cause is not None:
            raise write_failed(draft.parent.parent, cause) from error
        raise


def _link(source: Path, target: Path) -> bool:
    """Make `target` another name of the file `source`; whether that could be done."""
    target.unlink(missing_ok=True)
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
