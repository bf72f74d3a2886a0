"""From logits to answers: by hand, known predictions scored exactly, any division into shards the same."""

import itertools
import math
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoTokenizer

from attnlab.data.spans import collate_windows, windows
from attnlab.data.wheels import minilm_folder
from attnlab.errors import UserError
from attnlab.tasks.spans import SpanScores, candidates, span_logits, span_losses
from tests.squad_files import examples, squad_v2_sample, xquad

CONTEXT = "one two three four five six"
# [CLS] question [SEP] and the six words of the context
OFFSETS = [(-1, -1)] * 3 + [(0, 3), (4, 7), (8, 13), (14, 18), (19, 23), (24, 27)] + [(-1, -1)]


def window(start: dict[int, float], end: dict[int, float], null: float = 0.0) -> Tensor:
    """Logits (1, 10, 2): of some words of the context, counted from 0; -9 elsewhere."""
    logits = torch.full((1, len(OFFSETS), 2), -9.0)
    logits[0, 0] = null / 2
    for column, given in enumerate((start, end)):
        for word, value in given.items():
            logits[0, 3 + word, column] = value
    return logits


def offsets(count: int = 1) -> Tensor:
    return torch.tensor([OFFSETS] * count)


def question(*golds: str) -> datasets.Dataset:
    return examples([("q", "what?", CONTEXT, [(gold, CONTEXT.index(gold)) for gold in golds])])


def answer(metric: SpanScores, *logits: Tensor) -> dict[str, Any]:
    for one in logits:
        metric.update(logits=one, offsets=offsets(), example_id=torch.tensor([1]))
    metric.compute()
    (found,) = metric.answers()
    return found


def test_the_best_pair_of_start_and_end_answers() -> None:
    found = answer(SpanScores(question("two three")), window({1: 3.0, 4: 2.0}, {2: 4.0, 4: 1.0}))
    assert found["prediction"] == "two three"
    # scores 3 + 4, 3 + 1, 2 + 1, and far below them the rest
    share = 1 / (1 + math.exp(-3) + math.exp(-4))
    assert found["n_best"][0] == {"text": "two three", "start": 4, "probability": pytest.approx(share, abs=1e-4)}
    assert [one["text"] for one in found["n_best"][:3]] == ["two three", "two three four five", "five"]
    assert math.fsum(one["probability"] for one in found["n_best"]) == pytest.approx(1)


def test_an_end_before_the_start_is_no_answer() -> None:
    assert answer(SpanScores(question("two")), window({4: 9.0, 1: 1.0}, {1: 9.0, 4: -5.0}))["prediction"] == "two"


def test_no_answer_is_longer_than_allowed() -> None:
    logits = window({0: 9.0, 3: 1.0}, {4: 9.0})
    assert answer(SpanScores(question("two")), logits)["prediction"] == "one two three four five"
    assert answer(SpanScores(question("two"), longest_answer=4), logits)["prediction"] == "four five"


def test_answers_come_out_of_the_context() -> None:
    logits = window({2: 1.0}, {3: 1.0})
    logits[0, 1] = 50.0  # the question
    logits[0, 9] = 50.0  # [SEP]
    assert answer(SpanScores(question("two")), logits)["prediction"] == "three four"


def test_candidates_are_those_of_the_brute_force() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, len(OFFSETS), 2)
    spans, scores, null = candidates(logits, offsets(5), n_best=4, longest_answer=3)
    for row in range(5):
        inside = range(3, 9)
        starts = sorted(inside, key=lambda i: -logits[row, i, 0])[:4]
        ends = sorted(inside, key=lambda i: -logits[row, i, 1])[:4]
        pairs = [(s, e) for s, e in itertools.product(starts, ends) if 0 <= e - s < 3]
        pairs.sort(key=lambda p: -(logits[row, p[0], 0] + logits[row, p[1], 1]))
        expected = [[OFFSETS[s][0], OFFSETS[e][1]] for s, e in pairs[:4]]
        kept = scores[row] > -math.inf
        assert spans[row][kept].tolist() == expected
        assert null[row] == logits[row, 0].sum()


