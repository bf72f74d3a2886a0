"""SQuAD's json as the examples that `data.load` makes of it, read without any of our code."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets

FEATURES = datasets.Features(
    {
        "id": datasets.Value("int64"),
        "key": datasets.Value("string"),
        "text": datasets.Value("string"),
        "text_pair": datasets.Value("string"),
        "label": {"text": datasets.List(datasets.Value("string")), "start": datasets.List(datasets.Value("int64"))},
    }
)


def examples(rows: Iterable[tuple[str, str, str, list[tuple[str, int]]]]) -> datasets.Dataset:
    """From (key, question, context, [(answer, start)])."""
    listed: list[dict[str, Any]] = [
        {
            "id": 3 * place + 1,  # no row's place: rows may have been dropped before it
            "key": key,
            "text": question,
            "text_pair": context,
            "label": {"text": [text for text, _ in answers], "start": [start for _, start in answers]},
        }
        for place, (key, question, context, answers) in enumerate(rows)
    ]
    return datasets.Dataset.from_list(listed, features=FEATURES)


def xquad(folder: Path, articles: range = range(48)) -> datasets.Dataset:
    """Questions of some of its 48 articles."""
    data = json.loads((folder / "SQuAD" / "xquad.en.json").read_text("utf-8"))["data"]
    return examples(
        (q["id"], q["question"], p["context"], [(a["text"], a["answer_start"]) for a in q["answers"]])
        for place in articles
        for p in data[place]["paragraphs"]
        for q in p["qas"]
    )


def squad_v2_sample(folder: Path) -> datasets.Dataset:
    """14 questions, 6 without an answer."""
    data = json.loads((folder / "SQuAD" / "squad_v2_sample.json").read_text("utf-8"))["data"]
    return examples(
        (
            q["id"],
            q["question"],
            q["context"],
            list(zip(q["answers"]["text"], q["answers"]["answer_start"], strict=True)),
        )
        for q in data
    )
