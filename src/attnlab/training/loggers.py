"""Where numbers go while a run is under way: always metrics.csv, W&B and TensorBoard as asked."""

import csv
import hashlib
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter
from requests.utils import get_netrc_auth

from ..errors import UserError
from ..files import whole

_opened: set[str] = set()  # ids of the W&B runs that are ours to finish


class _GrowingWriter(ExperimentWriter):
    """Goes on with the metrics.csv of an earlier session instead of deleting it; writes no hparams.yaml.

    Rows after `last_step`, the step of the checkpoint gone on from, and those of tests are dropped: they come again.
    """

    def __init__(self, log_dir: str, last_step: int) -> None:
        self.last_step = last_step
        super().__init__(log_dir=log_dir)

    def _check_log_dir_exists(self) -> None:
        path = Path(self.metrics_file_path)
        if not path.is_file():
            return
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            self.metrics_keys = list(reader.fieldnames or [])
            rows = [row for row in reader if (row.get("step") or "").isdigit() and int(row["step"]) <= self.last_step]
        tests = [key for key in self.metrics_keys if key.startswith("test/")]
        self._write([row for row in rows if not any(row[key] for key in tests)])

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        with Path(self.metrics_file_path).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self._write(rows)

    def _write(self, rows: list[dict[str, str]]) -> None:
        with whole(Path(self.metrics_file_path)) as file:
            writer = csv.DictWriter(file, fieldnames=self.metrics_keys)
            writer.writeheader()
            writer.writerows(rows)

    def save(self) -> None:
        super(ExperimentWriter, self).save()


def csv_logger(run_dir: Path, last_step: int) -> CSVLogger:
    """metrics.csv in the run folder."""
    logger = CSVLogger(run_dir, name="", version="", flush_logs_every_n_steps=10)
    logger._experiment = _GrowingWriter(str(run_dir), last_step)
    return logger


def _wandb_online() -> bool:
    """Whether W&B could log in without asking: a key in the environment or in ~/.netrc, and a host that answers."""
    import wandb

    mode = os.environ.get("WANDB_MODE")
    if mode is not None:
        return mode == "online"
    host = wandb.Settings().base_url
    if not (os.environ.get("WANDB_API_KEY") or get_netrc_auth(host)):
        return False
    address = urlparse(host)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=3).close()
    except OSError:
        logging.getLogger("attnlab").info("note: W&B at %s does not answer: this run is logged offline", host)
        return False
    return True


def wandb_logger(run_dir: Path, settings: Mapping[str, Any], *, resumed: bool) -> WandbLogger:
    """One W&B run for this run folder: offline when there is no API key, never a prompt.

    An online run goes on under its id when resumed. An offline run cannot be reopened, so a resumed one is a new run
    in the group of the first.
    """
    import wandb

    if wandb.run is not None:
        raise UserError(f"a W&B run ({wandb.run.id}) is already active in this process: call wandb.finish() first")
    offline = not _wandb_online()
    first = hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:10]
    identity = f"{first}-{int(time.time())}" if offline and resumed else first
    _opened.add(identity)
    logger = WandbLogger(
        project=str(settings["logger"].get("project") or "attnlab"),
        name=f"{settings['task']['name']}-{settings['attn']['name']}-s{settings['seed']}",
        group=first,
        save_dir=run_dir,
        id=identity,
        offline=offline,
        mode="offline" if offline else "online",  # the variable that Lightning sets comes too late for a second run
        resume="allow",
        settings=wandb.Settings(silent=True, console="off"),
        config=dict(settings),
    )
    logger._wandb_init.pop("anonymous", None)  # Lightning passes it on, and W&B warns that it means nothing
    return logger


def build_loggers(run_dir: Path, settings: Mapping[str, Any], *, resumed: bool, last_step: int) -> list[Logger]:
    """metrics.csv, and what the `logger` group asks for. last_step: of the checkpoint gone on from, else 0."""
    loggers: list[Logger] = [csv_logger(run_dir, last_step)]
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
    if wandb is not None and wandb.run is not None and wandb.run.id in _opened:
        try:
            wandb.finish(exit_code=1 if failed else 0)
        except Exception:
            if not failed:  # what W&B says of a full disk would hide what we say of it
                raise
