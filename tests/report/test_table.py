"""The closing table holds every number a reader wants, in 80 columns."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from attnlab.files import size
from attnlab.report.table import bar, duration, print_run_summary

METRICS = {
    "val": {"loss": 0.4321, "accuracy": 0.8123, "f1": 0.79},
    "test": {"loss": 0.43, "accuracy": 0.8155},
    "train": {
        "seconds": 143.2,
        "wall_seconds": 171.0,
        "examples_per_second": 87.44,
        "epochs": 2.0,
        "steps": 1658.0,
        "peak_memory_mb": 1250.0,
    },
    "attention": {
        "density": 0.31,
        "entropy": 1.22,
        "support": 6.2,
        **{f"density/layer_{layer:02d}": 0.6 - 0.05 * layer for layer in range(12)},
    },
}
RUN = Path("outputs/movie_reviews/sparsemax/2026-01-01_10-33-12_s1")


def printed(metrics, run=RUN, *, mask=None, encoding="utf-8", terminal=False):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(file=file, width=80, force_terminal=terminal)
    print_run_summary(run, metrics, mask=mask, console=console)
    file.flush()
    return raw.getvalue().decode(encoding)


def line_with(text, word):
    return next(line for line in text.splitlines() if word in line)


def test_the_summary_shows_each_metric_by_split():
    text = printed(METRICS)
    assert line_with(text, "metric").split()[:3] == ["metric", "val", "test"]
    assert line_with(text, "accuracy").split()[:3] == ["accuracy", "0.8123", "0.8155"]
    assert line_with(text, "f1").split()[:3] == ["f1", "0.7900", "-"]


def test_the_summary_shows_what_the_run_cost():
    text = printed(METRICS)
    assert "wall_seconds" not in text
    for word in ("2 min 23 s", "87.4 examples/s", "1,658", "1.25 GB"):
        assert word in text


def test_the_summary_names_the_mask_with_its_density():
    text = printed(METRICS | {"mask": {"density": 0.1252}}, mask="block_local")
    assert "block_local, allows 12.5 %" in line_with(text, "mask")
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "mask" not in printed(METRICS)


def test_the_summary_shows_the_density_of_each_layer_with_a_bar():
    text = printed(METRICS)
    for layer in range(12):
        value = f"{0.6 - 0.05 * layer:.3f}"
        assert f"{layer} " in line_with(text, value)
    assert "█" in line_with(text, "0.600")
    assert "mean" in line_with(text, "0.310")
    assert "6.2 keys a query" in text
    assert "1.22 nats" in text


def test_the_run_folder_stands_unbroken_on_the_last_line():
    deep = Path("/somewhere") / "/".join(["a_long_folder_name"] * 8)
    assert printed(METRICS, deep).splitlines()[-1].endswith(str(deep))


def test_the_summary_fits_80_columns():
    assert max(len(line) for line in printed(METRICS).splitlines()) <= 80


def test_the_summary_has_no_colours_outside_a_terminal():
    assert "\x1b" not in printed(METRICS)
    assert "\x1b" in printed(METRICS, terminal=True)


def test_the_summary_can_be_printed_in_ascii():
    text = printed(METRICS, encoding="ascii")
    assert text.isascii()
    assert "##########" in line_with(text, "0.600")


@pytest.mark.parametrize("part", ["val", "test", "train", "attention"])
def test_a_part_that_is_missing_is_left_out(part):
    rest = {name: values for name, values in METRICS.items() if name != part}
    assert str(RUN) in printed(rest)


def test_a_rate_that_was_not_measured_is_left_out():
    train = METRICS["train"] | {"examples_per_second": float("nan")}
    assert "throughput" not in printed(METRICS | {"train": train})


def test_an_empty_run_still_names_its_folder():
    assert str(RUN) in printed({})


def test_a_bar_grows_with_the_share_and_never_hides_a_positive_one():
    assert bar(0.0) == ""
    assert bar(1e-6) == "▏"
    assert bar(0.5, width=8) == "████"
    assert bar(1.0, width=8) == bar(7.0, width=8) == "█" * 8
    assert bar(0.5, width=8, unicode=False) == "####"
    assert bar(float("nan")) == ""


def test_durations_and_sizes_are_said_in_words():
    assert duration(48.23) == "48.2 s"
    assert duration(59.97) == "1 min 00 s"
    assert duration(143.2) == "2 min 23 s"
    assert duration(3899) == "1 h 04 min"
    assert size(640e6) == "640 MB"
    assert size(1250e6) == "1.25 GB"


def test_further_evaluation_sets_are_rows_with_their_whole_names() -> None:
    further = {"val_mismatched": {"accuracy": 0.8125, "f1": 0.75, "loss": 0.5}}
    text = printed(METRICS | further)
    assert "val_mismatched" in text
    assert "0.8125" in text
    assert max(len(line) for line in text.splitlines()) <= 80
