"""Where numbers go while a run is under way: always metrics.csv, W&B and TensorBoard as asked."""

import hashlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter
from requests.utils import get_netrc_auth

from ..errors import UserError


class _GrowingWriter(ExperimentWriter):
    """Goes on with the metrics.csv of an earlier session instead of deleting it; writes no hparams.yaml."""

    def _check_log_dir_exists(self) -> None:
        path = Path(self.metrics_file_path)
        if path.is_file():
            header = path.read_text(encoding="utf-8").split("\n", 1)[0].strip()
            self.metrics_keys = header.split(",") if header else []

    def save(self) -> None:
        super(ExperimentWriter, self).save()


def csv_logger(run_dir: Path) -> CSVLogger:
    """metrics.csv in the run folder."""
    logger = CSVLogger(run_dir, name="", version="", flush_logs_every_n_steps=10)
    logger._experiment = _GrowingWriter(log_dir=str(run_dir))
    return logger


def has_wandb_key() -> bool:
    """Whether W&B could log in without asking: a key in the environment or in ~/.netrc."""
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    return bool(os.environ.get("WANDB_API_KEY") or get_netrc_auth(host))


def wandb_logger(run_dir: Path, settings: Mapping[str, Any], *, resumed: bool) -> WandbLogger:
    """One W&B run for this run folder: offline when there is no API key, never a prompt.

    An online run goes on under its id when resumed. An offline run cannot be reopened, so a resumed one is a new run
    in the group of the first.
    """
    import wandb

    if wandb.run is not None:
        raise UserError(f"a W&B run ({wandb.run.id}) is already active in this process: call wandb.finish() first")
    offline = os.environ.get("WANDB_MODE") == "offline" or ("WANDB_MODE" not in os.environ and not has_wandb_key())
    first = hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:10]
    identity = f"{first}-{int(time.time())}" if offline and resumed else first
    return WandbLogger(
        project=str(settings["logger"].get("project") or "attnlab"),
        name=f"{settings['task']['name']}-{settings['attn']['name']}-s{settings['seed']}",
        group=first,
        save_dir=run_dir,
        id=identity,
        offline=offline,
        resume="allow",
        settings=wandb.Settings(silent=True, console="off"),
        config=dict(settings),
    )


def build_loggers(run_dir: Path, settings: Mapping[str, Any], *, resumed: bool) -> list[Logger]:
    loggers: list[Logger] = [csv_logger(run_dir)]
    if settings["logger"].get("wandb"):
        loggers.append(wandb_logger(run_dir, settings, resumed=resumed))
    if settings["logger"].get("tensorboard"):
        try:
            loggers.append(TensorBoardLogger(run_dir, name="tensorboard", version=""))
        except ModuleNotFoundError as error:
            raise UserError("logger.tensorboard=true needs the tensorboard package: pip install tensorboard") from error
    return loggers


def finish_wandb(*, failed: bool) -> None:
    """Close the W&B run of this job, so that the next job of a sweep gets its own."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and wandb.run is not None:
        wandb.finish(exit_code=1 if failed else 0)
