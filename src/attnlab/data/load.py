"""From a DataSpec to vetted examples in `datasets.Dataset`s, on disk and read there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from attnlab.data.overlap import overlap_notes
from attnlab.data.rows import Summary, Vetting, column, label_ids, read_labels
from attnlab.data.sources import Source, find
from attnlab.data.spec import SPLITS, DataSpec
from attnlab.data.split import Places, number_strata, stratified, whole_groups
from attnlab.data.store import chosen, key_of, read_arrow, stored, values_of, write_arrow
from attnlab.errors import UserError, closest

# part of every cache key: raise it when what is stored, or how it is read, changes
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Examples:
    """splits: train, val, test as far as they exist, and further evaluation sets.

    Columns, those that apply: id, the row's position in its source, counted before anything is dropped; key, the
    source's own id; text, text_pair; choices; group, one number for all rows of a question; label: int64 for
    classification and multiple_choice, float32 for regression, a 0 or 1 for each of `labels` for multilabel, text and
    start of the answers for span.

    labels: of classification and multilabel. notes: what the user must be told. fingerprint: sha256 over the content
    of all splits.
    """

    splits: Mapping[str, datasets.Dataset]
    labels: tuple[str, ...]
    source: str
    notes: tuple[str, ...]
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class _Vetted:
    """A source's rows as they are stored, with a column target where there are labels, and what was found in it."""

    source: Source
    part: datasets.Dataset
    found: Summary
    training: bool

    def where(self, line: int) -> str:
        return f"{self.source.name}, {self.found.unit} {line}"


def load_examples(spec: DataSpec) -> Examples:
    """Find, read, vet. Raises UserError for anything the user can mend, within seconds.

    With `spec.only` there is that split alone, and the labels are `spec.labels`.
    """
    found = find(spec)
    notes: list[str] = []
    vetted = {split: _vet(spec, source, training=split == "train") for split, source in found.sources.items()}
    labels = _labels(spec, vetted.get("train"))
    hidden = [split for split, one in vetted.items() if _is_hidden(spec, one, split, labels)]
    notes += [f"{vetted[split].source.name} has no labels: ignored, no {split} scores" for split in hidden]
    vetted = {split: one for split, one in vetted.items() if split not in hidden}
    for split, one in vetted.items():
        notes += _vetting_notes(spec, split, one)
    if spec.labels is None and "train" in vetted and labels and not isinstance(spec.label, tuple):
        counts = vetted["train"].found.labels
        notes.append("labels read from the training data: " + ", ".join(f"{n} {counts[n][0]:,}" for n in labels))
    parts = {split: _labelled(spec, one, labels) for split, one in vetted.items()}
    if "val" not in parts and spec.only is None:
        parts = _hold_out(parts, spec, notes)
    if spec.limit is not None:
        for split, part in parts.items():
            if len(part) > spec.limit:
                parts[split] = chosen(part, _some(part, spec, spec.limit))
                notes.append(f"{split}: {len(parts[split])} of {len(part)} examples (data.limit)")
    if "train" in parts:
        notes += overlap_notes(parts)
    prints = {split: part._fingerprint for split, part in parts.items()}
    return Examples(
        splits={split: parts[split] for split in (*SPLITS, *parts) if split in parts},
        labels=labels,
        source=found.source,
        notes=tuple(notes),
        fingerprint=key_of([labels, prints]),
    )


def narrowed(spec: DataSpec, split: str) -> DataSpec:
    """`spec` with `split` alone to be read: a trained model needs no training data to be scored.

    The same where val was held out of train. Raises UserError for a split that the task does not name.
    """
    named = {*spec.files, *spec.given, *(spec.hub.splits if spec.hub else ())}
    if spec.wheel is not None:
        named |= set(SPLITS)
    if split not in named | {"val"}:
        raise UserError(f"task={spec.task} has no split {split!r}{closest(split, named | {'val'})}")
    only = replace(spec, only=split)
    if split == "val":
        try:
            find(only)
        except UserError:
            return spec
    return only


def load_unlabelled(spec: DataSpec, split: str) -> datasets.Dataset:
    """All rows of a split, in their order, without labels: a benchmark's hidden test set, to be predicted."""
    only = narrowed(spec, split)
    if only.only is None:
        part = load_examples(replace(spec, limit=None)).splits[split]
    else:
        part = _vet(spec, find(only).sources[split], training=False).part
    return part.remove_columns([name for name in ("target", "label") if name in part.column_names])


