"""Metrics equal scikit-learn's and scipy's, however the epoch was batched."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.errors import UserError
from attnlab.tasks import TaskSpec, build_head, build_metrics
from attnlab.tasks.metrics import check_metrics


def spec(kind: str, labels: int, *metrics: str) -> TaskSpec:
    return TaskSpec(
        name="t",
        kind=kind,  # type: ignore[arg-type]
        labels=tuple(str(i) for i in range(labels)),
        metrics=metrics,
    )


def uneven(count: int, seed: int) -> list[slice]:
    cuts = sorted({0, count, *np.random.default_rng(seed).integers(0, count, 4).tolist()})
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


def scores(task: TaskSpec, preds: torch.Tensor, target: torch.Tensor, seed: int = 0) -> dict[str, float]:
    metrics = build_metrics(task)
    for part in uneven(len(preds), seed):
        metrics.update(preds[part], target[part])
    return {name: float(value) for name, value in metrics.compute().items()}


@settings(deadline=None, max_examples=60)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=60),
    seed=st.integers(0, 99),
)
def test_binary_metrics_equal_sklearn_under_uneven_batches(pairs: list[tuple[int, int]], seed: int) -> None:
    preds, target = torch.tensor(pairs).T
    got = scores(spec("classification", 2, "f1", "matthews", "accuracy", "macro_f1"), preds, target, seed)
    assert got["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(target, preds))
    assert got["f1"] == pytest.approx(sklearn.metrics.f1_score(target, preds, zero_division=0), abs=1e-6)
    assert got["matthews"] == pytest.approx(sklearn.metrics.matthews_corrcoef(target, preds), abs=1e-6)
    assert got["macro_f1"] == pytest.approx(
        sklearn.metrics.f1_score(target, preds, average="macro", zero_division=0), abs=1e-6
    )


@settings(deadline=None, max_examples=40)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=60),
    seed=st.integers(0, 99),
)
def test_multiclass_metrics_equal_sklearn(pairs: list[tuple[int, int]], seed: int) -> None:
    preds, target = torch.tensor(pairs).T
    got = scores(spec("classification", 4, "matthews", "accuracy"), preds, target, seed)
    assert got["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(target, preds))
    assert got["matthews"] == pytest.approx(sklearn.metrics.matthews_corrcoef(target, preds), abs=1e-6)


def test_matthews_of_constant_predictions_is_zero_on_colas_proportions() -> None:
    """torchmetrics' own says 0.026 here."""
    target = torch.tensor([1] * 721 + [0] * 322)
    assert scores(spec("classification", 2, "matthews"), torch.ones_like(target), target) == {"matthews": 0.0}


def test_f1_is_of_the_positive_class_only() -> None:
    preds, target = torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 0, 0])
    assert scores(spec("classification", 2, "f1"), preds, target)["f1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("seed", range(5))
def test_correlations_equal_scipy_with_ties_and_uneven_batches(seed: int) -> None:
    draw = np.random.default_rng(seed)
    target = torch.tensor(np.round(draw.uniform(0, 5, 300), 1), dtype=torch.float32)
    noisy = target + torch.tensor(draw.normal(0, 1, 300), dtype=torch.float32)
    preds = (noisy * 4).round() / 4
    got = scores(spec("regression", 0, "pearson", "spearman"), preds, target, seed)
    assert got["pearson"] == pytest.approx(scipy.stats.pearsonr(preds, target)[0], abs=1e-5)
    assert got["spearman"] == pytest.approx(scipy.stats.spearmanr(preds, target)[0], abs=1e-5)


def test_metrics_start_anew_after_reset() -> None:
    metrics = build_metrics(spec("classification", 2, "accuracy"))
    metrics.update(torch.tensor([1]), torch.tensor([0]))
    metrics.reset()
    metrics.update(torch.tensor([1]), torch.tensor([1]))
    assert metrics.compute()["accuracy"] == 1


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(-50, 50)), min_size=1, max_size=40),
    seed=st.integers(0, 99),
)
def test_map_and_mrr_are_the_mean_over_questions_with_a_right_answer(
    rows: list[tuple[int, int, int]], seed: int
) -> None:
    rows = list({(group, score): (group, right, score) for group, right, score in rows}.values())  # no ties
    metrics = build_metrics(spec("classification", 2, "map", "mrr"))
    groups, target, scores = (torch.tensor(column) for column in zip(*rows, strict=True))
    for part in uneven(len(rows), seed):
        metrics.update(preds=target[part], target=target[part], scores=scores[part].float(), groups=groups[part])
    average, reciprocal = [], []
    for question in sorted(set(groups.tolist())):
        order = sorted((-score, right) for group, right, score in rows if group == question)
        ranks = [rank for rank, (_, right) in enumerate(order, start=1) if right]
        if ranks:
            average.append(np.mean([found / rank for found, rank in enumerate(ranks, start=1)]))
            reciprocal.append(1 / ranks[0])
    got = metrics.compute()
    assert float(got["map"]) == pytest.approx(np.mean(average) if average else 0, abs=1e-6)
    assert float(got["mrr"]) == pytest.approx(np.mean(reciprocal) if reciprocal else 0, abs=1e-6)


