"""Predict with a finished run, from its folder alone: rows or a test set in, labels and probabilities out."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import datasets

from ..data.given import Rows, given_rows
from ..data.load import load_unlabelled
from ..data.spec import DataSpec
from ..errors import UserError
from ..files import whole
from ..tasks.glue import HEADER, TEST_FILES, GlueFile, official_file, unlike_the_test_set
from ..tasks.heads import Answer
from ..tasks.squad import write_squad_json
from .answers import Answerer
from .finished import Finished, open_run

log = logging.getLogger("attnlab")

CHUNK = 512  # rows that are read, answered and written together

Answers = Iterator[tuple[Rows, list[Answer]]]


def predict(run: Path, input: TextIO | Path, output: TextIO | Path, format: str = "jsonl") -> int:
    """Answer each row of `input`, in its order, and return how many there were.

    `input`: a CSV, TSV, JSONL or Parquet file with the run's text columns, or a stream of JSON lines or of plain
    texts, one a line (an empty line is an empty text). Written are JSON lines: id (the row's own, else its position),
    prediction, and what `Answerer.answers` says of it; or, with format squad, {id: text}. An `output` file appears
    when all of it is written. Raises UserError for a folder that is no run, a missing column, an unreadable row.
    """
    if format == "glue":
        raise UserError("format=glue writes the predictions of a test set: give split=test, and no input=")
    opened = open_run(run)
    return _write(opened, _answered(opened, given_rows(input, opened.data, CHUNK)), output, format)


def predict_split(
    run: Path,
    split: str,
    output: TextIO | Path,
    *,
    format: str = "jsonl",
    task: Mapping[str, Any] | None = None,
    data: Mapping[str, object] | None = None,
) -> int:
    """The same for all rows of a split, labelled or not, of the run's task or of another with the same labels.

    id: the row's position; key: the source's own id, where it has one. format glue: `output` is the benchmark's file.
    """
    opened = open_run(run, task=task, data=data)
    if opened.data.kind == "mlm":
        raise UserError(f"task={opened.data.task} has no rows to predict: give texts with masks, input=FILE")
    if format == "glue":
        assert isinstance(output, Path)
        return write_glue(opened, official_file(opened.data.task, split), output)
    part = load_unlabelled(opened.data, split)
    return _write(opened, _answered(opened, part.iter(batch_size=CHUNK)), output, format)


def glue_test_set(spec: DataSpec, file: GlueFile) -> tuple[datasets.Dataset, list[str]]:
    """The rows of that file's test set, and their indices: the source's own, else their positions.

    GLUE's own file is taken before one that has the labels but no index.
    """
    own = sorted(spec.files.get(file.split, ()), key=lambda name: Path(name).name not in TEST_FILES)
    part = load_unlabelled(replace(spec, files={**spec.files, file.split: tuple(own)}), file.split)
    return part, list(part["key"]) if "key" in part.column_names else [str(i) for i in part["id"]]


def write_glue(run: Finished, file: GlueFile, output: Path) -> int:
    """The benchmark's file for a test set, and a note where that is not the official one."""
    part, keys = glue_test_set(run.data, file)
    unlike = unlike_the_test_set(file, keys)
    if unlike:
        log.info("note: not the official test set: %s; a submission takes no such %s", unlike, file.name)
    count = 0
    with whole(output) as out:
        out.write(HEADER)
        for _, answers in _answered(run, part.iter(batch_size=CHUNK)):
            for answer in answers:
                out.write(file.row(keys[count], answer["prediction"]))
                count += 1
    assert count == len(keys)
    return count


def _answered(run: Finished, chunks: Iterable[Rows]) -> Answers:
    """Each chunk of rows with its answers. Raises UserError where there is none."""
    answerer = Answerer(run)
    count = 0
    for rows in chunks:
        count += len(rows["text"])
        yield rows, answerer.answers(rows)
    if count == 0:
        raise UserError("the input holds no row to predict")
    if answerer.cut:
        what = "questions" if run.data.kind == "span" else "texts"
        log.info("note: %s of %s %s cut at %s tokens", answerer.cut, count, what, run.limit)


def _write(run: Finished, answered: Answers, output: TextIO | Path, format: str) -> int:
    if format == "squad":
        if run.data.kind != "span":
            raise UserError(f"format=squad is for tasks of kind span, not task={run.data.task}: use format=jsonl")
        assert isinstance(output, Path)
        return _write_squad(run, answered, output)
    count = 0
    with whole(output) if isinstance(output, Path) else nullcontext(output) as out:
        for rows, answers in answered:
            for i, answer in enumerate(answers):
                name = {"id": rows["id"][i]} | ({"key": rows["key"][i]} if "key" in rows else {})
                out.write(json.dumps(name | answer, ensure_ascii=False) + "\n")
            count += len(answers)
            out.flush()
    return count


def _write_squad(run: Finished, answered: Answers, output: Path) -> int:
    """{id: text}, and where a question may have no answer {id: null odds} beside it."""
    answers = [
        {"key": key, "prediction": answer["prediction"], "null_odds": answer["null_odds"]}
        for rows, found in answered
        for key, answer in zip(rows.get("key", rows["id"]), found, strict=True)
    ]
    odds = null_odds_beside(output) if run.data.no_answer else None
    try:
        write_squad_json(output, answers, odds)
    except ValueError as error:
        raise UserError(f"{error}: each question needs an id of its own") from error
    return len(answers)


def null_odds_beside(output: Path) -> Path:
    """Where the null odds go that belong to a file of SQuAD's answers."""
    return output.with_name(f"{output.stem}_null_odds.json")
