"""Bad input: the message names the file, the line and the remedy, and comes in seconds."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnlab.data.load import load_examples
from attnlab.data.spec import DataSpec
from attnlab.errors import UserError

TASKS = Path(__file__).parents[2] / "conf" / "task"
GOOD = "text,label\na,0\nb,1\nc,0\nd,1\n"


def refusal(task: str = "custom", kind: str | None = None, **data: Any) -> str:
    config = yaml.safe_load((TASKS / f"{task}.yaml").read_text())
    if kind:
        config["kind"] = kind
    with pytest.raises(UserError) as caught:
        load_examples(DataSpec.from_config(config, {"root": "/nowhere", **data}))
    return str(caught.value)


def file(folder: Path, content: str | bytes, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_no_data_lists_each_place_tried_and_the_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(key, raising=False)
    start = time.monotonic()
    said = refusal("cola", root=str(tmp_path))
    assert time.monotonic() - start < 10
    assert str(tmp_path / "CoLA" / "train.tsv") in said
    assert "Hub, nyu-mll/glue/cola: not reachable" in said
    assert "ATTNLAB_DATA" in said
    assert "task=movie_reviews" in said
    assert "data.train=" in said


def test_local_only_says_that_the_hub_was_not_asked(tmp_path: Path) -> None:
    assert "not asked (data.source=local)" in refusal("rte", root=str(tmp_path), source="local")


def test_custom_without_a_file_says_what_to_type() -> None:
    said = refusal()
    assert "data.train=my.csv" in said
    assert "task=movie_reviews" in said


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert f"no file {tmp_path / 'no.csv'}" in refusal(train=tmp_path / "no.csv")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_a_misnamed_column_gets_the_nearest_name(tmp_path: Path, name: str) -> None:
    rows = {"a.csv": GOOD, "a.tsv": GOOD.replace(",", "\t"), "a.jsonl": '{"text": "a", "label": 0}'}
    said = refusal(train=file(tmp_path, rows[name], name), text="txt")
    assert "no column 'txt' (set by data.text or the task)" in said
    assert "did you mean 'text'" in said
    assert "One of: label, text" in said


def test_semicolons_are_recognised(tmp_path: Path) -> None:
    assert "separated by semicolons" in refusal(train=file(tmp_path, GOOD.replace(",", ";"), "a.csv"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "a.csv",
            "text,label\na,0\nb,1,x\n",
            "line 3: 3 fields where 2 are expected (text, label)",
        ),
        ("a.csv", 'text,label\n"a\nb",0\nb\n', "line 4: 1 field where 2"),
        ("a.tsv", "text\tlabel\na\t0\nb\n", "line 3: 1 field where 2"),
        ("a.csv", "", "is empty"),
        ("a.tsv", "\n \n", "is empty"),
        ("a.csv", "text,label\n", "has a header line but no rows"),
        ("a.csv", 'text,label\na,0\n"b,1\n', "line 3: not valid CSV"),
        ("a.csv", b"text,label\na,0\ncaf\xe9,1\n", "line 3: not UTF-8 (byte 0xe9 at offset 18)"),
        ("a.jsonl", '{"text": "a", "label": 0}\n{"text": \n', "line 2: not valid JSON"),
        ("a.jsonl", '{"text": "a", "label": 0}\n[1]\n', "line 2: a list, not a JSON object"),
        ("a.json", '[{"text": "a"},\n{]', "line 2: not valid JSON"),
        ("a.parquet", "no", "not a readable Parquet file"),
        ("a.xlsx", "x", "cannot tell the format from the extension '.xlsx'"),
        ("a.csv.gz", "x", "cannot be unpacked"),
        ("a.csv", "text,text,label\na,b,0\n", "column 'text' is there twice"),
        ("a.csv", "text,label\na,0\nb,\n", "line 3: the label is missing"),
        ("a.csv", "text,label\na,0\nb,0\n", "every label is '0'"),
        ("a.csv", "text,label\n ,0\n,1\n", "every text in column 'text' is empty"),
    ],
)
def test_a_broken_file_is_named_with_the_line(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    said = refusal(train=file(tmp_path, content, name))
    assert str(tmp_path / name) in said
    assert words in said


def test_a_validation_label_that_training_lacks_is_refused(tmp_path: Path) -> None:
    val = file(tmp_path, "text,label\na,good\nb,goood\n", "val.csv")
    train = file(tmp_path, "text,label\na,good\nb,bad\n")
    said = refusal(train=train, val=val)
    assert f"{val}, line 3: label 'goood' is not among the labels" in said
    assert "did you mean 'good'" in said


def test_an_id_does_not_stand_for_a_label_that_was_read_from_the_data(tmp_path: Path) -> None:
    train = file(tmp_path, "text,label\na,good\nb,bad\n")
    val = file(tmp_path, "text,label\na,0\n", "val.csv")
    assert "line 2: label '0' is not among the labels" in refusal(train=train, val=val)


def test_a_label_outside_the_tasks_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "SST-2").mkdir()
    path = file(tmp_path / "SST-2", "good\t1\nbad\t2\n", "train.tsv")
    said = refusal("sst2", root=str(tmp_path))
    assert f"{path}, line 2: label '2'" in said
    assert "negative, positive" in said


def test_a_text_label_in_a_regression_is_refused(tmp_path: Path) -> None:
    said = refusal(kind="regression", train=file(tmp_path, "text,label\na,1.5\nb,high\n"))
    assert "line 3: label 'high' is not a finite number" in said


def test_numbers_as_classes_lead_to_regression(tmp_path: Path) -> None:
    rows = "".join(f"t{i},{i / 7:.3f}\n" for i in range(50))
    assert "task.kind=regression" in refusal(train=file(tmp_path, "text,label\n" + rows))


def test_texts_as_labels_are_doubted(tmp_path: Path) -> None:
    rows = "".join(f"t{i},name {i}\n" for i in range(50))
    assert "is data.label the right column?" in refusal(train=file(tmp_path, "text,label\n" + rows))


def test_a_users_test_file_must_have_labels(tmp_path: Path) -> None:
    train = file(tmp_path, GOOD)
    test = file(tmp_path, "text\na\n", "test.csv")
    assert f"{test} has no column 'label'" in refusal(train=train, val=train, test=test)


def test_own_files_do_not_go_with_the_embedded_task(tmp_path: Path) -> None:
    assert "task=custom" in refusal("movie_reviews", train=file(tmp_path, GOOD))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"source": "hubb"}, "did you mean 'hub'"),
        ({"limit": 0}, "data.limit=0 must be a whole number of at least 1"),
        ({"batch_size": "many"}, "data.batch_size=many"),
    ],
)
def test_a_wrong_setting_is_named(data: dict[str, Any], words: str) -> None:
    assert words in refusal(**data)


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("text,label\nx,-1\ny,-1\n", "every label is -1 or missing"),
        ("text\nx\n", "no label column"),
    ],
)
def test_a_test_set_of_the_users_without_labels_is_for_predict(tmp_path: Path, test: str, words: str) -> None:
    said = refusal(train=file(tmp_path, GOOD), test=file(tmp_path, test, "test.csv"))
    assert f"{tmp_path / 'test.csv'}: {words}" in said
    assert "Leave data.test out" in said
    assert f"attnlab predict run=FOLDER input={tmp_path / 'test.csv'}" in said


def doubt(**data: Any) -> list[str]:
    """The notes on input that is taken all the same; strict refuses it, with file and line."""
    config = yaml.safe_load((TASKS / "custom.yaml").read_text())
    config["columns"]["key"] = "key"
    spec = DataSpec.from_config(config, {"root": "/nowhere", **data})
    with pytest.raises(UserError, match=r"a\.csv, line 4: here begin .*data\.strict=true takes none"):
        load_examples(replace(spec, strict=True))
    return list(load_examples(spec).notes)


def test_ids_that_are_there_twice_are_counted(tmp_path: Path) -> None:
    path = file(tmp_path, "key,text,label\n7,a,0\n8,b,1\n7,c,0\n7,d,1\n")
    assert f"train: 2 rows with an id that was there before ({path}, the first at line 4)" in doubt(train=path)


def test_pairs_with_one_side_empty_leave_train_only(tmp_path: Path) -> None:
    path = file(tmp_path, "text,other,label\na,b,0\nb,c,1\nc,,0\nd,e,1\n")
    notes = doubt(train=path, val=path, text_pair="other")
    assert f"train: 1 row with one side empty dropped ({path}, the first at line 4)" in notes
    assert f"val: 1 row with one side empty kept ({path}, the first at line 4)" in notes


def test_an_item_of_a_json_list_is_named(tmp_path: Path) -> None:
    good = '{"text": "a", "label": "x"}, {"text": "b", "label": "y"}'
    said = refusal(
        train=file(tmp_path, f"[{good}]", "a.json"), val=file(tmp_path, f'{{"data": [{good}, 3]}}', "b.json")
    )
    assert "b.json, item 3: a int, not a JSON object" in said
