"""Rows that a user hands to a trained model, out of a file or line by line out of a stream."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from attnlab.data.files import ending, open_records
from attnlab.data.rows import as_text
from attnlab.data.spec import DataSpec, Layout
from attnlab.data.targets import truth
from attnlab.errors import UserError, closest

# columns id, where, text, [text_pair], [choices]
Rows = dict[str, list[Any]]


def given_rows(source: Path | TextIO, spec: DataSpec, size: int) -> Iterator[Rows]:
    """`size` rows at a time, as columns. id: the row's own, else its position; where: what an error calls it.

    A file may be whatever `data.files` reads, for kind span also SQuAD's JSON; a stream holds a JSON object a line or,
    where one text is all that is asked for, plain text. Columns are called as in the run's data, or text, text_pair,
    choices. Raises UserError, with file and line, for a row that cannot be read.
    """
    rows = _alike(_file_rows(source, spec) if isinstance(source, Path) else _stream_rows(source, spec))
    while chunk := list(islice(rows, size)):
        yield {name: [row[name] for row in chunk] for name in chunk[0]}


def _alike(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows with their ids. Raises UserError for one with another number of choices than the first."""
    endings = 0
    for position, row in enumerate(rows):
        count = len(row.get("choices", ()))
        endings = endings or count
        if count != endings:
            raise UserError(f"{row['where']}: {count} choices, where the first row has {endings}")
        yield row | {"id": position} if row["id"] is None else row


def _file_rows(path: Path, spec: DataSpec) -> Iterator[dict[str, Any]]:
    squad = spec.kind == "span" and ending(path) == ".json"
    table = open_records(path, Layout(format="squad") if squad else None)
    names = _present(table.columns, spec, table.name)
    for number, values in table.rows:
        where = f"{table.name}, {table.unit} {number}"
        yield _row(dict(zip(table.columns, values, strict=True)), names, where)


def _stream_rows(stream: TextIO, spec: DataSpec) -> Iterator[dict[str, Any]]:
    wanted = _wanted(spec)
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
        yield _row(row, _present(tuple(row), spec, where), where)


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


def _row(row: Mapping[str, Any], names: Mapping[str, tuple[str, ...]], where: str) -> dict[str, Any]:
    read: dict[str, Any] = {"id": row.get("id"), "where": where}
    for ours, theirs in names.items():
        read[ours] = as_text(row[theirs[0]]) if ours != "choices" else _choices([row[name] for name in theirs], where)
    return read


def _choices(given: list[Any], where: str) -> list[str]:
    listed = truth(given[0]) if len(given) == 1 else given
    if not isinstance(listed, list | tuple) or len(listed) < 2:
        raise UserError(f"{where}: the choices are no list of at least two: {str(listed)[:60]!r}")
    return [as_text(one) for one in listed]
