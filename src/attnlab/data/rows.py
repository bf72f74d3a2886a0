"""A source's records to examples, vetted one by one as they stream by: an error names the file and the line."""

import hashlib
import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import datasets
import numpy as np

from attnlab.data.files import Records
from attnlab.data.spec import DataSpec
from attnlab.data.targets import label_name, number, target_of, truth
from attnlab.errors import UserError, closest

# ours -> theirs: text, text_pair, group, key one column, label one or several, choices several or one that holds a list
Columns = Mapping[str, str | tuple[str, ...]]

BATCH = 1000
# above this many distinct non-integer numbers a label column is taken for a quantity, not for
# classes
_MOST_NUMERIC_CLASSES = 20


@dataclass(kw_only=True)
class Summary:
    """What vetting found beside the rows. Of two numbers the first counts and the second is the first line, 0 if none.

    rows: read; kept: stored. empty: without any text; one_sided: a pair without one of its texts; quoted: texts in
    quotation marks; twice: keys that were there before; misplaced: answers that don't stand where they say, and
    answerless: questions left out for that. labels: name -> count and first line; hidden and bad as in
    `targets`. digest: sha256 over all that is stored.
    """

    columns: list[str]
    labelled: bool
    unit: str
    rows: int = 0
    kept: int = 0
    skipped: int = 0
    empty: list[int] = field(default_factory=lambda: [0, 0])
    one_sided: list[int] = field(default_factory=lambda: [0, 0])
    quoted: int = 0
    twice: list[int] = field(default_factory=lambda: [0, 0])
    misplaced: list[int] = field(default_factory=lambda: [0, 0])
    answerless: int = 0
    labels: dict[str, list[int]] = field(default_factory=dict)
    hidden: int = 0
    bad: list[Any] | None = None
    digest: str = ""

    def to_json(self) -> str:
        """As text, labels in their order."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Summary":
        """The inverse of `to_json`."""
        return cls(**json.loads(text))


def column(columns: Sequence[str], source: str, name: str, key: str) -> int:
    """Position of the column, or a UserError that suggests the nearest name.

    key: the setting that named the column.
    """
    if name not in columns:
        hint = closest(name, columns)
        if len(columns) == 1 and ";" in columns[0]:
            hint += " (the file seems to be separated by semicolons: save it with commas, or as TSV)"
        if source.endswith((".tsv", ".txt")):
            hint += " (a file without a header line needs its columns named: task.header=[...])"
        raise UserError(f"{source} has no column {name!r} (set by {key} or the task){hint}")
    return columns.index(name)


class Vetting:
    """Examples out of records: `batches` yields their columns, and has filled `summary` when it ends.

    training: rows with an empty text leave the data, where they teach nothing; elsewhere each counts and stays.
    skip: labels whose rows are left out. Without the label column there is no target.
    """

    def __init__(
        self, records: Records, spec: DataSpec, names: Columns, *, training: bool, skip: Sequence[str] = ()
    ) -> None:
        self.records = records
        self.training = training
        self.skip = frozenset(skip)
        self.text = self._place(names, "text")
        self.pair = self._place(names, "text_pair") if "text_pair" in names else None
        self.choices = self._places(names, "choices") if "choices" in names else []
        self.group = self._place(names, "group") if "group" in names else None
        self.key = self._place(names, "key") if names.get("key") in records.columns else None
        wanted = names["label"]
        labelled = all(name in records.columns for name in ([wanted] if isinstance(wanted, str) else wanted))
        self.label = self._places(names, "label") if labelled else []
        self.several = isinstance(wanted, tuple)
        self.target = target_of(spec, training=training)
        self.summary = Summary(columns=list(records.columns), labelled=labelled, unit=records.unit)
        self.groups: dict[str, int] = {}
        self.endings = Choices()

    def _place(self, names: Columns, ours: str) -> int:
        return self._places(names, ours)[0]

    def _places(self, names: Columns, ours: str) -> list[int]:
        theirs = names[ours]
        wanted = [theirs] if isinstance(theirs, str) else theirs
        return [column(self.records.columns, self.records.name, name, f"data.{ours}") for name in wanted]

    def _where(self, line: int) -> str:
        return f"{self.records.name}, {self.records.unit} {line}"

    @property
    def features(self) -> datasets.Features:
        """Of the stored columns; the label's is called target."""
        text, whole = datasets.Value("string"), datasets.Value("int64")
        wanted = {
            "id": whole,
            "key": text if self.key is not None else None,
            "text": text,
            "text_pair": text if self.pair is not None else None,
            "choices": datasets.List(text) if self.choices else None,
            "group": whole if self.group is not None else None,
            "target": self.target.feature if self.label else None,
        }
        return datasets.Features({name: feature for name, feature in wanted.items() if feature is not None})

    def batches(self) -> Iterator[dict[str, list[Any]]]:
        """Columns of some rows at a time."""
        digest = hashlib.sha256()
        names = list(self.features)
        keys, lines = array("q"), array("q")
        batch: dict[str, list[Any]] = {name: [] for name in names}
        for row in self._rows(keys, lines):
            for name, value in zip(names, row, strict=True):
                batch[name].append(value)
            if len(batch["id"]) == BATCH:
                digest.update(json.dumps(list(batch.values())).encode())
                yield batch
                batch = {name: [] for name in names}
        if batch["id"]:
            digest.update(json.dumps(list(batch.values())).encode())
            yield batch
        found, target = self.summary, self.target
        found.labels, found.hidden, found.misplaced = target.names, target.hidden, target.misplaced
        found.bad = list(target.bad) if target.bad else None
        found.twice = _twice(keys, lines)
        digest.update(json.dumps([names, list(found.labels)]).encode())
        found.digest = digest.hexdigest()

    def _rows(self, keys: "array[int]", lines: "array[int]") -> Iterator[list[Any]]:
        found, target = self.summary, self.target
        label = self.label[0] if len(self.label) == 1 and not self.several else None
        for index, (line, values) in enumerate(self.records.rows):
            found.rows += 1
            if self.skip and label is not None and label_name(values[label]) in self.skip:
                found.skipped += 1
                continue
            texts = [as_text(values[self.text])]
            row: list[Any] = [index]
            if self.key is not None:
                key = label_name(values[self.key])
                row.append(key)
                keys.append(hash(key))  # 64 bits of each: all of them would fill the memory
                lines.append(line)
            row.append(texts[0])
            if self.pair is not None:
                texts.append(as_text(values[self.pair]))
                row.append(texts[1])
            if self.choices:
                texts = self.endings.read([values[place] for place in self.choices], self._where(line))
                row.append(texts)
            for text in texts:
                if not text.isascii():  # which costs nothing to know
                    _check_encodable(text, self._where(line))
            if not all(map(str.strip, texts)):
                _count(found.empty if len(texts) == 1 or not any(map(str.strip, texts)) else found.one_sided, line)
                if self.training:
                    continue
            if texts[0][:1] == '"' and texts[0][-1] == '"' and len(texts[0]) > 1:
                found.quoted += 1
            if self.group is not None:
                row.append(self.groups.setdefault(label_name(values[self.group]), len(self.groups)))
            if self.label:
                given = [values[place] for place in self.label] if label is None else values[label]
                taken = target.take(given, line, texts)
                if taken is None:
                    found.answerless += 1
                    continue
                row.append(taken)
            found.kept += 1
            yield row


