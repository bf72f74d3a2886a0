"""Files to records, one after the other: CSV, TSV, JSON lines, Parquet, each row with the line it came from.

TSV is split on tabs with quoting off (`csv.QUOTE_NONE`), as GLUE needs: there a lone `"` in a sentence is a
character. CSV follows RFC 4180. Text files are UTF-8, with or without a byte order mark, and may be packed with gzip
or bzip2. No file is ever whole in memory, but for a JSON array or object, which has no rows until its end is read.
"""

import bz2
import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TextIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from attnlab.data.spec import Layout
from attnlab.errors import UserError, closest

EXTENSIONS = (".csv", ".tsv", ".txt", ".jsonl", ".json", ".parquet")
# JSON lines name their columns anew each time: those of so many objects at the beginning count
_LOOK_AHEAD = 1000
_LONGEST_FIELD = 2**30


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


def open_records(path: Path, layout: Layout | None = None) -> Records:
    """The rows of a file, read as they are asked for; with a layout's format of its own also of a folder.

    Raises UserError, with file and line: missing, empty, undecodable or unparsable file, unknown extension or format,
    wrong number of fields.
    """
    from attnlab.data.formats import FORMATS  # which are written with what stands here

    layout = layout or Layout()
    if layout.format != "auto":
        if layout.format not in FORMATS:
            raise UserError(f"unknown format {layout.format!r} in task.layouts{closest(layout.format, FORMATS)}")
        if not path.exists():
            raise _missing(path)
        return FORMATS[layout.format](path, layout)
    if not path.is_file():
        raise _missing(path)
    extension = ending(path)
    if extension not in EXTENSIONS:
        raise UserError(
            f"{path}: cannot tell the format from the extension {extension or '(none)'!r}: "
            f"rename or convert the file to one of {', '.join(EXTENSIONS)}"
        )
    if extension == ".parquet":
        return _parquet(path)
    if extension == ".csv":
        return _delimited(path, _csv_records(path), ())
    if extension in (".tsv", ".txt"):
        return _delimited(path, _tsv_records(path), layout.header)
    return _json(path)


def _missing(path: Path) -> UserError:
    if path.is_dir():
        return UserError(f"{path} is a folder: name a file in it, one of {', '.join(EXTENSIONS)}")
    return UserError(f"no file {path} (relative paths start at the current directory, {Path.cwd()})")


def _empty(path: Path) -> UserError:
    return UserError(f"{path} is empty: it needs at least one row of data")


def ending(path: Path) -> str:
    """The extension without what a packer added."""
    return Path(path.name.removesuffix(".gz").removesuffix(".bz2")).suffix.lower()


def open_bytes(path: Path) -> IO[bytes]:
    """The content of a file, unpacked."""
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path))
    return bz2.open(path) if path.suffix == ".bz2" else path.open("rb")


@contextmanager
def open_text(path: Path, newline: str = "\n") -> Iterator[TextIO]:
    """The text of a file, unpacked, without its byte order mark; UserError, with the line, for what is no text."""
    try:
        with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline=newline) as stream:
            yield stream
    except UnicodeDecodeError as error:
        raise UserError(_undecodable(path)) from error
    except (OSError, EOFError, zlib.error) as error:
        done = "unpacked" if path.suffix in (".gz", ".bz2") else "read"
        raise UserError(f"{path} cannot be {done} ({error}): is the file complete?") from error


