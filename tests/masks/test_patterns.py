"""Every fixed mask against sets built in plain Python and SparseBERT's table; then what all patterns have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnlab.errors import UserError
from attnlab.masks.patterns import (
    PATTERNS,
    Pattern,
    build_pattern,
    check_pattern,
    density,
    pattern_mask,
    queries_without_key,
)

CONF = Path(__file__).parents[2] / "conf" / "mask"
N = 128
Pairs = set[tuple[int, int]]


def around(window: int, step: int = 1) -> Pairs:
    return {(i, i + step * k) for i in range(N) for k in range(-window, window + 1) if 0 <= i + step * k < N}


def blocks(size: int) -> Pairs:
    starts = range(0, N, size)
    return {(i, j) for start in starts for i in range(start, start + size) for j in range(start, start + size)}


def ends(size: int, last: int) -> list[int]:
    return [j for j in range(N) if j % size >= size - last]


def hub(position: int) -> Pairs:
    return {(position, other) for other in range(N)} | {(other, position) for other in range(N)}


BY_HAND: dict[str, Callable[[], Pairs]] = {
    "no_diagonal": lambda: {(i, j) for i in range(N) for j in range(N)} - {(i, i) for i in range(N)},
    "band": lambda: around(3),
    "strided": lambda: around(17) | around(N // 16, step=16),
    "fixed": lambda: blocks(32) | {(i, j) for i in range(N) for j in (31, 63, 95, 127)},
    "longformer": lambda: around(6) | hub(0),
    "logsparse": lambda: around(0).union(*(around(1, step=2**k) for k in range(7))),
    "star": lambda: around(1) | hub(0),
    "dilated": lambda: around(3, step=2),
    "block_local": lambda: blocks(16),
}
CHANCE = {"random": {"density": 0.1}, "bigbird": {"random": 0.03}}


def pairs(pattern: Pattern) -> Pairs:
    """What is kept of a text of 128 tokens with [CLS] first."""
    first = torch.arange(N) == 0
    return {(i, j) for i, j in pattern_mask(pattern, N, first).nonzero().tolist()}


def test_every_pattern_is_checked_here_and_has_a_yaml_with_its_defaults() -> None:
    assert set(BY_HAND) | set(CHANCE) == set(PATTERNS)
    for name in PATTERNS:
        options = yaml.safe_load((CONF / f"{name}.yaml").read_text("utf-8"))
        assert build_pattern(**options) == build_pattern(name)
        drops = f"Drops {100 * (1 - density(build_pattern(name), N)):.1f} %"
        assert drops in (CONF / f"{name}.yaml").read_text("utf-8")
        assert drops in (PATTERNS[name].__doc__ or "")


@pytest.mark.parametrize("name", BY_HAND)
def test_a_pattern_keeps_the_pairs_found_by_hand(name: str) -> None:
    by_hand = BY_HAND[name]()
    assert pairs(build_pattern(name)) == by_hand
    assert density(build_pattern(name), N) == len(by_hand) / N**2


@pytest.mark.parametrize(
    ("name", "options", "by_hand"),
    [
        ("band", {"window": 5}, lambda: around(5)),
        ("strided", {"window": 2, "stride": 7}, lambda: around(2) | around(N // 7, step=7)),
        ("fixed", {"block": 8, "summary": 3}, lambda: blocks(8) | {(i, j) for i in range(N) for j in ends(8, 3)}),
        ("dilated", {"window": 4, "dilation": 3}, lambda: around(4, step=3)),
        ("block_local", {"block": 64}, lambda: blocks(64)),
        ("star", {"window": 2, "hubs": "none"}, lambda: around(2)),
        ("bigbird", {"window": 2, "random": 0}, lambda: around(2) | hub(0)),
        ("bigbird", {"block": 64, "window": 0, "random": 0, "hubs": "none"}, lambda: blocks(64)),
    ],
)  # fmt: skip
def test_the_options_act(name: str, options: dict, by_hand: Callable[[], Pairs]) -> None:
    assert pairs(build_pattern(name, **options)) == by_hand()


@pytest.mark.parametrize(
    ("name", "dropped"),
    [("strided", 70.4), ("fixed", 72.7), ("longformer", 88.7), ("logsparse", 89.8), ("bigbird", 93.2), ("star", 96.1)],
)
def test_the_defaults_are_as_sparse_as_in_the_table_of_sparsebert(name: str, dropped: float) -> None:
    assert 100 * (1 - density(build_pattern(name), N)) == pytest.approx(dropped, abs=0.1)


def test_a_longformer_hub_inside_the_text_gives_the_table_to_the_digit() -> None:
    inside = torch.arange(N) == N // 2
    assert round(100 * (1 - density(build_pattern("longformer"), N, inside)), 1) == 88.7


@pytest.mark.parametrize("name", sorted(set(PATTERNS) - {"fixed", "random", "bigbird"}))
def test_a_pattern_without_direction_is_symmetric(name: str) -> None:
    keep = pattern_mask(build_pattern(name), 70)
    assert torch.equal(keep, keep.T)


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=10, deadline=None)
@given(short=st.integers(1, 60), more=st.integers(1, 60))
def test_the_mask_of_a_text_does_not_depend_on_its_padding(name: str, short: int, more: int) -> None:
    pattern = build_pattern(name)
    keep = pattern_mask(pattern, short)
    assert keep.shape == (short, short)
    assert keep.dtype == torch.bool
    assert torch.equal(pattern_mask(pattern, short + more)[:short, :short], keep)


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=10, deadline=None)
@given(start=st.integers(0, 5000), seed=st.integers(0, 2**32 - 1))
def test_a_pair_is_decided_by_its_positions_wherever_it_is_looked_up(name: str, start: int, seed: int) -> None:
    pattern = build_pattern(name, **({"seed": seed} if name in CHANCE else {}))
    query, key = torch.arange(start, start + 9), torch.arange(0, 7)
    block = pattern(query[:, None], key)
    one_by_one = [[bool(pattern(q, k)) for k in key] for q in query]
    assert block.tolist() == one_by_one


@pytest.mark.parametrize("name", ["longformer", "bigbird", "star"])
def test_hubs_attend_and_are_attended_wherever_they_stand_in_each_example(name: str) -> None:
    pattern = build_pattern(name)
    hubs = torch.zeros(3, 40, dtype=torch.bool)
    hubs[0, 0] = hubs[1, 33] = hubs[1, 7] = True
    keep = pattern_mask(pattern, 40, hubs)
    assert keep.shape == (3, 40, 40)
    rest = {(i, j) for i in range(40) for j in range(40) if bool(pattern(torch.tensor(i), torch.tensor(j)))}
    for example, standing in enumerate([{0}, {7, 33}, set()]):
        crossed = {(i, j) for i in range(40) for j in range(40) if {i, j} & standing}
        assert {(i, j) for i, j in keep[example].nonzero().tolist()} == rest | crossed


def test_a_pattern_without_hubs_ignores_them() -> None:
    everywhere = torch.ones(2, 30, dtype=torch.bool)
    for name in PATTERNS:
        pattern = build_pattern(name)
        assert (pattern.hubs == "none") == (pattern_mask(pattern, 30, everywhere).dim() == 2)


def test_all_special_tokens_as_hubs_are_first_and_last_in_a_text() -> None:
    special = build_pattern("star", hubs="special")
    assert density(special, N) == len(around(1) | hub(0) | hub(N - 1)) / N**2
    ends = torch.tensor([[True] + [False] * (N - 2) + [True]])
    assert density(special, N) == density(special, N, ends)


@pytest.mark.parametrize("name", CHANCE)
def test_a_seed_decides_the_mask(name: str) -> None:
    def keep(seed: int) -> Tensor:
        return pattern_mask(build_pattern(name, seed=seed), N)

    assert torch.equal(keep(5), keep(5))
    for one, other in [(0, 1), (1, 2), (0, 2**32)]:
        agree = (keep(one) & keep(other)).sum() / keep(one).sum()
        assert agree < 0.7, "two seeds have in common what any two draws have, and the part that is not drawn"


def test_another_seed_is_not_the_same_rows_in_another_order() -> None:
    rows = torch.cat([pattern_mask(build_pattern("random", density=0.5, seed=seed), 256) for seed in range(3)])
    alike = torch.corrcoef(rows.double()).fill_diagonal_(0)
    assert alike.abs().max() < 0.5


@settings(max_examples=20, deadline=None)
@given(share=st.floats(0.01, 0.99), seed=st.integers(0, 2**31))
def test_chance_keeps_the_share_asked_for(share: float, seed: int) -> None:
    length = 512
    off_diagonal = density(build_pattern("random", density=share, seed=seed), length) * length**2 - length
    pairs = length * (length - 1)
    assert abs(off_diagonal / pairs - share) < 6 * (share * (1 - share) / pairs) ** 0.5


def test_chance_treats_all_queries_keys_and_offsets_alike() -> None:
    length, share = 512, 0.3
    keep = pattern_mask(build_pattern("random", density=share), length).double().fill_diagonal_(share)
    for sums in (keep.sum(0), keep.sum(1)):
        z = (sums - length * share) / (length * share * (1 - share)) ** 0.5
        assert z.abs().max() < 5
        assert 0.8 < z.std() < 1.2
    for shifted in (keep.roll(1, 0), keep.roll(1, 1), keep.roll((1, 1), (0, 1)), keep.T):
        together = torch.corrcoef(torch.stack([keep.flatten(), shifted.flatten()]))[0, 1]
        assert together.abs() < 0.01  # 5 standard errors


def test_bigbird_draws_whole_blocks() -> None:
    keep = pattern_mask(build_pattern("bigbird", block=16, random=0.3), 256).double()
    of_block = keep.view(16, 16, 16, 16).mean(dim=(1, 3))
    assert set(of_block.flatten().tolist()) == {0.0, 1.0}
    far = of_block[(torch.arange(16)[:, None] - torch.arange(16)).abs() > 1]
    assert 0.15 < far.mean() < 0.45


@dataclass(frozen=True, kw_only=True)
class LooksAhead(Pattern):
    """Keeps j = i + ahead only: the last queries of every text have no key."""

    ahead: int = 1

    def __post_init__(self) -> None:
        pass

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return key == query + self.ahead


@dataclass(frozen=True, kw_only=True)
class BlocksWithoutSelf(Pattern):
    """i and j in one block of 4, but not the same."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return (query // 4 == key // 4) & (query != key)


