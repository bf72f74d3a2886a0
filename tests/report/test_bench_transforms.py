"""What the tables of transforms and of compiling say is what is the case. Nothing here asserts a speed."""

import json
from dataclasses import replace

import entmax as package
import pytest
import torch
import yaml
from torch import nn

from attnlab.attention import AttentionSpec, attach
from attnlab.cli.choices import conf_dir
from attnlab.report.bench import compiling, laws, main, steps, transforms
from attnlab.report.bench.models import device
from attnlab.report.bench.options import BenchOptions
from attnlab.report.bench.oracles import ORACLES, by_breakpoints, denoised, normmax_by_bisection, rough_rows
from attnlab.report.bench.transforms import HEADS, cases
from attnlab.transforms import TRANSFORMS
from attnlab.transforms.kernel import use_kernel

from .tiny import save_tiny, tiny_bert

CASES = cases()
every_case = pytest.mark.parametrize("case", CASES, ids=[case.label for case in CASES])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def plain():
    with use_kernel("eager"):
        yield


def test_every_transform_has_a_row_and_an_oracle():
    assert [case.label for case in CASES if case.label != "entmax learned"] == list(TRANSFORMS)
    assert set(ORACLES) == set(TRANSFORMS)


@every_case
def test_a_row_has_the_dials_of_the_file_that_users_choose(case):
    file = conf_dir() / "attn" / f"{case.name}.yaml"
    written = AttentionSpec.from_config(yaml.safe_load(file.read_text()))
    assert case.spec == replace(written, dials={**written.dials, **case.changes})


@every_case
def test_the_laws_measured_are_those_that_the_class_declares(case):
    broken = set(laws.LAWS) - laws.laws_kept(case.build(device()), HEADS, device())
    assert broken == set(getattr(TRANSFORMS[case.name], "breaks", ()))


@every_case
def test_every_transform_agrees_with_its_oracle_on_rough_rows(case):

    def exact(scores):
        return ORACLES[case.name](scores, **case.spec.dials)

    errors = laws.worst_errors(case.build(device()), exact, HEADS, 2, device())
    assert max(errors.values()) < 2e-5, errors


def test_an_error_and_a_broken_law_are_seen():
    def sloppy(scores):
        return torch.softmax(scores + 0.1 * torch.arange(scores.shape[-1]), -1)

    errors = laws.worst_errors(sloppy, ORACLES["softmax"], 2, 3, device())
    assert errors["normal"] > 1e-2
    assert errors["one key"] == 0
    assert laws.laws_kept(sloppy, 2, device()) == {"sum", "shift"}


def test_memory_is_counted_once_a_storage_and_without_scalars():
    assert laws.memory_held(lambda z: torch.softmax(z, -1), 2, device()) == 1
    assert laws.memory_held(lambda z: z.exp() * 2.0, 2, device()) == 1
    # exp keeps its result; the product keeps both factors, one of which is that result.
    assert laws.memory_held(lambda z: z.exp() * (z + 1), 2, device()) == 2


def test_support_counts_keys_above_zero():
    assert laws.mean_support(lambda z: (z > z.topk(5).values[..., -1:]).float(), 2, device()) == pytest.approx(4)