def test_the_best_window_answers_and_the_least_null_score_counts() -> None:
    metric = SpanScores(question("two"), no_answer=True, threshold=0.0)
    found = answer(metric, window({1: 2.0}, {1: 2.0}, null=7.0), window({3: 3.0}, {3: 2.0}, null=4.0))
    assert found["null_odds"] == pytest.approx(4 - 5)
    assert found["prediction"] == "four"


def test_a_text_found_in_two_windows_is_one_answer_with_the_better_score() -> None:
    found = answer(SpanScores(question("two")), window({1: 2.0}, {1: 2.0}), window({1: 3.0}, {1: 3.0}))
    assert [one["text"] for one in found["n_best"]].count("two") == 1
    assert found["null_odds"] == pytest.approx(-6)


def test_above_the_threshold_a_question_stays_unanswered() -> None:
    logits, share = window({1: 2.0}, {1: 2.0}, null=5.0), math.e / (1 + math.e)
    for threshold, expected in ((0.9, ""), (1.0, "two"), (1.1, "two")):
        found = answer(SpanScores(question("two"), no_answer=True, threshold=threshold), logits)
        assert found["prediction"] == expected
        assert found["n_best"][0] == {"text": "", "start": None, "probability": pytest.approx(share, abs=1e-4)}
    assert answer(SpanScores(question("two"), threshold=0.9), logits)["prediction"] == "two"


def test_the_best_threshold_is_found_on_validation_and_kept_on_test() -> None:
    part = examples([("a", "?", CONTEXT, [("two", 4)]), ("b", "?", CONTEXT, []), ("c", "?", CONTEXT, [("six", 24)])])
    validation = SpanScores(part, no_answer=True)
    # null odds 1, 3, 2: only b is better left unanswered
    logits = torch.cat([window({w: 2.0}, {w: 2.0}, null=n) for w, n in ((1, 5.0), (2, 7.0), (5, 6.0))])
    validation.update(logits=logits, offsets=offsets(3), example_id=torch.tensor([1, 4, 7]))
    values = {name: float(value) for name, value in validation.compute().items()}
    assert values == {
        "exact_match": 1,
        "f1": 1,
        "has_answer_exact_match": 1,
        "has_answer_f1": 1,
        "no_answer_exact_match": 1,
        "no_answer_f1": 1,
        "no_answer_threshold": 2,
    }
    test = SpanScores(part, no_answer=True, threshold=-100.0)
    test.update(logits=logits, offsets=offsets(3), example_id=torch.tensor([1, 4, 7]))
    assert float(test.compute()["f1"]) == pytest.approx(1 / 3)
    assert [one["prediction"] for one in test.answers()] == ["", "", ""]


def test_a_threshold_survives_a_log_in_float32() -> None:
    logits = window({1: 0.1}, {1: 1e-7}, null=0.7)
    found = answer(SpanScores(question("two"), no_answer=True), logits)
    assert float(torch.tensor(found["null_odds"], dtype=torch.float32)) == found["null_odds"]


def test_a_window_without_context_leaves_nothing_to_say() -> None:
    part = examples([("q", "what?", "", [])])
    metric = SpanScores(part, no_answer=True, threshold=0.0)
    metric.update(logits=torch.zeros(1, 3, 2), offsets=torch.full((1, 3, 2), -1), example_id=torch.tensor([1]))
    assert float(metric.compute()["exact_match"]) == 1
    assert metric.answers()[0]["prediction"] == ""


def test_without_labels_there_are_answers_and_no_scores() -> None:
    metric = SpanScores(question("two").remove_columns("label"))
    assert answer(metric, window({1: 1.0}, {1: 1.0}))["prediction"] == "two"
    assert metric.compute() == {}


def known(part: datasets.Dataset, *, empty: bool = False, **settings: Any) -> SpanScores:
    """Scores of a model that is sure of the first gold answer, or that there is none."""
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    cut = windows(part, tokenizer, max_length=128, stride=60, name="val")
    batch = collate_windows(cut[:] | {"weight": [1.0] * len(cut)}, pad_id=0, longest=512)
    sure = torch.stack([F.one_hot(batch["labels"][:, i], batch["input_ids"].shape[1]) for i in (0, 1)], -1) * 9.0
    if empty:
        sure = torch.zeros_like(sure)
        sure[:, 0] = 9.0
    metric = SpanScores(part, **settings)
    for rows in torch.arange(len(cut)).split(100):
        metric.update(logits=sure[rows], offsets=batch["offsets"][rows], example_id=batch["example_id"][rows])
    return metric


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def test_the_gold_answers_score_everything_but_the_one_that_ends_within_a_word(shared_data: Path) -> None:
    metric = known(xquad(shared_data), longest_answer=60)
    values = metric.compute()
    assert len(metric.answers()) == 1190
    assert float(values["exact_match"]) == 1189 / 1190
    assert 1189 / 1190 < float(values["f1"]) < 1


