"""predict, evaluate and submission as they are typed: where files go, what words do not go together."""

from pathlib import Path

import pytest

from attnlab.cli import from_run, submission
from attnlab.cli.submission import submission_command
from attnlab.errors import UserError

from .finished_runs import finished_run, lines
from .glue_files import write_test_set


@pytest.fixture
def run(tmp_path):
    """An MNLI run with the test sets of MNLI-m and AX."""
    for name in ("MNLI-m.tsv", "AX.tsv"):
        write_test_set(tmp_path / "data", name, [0, 1, 2])
    return finished_run(tmp_path / "run", "task=mnli", f"data.root={tmp_path / 'data'}", "data.source=local")


def test_glues_file_goes_into_the_runs_predictions_or_where_it_is_sent(run, tmp_path, capsys):
    assert from_run.predict_command([f"run={run}", "split=test", "format=glue"]) == 0
    first = (run / "predictions" / "MNLI-m.tsv").read_text()
    assert len(first.splitlines()) == 4
    assert f"3 predictions written to {run / 'predictions' / 'MNLI-m.tsv'}" in capsys.readouterr().err
    words = [f"run={run}", "task=ax", "split=test", "format=glue"]
    from_run.predict_command([*words, f"output={tmp_path}/glue/"])
    assert (tmp_path / "glue" / "AX.tsv").is_file()
    from_run.predict_command([*words, f"output={tmp_path / 'mine.tsv'}"])
    assert (tmp_path / "mine.tsv").read_text() == (tmp_path / "glue" / "AX.tsv").read_text()


def test_a_split_goes_to_a_file_or_to_standard_output(run, tmp_path, capsys):
    from_run.predict_command([f"run={run}", "split=test"])
    printed = capsys.readouterr().out
    from_run.predict_command([f"run={run}", "split=test", f"output={tmp_path / 'out.jsonl'}"])
    assert printed == (tmp_path / "out.jsonl").read_text()
    assert [row["key"] for row in lines(tmp_path / "out.jsonl")] == ["0", "1", "2"]


def test_another_folder_may_hold_the_data(run, tmp_path):
    write_test_set(tmp_path / "elsewhere", "MNLI-m.tsv", [0, 1, 2, 3, 4])
    words = [f"run={run}", "split=test", f"output={tmp_path / 'out.jsonl'}"]
    from_run.predict_command([*words, f"data.root={tmp_path / 'elsewhere'}"])
    assert len(lines(tmp_path / "out.jsonl")) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("split=test format=tsv", "unknown format 'tsv'"),
        ("split=test input=a.csv", "input= or split=, not both"),
        ("format=glue", "add split=test"),
        ("format=squad", "format=squad writes a file: name it, output="),
        ("task=ax", "task says which split is read: add split=test"),
        ("data.root=x", "data.root says which split is read"),
        ("split=test task=axe", "unknown task 'axe': did you mean 'ax'?"),
        ("split=val format=glue", "not for task=mnli split=val"),
        ("split=test format=squad", "format=squad is for tasks of kind span, not task=mnli"),
        ("split=test format=glue output=-", "leave out output=-"),
        ("split=test output=nowhere/out.jsonl", "there is no folder nowhere"),
        ("split=test task=rte", "task=rte has the labels"),
        ("splits=test", "did you mean 'split'?"),
    ],
)
def test_words_that_do_not_go_together_are_refused(run, words, said):
    before = {path for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as caught:
        from_run.predict_command([f"run={run}", *words.split()])
    assert said in str(caught.value)
    assert {path for path in run.rglob("*") if path.is_file()} == before


def test_evaluate_takes_any_split_of_any_task_with_the_same_labels(run, tmp_path, capsys):
    (tmp_path / "data" / "XNLI").mkdir()
    (tmp_path / "data" / "XNLI" / "dev-zh.tsv").write_text("a film\tit was\tneutral\nit\tfine\tentailment\n")
    assert from_run.evaluate_command([f"run={run}", "task=xnli", "split=val_zh"]) == 0
    assert capsys.readouterr().out.startswith("accuracy")
    with pytest.raises(UserError, match=r"no split 'val_zk': did you mean 'val_zh'"):
        from_run.evaluate_command([f"run={run}", "task=xnli", "split=val_zk"])


def test_a_submission_as_it_is_typed(run, tmp_path):
    with pytest.raises(UserError, match=r"which runs\?"):
        submission_command([])
    with pytest.raises(UserError, match=r"runs=.*there is no folder nowhere"):
        submission_command([f"runs={run},nowhere"])
    with pytest.raises(UserError, match="the only choice is wnli=majority"):
        submission_command([f"runs={run}", "wnli=minority"])
    with pytest.raises(UserError, match="is a folder: name a file"):
        submission_command([f"runs={run}", f"output={tmp_path}"])
    with pytest.raises(UserError, match=r"CoLA.tsv: no finished run of task=cola: type python train.py task=cola"):
        submission_command([f"runs={run}", f"output={tmp_path / 'glue.zip'}"])
    assert not (tmp_path / "glue.zip").exists()


def test_folders_of_sweeps_have_commas_in_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["attn=softmax,seed=1", "b", "task=rte,seed=2"]
    for name in names:
        (tmp_path / name).mkdir()
    assert submission._folders(",".join(names)) == [Path(name) for name in names]
