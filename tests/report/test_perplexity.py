"""The perplexity curve of a pre-training: read from metrics.csv, drawn over the unigram line."""

from pathlib import Path

import pytest

from attnlab.report.plots import curve_of, perplexity_figure, save_plots

CSV = "step,val/perplexity,train/loss\n10,,6.1\n58,900.5,\n60,,5.9\n117,512.25,\n"


def test_the_curve_is_what_was_logged_and_the_baseline_a_level_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(CSV)
    curve = curve_of(tmp_path / "metrics.csv", "val/perplexity")
    assert curve == [(58, 900.5), (117, 512.25)]
    (axes,) = perplexity_figure(curve, 922.9).axes
    drawn, level = axes.lines
    assert list(zip(*drawn.get_data(), strict=True)) == curve
    assert set(level.get_ydata()) == {922.9}
    low, high = axes.get_ylim()
    assert low < 512.25 < 922.9 < high
    assert {text.get_text() for text in axes.texts} == {"512.2", "unigram 923"}


def test_a_run_without_perplexity_has_no_such_plot(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,val/accuracy\n10,0.5\n")
    assert save_plots(tmp_path, {}) == []
    (tmp_path / "metrics.csv").write_text(CSV)
    assert [file.name for file in save_plots(tmp_path, {}, unigram=922.9)] == ["perplexity.png"]


@pytest.mark.parametrize("unigram", [None, 300.0])
def test_one_epoch_is_a_curve_too(unigram: float | None) -> None:
    (axes,) = perplexity_figure([(10, 250.0)], unigram).axes
    assert axes.get_ylim()[0] < 250 < axes.get_ylim()[1]
