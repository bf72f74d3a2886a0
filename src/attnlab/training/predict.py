"""Predict with a finished run, from its folder alone: texts in, labels and probabilities out, or masks filled."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..attention import load
from ..data.files import open_records
from ..data.spec import DataSpec
from ..errors import UserError, closest
from ..tasks.heads import Classification, build_head
from ..tasks.spec import TaskSpec
from ..transforms.kernel import set_kernel
from .models import label_names, load_tokenizer, longest_input
from .run_folder import read_config

log = logging.getLogger("attnlab")

BATCH = 64
LIKELIEST = 5  # tokens shown for a mask
Row = dict[str, Any]


def predict(run: Path, input: TextIO | Path, output: TextIO | Path) -> int:
    """Write one JSON line a row of `input`, in its order, and return how many.

    `input`: a CSV, TSV, JSONL or Parquet file with the run's text columns, or a stream of JSON lines or of plain
    texts, one a line (an empty line is an empty text). Each output line: id (the row's own, else its position),
    prediction, and for a classifier probabilities by label; for a masked language model the text with its masks
    filled, and for each mask the likeliest tokens. An `output` file appears when all of it is written.
    Raises UserError for a folder that is no run, a missing column, an unreadable row.
    """
    settings = read_config(run)
    spec = DataSpec.from_config(settings["task"], settings["data"])
    columns = [spec.text, *([spec.text_pair] if spec.text_pair else [])]
    set_kernel(settings["attn"]["kernel"])
    model = load(run)
    labels = label_names(model) if spec.kind in ("classification", "multilabel") else ()
    head = build_head(TaskSpec.from_config(settings["task"], labels))
    tokenizer = load_tokenizer(str(run / "model"))
    limit = min(spec.max_length, tokenizer.model_max_length, longest_input(model.config))
    rows = _file_rows(input, columns) if isinstance(input, Path) else _stream_rows(input, columns)
    count = cut = 0
    with _whole(output) as out:
        for batch in _batches(rows):
            answers, longer = _answers(model, tokenizer, batch, columns, limit, head)
            cut += longer
            for row, answer in zip(batch, answers, strict=True):
                out.write(json.dumps({"id": row.get("id", count)} | answer, ensure_ascii=False) + "\n")
                count += 1
            out.flush()
        if count == 0:
            raise UserError("the input holds no row to predict")
    if cut:
        log.info("note: %s of %s texts cut at %s tokens", cut, count, limit)
    return count


@contextmanager
def _whole(output: TextIO | Path) -> Iterator[TextIO]:
    """The stream itself, or a draft that takes the file's place only when all of it is written."""
    if not isinstance(output, Path):
        yield output
        return
    draft = output.with_name(f".{output.name}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as stream:
            yield stream
        draft.replace(output)
    finally:
        draft.unlink(missing_ok=True)


def _answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batch: list[Row],
    columns: list[str],
    limit: int,
    head: Classification,
) -> tuple[list[Row], int]:
    """Answers in order, and how many texts were longer than `limit` tokens."""
    texts = [["" if row[column] is None else str(row[column]) for row in batch] for column in columns]
    lengths = [len(ids) for ids in tokenizer(*texts)["input_ids"]]
    encoded = tokenizer(*texts, padding=True, truncation="longest_first", max_length=limit, return_tensors="pt")
    with torch.no_grad():
        logits = head.outputs(model(**encoded.to(model.device)))
    if head.task.kind == "mlm":
        return [
            _filled(text, ids, scores, tokenizer)
            for text, ids, scores in zip(texts[0], encoded["input_ids"], logits, strict=True)
        ], sum(length > limit for length in lengths)
    answers = head.answers(logits)
    cut = sum(length > limit for length in lengths)
    names = head.task.labels
    for answer in answers if names else ():
        answer["probabilities"] = dict(zip(names, answer["probabilities"], strict=True))
    return answers, cut


def _filled(text: str, ids: Tensor, logits: Tensor, tokenizer: PreTrainedTokenizerBase) -> Row:
    """The text with its masks filled one by one. ids (L,), logits (L, V)."""
    mask = str(tokenizer.mask_token)
    if mask not in text:
        raise UserError(f"this run fills masks, and {text[:60]!r} has none: write {mask} for each word to be found")
    likeliest = logits[ids == tokenizer.mask_token_id].softmax(-1).topk(LIKELIEST)
    found = [
        {str(tokenizer.decode([token])).strip(): p for token, p in zip(tokens, shares, strict=True)}
        for tokens, shares in zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    ]
    for candidates in found:
        text = text.replace(mask, next(iter(candidates)), 1)
    return {"prediction": text, "probabilities": found}


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _file_rows(path: Path, columns: list[str]) -> Iterator[Row]:
    table = open_records(path)
    wanted = _present(table.columns, columns, table.name)
    own_id = table.columns.index("id") if "id" in table.columns else None
    places = [table.columns.index(name) for name in wanted]
    for _, values in table.rows:
        row: Row = {
            column: "" if values[place] is None else values[place]
            for column, place in zip(columns, places, strict=True)
        }
        if own_id is not None:
            row["id"] = values[own_id]
        yield row


def _stream_rows(stream: TextIO, columns: list[str]) -> Iterator[Row]:
    for number, line in enumerate(stream, start=1):
        if not line.strip() and len(columns) > 1:
            continue
        if not line.lstrip().startswith("{"):
            if len(columns) > 1:
                raise UserError(
                    f"line {number} is no JSON object; this run reads pairs, so give "
                    f'{{"{columns[0]}": ..., "{columns[1]}": ...}} on each line'
                )
            yield {columns[0]: line.rstrip("\n")}
            continue
        try:
            given = json.loads(line)
        except ValueError as error:
            raise UserError(f"line {number} of the input is no JSON ({error})") from error
        wanted = _present(tuple(given), columns, f"line {number} of the input")
        row = {column: given[name] for column, name in zip(columns, wanted, strict=True)}
        yield row | ({"id": given["id"]} if "id" in given else {})


def _present(there: tuple[str, ...], columns: list[str], where: str) -> list[str]:
    """The input's names of the run's columns: the run's own, or plain text and text_pair."""
    found = []
    for column, plain in zip(columns, ("text", "text_pair"), strict=False):
        name = column if column in there else plain
        if name not in there:
            raise UserError(f"{where} has no {column!r}{closest(column, there)}")
        found.append(name)
    return found
