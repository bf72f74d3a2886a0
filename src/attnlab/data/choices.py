"""Multiple choice: each ending after what comes before it, a text of its own, and batches of them (B, C, L)."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import datasets
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from attnlab.data.batches import collate
from attnlab.data.module import TextDataModule
from attnlab.data.store import key_of, read_arrow, stored, write_arrow
from attnlab.data.tokens import ROWS, encode, progress, tokenizer_settings

_FORMAT = 1


def tokenised_choices(
    part: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, *, max_length: int, name: str
) -> datasets.Dataset:
    """As `data.tokens.tokenised`, with a list for each choice: input_ids, [token_type_ids]. length: of the longest.

    A text_pair begins each of the row's endings.
    """
    key = key_of(["choices", _FORMAT, part._fingerprint, max_length, *tokenizer_settings(tokenizer)])
    segments = "token_type_ids" in tokenizer.model_input_names
    ids = datasets.List(datasets.List(datasets.Value("int32")))
    features = {"id": part.features["id"], "label": part.features["label"], "input_ids": ids}
    if segments:
        features["token_type_ids"] = datasets.List(datasets.List(datasets.Value("int8")))
    features |= {"length": datasets.Value("int32"), "cut": datasets.Value("bool")}

    def encoded() -> Iterator[dict[str, Any]]:
        with progress(len(part), f"tokenising {name}") as advance:
            for rows in part.iter(batch_size=ROWS):
                columns = encode_choices(rows, tokenizer, max_length=max_length)
                yield {"id": rows["id"], "label": rows["label"]} | columns
                advance(len(rows["id"]))

    path = stored(f"{key}.arrow", lambda draft: write_arrow(draft, datasets.Features(features), encoded()))
    return read_arrow(path, key)


def encode_choices(
    rows: Mapping[str, list[Any]], tokenizer: PreTrainedTokenizerBase, *, max_length: int
) -> dict[str, list[Any]]:
    """Columns text, [text_pair], choices, as many in each row, as columns input_ids, [token_type_ids], length, cut."""
    count = len(rows["choices"][0])
    endings = [end for row in rows["choices"] for end in row]
    if "text_pair" in rows:
        begun = [start for start in rows["text_pair"] for _ in range(count)]
        endings = [f"{start} {end}" for start, end in zip(begun, endings, strict=True)]
    flat = encode([[text for text in rows["text"] for _ in range(count)], endings], tokenizer, max_length=max_length)
    starts = range(0, len(endings), count)
    columns = {key: [values[start : start + count] for start in starts] for key, values in flat.items()}
    return columns | {"length": [max(row) for row in columns["length"]], "cut": [any(row) for row in columns["cut"]]}


def collate_choices(rows: dict[str, list[Any]], *, pad_id: int, longest: int) -> dict[str, Tensor]:
    """As `data.batches.collate`, input_ids, attention_mask and [token_type_ids] (B, C, L)."""
    tokens = {key: list(chain.from_iterable(rows[key])) for key in ("input_ids", "token_type_ids") if key in rows}
    batch = collate(rows | tokens, pad_id=pad_id, longest=longest)
    for key in ("input_ids", "attention_mask", "token_type_ids"):
        if key in batch:
            batch[key] = batch[key].view(len(rows["id"]), -1, batch[key].shape[-1])
    return batch


class ChoiceDataModule(TextDataModule):
    """Loaders of the batches that `collate_choices` describes."""

    collated = staticmethod(collate_choices)

    def _tokenised(self, part: datasets.Dataset, split: str) -> datasets.Dataset:
        return tokenised_choices(part, self.tokenizer, max_length=self.max_length, name=split)
