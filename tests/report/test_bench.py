"""The benchmark measures what it says it does. Nothing here asserts a speed."""

import json
import time

import pytest
import torch
import yaml

from attnlab.attention import cores
from attnlab.errors import UserError
from attnlab.report.bench import main, memory
from attnlab.report.bench.models import build, random_batch
from attnlab.report.bench.options import BenchOptions, parse
from attnlab.report.bench.page import Target
from attnlab.report.bench.timing import paired_ratio, take_turns
from attnlab.report.bench.trainer import trainer_epoch

from .tiny import save_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_sides_take_turns_and_the_order_rotates():
    order = []
    sides = {name: lambda name=name: order.append(name) for name in "abc"}
    seconds = take_turns(sides, rounds=3, warm_up=1)
    assert "".join(order) == "cab" + "abc" + "bca" + "cab"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3, "c": 3}


def test_warm_up_rounds_are_not_counted():
    calls = iter([0.05, 0.0, 0.0])
    seconds = take_turns({"a": lambda: time.sleep(next(calls))}, rounds=2, warm_up=1)
    assert max(seconds["a"]) < 0.05


def test_a_ratio_is_the_median_over_pairs():
    # The ratio of the medians would be 2: a slow round slows both sides and must not count.
    assert paired_ratio([1.0, 20.0, 30.0], [1.0, 10.0, 30.0]) == 1.0


def test_targets_look_in_their_direction():
    assert Target(name="x", ratio=1.1, bound=1.1, at_most=True).met
    assert not Target(name="x", ratio=1.2, bound=1.1, at_most=True).met
    assert not Target(name="x", ratio=1.9, bound=2.0, at_most=False).met


def test_options_are_read_from_words():
    words = ["quick=true", "threads=2", "lengths=[8,16]", "model=some/folder", "attn=entmax15"]
    assert parse(words) == BenchOptions(quick=True, threads=2, lengths=(8, 16), model="some/folder", attn="entmax15")


@pytest.mark.parametrize("word", ["thread=2", "threads=0", "quick=perhaps", "lengths=", "--quick"])
def test_a_word_that_is_no_option_is_named(word):
    with pytest.raises(UserError, match=word.partition("=")[0]):
        parse([word])


def test_an_unknown_table_names_the_closest():
    with pytest.raises(UserError, match="did you mean 'memory'"):
        main(["memry"])


def test_a_length_without_positions_is_refused(folder):
    with pytest.raises(UserError, match="160 tokens"):
        main(["step", f"model={folder}", "lengths=200"])


def test_help_lists_the_tables(capsys):
    assert main(["--help"]) == 0
    assert "memory" in capsys.readouterr().out


def test_all_sides_start_from_the_same_weights_and_stock_sides_are_untouched(folder):
    options = BenchOptions(model=str(folder))
    models = {side: build(side, options) for side in ("sdpa", "eager", "entmax", "ours")}
    weights = {side: dict(model.named_parameters()) for side, model in models.items()}
    for side, named in weights.items():
        assert models[side].training
        for name, parameter in weights["sdpa"].items():
            assert torch.equal(named[name], parameter), (side, name)
    assert [len(cores(models[side])) for side in models] == [0, 0, 0, 3]
    assert models["sdpa"].config._attn_implementation == "sdpa"
    assert models["eager"].config._attn_implementation == "eager"


def test_the_entmax_side_computes_the_same_sparsemax_as_ours(folder):
    options = BenchOptions(model=str(folder))
    ours, theirs = build("ours", options).eval(), build("entmax", options).eval()
    batch = random_batch(9, 3, int(ours.config.vocab_size))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(ours(**batch).logits, theirs(**batch).logits, atol=1e-4, rtol=1e-4)


def test_the_step_table_runs_and_writes_its_numbers(folder, tmp_path, capsys):
    file = tmp_path / "numbers" / "step.json"
    words = [f"model={folder}", "lengths=6,128", "batch=2", "rounds=2", "precision=32"]
    words += ["compile=false", "threads=1"]
    assert main(["step", *words, f"json={file}"]) == 0
    page = json.loads(file.read_text())
    assert f"1 thread, torch {torch.__version__}" in page["machine"]
    table = page["tables"]["step"]
    assert set(table) == {"6", "128"}
    for row in table.values():
        assert {side: len(seconds) for side, seconds in row["seconds"].items()} == {
            "sdpa": 2,
            "ours": 2,
            "entmax": 2,
        }
    printed = capsys.readouterr().out
    assert "ours / SDPA at 6" in printed
    assert "entmax package / ours at 128" in printed


@pytest.mark.usefixtures("one_thread")
def test_the_memory_table_sees_what_a_step_holds(folder):
    options = BenchOptions(model=str(folder), lengths=(60,), batch=256, precision="32", compile=False)
    result = memory.measure(options, memory.measure_here)
    # Eager attention keeps scores and probabilities of 3 layers: (256, 4, 60, 60) float32 each.
    least = 2 * 3 * 256 * 4 * 60 * 60 * 4 / 1e6
    runs = result.numbers["60"]["runs"]
    assert runs["eager"][0]["step_mb"] > least
    assert result.numbers["60"]["ours/eager"] == pytest.approx(runs["ours"][0]["step_mb"] / runs["eager"][0]["step_mb"])
    assert [target.name for target in result.targets] == ["ours / eager at 60"]


def test_memory_is_measured_in_a_process_of_its_own(folder):
    options = BenchOptions(model=str(folder), batch=256, precision="32", threads=1, compile=False)
    small = memory.measure_in_a_process("eager", 20, options)
    assert 0 < small["step_mb"] < 200
    assert small["before_mb"] > 50


def test_the_trainer_side_trains_on_the_data_of_a_run(folder, tmp_path):
    rows = "".join(f"{'a b c' if index % 2 else 'x y'}\t{index % 2}\n" for index in range(24))
    for split in ("train", "val"):
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\n" + rows)
    config = {
        "seed": 1,
        "task": {"name": "custom", "kind": "classification"},
        "data": {
            "root": str(tmp_path),
            "source": "local",
            "train": str(tmp_path / "train.tsv"),
            "val": str(tmp_path / "val.tsv"),
            "batch_size": 4,
            "max_length": 16,
        },
        "model": {"name": str(folder)},
        "optim": {"lr": 1e-3, "weight_decay": 0.01, "warmup_ratio": 0.1},
        "trainer": {"precision": "32"},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    measured = trainer_epoch(tmp_path / "config.yaml", BenchOptions())
    assert measured["examples"] == 24
    assert measured["seconds"] > 0
    assert 0 <= measured["accuracy"] <= 1
