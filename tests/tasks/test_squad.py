"""SQuAD's scores as published: by hand, by torchmetrics, by the official scripts written out plainly."""

import json
import re
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.text import squad as torchmetrics_squad

from attnlab.tasks.squad import best_threshold, exact_match, f1, gold_answers, normalise, write_squad_json

WORDS = [
    "the",
    "The",
    "a",
    "an",
    "An",
    "cat",
    "cats",
    "Cat.",
    "(sat)",
    "on",
    "mat",
    "théâtre",
    "中文",
    "'s",
    "--",
    "",
    "\t",
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join) | st.text(max_size=12)
GOLDS = st.lists(TEXTS, min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Old\tLobster!", "old lobster"),
        ("a theatre", "theatre"),  # an article is a whole word
        ("thea a an THE", "thea"),
        ("the-a", "thea"),  # punctuation goes first, and joins
        ("U.S.", "us"),
        ("“Ünïcödé”—Straße", "“ünïcödé”—straße"),  # only ASCII punctuation goes
        ("l'art\u00a0de la", "lart de la"),
        ("the.", ""),
        ("", ""),
    ],
)
def test_normalised_as_published(text: str, expected: str) -> None:
    assert normalise(text) == expected


def test_exact_match_is_up_to_case_articles_and_punctuation_with_any_gold() -> None:
    assert exact_match("The Denver Broncos.", ["Carolina", "denver broncos"]) == 1
    assert exact_match("Denver", ["Denver Broncos"]) == 0


@pytest.mark.parametrize(
    ("prediction", "golds", "expected"),
    [
        ("the old lobster", ["lobster"], 2 / 3),  # P 1/2, R 1
        ("the old lobster", ["crab", "an old lobster"], 1),  # the best gold
        ("cat cat cat", ["cat cat dog"], 2 / 3),  # counted with repetition
        ("lobster", ["crab"], 0),
        ("lobster", [""], 0),
    ],
)
def test_f1_by_hand(prediction: str, golds: list[str], expected: float) -> None:
    for no_answer in (False, True):
        assert f1(prediction, golds, no_answer=no_answer) == pytest.approx(expected)


def test_nothing_against_nothing_is_right_in_2_and_wrong_in_1() -> None:
    assert f1("", [""], no_answer=True) == f1("the", ["a"], no_answer=True) == 1
    assert f1("", [""], no_answer=False) == f1("the", ["a"], no_answer=False) == 0


def test_golds_that_normalise_to_nothing_count_in_1_only() -> None:
    assert gold_answers(["The", "Who"], no_answer=True) == ("Who",)
    assert gold_answers(["The", "Who"], no_answer=False) == ("The", "Who")
    assert gold_answers([], no_answer=True) == gold_answers(["a"], no_answer=True) == ("",)


def plain_words(text: str) -> list[str]:
    """Normalised, word by word."""
    kept = "".join(" " if c.isspace() else c for c in text.lower() if c not in string.punctuation)
    # \b also stands between a letter and a sign: an article next to one goes too
    pieces = re.split(r"(\w+)", kept)
    return "".join(" " if piece in ("a", "an", "the") else piece for piece in pieces).split()


def plain_f1(prediction: str, gold: str, version: int) -> float:
    said, right = plain_words(prediction), plain_words(gold)
    if version == 2 and not (said and right):
        return 1.0 if said == right else 0.0
    rest, common = list(right), 0
    for word in said:
        if word in rest:
            rest.remove(word)
            common += 1
    if not common:
        return 0.0
    precision, recall = common / len(said), common / len(right)
    return 2 / (1 / precision + 1 / recall)


@given(TEXTS, GOLDS)
def test_as_the_scripts_score_any_text(prediction: str, golds: list[str]) -> None:
    assert normalise(prediction).split() == plain_words(prediction)
    assert exact_match(prediction, golds) == any(plain_words(prediction) == plain_words(gold) for gold in golds)
    for version in (1, 2):
        expected = max(plain_f1(prediction, gold, version) for gold in golds)
        assert f1(prediction, golds, no_answer=version == 2) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.tuples(TEXTS, GOLDS), min_size=1, max_size=5))
def test_as_torchmetrics_scores(pairs: list[tuple[str, list[str]]]) -> None:
    preds = [{"id": str(i), "prediction_text": text} for i, (text, _) in enumerate(pairs)]
    target = [
        {"id": str(i), "answers": {"text": golds, "answer_start": [0] * len(golds)}}
        for i, (_, golds) in enumerate(pairs)
    ]
    theirs = torchmetrics_squad(preds, target)
    assert 100 * sum(exact_match(*pair) for pair in pairs) / len(pairs) == pytest.approx(float(theirs["exact_match"]))
    # its F1 of nothing against nothing is that of 2.0
    ours = 100 * sum(f1(*pair, no_answer=True) for pair in pairs) / len(pairs)
    assert ours == pytest.approx(float(theirs["f1"]), rel=1e-5)


SHARES = st.sampled_from([0.0, 0.25, 0.5, 1.0])
ODDS = st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]) | st.floats(-20, 20)


@given(st.lists(st.tuples(ODDS, SHARES, SHARES), min_size=1, max_size=12))
def test_no_threshold_is_better(rows: list[tuple[float, float, float]]) -> None:
    def score(threshold: float) -> float:
        return sum(answered if odds <= threshold else empty for odds, answered, empty in rows)

    chosen = best_threshold(*zip(*rows, strict=True))
    tried = [min(odds for odds, _, _ in rows) - 1, *(odds for odds, _, _ in rows)]
    assert score(chosen) == pytest.approx(max(map(score, tried)))
    assert chosen in tried
    assert all(score(t) < score(chosen) - 1e-12 for t in tried if t < chosen)


@given(st.lists(st.tuples(st.booleans(), SHARES), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_threshold_of_the_official_script(rows: list[tuple[bool, float]], draw) -> None:
    """It leaves all empty at first and answers one question after the other, in the order of their odds."""
    odds = draw.sample(range(-20, 20), len(rows))
    answered = [share if has else 0.0 for has, share in rows]
    total = best = sum(not has for has, _ in rows)
    threshold = None
    for place in sorted(range(len(rows)), key=odds.__getitem__):
        total += answered[place] - (not rows[place][0])
        if total > best:
            best, threshold = total, odds[place]
    ours = best_threshold(odds, answered, [float(not has) for has, _ in rows])
    mine = sum(a if o <= ours else not has for a, o, (has, _) in zip(answered, odds, rows, strict=True))
    assert mine == pytest.approx(best)
    assert ours == threshold or threshold is None


def test_the_official_prediction_file(tmp_path: Path) -> None:
    answers = [
        {"key": "56be", "prediction": "Ünï", "null_odds": -2.5},
        {"key": "56bf", "prediction": "", "null_odds": 1.0},
    ]
    write_squad_json(tmp_path / "predictions.json", answers, tmp_path / "odds.json")
    assert json.loads((tmp_path / "predictions.json").read_text("utf-8")) == {"56be": "Ünï", "56bf": ""}
    assert json.loads((tmp_path / "odds.json").read_text("utf-8")) == {"56be": -2.5, "56bf": 1.0}
    with pytest.raises(ValueError, match="two predictions for '56be'"):
        write_squad_json(tmp_path / "twice.json", [answers[0], answers[0]])
