"""What is predicted, by kind of task: labels as the user writes them to labels as they are learnt."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnlab.data.load import Examples, load_examples, load_unlabelled
from attnlab.data.spec import DataSpec
from attnlab.errors import UserError

CUSTOM = Path(__file__).parents[2] / "conf" / "task" / "custom.yaml"


def spec(kind: str, **data: Any) -> DataSpec:
    task = {**yaml.safe_load(CUSTOM.read_text()), "kind": kind, **data.pop("task", {})}
    return DataSpec.from_config(task, {"root": "/nowhere", **data})


def load(kind: str, **data: Any) -> Examples:
    return load_examples(spec(kind, **data))


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    "sets", [([], ["a"], ["b", "a"]), ("", "a", "a, b"), ("", "a", "b|a"), ("[]", '["a"]', '["a", "b"]')]
)
def test_sets_of_labels_become_vectors_however_they_are_written(tmp_path: Path, sets: tuple[Any, ...]) -> None:
    path = lines(tmp_path / "a.jsonl", [{"text": f"t{i}", "label": label} for i, label in enumerate(sets)])
    got = load("multilabel", train=path, val=path)
    assert got.labels == ("a", "b")
    assert got.splits["train"]["label"][:] == [[0, 0], [1, 0], [1, 1]]


def test_columns_of_0_and_1_are_labels_too(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,fun,sad\na,1,0\nb,0,0\nc,1,1\n")
    got = load("multilabel", train=path, val=path, label=["fun", "sad"], limit=2)
    assert got.labels == ("fun", "sad")
    assert all(row in ([1, 0], [0, 0], [1, 1]) for row in got.splits["val"]["label"])
    path.write_text("text,fun,sad\na,1,0\nb,2,0\n")
    with pytest.raises(UserError, match=r"a\.csv, line 3: '2' in column 'fun', where 0 or 1"):
        load("multilabel", train=path, val=path, label=["fun", "sad"])


@pytest.mark.parametrize("listed", [True, False])
def test_the_right_ending_is_given_by_number_or_by_text(tmp_path: Path, listed: bool) -> None:
    rows = [
        ("It rains", ["wet", "dry", "red"], 0),
        ("Sun", ["wet", "dry", "red"], "dry"),
        ("Fire", ["x", "y", "z"], "2"),
    ]
    table = [
        {"text": text, "label": label} | ({"ends": ends} if listed else dict(zip("pqr", ends, strict=True)))
        for text, ends, label in rows
    ]
    path = lines(tmp_path / "a.jsonl", table)
    got = load("multiple_choice", train=path, val=path, choices=["ends"] if listed else ["p", "q", "r"])
    assert got.splits["train"]["label"][:] == [0, 1, 2]
    assert got.splits["train"]["choices"][1] == ["wet", "dry", "red"]
    path = lines(tmp_path / "a.jsonl", [*table, table[0] | {"label": 3}])
    with pytest.raises(UserError, match="line 4: label '3' is none of the 3 endings"):
        load("multiple_choice", train=path, val=path, choices=["ends"] if listed else ["p", "q", "r"])


QUESTIONS = [
    {"text": "who?", "context": "Ann met Bob.", "label": {"text": ["Ann", "Bob"], "answer_start": [0, 8]}},
    {"text": "when?", "context": "Ann met Bob.", "label": {"text": [], "answer_start": []}},
    {"text": "whom?", "context": "Ann met Bob.", "label": [{"text": "Bob", "answer_start": 8}]},
]


def test_answers_are_read_as_squad_writes_them(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", QUESTIONS)
    got = load("span", train=path, val=path, text_pair="context").splits["train"]
    assert got["label"][0] == {"text": ["Ann", "Bob"], "start": [0, 8]}
    assert got["label"][1] == {"text": [], "start": []}
    assert got["label"][2] == {"text": ["Bob"], "start": [8]}


def test_an_answer_as_plain_text_is_found_in_the_context(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,context,label\nwho?,Ann met Bob.,Bob\nwhy?,Ann met Bob.,\n")
    got = load("span", train=path, val=path, text_pair="context").splits["train"]
    assert got["label"][:] == [{"text": ["Bob"], "start": [8]}, {"text": [], "start": []}]


def test_an_answer_elsewhere_than_it_says_is_dropped_counted_and_under_strict_refused(tmp_path: Path) -> None:
    wrong = {"text": "x?", "context": "Ann met Bob.", "label": {"text": ["Bob"], "answer_start": [7]}}
    part = {"text": "y?", "context": "Ann met Bob.", "label": {"text": ["Bob", "Ann"], "answer_start": [7, 0]}}
    path = lines(tmp_path / "a.jsonl", [*QUESTIONS, wrong, part])
    got = load("span", train=path, val=path, text_pair="context")
    assert got.splits["train"]["id"][:] == [0, 1, 2, 4]
    assert got.splits["train"]["label"][3] == {"text": ["Ann"], "start": [0]}
    # every question of an evaluation counts, and is scored by what its answers say
    assert got.splits["val"]["label"][3] == {"text": ["Bob"], "start": [8]}
    assert any(
        "train: 2 answers do not stand in the context where" in note
        and "1 row left without an answer dropped" in note
        and "line 4" in note
        for note in got.notes
    )
    with pytest.raises(UserError, match=r"a\.jsonl, line 4: .*2 answers do not stand"):
        load("span", train=path, val=path, text_pair="context", strict=True)


def test_rows_of_one_question_share_a_number_and_stay_together(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("q,text,label\n" + "".join(f"Q{i // 4},t{i},{int(i % 4 == 0)}\n" for i in range(40)))
    got = load("classification", train=path, group="q")
    assert sorted(got.splits["train"]["group"][:4]) == [got.splits["train"]["group"][0]] * 4
    assert (len(got.splits["train"]), len(got.splits["val"])) == (36, 4)
    assert not set(got.splits["train"]["group"]) & set(got.splits["val"]["group"])
    assert len(load("classification", train=path, val=path, group="q", limit=10).splits["train"]) == 8


def test_a_hidden_test_set_is_there_to_be_predicted_whole(tmp_path: Path) -> None:
    folder = tmp_path / "D"
    folder.mkdir()
    (folder / "train.tsv").write_text("idx\ttext\tlabel\n7\ta\t0\n8\tb\t1\n")
    (folder / "test.tsv").write_text("idx\ttext\n3\tx\n5\t\n")
    task = {
        "dataset": "D",
        "files": {"train": "train.tsv", "val": "train.tsv", "test": "test.tsv"},
        "columns": {"text": "text", "label": "label", "key": "idx"},
        "hub": None,
    }
    hidden = load_unlabelled(spec("classification", task=task, root=str(tmp_path), limit=1), "test")
    assert hidden[:] == {"id": [0, 1], "key": ["3", "5"], "text": ["x", ""]}
    (folder / "test.tsv").write_text("idx\ttext\tlabel\n3\tx\t-1\n5\ty\t-1\n")
    hidden = load_unlabelled(spec("classification", task=task, root=str(tmp_path)), "test")
    assert hidden[:] == {"id": [0, 1], "key": ["3", "5"], "text": ["x", "y"]}
    assert "test" not in load("classification", task=task, root=str(tmp_path)).splits


def test_columns_of_labels_are_told_apart_by_name_in_any_order(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"text": f"t{i}", "rude": i % 2, "sad": i % 3 == 0} for i in range(12)])
    one = load("multilabel", train=str(path), val=str(path), label=["rude", "sad"], task={"labels": ["sad", "rude"]})
    other = load("multilabel", train=str(path), val=str(path), label=["sad", "rude"])
    assert one.labels == other.labels == ("sad", "rude")
    assert list(one.splits["train"]["label"]) == list(other.splits["train"]["label"])
    with pytest.raises(UserError, match=r"data.label=\[rude,sad\] must name the columns of the labels"):
        load("multilabel", train=str(path), val=str(path), label=["rude", "sad"], task={"labels": ["sad"]})


@pytest.mark.parametrize(
    ("answers", "hint"),
    [
        ({"text": ["Ada", "Ada"], "answer_start": [0]}, "line 1: 2 answers and other than as many offsets"),
        ({"text": ["Ada"], "answer_start": ["x"]}, "line 1: the offset 'x' of an answer is no whole number"),
    ],
)
def test_offsets_that_cannot_be_are_refused(tmp_path: Path, answers: dict[str, Any], hint: str) -> None:
    row = {"text": "who", "context": "Ada said Ada", "label": answers}
    path = lines(tmp_path / "a.jsonl", [row, row])
    with pytest.raises(UserError, match=hint):
        load("span", train=str(path), val=str(path), text_pair="context")


def test_answers_without_offsets_stand_at_their_first_place(tmp_path: Path) -> None:
    row = {"text": "who", "context": "so Ada said Ada", "label": {"text": ["Ada"]}}
    path = lines(tmp_path / "a.jsonl", [row, row])
    assert load("span", train=str(path), val=str(path), text_pair="context").splits["train"][0]["label"]["start"] == [3]


def test_endings_without_columns_and_half_a_character_are_named(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"text": "so", "label": 0}] * 3)
    with pytest.raises(UserError, match=r"line 1: there are no endings to choose from.*data.choices"):
        load("multiple_choice", train=str(path), val=str(path))
    path.write_text('{"text": "\\ud83d", "label": "a"}\n{"text": "b", "label": "b"}\n')
    with pytest.raises(UserError, match=r"line 1: .*half of a character"):
        load("classification", train=str(path), val=str(path))
    with pytest.raises(UserError, match="is a folder"):
        load("classification", train=str(tmp_path), val=str(path))


def test_a_label_of_minus_1_among_others_is_a_hidden_one(tmp_path: Path) -> None:
    train = lines(tmp_path / "a.jsonl", [{"text": f"t{i}", "label": i % 2} for i in range(4)])
    test = lines(tmp_path / "b.jsonl", [{"text": "a", "label": 1}, {"text": "b", "label": -1}])
    with pytest.raises(UserError, match="line 2: label '-1', a hidden one"):
        load("classification", train=str(train), val=str(train), test=str(test))
