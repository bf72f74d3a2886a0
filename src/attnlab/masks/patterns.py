"""Fixed masks: each pattern is a predicate on positions, keep[i, j] = pattern(i, j) | hub[i] | hub[j].

A pair is decided by its two positions alone, never by the length, so that a text's mask is the same however far its
batch is padded. Hubs are tokens that attend to all and are attended by all; they are found by token id, hence per
example, by the caller. To add a pattern, write it here, name it in `PATTERNS`, and give it a YAML in `conf/mask/`.

"Drops" is the share of pairs not kept at length 128 with the default options. Where SparseBERT (Shi et al. 2021,
arXiv:2102.12871) gives it, the defaults meet its table; its own masks were not published.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import UserError, closest

Word = TypeVar("Word", int, Tensor)


def _option(default: object, allowed: str, accepts: Callable[[Any], bool]) -> Any:
    return field(default=default, metadata={"allowed": allowed, "accepts": accepts})


def _whole(default: int, *, least: int = 1) -> Any:
    return _option(default, f"a whole number from {least} on", lambda n: type(n) is int and n >= least)


def _share(default: float, allowed: str, accepts: Callable[[float], bool]) -> Any:
    return _option(default, allowed, lambda share: type(share) in (int, float) and accepts(share))


def _hubs() -> Any:
    return _option("cls", "cls, special or none", lambda word: word in ("cls", "special", "none"))


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """pattern(query, key) of two broadcastable int64 tensors of positions: bool, True = may be attended.

    Raises ValueError for an option out of range.
    """

    hubs: str = field(default="none", init=False, repr=False)  # the tokens that the caller is to look for

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if option.init and not option.metadata["accepts"](value):
                raise ValueError(f"mask.{option.name}={value} must be {option.metadata['allowed']}")

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NoDiagonal(Pattern):
    """i != j: every token but itself, the part that SparseBERT shows can be dropped. Drops 0.8 %."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return query != key


@dataclass(frozen=True, kw_only=True)
class Band(Pattern):
    """|i - j| <= window: sliding window attention. Drops 94.6 %."""

    window: int = _whole(3)  # keys on each side

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() <= self.window


@dataclass(frozen=True, kw_only=True)
class Longformer(Band):
    """|i - j| <= window, and hubs. Beltagy et al. 2020, arXiv:2004.05150, without its dilation (see Dilated).

    Drops 88.6 %; SparseBERT has 88.7 %, which is what a hub further inside the text gives, where the window is not cut.
    """

    window: int = _whole(6)
    hubs: str = _hubs()


@dataclass(frozen=True, kw_only=True)
class Star(Band):
    """|i - j| <= window, and a hub as the relay. Guo et al. 2019, arXiv:1902.09113, without the tie of last to first.

    Drops 96.1 %, as in SparseBERT.
    """

    window: int = _whole(1)
    hubs: str = _hubs()


@dataclass(frozen=True, kw_only=True)
class Dilated(Pattern):
    """|i - j| in {0, d, 2d, ..., window d}: a sliding window with gaps. Beltagy et al. 2020, arXiv:2004.05150.

    Drops 94.7 %.
    """

    window: int = _whole(3)  # keys on each side
    dilation: int = _whole(2)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        distance = (query - key).abs()
        return (distance % self.dilation == 0) & (distance <= self.window * self.dilation)


@dataclass(frozen=True, kw_only=True)
class Strided(Pattern):
    """|i - j| <= window, or i - j a multiple of stride. Child et al. 2019, arXiv:1904.10509, in both directions.

    Drops 70.4 %, as in SparseBERT (so does window = stride = 4).
    """

    window: int = _whole(17)  # keys on each side
    stride: int = _whole(16)  # the paper: near the square root of the length

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        distance = (query - key).abs()
        return (distance <= self.window) | (distance % self.stride == 0)


