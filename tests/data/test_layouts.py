"""The official downloads' layouts, in files of a few rows by hand: columns, labels, keys and what is left out."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnlab.data.load import Examples, load_examples, load_unlabelled
from attnlab.data.spec import DataSpec

TASKS = Path(__file__).parents[2] / "conf" / "task"
PARSES = "sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
MNLI = f"index promptID pairID genre {PARSES} sentence1 sentence2"
HANS = f"gold_label {PARSES} sentence1 sentence2 pairID heuristic subcase template"
ORDER = ["entailment", "neutral", "contradiction"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def tsv(header: str, *rows: dict[str, str]) -> str:
    names = header.split()
    return "".join("\t".join(line) + "\n" for line in [names, *([row.get(n, "x") for n in names] for row in rows)])


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def spec(task: str, root: Path, files: dict[str, str]) -> DataSpec:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    config = yaml.safe_load((TASKS / f"{task}.yaml").read_text("utf-8"))
    return DataSpec.from_config(config, {"root": root, "source": "local"})


def load(task: str, root: Path, files: dict[str, str]) -> Examples:
    return load_examples(spec(task, root, files))


def pairs(examples: Examples, split: str) -> list[tuple[str, str, int]]:
    part = examples.splits[split]
    return list(zip(part["text"], part["text_pair"], part["label"], strict=True))


def nli(**labels: str) -> list[dict[str, str]]:
    return [
        {"sentence1": f"p{i}", "sentence2": f"h{i}", "gold_label": label, "index": str(i), "pairID": f"{i}e"}
        for i, label in enumerate(labels.values())
    ]


THREE = nli(a="entailment", b="neutral", c="contradiction")
DASH = [*THREE, THREE[0] | {"gold_label": "-"}]
READ = [("p0", "h0", 0), ("p1", "h1", 1), ("p2", "h2", 2)]
MNLI_FILES = {
    "MNLI/train.tsv": tsv(f"{MNLI} label1 gold_label", *THREE),
    "MNLI/dev_matched.tsv": tsv(f"{MNLI} label1 label2 label3 label4 label5 gold_label", *THREE),
}


def test_mnli_as_glue_has_it(tmp_path: Path) -> None:
    more = {
        "MNLI/dev_mismatched.tsv": MNLI_FILES["MNLI/dev_matched.tsv"],
        "MNLI/test_matched.tsv": tsv(MNLI, *THREE),
        "MNLI/test_mismatched.tsv": tsv(MNLI, *THREE),
    }
    got = load("mnli", tmp_path, MNLI_FILES | more)
    assert list(got.splits) == ["train", "val", "val_mismatched"]
    assert all(pairs(got, split) == READ for split in got.splits)
    for split in ("test", "test_mismatched"):
        hidden = load_unlabelled(spec("mnli", tmp_path, {}), split)
        assert (hidden["key"][:], hidden["text"][:]) == (["0", "1", "2"], ["p0", "p1", "p2"])


def test_multinli_and_snli_as_their_authors_have_them_without_pairs_that_lack_a_consensus(tmp_path: Path) -> None:
    for task, folder, name in (("mnli", "MNLI", "multinli_1.0_{}"), ("snli", "SNLI", "snli_1.0_{}")):
        dev = "dev_matched" if task == "mnli" else "dev"
        files = {f"{folder}/{name.format(part)}.jsonl": jsonl(*DASH) for part in ("train", dev)}
        got = load(task, tmp_path, files)
        assert pairs(got, "train") == pairs(got, "val") == READ
        assert got.splits["val"]["key"][:] == ["0e", "1e", "2e"]
        assert any("1 row labelled '-' left out" in note for note in got.notes)


def test_the_diagnostic_set_is_the_test_set_of_ax_with_labels_only_in_the_full_file(tmp_path: Path) -> None:
    hidden = {"diagnostic/diagnostic.tsv": tsv("index sentence1 sentence2", *THREE)}
    assert list(load("ax", tmp_path, MNLI_FILES | hidden).splits) == ["train", "val"]
    assert load_unlabelled(spec("ax", tmp_path, {}), "test")["key"][:] == ["0", "1", "2"]
    rows = [{"Premise": p, "Hypothesis": h, "Label": ORDER[label]} for p, h, label in READ]
    full = {"diagnostic/diagnostic-full.tsv": tsv("Logic Knowledge Domain Premise Hypothesis Label", *rows)}
    assert pairs(load("ax", tmp_path, full), "test") == READ


def test_hans_trains_on_mnli_and_counts_non_entailment_as_neutral(tmp_path: Path) -> None:
    rows = nli(a="entailment", b="non-entailment")
    got = load("hans", tmp_path, MNLI_FILES | {"HANS/heuristics_evaluation_set.txt": tsv(HANS, *rows)})
    assert pairs(got, "train") == pairs(got, "val") == READ
    assert pairs(got, "test") == READ[:2]


def test_xnli_trains_on_english_and_has_a_set_for_each_language_that_is_there(tmp_path: Path) -> None:
    rows = "p0\th0\tentailment\r\np1\th1\tneutral\r\np2\th2\tcontradiction\r\n"
    files = {f"XNLI/{name}.tsv": rows for name in ("dev-en", "dev-zh", "test-en", "test-sw")}
    official = "premise\thypo\tlabel\np0\th0\tentailment\np1\th1\tneutral\np2\th2\tcontradictory\n"
    got = load("xnli", tmp_path, files | {"XNLI/multinli/multinli.train.en.tsv": official})
    assert list(got.splits) == ["train", "val", "test", "val_zh", "test_sw"]
    assert all(pairs(got, split) == READ for split in got.splits)
    assert pairs(load("xnli", tmp_path, MNLI_FILES), "train") == READ


@pytest.mark.parametrize(
    ("task", "folder", "train", "test"),
    [
        ("cola", "CoLA", "gj\t1\t\tGood.\ngj\t0\t*\tBad the.\n", "index\tsentence\n7\tWhat?\n"),
        ("sst2", "SST-2", "sentence\tlabel\ngood \t1\nbad \t0\n", "index\tsentence\n7\twhat ?\n"),
    ],
)
def test_only_the_hidden_test_file_has_a_header_or_an_index(
    tmp_path: Path, task: str, folder: str, train: str, test: str
) -> None:
    files = {f"{folder}/train.tsv": train, f"{folder}/dev.tsv": train, f"{folder}/test.tsv": test}
    got = load(task, tmp_path, files)
    assert {split: part["label"][:] for split, part in got.splits.items()} == {"train": [1, 0], "val": [1, 0]}
    assert load_unlabelled(spec(task, tmp_path, {}), "test")["key"][:] == ["7"]


@pytest.mark.parametrize(
    ("task", "folder", "header", "labels"),
    [
        ("qqp", "QQP", "id qid1 qid2 question1 question2 is_duplicate", ["1", "0"]),
        ("qnli", "QNLI", "index question sentence label", ["not_entailment", "entailment"]),
        ("rte", "RTE", "index sentence1 sentence2 label", ["not_entailment", "entailment"]),
        ("wnli", "WNLI", "index sentence1 sentence2 label", ["1", "0"]),
    ],
)
def test_pairs_as_glue_has_them(tmp_path: Path, task: str, folder: str, header: str, labels: list[str]) -> None:
    key, first, second, label = [header.split()[i] for i in (0, -3, -2, -1)]
    rows = [{key: str(i), first: f'p"{i}', second: f"h{i}", label: one} for i, one in enumerate(labels)]
    hidden = tsv(header.removesuffix(label), *rows)
    files = {f"{folder}/{split}.tsv": tsv(header, *rows) for split in ("train", "dev")}
    got = load(task, tmp_path, files | {f"{folder}/test.tsv": hidden})
    assert pairs(got, "train") == pairs(got, "val") == [('p"0', "h0", 1), ('p"1', "h1", 0)]
    assert "test" not in got.splits
    assert load_unlabelled(spec(task, tmp_path, {}), "test")["key"][:] == ["0", "1"]


def test_scitail_in_its_own_three_columns(tmp_path: Path) -> None:
    rows = 'a "b\tc\tentails\nd\te\tneutral\n'
    got = load("scitail", tmp_path, {f"SciTail/tsv_format/scitail_1.0_{s}.tsv": rows for s in ("train", "dev", "test")})
    assert list(got.splits) == ["train", "val", "test"]
    assert pairs(got, "train") == [('a "b', "c", 0), ("d", "e", 1)]


def test_imdb_is_a_folder_a_class_without_the_unlabelled_reviews_and_holds_out_its_own_validation(
    tmp_path: Path,
) -> None:
    kinds = {"train": ("neg", "pos", "unsup"), "test": ("neg", "pos")}
    files = {
        f"aclImdb/{split}/{label}/{i}_{label}.txt": f"{label} {i} {split}<br />"
        for split, labels in kinds.items()
        for label in labels
        for i in range(10)
    }
    got = load("imdb", tmp_path, files | {"aclImdb/train/urls_pos.txt": "http://"})
    assert got.labels == ("neg", "pos")
    assert {split: len(part) for split, part in got.splits.items()} == {"train": 18, "val": 2, "test": 20}
    assert not any("unsup" in text for part in got.splits.values() for text in part["text"])


def test_wikiqa_as_its_authors_have_it(tmp_path: Path) -> None:
    header = "QuestionID\tQuestion\tDocumentID\tDocumentTitle\tSentenceID\tSentence\tLabel\n"
    rows = 'Q1\twho?\tD1\tAda\tD1-0\tA "quote\t0\nQ1\twho?\tD1\tAda\tD1-1\tAda\t1\nQ9\twhy?\tD2\tB\tD2-0\tC\t0\n'
    files = {f"WikiQA/WikiQA-{split}.tsv": header + rows for split in ("train", "dev", "test")}
    got = load("wikiqa", tmp_path, files)
    assert pairs(got, "test") == [("who?", 'A "quote', 0), ("who?", "Ada", 1), ("why?", "C", 0)]
    assert got.splits["test"]["group"][:] == [0, 0, 1]


def test_trecqa_as_xml_and_as_parallel_files(tmp_path: Path) -> None:
    block = (
        "<QApairs id='{}'>\n<question>\nWho\t?\n</question>\n<positive>\nAda\t.\n</positive>\n"
        "<negative>\nBob\t.\n</negative>\n</QApairs>\n"
    )
    xml = block.format("1.1") + block.format("2.1")
    lines = {"a.toks": "Who ?\n" * 4, "b.toks": "Ada .\nBob .\n" * 2, "sim.txt": "1\n0\n" * 2, "id.txt": "1\n1\n2\n2\n"}
    files = {"TrecQA/data/TRAIN-ALL.xml": xml, "TrecQA/data/DEV.xml": xml}
    got = load("trecqa", tmp_path, files | {f"TrecQA/clean-test/{name}": text for name, text in lines.items()})
    for split in ("train", "val", "test"):
        assert pairs(got, split) == [("Who ?", "Ada .", 1), ("Who ?", "Bob .", 0)] * 2
        assert got.splits[split]["group"][:] == [0, 0, 1, 1]


def test_a_users_own_file_is_not_taken_for_the_folder_of_a_task(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    path.write_text("sentence,label\ngood,pos\nbad,neg\nfine,pos\npoor,neg\n", encoding="utf-8")
    config = yaml.safe_load((TASKS / "sentube_a.yaml").read_text("utf-8"))
    got = load_examples(DataSpec.from_config(config, {"root": tmp_path, "source": "local", "train": path, "val": path}))
    assert got.splits["train"]["label"][:] == [1, 0, 1, 0]
