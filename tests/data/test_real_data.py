"""The real files under ATTNLAB_DATA: rows and labels count as published with them."""

import os
from collections import Counter
from pathlib import Path

import pytest
import yaml

from attnlab.data.load import Examples, load_examples
from attnlab.data.spec import DataSpec

ROOT = Path(os.environ.get("ATTNLAB_DATA", "data"))
TASKS = Path(__file__).parents[2] / "conf" / "task"


def load(task: str) -> Examples:
    config = yaml.safe_load((TASKS / f"{task}.yaml").read_text())
    if not (ROOT / config["dataset"]).is_dir():
        pytest.skip(f"no {config['dataset']}/ under ATTNLAB_DATA={ROOT}")
    return load_examples(DataSpec.from_config(config, {"root": ROOT, "source": "local"}))


@pytest.mark.parametrize(
    ("task", "counts"),
    [
        ("sst2", {"train": (3310, 3610), "val": (428, 444), "test": (912, 909)}),
        ("cola", {"train": (2528, 6023), "val": (322, 721)}),
        ("mrpc", {"train": (1194, 2474), "val": (129, 279), "test": (578, 1147)}),
        ("rte", {"train": (1249, 1241), "val": (146, 131)}),
    ],
)
def test_classes_count_as_published(task: str, counts: dict[str, tuple[int, int]]) -> None:
    got = {
        split: tuple(count for _, count in sorted(Counter(part["label"]).items()))
        for split, part in load(task).splits.items()
    }
    assert got == counts


def test_stsb_scores_are_as_published() -> None:
    splits = load("stsb").splits
    assert {split: len(part) for split, part in splits.items()} == {
        "train": 5749,
        "val": 1500,
        "test": 1379,
    }
    means = {split: sum(part["label"]) / len(part) for split, part in splits.items()}
    assert means["train"] == pytest.approx(2.701, abs=5e-4)
    assert means["val"] == pytest.approx(2.364, abs=5e-4)
    assert splits["test"][0] == {
        "id": 0,
        "text": "A girl is styling her hair.",
        "text_pair": "A girl is brushing her hair.",
        "label": 2.5,
    }


def test_a_lone_quotation_mark_swallows_no_rows() -> None:
    """csv's default quoting joins rows where a text begins with a quotation mark."""
    texts = load("mrpc").splits["train"]["text"]
    assert any(text.count('"') % 2 for text in texts)
    assert not any("\t" in text for text in texts)