@dataclass(frozen=True, kw_only=True)
class Fixed(Pattern):
    """i, j in one block, or j among the last `summary` positions of its block. Child et al. 2019, arXiv:1904.10509.

    In both directions. Drops 72.7 %, as in SparseBERT (so do blocks of 4).
    """

    block: int = _whole(32)
    summary: int = _whole(1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.summary > self.block:
            raise ValueError(f"mask.summary={self.summary} must be a whole number from 1 to mask.block={self.block}")

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return (query // self.block == key // self.block) | (key % self.block >= self.block - self.summary)


@dataclass(frozen=True, kw_only=True)
class BlockLocal(Pattern):
    """i, j in one block. Liu et al. 2018, arXiv:1801.10198 (local attention). Drops 87.5 %."""

    block: int = _whole(16)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return query // self.block == key // self.block


@dataclass(frozen=True, kw_only=True)
class LogSparse(Pattern):
    """|i - j| in {0, 1, 2, 4, 8, ...}. Li et al. 2019, arXiv:1907.00235, in both directions.

    Drops 89.8 %, as in SparseBERT.
    """

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        distance = (query - key).abs()
        return distance & (distance - 1) == 0


@dataclass(frozen=True, kw_only=True)
class Random(Pattern):
    """i = j, or hash(i, j, seed) < density: each pair by chance, and every token itself. Drops 89.4 % at seed 0."""

    density: float = _share(0.1, "in (0, 1)", lambda share: 0 < share < 1)
    seed: int = _whole(0, least=0)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return (query == key) | _chosen(query, key, self.density, self.seed)


@dataclass(frozen=True, kw_only=True)
class BigBird(Pattern):
    """With a, b the blocks of i, j: |a - b| <= window, or hash(a, b, seed) < random; and hubs.

    Zaheer et al. 2020, arXiv:2007.14062, which draws a fixed number of random blocks a row; that would depend on the
    length. Drops 93.2 % at seed 0, as in SparseBERT: 3 keys around, 4 by chance. Long texts want block=32 or more,
    of which attention can leave whole blocks out.
    """

    block: int = _whole(1)
    window: int = _whole(1, least=0)  # blocks on each side
    random: float = _share(0.03, "in [0, 1)", lambda share: 0 <= share < 1)
    seed: int = _whole(0, least=0)
    hubs: str = _hubs()

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        query, key = query // self.block, key // self.block
        return ((query - key).abs() <= self.window) | _chosen(query, key, self.random, self.seed)


def _mix(h: Word) -> Word:
    """A bijection of 32-bit words, here in 64 bits, with each output bit moved by each input bit: lowbias32."""
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & 0xFFFFFFFF
    h = h ^ (h >> 15)
    h = (h * (0x846CA68B - (1 << 32))) & 0xFFFFFFFF  # the same low 32 bits, and no overflow
    return h ^ (h >> 16)


def _chosen(query: Tensor, key: Tensor, share: float, seed: int) -> Tensor:
    """True for about that share of the pairs, by a hash of the pair and the seed."""
    row = _mix(query ^ _mix(seed))
    return _mix(row ^ _mix(key + 0x9E3779B9)) < int(share * 2**32)


PATTERNS: dict[str, type[Pattern]] = {
    "no_diagonal": NoDiagonal,
    "band": Band,
    "strided": Strided,
    "fixed": Fixed,
    "longformer": Longformer,
    "logsparse": LogSparse,
    "bigbird": BigBird,
    "star": Star,
    "random": Random,
    "dilated": Dilated,
    "block_local": BlockLocal,
}


def build_pattern(name: str, **options: Any) -> Pattern:
    """The pattern called `name` with its options (window, block, ...). "none" is no pattern.

    Raises UserError for an unknown name, an option the pattern does not have, or a value out of range.
    """
    if name not in PATTERNS:
        raise UserError(f"unknown mask {name!r}{closest(name, PATTERNS)}")
    known = {option.name for option in fields(PATTERNS[name]) if option.init}
    for option in options:
        if option not in known:
            has = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise UserError(f"mask={name} has no option {option!r}: {has}")
    try:
        return PATTERNS[name](**options)
    except ValueError as error:
        raise UserError(str(error)) from error


def pattern_mask(
    pattern: Pattern, length: int, hubs: Tensor | None = None, device: torch.device | str | None = None
) -> Tensor:
    """keep (L, L), or (B, L, L) where hubs (B, L) are given and the pattern uses them: pattern(i, j) | hub_i | hub_j.

    hubs is bool, True where a hub stands, and decides the device. Without it a pattern that has hubs keeps the rest.
    """
    position = torch.arange(length, device=device if hubs is None else hubs.device)
    keep = pattern(position[:, None], position)
    if hubs is None or pattern.hubs == "none":
        return keep
    return keep | hubs[..., :, None] | hubs[..., None, :]


def _usual_hubs(pattern: Pattern, length: int) -> Tensor:
    """(L,): [CLS] first and, where all special tokens are hubs, [SEP] last."""
    hubs = torch.zeros(length, dtype=torch.bool)
    hubs[:1] = pattern.hubs != "none"
    hubs[-1:] |= pattern.hubs == "special"
    return hubs


def density(pattern: Pattern, length: int, hubs: Tensor | None = None) -> float:
    """Share of pairs kept. hubs (B, L) or (L,); where they are not given, [CLS] is first and [SEP] last."""
    keep = pattern_mask(pattern, length, _usual_hubs(pattern, length) if hubs is None else hubs)
    return int(keep.count_nonzero()) / keep.numel()


def queries_without_key(pattern: Pattern, max_length: int, least: int = 2) -> tuple[int, int] | None:
    """(text length, query) of the first query without a key in its text, over texts of `least` to `max_length` tokens.

    `least` is 2 since a text has at least [CLS] and [SEP]; the hub [CLS] is first. None if there is no such query.
    """
    position = torch.arange(max_length)
    if bool(pattern(position, position).all()):
        return None  # the usual case, and far cheaper than all pairs
    keep = pattern_mask(pattern, max_length, _usual_hubs(pattern, max_length))
    first_key = torch.where(keep.any(-1), keep.int().argmax(-1), max_length)
    # A shorter text's mask is a corner of this one: query i lacks a key in texts of i + 1 to first_key[i] tokens.
    shortest = (position + 1).clamp(min=least)
    lacking = (shortest <= first_key) & (shortest <= max_length)
    if not bool(lacking.any()):
        return None
    length = int(shortest[lacking].min())
    return length, int(position[lacking & (shortest == length)][0])


def check_pattern(pattern: Pattern, max_length: int, least: int = 2) -> None:
    """Raises UserError if some text of `least` to `max_length` tokens has a query without a key."""
    found = queries_without_key(pattern, max_length, least)
    if found is None:
        return
    length, query = found
    name = next((name for name, kind in PATTERNS.items() if type(pattern) is kind), type(pattern).__name__)
    raise UserError(
        f"mask={name} leaves token {query} of a text of {length} without a key to attend to: choose a mask in which"
        " each token keeps itself, such as mask=band, or one with a hub, such as mask=star"
    )
