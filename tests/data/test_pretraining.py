"""The corpus as batches: held out, limited, the same for one process and two, and the unigram baseline."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from attnlab.data.batches import BlockBatches
from attnlab.data.pretraining import CorpusDataModule, build_data
from attnlab.data.spec import DataSpec
from attnlab.data.vocabulary import corpus_tokenizer
from attnlab.errors import UserError

MLM = yaml.safe_load((Path(__file__).parents[2] / "conf" / "task" / "mlm.yaml").read_text())
WORDS = ("the", "a", "lobster", "crab", "claw", "sea", "blue", "red", "old", "unbelievable", "eats", "sees", "rock")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    draw = torch.Generator().manual_seed(0)
    for name, count in (("train", 300), ("val", 40)):
        weights = 1 / torch.arange(1, len(WORDS) + 1)
        picks = torch.multinomial(weights, count * 12, replacement=True, generator=draw).reshape(count, 12)
        (tmp_path / f"{name}.txt").write_text("\n".join(" ".join(WORDS[i] for i in row) for row in picks.tolist()))
    return tmp_path


def module(folder: Path, *, val: bool = True, task: dict[str, Any] | None = None, **data: Any) -> CorpusDataModule:
    given = {"train": str(folder / "train.txt")} | ({"val": str(folder / "val.txt")} if val else {})
    spec = DataSpec.from_config(MLM | (task or {}), {**given, "max_length": 32, "batch_size": 8, **data})
    built = build_data(spec, corpus_tokenizer(spec, 70), seed=3)
    assert isinstance(built, CorpusDataModule)
    built.setup()
    return built


def test_every_block_comes_once_an_epoch_in_an_order_of_the_epochs_own(folder: Path) -> None:
    data = module(folder)
    orders = []
    for epoch in (0, 1):
        loader = data.train_dataloader()
        loader.batch_sampler.set_epoch(epoch)
        batches = list(loader)
        assert len(batches) == len(loader)
        orders.append([i for batch in batches for i in batch["example_id"].tolist()])
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(len(data.tokens["train"])))
    assert orders[0] != orders[1]


def test_two_processes_see_what_one_sees() -> None:
    whole = list(BlockBatches(37, 8, seed=5))
    parts = [list(BlockBatches(37, 8, seed=5, rank=rank, world=2)) for rank in (0, 1)]
    for batch, one, two in zip(whole, *parts, strict=True):
        assert {i for i, _, _ in batch} == {i for i, weight, _ in [*one, *two] if weight}
        assert len(one) == len(two)


def test_validation_masks_stay_over_epochs_batch_sizes_and_seeds(folder: Path) -> None:
    def masks(data: CorpusDataModule) -> dict[int, Any]:
        return {
            i: (ids[mask.bool()].tolist(), hidden[mask.bool()].tolist())
            for batch in data.val_dataloader()
            for i, ids, hidden, mask in zip(
                batch["example_id"].tolist(), batch["input_ids"], batch["masked"], batch["attention_mask"], strict=True
            )
        }

    data = module(folder)
    first = masks(data)
    for _ in data.train_dataloader():
        pass
    assert masks(data) == first
    other = module(folder, batch_size=3)
    other._collate.keywords["seed"] = 77
    assert masks(other) == first


def test_the_end_of_the_text_is_held_out(folder: Path) -> None:
    data = module(folder, val=False)
    train, val = data.tokens["train"], data.tokens["val"]
    every = module(folder).tokens["train"]
    assert [*train["id"], *val["id"]] == list(every["id"])
    assert len(val) == round(0.05 * len(every))
    assert f"no validation text given: the last {len(val)} of {len(every)} blocks held out of train" in data.notes


def test_one_block_is_too_few_to_hold_any_out(folder: Path) -> None:
    (folder / "train.txt").write_text("the lobster")
    with pytest.raises(UserError, match=r"1 block, where at least 2 are needed to hold any out: give data\.val"):
        module(folder, val=False)


def test_a_limit_counts_blocks(folder: Path) -> None:
    data = module(folder, limit=5)
    assert {split: len(part) for split, part in data.tokens.items()} == {"train": 5, "val": 5}
    assert any("train: 5 of" in note for note in data.notes)


def test_the_unigram_baseline_is_the_one_counted_by_hand(folder: Path) -> None:
    data = module(folder, limit=12)
    tokenizer = data.tokenizer
    special = set(tokenizer.all_special_ids)
    counts = Counter(t for row in data.tokens["train"]["input_ids"] for t in row if t not in special)
    total, size = sum(counts.values()), len(tokenizer) - len(special)
    asked = [t for batch in data.val_dataloader() for t in batch["labels"].tolist()]
    logs = [math.log((counts[t] + 1) / (total + size)) for t in asked]
    expected = math.exp(-sum(logs) / len(logs))
    assert data.baselines("val")["unigram_perplexity"] == pytest.approx(expected, rel=1e-12)
    assert any(f"unigram baseline: perplexity {expected:,.1f}" in note for note in data.notes)


def test_a_uniform_guess_is_worse_than_the_unigram_baseline(folder: Path) -> None:
    data = module(folder)
    assert 1 < data.baselines("val")["unigram_perplexity"] < len(data.tokenizer) - 5


def test_batches_are_full_blocks_of_equal_length(folder: Path) -> None:
    data = module(folder)
    shapes = Counter(tuple(batch["input_ids"].shape[1:]) for batch in data.train_dataloader())
    assert set(shapes) == {(32,)}


def test_wikitext_is_packed_and_its_baseline_lies_in_the_hundreds(
    shared_data: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    spec = DataSpec.from_config(MLM, {"root": str(shared_data)})
    data = build_data(spec, corpus_tokenizer(spec, 8192), seed=1)
    data.setup()
    assert list(data.tokens) == ["train", "val"]
    assert 1500 < len(data.tokens["train"]) < 2500
    assert 700 < data.baselines("val")["unigram_perplexity"] < 1200
    words = set(data.tokenizer.convert_ids_to_tokens(data.tokens["val"][0]["input_ids"]))
    assert "[UNK]" in words
    assert "<" not in words