def _vet(spec: DataSpec, source: Source, *, training: bool) -> _Vetted:
    """What is stored of the source, where need be read anew."""
    layout = source.reading
    labels = [spec.kind, spec.label, sorted(spec.aliases.items())]
    reading = [layout.format, layout.header, layout.skip, sorted(source.names.items())]
    key = key_of([_FORMAT, source.content, labels, reading, training])

    def write(draft: Path) -> None:
        vetting = Vetting(source.open(), spec, source.names, training=training, skip=layout.skip)
        write_arrow(draft, vetting.features, vetting.batches())
        if not vetting.summary.kept:
            if vetting.summary.skipped:
                raise UserError(f"{source.name}: no row is left: every label is one of {', '.join(layout.skip)}")
            raise UserError(f"{source.name}: every text in column {source.names['text']!r} is empty")
        # before the rows appear: what was found is there whenever they are
        stored_summary = draft.with_name(f"{key}.json")
        scratch = draft.with_suffix(".json.tmp")
        scratch.write_text(vetting.summary.to_json(), encoding="utf-8")
        scratch.replace(stored_summary)

    path = stored(f"{key}.arrow", write)
    if not path.with_suffix(".json").is_file():  # someone tidied the cache
        path.unlink()
        path = stored(f"{key}.arrow", write)
    found = Summary.from_json(path.with_suffix(".json").read_text(encoding="utf-8"))
    return _Vetted(source=source, part=read_arrow(path, found.digest), found=found, training=training)


def _labels(spec: DataSpec, train: _Vetted | None) -> tuple[str, ...]:
    if spec.kind not in ("classification", "multilabel"):
        return ()
    if spec.labels is not None:
        return spec.labels
    if isinstance(spec.label, tuple):
        return spec.label
    assert train is not None
    if not train.found.labelled:
        _check_label_column(spec, train, "train")
    return read_labels(train.found, train.source.name)


def _is_hidden(spec: DataSpec, one: _Vetted, split: str, labels: Sequence[str]) -> bool:
    """True for evaluation sets of benchmarks that hide the labels; what the user gives must have them."""
    found = one.found
    missing = not found.labelled or (found.hidden == found.kept and "-1" not in labels)
    if split in ("train", "val") and not one.source.own:
        _check_label_column(spec, one, split)
        return False
    if missing and split != "train" and one.source.own:
        cause = "every label is -1 or missing, as where a benchmark hides them" if found.labelled else "no label column"
        raise UserError(
            f"{one.source.name}: {cause}: it cannot be scored. Leave data.{split} out, and when the model is trained "
            f"type: attnlab predict run=FOLDER input={one.source.name}"
            + ("" if found.labelled else f" (the label column is named by data.label; {_label_error(spec, one)})")
        )
    if one.source.own:
        _check_label_column(spec, one, split)
        return False
    return missing


def _label_error(spec: DataSpec, one: _Vetted) -> str:
    try:
        _check_label_column(spec, one, "")
    except UserError as error:
        return str(error)
    return ""


def _check_label_column(spec: DataSpec, one: _Vetted, split: str) -> None:
    theirs = one.source.names["label"]
    for name in [theirs] if isinstance(theirs, str) else theirs:
        column(one.found.columns, one.source.name, name, "data.label")


def _labelled(spec: DataSpec, one: _Vetted, labels: tuple[str, ...]) -> datasets.Dataset:
    """The part with its labels as they are learnt. Raises UserError, with file and line, for one that cannot be."""
    part, found = one.part, one.found
    if found.bad is not None:
        raise UserError(f"{one.where(found.bad[0])}: {found.bad[1]}")
    if spec.kind not in ("classification", "multilabel"):
        return part.rename_column("target", "label", new_fingerprint=key_of([found.digest, spec.kind]))
    if isinstance(spec.label, tuple):
        if set(spec.label) != set(labels):
            raise UserError(
                f"data.label=[{','.join(spec.label)}] must name the columns of the labels, in any order: "
                f"{', '.join(labels)}"
            )
        ids = [labels.index(name) for name in spec.label]
    else:
        ids = label_ids(found, labels, one.source.name, by_id=spec.labels is not None)
    name = key_of([_FORMAT, found.digest, labels, ids])
    codes = np.array(ids, dtype=np.int64)
    if spec.kind == "classification":
        values = codes[values_of(part, "target")]
        part = part.remove_columns("target")
        return part.add_column("label", values, new_fingerprint=name, feature=datasets.Value("int64"))
    features = datasets.Features({"label": datasets.List(datasets.Value("float32"))})
    path = stored(f"{name}.arrow", lambda draft: write_arrow(draft, features, _vectors(part, codes, len(labels))))
    both = [part.remove_columns("target"), read_arrow(path, name)]
    return datasets.Dataset(datasets.concatenate_datasets(both, axis=1).data, fingerprint=name)


