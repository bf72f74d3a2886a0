"""Plain text of any size: where it comes from, read piece by piece, packed into blocks on disk."""

import csv
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from attnlab.data.files import ending, open_text
from attnlab.data.hub import hub_splits
from attnlab.data.sources import nothing_found
from attnlab.data.spec import SPLITS, DataSpec
from attnlab.data.store import content_of, key_of, read_arrow, stored, write_arrow
from attnlab.data.tokens import tokenizer_settings
from attnlab.errors import UserError, closest

PIECE = 1 << 18  # characters read, and tokenised, at a time
READERS: dict[str, Callable[..., datasets.Dataset]] = {
    ".csv": datasets.Dataset.from_csv,
    ".tsv": lambda paths: datasets.Dataset.from_csv(paths, sep="\t", quoting=csv.QUOTE_NONE),
    ".json": datasets.Dataset.from_json,
    ".jsonl": datasets.Dataset.from_json,
    ".parquet": datasets.Dataset.from_parquet,
}
FEATURES = datasets.Features(
    {
        "id": datasets.Value("int64"),
        "input_ids": datasets.List(datasets.Value("int32")),
        "continues": datasets.List(datasets.Value("bool")),
        "length": datasets.Value("int32"),
    }
)
# part of every cache key: raise it when the stored columns change
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Text:
    """A split's text. lines: a new iterator over its paragraphs; digest: of its content."""

    name: str
    digest: str
    lines: Callable[[], Iterator[str]]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """texts by split, train first; source and notes as in `data.load.Examples`."""

    texts: dict[str, Text]
    source: str
    notes: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """sha256 over the content of all splits."""
        digests = {split: text.digest for split, text in self.texts.items()}
        return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def find_corpus(spec: DataSpec) -> Corpus:
    """The user's own files, else the data folder's, else the Hub's. Raises UserError when there is none.

    With a training text of their own, users get no validation text of the task's.
    """
    own = {split: _given(path, split, spec.text) for split, path in spec.given.items()}
    if "train" in own:
        return Corpus(texts=_ordered(own), source=", ".join(text.name for text in own.values()))
    tried: list[str] = []
    local, notes = _local(spec, tried)
    if "train" in local:
        folder = spec.root / str(spec.dataset)
        return Corpus(texts=_ordered(local | own), source=str(folder), notes=notes)
    if spec.source != "local" and spec.hub is not None:
        splits, said = hub_splits(spec.hub)
        if splits:
            theirs = {
                split: _column(part, spec.text, f"{said}, {split}", str(part._fingerprint))
                for split, part in splits.items()
            }
            return Corpus(texts=_ordered(theirs | own), source=said)
        tried.append(said)
    raise UserError(nothing_found(spec, tried))


def _ordered(texts: dict[str, Text]) -> dict[str, Text]:
    return {split: texts[split] for split in SPLITS if split in texts}


def _given(pattern: Path, split: str, column: str) -> Text:
    root = Path(pattern.anchor)
    matches = [pattern] if pattern.is_file() else sorted(root.glob(str(pattern.relative_to(root))))
    paths = [path for path in matches if path.is_file()]
    if not paths:
        where = f"relative paths start at the current directory, {Path.cwd()}"
        if pattern.is_dir():
            where = f"it is a folder: give a pattern, data.{split}='{pattern}/*.txt'"
        raise UserError(f"no file data.{split}={pattern} ({where})")
    return _files(paths, str(pattern), column)


def _local(spec: DataSpec, tried: list[str]) -> tuple[dict[str, Text], tuple[str, ...]]:
    if spec.dataset is None or spec.source == "hub":
        return {}, ()
    folder = spec.root / spec.dataset
    used: dict[str, str] = {}
    for split, alternatives in spec.files.items():
        there = [name for name in alternatives if (folder / name).is_file() and name not in used.values()]
        if split not in spec.given and there:
            used[split] = there[0]
    if "train" not in used:
        alternatives = spec.files.get("train", ())
        tried.append(f"local files: no {' or '.join(str(folder / name) for name in alternatives)}")
        return {}, ()
    notes: tuple[str, ...] = ()
    first = spec.files["train"][0]
    if used["train"] != first:
        uses = ", ".join(f"{split} is {name}" for split, name in used.items())
        rest = "" if "test" in used else ", no test scores"
        notes = (f"{folder} has no {first}: {uses}{rest}",)
    return {split: _files([folder / name], str(folder / name), spec.text) for split, name in used.items()}, notes


