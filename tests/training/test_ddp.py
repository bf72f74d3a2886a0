"""Two real gloo processes: the weights of one process, each example evaluated once, one folder, one W&B run."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from pytorch_lightning.callbacks import Callback

import attnlab
from attnlab.errors import UserError
from attnlab.training import train

ROOT = Path(__file__).parents[2]
VARIABLES = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def ids(folder: Path, split: str) -> list[int]:
    return [json.loads(line)["id"] for line in (folder / "predictions" / f"{split}.jsonl").open()]


def test_two_processes_train_to_the_weights_of_one(make_config, tmp_path):
    # 97 examples: the last batch splits unevenly, and so do the evaluated ones.
    common = ("model.dropout=0.0", "data.limit=97", "attn=entmax", "attn.learn_alpha=true", "attn.kernel=eager")
    one = train(make_config(*common), tmp_path / "one")
    two = train(make_config(*common, "strategy=ddp", "trainer.devices=2", "logger=wandb"), tmp_path / "two")
    for name in VARIABLES:
        assert name not in os.environ
    assert not torch.distributed.is_initialized()
    theirs = attnlab.load(two.run_dir).state_dict()
    for key, value in attnlab.load(one.run_dir).state_dict().items():
        torch.testing.assert_close(theirs[key], value, atol=2e-5, rtol=1e-3, msg=key)
    for split in ("val", "test"):
        assert ids(two.run_dir, split) == ids(one.run_dir, split)
        for name in ("accuracy", "loss"):
            assert two.metrics[split][name] == pytest.approx(one.metrics[split][name], abs=1e-4)
    assert two.metrics["attention"] == pytest.approx(one.metrics["attention"], abs=1e-3)
    assert {p.name for p in tmp_path.iterdir()} == {"one", "two"}
    assert len(list((two.run_dir / "wandb").glob("offline-run-*"))) == 1


def test_two_processes_steer_to_the_same_density_as_one(make_config, tmp_path):
    common = ("model.dropout=0.0", "attn=sparsegen", "sparsity.density=0.3")
    one = train(make_config(*common), tmp_path / "one")
    two = train(make_config(*common, "strategy=ddp", "trainer.devices=2"), tmp_path / "two")
    for layer in range(2):
        assert two.metrics["attention"][f"density/layer_{layer:02d}"] == pytest.approx(0.3, abs=0.01)
        name = f"lam/layer_{layer:02d}"
        assert two.metrics["attention"][name] == pytest.approx(one.metrics["attention"][name], rel=0.05)


def test_a_batch_smaller_than_the_devices_is_refused(make_config, tmp_path):
    with pytest.raises(UserError, match="shared by 2 devices"):
        train(make_config("trainer.devices=2", "data.batch_size=1"), tmp_path / "run")


def test_a_failure_on_the_first_process_ends_the_other_and_leaves_this_one_alive(make_config, tmp_path):
    class Fail(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            raise ArithmeticError("on the first process only")

    with pytest.raises(ArithmeticError):
        train(make_config("strategy=ddp", "trainer.devices=2"), tmp_path / "run", callbacks=[Fail()])
    assert json.loads((tmp_path / "run/status.json").read_text())["status"] == "failed"
    time.sleep(6)  # the watch over the children looks every five seconds, and would kill this process
    again = train(make_config("strategy=ddp", "trainer.devices=2", "trainer.max_epochs=1"), tmp_path / "again")
    assert json.loads((again.run_dir / "status.json").read_text())["status"] == "done"


def test_a_sweep_over_two_processes_trains_each_job_once_in_its_own_folder(tiny_model, tmp_path):
    done = subprocess.run(
        [
            sys.executable, str(ROOT / "train.py"), "-m", "seed=1,2", f"model.name={tiny_model}",
            "strategy=ddp", "trainer.devices=2", "trainer.fast=true", "data.batch_size=8", "data.limit=64",
            "trainer.precision=32", "trainer.progress_bar=false",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=500, stdin=subprocess.DEVNULL,
        env={k: v for k, v in os.environ.items() if k != "WANDB_API_KEY"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    statuses = sorted((tmp_path / "outputs").rglob("status.json"))
    assert len(statuses) == 2
    for path in statuses:
        assert json.loads(path.read_text())["status"] == "done"
        assert len(list((path.parent / "wandb").glob("offline-run-*"))) == 1
        assert len(set(ids(path.parent, "test"))) == 64
    seeds = {json.loads((p.parent / "provenance.json").read_text())["seed"] for p in statuses}
    assert seeds == {1, 2}
