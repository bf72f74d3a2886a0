"""Files written whole or not at all, disks that are full, sizes, and paths as a user would type them."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def whole(path: Path) -> Iterator[TextIO]:
    """A draft that takes the file's place when all of it is written: a reader, or a kill, never meets half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8", newline="") as stream:
            yield stream
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """A file, by way of `whole`."""
    with whole(path) as out:
        if isinstance(content, bytes):
            out.buffer.write(content)
        else:
            out.write(content)


def disk_is_full(error: BaseException) -> bool:
    """Whether that is what `error` says; safetensors says it in words only."""
    known = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return known or os.strerror(errno.ENOSPC) in str(error)


def size(count: float) -> str:
    """Bytes: `640 MB`, `1.25 GB`."""
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.2f} GB"


def shown(path: Path) -> Path:
    """The path from the working folder on, where it lies below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
