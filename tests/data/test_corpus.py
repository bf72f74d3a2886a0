"""Plain text: read in pieces, packed into blocks with every token once and in order, refused where there is none."""

import bz2
import gzip
import itertools
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from transformers import BertTokenizer, PreTrainedTokenizerBase

from attnlab.data.corpus import PIECE, Text, blocks, find_corpus, packed, pieces, read_lines
from attnlab.data.spec import DataSpec
from attnlab.data.vocabulary import corpus_tokenizer
from attnlab.errors import UserError

MLM = yaml.safe_load((Path(__file__).parents[2] / "conf" / "task" / "mlm.yaml").read_text())
LINES = [
    "The lobster lives in the eastern Atlantic, from Norway to Morocco.",
    "Lobsters are blue; only cooked ones are red.",
    "",
    "Unquestionably, the unbelievable lobster's claws are asymmetrical!",
] * 5


def spec(**data: Any) -> DataSpec:
    return DataSpec.from_config(MLM, {"root": "/nowhere", "source": "local", **data})


def refusal(**data: Any) -> str:
    def read() -> None:
        for split, text in find_corpus(spec(**data)).texts.items():
            packed(text, BertTokenizer(), split=split, max_length=16, unknown=None)

    with pytest.raises(UserError) as caught:
        read()
    return str(caught.value)


def text_of(lines: list[str]) -> Text:
    return Text(name="lines", digest="x", lines=lambda: iter(lines))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path


