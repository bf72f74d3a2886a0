"""The published scores of SQuAD 1.1 and 2.0, and the files that its evaluation scripts read.

Rajpurkar et al. 2016, arXiv:1606.05250 (evaluate-v1.1.py); Rajpurkar et al. 2018, arXiv:1806.03822 (evaluate-v2.0.py).
Scores are shares in [0, 1], where the scripts print percent.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from ..files import whole

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation, without the words a, an, the, blanks as single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def gold_answers(texts: Sequence[str], *, no_answer: bool) -> tuple[str, ...]:
    """The texts to compare with. SQuAD 2.0 (no_answer) leaves out those that normalise to nothing; none left: ""."""
    kept = [text for text in texts if normalise(text)] if no_answer else texts
    return tuple(kept) or ("",)


def exact_match(prediction: str, golds: Iterable[str]) -> float:
    """1 where the normalised prediction is one of the normalised golds, else 0."""
    return float(normalise(prediction) in map(normalise, golds))


def f1(prediction: str, golds: Iterable[str], *, no_answer: bool) -> float:
    """2 P R / (P + R) over the normalised words, counted with repetition; the best over the golds.

    Where one side has no words: 0 in SQuAD 1.1; in 2.0 (no_answer) 1 if the other has none either.
    """
    return max(_f1(normalise(prediction).split(), normalise(gold).split(), no_answer) for gold in golds)


def _f1(predicted: list[str], gold: list[str], no_answer: bool) -> float:
    if no_answer and not (predicted and gold):
        return float(predicted == gold)
    common = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * common / (len(predicted) + len(gold)) if common else 0.0


def best_threshold(null_odds: Sequence[float], answered: Sequence[float], empty: Sequence[float]) -> float:
    """The t for which the mean score is best when a question is answered where its null_odds <= t, else left empty.

    answered, empty: each question's score either way. The least such t out of null_odds; below all of them where
    nothing is best left unanswered. As evaluate-v2.0.py's find_best_thresh, but for its ties (it may part questions
    of equal odds) and its 0 where no question should be answered.
    """
    odds = np.asarray(null_odds, dtype=np.float64)
    order = np.argsort(odds, kind="stable")
    odds = odds[order]
    gains = np.cumsum((np.asarray(answered, dtype=np.float64) - np.asarray(empty, dtype=np.float64))[order])
    gains[:-1][odds[:-1] == odds[1:]] = -np.inf  # a threshold takes all of its ties
    # sums in another order differ in the last digits: what is that close counts as equal
    best = int(np.argmax(gains >= max(gains.max(), 0.0) - 1e-9)) if len(gains) else 0
    if not len(gains) or gains.max() <= 1e-9:
        return float(odds[0]) - 1.0 if len(odds) else 0.0
    return float(odds[best])


def write_squad_json(path: Path, answers: Iterable[Mapping[str, Any]], null_odds: Path | None = None) -> None:
    """{key: prediction}, and to `null_odds` {key: null_odds}: what the official scripts read.

    answers: of `SpanScores.answers`. Raises ValueError for a key that comes twice.
    """
    texts: dict[str, str] = {}
    odds: dict[str, float] = {}
    for answer in answers:
        key = str(answer["key"])
        if key in texts:
            raise ValueError(f"two predictions for {key!r}")
        texts[key], odds[key] = answer["prediction"], answer["null_odds"]
    with whole(path) as out, whole(null_odds) if null_odds is not None else nullcontext() as beside:
        out.write(json.dumps(texts, ensure_ascii=False, indent=2) + "\n")
        if beside is not None:
            beside.write(json.dumps(odds, indent=2) + "\n")
