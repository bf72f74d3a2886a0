"""Training under a mask and of a mask: the run's model has it, its density is reached, a resume changes nothing."""

import csv
import json

import pytest
import torch
from pytorch_lightning.callbacks import Callback

import attnlab
from attnlab.attention.masking import encoder_mask
from attnlab.errors import UserError
from attnlab.masks.saved import write_mask
from attnlab.training import train
from attnlab.training.evaluate import evaluate

from .resuming import assert_same_weights, train_until

ENOUGH = ("data.limit=256", "trainer.max_epochs=4")  # 64 steps


def test_a_fixed_mask_is_trained_under_and_comes_back_with_the_run(make_config, tmp_path):
    run = train(make_config("mask=star", "attn=entmax15"), tmp_path / "run")
    assert run.metrics["mask"]["density"] == pytest.approx(json_mask(run.run_dir)["density"])
    model = attnlab.load(run.run_dir)
    assert encoder_mask(model).spec.name == "star"
    assert encoder_mask(model).spec.cls_id == 101
    measured = evaluate(run.run_dir, "val")
    assert measured["accuracy"] == pytest.approx(run.metrics["val"]["accuracy"])
    assert measured["attention/density"] == pytest.approx(run.metrics["attention"]["density"])


def json_mask(folder):
    return json.loads((folder / "metrics.json").read_text())["mask"]


@pytest.mark.parametrize("form", ["structured", "unstructured"])
def test_the_wanted_density_of_a_learned_mask_is_reached(make_config, tmp_path, form):
    config = make_config("mask=dam", f"mask.form={form}", "mask.target_density=0.3", "attn=softmax", *ENOUGH)
    run = train(config, tmp_path / "run")
    mask = encoder_mask(attnlab.load(run.run_dir)).mask
    # a structured mask has steps: an offset of one head is up to 2 (n - 1) of the n^2 pairs of 4 heads
    assert mask.density() == pytest.approx(0.3, abs=0.02 if form == "structured" else 0.002)
    with (run.run_dir / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("mask/lam")]
    assert len({row["mask/lam"] for row in rows}) > 1
    assert float(rows[-1]["mask/density"]) < float(rows[0]["mask/density"])


def last_density(folder) -> float:
    with (folder / "metrics.csv").open() as file:
        return float([row["mask/density"] for row in csv.DictReader(file) if row.get("mask/density")][-1])


def test_a_heavier_penalty_leaves_fewer_pairs(make_config, tmp_path):
    densities = []
    for lam in (0.0, 30.0):
        run = train(make_config("mask=dam", f"mask.lam={lam}", "attn=softmax", *ENOUGH), tmp_path / str(lam))
        densities.append(last_density(run.run_dir))
    assert densities[1] < 0.5 < densities[0]


def test_the_penalty_as_a_sum_weighs_as_many_times_the_mean_as_there_are_pairs(make_config, tmp_path):
    states = []
    for words in (["mask.penalty=density", f"mask.lam={1e-3 * 4 * 32 * 32}"], ["mask.penalty=l1", "mask.lam=1e-3"]):
        run = train(make_config("mask=dam", "attn=softmax", *words), tmp_path / words[0])
        states.append(attnlab.load(run.run_dir).state_dict())
    for key, value in states[0].items():
        torch.testing.assert_close(value, states[1][key], atol=1e-5, rtol=1e-4)


def test_a_resumed_run_of_a_learned_mask_ends_where_an_unbroken_one_ends(make_config, tmp_path):
    config = make_config("mask=dam", "mask.target_density=0.4", "attn=sparsemax", "trainer.max_epochs=3")
    whole = train(config, tmp_path / "whole")
    train_until(2, config, tmp_path / "parts")
    assert_same_weights(whole, train(config, tmp_path / "parts"))


