"""Each kind of task: its loss against a plain formula, and what it answers."""

import math

import pytest
import torch

from attnlab.data.spec import Kind
from attnlab.errors import UserError
from attnlab.tasks import TaskSpec, build_head
from attnlab.tasks.heads import merged


def task(kind: Kind, labels: int = 0, **rest: object) -> TaskSpec:
    names = tuple("abcdef"[:labels])
    return TaskSpec(name="t", kind=kind, labels=names, metrics=("accuracy",), **rest)  # type: ignore[arg-type]


def test_a_class_is_the_likeliest_and_costs_its_surprise() -> None:
    head = build_head(task("classification", 2))
    logits = torch.tensor([[0.0, math.log(3)], [2.0, 1.0]])
    assert head.predictions(logits).tolist() == [1, 0]
    assert head.losses(logits, torch.tensor([0, 0]))[0] == pytest.approx(math.log(4))
    assert head.answers(logits)[0] == {"prediction": "b", "probabilities": pytest.approx([0.25, 0.75])}


def test_a_number_is_clipped_where_it_is_asked_and_not_where_it_is_learned() -> None:
    head = build_head(task("regression", range=(0.0, 5.0)))
    logits = torch.tensor([[-1.0], [2.5], [7.0]], dtype=torch.bfloat16)
    assert head.predictions(logits).tolist() == [0.0, 2.5, 5.0]
    assert head.predictions(logits).dtype == torch.float32
    assert head.losses(logits, torch.tensor([0.0, 0.0, 5.0])).tolist() == [1.0, 6.25, 4.0]
    assert head.answers(logits)[2] == {"prediction": 5.0}


def test_each_of_many_labels_is_decided_by_itself() -> None:
    head = build_head(task("multilabel", 3))
    logits = torch.tensor([[math.log(3), -1.0, 0.5], [-1.0, -1.0, -1.0]])
    assert head.predictions(logits).tolist() == [[1, 0, 1], [0, 0, 0]]
    assert [answer["prediction"] for answer in head.answers(logits)] == [["a", "c"], []]
    assert head.answers(logits)[0]["probabilities"][0] == pytest.approx(0.75)
    expected = -(math.log(0.75) + 2 * math.log(0.5)) / 3
    loss = head.losses(torch.tensor([[math.log(3), 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 1.0]]))
    assert float(loss) == pytest.approx(expected)
    assert head.label([0, 1, 1]) == ["b", "c"]


def test_labels_scored_as_one_add_their_probabilities() -> None:
    both = task("classification", 3, merge={"test": {"c": "b"}})
    assert both.merged_ids("val") is None
    ids = both.merged_ids("test")
    assert ids == (0, 1, 1)
    shares = merged(torch.tensor([[0.2, 0.5, 0.3]]).log(), ids).exp()
    assert shares[0].tolist() == pytest.approx([0.2, 0.8, 0.0])


@pytest.mark.parametrize(
    ("config", "hint"),
    [
        ({"kind": "regression", "range": [5, 0]}, "least and the largest"),
        ({"kind": "regression", "range": ["a", "b"]}, "such as"),
        ({"range": [0, 5]}, "is for task.kind=regression"),
        ({"merge": "nonsense"}, "contradiction: neutral"),
        ({"merge": {"test": {"neutrl": "a"}}}, "did you mean 'neutral'"),
    ],
)
def test_a_wrong_range_or_merge_is_named(config: dict[str, object], hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        TaskSpec.from_config({"kind": "classification"} | config, ["a", "neutral"]).merged_ids("test")
