"""The table of masks holds what the finished runs below a folder say, whichever sweep they are of."""

import csv
import io
import json

import pytest
import yaml
from PIL import Image
from rich.console import Console

from attnlab.masks.patterns import build_pattern, density
from attnlab.report.mask_plot import Dot, masks_figure
from attnlab.report.mask_runs import finished_runs, mask_rows, over_none
from attnlab.report.mask_sweep import show_masks
from attnlab.report.published import LEARNED, PATTERNS

METRICS = {"sst2": ["accuracy"], "cola": ["matthews", "accuracy"], "wiki": ["perplexity", "accuracy"]}
SB = "SparseBERT, BERT-base, GLUE"


@pytest.fixture
def run(tmp_path):
    """`run("band", "sst2", 0.8, density=0.1)`: a run folder as a run leaves it."""
    count = 0

    def make(mask, task, score, *, seed=1, density=None, keys=10.0, status="done", options=None, **changes):
        nonlocal count
        count += 1
        folder = tmp_path / changes.pop("sweep", "sweep") / f"run{count}"
        folder.mkdir(parents=True)
        kind = "mlm" if task == "wiki" else "classification"
        config = {
            "task": {"name": task, "kind": kind, "metrics": METRICS[task]},
            "model": {"name": "minilm"},
            "attn": {"name": "softmax", "temperature": 1.0},
            "optim": {"lr": 1e-4},
            "mask": {"name": mask, **(options or {})},
            "seed": seed,
            **changes,
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        (folder / "status.json").write_text(json.dumps({"status": status}))
        metrics = {"val": dict.fromkeys(METRICS[task], score), "attention": {"support": keys}}
        if density is not None:
            metrics["mask"] = {"density": density}
        (folder / "metrics.json").write_text(json.dumps(metrics))
        return folder

    return make


def rows_of(root):
    return {row.label: row for row in mask_rows(finished_runs(root))}


def shown(root, width=160):
    console = Console(file=io.StringIO(), width=width)
    show_masks(root, console)
    return console.file.getvalue()


def line_with(text, word):
    return next(line for line in text.splitlines() if word in line)


def test_a_row_is_the_mean_over_seeds_and_the_average_over_tasks(run, tmp_path):
    for seed, shift in ((1, 0.0), (2, 0.02)):
        run("none", "sst2", 0.9 + shift, seed=seed, keys=24.0)
        run("none", "cola", 0.5 + shift, seed=seed, keys=12.0)
        run("band", "sst2", 0.8 + shift, seed=seed, density=0.05)
        run("band", "cola", 0.2 - shift, seed=seed, density=0.05)
    rows = rows_of(tmp_path)
    assert list(rows) == ["none", "band"]
    band = rows["band"]
    assert band.density == 0.05
    # two numbers 0.02 apart, with n - 1
    assert band.scores["sst2"] == pytest.approx((0.81, 0.02 / 2**0.5))
    assert band.scores["cola"] == pytest.approx((0.19, 0.02 / 2**0.5))
    assert band.average == pytest.approx(0.5)
    assert band.spread == pytest.approx(0.0, abs=1e-9), "one task's gain is the other's loss with each seed"
    assert rows["none"].density == 1.0
    assert rows["none"].keys == 18.0
    assert over_none(band, list(rows.values())) == pytest.approx(0.5 - 0.71)
    assert over_none(rows["none"], list(rows.values())) is None


def test_only_finished_runs_with_a_score_count(run, tmp_path):
    run("none", "sst2", 0.9)
    run("band", "sst2", 0.8, status="running")
    run("star", "sst2", 0.8, status="failed")
    run("fixed", "sst2", None)
    (run("strided", "sst2", 0.7) / "config.yaml").unlink()
    (run("random", "sst2", 0.7) / "metrics.json").write_text('{"val')
    assert list(rows_of(tmp_path)) == ["none"]
    assert "fewer than two masks" in shown(tmp_path)


def test_two_sweeps_into_one_folder_make_one_table_with_the_published_rows_beside(run, tmp_path):
    for mask, share, score in (("none", None, 0.9), ("star", 0.039, 0.85), ("strided", 0.296, 0.88)):
        run(mask, "sst2", score, density=share, sweep="masks")
        run(mask, "cola", score - 0.4, density=share, sweep="masks")
    for lam, share in ((0.1, 0.6), (1.0, 0.2)):
        for task in ("sst2", "cola"):
            run("dam", task, 0.5, density=share, options={"lam": lam, "form": "structured", "target_density": None})
    text = shown(tmp_path)
    with (tmp_path / "masks.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    ours = [row["mask"] for row in rows if row["density"]]
    assert ours == ["none", "strided", "star", "dam lam=0.1", "dam lam=1"]
    assert [row["mask"] for row in rows[5:]] == ["DAM_s 0.0001", "DAM_s 0.001", "DAM_s 0.01", "DAM_s 0.1"]
    star = rows[2]
    assert float(star["density"]) == 0.039
    assert float(star["sst2 accuracy"]) == 0.85
    assert float(star["cola matthews"]) == pytest.approx(0.45)
    assert float(star["average"]) == pytest.approx(0.65)
    assert float(star["average - none"]) == pytest.approx(-0.05)
    assert float(star[f"density ({SB})"]) == pytest.approx(0.039)
    assert float(star[f"average ({SB})"]) == pytest.approx(0.789)
    assert rows[0][f"average ({SB})"] == rows[3][f"average ({SB})"] == ""
    theirs = ["0.039", "78.9"]
    assert line_with(text, "star").split() == ["star", "0.039", "10.0", "85.0", "45.0", "65.0", "-5.0", *theirs]
    assert SB in text
    narrow = shown(tmp_path, width=60)
    assert line_with(narrow, "star").split() == ["star", "0.039", "85.0", "45.0", "65.0", "-5.0", *theirs]
    assert "dam lam=0.1" in narrow
    with Image.open(tmp_path / "masks.png") as picture:
        assert picture.width > 800


def test_a_mask_that_lacks_a_task_has_no_average(run, tmp_path):
    run("none", "sst2", 0.9)
    run("none", "cola", 0.5)
    run("band", "sst2", 0.8, density=0.05)
    band = rows_of(tmp_path)["band"]
    assert band.average is None
    assert "cola" not in band.scores
    text = shown(tmp_path)
    assert line_with(text, "band").split() == ["band", "0.050", "80.0"]
    assert "SparseBERT" not in text, "none of these is in its table"


def test_options_and_settings_that_differ_make_rows_of_their_own(run, tmp_path):
    run("band", "sst2", 0.8, density=0.05, options={"window": 3})
    run("band", "sst2", 0.82, density=0.1, options={"window": 6})
    run("star", "sst2", 0.8, density=0.04, options={"window": 1})
    assert list(rows_of(tmp_path)) == ["band window=6", "band window=3", "star"]
    run("star", "sst2", 0.7, density=0.04, options={"window": 1}, optim={"lr": 3e-4})
    assert set(rows_of(tmp_path)) == {
        *("band window=6 optim.lr=0.0001", "band window=3 optim.lr=0.0001"),
        *("star optim.lr=0.0001", "star optim.lr=0.0003"),
    }


def test_a_setting_that_only_tasks_differ_in_splits_no_row(run, tmp_path):
    run("none", "sst2", 0.9, data={"max_length": 64})
    run("none", "cola", 0.5, data={"max_length": 32})
    (row,) = rows_of(tmp_path).values()
    assert row.average == pytest.approx(0.7)


def test_another_attention_is_named_and_held_against_its_own_reference(run, tmp_path):
    entmax = {"name": "entmax", "alpha": 1.5}
    run("none", "sst2", 0.9)
    run("band", "sst2", 0.8, density=0.05)
    run("none", "sst2", 0.7, attn=entmax)
    run("band", "sst2", 0.69, density=0.05, attn=entmax)
    rows = rows_of(tmp_path)
    assert set(rows) == {"none softmax", "band softmax", "none entmax", "band entmax"}
    assert over_none(rows["band entmax"], list(rows.values())) == pytest.approx(-0.01)
    run("band", "sst2", 0.6, density=0.05, attn={"name": "entmax", "alpha": 1.25})
    assert {"band attn.alpha=1.5 entmax", "band attn.alpha=1.25 entmax"} < set(rows_of(tmp_path))


def test_a_language_model_is_scored_by_accuracy_since_less_perplexity_is_better(run, tmp_path):
    run("none", "wiki", 0.4)
    (found,) = finished_runs(tmp_path)
    assert found.metric == "accuracy"


def test_a_steered_mask_is_known_by_its_target(run, tmp_path):
    run("dam", "sst2", 0.8, density=0.2, options={"lam": 0.1, "target_density": 0.2, "form": "structured"})
    assert list(rows_of(tmp_path)) == ["dam target_density=0.2"]


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_our_patterns_keep_what_the_published_ones_keep(name):
    assert density(build_pattern(name), 128) == pytest.approx(PATTERNS[name].density, abs=0.002)


def test_the_published_masks_are_those_of_the_table():
    assert {name: round(100 * row.average, 1) for name, row in PATTERNS.items()} == {
        "strided": 79.5,
        "fixed": 79.7,
        "longformer": 80.1,
        "logsparse": 77.9,
        "bigbird": 79.4,
        "star": 78.9,
    }
    assert [(row.label, round(100 * (1 - row.density), 1)) for row in LEARNED[:2]] == [
        ("DAM_u 0.0001", 78.9),
        ("DAM_u 0.001", 79.2),
    ]


def test_the_picture_has_a_dot_a_mask_named_without_overlap():
    names = ["none", "strided", "fixed", "longformer", "logsparse", "bigbird", "star", "dam lam=0.1", "dam lam=1"]
    ours = [
        Dot(label=name, density=0.04 + 0.96 * (i == 0) + 0.01 * i, score=0.7 - 0.003 * i)
        for i, name in enumerate(names)
    ]
    theirs = [Dot(label=p.label, density=p.density, score=p.average) for p in (*PATTERNS.values(), *LEARNED)]
    figure = masks_figure(ours, theirs, {"sst2: accuracy": ours, "cola: matthews": ours})
    figure.draw_without_rendering()
    panels = [axes for part in figure.subfigs for axes in part.axes]
    assert len(panels) == 4
    for axes, dots in zip(panels, (ours, theirs), strict=False):
        assert sorted(text.get_text() for text in axes.texts) == sorted(dot.label for dot in dots)
        middles = {(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.get_lines() if line.get_marker() == "o"}
        assert middles == {(dot.density, 100 * dot.score) for dot in dots}
        boxes = [text.get_window_extent() for text in axes.texts]
        assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_a_mask_that_keeps_nothing_but_special_tokens_stands_at_the_edge():
    dots = [Dot(label="none", density=1.0, score=0.8), Dot(label="dam lam=10", density=0.0, score=0.7)]
    figure = masks_figure(dots, [], {"sst2: accuracy": dots})
    left, _ = figure.axes
    shown = [line.get_xdata()[0] for line in left.get_lines() if line.get_marker() == "o"]
    assert all(left.get_xlim()[0] < x for x in shown)