def by_trying(pattern: Pattern, max_length: int, least: int) -> tuple[int, int] | None:
    for length in range(least, max_length + 1):
        for query in range(length):
            if not any(bool(pattern(torch.tensor(query), torch.tensor(key))) for key in range(length)):
                return length, query
    return None


@pytest.mark.parametrize("least", [1, 2, 3, 5, 6, 9])
@pytest.mark.parametrize("max_length", [1, 2, 4, 8, 12])
@pytest.mark.parametrize(
    "pattern", [build_pattern("no_diagonal"), LooksAhead(), LooksAhead(ahead=-2), BlocksWithoutSelf()]
)
def test_queries_without_a_key_are_those_found_by_trying(pattern: Pattern, max_length: int, least: int) -> None:
    assert queries_without_key(pattern, max_length, least) == by_trying(pattern, max_length, least)


@pytest.mark.parametrize("name", PATTERNS)
def test_no_pattern_leaves_a_query_without_a_key_in_a_text_with_its_two_special_tokens(name: str) -> None:
    check_pattern(build_pattern(name), 512)


def test_a_mask_that_leaves_a_query_without_a_key_is_refused_with_a_remedy() -> None:
    assert queries_without_key(build_pattern("no_diagonal"), 512, least=1) == (1, 0)
    with pytest.raises(UserError, match=r"mask=no_diagonal leaves token 0 of a text of 1 .* such as mask=band"):
        check_pattern(build_pattern("no_diagonal"), 512, least=1)
    with pytest.raises(UserError, match="mask=LooksAhead leaves token 1 of a text of 2 "):
        check_pattern(LooksAhead(), 512)