def _files(paths: list[Path], name: str, column: str) -> Text:
    endings = {ending(path) for path in paths}
    tables = endings & READERS.keys()
    digest = hashlib.sha256("".join(content_of(path) for path in paths).encode()).hexdigest()
    if not tables:
        return Text(name=name, digest=digest, lines=lambda: (line for path in paths for line in read_lines(path)))
    if len(endings) > 1:
        raise UserError(f"{name} matches files of several formats ({', '.join(sorted(endings))}): give one")
    try:
        table = READERS[tables.pop()]([str(path) for path in paths])
    except Exception as error:  # the readers raise what their parsers do
        cause = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{name} cannot be read: {cause[0][:200]}") from error
    return _column(table, column, name, digest)


def _column(table: datasets.Dataset, column: str, name: str, digest: str) -> Text:
    if column not in table.column_names:
        raise UserError(f"{name} has no column {column!r} (data.text){closest(column, table.column_names)}")

    def lines() -> Iterator[str]:
        for rows in table.select_columns(column).iter(batch_size=1000):
            yield from ("" if value is None else str(value) for value in rows[column])

    return Text(name=name, digest=f"{digest} {column}", lines=lines)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, packed or not, never more than one in memory; very long ones in pieces.

    Raises UserError, with file and line, for what is not UTF-8 or cannot be unpacked.
    """
    with open_text(path) as stream:
        while line := stream.readline(PIECE):
            yield line


def pieces(lines: Iterator[str]) -> Iterator[list[str]]:
    """Lines that are not blank, in lists of about PIECE characters."""
    batch: list[str] = []
    size = 0
    for line in lines:
        if not line.strip():
            continue
        batch.append(line.strip())
        size += len(line)
        if size >= PIECE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def known(lines: Iterator[str], unknown: str | None, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """The lines with the corpus's own word for what was left out of it as the tokenizer's unknown token."""
    if unknown is None or tokenizer.unk_token is None:
        return lines
    return (line.replace(unknown, str(tokenizer.unk_token)) for line in lines)


def blocks(
    lines: Iterator[str], tokenizer: PreTrainedTokenizerBase, *, max_length: int
) -> Iterator[dict[str, list[Any]]]:
    """The text's tokens in order, cut into blocks of max_length with [CLS] and [SEP]; the last may be shorter.

    Columns as in FEATURES, some blocks at a time. continues: the token belongs to the word of the one before it in
    the block. A block in which every token is special (unknown) has nothing to learn and is left out.
    """
    room = max_length - 2
    special = list(tokenizer.all_special_ids)
    ids = np.zeros(0, dtype=np.int32)
    continues = np.zeros(0, dtype=np.bool_)
    count = 0
    for last, batch in _last_marked(pieces(lines)):
        encoded = tokenizer(batch, add_special_tokens=False, verbose=False)
        words = [word for encoding in encoded.encodings for word in _continues(encoding.word_ids)]
        new = [token for row in encoded["input_ids"] for token in row]
        ids = np.concatenate([ids, np.array(new, dtype=np.int32)])
        continues = np.concatenate([continues, np.array(words, dtype=np.bool_)])
        whole = len(ids) // room * room
        cuts = [*range(0, whole, room), *([whole] if last and whole < len(ids) else [])]
        columns: dict[str, list[Any]] = {name: [] for name in FEATURES}
        for start in cuts:
            inner = ids[start : start + room]
            if np.isin(inner, special).all():
                continue
            flags = continues[start : start + room].copy()
            flags[0] = False
            columns["id"].append(count)
            columns["input_ids"].append(np.array([tokenizer.cls_token_id, *inner, tokenizer.sep_token_id], np.int32))
            columns["continues"].append(np.array([False, *flags, False]))
            columns["length"].append(len(inner) + 2)
            count += 1
        ids, continues = ids[whole:], continues[whole:]
        if columns["id"]:
            yield columns


def _last_marked(batches: Iterator[list[str]]) -> Iterator[tuple[bool, list[str]]]:
    held: list[str] | None = None
    for batch in batches:
        if held is not None:
            yield False, held
        held = batch
    if held is not None:
        yield True, held


def _continues(words: list[int | None]) -> list[bool]:
    return [place > 0 and word is not None and word == words[place - 1] for place, word in enumerate(words)]


def packed(
    text: Text, tokenizer: PreTrainedTokenizerBase, *, split: str, max_length: int, unknown: str | None
) -> datasets.Dataset:
    """The blocks of `text`, memory-mapped from the datasets cache, where they are kept by content.

    Raises UserError for a text without a word that the tokenizer knows.
    """
    key = key_of([_FORMAT, text.digest, max_length, unknown, *tokenizer_settings(tokenizer)])

    def write(draft: Path) -> None:
        words = known(text.lines(), unknown, tokenizer)
        write_arrow(draft, FEATURES, blocks(words, tokenizer, max_length=max_length))

    part = read_arrow(stored(f"{key}.arrow", write), key)
    if not len(part):
        raise UserError(f"data.{split}={text.name} holds no text: at least one word is needed")
    return part
