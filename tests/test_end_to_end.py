"""The command line as users type it, on real sentences with the real pre-trained model."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .wandb_log import records

ROOT = Path(__file__).parents[1]
QUIET = ("trainer.progress_bar=false",)


def attnlab_command(*words: str, cwd: Path, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if k not in ("WANDB_API_KEY", "WANDB_MODE")}
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py") if words[0] == "train" else "-m", *_rest(words)],
        cwd=cwd, env=clean | env, capture_output=True, text=True, timeout=400,
        input=stdin, stdin=subprocess.DEVNULL if stdin is None else None,
    )  # fmt: skip


def _rest(words: tuple[str, ...]) -> tuple[str, ...]:
    return words[1:] if words[0] == "train" else ("attnlab", *words)


def only_run(folder: Path) -> Path:
    (status,) = folder.glob("outputs/**/status.json")
    return status.parent


@pytest.fixture(scope="module")
def embedded(tmp_path_factory) -> Path:
    """The embedded default on a quarter of its sentences, one epoch, with an offline W&B run."""
    folder = tmp_path_factory.mktemp("embedded")
    done = attnlab_command("train", *QUIET, "data.limit=2500", "trainer.max_epochs=1", "optim.lr=1e-4", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "stdout.txt").write_text(done.stdout)
    return folder


def test_the_embedded_default_learns_real_sentiment_with_sparse_attention(embedded):
    metrics = json.loads((only_run(embedded) / "metrics.json").read_text())
    majority = 0.617
    assert metrics["test"]["accuracy"] > majority + 0.08
    assert metrics["attention"]["density"] < 0.5


def test_the_closing_table_shows_metrics_density_cost_and_the_folder(embedded):
    shown = (embedded / "stdout.txt").read_text()
    run = only_run(embedded)
    metrics = json.loads((run / "metrics.json").read_text())
    assert f"{metrics['test']['accuracy']:.3f}" in shown
    for word in ("density", "throughput", "peak memory", run.name):
        assert word in shown, shown
    assert {p.name for p in (run / "plots").iterdir()} >= {"density.png", "probe_00.png"}


def test_the_offline_wandb_run_holds_config_metrics_density_and_heat_maps(embedded):
    run = only_run(embedded)
    (folder,) = (run / "wandb").glob("offline-run-*")
    (log,) = folder.glob("*.wandb")
    keys: set[str] = set()
    configs: set[str] = set()
    exits = 0
    for record in records(log):
        keys |= {item.key or "/".join(item.nested_key) for item in record.history.item}
        updates = [*record.run.config.update, *record.config.update]
        configs |= {item.key or "/".join(item.nested_key) for item in updates}
        exits += record.HasField("exit")
    assert {"train/loss", "val/accuracy", "test/accuracy", "attention/density/layer_05"} <= keys
    assert {f"attention/probe_{i}/_type" for i in range(3)} <= keys
    assert {"task", "attn", "optim", "seed"} <= configs
    assert exits == 1  # finished, not cut off
    pictures = list(folder.rglob("*.png"))
    assert len(pictures) == 3  # one evaluation, three sentences
    assert max(p.stat().st_size for p in pictures) <= 150_000


def test_evaluate_from_the_folder_gives_the_runs_score(embedded):
    run = only_run(embedded)
    done = attnlab_command("evaluate", f"run={run}", "split=test", "data.limit=null", cwd=embedded)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


def test_predict_reads_standard_input_and_gets_the_obvious_right(embedded):
    lines = '{"text": "a wonderful, moving and brilliant film"}\n{"text": "a dull, stupid and boring mess"}\n'
    done = attnlab_command("predict", f"run={only_run(embedded)}", cwd=embedded, stdin=lines)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [a["prediction"] for a in answers] == ["fresh", "rotten"]


def test_a_fresh_process_loads_the_model_with_its_attention(embedded):
    code = (
        "import attnlab, json, sys; m = attnlab.load(sys.argv[1]); "
        "from attnlab.attention import cores; "
        "print(type(m).__name__, {type(c.transform).__name__ for c in cores(m)})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(only_run(embedded) / "model")], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "BertForSequenceClassification {'Sparsemax'}", done.stderr


@pytest.mark.parametrize("task", ["sst2", "cola", "mrpc", "rte", "stsb"])
def test_every_task_runs_on_the_public_files(task, shared_data, tmp_path):
    done = attnlab_command(
        "train", f"task={task}", "attn=entmax15", "trainer.fast=true", "data.limit=64", "logger=csv", *QUIET,
        cwd=tmp_path, ATTNLAB_DATA=str(shared_data),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = json.loads((only_run(tmp_path) / "metrics.json").read_text())
    assert set(metrics["val"]) - {"loss"}


def test_your_own_csv_trains_by_configuration_alone(tmp_path, tiny_model):
    good, bad = "I loved every minute, number {}.", "A complete waste of time, number {}."
    lines = ["review,stars"] + [f'"{(good if i % 2 else bad).format(i)}",{5 if i % 2 else 1}' for i in range(80)]
    (tmp_path / "my.csv").write_text("\n".join(lines))
    done = attnlab_command(
        "train", "task=custom", "data.train=my.csv", "data.text=review", "data.label=stars", "logger=csv",
        f"model.name={tiny_model}", "trainer.max_epochs=1", *QUIET, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(tmp_path)
    rows = [json.loads(line) for line in (run / "predictions/val.jsonl").open()]
    assert {row["label"] for row in rows} == {"1", "5"}


def test_a_failing_job_neither_stops_nor_hides_the_others(tmp_path, tiny_model):
    done = attnlab_command(
        "train", "-m", "attn.layers=all,[9]", "seed=1,2", f"model.name={tiny_model}", "trainer.fast=true",
        "data.batch_size=8", "data.limit=64", *QUIET, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    states = [json.loads(p.read_text())["status"] for p in tmp_path.glob("outputs/multirun/**/status.json")]
    assert sorted(states) == ["done", "done", "failed", "failed"]
    assert "the model has layers 0 to 1, not 9" in done.stdout + done.stderr
    runs = [len(list(p.parent.glob("wandb/offline-run-*"))) for p in tmp_path.glob("outputs/multirun/**/model")]
    assert runs == [1, 1]


def test_a_sweep_over_density_ends_with_its_table_and_a_plot_against_softmax(tmp_path, tiny_model):
    done = attnlab_command(
        "train", "-m", "attn=topk", "sparsity.density=0.5,0.25", "attn.warmup_ratio=0.1",
        f"model.name={tiny_model}", "trainer.fast=true", "data.batch_size=8", "data.limit=64", "logger=csv", *QUIET,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "job 1 of 3" in done.stdout
    assert "job 3 of 3: softmax" in done.stdout
    assert "3 of 3 jobs done" in done.stdout
    (root,) = tmp_path.glob("outputs/multirun/*")
    with (root / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["done", "done", "done"]
    assert (rows[-1]["attn"], rows[-1]["sparsity"], rows[-1]["attention/density"]) == ("softmax", "none", "1.0")
    assert rows[-1]["folder"] == "attn=softmax,sparsity=none"
    run = root / rows[0]["folder"]
    assert float(rows[0]["val/accuracy"]) == json.loads((run / "metrics.json").read_text())["val"]["accuracy"]
    origin = json.loads((root / rows[-1]["folder"] / "provenance.json").read_text())
    assert "attn=softmax sparsity=none" in origin["command"]
    with (root / "density.csv").open() as file:
        points = [(row["attn"], row["sparsity.density"]) for row in csv.DictReader(file)]
    assert points == [("topk", "0.5"), ("topk", "0.25"), ("softmax", "")]
    assert (root / "density.png").stat().st_size > 5000
    assert str((root / "density.png").relative_to(tmp_path)) in done.stdout


def heed_ctrl_c() -> None:
    """What a script starts in the background ignores Ctrl-C, and so do the tests' own children, if they run there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_is_noted_and_resume_goes_on_in_the_same_folder(tmp_path, tiny_model):
    command = [
        sys.executable, str(ROOT / "train.py"), f"model.name={tiny_model}", "logger=csv", "data.limit=400",
        "trainer.max_epochs=160", "trainer.compile=false", "attn.kernel=eager", "data.max_length=32", *QUIET,
    ]  # fmt: skip
    with (tmp_path / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True, preexec_fn=heed_ctrl_c
        )
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("outputs/**/last.ckpt")) and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(timeout=60)
        finally:
            process.kill()
    run = only_run(tmp_path)
    assert code == 130, (tmp_path / "log.txt").read_text()
    assert json.loads((run / "status.json").read_text())["status"] == "interrupted"
    assert f"resume={run.relative_to(tmp_path)}" in (tmp_path / "log.txt").read_text()
    before = json.loads((run / "status.json").read_text())
    done = attnlab_command("train", f"resume={run}", "trainer.max_epochs=3", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "going on from" in done.stdout
    assert "160" in done.stdout  # the changed key is shown
    assert only_run(tmp_path) == run
    assert json.loads((run / "status.json").read_text())["status"] == "done" != before["status"]