WRONG = [
    ("band", {"window": 0}, "mask.window=0 must be a whole number from 1 on"),
    ("band", {"window": -1}, "mask.window=-1 must be a whole number from 1 on"),
    ("band", {"window": 2.5}, "mask.window=2.5 must be a whole number from 1 on"),
    ("band", {"window": True}, "mask.window=True must be a whole number from 1 on"),
    ("band", {"window": "wide"}, "mask.window=wide must be a whole number from 1 on"),
    ("band", {"window": None}, "mask.window=None must be a whole number from 1 on"),
    ("strided", {"stride": 0}, "mask.stride=0 must be a whole number from 1 on"),
    ("dilated", {"dilation": 0}, "mask.dilation=0 must be a whole number from 1 on"),
    ("block_local", {"block": 0}, "mask.block=0 must be a whole number from 1 on"),
    ("fixed", {"block": 0}, "mask.block=0 must be a whole number from 1 on"),
    ("fixed", {"summary": 33}, "mask.summary=33 must be a whole number from 1 to mask.block=32"),
    ("random", {"density": 0}, "mask.density=0 must be in (0, 1)"),
    ("random", {"density": 1}, "mask.density=1 must be in (0, 1)"),
    ("random", {"density": float("nan")}, "mask.density=nan must be in (0, 1)"),
    ("random", {"density": "high"}, "mask.density=high must be in (0, 1)"),
    ("random", {"seed": -1}, "mask.seed=-1 must be a whole number from 0 on"),
    ("bigbird", {"window": -1}, "mask.window=-1 must be a whole number from 0 on"),
    ("bigbird", {"random": 1}, "mask.random=1 must be in [0, 1)"),
    ("star", {"hubs": "sep"}, "mask.hubs=sep must be cls, special or none"),
    ("longformer", {"hubs": None}, "mask.hubs=None must be cls, special or none"),
    ("band", {"hubs": "cls"}, "mask=band has no option 'hubs': it has window"),
    ("fixed", {"size": 3}, "mask=fixed has no option 'size': it has block, summary"),
    ("logsparse", {"window": 3}, "mask=logsparse has no option 'window': it has none"),
]


@pytest.mark.parametrize(("name", "options", "message"), WRONG)
def test_a_wrong_option_is_named_with_what_is_allowed(name: str, options: dict, message: str) -> None:
    with pytest.raises(UserError) as raised:
        build_pattern(name, **options)
    assert str(raised.value) == message


def test_a_misspelt_pattern_is_answered_with_the_closest() -> None:
    with pytest.raises(UserError, match="unknown mask 'longfromer': did you mean 'longformer'\\? One of: band, "):
        build_pattern("longfromer")
