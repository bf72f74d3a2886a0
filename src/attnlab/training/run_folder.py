"""The run folder: what a run leaves behind, each file written whole or not at all.

config.yaml       resolved config, plain values        metrics.json    final numbers
status.json       running | done | failed | interrupted    provenance.json   where the numbers come from
"""

import hashlib
import json
import math
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import torch
import yaml
from omegaconf import DictConfig, OmegaConf

from ..data.wheels import cache_root
from ..errors import UserError
from ..files import disk_is_full, size, whole, write_whole

PACKAGES = ("torch", "pytorch-lightning", "transformers", "datasets", "torchmetrics", "hydra-core")
# Keys that say how a run is carried out; two runs that differ only in them are the same experiment.
NOT_THE_EXPERIMENT = ("resume", "logger", "data.root", "data.workers", "trainer.progress_bar", "trainer.devices")
UNFINISHED = ("running", "failed", "interrupted")


def write_failed(run_dir: Path, error: BaseException) -> UserError:
    """What to tell the user when a run could not write: the fullest of its disks, and how to go on."""
    caches = cache_root(), Path(datasets.config.HF_DATASETS_CACHE)
    places = (run_dir, *caches, Path(tempfile.gettempdir()))
    free, place = min((shutil.disk_usage(place).free, place) for place in places if place.exists())
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
    return UserError(
        f"writing failed: {reason}. The disk of {place} has {size(free)} free: make room, then go on with "
        f"resume={run_dir}. What was saved before is whole"
    )


@contextmanager
def full_disk_told(run_dir: Path) -> Iterator[None]:
    """Turns the errors of a full disk into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if disk_is_full(error):
            raise write_failed(run_dir, error) from error
        raise


def write_json(path: Path, value: Any) -> None:
    """JSON with null for what is not a finite number, such as an undefined correlation."""
    write_whole(path, json.dumps(_finite(value), indent=2, ensure_ascii=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """JSON lines, one row a line."""
    with whole(path) as out:
        out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def plain(config: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """The config resolved, as dicts, lists and plain values only; paths to data, model and mask made absolute."""
    if isinstance(config, DictConfig):
        config = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    settings: dict[str, Any] = json.loads(json.dumps(config))
    paths = {"data": ("root", "train", "val", "test"), "model": ("name", "tokenizer"), "mask": ("path",)}
    for group, keys in paths.items():
        section = settings.get(group) or {}
        for key in keys:
            given = section.get(key)
            if isinstance(given, str) and (Path(given).expanduser().exists() or "*" in given):
                section[key] = str(Path(given).expanduser().absolute())
    return settings


def write_config(run_dir: Path, settings: Mapping[str, Any]) -> None:
    write_whole(run_dir / "config.yaml", yaml.safe_dump(dict(settings), sort_keys=False))


def read_config(run_dir: Path) -> dict[str, Any]:
    """The settings of the run in `run_dir`. Raises UserError when it is no run folder."""
    path = run_dir / "config.yaml"
    if not path.is_file():
        what = "has no config.yaml" if run_dir.is_dir() else "does not exist"
        raise UserError(f"{run_dir} is not a run folder: it {what}. A run folder is what `train` prints at its end")
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {str(error).splitlines()[0]}") from error
    if not isinstance(settings, dict) or "task" not in settings:
        raise UserError(f"{path} is not the config of a run")
    return settings


def write_status(run_dir: Path, status: str, error: str | None = None) -> None:
    """status: running, done, failed or interrupted."""
    write_json(
        run_dir / "status.json",
        {
            "status": status,
            "error": error,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": _started(os.getpid()),
        },
    )


def read_status(run_dir: Path) -> str | None:
    try:
        return str(json.loads((run_dir / "status.json").read_text())["status"])
    except (OSError, ValueError, KeyError):
        return None


def read_metrics(folder: Path) -> dict[str, Mapping[str, Any]]:
    """metrics.json, or nothing for a run that did not get so far."""
    try:
        return dict(json.loads((folder / "metrics.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _started(pid: int) -> str | None:
    """When that process started, as the system counts; None where it does not say or there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def is_alive(run_dir: Path) -> bool:
    """Whether another process on this machine is training in `run_dir` right now.

    A process id comes back, after a restart of a container even the same one, so its start time counts too.
    """
    try:
        noted = json.loads((run_dir / "status.json").read_text())
        if noted["status"] != "running" or noted["host"] != socket.gethostname() or noted["pid"] == os.getpid():
            return False
        os.kill(int(noted["pid"]), 0)
        return bool(_started(int(noted["pid"])) == noted["started"])
    except (OSError, ValueError, KeyError):
        return False


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Keys in which two experiments differ, dotted; how they are carried out does not count."""

    def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in settings.items():
            parts = value.items() if isinstance(value, Mapping) else ()
            found |= {f"{key}.{name}": part for name, part in parts} or {key: value}
        return {k: v for k, v in found.items() if not any(f"{k}.".startswith(f"{n}.") for n in NOT_THE_EXPERIMENT)}

    a, b = flat(one), flat(other)
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


def find_unfinished(config: DictConfig | Mapping[str, Any], root: Path = Path("outputs")) -> Path | None:
    """The newest run below `root` with this very config that was started and not finished, or None."""
    wanted = plain(config)
    found = sorted(root.glob("**/status.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found:
        if read_status(path.parent) not in UNFINISHED or is_alive(path.parent):
            continue
        try:
            if not differences(read_config(path.parent), wanted):
                return path.parent
        except UserError:
            continue
    return None


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()


def _revision() -> str | None:
    """Git revision of the code, with `+changes` when the work tree differs from it; None outside a checkout."""
    try:
        return _git("rev-parse", "HEAD") + ("+changes" if _git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def provenance(settings: Mapping[str, Any], *, data_source: str, fingerprint: str) -> dict[str, Any]:
    """Where a run's numbers come from: code, versions, machine, data, seed and command."""
    machine: dict[str, Any] = {
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        machine["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "seed": settings["seed"],
        "command": " ".join(sys.argv),
        "git_revision": _revision(),
        "versions": {name: version(name) for name in PACKAGES},
        "machine": machine,
        "data": {"source": data_source, "fingerprint": fingerprint},
        "config_sha256": hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest(),
    }
