"""The words after `attnlab bench TABLE`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab.errors import UserError, closest

TABLES = ("step", "memory", "trainer", "transforms", "steps", "compile", "blocks")


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """threads None: torch's own choice. rounds None: as many as the table thinks right."""

    quick: bool = False
    threads: int | None = None
    lengths: tuple[int, ...] = (32, 64, 128)
    batch: int = 32
    rounds: int | None = None
    attn: str = "sparsemax"
    model: str = "minilm"
    precision: str = "auto"
    compile: bool = True
    json: Path | None = None


def parse(words: Sequence[str]) -> BenchOptions:
    """KEY=VALUE words to options. Raises UserError for a word that is none of them."""
    given: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in READERS:
            raise UserError(f"unknown option {word!r}{closest(key, READERS)}")
        try:
            given[key] = READERS[key](value)
        except (ValueError, KeyError) as error:
            raise UserError(f"bench: {word!r} is no good value for {key}") from error
    return BenchOptions(**given)


def _flag(value: str) -> bool:
    return {"true": True, "false": False}[value.lower()]


def _positive(value: str) -> int:
    if int(value) < 1:
        raise ValueError(value)
    return int(value)


def _lengths(value: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in value.strip("[]").split(","))


def _precision(value: str) -> str:
    return {"auto": "auto", "bf16": "bf16", "32": "32"}[value]


READERS: dict[str, Callable[[str], Any]] = {
    "quick": _flag,
    "threads": _positive,
    "lengths": _lengths,
    "batch": _positive,
    "rounds": _positive,
    "attn": str,
    "model": str,
    "precision": _precision,
    "compile": _flag,
    "json": Path,
}