class Choices:
    """A row's choices, out of a column for each or of one with a list; every row has as many as the first."""

    def __init__(self) -> None:
        self.count = 0

    def read(self, values: Sequence[Any], where: str) -> list[str]:
        """values: of the columns. Raises UserError for what is no list of at least two, or of another length."""
        listed = truth(values[0]) if len(values) == 1 else values
        if not isinstance(listed, list | tuple) or len(listed) < 2:
            raise UserError(f"{where}: the choices are no list of at least two: {str(listed)[:60]!r}")
        self.count = self.count or len(listed)
        if len(listed) != self.count:
            raise UserError(f"{where}: {len(listed)} choices, where the first row has {self.count}")
        return [as_text(one) for one in listed]


def _check_encodable(text: str, where: str) -> None:
    """UserError for half of a surrogate pair, which JSON can write and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: {error.object[error.start]!r} is half of a character: write it whole, or leave it out"
        ) from error


def _count(issue: list[int], line: int) -> None:
    issue[0] += 1
    issue[1] = issue[1] or line


def _twice(keys: "array[int]", lines: "array[int]") -> list[int]:
    """How many keys were there before, and the line of the first."""
    if not keys:
        return [0, 0]
    _, first = np.unique(np.frombuffer(keys, dtype=np.int64), return_index=True)
    again = np.ones(len(keys), dtype=bool)
    again[first] = False
    return [int(again.sum()), int(lines[int(again.argmax())]) if again.any() else 0]


def as_text(value: Any) -> str:
    """A cell as text; a missing one is empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value if isinstance(value, str) else str(value)


def read_labels(found: Summary, name: str) -> tuple[str, ...]:
    """The set of labels in training data, numbers in numeric order, else in alphabetical order. name: the source's."""
    if "" in found.labels:
        raise UserError(f"{name}, {found.unit} {found.labels[''][1]}: the label is missing")
    labels = set(found.labels)
    numbers = {label: number(label) for label in labels}
    numeric = all(value is not None for value in numbers.values())
    if numeric and len(labels) > _MOST_NUMERIC_CLASSES and any("." in n or "e" in n.lower() for n in labels):
        raise UserError(
            f"{name}: the label column holds {len(labels)} distinct numbers such as {sorted(labels)[0]}: "
            "to predict a number, add task.kind=regression; to predict classes, give the label column as data.label"
        )
    if len(labels) > max(_MOST_NUMERIC_CLASSES, found.kept // 2):
        raise UserError(
            f"{name}: {len(labels)} distinct labels in {found.kept} rows: is data.label the right column? "
            f"One of: {', '.join(found.columns)}"
        )
    if len(labels) < 2:
        only = repr(next(iter(labels))) if labels else "missing"
        raise UserError(f"{name}: every label is {only}: training needs at least two classes")
    if numeric:
        return tuple(sorted(labels, key=lambda label: (numbers[label], label)))
    return tuple(sorted(labels))


def label_ids(found: Summary, labels: Sequence[str], name: str, *, by_id: bool) -> list[int]:
    """The id of each label that was met, in the order in which it was.

    Labels may be written by name, or, with by_id, by id too where no name is a number. Raises UserError for a label
    that is none of `labels`.
    """
    ids = {label: index for index, label in enumerate(labels)}
    if by_id and all(number(label) is None for label in labels):
        ids |= {str(index): index for index in range(len(labels))}
    unknown = sorted((line, label) for label, (_, line) in found.labels.items() if label not in ids)
    if unknown:
        line, label = unknown[0]
        shown = f"label {label!r} is not among the labels" if label else "the label is missing"
        if label == "-1":  # which is near to "1", and means something else
            raise UserError(f"{name}, {found.unit} {line}: label '-1', a hidden one: leave out the rows that have it")
        raise UserError(f"{name}, {found.unit} {line}: {shown}{closest(label, labels)}")
    return [ids[label] for label in found.labels]