def _vectors(part: datasets.Dataset, ids: np.ndarray[Any, np.dtype[np.int64]], width: int) -> Iterator[dict[str, Any]]:
    """Sets of codes as vectors of 0 and 1, some rows at a time."""
    for rows in part.select_columns("target").iter(batch_size=1000):
        vectors = np.zeros((len(rows["target"]), width), dtype=np.float32)
        for vector, codes in zip(vectors, rows["target"], strict=True):
            vector[ids[codes]] = 1
        yield {"label": list(vectors)}


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _vetting_notes(spec: DataSpec, split: str, one: _Vetted) -> list[str]:
    """What vetting found; with data.strict what a user would mend is an error."""
    found, name = one.found, one.source.name
    fate = "dropped" if one.training else "kept, as an empty text"
    doubts = [
        (found.empty, f"with an empty text {fate}"),
        (found.one_sided, f"with one side empty {'dropped' if one.training else 'kept'}"),
        (found.twice, "with an id that was there before"),
    ]
    notes = []
    for (count, line), words in doubts:
        if count:
            _refuse_if_strict(spec, one, line, f"{_rows(count)} {words}")
            notes.append(f"{split}: {_rows(count)} {words} ({name}, the first at {found.unit} {line})")
    count, line = found.misplaced
    if count:
        words = "1 answer does not stand" if count == 1 else f"{count:,} answers do not stand"
        words += " in the context where its offset says"
        _refuse_if_strict(spec, one, line, words)
        left = f", {_rows(found.answerless)} left without an answer dropped" if found.answerless else ""
        notes.append(f"{split}: {words}: dropped{left} ({name}, the first at {found.unit} {line})")
    if found.skipped:
        skip = ", ".join(repr(label) for label in one.source.reading.skip)
        notes.append(f"{split}: {_rows(found.skipped)} labelled {skip} left out ({name})")
    if found.quoted and one.source.own and name.endswith(".tsv"):
        notes.append(
            f"{split}: {_rows(found.quoted)} with a text in quotation marks, which stay: TSV is read with "
            f"quoting off; save as CSV if they are not part of the text ({name})"
        )
    official = spec.rows.get(split)
    if official and not one.source.own and not {found.rows, found.rows - found.skipped} & set(official):
        counts = " or ".join(f"{count:,}" for count in official)
        notes.append(f"{split}: {_rows(found.rows)}; the official file has {counts}")
    return notes


def _refuse_if_strict(spec: DataSpec, one: _Vetted, line: int, words: str) -> None:
    if spec.strict:
        raise UserError(
            f"{one.where(line)}: here begin {words}, and data.strict=true takes none: mend the file, or leave "
            "data.strict out"
        )


def _strata(part: datasets.Dataset, spec: DataSpec, size: int) -> Sequence[Any] | Places:
    """What a subset should have in proportion: classes, levels of a number, sets of labels, answered or not."""
    if spec.kind == "regression":
        return number_strata(values_of(part, "label"), bins=min(10, size))
    if spec.kind in ("classification", "multiple_choice"):
        return values_of(part, "label")
    strata: list[Any] = []
    for rows in part.select_columns("label").iter(batch_size=1000):
        strata += [tuple(one) if spec.kind == "multilabel" else bool(one["text"]) for one in rows["label"]]
    return strata


def _some(part: datasets.Dataset, spec: DataSpec, size: int) -> Places:
    """Ascending indices of `size` examples, stratified; of rows that are ranked together all or none."""
    if "group" in part.column_names:
        return whole_groups(values_of(part, "group"), size)
    return stratified(_strata(part, spec, size), size)


def _hold_out(parts: Mapping[str, datasets.Dataset], spec: DataSpec, notes: list[str]) -> dict[str, datasets.Dataset]:
    train = parts["train"]
    if len(train) < 2:
        raise UserError("one training example is too few to hold any out: give data.val=FILE")
    size = max(1, round(len(train) / 10))
    # what stays is chosen, not what goes: so a class with one example is never held out whole
    if "group" in train.column_names:
        rest = whole_groups(values_of(train, "group"), len(train) - size)
        how = "whole questions"
    else:
        rest = stratified(_strata(train, spec, size), len(train) - size)
        how = "stratified"
    away = np.ones(len(train), dtype=bool)
    away[rest] = False
    held = np.flatnonzero(away)
    if not len(held) or not len(rest):
        raise UserError("all rows are one question, none of which can be held out: give data.val=FILE")
    notes.append(f"no validation data given: {_rows(len(held))} (10 %, {how}, always the same) held out of train")
    return {**parts, "train": chosen(train, rest), "val": chosen(train, held)}
