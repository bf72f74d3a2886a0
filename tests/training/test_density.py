"""Sparsity by density: the wanted share is reached, kept in checkpoint and model, and refused where it cannot be."""

import csv
import json
import math

import pytest
import torch

import attnlab
from attnlab.errors import UserError
from attnlab.training import train
from attnlab.training.density import SparsitySpec
from attnlab.training.evaluate import evaluate

from ..encoders import tiny_encoder
from .resuming import train_until

STEERED = [("entmax", "alpha"), ("sparsegen", "lam"), ("entmax15", "temperature"), ("topk", "k"), ("topp", "p"),
           ("relu", "threshold")]  # fmt: skip


@pytest.mark.parametrize(("name", "dial"), STEERED)
def test_the_density_on_validation_data_ends_within_a_point_of_the_wanted_one(make_config, tmp_path, name, dial):
    wanted = 0.3
    run = train(make_config(f"attn={name}", f"sparsity.density={wanted}", "trainer.max_epochs=1"), tmp_path / "run")
    measured = evaluate(run.run_dir, "val")
    for layer in range(2):
        assert measured[f"attention/density/layer_{layer:02d}"] == pytest.approx(wanted, abs=0.01)
    spec = json.loads((run.run_dir / "model" / "config.json").read_text())["attnlab"]
    final = spec[dial] if dial == "temperature" else spec["dials"][dial]
    logged = [run.metrics["attention"][f"{dial}/layer_{layer:02d}"] for layer in range(2)]
    assert final == pytest.approx(logged)


def test_the_way_down_is_logged_and_ends_at_the_wanted_density(make_config, tmp_path):
    config = make_config("attn=topk", "sparsity.density=0.2", "trainer.max_epochs=8")
    run = train(config, tmp_path / "run")
    with (run.run_dir / "metrics.csv").open() as file:
        logged = list(csv.DictReader(file))
    targets = [float(row["sparsity/target"]) for row in logged if row.get("sparsity/target")]
    assert targets[0] > 0.4
    assert targets == sorted(targets, reverse=True)
    assert targets[-1] == pytest.approx(0.2)


def test_the_layers_mean_may_be_what_counts(make_config, tmp_path):
    run = train(make_config("attn=sparsegen", "sparsity.density=0.4", "sparsity.per=model"), tmp_path / "run")
    assert run.metrics["attention"]["density"] == pytest.approx(0.4, abs=0.01)
    dials = [value for key, value in run.metrics["attention"].items() if key.startswith("lam/")]
    assert dials[0] == pytest.approx(dials[1], rel=0.2)


def test_only_chosen_layers_are_steered(make_config, tmp_path):
    run = train(make_config("attn=entmax", "attn.layers=[1]", "sparsity.density=0.3"), tmp_path / "run")
    assert run.metrics["attention"]["density/layer_00"] == 1.0
    assert run.metrics["attention"]["density/layer_01"] == pytest.approx(0.3, abs=0.01)
    again = evaluate(run.run_dir, "val")
    assert again["attention/density/layer_01"] == pytest.approx(run.metrics["attention"]["density/layer_01"], abs=1e-3)


def test_layers_that_share_one_attention_are_steered_as_one(make_config, tmp_path):
    from transformers import AutoTokenizer

    config = make_config("attn=sparsegen", "sparsity.density=0.4", "trainer.max_epochs=1")
    albert = tiny_encoder("albert", vocab_size=30_522)
    AutoTokenizer.from_pretrained(config["model"]["name"]).save_pretrained(tmp_path / "albert")
    albert.save_pretrained(tmp_path / "albert")
    run = train({**config, "model": {**config["model"], "name": str(tmp_path / "albert")}}, tmp_path / "run")
    assert evaluate(run.run_dir, "val")["attention/density"] == pytest.approx(0.4, abs=0.01)


def test_early_stopping_waits_for_the_wanted_density(make_config, tmp_path):
    words = ("attn=entmax", "sparsity.density=0.3", "sparsity.warmup_ratio=0.7", "trainer.max_epochs=6")
    run = train(make_config(*words, "trainer.patience=1", "optim.lr=1e-9"), tmp_path / "run")
    assert 5 <= run.metrics["train"]["epochs"] <= 6
    assert run.metrics["attention"]["density"] == pytest.approx(0.3, abs=0.01)


def test_a_dial_at_its_end_stays_there(make_config, tmp_path):
    words = ("attn=topp", "sparsity.density=0.99", "trainer.max_epochs=4")
    run = train(make_config(*words), tmp_path / "run")
    with (run.run_dir / "metrics.csv").open() as file:
        shares = [float(v) for row in csv.DictReader(file) for k, v in row.items() if k.startswith("sparsity/p/") and v]
    assert min(shares) > 0.9


def test_a_steered_run_resumed_ends_where_an_unbroken_one_ends(make_config, tmp_path):
    words = ("attn=entmax", "sparsity.density=0.3", "sparsity.warmup_ratio=0.8", "trainer.max_epochs=3")
    whole = train(make_config(*words), tmp_path / "whole")
    train_until(1, make_config(*words), tmp_path / "broken")
    rest = train(make_config(*words, f"resume={tmp_path / 'broken'}"), tmp_path / "broken")
    for split in ("val", "test"):
        assert rest.metrics[split] == whole.metrics[split]
    assert rest.metrics["attention"] == whole.metrics["attention"]


def test_a_loaded_model_keeps_the_density(make_config, tmp_path):
    run = train(make_config("attn=sparsegen", "sparsity.density=0.25"), tmp_path / "run")
    model = attnlab.load(run.run_dir)
    again = model.config.attnlab["dials"]["lam"]
    assert len(again) == 2
    ids = torch.tensor([[101, 2023, 2003, 1037, 2986, 2143, 102]])
    with torch.no_grad():
        assert model(input_ids=ids).logits.isfinite().all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("attn=softmax", "sparsity.density=0.1"), "attn=softmax has no dial"),
        (("attn=sigmoid", "sparsity.density=0.1"), "attn=sigmoid has no dial"),
        (("attn=entmax", "sparsity.density=0"), r"\(0, 1\]"),
        (("attn=entmax", "sparsity.density=1.5"), r"\(0, 1\]"),
        (("attn=entmax", "attn.learn_alpha=true", "sparsity.density=0.1"), "attn.learn_alpha=false"),
        (("attn=entmax", "sparsity.density=0.1", "sparsity.schedule=quadratic"), "linear, cosine or constant"),
        (("attn=entmax", "sparsity.density=0.001"), "cannot be reached: on this data attn=entmax keeps from 0"),
    ],
)
def test_a_density_that_cannot_be_is_refused_with_what_to_type(make_config, tmp_path, words, said):
    with pytest.raises(UserError, match=said):
        train(make_config(*words), tmp_path / "run")


def test_schedules_start_at_the_first_density_and_stay_at_the_last():
    for schedule in ("linear", "cosine"):
        spec = SparsitySpec(density=0.1, per="layer", schedule=schedule, warmup_ratio=0.5)
        assert spec.target(0.9, 0.0) == pytest.approx(0.9)
        assert spec.target(0.9, 0.25) == pytest.approx(math.sqrt(0.09))
        assert spec.target(0.9, 0.5) == spec.target(0.9, 1.0) == pytest.approx(0.1)
    constant = SparsitySpec(density=0.1, per="layer", schedule="constant", warmup_ratio=0.5)
    assert constant.target(0.9, 0.0) == 0.1
