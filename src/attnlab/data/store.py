"""What is made once and kept: files in attnlab's part of the datasets cache, under names that say what is in them."""

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import filelock
import numpy as np
import pyarrow as pa


def stored(name: str, write: Callable[[Path], None]) -> Path:
    """The file `name` in attnlab's part of the datasets cache; where it is missing, `write(draft)` makes it.

    It appears by a rename, whole or not at all, and one process makes it while others that ask wait. In a home that
    cannot be written to, it is made anew among the temporary files and goes with the process.
    """
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "attnlab"
    if (folder / name).is_file():
        return folder / name
    if not _writable(folder):
        folder = _scratch()
    # few locks for many files: two that share one wait for each other, which does no harm
    with filelock.FileLock(folder / f".{hashlib.sha256(name.encode()).hexdigest()[0]}.lock", is_singleton=True):
        if not (folder / name).is_file():
            _write(folder, name, write)
    return folder / name


def _write(folder: Path, name: str, write: Callable[[Path], None]) -> None:
    for left in folder.glob(f".{name}.{platform.node()}.*.tmp"):  # by a process that was killed: we hold the lock
        left.unlink(missing_ok=True)
    draft = folder / f".{name}.{platform.node()}.{os.getpid()}.tmp"
    try:
        write(draft)
        draft.replace(folder / name)
    finally:
        draft.unlink(missing_ok=True)


def _writable(folder: Path) -> bool:
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK)
    return False


def _scratch() -> Path:
    return Path(_temporary().name)


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="attnlab-")  # removed when the process ends


def key_of(settings: object) -> str:
    """sha256 over plain values."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def content_of(path: Path) -> str:
    """sha256 over the bytes of a file, or over the names and bytes of all files of a folder."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return key_of([[str(file.relative_to(path)), content_of(file)] for file in files])
    state = path.stat()
    return _sha256(path, state.st_mtime_ns, state.st_size)


@cache
def _sha256(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_arrow(path: Path, fingerprint: str) -> datasets.Dataset:
    """A stored file as it lies on disk, known by what is in it: what is derived from it is known by that too."""
    part = datasets.Dataset.from_file(str(path))
    return datasets.Dataset(part.data, info=part.info, fingerprint=fingerprint[:64])


def write_arrow(path: Path, features: datasets.Features, batches: Iterable[Mapping[str, Any]]) -> None:
    """Columns of some rows at a time, lists or arrays, into a file for `read_arrow`."""
    schema = features.arrow_schema
    with path.open("wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for columns in batches:
            arrays = [
                columns[field.name]
                if isinstance(columns[field.name], pa.Array)
                else pa.array(columns[field.name], field.type)
                for field in schema
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def values_of(part: datasets.Dataset, name: str) -> np.ndarray[Any, np.dtype[Any]]:
    """A column of numbers."""
    table = part.select_columns(name).with_format("arrow")[:]
    values: np.ndarray[Any, np.dtype[Any]] = table.column(name).to_numpy()
    return values


def chosen(part: datasets.Dataset, indices: Sequence[int] | np.ndarray[Any, np.dtype[np.int64]]) -> datasets.Dataset:
    """These rows, known by which of what they are."""
    places = np.asarray(indices, dtype=np.int64)
    name = key_of([part._fingerprint, hashlib.sha256(places.tobytes()).hexdigest()])
    return part.select(places, new_fingerprint=name)
