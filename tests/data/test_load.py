"""Loading: files in every format, labels, the hold-out, the subset, the fingerprint."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from attnlab.data.load import Examples, load_examples
from attnlab.data.spec import DataSpec

TASKS = Path(__file__).parents[2] / "conf" / "task"


def load(task: str, *, kind: str | None = None, **data: Any) -> Examples:
    config = yaml.safe_load((TASKS / f"{task}.yaml").read_text())
    if kind:
        config["kind"] = kind
    return load_examples(DataSpec.from_config(config, {"root": "/nowhere", **data}))


ROWS = [
    {
        "review": f'good, "film" {i}' if i % 2 else f"bad film {i}",
        "stars": "up" if i % 2 else "down",
    }
    for i in range(40)
]


def write(path: Path) -> Path:
    frame = pd.DataFrame(ROWS)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".tsv":
        path.write_text("review\tstars\n" + "".join(f"{r['review']}\t{r['stars']}\n" for r in ROWS))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif path.suffix == ".json":
        path.write_text(json.dumps(ROWS, indent=1))
    elif path.name.endswith(".csv.gz"):
        frame.to_csv(path, index=False, compression="gzip")
    else:
        frame.to_parquet(path)
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet", "a.csv.gz"])
def test_the_users_own_file_loads_the_same_from_every_format(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name)
    got = load("custom", train=path, val=path, text="review", label="stars")
    train = got.splits["train"]
    assert got.labels == ("down", "up")
    assert train["text"][:] == [row["review"] for row in ROWS]
    assert train["label"][:] == [i % 2 for i in range(40)]
    assert train["id"][:] == list(range(40))
    assert got.notes == (
        "labels read from the training data: down 20, up 20",
        "val: 40 distinct texts are in train too, case and punctuation aside",
    )


def test_relative_paths_start_at_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "my.csv")
    monkeypatch.chdir(tmp_path)
    got = load("custom", train="my.csv", text="review", label="stars")
    assert len(got.splits["train"]) + len(got.splits["val"]) == 40


def test_without_validation_data_a_stratified_tenth_is_held_out_and_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv")
    got = load("custom", train=path, text="review", label="stars")
    train, val = got.splits["train"], got.splits["val"]
    assert (len(train), len(val)) == (36, 4)
    assert sorted(val["label"]) == [0, 0, 1, 1]
    assert not set(train["id"]) & set(val["id"])
    assert any("held out of train" in note for note in got.notes)
    again = load("custom", train=path, text="review", label="stars")
    assert again.splits["val"]["id"][:] == val["id"][:]
    assert again.fingerprint == got.fingerprint


def test_the_only_example_of_a_class_stays_in_train(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"t{i},{'pos' if i % 2 else 'neg'}\n" for i in range(40)) + "x,rare\n")
    got = load("custom", train=path)
    assert got.labels == ("neg", "pos", "rare")
    assert set(got.splits["train"]["label"]) == {0, 1, 2}
    assert set(got.splits["val"]["label"]) == {0, 1}


def test_labels_that_are_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"t{i},{i % 11}\n" for i in range(44)))
    got = load("custom", train=path, val=path)
    assert got.labels == tuple(str(i) for i in range(11))
    assert got.splits["train"]["label"][10] == 10


def test_integer_labels_of_parquet_and_floats_mean_the_same(tmp_path: Path) -> None:
    pd.DataFrame({"text": ["a", "b"] * 5, "label": [1, 2] * 5}).to_parquet(tmp_path / "i.parquet")
    pd.DataFrame({"text": ["a", "b"] * 5, "label": [1.0, 2.0] * 5}).to_parquet(tmp_path / "f.parquet")
    got = load("custom", train=tmp_path / "i.parquet", val=tmp_path / "f.parquet")
    assert got.labels == ("1", "2")
    assert got.splits["val"]["label"][:2] == [0, 1]


def test_a_number_is_predicted_when_the_user_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"t{i},{i / 7:.3f}\n" for i in range(50)))
    got = load("custom", kind="regression", train=path)
    assert got.labels == ()
    assert got.splits["train"].features["label"].dtype == "float32"
    assert len(got.splits["val"]) == 5
    val = got.splits["val"]["label"][:]
    assert max(val) - min(val) > 3  # spread over the distribution, not from one end


def test_pairs_are_read_when_a_second_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,other,label\n" + "a,b,0\nc,d,1\n" * 5)
    got = load("custom", train=path, val=path, text_pair="other")
    assert got.splits["train"]["text_pair"][:2] == ["b", "d"]


def test_empty_texts_leave_train_and_stay_in_val_and_both_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\ngood,1\n  ,0\nbad,0\n,1\n")
    got = load("custom", train=path, val=path)
    assert got.splits["train"]["text"][:] == ["good", "bad"]
    assert got.splits["train"]["id"][:] == [0, 2]
    assert len(got.splits["val"]) == 4
    assert any("train: 2 rows with an empty text dropped" in note for note in got.notes)
    assert any("val: 2 rows with an empty text kept" in note for note in got.notes)


def test_a_tsv_written_with_quotes_is_mentioned(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"a, b"\t1\nplain\t0\n')
    got = load("custom", train=path, val=path)
    assert got.splits["train"]["text"][0] == '"a, b"'
    assert any("1 row with a text in quotation marks" in note for note in got.notes)


def test_csv_fields_may_hold_line_ends_commas_and_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes('\ufefftext,label\r\n"a ""b"",\r\nc",1\r\nd,0\r\n'.encode())
    got = load("custom", train=path, val=path)
    assert got.splits["train"]["text"][:] == ['a "b",\r\nc', "d"]


@pytest.mark.parametrize("limit", [2, 7, 20])
def test_limit_takes_a_stratified_subset_of_every_split(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"t{i},{int(i % 4 == 0)}\n" for i in range(200)))
    got = load("custom", train=path, val=path, test=path, limit=limit)
    for part in got.splits.values():
        assert len(part) == limit
        assert abs(sum(part["label"]) - limit / 4) <= 1
        assert 0 < sum(part["label"]) < limit
    assert any(f"train: {limit} of 200" in note for note in got.notes)


def test_fingerprint_sees_every_text_and_label(tmp_path: Path) -> None:
    def fingerprint(rows: str) -> str:
        path = tmp_path / "a.csv"
        path.write_text("text,label\n" + rows)
        return load("custom", train=path, val=path).fingerprint

    first = fingerprint("a,0\nb,1\n")
    assert first == fingerprint("a,0\nb,1\n")
    assert len({first, fingerprint("a,1\nb,0\n"), fingerprint("a,0\nc,1\n")}) == 3


def test_the_users_validation_file_replaces_the_tasks(tmp_path: Path) -> None:
    folder = tmp_path / "SST-2"
    folder.mkdir()
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text("good\t1\nbad\t0\n")
    (tmp_path / "mine.csv").write_text("sentence,label\nx,1\ny,0\nz,positive\n")
    got = load("sst2", root=str(tmp_path), val=tmp_path / "mine.csv")
    assert got.splits["val"]["label"][:] == [1, 0, 1]
    assert len(got.splits["train"]) == 2


def test_an_official_glue_download_works_and_its_unlabelled_test_is_ignored(tmp_path: Path) -> None:
    for task, folder, head, rows, test in [
        ("sst2", "SST-2", "sentence\tlabel", "good \t1\nbad \t0\n", "index\tsentence\n0\tx\n"),
        ("cola", "CoLA", None, "a\t1\t\tyes\na\t0\t*\tno\n", "index\tsentence\n0\tx\n"),
        (
            "rte",
            "RTE",
            "index\tsentence1\tsentence2\tlabel",
            "0\ta\tb\tentailment\n1\tc\td\tnot_entailment\n",
            "index\tsentence1\tsentence2\n0\ta\tb\n",
        ),
        (
            "mrpc",
            "MRPC",
            "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            '1\t1\t2\t"a\tb\n0\t1\t2\tc\td\n',
            "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\ta\tb\n",
        ),
    ]:
        place = tmp_path / folder
        place.mkdir()
        for name in ("train", "dev"):
            (place / f"{name}.tsv").write_text((f"{head}\n" if head else "") + rows)
        (place / "test.tsv").write_text(test)
        got = load(task, root=str(tmp_path))
        assert {k: len(v) for k, v in got.splits.items()} == {"train": 2, "val": 2}, task
        assert "test.tsv has no labels: ignored" in got.notes[0]


def test_texts_that_an_evaluation_shares_with_train_are_counted_once_each(tmp_path: Path) -> None:
    def write(name: str, rows: str) -> Path:
        (tmp_path / name).write_text("text,other,label\n" + rows)
        return tmp_path / name

    train = write("train.csv", "a,b,0\nc,d,1\nc,d,0\ne,f,1\n")
    val = write("val.csv", "c,d,1\nC,d!,1\na,x,0\n")
    test = write("test.csv", "e,f,1\na,b,0\n")
    said = "in train too, case and punctuation aside"
    notes = load("custom", train=train, val=val, test=test, text_pair="other").notes
    assert notes[-2:] == (
        f"val: 1 distinct text is {said}",
        f"test: 2 distinct texts are {said}",
    )
    assert load("custom", train=train, val=val).notes[-1] == f"val: 2 distinct texts are {said}"
