"""GLUE's files and the whole submission are what gluebenchmark.com takes: names, header, labels, order, counts."""

import zipfile
from dataclasses import replace

import pytest
import torch

import attnlab
from attnlab.cli.from_run import task_group
from attnlab.errors import UserError
from attnlab.tasks import glue
from attnlab.training import submission
from attnlab.training.predict import predict_split
from attnlab.training.submission import candidates, submit

from ..finished_runs import finished_run
from ..glue_files import FILES, OTHERS, SINGLE, TEXTS, write_test_set
from ..report.tiny import tiny_tokenizer

# out of the paper, the benchmark's pages and its sample submission: task, split, what each output of our head is
# there (None: a number), rows of the test set
PUBLISHED = {
    "CoLA.tsv": ("cola", "test", ["0", "1"], 1063),
    "SST-2.tsv": ("sst2", "test", ["0", "1"], 1821),
    "MRPC.tsv": ("mrpc", "test", ["0", "1"], 1725),
    "STS-B.tsv": ("stsb", "test", None, 1379),
    "QQP.tsv": ("qqp", "test", ["0", "1"], 390965),
    "MNLI-m.tsv": ("mnli", "test", ["entailment", "neutral", "contradiction"], 9796),
    "MNLI-mm.tsv": ("mnli", "test_mismatched", ["entailment", "neutral", "contradiction"], 9847),
    "QNLI.tsv": ("qnli", "test", ["entailment", "not_entailment"], 5463),
    "RTE.tsv": ("rte", "test", ["entailment", "not_entailment"], 3000),
    "WNLI.tsv": ("wnli", "test", ["0", "1"], 146),
    "AX.tsv": ("ax", "test", ["entailment", "neutral", "contradiction"], 1104),
}
ORDER = [3, 0, 2, 1]


def expected(run, name):
    """The predictions as the benchmark wants them, by transformers alone."""
    labels = PUBLISHED[name][2]
    tokenizer, model = tiny_tokenizer(), attnlab.load(run)
    written = []
    for texts in [[text] for text in TEXTS] if name in SINGLE else zip(TEXTS, OTHERS, strict=True):
        with torch.no_grad():
            logits = model(**tokenizer(*texts, return_tensors="pt")).logits[0]
        written.append(labels[int(logits.argmax())] if labels else float(min(max(logits[0], 0), 5)))
    return written


def run_of(task, tmp_path, root):
    return finished_run(tmp_path / task, f"task={task}", f"data.root={root}", "data.source=local", accuracy=0.5)


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_header_the_labels_and_the_order_that_glue_wants(name, tmp_path, caplog):
    caplog.set_level("INFO", logger="attnlab")
    task, split, labels, count = PUBLISHED[name]
    root = tmp_path / "data"
    write_test_set(root, name, ORDER)
    run = run_of("mnli" if task == "ax" else task, tmp_path, root)
    assert predict_split(run, split, tmp_path / name, format="glue", task=task_group(task)) == 4
    header, *rows = (tmp_path / name).read_text("utf-8").splitlines()
    assert header == "index\tprediction"
    found = [row.split("\t") for row in rows]
    assert [int(index) for index, _ in found] == ORDER
    if labels is None:
        assert all(len(number.partition(".")[2]) == 3 for _, number in found)
        assert [float(number) for _, number in found] == pytest.approx(expected(run, name), abs=2e-3)
    else:
        assert [label for _, label in found] == expected(run, name)
    assert f"not the official test set: 4 rows, where the official test set has {count:,}" in caplog.text


def test_each_file_is_there_once_under_its_published_name_and_count():
    assert {f.name: (f.task, f.split, f.rows) for f in glue.FILES} == {
        name: (task, split, rows) for name, (task, split, _, rows) in PUBLISHED.items()
    }
    assert len(glue.FILES) == 11


def test_labels_go_by_name_whatever_the_order_of_the_models_head(tmp_path):
    root = tmp_path / "data"
    write_test_set(root, "WNLI.tsv", [0, 1, 2, 3])
    words = ("task=wnli", f"data.root={root}", "data.source=local")
    straight = finished_run(tmp_path / "a", *words)
    turned = finished_run(tmp_path / "b", *words, labels=["entailment", "not_entailment"])
    for run in (straight, turned):
        predict_split(run, "test", run / "WNLI.tsv", format="glue")
    one, other = ((run / "WNLI.tsv").read_text().splitlines()[1:] for run in (straight, turned))
    assert one != other
    assert [row.translate(str.maketrans("01", "10"))[-1] for row in one] == [row[-1] for row in other]


def test_glues_own_test_file_comes_before_one_that_has_labels_but_no_index(tmp_path):
    root = tmp_path / "data"
    write_test_set(root, "MRPC.tsv", ORDER)
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    labelled = root / "MRPC" / "msr_paraphrase_test.txt"
    labelled.write_text(header + "1\t8\t9\ta fine film\tfine\n0\t8\t9\tit was\tit\n", encoding="utf-8")
    run = run_of("mrpc", tmp_path, root)
    assert predict_split(run, "test", tmp_path / "MRPC.tsv", format="glue") == 4
    (root / "MRPC" / "test.tsv").unlink()
    assert predict_split(run, "test", tmp_path / "MRPC.tsv", format="glue") == 2
    assert [row.split("\t")[0] for row in (tmp_path / "MRPC.tsv").read_text().splitlines()] == ["index", "0", "1"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["0", "1", "2"], None),
        (["0", "1"], "2 rows, where the official test set has 3"),
        (["0", "2", "1"], "row 2 has the index 2, where the official test set has 1"),
        (["1", "2", "3"], "row 1 has the index 1, where the official test set has 0"),
    ],
)
def test_a_test_set_is_official_by_count_and_order(keys, said):
    assert glue.unlike_the_test_set(replace(glue.FILES[0], rows=3), keys) == said


