"""The command line as a user meets it, short of training: words, messages, exit codes."""

import errno
import gc
import json
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from attnlab.cli.choices import group_choices
from attnlab.cli.entry import main
from attnlab.cli.from_run import _lines
from attnlab.cli.overrides import MAX_FOLDER_NAME, check, check_jobs, job_folder
from attnlab.cli.reference import reference_config, softmax_references
from attnlab.cli.resume import newest_runs, resume_target, resumed_config
from attnlab.cli.train import _let_go
from attnlab.errors import UserError

ROOT = Path(__file__).parents[1]


def attnlab(*words: str, cwd: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "attnlab", *words]
    return subprocess.run(command, cwd=cwd, input=text, capture_output=True, text=True, timeout=120, check=False)


def refused(*words: str, cwd: Path) -> str:
    """The message of a command that must be refused: exit code 2, no traceback."""
    done = attnlab(*words, cwd=cwd)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert list(cwd.iterdir()) == [], "a refused command leaves nothing behind"
    return done.stderr


def fake_run(folder: Path) -> Path:
    (folder / "checkpoints").mkdir(parents=True)
    config = {"seed": 1, "resume": None, "trainer": {"max_epochs": 2}, "attn": {"layers": "all"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "status.json").write_text(json.dumps({"status": "interrupted"}))
    return folder


def test_help_lists_every_choice_and_fits_80_columns(tmp_path: Path) -> None:
    done = attnlab("--help", cwd=tmp_path)
    assert done.returncode == 0
    words = set(done.stdout.split())
    for group, names in group_choices([ROOT / "conf"]).items():
        assert {f"{group}=", *names} <= words
    assert "sparsebert/masks" in words, "an experiment in a folder of its own is named with it"
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("command", ["train", "evaluate", "predict", "submission", "export"])
def test_every_command_explains_itself(command: str, tmp_path: Path) -> None:
    done = attnlab(command, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "usage:" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_cfg_job_prints_the_composed_config_and_runs_nothing(tmp_path: Path) -> None:
    done = attnlab("--cfg", "job", "attn=sparsegen", "attn.lam=-2", cwd=tmp_path)
    assert done.returncode == 0
    config = yaml.safe_load(done.stdout)
    assert config["attn"]["name"] == "sparsegen"
    assert config["attn"]["lam"] == -2
    assert "hydra" not in config
    assert list(tmp_path.iterdir()) == []


def test_options_may_stand_anywhere(tmp_path: Path) -> None:
    first = attnlab("--cfg", "job", "seed=7", "optim.lr=1", cwd=tmp_path)
    last = attnlab("seed=7", "--cfg", "job", "optim.lr=1", cwd=tmp_path)
    assert first.stdout == last.stdout
    assert yaml.safe_load(last.stdout)["seed"] == 7


def test_the_script_the_module_and_the_command_are_the_same(tmp_path: Path) -> None:
    words = ["--cfg", "job", "seed=7"]
    by_module = attnlab("train", *words, cwd=tmp_path).stdout
    script = [sys.executable, str(ROOT / "train.py"), *words]
    by_script = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert by_script.stdout == by_module != ""


def test_a_full_disk_is_told_in_a_line(monkeypatch, capsys) -> None:
    def full(words: list[str]) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "scores.jsonl")

    monkeypatch.setattr("attnlab.cli.entry.dispatch", full)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: No space left on device: scores.jsonl: make room and repeat\n"


def test_no_torch_before_the_words_are_known_to_be_good(tmp_path: Path) -> None:
    code = """
import sys
from attnlab.cli.entry import dispatch
from attnlab.errors import UserError
dispatch(["--help"])
dispatch(["--cfg", "job"])
export = ["export", "what=mask", "run=nowhere"]
for words in (["attn=sparsmax"], ["resume=nowhere"], ["evaluate", "run=nowhere"], export):
    try:
        dispatch(words)
    except UserError:
        pass
    else:
        sys.exit(f"{words} was not refused")
heavy = {"torch", "transformers", "pytorch_lightning", "datasets", "wandb"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["attn=sparsmax"], "unknown attn 'sparsmax': did you mean 'sparsemax'? One of: budget"),
        (["-m", "attn=softmax,sparsmax"], "unknown attn 'sparsmax': did you mean 'sparsemax'?"),
        (["task=sst22"], "unknown task 'sst22': did you mean 'sst2'?"),
        (["model=roberta"], "model.name=<Hub id or folder>"),
        (["experiment=ssaf"], "did you mean 'ssaf_sst2'?"),
        (["experiment=sparsebert/mask"], "did you mean 'sparsebert/masks'?"),
        (["optim.lrr=1"], "did you mean 'optim.lr'?"),
        (["atn=sparsemax"], "did you mean 'attn'?"),
        (["trainer.max_epoch=3"], "did you mean 'trainer.max_epochs'?"),
        (["trainr.max_epochs=3"], "did you mean 'trainer.max_epochs'?"),
        (["lr=3e-5"], "did you mean 'optim.lr'?"),
        (["epochs=3"], "did you mean 'trainer.max_epochs'?"),
        (["attn=sparsemax", "attn.lam=-1"], "only attn=sparsegen, attn=sparsegen_exp have it"),
        (["-m", "attn=sparsegen,softmax", "attn.lam=-1"], "'attn.lam' with attn=softmax"),
        (["data=3"], "data is a section, not a value"),
        (["task.labels.x=1"], "has no key 'x'"),
        (["attn=softmax,sparsemax"], "add -m"),
        (["seed=1,2"], "add -m"),
        (["sweep=attentions"], "sweep=attentions asks for several runs"),
        (["experiment=sparsebert/masks"], "experiment=sparsebert/masks asks for several runs"),
        (["-m", "seed=1,2,1"], "seed=1,2,1 lists a value twice"),
        (["data.train=a=b"], "needs quotes"),
        (["seed=${nothing}"], "'nothing' not found"),
        (["seed=1", "sst2"], "'sst2' is not of the form key=value"),
        (["--multi"], "unknown option '--multi': did you mean '--multirun'?"),
        (["-m", "--cfg", "job"], "leave out -m"),
        (["trian"], "unknown command 'trian': did you mean 'train'?"),
        (["evaluate"], "attnlab evaluate run=FOLDER"),
        (["evaluate", "runs=x"], "unknown argument 'runs': did you mean 'run'?"),
        (["evaluate", "run=nowhere"], "nowhere is not a run folder: it does not exist"),
        (["predict", "run=nowhere"], "nowhere is not a run folder: it does not exist"),
        (["export", "what=mask", "run=nowhere"], "nowhere is not a run folder: it does not exist"),
        (["export", "run=nowhere"], "attnlab export run=FOLDER what=mask"),
        (["predict", "run="], "has no value"),
        (["resume=nowhere"], "nowhere is not a run folder: it does not exist"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_word_is_refused_with_the_right_one(words: list[str], meant: str, tmp_path: Path) -> None:
    assert meant in refused(*words, cwd=tmp_path)


def test_a_folder_that_is_no_run_is_named_with_the_newest_runs(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "outputs" / "sst2" / "softmax" / "one")
    (tmp_path / "empty").mkdir()
    done = attnlab("resume=empty", cwd=tmp_path)
    assert done.returncode == 2
    assert "it has no config.yaml and no status.json" in done.stderr
    assert str(run.relative_to(tmp_path)) in done.stderr


def test_predict_names_the_input_file_that_is_missing(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    done = attnlab("predict", f"run={run}", "input=none.jsonl", cwd=tmp_path)
    assert done.returncode == 2
    assert "input=none.jsonl: there is no such file" in done.stderr


def test_predict_does_not_write_over_its_own_input(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    (tmp_path / "a.csv").write_text("text\na fine film\n")
    done = attnlab("predict", f"run={run}", "input=a.csv", "output=./a.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert "is the input itself" in done.stderr
    assert (tmp_path / "a.csv").read_text() == "text\na fine film\n"


def test_a_txt_file_is_read_as_lines_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbffirst\nsecond\n")
    with _lines(path) as texts:
        assert not isinstance(texts, Path)
        assert texts.read() == "first\nsecond\n"


def test_evaluate_knows_the_splits_that_it_can_score(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    done = attnlab("evaluate", f"run={run}", "split=train", cwd=tmp_path)
    assert done.returncode == 2
    assert "split=train: a score on what was learned by heart says nothing" in done.stderr


def test_a_failed_jobs_error_holds_no_model(tmp_path: Path) -> None:
    class Model:
        pass

    def job() -> None:
        model = Model()
        seen.append(weakref.ref(model))
        raise ValueError("out of memory")

    seen: list[weakref.ref[Model]] = []
    try:
        try:
            job()
        except ValueError as cause:
            raise RuntimeError("the job failed") from cause
    except RuntimeError as error:
        kept = error
    assert seen[0]() is not None
    _let_go(kept)
    gc.collect()
    assert seen[0]() is None


def test_a_group_cannot_change_when_resuming(tmp_path: Path) -> None:
    fake_run(tmp_path / "run")
    done = attnlab("resume=run", "attn=softmax", cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot be changed when resuming" in done.stderr


def test_resuming_puts_the_typed_keys_over_the_saved_config(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    config, changes = resumed_config(run, [f"resume={run}", "trainer.max_epochs=5", "seed=1", 'hydra.run.dir="x"'])
    assert config.trainer.max_epochs == 5
    assert config.resume == str(run)
    assert changes == ["trainer.max_epochs: 2 -> 5"], "what stays equal is no change"


def test_resuming_refuses_a_key_that_the_run_does_not_have(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    with pytest.raises(UserError, match=r"did you mean 'trainer\.max_epochs'"):
        resumed_config(run, ["trainer.max_epoch=5"])


def test_the_folder_to_resume_may_have_commas_and_equals_signs() -> None:
    words = ["seed=2", "resume=outputs/multirun/x/attn=softmax,seed=1"]
    assert resume_target(words) == Path("outputs/multirun/x/attn=softmax,seed=1")
    assert resume_target(["resume=auto"]) is None
    assert resume_target(["seed=1"]) is None


def test_newest_runs_come_first(tmp_path: Path) -> None:
    for age, name in enumerate(["new", "old", "oldest"]):
        status = fake_run(tmp_path / "sst2" / name) / "status.json"
        os.utime(status, (1e9 - age, 1e9 - age))
    assert [run.name for run in newest_runs(tmp_path, count=2)] == ["new", "old"]


def test_a_failing_job_neither_stops_nor_hides_the_others(tmp_path: Path) -> None:
    done = attnlab(
        *["-m", "attn=softmax,sparsemax", "task=custom", "data.train=none.csv", "logger=csv"],
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "0 of 2 jobs done" in done.stdout
    for number, name in enumerate(["softmax", "sparsemax"], start=1):
        assert re.search(rf"attn={name}\b.*failed", done.stdout)
        assert f"job {number} failed: " in done.stdout
    assert done.stderr.count("none.csv") >= 2, "each job's own message"
    assert "Traceback" not in done.stderr
    (table,) = tmp_path.glob("outputs/multirun/*/sweep.csv")
    assert table.read_text().splitlines() == [
        "attn,status,attention/density,train/seconds,folder",
        "softmax,failed,,,attn=softmax",
        "sparsemax,failed,,,attn=sparsemax",
    ]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("task=sst2 attn=sparsegen,entmax,topk sparsity.density=0.5,0.25", ["task=sst2"]),
        ("attn=entmax attn.alpha=1.5 attn.layers=[1] sparsity.per=model sparsity.density=0.5,0.25", [""]),
        ("attn=entmax sparsity=low,high", [""]),
        ("attn=topk sparsity.density=0.5,0.25 seed=1,2 task=rte", ["seed=1 task=rte", "seed=2 task=rte"]),
        ("attn=softmax,topk sparsity.density=0.5,0.25", [""]),
        # nothing to compare, or softmax is there already
        ("attn=topk,entmax sparsity.density=0.5", []),
        ("attn=topk sparsity=none,high", []),
        ("attn=topk,entmax seed=1,2", []),
        ("attn=softmax,topk sparsity.density=null,0.5,0.25", []),
        ("attn=softmax,topk sparsity=none,low,high", []),
    ],
)
def test_a_sweep_over_density_has_one_softmax_run_a_setting_of_the_rest(words: str, meant: list[str]) -> None:
    references = softmax_references(check(words.split(), multirun=True))
    assert [" ".join(reference) for reference in references] == [
        f"attn=softmax sparsity=none {m}".strip() for m in meant
    ]


def test_a_softmax_reference_is_plain_softmax_whatever_the_experiment_says(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults: [{override /attn: topk}]\nattn: {k: 4}\nsparsity: {density: 0.3}\nseed: 7\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    words = ["experiment=mine", "attn=topk,sparsegen", "sparsity.density=0.5,0.1"]
    plan = check(words, multirun=True, extra_conf=tmp_path)
    (reference,) = softmax_references(plan)
    config = reference_config(plan, reference)
    assert config.seed == 7
    assert config.attn == reference_config(plan, ["attn=softmax"]).attn
    assert config.sparsity.density is None


def test_densities_of_a_sweep_file_count_like_typed_ones(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    lists = {"attn": "topk,entmax", "attn.warmup_ratio": "0.1,0.3", "sparsity.density": "0.5,0.1", "seed": "1,2"}
    text = yaml.safe_dump({"hydra": {"sweeper": {"params": lists}}})
    (tmp_path / "sweep" / "mine.yaml").write_text(f"# @package _global_\n{text}")
    plan = check(["sweep=mine"], multirun=True, extra_conf=tmp_path)
    assert plan.jobs == 16
    seeds = [{word for word in words if word.startswith("seed")} for words in softmax_references(plan)]
    assert seeds == [{"seed=1"}, {"seed=2"}]


def test_a_sweep_counts_its_jobs_and_knows_what_differs() -> None:
    words = ["attn=softmax,sparsemax", "seed=range(1,4)", "optim.lr=1e-4"]
    plan = check(words, multirun=True)
    assert plan.jobs == 6
    assert plan.swept == ("attn", "seed")
    assert plan.fixed == ("optim.lr",)


def test_a_value_that_one_job_cannot_take_is_refused_before_the_first_starts() -> None:
    plan = check(["attn=topk,softmax", "sparsity.density=0.5,0.1"], multirun=True)
    with pytest.raises(UserError, match=r"job 3 of 4 \(attn=softmax sparsity.density=0.5\).*type attn=entmax"):
        check_jobs(plan)
    check_jobs(check(["attn=topk,entmax", "sparsity.density=0.5,0.1"], multirun=True))


def test_a_sweep_file_counts_like_typed_lists_and_yields_to_them() -> None:
    assert check(["sweep=attentions"], multirun=True).jobs == len(group_choices([ROOT / "conf"])["attn"])
    assert check(["sweep=attentions", "attn=softmax"], multirun=True).jobs == 1
    with pytest.raises(UserError, match=r"unknown key 'attn\.lam' with attn=softmax"):
        check(["sweep=attentions", "attn=sparsegen,softmax", "attn.lam=-1"], multirun=True)


def test_an_experiment_may_be_a_sweep_and_lie_in_a_folder_of_its_own() -> None:
    plan = check(["experiment=sparsebert/no_diagonal"], multirun=True)
    assert plan.jobs == 2 * 5 * 3
    assert set(plan.swept) == {"mask", "task", "seed"}
    assert check(["experiment=sparsebert/no_diagonal", "task=rte", "seed=1"], multirun=True).jobs == 2


def test_more_yaml_files_may_come_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    text = (ROOT / "conf" / "task" / "sst2.yaml").read_text()
    (tmp_path / "task" / "mine.yaml").write_text(text)
    check(["task=mine"], multirun=False, extra_conf=tmp_path)
    with pytest.raises(UserError, match="unknown task 'mine'"):
        check(["task=mine"], multirun=False)


@given(st.lists(st.text(min_size=1, max_size=200), min_size=2, max_size=2, unique=True))
def test_sweep_folders_are_safe_short_and_never_shared(names: list[str]) -> None:
    folders = [job_folder(name) for name in names]
    assert folders[0] != folders[1]
    for folder in folders:
        assert len(folder) <= MAX_FOLDER_NAME
        assert re.fullmatch(r"[-\w.=,+]+", folder)
        assert folder not in (".", "..")


def test_a_readable_sweep_folder_stays_as_it_is() -> None:
    assert job_folder("attn=softmax,seed=1") == "attn=softmax,seed=1"