@pytest.fixture
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Small enough that many words fall into several pieces."""
    file = folder / "words.txt"
    file.write_text("\n".join(LINES))
    return corpus_tokenizer(spec(train=str(file)), 60)


@pytest.mark.parametrize("length", [5, 16, 1000])
def test_blocks_hold_every_token_once_and_in_order(tokenizer: PreTrainedTokenizerBase, length: int) -> None:
    columns = list(blocks(iter(LINES), tokenizer, max_length=length))
    rows = [ids.tolist() for part in columns for ids in part["input_ids"]]
    assert [n for part in columns for n in part["id"]] == list(range(len(rows)))
    assert [n for part in columns for n in part["length"]] == [len(row) for row in rows]
    assert all(len(row) == length for row in rows[:-1])
    assert all((row[0], row[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id) for row in rows)
    inner = [token for row in rows for token in row[1:-1]]
    assert inner == [t for line in LINES for t in tokenizer(line, add_special_tokens=False)["input_ids"]]


def test_a_token_continues_exactly_where_its_piece_says_so(tokenizer: PreTrainedTokenizerBase) -> None:
    (part,) = blocks(iter(LINES), tokenizer, max_length=16)
    seen = set()
    for ids, continues in zip(part["input_ids"], part["continues"], strict=True):
        tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
        expected = [token.startswith("##") for token in tokens]
        expected[1] = False  # nothing before it in the block
        assert continues.tolist() == expected
        seen |= set(expected)
    assert seen == {True, False}


def test_words_taken_out_of_the_corpus_become_unknown_tokens(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    text = text_of(["the <unk> lobster", "<unk> lobsters"])
    part = packed(text, tokenizer, split="train", max_length=32, unknown="<unk>")
    assert part[0]["input_ids"].count(tokenizer.unk_token_id) == 2
    plain = packed(text, tokenizer, split="train", max_length=32, unknown=None)
    assert len(plain[0]["input_ids"]) > len(part[0]["input_ids"])


def test_a_block_of_unknown_words_is_left_out(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    part = packed(text_of(["漢 字 漢 字", "lobster"]), tokenizer, split="train", max_length=4, unknown=None)
    assert tokenizer.unk_token_id not in part[0]["input_ids"]


def test_the_reader_holds_a_piece_and_not_the_text(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for line in itertools.cycle(line for line in LINES if line):
            taken += len(line)
            yield line

    read = blocks(endless(), tokenizer, max_length=128)
    assert taken == 0
    next(read)
    assert taken < 3 * PIECE  # one piece in the block, one read ahead
    before = taken
    next(read)
    assert taken - before < 2 * PIECE


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for copies in (2_000, 20_000):
        file = tmp_path / f"{copies}.txt"
        file.write_text(("\n".join(LINES) + "\n") * copies)
        tracemalloc.start()
        for _ in pieces(read_lines(file)):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert file.stat().st_size > 15e6
    assert peaks[1] < 1.2 * peaks[0] < 5e6


def test_a_text_in_one_line_is_read_in_pieces(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("naïve " * PIECE)
    parts = list(read_lines(file))
    assert max(map(len, parts)) <= PIECE
    assert "".join(parts) == "naïve " * PIECE


@pytest.mark.parametrize(("name", "opener"), [("a.txt", open), ("a.txt.gz", gzip.open), ("a.txt.bz2", bz2.open)])
def test_packed_files_read_as_plain_ones(tmp_path: Path, name: str, opener: Any) -> None:
    with opener(tmp_path / name, "wt", encoding="utf-8-sig") as stream:
        stream.write("eins\r\nzwölf\n\ndrei")
    assert [line.strip() for line in read_lines(tmp_path / name)] == ["eins", "zwölf", "", "drei"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_column_of_a_table_is_a_text_too(folder: Path, name: str) -> None:
    import pandas as pd

    frame = pd.DataFrame({"body": ["one, two", 'a "quoted" word', ""], "label": [0, 1, 2]})
    path = folder / name
    {
        "a.jsonl": lambda: frame.to_json(path, orient="records", lines=True),
        "a.csv": lambda: frame.to_csv(path, index=False),
        "a.parquet": lambda: frame.to_parquet(path),
    }[name]()
    text = find_corpus(spec(train=str(path), text="body")).texts["train"]
    assert list(text.lines()) == ["one, two", 'a "quoted" word', ""]
    assert "did you mean 'label'" in refusal(train=str(path), text="labl")


def test_a_pattern_takes_its_files_in_order(folder: Path) -> None:
    for name in ("b", "a", "c"):
        (folder / f"{name}.txt").write_text(f"text {name}")
    text = find_corpus(spec(train=str(folder / "*.txt"))).texts["train"]
    assert list(text.lines()) == ["text a", "text b", "text c"]


def test_blocks_are_kept_by_content_tokenizer_and_length(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    def stores() -> int:
        return len(list((folder / "cache" / "attnlab").glob("*.arrow")))

    file = folder / "a.txt"
    file.write_text("the lobster")
    text = find_corpus(spec(train=str(file))).texts["train"]
    packed(text, tokenizer, split="train", max_length=16, unknown=None)
    packed(text, tokenizer, split="train", max_length=16, unknown=None)
    assert stores() == 1
    packed(text, tokenizer, split="train", max_length=8, unknown=None)
    assert stores() == 2
    file.write_text("the lobsters")
    changed = find_corpus(spec(train=str(file))).texts["train"]
    again = packed(changed, tokenizer, split="train", max_length=16, unknown=None)
    assert stores() == 3
    assert tokenizer.decode(again[0]["input_ids"][1:-1]) == "the lobsters"
    assert not list((folder / "cache" / "attnlab").glob(".*.tmp"))


def test_a_corpus_tokenizer_has_the_size_asked_for_and_is_kept(folder: Path) -> None:
    file = folder / "a.txt"
    file.write_text("\n".join(LINES))
    one, two = (corpus_tokenizer(spec(train=str(file)), 80) for _ in range(2))
    assert len(one) == 80
    assert one.get_vocab() == two.get_vocab()
    ids = one("LOBSTER")["input_ids"]
    assert one.decode(ids, skip_special_tokens=True) == "lobster"
    (kept,) = (folder / "cache" / "attnlab").glob("*.vocab.json")
    assert len(json.loads(kept.read_text())) == 80


# WikiText-2


def wikitext(folder: Path, *names: str) -> Path:
    (folder / "WikiText-2").mkdir()
    for name in names:
        (folder / "WikiText-2" / f"wiki.{name}.tokens").write_text(f"text {name}")
    return folder


def test_the_whole_wikitext_has_its_own_splits(folder: Path) -> None:
    corpus = find_corpus(spec(root=str(wikitext(folder, "train", "valid", "test"))))
    assert {split: next(text.lines()) for split, text in corpus.texts.items()} == {
        "train": "text train",
        "val": "text valid",
        "test": "text test",
    }
    assert corpus.notes == ()


def test_without_its_training_file_the_others_move_up_and_a_note_says_so(folder: Path) -> None:
    corpus = find_corpus(spec(root=str(wikitext(folder, "valid", "test"))))
    assert {split: next(text.lines()) for split, text in corpus.texts.items()} == {
        "train": "text valid",
        "val": "text test",
    }
    (note,) = corpus.notes
    assert "no wiki.train.tokens: train is wiki.valid.tokens, val is wiki.test.tokens, no test scores" in note


def test_an_own_training_text_is_not_validated_on_wikitext(folder: Path) -> None:
    own = folder / "own.txt"
    own.write_text("my text")
    corpus = find_corpus(spec(root=str(wikitext(folder, "train", "valid", "test")), train=str(own)))
    assert list(corpus.texts) == ["train"]


# refusals


@pytest.mark.parametrize("content", ["", "\n\n  \n", "漢字\n"])
def test_a_corpus_with_no_text_is_refused_by_name(folder: Path, content: str) -> None:
    file = folder / "empty.txt"
    file.write_text(content)
    said = refusal(train=str(file))
    assert f"data.train={file} holds no text: at least one word is needed" in said


def test_a_file_that_is_not_there_is_named(folder: Path) -> None:
    assert f"no file data.val={folder / 'no.txt'}" in refusal(train=__file__, val=str(folder / "no.txt"))


def test_a_folder_is_answered_with_a_pattern(folder: Path) -> None:
    assert f"it is a folder: give a pattern, data.train='{folder}/*.txt'" in refusal(train=str(folder))


def test_a_list_is_answered_with_a_pattern() -> None:
    with pytest.raises(UserError, match="must be one file; with task=mlm a pattern"):
        spec(train=["a.txt", "b.txt"])


def test_no_data_at_all_names_the_places_and_the_remedies(folder: Path) -> None:
    said = refusal(root=str(folder))
    assert str(folder / "WikiText-2" / "wiki.train.tokens") in said
    assert "data.train=my.txt" in said
    assert "GLUE" not in said


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_what_is_not_utf8_is_refused_with_its_line(folder: Path, name: str) -> None:
    content = b"fine\n" * 20_000 + "naïve\n".encode("latin-1")
    (folder / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert f"{folder / name}, line 20001: not UTF-8" in refusal(train=str(folder / name))


def test_a_file_cut_while_packed_is_refused(folder: Path) -> None:
    whole = gzip.compress(np.random.default_rng(0).integers(97, 122, 100_000, dtype=np.uint8).tobytes())
    (folder / "a.txt.gz").write_bytes(whole[:-1000])
    assert "a.txt.gz cannot be unpacked" in refusal(train=str(folder / "a.txt.gz"))


def test_a_table_that_does_not_parse_is_refused(folder: Path) -> None:
    (folder / "a.jsonl").write_text('{"text": "a"}\n{"text": \n')
    assert "a.jsonl cannot be read" in refusal(train=str(folder / "a.jsonl"))
