"""The GLUE average is the mean over tasks of the mean over each task's metrics, for each setting of a sweep."""

import json

import pytest
import yaml

from attnlab.cli.sweep import Job
from attnlab.report.glue import glue_average, sweep_averages

BERT_BASE = {  # Devlin et al. 2019, table 1: MNLI-m/mm 84.6/83.4, QQP 71.2, QNLI 90.5, SST-2 93.5, CoLA 52.1, ...
    "cola": {"val": {"matthews": 0.521}},
    "sst2": {"val": {"accuracy": 0.935}},
    "mrpc": {"val": {"f1": 0.889, "accuracy": 0.848}},
    "stsb": {"val": {"pearson": 0.871, "spearman": 0.858}},
    "qqp": {"val": {"f1": 0.712, "accuracy": 0.892}},
    "mnli": {"val": {"accuracy": 0.846}, "val_mismatched": {"accuracy": 0.834}},
    "qnli": {"val": {"accuracy": 0.905}},
    "rte": {"val": {"accuracy": 0.664}},
    "wnli": {"val": {"accuracy": 0.651}},
}


def test_two_metrics_of_a_task_are_averaged_before_the_tasks_are():
    average = glue_average({task: [metrics] for task, metrics in BERT_BASE.items()})
    tasks = [0.521, 0.935, (0.889 + 0.848) / 2, (0.871 + 0.858) / 2, (0.712 + 0.892) / 2, 0.84, 0.905, 0.664, 0.651]
    assert average.score == pytest.approx(sum(tasks) / 9)
    # the leaderboard's own average of these numbers is 78.3
    assert round(100 * average.score, 1) == 78.3
    assert average.partial == ()


def test_seeds_are_averaged_ax_does_not_count_and_missing_metrics_are_said():
    runs = {
        "rte": [{"val": {"accuracy": 0.6}}, {"val": {"accuracy": 0.7}}],
        "mnli": [{"val": {"accuracy": 0.8}}],
        "ax": [{"val": {"matthews": 0.1}}],
        "cola": [{"val": {"matthews": None}}],
    }
    average = glue_average(runs)
    assert average.score == pytest.approx((0.65 + 0.8) / 2)
    assert str(average) == ("GLUE average over 2 of 9 tasks: 0.7250 (mnli, rte, mnli without all of its metrics)")
    assert glue_average({}).score is None


@pytest.fixture
def job(tmp_path):
    def make(*words, task, **val):
        folder = tmp_path / ",".join(words)
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump({"task": {"name": task}}))
        (folder / "metrics.json").write_text(json.dumps({"val": val}))
        return Job(overrides=words, folder=folder, status="done")

    return make


def test_a_sweep_has_an_average_for_each_setting_of_the_rest(job):
    jobs = [
        job(f"task={task}", f"attn={attn}", f"seed={seed}", "optim.lr=1e-4", task=task, accuracy=score + seed / 10)
        for task in ("rte", "sst2", "sst5")
        for attn, score in (("softmax", 0.5), ("sparsemax", 0.3))
        for seed in (1, 2)
    ]
    averages = sweep_averages(jobs, fixed=("optim.lr",))
    assert {setting: round(average.score, 6) for setting, average in averages.items()} == {
        "attn=softmax": 0.65,
        "attn=sparsemax": 0.45,
    }
    assert averages["attn=softmax"].tasks == ("sst2", "rte")
    assert sweep_averages(jobs[:4], fixed=("optim.lr",)) == {}, "one task has no average"