@pytest.mark.parametrize("kind", ["normal", "cauchy", "ties", "packed", "two keys"])
def test_the_oracles_agree_with_the_entmax_package_in_float64(kind):
    z = rough_rows((1, 2, 3, 50))[kind].double()
    options = {"dim": -1, "n_iter": 100}
    for ours, theirs in (
        (normmax_by_bisection(z, 2.0), package.normmax_bisect(z, 2, **options)),
        (by_breakpoints(z, 1.0, 2.0), package.budget_bisect(z, 2, **options)),
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


@pytest.mark.parametrize("tv", [0.05, 0.5, 4.0])
@pytest.mark.parametrize("kind", ["normal", "ties", "constant", "geometric", "one key", "two keys"])
def test_the_denoising_oracle_meets_the_optimality_conditions(kind, tv):
    z = rough_rows((2, 40))[kind].double()
    y = denoised(z, tv)
    dual, step = (y - z).cumsum(-1), y.diff(dim=-1)
    assert dual[:, -1].abs().max() < 1e-10
    assert (dual.abs() < tv + 1e-10).all()
    assert ((dual[:, :-1] - tv * step.sign()).abs() < 1e-10)[step.abs() > 1e-10].all()


def test_the_transforms_table_runs_and_writes_its_numbers(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(transforms, "QUICK_SHAPES", ((1, HEADS, 8, 8), (1, HEADS, 4, 16)))
    chosen = [case for case in CASES if case.label in ("sparsemax", "relu", "entmax learned")]
    monkeypatch.setattr(transforms, "cases", lambda: chosen)
    file = tmp_path / "transforms.json"
    assert main(["transforms", "quick=true", "rounds=2", "compile=false", "threads=1", f"json={file}"]) == 0
    table = json.loads(file.read_text())["tables"]["transforms"]
    assert set(table) == {"sparsemax", "relu", "entmax learned"}
    assert set(table["sparsemax"]["speed"]) == {"8", "16"}
    assert table["entmax learned"]["speed"]["16"]["package/ours"] > 0
    assert "package/ours" not in table["relu"]["speed"]["8"]
    assert table["relu"]["laws"] == ["permutation", "order", "sparse"]
    printed = capsys.readouterr().out
    assert "-   -     perm order sparse" in printed
    assert "entmax package / entmax learned at 16" in printed


def test_the_steps_table_compares_with_softmax(folder):
    options = BenchOptions(model=str(folder), lengths=(6, 9), batch=2, rounds=2, precision="32", compile=False)
    result = steps.measure(options, [case for case in CASES if case.label in ("entmax learned", "budget")])
    assert set(result.numbers) == {"entmax learned", "budget"}
    assert [target.bound for target in result.targets] == [1.25, 1.25, 2.0, 2.0]
    assert {side: len(times) for side, times in result.numbers["budget"]["9"]["seconds"].items()} == {
        "softmax": 2,
        "ours": 2,
    }


class _Layer(nn.Module):
    """The attention of a tiny model, called as its layers call it."""

    def __init__(self):
        super().__init__()
        self.model = attach(tiny_bert(), AttentionSpec(name="sparsemax"))

    def forward(self, x):
        return self.model.bert.encoder.layer[0](x)


def test_graphs_are_counted_by_how_the_layers_run_and_compiled_again_is_told_apart():
    torch.compiler.reset()
    module = _Layer().train()
    core = module.model.bert.encoder.layer[0].attention.self.sparse_attention
    compiled = torch.compile(module, backend="eager", dynamic=True)
    clock = compiling.CompileClock()
    clock.on_fit_start(None, module)
    clock.on_train_epoch_start(None, module)
    try:
        for walking in (True, False):
            core.walking = walking
            for length in (5, 6, 9):
                compiled(torch.randn(3, length, 32))
                clock.on_train_batch_end(None, module, None, {"input_ids": torch.zeros(3, length)}, 0)
        assert clock.summary()["graphs"] == {"walking": 1, "training": 1}
        assert clock.summary()["again"] == 0
        assert clock.summary()["lengths"] == 3
        compiled(torch.randn(1, 5, 32))  # a batch of one is a kind of its own to the compiler
        assert clock.summary()["graphs"] == {"walking": 1, "training": 2}
        assert clock.summary()["again"] == 1
    finally:
        torch.compiler.reset()


def test_the_compile_table_tells_the_first_process_from_the_next():
    caches = []

    def run(words, cache):
        caches.append(cache)
        warm = cache in caches[:-1]
        again = 0 if "data.limit=3200" in words else 2
        return {
            "start": 1.0,
            "seconds": {"measuring": 1.0, "walking": 2.0 if warm else 30.0},
            "graphs": {"measuring": 1, "walking": 1 + again},
            "again": again,
            "first_step": 2.5 if warm else 31.0,
            "steps": 100,
            "lengths": 40,
        }

    result = compiling.measure(BenchOptions(attn="topk"), run)
    assert [row[0] for row in result.rows] == ["sparsemax", "entmax15", "entmax", "topk"]
    assert result.rows[0][1:5] == ["31.0 s", "3.0 s", "31.0 s", "2.5 s"]
    assert [target.met for target in result.targets[:2]] == [True, False]
    assert len(set(caches)) == 4