def test_nothing_but_empty_answers_is_right_for_6_of_14(shared_data: Path) -> None:
    values = known(squad_v2_sample(shared_data), empty=True, no_answer=True, threshold=0.0).compute()
    assert float(values["exact_match"]) == float(values["f1"]) == 6 / 14
    assert float(values["has_answer_f1"]) == 0
    assert float(values["no_answer_f1"]) == 1


def test_the_gold_answers_of_2_score_everything(shared_data: Path) -> None:
    values = known(squad_v2_sample(shared_data), no_answer=True).compute()
    assert float(values["exact_match"]) == float(values["f1"]) == 1


def test_shards_in_any_order_score_as_the_whole(shared_data: Path) -> None:
    part = squad_v2_sample(shared_data)
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    cut = windows(part, tokenizer, max_length=64, stride=20, name="val")
    batch = collate_windows(cut[:] | {"weight": [1.0] * len(cut)}, pad_id=0, longest=512)
    torch.manual_seed(0)
    logits = torch.randn(*batch["input_ids"].shape, 2)
    picks = torch.randperm(len(cut))
    shards = [SpanScores(part, no_answer=True) for _ in range(3)]
    for shard, rows in zip(shards, (picks, picks[:7].sort().values, picks[7:]), strict=True):
        for some in rows.split(5):
            shard.update(logits=logits[some], offsets=batch["offsets"][some], example_id=batch["example_id"][some])
    whole, one, two = shards
    expected = whole.compute()
    for name in ("ids", "spans", "logits", "nulls"):  # what torchmetrics does over processes
        setattr(one, name, getattr(one, name) + getattr(two, name))
    assert one.compute() == expected
    assert one.answers() == whole.answers()


def test_the_states_of_a_process_without_a_window_can_be_gathered_with_the_others() -> None:
    none, some = SpanScores(question("two")), SpanScores(question("two"))
    answer(some, window({1: 1.0}, {1: 1.0}))
    for name in ("ids", "spans", "logits", "nulls"):
        empty, full = torch.cat(getattr(none, name)), torch.cat(getattr(some, name))
        assert len(empty) == 0
        assert (empty.shape[1:], empty.dtype) == (full.shape[1:], full.dtype)


def test_a_reset_forgets_the_windows_and_keeps_the_answers() -> None:
    metric = SpanScores(question("two"))
    answer(metric, window({1: 1.0}, {1: 1.0}))
    metric.reset()
    assert metric.answers()[0]["prediction"] == "two"
    assert answer(metric, window({3: 1.0}, {3: 1.0}))["prediction"] == "four"


def test_padding_changes_no_loss() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 10, 2), torch.tensor([[0, 0], [3, 5]])
    mask = torch.ones(2, 10, dtype=torch.int64)
    short = span_losses(span_logits(logits[..., 0], logits[..., 1], mask), labels)
    padded = F.pad(logits, (0, 0, 0, 6), value=3.0)
    long = span_losses(span_logits(padded[..., 0], padded[..., 1], F.pad(mask, (0, 6))), labels)
    assert torch.equal(short, long)
    by_hand = sum(F.cross_entropy(logits[..., i], labels[:, i], reduction="none") for i in (0, 1)) / 2
    assert torch.allclose(short, by_hand)


def test_settings_come_from_the_task_and_are_checked() -> None:
    metric = SpanScores.from_config({"n_best": 5, "longest_answer": 7, "no_answer": True}, question("two"))
    assert (metric.n_best, metric.longest_answer, metric.no_answer, metric.threshold) == (5, 7, True, None)
    with pytest.raises(UserError, match=r"task\.n_best=0 must be a whole number of at least 1"):
        SpanScores.from_config({"n_best": 0}, question("two"))
