"""Hub datasets, read through `datasets.load_dataset` from a folder laid out as on the Hub."""

from pathlib import Path
from typing import Any

import datasets
import pytest

from attnlab.data.load import load_examples, load_unlabelled, narrowed
from attnlab.data.spec import DataSpec
from attnlab.errors import UserError


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    features = datasets.Features(
        {
            "sentence": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["not_entailment", "entailment"]),
        }
    )
    folder = tmp_path / "repo"
    folder.mkdir()
    for split, labels in (("train", [0, 1, 1]), ("validation", [1, 0]), ("test", [-1, -1])):
        columns = {"sentence": [f"{split} {i}" for i in range(len(labels))], "label": labels}
        part = datasets.Dataset.from_dict(columns, features=features)
        part.to_parquet(folder / f"{split}.parquet")
    return {
        "name": "t",
        "kind": "classification",
        "dataset": "T",
        "files": {"train": "train.tsv"},
        "hub": {"path": str(folder), "columns": {"text": "sentence"}},
        "columns": {"text": "question", "label": "label"},
    }


def test_class_labels_become_their_names_and_hidden_ones_are_ignored(hub: dict[str, Any]) -> None:
    hub["labels"] = ["entailment", "not_entailment"]
    got = load_examples(DataSpec.from_config(hub, {"root": "/nowhere"}))
    assert got.splits["train"]["label"][:] == [1, 0, 0]
    assert got.splits["val"]["text"][:] == ["validation 0", "validation 1"]
    assert "test" not in got.splits
    assert any("has no labels: ignored" in note for note in got.notes)
    assert got.source.startswith("Hugging Face Hub")


def test_a_split_that_the_hub_lacks_is_said_with_those_it_has(hub: dict[str, Any]) -> None:
    hub["hub"]["splits"] = {"train": "training"}
    with pytest.raises(UserError, match="no split 'training' in"):
        load_examples(DataSpec.from_config(hub, {"root": "/nowhere"}))


def test_a_trained_models_split_is_all_that_is_read_of_the_hub(hub: dict[str, Any]) -> None:
    spec = DataSpec.from_config(hub | {"labels": ["entailment", "not_entailment"]}, {"root": "/nowhere"})
    (Path(hub["hub"]["path"]) / "train.parquet").unlink()
    assert list(load_examples(narrowed(spec, "val")).splits) == ["val"]
    assert load_unlabelled(spec, "test")["text"][:] == ["test 0", "test 1"]
    with pytest.raises(UserError, match=r"no split 'tests': did you mean 'test'\? One of: test, train, val"):
        narrowed(spec, "tests")


def test_a_column_that_the_hub_lacks_is_named(hub: dict[str, Any]) -> None:
    hub["hub"]["columns"] = {"text": "sentense"}
    with pytest.raises(UserError, match="did you mean 'sentence'"):
        load_examples(DataSpec.from_config(hub, {"root": "/nowhere"}))


def test_rows_of_the_hub_without_a_label_can_be_left_out(hub: dict[str, Any]) -> None:
    """SNLI's pairs without a consensus are -1 there."""
    path = Path(hub["hub"]["path"]) / "train.parquet"
    part = datasets.Dataset.from_parquet(str(path))
    columns = {"sentence": ["a", "b", "c"], "label": [1, -1, 0]}
    datasets.Dataset.from_dict(columns, features=part.features).to_parquet(path)
    hub["labels"] = ["entailment", "not_entailment"]
    hub["hub"]["splits"] = {"train": "train", "val": "validation"}
    with pytest.raises(UserError, match="row 1: the label is missing"):
        load_examples(DataSpec.from_config(hub, {"root": "/nowhere"}))
    hub["layouts"] = [{"match": "hub:*", "skip": [""]}]
    train = load_examples(DataSpec.from_config(hub, {"root": "/nowhere"})).splits["train"]
    assert (train["text"][:], train["label"][:]) == (["a", "c"], [0, 1])


def test_a_split_may_come_from_another_dataset_at_a_revision(
    hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    load = datasets.load_dataset

    def recorded(path: str, name: str | None, revision: str | None) -> datasets.DatasetDict:
        asked.append((path, name, revision))
        return load(hub["hub"]["path"])

    monkeypatch.setattr("datasets.load_dataset", recorded)
    hub["hub"]["splits"] = {"train": "train", "val": "them/hans@refs/convert/parquet::validation"}
    got = load_examples(DataSpec.from_config(hub, {"root": "/nowhere"}))
    assert asked == [(hub["hub"]["path"], None, None), ("them/hans", None, "refs/convert/parquet")]
    assert got.splits["val"]["text"][:] == ["validation 0", "validation 1"]
