"""Masks: the right share, whole words, never a special token, and the same wherever and whenever they are drawn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.data.masking import Masking, collate_masked, draws, stream_of

SPECIAL = np.array([0, 1, 2, 3, 4])
MASK_ID = 4
VOCABULARY = 500


def masking(probability: float = 0.15, *, whole_word: bool = True) -> Masking:
    return Masking(
        probability=probability,
        whole_word=whole_word,
        mask_id=MASK_ID,
        special=SPECIAL,
        ordinary=np.arange(5, VOCABULARY),
    )


def random_blocks(count: int, length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ids with [CLS] and [SEP] at the ends and some unknown tokens inside; a third of the tokens continue a word."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(5, VOCABULARY, (count, length))
    ids[draw.random((count, length)) < 0.05] = 1
    ids[:, 0], ids[:, -1] = 2, 3
    continues = draw.random((count, length)) < 0.33
    continues[:, :2] = False
    return ids, continues


def rows(ids: np.ndarray, continues: np.ndarray, *, epoch: int | None = None, first: int = 0) -> dict[str, list]:
    return {
        "id": list(range(first, first + len(ids))),
        "input_ids": ids.tolist(),
        "continues": continues.tolist(),
        "weight": [1.0] * len(ids),
        "epoch": [epoch] * len(ids),
    }


def collated(ids: np.ndarray, continues: np.ndarray, *, seed: int = 1, which: Masking | None = None, **more):
    return collate_masked(
        rows(ids, continues, **more), masking=which or masking(), seed=seed, pad_id=0, longest=ids.shape[1]
    )


@pytest.mark.parametrize("whole_word", [True, False])
def test_15_percent_are_to_be_predicted_and_of_them_80_10_10_masked_replaced_kept(whole_word: bool) -> None:
    ids, continues = random_blocks(2000, 128)
    batch = collated(ids, continues, which=masking(whole_word=whole_word))
    chosen, shown = batch["masked"].numpy(), batch["input_ids"].numpy()
    share = chosen.sum() / (~np.isin(ids, SPECIAL)).sum()
    assert share == pytest.approx(0.15, abs=5e-4)
    masked = shown[chosen] == MASK_ID
    kept = shown[chosen] == ids[chosen]
    other = ~masked & ~kept
    # one in 495 replacements draws the token that was there
    assert [masked.mean(), other.mean(), kept.mean()] == pytest.approx([0.8, 0.1, 0.1], abs=0.005)
    counts = np.bincount(shown[chosen][other], minlength=VOCABULARY)
    assert counts[SPECIAL].sum() == 0
    assert (counts[5:] > 0).mean() > 0.99
    assert (shown[~chosen] == ids[~chosen]).all()
    assert (batch["labels"].numpy() == ids[chosen]).all()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(3, 40),
    st.floats(0.01, 0.99),
    st.integers(0, 10**6),
)
def test_words_are_masked_whole_specials_never_and_each_block_asks_for_something(
    count: int, length: int, probability: float, seed: int
) -> None:
    ids, continues = random_blocks(count, length, seed)
    ids[:, 1] = 7
    chosen = collated(ids, continues, which=masking(probability))["masked"].numpy()
    maskable = ~np.isin(ids, SPECIAL)
    assert not (chosen & ~maskable).any()
    inside = continues[:, 1:] & maskable[:, 1:] & maskable[:, :-1]
    assert (chosen[:, 1:] == chosen[:, :-1])[inside].all()
    assert chosen.any(axis=1).all()


def test_without_whole_words_the_pieces_of_a_word_are_masked_apart() -> None:
    ids, continues = random_blocks(500, 64)
    chosen = collated(ids, continues, which=masking(whole_word=False))["masked"].numpy()
    assert (chosen[:, 1:] != chosen[:, :-1])[continues[:, 1:]].any()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=12), st.floats(0.05, 0.95))
def test_the_expected_number_of_masked_tokens_is_exact_whatever_the_words(sizes: list[int], share: float) -> None:
    """Over the last draw, the word at the limit is taken with just the probability that makes up the share."""
    n, steps = sum(sizes), 1000
    starts = np.cumsum([0, *sizes[:-1]])
    flags = np.concatenate([[False] + [True] * (size - 1) for size in sizes])
    order = np.random.default_rng(n).random(n)
    last = np.repeat((np.arange(steps)[:, None] + 0.5) / steps, n, axis=1)
    uniform = np.stack([np.tile(order, (steps, 1)), last])
    chosen = masking(share).chosen(np.full((steps, n), 9), np.tile(flags, (steps, 1)), uniform)
    first = sizes[int(np.argmin(order[starts]))]
    # a first word longer than the share is taken all the same: no block is left without a question
    assert chosen.sum(axis=1).mean() == pytest.approx(max(share * n, first), abs=0.01 * n)


def test_evaluation_masks_depend_on_the_block_alone() -> None:
    ids, continues = random_blocks(8, 64)
    whole = collated(ids, continues, seed=1)
    again = collated(ids, continues, seed=99)
    assert (whole["input_ids"] == again["input_ids"]).all()
    halves = [collated(ids[i : i + 4], continues[i : i + 4], first=i) for i in (0, 4)]
    for key in ("input_ids", "masked"):
        assert (np.concatenate([half[key].numpy() for half in halves]) == whole[key].numpy()).all()


def test_training_masks_change_with_the_epoch_and_the_seed_and_repeat() -> None:
    ids, continues = random_blocks(8, 64)
    shown = {
        (seed, epoch): collated(ids, continues, seed=seed, epoch=epoch)["masked"] for seed in (1, 2) for epoch in (0, 1)
    }
    keys = list(shown)
    assert all((shown[a] != shown[b]).any() for a in keys for b in keys if a < b)
    again = collated(ids, continues, seed=1, epoch=1)["masked"]
    assert (again == shown[1, 1]).all()


def test_streams_of_different_seeds_and_epochs_never_meet() -> None:
    streams = {stream_of(seed, epoch) for seed in range(50) for epoch in range(50)}
    assert len(streams | {stream_of(0, None)}) == 2501


def test_a_tokens_draws_do_not_depend_on_the_length_of_its_batch() -> None:
    assert (draws([3, 5], 20, 7) == draws([3, 5], 64, 7)[:, :, :20]).all()


def test_weights_make_the_mean_over_tokens_the_mean_over_blocks() -> None:
    ids, continues = random_blocks(5, 40)
    ids[2, 10:-1] = 1  # few words, few masks
    picks = rows(ids, continues)
    picks["weight"] = [2.0, 0.0, 1.0, 1.0, 0.5]
    batch = collate_masked(picks, masking=masking(), seed=1, pad_id=0, longest=40)
    losses = np.random.default_rng(0).random(len(batch["labels"]))
    owner = np.nonzero(batch["masked"].numpy())[0]
    by_block = [losses[owner == b].mean() for b in range(5)]
    expected = np.mean(np.array(picks["weight"]) * by_block)
    assert np.mean(batch["weight"].numpy() * losses) == pytest.approx(expected, rel=1e-6)


def test_padding_is_neither_masked_nor_attended() -> None:
    ids, continues = random_blocks(3, 20)
    picks = rows(ids, continues)
    picks["input_ids"][1] = [*picks["input_ids"][1][:8], 3]
    picks["continues"][1] = picks["continues"][1][:9]
    batch = collate_masked(picks, masking=masking(), seed=1, pad_id=0, longest=20)
    assert batch["attention_mask"][1].tolist() == [1] * 9 + [0] * 11
    assert not batch["masked"][1, 8:].any()
    assert (batch["input_ids"][1, 9:] == 0).all()