def _undecodable(path: Path) -> str:
    """The stream that met the bad byte does not know its line."""
    offset = 0
    with open_bytes(path) as stream:
        for number, line in enumerate(stream, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                place = f"byte 0x{line[error.start]:02x} at offset {offset + error.start}"
                remedy = f"`iconv -f WINDOWS-1252 -t UTF-8 {path.name}`"
                return f"{path}, line {number}: not UTF-8 ({place}): convert it, for example with {remedy}"
            offset += len(line)
    return f"{path}: not UTF-8: its last character is cut off"


_Lines = Iterator[tuple[int, list[str]]]


def _tsv_records(path: Path) -> _Lines:
    # only "\n" ends a line: str.splitlines would also cut at U+0085 and other marks inside
    # sentences
    with open_text(path) as stream:
        for number, line in enumerate(stream, start=1):
            line = line.removesuffix("\n").removesuffix("\r")
            if line:
                yield number, line.split("\t")


def _csv_records(path: Path) -> _Lines:
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    start = 1
    with open_text(path, newline="") as stream:
        reader = csv.reader(stream, strict=True)
        try:
            for fields in reader:
                if fields:
                    yield start, fields
                start = reader.line_num + 1
        except csv.Error as error:
            raise UserError(
                f"{path}, line {start}: not valid CSV ({error}): a quotation mark inside a quoted field is written "
                "twice"
            ) from error


def _delimited(path: Path, records: _Lines, header: Sequence[str]) -> Records:
    number, first = next(((n, fields) for n, fields in records if any(map(str.strip, fields))), (0, []))
    if not first:
        raise _empty(path)
    required = [name for name in header if not name.endswith("?")]
    known = tuple(name.removesuffix("?") for name in header)
    if header and not set(known) & {field.strip() for field in first}:
        columns, least = known, len(required)
        records = chain([(number, first)], records)
    else:
        columns, least = tuple(field.strip() for field in first), len(first)
        repeated = {name for name in columns if columns.count(name) > 1}
        if repeated:
            raise UserError(f"{path}, line {number}: column {sorted(repeated)[0]!r} is there twice")
    rows = _whole_rows(path, records, columns, least)
    if (start := next(rows, None)) is None:
        raise UserError(f"{path} has a header line but no rows: it needs at least one row of data")
    return Records(name=str(path), columns=columns, rows=chain([start], rows))


def _whole_rows(path: Path, records: _Lines, columns: Sequence[str], least: int) -> Iterator[tuple[int, Sequence[Any]]]:
    most = len(columns)
    for number, fields in records:
        if len(fields) == most:
            yield number, fields
        elif least <= len(fields) < most:
            yield number, [*fields, *[None] * (most - len(fields))]
        else:
            expected = str(most) if least == most else f"{least} to {most}"
            found = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
            raise UserError(f"{path}, line {number}: {found} where {expected} are expected ({', '.join(columns)})")


def _json(path: Path) -> Records:
    with open_text(path) as stream:
        first = next((line for line in stream if line.strip()), None)
    if first is None:
        raise _empty(path)
    if first.lstrip().startswith("[") or (ending(path) == ".json" and not _is_row(first)):
        return _json_whole(path)
    return _objects(path, _json_lines(path), "line")


def _is_row(line: str) -> bool:
    """Whether a .json file that begins so holds one object a line, not all of them in one."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return False
    return not (isinstance(value, dict) and isinstance(value.get("data"), list))


def json_items(path: Path) -> list[Any] | None:
    """The list that a JSON file is, or has as `data`; None where there is none. Raises UserError for no JSON."""
    with open_text(path) as stream:
        try:
            value = json.load(stream)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{path}, line {error.lineno}: not valid JSON ({error.msg}): is the file complete?"
            ) from error
    items = value.get("data") if isinstance(value, dict) else value
    return items if isinstance(items, list) else None


def _json_whole(path: Path) -> Records:
    items = json_items(path)
    if items is None:
        raise UserError(f"{path}: a JSON object without a list of rows in `data`: write one object a line, or a list")
    if not items:
        raise _empty(path)
    return _objects(path, iter(enumerate(items, start=1)), "item")


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    with open_text(path) as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(
                    f"{path}, line {number}: not valid JSON ({error.msg} at column {error.colno}): "
                    "each line must be one JSON object"
                ) from error


def _objects(path: Path, records: Iterator[tuple[int, Any]], unit: str) -> Records:
    def checked() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, record in records:
            if not isinstance(record, dict):
                raise UserError(
                    f"{path}, {unit} {number}: a {type(record).__name__}, not a JSON object: "
                    'write {"text": ..., "label": ...}'
                )
            yield number, record

    rows = checked()
    start = list(islice(rows, _LOOK_AHEAD))
    columns = tuple(dict.fromkeys(name for _, record in start for name in record))
    values = ((number, [record.get(name) for name in columns]) for number, record in chain(start, rows))
    return Records(name=str(path), columns=columns, rows=values, unit=unit)


def _parquet(path: Path) -> Records:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a readable Parquet file: {error}") from error
    if not file.metadata.num_rows:
        raise _empty(path)

    def rows() -> Iterator[tuple[int, Sequence[Any]]]:
        number = 0
        with file:
            try:
                for batch in file.iter_batches(batch_size=1000):
                    for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                        number += 1
                        yield number, values
            except (pa.ArrowException, OSError) as error:
                raise UserError(f"{path}, row {number + 1}: not a readable Parquet file: {error}") from error

    return Records(name=str(path), columns=tuple(file.schema_arrow.names), rows=rows(), unit="row")