def test_two_processes_learn_the_mask_of_one(make_config, tmp_path):
    common = ("model.dropout=0.0", "mask=dam", "mask.per_layer=true", "mask.lam=5", "attn=softmax")
    one = train(make_config(*common), tmp_path / "one")
    two = train(make_config(*common, "strategy=ddp", "trainer.devices=2"), tmp_path / "two")
    theirs = attnlab.load(two.run_dir).state_dict()
    for key, value in attnlab.load(one.run_dir).state_dict().items():
        torch.testing.assert_close(theirs[key], value, atol=1e-4, rtol=1e-3, msg=key)


@pytest.mark.parametrize("attn", ["softmax", "sparsemax"])
def test_a_learned_mask_trains_in_bfloat16(make_config, tmp_path, attn):
    words = ("mask=dam", "mask.lam=5", f"attn={attn}", "trainer.precision=bf16")
    run = train(make_config(*words, "trainer.max_epochs=1"), tmp_path / "run")
    assert all(v.isfinite().all() for v in attnlab.load(run.run_dir).state_dict().values() if v.is_floating_point())
    assert run.metrics["val"]["loss"] < 1


def test_a_mask_out_of_a_file_is_frozen_and_needs_the_file_no_more(make_config, tmp_path):
    keep = torch.rand(2, 4, 40, 40) > 0.7
    write_mask(tmp_path / "mask.safetensors", keep, {"keep_special": "true"})
    config = make_config("mask=file", f"mask.path={tmp_path}/mask.safetensors", "attn=softmax")
    run = train(config, tmp_path / "run")
    (tmp_path / "mask.safetensors").unlink()
    model = attnlab.load(run.run_dir)
    assert (encoder_mask(model).mask.keep == keep).all()
    assert evaluate(run.run_dir, "val")["accuracy"] == pytest.approx(run.metrics["val"]["accuracy"])


def test_lam_is_steered_once_a_step_however_many_batches_it_takes(make_config, tmp_path):
    class Count(Callback):
        seen: list[tuple[int, float]] = []  # noqa: RUF012

        def on_train_batch_end(self, trainer, pl_module, *rest):
            self.seen.append((trainer.global_step, pl_module.mask_control.lam))

    words = ("mask=dam", "mask.target_density=0.3", "attn=softmax", "trainer.accumulate=3")
    train(make_config(*words), tmp_path / "run", callbacks=[Count()])
    by_step: dict[int, set[float]] = {}
    for step, lam in Count.seen:
        by_step.setdefault(step, set()).add(lam)
    assert len(by_step) > 2
    assert all(len(lams) == 1 for lams in by_step.values())


def test_only_cls_and_sep_are_kept_always_so_that_masked_words_are_not(make_config, tmp_path):
    run = train(make_config("mask=dam", "attn=softmax", "trainer.fast=true"), tmp_path / "run")
    assert encoder_mask(attnlab.load(run.run_dir)).spec.special_ids == (101, 102)


def test_a_mask_for_another_model_is_refused_before_the_data_are_read(make_config, tmp_path):
    write_mask(tmp_path / "mask.safetensors", torch.ones(1, 3, 40, 40), {})
    config = make_config("mask=file", f"mask.path={tmp_path}", "data.train=/nowhere.csv")
    with pytest.raises(UserError, match="has 3 heads, the model 4"):
        train(config, tmp_path / "run")


def test_the_logits_of_a_mask_keep_their_own_rate_and_no_decay(make_config, tmp_path):
    class Look(Callback):
        rates: list[float] = []  # noqa: RUF012

        def on_train_batch_end(self, trainer, pl_module, *rest):
            (group,) = [g for g in trainer.optimizers[0].param_groups if g.get("steady")]
            assert group["weight_decay"] == 0
            assert {id(p) for p in group["params"]} == {id(encoder_mask(pl_module).mask.logits)}
            self.rates.append(group["lr"])

    train(make_config("mask=dam", "mask.lr=0.07", "attn=softmax"), tmp_path / "run", callbacks=[Look()])
    assert len(Look.rates) > 4
    assert set(Look.rates) == {0.07}
