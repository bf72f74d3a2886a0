"""Files to tables: CSV, TSV, JSON lines, Parquet, each row with the line it came from.

TSV is split on tabs with quoting off (`csv.QUOTE_NONE`), as GLUE needs: there a lone `"` in a
sentence is a character. CSV follows RFC 4180. Text files are UTF-8, with or without a byte order
mark, and may be packed with gzip or bzip2.
"""

import bz2
import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from attnlab.errors import UserError

EXTENSIONS = (".csv", ".tsv", ".txt", ".jsonl", ".json", ".parquet")


@dataclass(frozen=True, kw_only=True)
class Records:
    """A source's rows one after the other: (where, values), one value a column, a missing optional field None.

    where: the number of the line, item or row (`unit`) that a row begins at. Going through `rows` raises UserError,
    with file and line, at what cannot be read.
    """

    name: str
    columns: tuple[str, ...]
    rows: Iterator[tuple[int, Sequence[Any]]]
    unit: str = "line"


@dataclass(frozen=True, kw_only=True)
class Table:
    """rows[i]: one value a column, read at `where(i)`; a missing optional field is None."""

    name: str
    columns: tuple[str, ...]
    rows: list[Sequence[Any]]
    lines: list[int]
    unit: str = "line"

    def where(self, row: int) -> str:
        """`data/SST-2/dev.tsv, line 12`."""
        return f"{self.name}, {self.unit} {self.lines[row]}"


def read_table(path: Path, header: Sequence[str] = ()) -> Table:
    """The whole file as a table. `header`: names for a TSV whose first line is data.

    Raises UserError, with file and line: missing, empty, undecodable or unparsable file, unknown
    extension, wrong number of fields.
    """
    if not path.is_file():
        raise UserError(f"no file {path} (relative paths start at the current directory, {Path.cwd()})")
    packed = path.suffix if path.suffix in (".gz", ".bz2") else ""
    extension = Path(path.name.removesuffix(packed)).suffix.lower()
    if extension not in EXTENSIONS:
        raise UserError(
            f"{path}: cannot tell the format from the extension {extension or '(none)'!r}: "
            f"rename or convert the file to one of {', '.join(EXTENSIONS)}"
        )
    if extension == ".parquet":
        return _parquet(path)
    text = _decode(path, packed)
    if not text.strip():
        raise UserError(f"{path} is empty: it needs at least one row of data")
    if extension == ".csv":
        table = _delimited(path, _csv_records(path, text), ())
    elif extension in (".tsv", ".txt"):
        table = _delimited(path, _tsv_records(text), header)
    else:
        table = _json(path, text)
    if not table.rows:
        raise UserError(f"{path} has a header line but no rows: it needs at least one row of data")
    return table


def _decode(path: Path, packed: str) -> str:
    raw = path.read_bytes()
    try:
        if packed:
            raw = gzip.decompress(raw) if packed == ".gz" else bz2.decompress(raw)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(f"{path} cannot be unpacked ({error}): is the file complete?") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}, line {line}: not UTF-8 (byte 0x{raw[error.start]:02x} at offset "
            f"{error.start}): convert it, "
            f"for example with `iconv -f WINDOWS-1252 -t UTF-8 {path.name}`"
        ) from error


_Lines = Iterator[tuple[int, list[str]]]


def _tsv_records(text: str) -> _Lines:
    # only "\n" ends a line: str.splitlines would also cut at U+0085 and other marks inside
    # sentences
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        if line:
            yield number, line.split("\t")


def _csv_records(path: Path, text: str) -> _Lines:
    limit = csv.field_size_limit(2**30)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    start = 1
    try:
        for fields in reader:
            if fields:
                yield start, fields
            start = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}, line {start}: not valid CSV ({error}): a quotation mark inside a quoted field is written twice"
        ) from error
    finally:
        csv.field_size_limit(limit)


def _delimited(path: Path, records: _Lines, header: Sequence[str]) -> Table:
    number, first = next(records)
    required = [name for name in header if not name.endswith("?")]
    known = tuple(name.removesuffix("?") for name in header)
    rows: list[Sequence[Any]] = []
    lines: list[int] = []
    if header and not set(known) & {field.strip() for field in first}:
        columns, least = known, len(required)
        records = _chain(number, first, records)
    else:
        columns, least = tuple(field.strip() for field in first), len(first)
        repeated = {name for name in columns if columns.count(name) > 1}
        if repeated:
            raise UserError(f"{path}, line {number}: column {sorted(repeated)[0]!r} is there twice")
    most = len(columns)
    for number, fields in records:
        if not least <= len(fields) <= most:
            expected = str(most) if least == most else f"{least} to {most}"
            found = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
            raise UserError(f"{path}, line {number}: {found} where {expected} are expected ({', '.join(columns)})")
        rows.append(fields if len(fields) == most else [*fields, *[None] * (most - len(fields))])
        lines.append(number)
    return Table(name=str(path), columns=columns, rows=rows, lines=lines)


def _chain(number: int, first: list[str], rest: _Lines) -> _Lines:
    yield number, first
    yield from rest


def _json(path: Path, text: str) -> Table:
    records: list[tuple[int, Any]] = []
    if text.lstrip().startswith("["):
        try:
            records = list(enumerate(json.loads(text), start=1))
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from error
        unit = "item"
    else:
        unit = "line"
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            try:
                records.append((number, json.loads(line)))
            except json.JSONDecodeError as error:
                raise UserError(
                    f"{path}, line {number}: not valid JSON ({error.msg} at column {error.colno}): "
                    "each line must be one JSON object"
                ) from error
    columns: dict[str, None] = {}
    for number, record in records:
        if not isinstance(record, dict):
            raise UserError(
                f"{path}, {unit} {number}: a {type(record).__name__}, not a JSON object: "
                'write {"text": ..., "label": ...}'
            )
        columns.update(dict.fromkeys(record))
    rows: list[Sequence[Any]] = [[record.get(name) for name in columns] for _, record in records]
    return Table(name=str(path), columns=tuple(columns), rows=rows, lines=[n for n, _ in records], unit=unit)


def _parquet(path: Path) -> Table:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a readable Parquet file: {error}") from error
    if not table.num_rows:
        raise UserError(f"{path} is empty: it needs at least one row of data")
    columns = [column.to_pylist() for column in table.columns]
    return Table(
        name=str(path),
        columns=tuple(table.column_names),
        rows=list(zip(*columns, strict=True)),
        lines=list(range(1, table.num_rows + 1)),
        unit="row",
    )
