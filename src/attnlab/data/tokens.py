"""Texts to token ids, once, on all cores, kept on disk by content."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import datasets
from rich.progress import MofNCompleteColumn, Progress
from transformers import PreTrainedTokenizerBase

from attnlab.data.store import key_of, read_arrow, stored, write_arrow
from attnlab.errors import UserError

# the Rust tokenizer shares the rows of one call among the cores
ROWS = 2000
_MANY = 20_000

# part of every cache key: raise it when the stored columns change
_FORMAT = 2


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """UserError for a tokenizer that is not a fast one, or has no padding token."""
    if not tokenizer.is_fast:
        raise UserError(f"{type(tokenizer).__name__} is not a fast tokenizer: choose a model with a tokenizer.json")
    if tokenizer.pad_token_id is None:
        raise UserError(f"{type(tokenizer).__name__} has no padding token: choose an encoder such as BERT")


def tokenised(
    part: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, *, max_length: int, name: str
) -> datasets.Dataset:
    """Columns id, label, [group], input_ids, [token_type_ids], length, cut (True: was truncated).

    Not padded. Pairs are cut at the longer side first. Kept in the datasets cache by the content of the part, the
    tokenizer and max_length; whole or not at all, so several processes may ask at once.
    """
    key = key_of([_FORMAT, part._fingerprint, max_length, *tokenizer_settings(tokenizer)])
    segments = "token_type_ids" in tokenizer.model_input_names
    kept = [column for column in ("id", "label", "group") if column in part.column_names]
    texts = [column for column in ("text", "text_pair") if column in part.column_names]
    features = {column: part.features[column] for column in kept}
    features["input_ids"] = datasets.List(datasets.Value("int32"))
    if segments:
        features["token_type_ids"] = datasets.List(datasets.Value("int8"))
    features |= {"length": datasets.Value("int32"), "cut": datasets.Value("bool")}

    def encoded() -> Iterator[dict[str, Any]]:
        with progress(len(part), f"tokenising {name}") as advance:
            for rows in part.select_columns([*kept, *texts]).with_format("arrow").iter(batch_size=ROWS):
                given = [rows.column(column).to_pylist() for column in texts]
                columns = {column: rows.column(column).combine_chunks() for column in kept}
                yield columns | encode(given, tokenizer, max_length=max_length)
                advance(len(rows))

    path = stored(f"{key}.arrow", lambda draft: write_arrow(draft, datasets.Features(features), encoded()))
    return read_arrow(path, key)


def encode(texts: list[list[str]], tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> dict[str, list[Any]]:
    """Columns input_ids, [token_type_ids], length, cut. texts: one list, or two of the sides of pairs."""
    out = tokenizer(
        *texts,
        truncation=True,
        max_length=max_length,
        return_attention_mask=False,
        return_token_type_ids="token_type_ids" in tokenizer.model_input_names,
        verbose=False,
    )
    columns: dict[str, list[Any]] = dict(out)
    columns["length"] = [len(ids) for ids in out["input_ids"]]
    columns["cut"] = [bool(encoding.overflowing) for encoding in out.encodings]
    return columns


@contextmanager
def progress(rows: int, what: str) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal for what takes long; calls of the function that it gives say how many rows are done."""
    with Progress(
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        transient=True,
        disable=rows < _MANY or not sys.stdout.isatty(),
    ) as bar:
        task = bar.add_task(what, total=rows)
        yield lambda done: bar.advance(task, done)


def tokenizer_settings(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """All that decides what a tokenizer does, as plain values for a cache key."""
    # truncation and padding are state that calls leave behind, not part of what the tokenizer is
    model = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    return [tokenizer.model_input_names, tokenizer.truncation_side, model]
