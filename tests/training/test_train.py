"""One run from config to folder, on real sentences with a tiny model: what it leaves, and that it can be trusted."""

import csv
import errno
import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pytorch_lightning.callbacks import Callback
from sklearn.metrics import accuracy_score
from transformers import AutoTokenizer

import attnlab
from attnlab.attention import cores
from attnlab.errors import UserError
from attnlab.training import train
from attnlab.training.evaluate import evaluate
from attnlab.training.predict import predict
from attnlab.training.run_folder import find_unfinished, plain, read_status, write_config, write_json, write_status

from .resuming import assert_same_weights, train_until


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def run(make_config, tmp_path):
    return train(make_config(), tmp_path / "run")


def test_a_run_leaves_every_file_of_the_contract(run):
    folder = run.run_dir
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert {
        "config.yaml", "status.json", "metrics.json", "metrics.csv", "provenance.json",
        "checkpoints/last.ckpt", "checkpoints/best.ckpt", "model/config.json",
        "model/model.safetensors", "predictions/val.jsonl", "predictions/test.jsonl",
    } <= names  # fmt: skip
    assert not any(name.endswith(".tmp") for name in names)
    assert read_status(folder) == "done"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics == run.metrics
    assert set(metrics) == {"val", "test", "train", "attention"}
    assert metrics["train"]["steps"] == 12
    origin = json.loads((folder / "provenance.json").read_text())
    assert origin["seed"] == 1
    assert len(origin["data"]["fingerprint"]) == 64


def test_metrics_equal_scikit_learns_on_the_written_predictions(run):
    for split in ("val", "test"):
        written = rows(run.run_dir / "predictions" / f"{split}.jsonl")
        assert len({row["id"] for row in written}) == len(written) == 96
        ours = run.metrics[split]["accuracy"]
        theirs = accuracy_score([r["label"] for r in written], [r["prediction"] for r in written])
        assert ours == pytest.approx(theirs, abs=1e-6)
        loss = sum(-math.log(r["probabilities"][["rotten", "fresh"].index(r["label"])]) for r in written)
        assert run.metrics[split]["loss"] == pytest.approx(loss / 96, rel=1e-4)


def test_density_is_logged_by_layer_and_below_one_for_sparsemax(run):
    attention = run.metrics["attention"]
    assert {"density", "entropy", "support", "density/layer_00", "density/layer_01"} == set(attention)
    assert 0 < attention["density"] < 1
    mean = (attention["density/layer_00"] + attention["density/layer_01"]) / 2
    assert attention["density"] == pytest.approx(mean)
    with (run.run_dir / "metrics.csv").open() as file:
        header = next(csv.reader(file))
    assert {"train/loss", "val/accuracy", "attention/density", "attention/density/layer_01"} <= set(header)


def test_checkpoints_hold_plain_tensors_and_containers_only(run):
    for name in ("last", "best"):
        state = torch.load(run.run_dir / "checkpoints" / f"{name}.ckpt", weights_only=True)
        assert "state_dict" in state


def test_the_same_seed_gives_the_same_weights_to_the_last_bit(make_config, tmp_path):
    weights = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        result = train(make_config(f"seed={seed}"), tmp_path / name)
        weights.append(attnlab.load(result.run_dir).state_dict())
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert any(not torch.equal(weights[0][key], weights[2][key]) for key in weights[0])


def test_a_resumed_run_ends_where_an_unbroken_one_ends(make_config, tmp_path):
    whole = train(make_config("trainer.max_epochs=3"), tmp_path / "whole")
    folder = tmp_path / "parts"
    config = make_config("trainer.max_epochs=3")
    train_until(2, config, folder)
    assert read_status(folder) == "failed"
    assert find_unfinished(config, tmp_path) == folder
    resumed = train(config, folder)
    assert read_status(folder) == "done"
    assert find_unfinished(config, tmp_path) is None
    assert_same_weights(whole, resumed)
    with (folder / "metrics.csv").open() as file:
        epochs = {row["epoch"] for row in csv.DictReader(file) if row["val/accuracy"]}
    assert {"0", "1", "2"} <= epochs


def test_the_last_checkpoint_is_that_of_the_last_epoch_even_when_no_epoch_was_better(make_config, tmp_path):
    folder = tmp_path / "run"
    config = make_config("optim.lr=1e-12", "trainer.max_epochs=4")
    train_until(3, config, folder)
    epochs = {
        path.stem: torch.load(path, weights_only=True)["epoch"] for path in (folder / "checkpoints").glob("*.ckpt")
    }
    assert epochs == {"best": 0, "previous": 1, "last": 2}
    train(config, folder)
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}


