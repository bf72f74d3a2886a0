"""Multiple choice: each ending after what comes before it, a text of its own, and batches of them (B, C, L)."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import datasets
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from attnlab.data.batches import EvalBatches, TrainBatches, collate
from attnlab.data.module import Batch, TextDataModule
from attnlab.data.store import key_of, read_arrow, stored, write_arrow
from attnlab.data.tokens import ROWS, encode, progress, tokenizer_settings
from attnlab.errors import UserError

_FORMAT = 1


class ChoiceDataModule(TextDataModule):
    """Loaders of the batches that `collate_choices` describes."""

    def _tokenised(self, part: datasets.Dataset, split: str) -> datasets.Dataset:
        return tokenised_choices(part, self.tokenizer, max_length=self.max_length, name=split)

    def _loader(self, part: datasets.Dataset, batches: TrainBatches | EvalBatches) -> DataLoader[Batch]:
        loader = super()._loader(part, batches)
        loader.collate_fn = partial(collate_choices, pad_id=int(self.tokenizer.pad_token_id), longest=self.limit)
        return loader


def tokenised_choices(
    part: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, *, max_length: int, name: str
) -> datasets.Dataset:
    """As `data.tokens.tokenised`, with a list for each choice: input_ids, [token_type_ids]. length: of the longest.

    A text_pair begins each of the row's endings. Raises UserError where a row has more or fewer of them than the first.
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
                columns = encode_choices(rows, len(part[0]["choices"]), tokenizer, max_length=max_length, name=name)
                yield {"id": rows["id"], "label": rows["label"]} | columns
                advance(len(rows["id"]))

    path = stored(f"{key}.arrow", lambda draft: write_arrow(draft, datasets.Features(features), encoded()))
    return read_arrow(path, key)


def encode_choices(
    rows: Mapping[str, list[Any]], count: int, tokenizer: PreTrainedTokenizerBase, *, max_length: int, name: str
) -> dict[str, list[Any]]:
    """Columns text, [text_pair], choices as columns input_ids, [token_type_ids], length, cut; count: endings a row."""
    for row in rows["choices"]:
        if len(row) != count:
            raise UserError(f"{name}: a row has {len(row)} endings where the first has {count}: each needs as many")
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
