"""A table's rows to examples, vetted one by one: an error names the file and the line."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnlab.data.files import Table
from attnlab.data.spec import DataSpec
from attnlab.errors import UserError, closest

# above this many distinct non-integer numbers a label column is taken for a quantity, not for
# classes
_MOST_NUMERIC_CLASSES = 20


@dataclass(kw_only=True)
class Rows:
    """Parallel lists; ids are positions in the source; labels still raw."""

    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    pairs: list[str] = field(default_factory=list)
    raw: list[Any] = field(default_factory=list)
    where: list[int] = field(default_factory=list)
    table: Table


def column(table: Table, name: str, key: str) -> int:
    """Position of the column, or a UserError that suggests the nearest name.

    key: the setting that named the column.
    """
    if name not in table.columns:
        hint = closest(name, table.columns)
        if len(table.columns) == 1 and ";" in table.columns[0]:
            hint += " (the file seems to be separated by semicolons: save it with commas, or as TSV)"
        if table.name.endswith((".tsv", ".txt")):
            hint += " (a file without a header line needs its columns named: task.header=[...])"
        raise UserError(f"{table.name} has no column {name!r} (set by {key} or the task){hint}")
    return table.columns.index(name)


def select(table: Table, spec: DataSpec, split: str, names: Mapping[str, str]) -> tuple[Rows, int]:
    """The wanted columns, and how many rows had an empty text.

    Such rows leave train, where they teach nothing, and stay in val and test, where each counts.
    names: our column (text, text_pair, label) -> the table's.
    """
    text = column(table, names["text"], "data.text")
    pair = column(table, names["text_pair"], "data.text_pair") if "text_pair" in names else None
    label = column(table, names["label"], "data.label")
    rows, empty = Rows(table=table), 0
    for index, values in enumerate(table.rows):
        texts = [_as_text(values[text])]
        if pair is not None:
            texts.append(_as_text(values[pair]))
        if not all(content.strip() for content in texts):
            empty += 1
            if split == "train":
                continue
        rows.ids.append(index)
        rows.texts.append(texts[0])
        if pair is not None:
            rows.pairs.append(texts[1])
        rows.raw.append(values[label])
        rows.where.append(index)
    if not rows.ids:
        raise UserError(f"{table.name}: every text in column {names['text']!r} is empty")
    return rows, empty


def _as_text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value if isinstance(value, str) else str(value)


def label_name(value: Any) -> str:
    """A raw label as its name: 1, 1.0 and " 1 " are all "1"; a missing one is ""."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def read_labels(rows: Rows) -> tuple[str, ...]:
    """The set of labels in training data, numbers in numeric order, else in alphabetical order."""
    names = set()
    for value, where in zip(rows.raw, rows.where, strict=True):
        name = label_name(value)
        if not name:
            raise UserError(f"{rows.table.where(where)}: the label is missing")
        names.add(name)
    numbers = {name: _number(name) for name in names}
    numeric = all(number is not None for number in numbers.values())
    if numeric and len(names) > _MOST_NUMERIC_CLASSES and any("." in n or "e" in n.lower() for n in names):
        raise UserError(
            f"{rows.table.name}: the label column holds {len(names)} distinct numbers such as "
            f"{sorted(names)[0]}: "
            "to predict a number, add task.kind=regression; to predict classes, give the label "
            "column as data.label"
        )
    if len(names) > max(_MOST_NUMERIC_CLASSES, len(rows.raw) // 2):
        raise UserError(
            f"{rows.table.name}: {len(names)} distinct labels in {len(rows.raw)} rows: is "
            "data.label the right column? "
            f"One of: {', '.join(rows.table.columns)}"
        )
    if len(names) < 2:
        raise UserError(f"{rows.table.name}: every label is {next(iter(names))!r}: training needs at least two classes")
    if numeric:
        return tuple(sorted(names, key=lambda name: (numbers[name], name)))
    return tuple(sorted(names))


def class_ids(rows: Rows, labels: Sequence[str], *, by_id: bool) -> list[int]:
    """Label ids of labels written by name, or, with by_id, by id too where no name is a number."""
    ids = {name: index for index, name in enumerate(labels)}
    if by_id and all(_number(name) is None for name in labels):
        ids |= {str(index): index for index in range(len(labels))}
    found = []
    for value, where in zip(rows.raw, rows.where, strict=True):
        name = label_name(value)
        if name not in ids:
            shown = f"label {name!r} is not among the labels" if name else "the label is missing"
            raise UserError(f"{rows.table.where(where)}: {shown}{closest(name, labels)}")
        found.append(ids[name])
    return found


def numbers(rows: Rows) -> list[float]:
    """Labels of a regression task; every one must be a finite number."""
    found = []
    for value, where in zip(rows.raw, rows.where, strict=True):
        number = _number(label_name(value))
        if number is None:
            raise UserError(
                f"{rows.table.where(where)}: label {label_name(value)!r} is not a finite number, "
                "which task.kind=regression needs"
            )
        found.append(number)
    return found


def _number(name: str) -> float | None:
    try:
        number = float(name)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
