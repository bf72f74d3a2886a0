"""Rows that a user hands to a trained model, out of a file or line by line out of a stream."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from attnlab.data.files import ending, open_records
from attnlab.data.rows import Choices, as_text
from attnlab.data.spec import DataSpec, Layout
from attnlab.errors import UserError, closest

# columns id, where, text, [text_pair], [choices]
Rows = dict[str, list[Any]]


def given_rows(source: Path | TextIO, spec: DataSpec, size: int) -> Iterator[Rows]:
    """`size` rows at a time, as columns. id: the row's own, else its position; where: what an error calls it.

    A file may be whatever `data.files` reads, for kind span also SQuAD's JSON; a stream holds a JSON object a line or,
    where one text is all that is asked for, plain text. Columns are called as in the run's data, or text, text_pair,
    choices. Raises UserError, with file and line, for a row that cannot be read.
    """
    rows = _numbered(_file_rows(source, spec) if isinstance(source, Path) else _stream_rows(source, spec))
    while chunk := list(islice(rows, size)):
        yield {name: [row[name] for row in chunk] for name in chunk[0]}


def _numbered(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows, those without an id with their position for one."""
    for position, row in enumerate(rows):
        yield row | {"id": position} if row["id"] is None else row


def _file_rows(path: Path, spec: DataSpec) -> Iterator[dict[str, Any]]:
    squad = spec.kind == "span" and ending(path) == ".json"
    table = open_records(path, Layout(format="squad") if squad else None)
    names, choices = _present(table.columns, spec, table.name), Choices()
    for number, values in table.rows:
        where = f"{table.name}, {table.unit} {number}"
        yield _row(dict(zip(table.columns, values, strict=True)), names, where, choices)


def _stream_rows(stream: TextIO, spec: DataSpec) -> Iterator[dict[str, Any]]:
    wanted, choices = _wanted(spec), Choices()
    for number, line in enumerate(stream, start=1):
        where = f"line {number} of the input"
        if not line.strip() and len(wanted) > 1:
            continue
        if not line.lstrip().startswith("{"):
            if len(wanted) > 1:
                example = ", ".join(f'"{name}": ...' for names in wanted.values() for name in names[0])
                raise UserError(f"line {number} is no JSON object; give {{{example}}} on each line")
            yield {"id": None, "where": where, "text": line.rstrip("\n")}
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where} is no JSON ({error})") from error
        yield _row(row, _present(tuple(row), spec, where), where, choices)


def _wanted(spec: DataSpec) -> dict[str, list[tuple[str, ...]]]:
    """Ours -> the columns that it may be called, the run's own names first."""
    named = {"text": spec.text, "text_pair": spec.text_pair, "choices": spec.choices or None}
    wanted: dict[str, list[tuple[str, ...]]] = {}
    for ours, theirs in named.items():
        if theirs is not None:
            files = (layout.columns.get(ours) for layout in spec.layouts)
            wanted[ours] = [(name,) if isinstance(name, str) else name for name in (theirs, *files, ours) if name]
    return wanted


def _present(there: Sequence[str], spec: DataSpec, where: str) -> dict[str, tuple[str, ...]]:
    """Ours -> the input's columns."""
    present = {}
    for ours, alternatives in _wanted(spec).items():
        found = next((names for names in alternatives if set(names) <= set(there)), None)
        if found is None:
            missing = next(name for name in alternatives[0] if name not in there)
            raise UserError(f"{where} has no {missing!r}{closest(missing, there)}")
        present[ours] = found
    return present


def _row(row: Mapping[str, Any], names: Mapping[str, tuple[str, ...]], where: str, choices: Choices) -> dict[str, Any]:
    read: dict[str, Any] = {"id": row.get("id"), "where": where}
    for ours, theirs in names.items():
        given = [row[name] for name in theirs]
        read[ours] = choices.read(given, where) if ours == "choices" else as_text(given[0])
    return read