@pytest.mark.parametrize(("task", "split"), [("sst5", "test"), ("cola", "val"), ("mnli", "val_mismatched")])
def test_what_glue_has_no_file_for_is_refused_with_what_it_has(task, split):
    with pytest.raises(UserError, match=rf"not for task={task} split={split}.*task=mnli split=test_mismatched"):
        glue.official_file(task, split)


TASKS = {name: task_group(name) for name in submission.TASKS}
TRAINED = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")


@pytest.fixture
def small(monkeypatch):
    """A GLUE whose test sets have four rows each."""
    files = tuple(replace(file, rows=4) for file in glue.FILES)
    monkeypatch.setattr(submission, "FILES", files)


@pytest.fixture
def outputs(tmp_path):
    """A finished run of each task but WNLI, two of CoLA, and all test sets."""
    for name in FILES:
        write_test_set(tmp_path / "data", name, [0, 1, 2, 3])
    words = (f"data.root={tmp_path / 'data'}", "data.source=local")
    for task in TRAINED[:-1]:
        metric = str(TASKS[task]["metrics"][0])
        finished_run(tmp_path / "outputs" / task / "softmax" / "s1", f"task={task}", *words, **{metric: 0.5})
    finished_run(tmp_path / "outputs" / "cola" / "softmax" / "s2", "task=cola", *words, matthews=0.6)
    return tmp_path / "outputs"


def test_a_submission_has_exactly_the_official_files_from_the_best_runs(outputs, small, tmp_path, caplog):
    caplog.set_level("INFO", logger="attnlab")
    output = tmp_path / "glue.zip"
    chosen = submit([outputs], output, tasks=TASKS, wnli_majority=True)
    assert chosen["cola"].folder == outputs / "cola" / "softmax" / "s2"
    assert "val matthews 0.6000, the best of 2 runs" in caplog.text
    with zipfile.ZipFile(output) as archive:
        assert sorted(archive.namelist()) == sorted(PUBLISHED)
        for name in archive.namelist():
            header, *rows = archive.read(name).decode().splitlines()
            assert header == "index\tprediction"
            assert [row.split("\t")[0] for row in rows] == ["0", "1", "2", "3"]
        assert archive.read("WNLI.tsv").decode() == "index\tprediction\n0\t0\n1\t0\n2\t0\n3\t0\n"
        cola = [row.split("\t")[1] for row in archive.read("CoLA.tsv").decode().splitlines()[1:]]
        assert cola == expected(chosen["cola"].folder, "CoLA.tsv")
    assert {path.name for path in tmp_path.iterdir()} == {"data", "outputs", "glue.zip"}


def test_an_incomplete_submission_is_refused_with_everything_that_is_missing_and_what_to_type(outputs, tmp_path):
    (tmp_path / "data" / "MNLI" / "test_mismatched.tsv").unlink()
    (outputs / "rte" / "softmax" / "s1" / "status.json").write_text('{"status": "failed"}')
    with pytest.raises(UserError) as caught:
        submit([outputs], tmp_path / "glue.zip", tasks=TASKS)
    said = {line.strip(" -").partition(":")[0]: line for line in str(caught.value).splitlines()[1:]}
    assert set(said) == set(PUBLISHED), "the small test sets have wrong counts, the others are not there"
    assert "no finished run of task=rte: type python train.py task=rte" in said["RTE.tsv"]
    assert "wnli=majority, which is customary" in said["WNLI.tsv"]
    assert "no test data of task=mnli split=test_mismatched" in said["MNLI-mm.tsv"]
    assert "4 rows, where the official test set has 390,965" in said["QQP.tsv"]
    assert "download_glue_data.py" in said["QQP.tsv"]
    assert not (tmp_path / "glue.zip").exists()


def test_without_any_run_every_task_is_named(tmp_path):
    with pytest.raises(UserError) as caught:
        submit([tmp_path], tmp_path / "glue.zip", tasks=TASKS)
    assert "MNLI-m.tsv MNLI-mm.tsv AX.tsv: no finished run of task=mnli" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1 + len(TRAINED)


def test_a_submission_that_breaks_off_leaves_the_old_one_alone(outputs, small, tmp_path):
    output = tmp_path / "glue.zip"
    output.write_text("the old one")
    (outputs / "stsb" / "softmax" / "s1" / "model" / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model.safetensors is missing"):
        submit([outputs], output, tasks=TASKS, wnli_majority=True)
    assert output.read_text() == "the old one"
    assert {path.name for path in tmp_path.iterdir()} == {"data", "outputs", "glue.zip"}


def test_only_finished_runs_of_glue_count_and_each_once(tmp_path):
    good = finished_run(tmp_path / "a" / "attn=softmax,seed=1", "task=rte", accuracy=0.5)
    finished_run(tmp_path / "a" / "other", "task=sst5", accuracy=0.5)
    finished_run(tmp_path / "a" / "unscored", "task=rte")
    (found,) = candidates([tmp_path, tmp_path / "a", good])["rte"]
    assert found.folder == good
    assert found.score == 0.5


def test_a_run_on_part_of_the_data_is_no_candidate(tmp_path):
    whole = finished_run(tmp_path / "whole", "task=rte", accuracy=0.5)
    finished_run(tmp_path / "some", "task=rte", "data.limit=60", accuracy=0.9)
    finished_run(tmp_path / "quick", "task=rte", "trainer.fast=true", accuracy=0.9)
    (found,) = candidates([tmp_path])["rte"]
    assert found.folder == whole
