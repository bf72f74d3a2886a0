"""The real files under ATTNLAB_DATA, each through its task's YAML: rows and labels count as published with them."""

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnlab.data.load import Examples, load_examples
from attnlab.data.spec import DataSpec

ROOT = Path(os.environ.get("ATTNLAB_DATA", "data"))
TASKS = Path(__file__).parents[2] / "conf" / "task"
SST5_TRAIN, SST5_VAL, SST5_TEST = (1092, 2218, 1624, 2322, 1288), (139, 289, 229, 279, 165), (279, 633, 389, 510, 399)
SST2 = {"train": (3310, 3610), "val": (428, 444), "test": (912, 909)}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield


def load(task: str, **files: str) -> Examples:
    """The task's data with some files changed. Where there is no training file, validation serves as one."""
    config = yaml.safe_load((TASKS / f"{task}.yaml").read_text("utf-8"))
    folder = ROOT / config["dataset"]
    if not folder.is_dir():
        pytest.skip(f"no {config['dataset']}/ under ATTNLAB_DATA={ROOT}")
    config["files"] |= files
    train, val = ([names] if isinstance(names, str) else names for names in map(config["files"].get, ("train", "val")))
    if not any((folder / name).exists() for name in train):
        config["files"]["train"] = val
    return load_examples(DataSpec.from_config(config, {"root": ROOT, "source": "local"}))


def counted(examples: Examples) -> dict[str, tuple[int, ...]]:
    return {
        split: tuple(count for _, count in sorted(Counter(part["label"]).items()))
        for split, part in examples.splits.items()
    }


@pytest.mark.parametrize(
    ("task", "counts"),
    [
        ("sst2", SST2),
        ("cola", {"train": (2528, 6023), "val": (322, 721)}),
        ("mrpc", {"train": (1194, 2474), "val": (129, 279), "test": (578, 1147)}),
        ("rte", {"train": (1249, 1241), "val": (146, 131)}),
        ("wnli", {"train": (323, 312), "val": (40, 31)}),
        ("sst5", {"train": SST5_TRAIN, "val": SST5_VAL, "test": SST5_TEST}),
        ("sst5_phrases", {"train": (7233, 27711, 81658, 33361, 9311), "val": SST5_VAL, "test": SST5_TEST}),
        ("sst2_trees", SST2),
        ("sst2_phrases", SST2 | {"train": (29780, 37569)}),
        ("sentube_a", {"train": (1478, 1903), "val": (98, 127), "test": (395, 508)}),
        ("sentube_t", {"train": (2507, 2490), "val": (167, 166), "test": (669, 665)}),
        ("wikiqa", {"train": (7632, 1040), "val": (990, 140), "test": (2058, 293)}),
    ],
)
def test_whole_tasks_count_as_published(task: str, counts: dict[str, tuple[int, ...]]) -> None:
    examples = load(task)
    assert counted(examples) == counts
    assert not [note for note in examples.notes if "the official file has" in note]


@pytest.mark.parametrize(
    ("task", "counts", "note"),
    [
        (
            "qqp",
            {"train": (1163, 637), "val": (129, 71)},
            "train: 2,000 rows; the official file has 363,846 or",
        ),
        ("qnli", {"val": (2702, 2761)}, "train: 5,463 rows; the official file has 104,743"),
        ("mnli", {"val": (3479, 3123, 3213), "val_mismatched": (346, 319, 335)}, "val_mismatched: 1,000 rows; the off"),
        ("snli", {"val": (3329, 3235, 3278), "test": (367, 322, 311)}, "test: 1,000 rows; the official file has 9,824"),
        ("scitail", {"val": (657, 647), "test": (842, 1284)}, "train: 1,304 rows; the official file has 23,596"),
        (
            "xnli",
            {"val": (830, 830, 830), "val_zh": (830, 830, 830)},
            "train: 2,490 rows; the official file has 392",
        ),
    ],
)
def test_parts_of_tasks_count_as_published_and_what_is_missing_is_said(
    task: str, counts: dict[str, tuple[int, ...]], note: str
) -> None:
    examples = load(task)
    assert counted(examples).items() >= counts.items()
    assert any(said.startswith(note) for said in examples.notes), examples.notes


def test_stsb_scores_are_as_published() -> None:
    splits = load("stsb").splits
    assert {split: len(part) for split, part in splits.items()} == {"train": 5749, "val": 1500, "test": 1379}
    means = {split: sum(part["label"]) / len(part) for split, part in splits.items()}
    assert means["train"] == pytest.approx(2.701, abs=5e-4)
    assert means["val"] == pytest.approx(2.364, abs=5e-4)
    assert splits["test"][0] == {
        "id": 0,
        "text": "A girl is styling her hair.",
        "text_pair": "A girl is brushing her hair.",
        "label": 2.5,
    }


def test_answers_of_one_question_are_one_group() -> None:
    splits = load("wikiqa").splits
    assert {split: len(set(part["group"])) for split, part in splits.items()} == {"train": 873, "val": 126, "test": 243}
    for part in splits.values():
        assert len(set(zip(part["group"], part["text"], strict=True))) == len(set(part["group"]))
        assert set(part["group"]) == {g for g, label in zip(part["group"], part["label"], strict=True) if label}


def test_sentences_of_the_trees_are_those_of_the_plain_files() -> None:
    """But for case, accents and punctuation, which the plain files lack; brackets are lrb and rrb there."""
    trees, plain = load("sst2_trees").splits, load("sst2").splits
    for split in trees:
        both = []
        for part in (trees[split], plain[split]):
            bare = [re.sub(r"\b[lr]rb\b|[^a-z0-9]", "", text.lower()) for text in part["text"]]
            both.append(sorted(zip(bare, part["label"], strict=True)))
        assert both[0] == both[1]


def test_both_layouts_of_scitail_have_the_same_labels() -> None:
    official = load("scitail").splits["test"]["label"][:]
    assert official == load("scitail", test="test.txt").splits["test"]["label"][:]


def test_squad_is_split_by_article_with_every_answer_in_its_place() -> None:
    examples = load("squad")
    assert sum(map(len, examples.splits.values())) == 1190
    contexts = {split: set(part["text_pair"]) for split, part in examples.splits.items()}
    assert sum(map(len, contexts.values())) == len(set().union(*contexts.values())) == 240
    assert len({key for part in examples.splits.values() for key in part["key"]}) == 1190
    for part in examples.splits.values():
        for context, answers in zip(part["text_pair"], part["label"], strict=True):
            assert answers["text"]
            for text, start in zip(answers["text"], answers["start"], strict=True):
                assert context[start : start + len(text)] == text


def test_six_of_the_fourteen_questions_of_squad_2_have_no_answer() -> None:
    part = load("squad_v2").splits["val"]
    assert (len(part), sum(not answers["text"] for answers in part["label"])) == (14, 6)


def test_swag_has_four_endings() -> None:
    splits = load("swag").splits
    assert sum(map(len, splits.values())) == 10
    assert all(len(endings) == 4 and 0 <= label < 4 for p in splits.values() for endings, label in choices(p))


def choices(part: Any) -> Any:
    return zip(part["choices"], part["label"], strict=True)


def test_a_lone_quotation_mark_swallows_no_rows() -> None:
    """csv's default quoting joins rows where a text begins with a quotation mark."""
    texts = load("mrpc").splits["train"]["text"]
    assert any(text.count('"') % 2 for text in texts)
    assert not any("\t" in text for text in texts)
