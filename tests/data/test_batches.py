"""Samplers: each example once, ranks share one batch, weights average to the global mean."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.data.batches import EvalBatches, TrainBatches, collate, cut, share

lengths = st.lists(st.integers(1, 128), min_size=1, max_size=200)
sizes = st.integers(1, 17)
worlds = st.integers(1, 5)


@settings(deadline=None)
@given(lengths=lengths, size=sizes, seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_an_epoch_holds_each_example_exactly_once(lengths: list[int], size: int, seed: int, epoch: int) -> None:
    batches = TrainBatches(lengths, size, seed=seed)
    batches.set_epoch(epoch)
    seen = [pick for batch in batches for pick in batch]
    assert sorted(index for index, _ in seen) == list(range(len(lengths)))
    assert {weight for _, weight in seen} == {1.0}
    assert len(list(batches)) == len(batches)
    assert max(len(batch) for batch in batches) <= size


@settings(deadline=None)
@given(lengths=lengths, size=sizes, world=worlds, seed=st.integers(0, 9))
def test_ranks_together_see_the_batches_of_one_process(lengths: list[int], size: int, world: int, seed: int) -> None:
    alone = list(TrainBatches(lengths, size, seed=seed))
    ranks = [list(TrainBatches(lengths, size, seed=seed, rank=r, world=world)) for r in range(world)]
    assert {len(batches) for batches in ranks} == {len(alone)}
    for step, batch in enumerate(alone):
        parts = [batches[step] for batches in ranks]
        assert len({len(part) for part in parts}) == 1
        real = Counter(index for part in parts for index, weight in part if weight > 0)
        assert real == Counter(index for index, _ in batch)


@given(losses=st.lists(st.floats(-5, 5), min_size=1, max_size=40), world=worlds)
def test_mean_over_ranks_of_weighted_means_is_the_global_mean(losses: list[float], world: int) -> None:
    parts = [share(range(len(losses)), rank, world) for rank in range(world)]
    means = [sum(weight * losses[i] for i, weight in part) / len(part) for part in parts]
    assert sum(means) / world == pytest.approx(sum(losses) / len(losses), abs=1e-9)


@given(per_rank=st.integers(1, 9), world=worlds)
def test_weights_are_one_where_the_world_divides_the_batch(per_rank: int, world: int) -> None:
    for rank in range(world):
        assert {w for _, w in share(range(per_rank * world), rank, world)} == {1.0}


@settings(deadline=None)
@given(lengths=lengths, size=sizes, world=worlds)
def test_evaluation_sees_each_example_once_over_all_ranks(lengths: list[int], size: int, world: int) -> None:
    ranks = [EvalBatches(lengths, size, rank=r, world=world) for r in range(world)]
    seen = [index for batches in ranks for batch in batches for index, _ in batch]
    assert sorted(seen) == list(range(len(lengths)))
    for batches in ranks:
        order = [lengths[index] for batch in batches for index, _ in batch]
        assert order == sorted(order, reverse=True)


@given(count=st.integers(1, 300), size=st.integers(2, 33))
def test_no_batch_is_tiny_beside_others(count: int, size: int) -> None:
    batches = cut(range(count), size)
    assert [i for batch in batches for i in batch] == list(range(count))
    if count >= size:
        assert min(len(batch) for batch in batches) >= size // 2


def test_order_depends_on_seed_and_epoch_and_nothing_else() -> None:
    lengths = [i % 37 + 1 for i in range(500)]

    def order(seed: int, epoch: int) -> list[list[tuple[int, float]]]:
        batches = TrainBatches(lengths, 8, seed=seed)
        batches.set_epoch(epoch)
        return list(batches)

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 1) != order(2, 1)
    assert order(1, 23) != order(12, 3)


def test_grouping_by_length_saves_most_of_the_padding() -> None:
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 60, (4000,), generator=draw).tolist()
    padded = sum(len(b) * max(lengths[i] for i, _ in b) for b in TrainBatches(lengths, 32, seed=0))
    assert padded / sum(lengths) < 1.05


def test_a_batch_on_the_cpu_is_padded_to_its_longest_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnlab.data.batches.PAD_MULTIPLE", 1)
    rows = {"input_ids": [[5, 6, 7], [1] * 9], "label": [1, 0], "id": [0, 1], "weight": [1.0, 1.0]}
    assert collate(rows, pad_id=0, longest=512)["input_ids"].shape == (2, 9)


def test_a_batch_for_a_gpu_is_padded_to_a_multiple_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnlab.data.batches.PAD_MULTIPLE", 8)
    rows = {
        "input_ids": [[5, 6, 7], list(range(10, 19))],
        "token_type_ids": [[0, 0, 1], [0] * 9],
        "label": [1, 0],
        "id": [11, 4],
        "weight": [1.0, 0.0],
    }
    batch = collate(rows, pad_id=99, longest=512)
    assert batch["input_ids"].shape == (2, 16)
    assert batch["input_ids"][0].tolist() == [5, 6, 7] + [99] * 13
    assert batch["attention_mask"].sum(1).tolist() == [3, 9]
    assert batch["token_type_ids"][0].tolist() == [0, 0, 1] + [0] * 13
    assert batch["example_id"].tolist() == [11, 4]
    assert batch["labels"].dtype == torch.int64
    assert batch["weight"].tolist() == [1.0, 0.0]


def test_padding_stops_at_what_the_model_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnlab.data.batches.PAD_MULTIPLE", 8)
    rows = {"input_ids": [[1] * 9], "label": [0.5], "id": [0], "weight": [1.0]}
    batch = collate(rows, pad_id=0, longest=10)
    assert batch["input_ids"].shape == (1, 10)
    assert batch["labels"].dtype == torch.float32
    assert "token_type_ids" not in batch


def test_the_order_of_a_seed_is_frozen() -> None:
    """Published numbers depend on it."""
    lengths = [i * 7 % 11 + 1 for i in range(12)]

    def order(batches: TrainBatches | EvalBatches) -> list[list[int]]:
        return [[index for index, _ in batch] for batch in batches]

    batches = TrainBatches(lengths, 4, seed=1)
    batches.set_epoch(1)
    assert order(batches) == [[0, 11, 8, 5], [1, 9, 6, 3], [2, 10, 7, 4]]
    assert order(TrainBatches(lengths, 1, seed=1)) == [[i] for i in (0, 9, 3, 2, 4, 6, 10, 5, 7, 11, 1, 8)]
    assert order(EvalBatches(lengths, 5)) == [[3, 6, 9, 1, 4], [7, 10, 2, 5], [8, 0, 11]]
