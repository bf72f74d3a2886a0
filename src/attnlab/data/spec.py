"""What to read and how to batch it, out of the config groups `task` and `data`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from attnlab.errors import UserError, closest

Kind = Literal["classification", "regression", "multilabel", "multiple_choice", "span", "mlm"]
SPLITS = ("train", "val", "test")
SOURCES = ("auto", "local", "hub")


def check_kind(kind: object) -> Kind:
    """The kind of a task as typed, or a UserError that names those there are."""
    if kind not in get_args(Kind):
        raise UserError(f"unknown task.kind {str(kind)!r}{closest(str(kind), get_args(Kind))}")
    return cast(Kind, kind)


@dataclass(frozen=True, kw_only=True)
class HubSpec:
    """A dataset on the Hugging Face Hub.

    splits: our name -> theirs, which may say `config:split` or `path:config:split` where it is not in this dataset, and
    `path@revision` where it is not on the main branch.
    columns: ours -> theirs, where they differ from the files'.
    """

    path: str
    name: str | None
    splits: Mapping[str, str]
    columns: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How files are read whose path below the dataset's folder fits the pattern `match`.

    format: auto (by the extension) or a name in `data.formats`. header: names for a file without a header line; a name
    that ends in `?` may be missing at a row's end. columns: ours -> theirs, where they differ from the task's. skip:
    labels whose rows are left out (SNLI's "-": no consensus). divide: the column by which a file that serves several
    splits is divided among them, as `data.split.film_split` does: no two splits share a value. A match `hub:*` is for
    the Hub's rows, of which it can only skip some; there a hidden label, -1, is "".
    """

    match: str = "*"
    format: str = "auto"
    header: tuple[str, ...] = ()
    columns: Mapping[str, str | None] = field(default_factory=dict)
    skip: tuple[str, ...] = ()
    divide: str | None = None


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """One task's data.

    files: the task's own, relative to root/dataset; the first that exists counts. Splits beside train, val and test
    are further evaluation sets. given: the user's own files, as typed; for kind mlm each may be a pattern
    (texts/*.txt).

    layouts: the first that fits a file says how it is read; else by its extension, with `header`. text, text_pair,
    label: columns; group: the column of what is ranked together (a question); choices: the columns of the endings, or
    one that holds a list; key: the source's own id of a row.

    For kind span. stride: tokens that neighbouring windows share, None: a third of max_length. no_answer: a question
    may have none.

    labels in id order, or None: read from the training data. aliases: other spellings of a label -> its name. rows:
    official counts of a split, any of which is right. strict: what is else dropped and reported is an error. only: the
    one split to read, for a trained model; None: all.

    For kind mlm. mask_probability: share of the tokens to predict; whole_word: mask all tokens of a
    word or none; unknown: what the corpus writes for words that were taken out of it.
    """

    task: str
    kind: Kind
    dataset: str | None = None
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    given: Mapping[str, Path] = field(default_factory=dict)
    header: tuple[str, ...] = ()
    layouts: tuple[Layout, ...] = ()
    wheel: str | None = None
    hub: HubSpec | None = None
    text: str = "text"
    text_pair: str | None = None
    label: str | tuple[str, ...] = "label"
    group: str | None = None
    key: str | None = None
    choices: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    strict: bool = False
    only: str | None = None
    root: Path = Path("data")
    source: str = "auto"
    limit: int | None = None
    batch_size: int = 32
    max_length: int = 128
    workers: int = 0
    mask_probability: float = 0.15
    whole_word: bool = True
    unknown: str | None = None
    stride: int | None = None
    no_answer: bool = False

    @classmethod
    def from_config(cls, task: Mapping[str, Any], data: Mapping[str, Any]) -> "DataSpec":
        """`data` wins over `task` wherever it is not null."""
        columns = task.get("columns") or {}
        own = task.get("files") or {}
        labels = task.get("labels")
        source = str(data.get("source") or "auto")
        if source not in SOURCES:
            raise UserError(f"unknown data.source {source!r}{closest(source, SOURCES)}")
        pair = data.get("text_pair") or columns.get("text_pair")
        return cls(
            task=str(task.get("name", "custom")),
            kind=check_kind(task.get("kind")),
            dataset=_text(task.get("dataset")),
            files={split: _alternatives(own[split]) for split in (*SPLITS, *own) if own.get(split)},
            given={split: _file(data[split], split) for split in SPLITS if data.get(split)},
            header=tuple(str(name) for name in task.get("header") or ()),
            layouts=tuple(_layout(one) for one in task.get("layouts") or ()),
            wheel=_text(task.get("wheel")),
            hub=_hub(task.get("hub")),
            text=str(data.get("text") or columns.get("text") or "text"),
            text_pair=_text(pair),
            label=_label(data.get("label") or columns.get("label") or "label"),
            group=_text(data.get("group") or columns.get("group")),
            key=_text(columns.get("key")),
            choices=_alternatives(data.get("choices") or columns.get("choices") or ()),
            labels=tuple(str(name) for name in labels) if labels else None,
            aliases={str(k): str(v) for k, v in (task.get("aliases") or {}).items()},
            rows={str(k): tuple([v] if isinstance(v, int) else v) for k, v in (task.get("rows") or {}).items()},
            strict=bool(data.get("strict")),
            root=Path(str(data.get("root") or "data")).expanduser(),
            source=source,
            limit=_whole(data, "limit", None),
            batch_size=_whole(data, "batch_size", 32) or 32,
            max_length=_whole(data, "max_length", 128) or 128,
            workers=_whole(data, "workers", 0, least=0) or 0,
            mask_probability=float(task.get("mask_probability", 0.15)),
            whole_word=bool(task.get("whole_word", True)),
            unknown=_text(task.get("unknown")),
            stride=_whole(task, "stride", None, least=0, group="task"),
            no_answer=bool(task.get("no_answer")),
        )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _file(value: object, split: str) -> Path:
    if not isinstance(value, str | Path):
        raise UserError(
            f"data.{split}={value} must be one file; with task=mlm a pattern names several: data.{split}='texts/*.txt'"
        )
    return Path(value).expanduser()


def _alternatives(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _label(value: object) -> str | tuple[str, ...]:
    """One column, or for many labels one of 0 and 1 for each."""
    return str(value) if isinstance(value, str) or not isinstance(value, Sequence) else tuple(map(str, value))


def _layout(value: Mapping[str, Any]) -> Layout:
    return Layout(
        match=str(value.get("match", "*")),
        format=str(value.get("format", "auto")),
        header=tuple(str(name) for name in value.get("header") or ()),
        columns={str(k): _text(v) for k, v in (value.get("columns") or {}).items()},
        skip=tuple(str(label) for label in value.get("skip") or ()),
        divide=_text(value.get("divide")),
    )


def _whole(given: Mapping[str, Any], key: str, default: int | None, least: int = 1, group: str = "data") -> int | None:
    value = given.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{group}.{key}={value} must be a whole number of at least {least}")
    return value


def _hub(value: Mapping[str, Any] | None) -> HubSpec | None:
    if not value or not value.get("path"):
        return None
    splits = value.get("splits") or {"train": "train", "val": "validation", "test": "test"}
    return HubSpec(
        path=str(value["path"]),
        name=_text(value.get("name")),
        splits={str(ours): str(theirs) for ours, theirs in splits.items() if theirs},
        columns={str(k): str(v) for k, v in (value.get("columns") or {}).items() if v},
    )