def test_f1_and_rankings_are_about_the_positive_label_whichever_id_it_has() -> None:
    target, groups = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 0, 0])
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    usual = TaskSpec(
        name="t", kind="classification", labels=("no", "yes"), metrics=("f1", "map", "mrr"), positive="yes"
    )
    turned = replace(usual, labels=("yes", "no"))
    values = []
    for task, order in ((usual, [0, 1]), (turned, [1, 0])):
        head, metrics = build_head(task), build_metrics(task)
        given = logits[:, order]
        labels = torch.tensor(order)[target]
        scored = head.scored(given, {"group": groups})
        metrics.update(preds=head.predictions(given), target=labels, losses=head.losses(given, labels), **scored)
        values.append({name: float(value) for name, value in metrics.compute().items()})
    assert values[0] == values[1]
    assert values[0]["f1"] == pytest.approx(sklearn.metrics.f1_score(target, logits.argmax(-1)))


def test_correlations_of_constant_predictions_are_undefined() -> None:
    got = scores(spec("regression", 0, "pearson", "spearman"), torch.full((6,), 1.5), torch.arange(6.0))
    assert np.isnan(got["pearson"])
    assert np.isnan(got["spearman"])


@pytest.mark.parametrize(
    ("metric", "kind", "grouped", "hint"),
    [
        ("map", "classification", False, "data.group=COLUMN"),
        ("mapp", "classification", True, "did you mean 'map'"),
        ("accuracy", "span", False, "does not exist for a span task"),
    ],
)
def test_a_metric_without_what_it_needs_is_refused(metric: str, kind: str, grouped: bool, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        check_metrics(spec(kind, 2, metric), grouped=grouped)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.lists(st.integers(0, 1), min_size=6, max_size=6), min_size=1, max_size=30),
    seed=st.integers(0, 99),
)
def test_multilabel_metrics_equal_sklearn(rows: list[list[int]], seed: int) -> None:
    both = torch.tensor(rows)
    preds, target = both[:, :3], both[:, 3:]
    got = scores(spec("multilabel", 3, "micro_f1", "macro_f1", "exact_match"), preds, target, seed)
    for average in ("micro", "macro"):
        expected = sklearn.metrics.f1_score(target, preds, average=average, zero_division=0)
        assert got[f"{average}_f1"] == pytest.approx(expected, abs=1e-6)
    assert got["exact_match"] == pytest.approx(sklearn.metrics.accuracy_score(target, preds))


def test_monitor_is_the_first_metric_of_val() -> None:
    task = TaskSpec.from_config(
        {"name": "cola", "kind": "classification", "metrics": ["matthews", "accuracy"]}, ["a", "b"]
    )
    assert (task.monitor, task.num_outputs) == ("val/matthews", 2)
    assert TaskSpec.from_config({"kind": "regression"}, []).metrics == ("pearson", "spearman")
    assert TaskSpec.from_config({"kind": "regression"}, []).num_outputs == 1


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (spec("classification", 2, "acuracy"), "did you mean 'accuracy'"),
        (spec("regression", 0, "accuracy"), "does not exist for a regression task"),
        (spec("classification", 3, "f1"), r"task.metrics=\[macro_f1\]"),
    ],
)
def test_wrong_metric_is_named_with_its_remedy(task: TaskSpec, words: str) -> None:
    with pytest.raises(UserError, match=words):
        build_metrics(task)


def test_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'regression'"):
        TaskSpec.from_config({"kind": "regresion"}, [])
