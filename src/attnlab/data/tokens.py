"""Texts to token ids, once, through `datasets.map`, cached on disk by content."""

import hashlib
import json
from pathlib import Path
from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase

from attnlab.errors import UserError

# part of every cache key: raise it when the stored columns change
_FORMAT = 1


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """UserError for a tokenizer that is not a fast one, or has no padding token."""
    if not tokenizer.is_fast:
        raise UserError(f"{type(tokenizer).__name__} is not a fast tokenizer: choose a model with a tokenizer.json")
    if tokenizer.pad_token_id is None:
        raise UserError(f"{type(tokenizer).__name__} has no padding token: choose an encoder such as BERT")


def tokenised(
    part: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, *, max_length: int, name: str
) -> datasets.Dataset:
    """Columns id, label, input_ids, [token_type_ids], length, cut (True: was truncated).

    Not padded. Pairs are cut at the longer side first. Kept in the datasets cache under a key of
    texts, labels, tokenizer, and max_length; written by rename, so several processes may ask at
    once.
    """
    key = _key(part, tokenizer, max_length)
    store: str | None = None
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "attnlab"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        store = str(folder / f"{key}.arrow")
    except OSError:
        pass  # a read-only home: tokenise in memory, which costs seconds and nothing else
    segments = "token_type_ids" in tokenizer.model_input_names

    def encode(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        texts = (rows["text"], rows["text_pair"]) if "text_pair" in rows else (rows["text"],)
        out = tokenizer(
            *texts,
            truncation=True,
            max_length=max_length,
            return_attention_mask=False,
            return_token_type_ids=segments,
        )
        columns: dict[str, list[Any]] = {"input_ids": out["input_ids"]}
        if segments:
            columns["token_type_ids"] = out["token_type_ids"]
        columns["length"] = [len(ids) for ids in out["input_ids"]]
        columns["cut"] = [bool(encoding.overflowing) for encoding in out.encodings]
        return columns

    return part.map(
        encode,
        batched=True,
        remove_columns=[c for c in ("text", "text_pair") if c in part.column_names],
        cache_file_name=store,
        keep_in_memory=store is None,
        load_from_cache_file=True,
        new_fingerprint=key[:32],
        desc=f"tokenising {name}",
    )


def tokenizer_settings(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """All that decides what a tokenizer does, as plain values for a cache key."""
    # truncation and padding are state that calls leave behind, not part of what the tokenizer is
    model = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    return [tokenizer.model_input_names, tokenizer.truncation_side, model]


def _key(part: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int) -> str:
    names, side, model = tokenizer_settings(tokenizer)
    settings = [_FORMAT, max_length, names, side, str(part.features), model]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for column in part.column_names:
        digest.update(json.dumps(list(part[column])).encode())
    return digest.hexdigest()
