"""What is to be predicted, by kind of task: raw values of the label column to what is stored, read row by row.

A target never stops at a value that cannot be: it keeps the first one's line and words in `bad`, for whoever knows
whether labels may be hidden here. `hidden` counts the labels that are missing or -1, as benchmarks write them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import datasets

from attnlab.data.spec import DataSpec

Place = tuple[int, str]  # a line, and what is wrong there


def label_name(value: Any) -> str:
    """A raw label as its name: 1, 1.0 and " 1 " are all "1"; a missing one is ""."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def number(name: str) -> float | None:
    """The finite number that is written there, if there is one."""
    try:
        value = float(name)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def truth(value: Any) -> Any:
    """A value that came as text out of a CSV, where it is JSON; else itself."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            return value
    return value


@dataclass(kw_only=True)
class Target(Protocol):
    """feature: of the stored column. names: label -> (count, first line), where labels have names."""

    feature: Any
    names: dict[str, list[int]]
    hidden: int
    bad: Place | None
    misplaced: list[int]

    def take(self, value: Any, line: int, texts: Sequence[str]) -> Any:
        """What is stored for a row's label. texts: the row's texts; None: nothing is left to predict."""


@dataclass(kw_only=True)
class _Target:
    feature: Any
    names: dict[str, list[int]] = field(default_factory=dict)
    hidden: int = 0
    bad: Place | None = None
    misplaced: list[int] = field(default_factory=lambda: [0, 0])

    def refuse(self, line: int, words: str) -> None:
        self.bad = self.bad or (line, words)


@dataclass(kw_only=True)
class Names(_Target):
    """Labels by name, stored as numbers in the order in which they were met."""

    aliases: Mapping[str, str]
    feature: Any = field(default_factory=lambda: datasets.Value("int32"))
    codes: dict[str, int] = field(default_factory=dict)

    def code(self, value: Any, line: int) -> int:
        name = label_name(value)
        name = self.aliases.get(name, name)
        seen = self.names.get(name)
        if seen is None:
            self.codes[name] = len(self.codes)
            self.names[name] = [1, line]
        else:
            seen[0] += 1
        return self.codes[name]

    def take(self, value: Any, line: int, texts: Sequence[str]) -> int:
        code = self.code(value, line)
        self.hidden += label_name(value) in ("", "-1")
        return code


@dataclass(kw_only=True)
class NameSets(Names):
    """Sets of labels: a JSON list, or names with | or , between them. An empty text is the empty set."""

    feature: Any = field(default_factory=lambda: datasets.List(datasets.Value("int32")))

    def take(self, value: Any, line: int, texts: Sequence[str]) -> list[int]:  # type: ignore[override]
        value = truth(value)
        if value is None or value == -1 or (isinstance(value, float) and math.isnan(value)):
            self.hidden += 1
            self.refuse(line, "the label is missing")
            return []
        if isinstance(value, str):
            value = value.split("|" if "|" in value else ",")
        elif not isinstance(value, list | tuple):
            value = [value]
        return sorted({self.code(one, line) for one in value if label_name(one)})


@dataclass(kw_only=True)
class Flags(NameSets):
    """One column of 0 and 1 for each label."""

    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        self.codes = {name: code for code, name in enumerate(self.columns)}
        self.names = {name: [0, 0] for name in self.columns}

    def take(self, value: Any, line: int, texts: Sequence[str]) -> list[int]:  # type: ignore[override]
        given = [label_name(flag) for flag in value]
        if all(flag in ("", "-1") for flag in given):
            self.hidden += 1
            self.refuse(line, "the labels are missing")
        flags = []
        for column, flag in zip(self.columns, given, strict=True):
            if flag.lower() in ("1", "true"):
                flags.append(self.code(column, line))
            elif flag.lower() not in ("0", "false"):
                self.refuse(line, f"{flag!r} in column {column!r}, where 0 or 1 says whether the label applies")
        return flags


@dataclass(kw_only=True)
class Number(_Target):
    """A quantity."""

    feature: Any = field(default_factory=lambda: datasets.Value("float32"))

    def take(self, value: Any, line: int, texts: Sequence[str]) -> float:
        name = label_name(value)
        self.hidden += name in ("", "-1")
        found = number(name)
        if found is None:
            self.refuse(line, f"label {name!r} is not a finite number, which task.kind=regression needs")
        return math.nan if found is None else found


@dataclass(kw_only=True)
class Ending(_Target):
    """Which of a row's endings is right: its number, from 0, or its text."""

    feature: Any = field(default_factory=lambda: datasets.Value("int64"))

    def take(self, value: Any, line: int, texts: Sequence[str]) -> int:
        name = label_name(value)
        if name in ("", "-1"):
            self.hidden += 1
            self.refuse(line, "the label is missing")
        elif name.isdecimal() and 1 < len(texts) > int(name):
            return int(name)
        elif len(texts) < 2:
            self.refuse(line, "there are no endings to choose from: name their columns, data.choices=[end1,end2]")
        elif name in (endings := [text.strip() for text in texts]):
            return endings.index(name)
        else:
            self.refuse(line, f"label {name!r} is none of the {len(texts)} endings: give 0 to {len(texts) - 1}")
        return -1