def test_a_best_epoch_that_is_the_last_one_is_on_disk_once(make_config, tmp_path):
    folder = train(make_config("trainer.max_epochs=1"), tmp_path / "run").run_dir
    assert (folder / "checkpoints/best.ckpt").samefile(folder / "checkpoints/last.ckpt")


def test_a_checkpoint_cut_in_half_falls_back_to_the_one_before_and_says_so(make_config, tmp_path, caplog):
    folder = tmp_path / "run"
    config = make_config("optim.lr=1e-12", "trainer.max_epochs=4", f"resume={folder}")
    caplog.set_level("INFO", logger="attnlab")
    train_until(3, config, folder)
    for name, fallback in (("last", "previous.ckpt (after epoch 2)"), ("best", "last.ckpt")):
        path = folder / "checkpoints" / f"{name}.ckpt"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        caplog.clear()
        train(config, folder)
        assert f"{name}.ckpt is damaged" in caplog.text
        assert fallback in caplog.text
        assert read_status(folder) == "done"


def test_a_disk_too_small_for_the_checkpoints_is_refused_before_training(make_config, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**6))
    with pytest.raises(UserError, match=r"has 1 MB free, and this run writes up to \d+ MB.*hydra\.run\.dir"):
        train(make_config(), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.ckpt*"))


class NoLargerFiles(Callback):
    """From an epoch's start to the run's end, the system refuses to let a file grow over a size."""

    def __init__(self, size: int, *, from_epoch: int) -> None:
        self.size, self.epoch = size, from_epoch

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == self.epoch:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, resource.RLIM_INFINITY))

    def on_exception(self, trainer, pl_module, exception):
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_a_checkpoint_that_cannot_be_written_keeps_those_before_and_says_how_to_go_on(make_config, tmp_path):
    folder = tmp_path / "run"
    config = make_config("trainer.max_epochs=3")
    whole = train(config, tmp_path / "whole")
    written = (tmp_path / "whole/checkpoints/last.ckpt").stat().st_size

    with pytest.raises(UserError, match=r"writing failed: File too large.* go on with resume="):
        train(config, folder, callbacks=[NoLargerFiles(written // 2, from_epoch=2)])
    assert read_status(folder) == "failed"
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert_same_weights(whole, train({**config, "resume": str(folder)}, folder))


def test_the_checkpoint_gone_on_from_stays_until_another_is_whole(make_config, tmp_path):
    folder = tmp_path / "run"
    config = make_config("optim.lr=1e-12", "trainer.max_epochs=4", f"resume={folder}")
    train_until(3, config, folder)
    checkpoints = folder / "checkpoints"
    written = (checkpoints / "last.ckpt").stat().st_size
    (checkpoints / "last.ckpt").write_bytes(b"cut")
    (checkpoints / ".best.ckpt.tmp").write_bytes(b"of a killed process")
    with pytest.raises(UserError, match="writing failed"):
        train(config, folder, callbacks=[NoLargerFiles(written // 2, from_epoch=2)])
    assert {path.name for path in checkpoints.iterdir()} == {"best.ckpt", "previous.ckpt"}
    assert torch.load(checkpoints / "previous.ckpt", weights_only=True)["epoch"] == 1
    train(config, folder)
    assert {path.name for path in checkpoints.iterdir()} == {"best.ckpt", "last.ckpt"}


def test_a_disk_that_is_full_after_training_costs_nothing_when_resumed(make_config, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    config = make_config()
    whole = train(config, tmp_path / "whole")

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[train.__module__], "save_model", full)
        with pytest.raises(UserError, match=r"failed: No space left on device.* has .* free: make room"):
            train(config, folder)
    assert read_status(folder) == "failed"
    resumed = train({**config, "resume": str(folder)}, folder)
    assert_same_weights(whole, resumed)
    assert resumed.metrics["test"] == whole.metrics["test"]
    tables = [list(csv.DictReader((run / "metrics.csv").open())) for run in (tmp_path / "whole", folder)]
    assert [(row["step"], row["test/accuracy"]) for row in tables[0]] == [
        (row["step"], row["test/accuracy"]) for row in tables[1]
    ]


def test_a_moved_run_goes_on_with_its_own_checkpoints_and_best_score(make_config, tmp_path):
    train(make_config(), tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    folder = tmp_path / "new"
    best = torch.load(folder / "checkpoints/best.ckpt", weights_only=True)["state_dict"]
    train(make_config("trainer.max_epochs=3", "optim.lr=1e-12", f"resume={folder}"), folder)
    after = torch.load(folder / "checkpoints/best.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(after[key], value) for key, value in best.items())
    assert not (tmp_path / "old").exists()


def test_a_folder_with_another_run_is_not_continued_under_a_new_config(make_config, tmp_path):
    train(make_config(), tmp_path / "run")
    with pytest.raises(UserError, match=r"other settings \(optim.lr\).*resume="):
        train(make_config("optim.lr=2e-3"), tmp_path / "run")
    with pytest.raises(UserError, match="finished"):
        train(make_config(), tmp_path / "run")


def test_a_non_finite_gradient_stops_and_keeps_the_last_good_checkpoint(make_config, tmp_path):
    from pytorch_lightning.callbacks import Callback

    class Poison(Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                pl_module.model.classifier.weight.data.fill_(float("nan"))

    with pytest.raises(UserError, match=r"nan at step 6 \(epoch 1\).*optim.lr"):
        train(make_config("trainer.max_epochs=3"), tmp_path / "run", callbacks=[Poison()])
    assert read_status(tmp_path / "run") == "failed"
    state = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)
    assert all(v.isfinite().all() for v in state["state_dict"].values() if v.is_floating_point())


def test_a_loaded_model_gives_the_runs_probabilities(run):
    model = attnlab.load(run.run_dir / "model")
    assert [type(core.transform).__name__ for core in cores(model)] == ["Sparsemax"] * 2
    written = rows(run.run_dir / "predictions" / "test.jsonl")
    again = evaluate(run.run_dir, "test")
    assert again["accuracy"] == pytest.approx(run.metrics["test"]["accuracy"])
    assert again["loss"] == pytest.approx(run.metrics["test"]["loss"], rel=1e-5)
    assert len(written) == 96


def test_learned_alphas_come_back_with_the_model(make_config, tmp_path):
    result = train(make_config("attn=entmax", "attn.learn_alpha=true", "attn.kernel=eager"), tmp_path / "run")
    state = torch.load(result.run_dir / "checkpoints/best.ckpt", weights_only=True)["state_dict"]
    model = attnlab.load(result.run_dir)
    for layer, core in enumerate(cores(model)):
        key = f"model.bert.encoder.layer.{layer}.attention.self.sparse_attention.transform.raw_alpha"
        assert torch.equal(core.transform.raw_alpha, state[key])
        assert not torch.equal(core.transform.raw_alpha, torch.zeros(4))
        for head, alpha in enumerate(core.transform.learned()["alpha"].tolist()):
            assert result.metrics["attention"][f"alpha/layer_{layer:02d}/head_{head:02d}"] == pytest.approx(alpha)


def test_predict_reads_files_and_streams_and_keeps_order_and_ids(run, tmp_path):
    texts = ["A joy from start to end.", "Dull, dull, dull.", "It was fine."]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"id": f"x{i}", "text": t}) + "\n" for i, t in enumerate(texts)))
    out = tmp_path / "out.jsonl"
    assert predict(run.run_dir, source, out) == 3
    first = rows(out)
    assert [row["id"] for row in first] == ["x0", "x1", "x2"]
    stream = tmp_path / "stream.jsonl"
    with source.open() as a, stream.open("w") as b:
        predict(run.run_dir, a, b)
    for one, other in zip(first, rows(stream), strict=True):
        assert one["prediction"] == other["prediction"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
    plain = tmp_path / "plain.txt"
    plain.write_text("\n".join(texts))
    with plain.open() as a, stream.open("w") as b:
        assert predict(run.run_dir, a, b) == 3
    model, tokenizer = (
        attnlab.load(run.run_dir),
        AutoTokenizer.from_pretrained(run.run_dir / "model"),
    )
    with torch.no_grad():
        expected = model(**tokenizer(texts[0], return_tensors="pt")).logits.softmax(-1)[0].tolist()
    assert list(first[0]["probabilities"].values()) == pytest.approx(expected, abs=1e-5)


def test_predict_names_the_line_that_it_cannot_read(run, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "good"}\n{"txt": "no"}\n')
    with bad.open() as stream, pytest.raises(UserError, match="line 2 of the input has no 'text'"):
        predict(run.run_dir, stream, tmp_path / "o.jsonl")


def test_early_stopping_ends_before_the_last_epoch(make_config, tmp_path):
    config = make_config("trainer.patience=1", "trainer.max_epochs=8", "optim.lr=1e-9")
    result = train(config, tmp_path / "run")
    assert result.metrics["train"]["epochs"] < 8


def test_accumulation_steps_once_for_several_batches(make_config, tmp_path):
    result = train(make_config("trainer.accumulate=3", "trainer.max_epochs=1"), tmp_path / "run")
    assert result.metrics["train"]["steps"] == 2


def test_a_fast_run_does_everything_in_a_few_steps(make_config, tmp_path):
    result = train(make_config("trainer.fast=true", "data.batch_size=4"), tmp_path / "run")
    assert result.metrics["train"]["steps"] == 8
    assert (result.run_dir / "model" / "model.safetensors").is_file()


def test_compiled_layers_learn_what_plain_ones_learn_and_repeat_to_the_last_bit(make_config, tmp_path):
    calm = ("model.dropout=0.0", "attn.kernel=auto")
    plain_run = train(make_config("trainer.compile=false", *calm), tmp_path / "plain")
    compiled = train(make_config("trainer.compile=true", *calm), tmp_path / "compiled")
    assert compiled.metrics["test"]["loss"] == pytest.approx(plain_run.metrics["test"]["loss"], rel=1e-3)
    states = []
    for name in ("one", "two"):
        result = train(make_config("trainer.compile=true", "trainer.max_epochs=1"), tmp_path / name)
        states.append(attnlab.load(result.run_dir).state_dict())
    assert all(torch.equal(states[0][key], value) for key, value in states[1].items())


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("optim.lr=-1", "optim.lr=-1 must be a number above 0"),
        ("optim.lr=fast", "optim.lr=fast must be a number"),
        ("trainer.precision=64", "auto, 32, bf16 or 16"),
        ("seed=-3", "seed=-3 must be a whole number"),
        ("attn.layers=[0,9]", "the model has layers 0 to 1, not 9"),
        ("attn.layers=last", "attn.layers='last'"),
        ("model.name=no/such-model-anywhere", "cannot be loaded"),
        ("data.batch_size=0", "data.batch_size=0"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(make_config, tmp_path, override, said):
    with pytest.raises(UserError) as caught:
        train(make_config(override), tmp_path / "run")
    assert said in str(caught.value)


def test_dropout_acts_in_training_although_from_pretrained_leaves_eval_mode(make_config, tmp_path):
    calm = train(make_config("model.dropout=0.0", "trainer.max_epochs=1"), tmp_path / "calm")
    wild = train(make_config("model.dropout=0.5", "trainer.max_epochs=1"), tmp_path / "wild")
    assert calm.metrics["test"]["loss"] != wild.metrics["test"]["loss"]


def test_attention_walks_from_softmax_to_sparse_within_its_share_of_the_steps(make_config, tmp_path):
    from pytorch_lightning.callbacks import Callback

    seen: list[float] = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            seen.append(float(cores(pl_module.model)[0].walk))

    train(make_config("attn.warmup_ratio=0.5"), tmp_path / "run", callbacks=[Watch()])
    assert seen == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 1, 1, 1, 1, 1])


def test_a_folder_in_which_another_process_trains_is_left_alone(make_config, tmp_path):
    folder = tmp_path / "run"
    config = plain(make_config())
    with subprocess.Popen(["sleep", "60"]) as other:
        folder.mkdir()
        write_config(folder, config)
        write_status(folder, "running")
        noted = json.loads((folder / "status.json").read_text())
        started = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19]
        write_json(folder / "status.json", noted | {"pid": other.pid, "started": started})
        with pytest.raises(UserError, match="another process is training"):
            train(config, folder)
        assert find_unfinished(config, tmp_path) is None
        write_json(folder / "status.json", noted | {"pid": other.pid, "started": "1"})  # the id came back
        assert find_unfinished(config, tmp_path) == folder
        other.kill()


def test_an_undefined_number_is_null_in_json(tmp_path):
    write_json(tmp_path / "x.json", {"a": [float("nan"), 1.0], "b": {"c": float("inf")}})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [None, 1.0], "b": {"c": None}}
