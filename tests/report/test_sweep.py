"""A sweep's table and picture hold what the run folders say; only runs equal but for the seed are averaged."""

import csv
import json

import pytest
import yaml
from PIL import Image

from attnlab.cli.sweep import Job
from attnlab.report.sweep import pictures, save_density, save_table
from attnlab.report.tradeoff import tradeoff_figure


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def job(tmp_path):
    """`job("attn=entmax", "sparsity.density=0.1", accuracy=0.8)`: a run folder as a run leaves it, and its job."""

    def make(*words, accuracy=None, density=None, status="done", inside=True, **metrics):
        typed = dict(word.lstrip("+~").partition("=")[::2] for word in words)
        wanted = float(typed["sparsity.density"]) if "sparsity.density" in typed else None
        root = tmp_path if inside else tmp_path.parent / f"{tmp_path.name}_elsewhere"
        folder = root / ",".join(words).replace("/", "_")
        folder.mkdir(parents=True)
        config = {
            "task": {"name": typed.get("task", "sst2"), "kind": "classification", "metrics": ["accuracy"]},
            "model": {"name": typed.get("model.name", "minilm")},
            "attn": {"name": typed.get("attn", "sparsemax")},
            "sparsity": {"density": wanted},
            "seed": int(typed.get("seed", 1)),
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        if accuracy is not None:
            values = {
                "val": {"loss": 0.4, "accuracy": accuracy},
                "attention": {"density": wanted or density or 1.0, "density/layer_00": 0.3},
                "test": {"loss": 0.5, "accuracy": accuracy - 0.01},
                "train": {"seconds": 12.5, "steps": 3.0},
            }
            (folder / "metrics.json").write_text(json.dumps(values | metrics))
        return Job(overrides=words, folder=folder, status=status)

    return make


@pytest.fixture
def sweep(job):
    """Two attentions at two densities with two seeds, and softmax."""
    jobs = []
    for seed, shift in ((1, 0.01), (2, -0.01)):
        for i, attn in enumerate(("entmax", "topk")):
            for density in (0.5, 0.1):
                words = (f"attn={attn}", f"sparsity.density={density}", f"seed={seed}", "task=sst2")
                jobs.append(job(*words, accuracy=0.8 + density / 10 - i / 50 + shift))
        jobs.append(job("attn=softmax", "sparsity=none", f"seed={seed}", "task=sst2", accuracy=0.878 + shift))
    return jobs


def test_the_table_has_a_row_a_job_and_a_column_for_what_differs(sweep, tmp_path):
    rows = rows_of(save_table(tmp_path, sweep, fixed=("task",)))
    assert list(rows[0]) == [
        *("attn", "sparsity.density", "seed", "sparsity", "status", "val/loss", "val/accuracy"),
        *("test/loss", "test/accuracy", "attention/density", "train/seconds", "folder"),
    ]
    assert len(rows) == len(sweep) == 10
    assert rows[1]["attn"] == "entmax"
    assert rows[1]["sparsity.density"] == "0.1"
    assert float(rows[1]["val/accuracy"]) == pytest.approx(0.82)
    assert float(rows[1]["test/accuracy"]) == pytest.approx(0.81)
    assert rows[1]["attention/density"] == "0.1"
    assert rows[1]["train/seconds"] == "12.5"
    assert (tmp_path / rows[1]["folder"] / "metrics.json").is_file()
    assert rows[4]["sparsity"] == "none"
    assert rows[4]["sparsity.density"] == ""


def test_a_job_without_metrics_is_a_row_with_blanks(job, tmp_path):
    good = job("seed=1", accuracy=0.8)
    failed = job("seed=2", status="failed")
    gone = Job(overrides=("seed=3",), folder=tmp_path / "never", status="failed")
    damaged = job("seed=4", accuracy=0.8, status="interrupted")
    (damaged.folder / "metrics.json").write_text('{"val": {"acc')
    rows = rows_of(save_table(tmp_path, [good, failed, gone, damaged]))
    assert [row["status"] for row in rows] == ["done", "failed", "failed", "interrupted"]
    assert [row["val/accuracy"] for row in rows] == ["0.8", "", "", ""]
    assert [row["train/seconds"] for row in rows] == ["12.5", "", "", ""]


def test_val_comes_before_test_in_the_table_whichever_run_has_what(job, tmp_path):
    jobs = [job("task=a", accuracy=0.8, val={}), job("task=b", accuracy=0.7, val={"f1": 0.6}, test={})]
    header = list(rows_of(save_table(tmp_path, jobs))[0])
    assert header[2:5] == ["val/f1", "test/loss", "test/accuracy"]


def test_a_run_that_went_on_elsewhere_is_named_in_full(job, tmp_path):
    (row,) = rows_of(save_table(tmp_path, [job("seed=1", accuracy=0.8, inside=False)]))
    assert row["folder"].startswith("/")


def test_a_value_with_commas_stays_one_cell(job, tmp_path):
    (row,) = rows_of(save_table(tmp_path, [job("+attn.layers=[0,1]", accuracy=0.8)]))
    assert row["attn.layers"] == "[0,1]"


def test_a_point_is_the_mean_over_seeds_with_their_standard_deviation(sweep, tmp_path):
    assert save_density(tmp_path, sweep, fixed=("task",)) == [tmp_path / "density.png"]
    rows = rows_of(tmp_path / "density.csv")
    assert [(row["attn"], row["sparsity.density"], row["seeds"]) for row in rows] == [
        *(("entmax", "0.5", "2"), ("entmax", "0.1", "2"), ("topk", "0.5", "2"), ("topk", "0.1", "2")),
        ("softmax", "", "2"),
    ]
    assert "setting" not in rows[0]
    assert float(rows[0]["val/accuracy"]) == pytest.approx(0.85)
    # of two numbers 0.02 apart, with n - 1
    assert float(rows[0]["val/accuracy std"]) == pytest.approx(0.02 / 2**0.5)
    with Image.open(tmp_path / "density.png") as picture:
        assert picture.width > 600


def test_the_picture_has_a_curve_an_attention_and_softmax_as_a_line_with_its_number(sweep):
    (picture,) = pictures(sweep, fixed=("task",))
    (axes,) = tradeoff_figure(picture).axes
    curves = {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}
    assert set(curves) == {"entmax", "topk"}
    assert list(curves["entmax"].get_xdata()) == [0.1, 0.5]
    assert list(curves["entmax"].get_ydata()) == pytest.approx([0.81, 0.85])
    assert [text.get_text() for text in axes.texts] == ["softmax 0.878", "entmax", "topk"]
    assert any(list(line.get_ydata()) == pytest.approx([0.878, 0.878]) for line in axes.get_lines())
    assert axes.get_title(loc="left") == "sst2, minilm: accuracy against attention density"
    low, high = axes.get_xlim()
    ticks = [label.get_text() for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
    assert ticks == ["0.1", "0.25", "0.5", "1"]
    assert axes.get_xscale() == "log"


def test_names_do_not_overlap_where_the_curves_do(job):
    attentions = [f"attention_{letter}" for letter in "abcdefghijkl"]
    jobs = [
        job(f"attn={attn}", f"sparsity.density={density}", accuracy=0.8 + density / 10)
        for attn in attentions
        for density in (0.05, 0.5)
    ]
    jobs.append(job("attn=softmax", accuracy=0.805))
    figure = tradeoff_figure(pictures(jobs)[0])
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 13
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
    inside = axes.get_window_extent()
    assert all(inside.x0 <= box.x0 and inside.y0 <= box.y0 and box.y1 <= inside.y1 for box in boxes)


def test_runs_that_differ_in_more_than_the_seed_are_curves_of_their_own(job, tmp_path):
    jobs = [
        job(*words, f"optim.lr={lr}", accuracy=score)
        for lr, score in (("1e-4", 0.8), ("3e-5", 0.7))
        for words in (
            ("attn=topk", "sparsity.density=0.5"),
            ("attn=topk", "sparsity.density=0.1"),
            ("attn=softmax", "sparsity=none", "~attn.lam"),
        )
    ]
    (picture,) = pictures(jobs)
    assert {p.curve for p in picture.points} == {"topk optim.lr=1e-4", "topk optim.lr=3e-5"}
    assert {p.curve: p.score for p in picture.references} == {
        "softmax optim.lr=1e-4": 0.8,
        "softmax optim.lr=3e-5": 0.7,
    }
    save_density(tmp_path, jobs)
    assert {row["setting"] for row in rows_of(tmp_path / "density.csv")} == {"optim.lr=1e-4", "optim.lr=3e-5"}


def test_each_task_gets_its_picture_and_each_model_of_a_task(job, tmp_path):
    def jobs(*words):
        return [job(*words, f"sparsity.density={density}", accuracy=0.8) for density in (0.5, 0.1)]

    tasks = [*jobs("task=sst2"), *jobs("task=cola")]
    assert [file.name for file in save_density(tmp_path, tasks)] == ["density_sst2.png", "density_cola.png"]
    models = [*jobs("model.name=hub/one"), *jobs("model.name=hub/two")]
    assert [file.name for file in save_density(tmp_path, models)] == ["density_one.png", "density_two.png"]


def test_one_point_is_no_picture(job, tmp_path):
    jobs = [
        job("attn=topk", "sparsity.density=0.5", accuracy=0.8),
        job("attn=topk", "sparsity.density=0.1", status="interrupted"),
        job("attn=topk", "sparsity.density=0.2", accuracy=0.8, val={"accuracy": None}),
        job("attn=softmax", accuracy=0.8),
    ]
    assert save_density(tmp_path, jobs) == []
    assert not list(tmp_path.glob("density*"))


def test_a_folder_that_two_jobs_were_sent_to_counts_once(job):
    first, *rest = [job(f"sparsity.density={density}", accuracy=0.8) for density in (0.5, 0.1)]
    (picture,) = pictures([first, first, *rest])
    assert [point.runs for point in picture.points] == [1, 1]