@dataclass(kw_only=True)
class Answers(_Target):
    """Where in the context the answers stand: SQuAD's {text, answer_start}, or an answer as text, its first place.

    An answer that does not stand where it says is dropped and counted as misplaced. Where none is left, training has
    nothing to learn (None); elsewhere the answers stay, each at its first place (-1: nowhere), since they are scored
    by what they say.
    """

    training: bool
    feature: Any = field(
        default_factory=lambda: datasets.Features(
            {"text": datasets.List(datasets.Value("string")), "start": datasets.List(datasets.Value("int64"))}
        )
    )

    def take(self, value: Any, line: int, texts: Sequence[str]) -> dict[str, list[Any]] | None:
        context = texts[-1]
        given = self._given(truth(value), line, context)
        right = [(text, start) for text, start in given if context[start : start + len(text)] == text and start >= 0]
        if len(right) < len(given):
            self.misplaced = [self.misplaced[0] + len(given) - len(right), self.misplaced[1] or line]
            if not right:
                if self.training:
                    return None
                right = [(text, context.find(text)) for text, _ in given]
        return {"text": [text for text, _ in right], "start": [start for _, start in right]}

    def _given(self, value: Any, line: int, context: str) -> list[tuple[str, int]]:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            self.hidden += 1
            self.refuse(line, "the answers are missing")
            return []
        if isinstance(value, dict) and isinstance(value.get("text"), list):
            texts = value["text"]
            starts = value.get("answer_start", value.get("start")) or [None] * len(texts)  # none: the first place
            if not isinstance(starts, list) or len(starts) != len(texts):
                self.refuse(line, f"{len(texts)} answers and other than as many offsets: {json.dumps(value)[:60]}")
                return []
            value = [{"text": text, "answer_start": at} for text, at in zip(texts, starts, strict=True)]
        found = []
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict) and isinstance(one.get("text"), str):
                at = one.get("answer_start", one.get("start"))
                if at is not None and not (isinstance(at, int) or (isinstance(at, str) and at.isdecimal())):
                    self.refuse(line, f"the offset {at!r} of an answer is no whole number")
                    continue
                text, start = one["text"], context.find(one["text"]) if at is None else int(at)
            elif isinstance(one, dict):
                self.refuse(line, f"an answer without a text: {json.dumps(one)[:60]}")
                continue
            else:
                text = str(one).strip()
                start = context.find(text)
            if text:
                found.append((text, start))
        return found


def target_of(spec: DataSpec, *, training: bool) -> Target:
    """How the labels of this kind of task are read."""
    if spec.kind == "regression":
        return Number()
    if spec.kind == "multiple_choice":
        return Ending()
    if spec.kind == "span":
        return Answers(training=training)
    if spec.kind == "multilabel":
        if isinstance(spec.label, tuple):
            return Flags(aliases={}, columns=spec.label)
        return NameSets(aliases=spec.aliases)
    return Names(aliases=spec.aliases)
