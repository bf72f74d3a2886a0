"""From a DataSpec to vetted examples in `datasets.Dataset`s."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import datasets

from attnlab.data.rows import Rows, class_ids, label_name, numbers, read_labels, select
from attnlab.data.sources import Found, find
from attnlab.data.spec import DataSpec
from attnlab.data.split import number_strata, stratified
from attnlab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Examples:
    """splits: train, val, test as far as they exist, columns id, text, [text_pair], label.

    id is the row's position in its source, counted before anything is dropped. labels are empty for
    regression. notes: what the user must be told. fingerprint: sha256 over the texts and labels of
    all splits.
    """

    splits: Mapping[str, datasets.Dataset]
    labels: tuple[str, ...]
    source: str
    notes: tuple[str, ...]
    fingerprint: str


def load_examples(spec: DataSpec) -> Examples:
    """Find, read, vet. Raises UserError for anything the user can mend, within seconds."""
    found = find(spec)
    notes: list[str] = []
    rows = {}
    for split in found.tables:
        if _unlabelled_test(found, spec, split):
            notes.append(f"{found.tables[split].name} has no labels: ignored, no test scores")
            continue
        rows[split], empty = select(found.tables[split], spec, split, found.names[split])
        if empty:
            fate = "dropped" if split == "train" else "kept, as an empty text"
            notes.append(f"{split}: {_rows(empty)} with an empty text {fate} ({found.tables[split].name})")
        notes += _quoted(rows[split], spec, split)
    labels: tuple[str, ...] = ()
    if spec.kind == "classification":
        labels = spec.labels or read_labels(rows["train"])
        if spec.labels is None:
            seen = Counter(label_name(value) for value in rows["train"].raw)
            notes.append("labels read from the training data: " + ", ".join(f"{n} {seen[n]:,}" for n in labels))
    targets: dict[str, list[int] | list[float]] = {
        split: class_ids(part, labels, by_id=spec.labels is not None)
        if spec.kind == "classification"
        else numbers(part)
        for split, part in rows.items()
    }
    parts = {split: _dataset(part, targets[split], spec) for split, part in rows.items()}
    if "val" not in parts:
        parts = _hold_out(parts, spec, notes)
    if spec.limit is not None:
        for split, part in parts.items():
            if len(part) > spec.limit:
                notes.append(f"{split}: {spec.limit} of {len(part)} examples (data.limit)")
                parts[split] = part.select(stratified(_strata(part, spec, spec.limit), spec.limit))
    return Examples(
        splits={split: parts[split] for split in ("train", "val", "test") if split in parts},
        labels=labels,
        source=found.source,
        notes=tuple(notes),
        fingerprint=_fingerprint(parts, labels),
    )


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _quoted(rows: Rows, spec: DataSpec, split: str) -> list[str]:
    """A word about the user's own TSV that was written with quoting on."""
    if split not in spec.given or spec.given[split].suffix != ".tsv":
        return []
    count = sum(len(text) > 1 and text[0] == text[-1] == '"' for text in rows.texts)
    if not count:
        return []
    return [
        f"{split}: {_rows(count)} with a text in quotation marks, which stay: TSV is read with "
        f"quoting off; save as CSV if they are not part of the text ({rows.table.name})"
    ]


def _unlabelled_test(found: Found, spec: DataSpec, split: str) -> bool:
    """True for test sets of benchmarks that hide the labels; a user's own must have them."""
    if split != "test" or "test" in spec.given:
        return False
    table, label = found.tables[split], found.names[split]["label"]
    if label not in table.columns:
        return True
    index = table.columns.index(label)
    # the Hub writes hidden labels as -1
    return all(row[index] in (None, -1) for row in table.rows)


def _dataset(rows: Rows, targets: list[int] | list[float], spec: DataSpec) -> datasets.Dataset:
    columns: dict[str, object] = {"id": rows.ids, "text": rows.texts}
    kinds = {"id": datasets.Value("int64"), "text": datasets.Value("string")}
    if spec.text_pair is not None:
        columns["text_pair"] = rows.pairs
        kinds["text_pair"] = datasets.Value("string")
    columns["label"] = targets
    kinds["label"] = datasets.Value("int64" if spec.kind == "classification" else "float32")
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


def _strata(part: datasets.Dataset, spec: DataSpec, size: int) -> list[int]:
    labels = list(part["label"])
    return labels if spec.kind == "classification" else number_strata(labels, bins=min(10, size))


def _hold_out(parts: Mapping[str, datasets.Dataset], spec: DataSpec, notes: list[str]) -> dict[str, datasets.Dataset]:
    train = parts["train"]
    if len(train) < 2:
        raise UserError("one training example is too few to hold any out: give data.val=FILE")
    size = max(1, round(len(train) / 10))
    # what stays is chosen, not what goes: so a class with one example is never held out whole
    rest = stratified(_strata(train, spec, size), len(train) - size)
    held = sorted(set(range(len(train))) - set(rest))
    notes.append(f"no validation data given: {_rows(size)} (10 %, stratified, always the same) held out of train")
    return {**parts, "train": train.select(rest), "val": train.select(held)}


def _fingerprint(parts: Mapping[str, datasets.Dataset], labels: tuple[str, ...]) -> str:
    digest = hashlib.sha256(json.dumps(labels).encode())
    for split in sorted(parts):
        part = parts[split]
        digest.update(f"\n{split} {len(part)}\n".encode())
        columns = [list(part[name]) for name in ("text", "text_pair", "label") if name in part.features]
        for row in zip(*columns, strict=True):
            digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()
