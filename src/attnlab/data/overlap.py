"""Texts that an evaluation set shares with the training data: a score on them says less than it seems to."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from attnlab.data.store import key_of, stored

_SEPARATOR = "\x1f"
_REST = rf"[^\pL\pM\pN{_SEPARATOR}]+"


def overlap_notes(parts: Mapping[str, datasets.Dataset]) -> list[str]:
    """A word on each evaluation set that shares texts with train: how many distinct ones, pairs as pairs."""
    counts = {split: shared(parts["train"], part) for split, part in parts.items() if split != "train"}
    said = "in train too, case and punctuation aside"
    return [
        f"{split}: {count:,} distinct {'text is' if count == 1 else 'texts are'} {said}"
        for split, count in counts.items()
        if count
    ]


def shared(train: datasets.Dataset, other: datasets.Dataset) -> int:
    """How many distinct texts of `other` are in `train`; counted once and kept."""

    def write(draft: Path) -> None:
        draft.write_text(json.dumps(_count(train, other)))

    key = key_of([_REST, train._fingerprint, other._fingerprint])
    return int(json.loads(stored(f"{key}.json", write).read_text()))


def _count(train: datasets.Dataset, other: datasets.Dataset) -> int:
    # the evaluation set is the smaller one: its texts are what is kept in memory
    wanted = pc.unique(pa.chunked_array(list(_texts(other)), pa.string()))
    wanted = wanted.filter(pc.greater(pc.utf8_length(wanted), 0))
    seen = np.zeros(len(wanted), dtype=bool)
    for texts in _texts(train):
        places = pc.index_in(texts, value_set=wanted).drop_null()
        seen[places.to_numpy(zero_copy_only=False)] = True
    return int(seen.sum())


def _texts(part: datasets.Dataset) -> Iterator[pa.Array]:
    """Each row's letters and digits, its columns apart: case, punctuation and spaces don't make a text another."""
    names = [name for name in ("text", "text_pair", "choices") if name in part.column_names]
    for table in part.select_columns(names).with_format("arrow").iter(batch_size=10_000):
        columns = [table.column(name).combine_chunks() for name in names]
        columns = [pc.binary_join(c, _SEPARATOR) if pa.types.is_list(c.type) else c for c in columns]
        columns = [pc.replace_substring_regex(pc.utf8_lower(c), _REST, "") for c in columns]
        yield columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, _SEPARATOR)
