"""Pictures are written, are small, tell zero from tiny, and draw no more than they may."""

import io

import numpy as np
import pytest
import torch
import wandb
from matplotlib.colors import to_rgb
from PIL import Image

from attnlab.analysis.probes import PROBES, Probe, probe_attention
from attnlab.attention import AttentionSpec, attach
from attnlab.report.colours import STOPS, attention_colours
from attnlab.report.heatmaps import attention_figure, dial_figure, learned_keys
from attnlab.report.plots import (
    density_curves,
    density_figure,
    density_over_time,
    png,
    save_figure,
    save_plots,
)
from attnlab.report.wandb_panels import log_heatmaps

from .tiny import tiny_bert, tiny_tokenizer

DENSITIES = {"density": 0.4, "density/layer_00": 0.6, "density/layer_01": 0.2, "entropy": 1.0}
MEAN = "attention/density"
CSV = f"""epoch,step,train/loss,{MEAN},{MEAN}/layer_00,{MEAN}/layer_01
0,9,0.7,,,
0,50,,0.9,0.95,0.85
1,100,,0.4,0.6,0.2
"""


def random_probe(*, layers, heads, tokens, dtype=torch.float32):
    torch.manual_seed(0)
    scores = 3 * torch.randn(layers, heads, tokens, tokens, dtype=dtype)
    return Probe(
        sentence="word " * tokens,
        tokens=tuple(f"$tok_{index}$" for index in range(tokens)),
        layers=tuple(range(layers)),
        probabilities=scores.softmax(-1),
    )


def drawn_text(figure):
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def images(figure):
    # The colour bar is drawn as a mesh, so every image is a map.
    return [axes.get_images()[0].get_array() for part in figure.subfigs for axes in part.axes if axes.get_images()]


def test_the_figure_shows_the_probabilities_of_the_model():
    model = attach(tiny_bert(), AttentionSpec(name="sparsemax"))
    probe, *_ = probe_attention(model, tiny_tokenizer(), ["A b, c."])
    *layers, mosaic = images(attention_figure(probe))
    assert len(layers) == 3
    for layer, shown in enumerate(layers):
        expected = probe.probabilities[layer].mean(0).numpy()
        np.testing.assert_allclose(shown.filled(0.0), expected)
    heads = mosaic.filled(0.0)
    assert np.isclose(heads[heads > 0].sum(), probe.probabilities.sum(), rtol=1e-4)


def test_cells_that_are_exactly_zero_are_masked_and_only_they():
    probe = random_probe(layers=2, heads=2, tokens=5)
    probe.probabilities[..., 1] = 0.0
    probe.probabilities[..., 2] = 1e-12
    for shown in images(attention_figure(probe))[:2]:
        mask = np.ma.getmaskarray(shown)
        assert mask[:, 1].all()
        assert mask.sum() == 5


def test_zero_is_white_and_the_smallest_positive_is_visibly_not():
    colours = attention_colours()
    zero = colours(np.ma.masked_all(1))[0]
    assert zero[:3] == pytest.approx(to_rgb("white"))
    assert max(abs(zero[i] - colours(0.0)[i]) for i in range(3)) > 0.1


def test_the_colours_darken_in_equal_steps():
    # OKLab lightness of the map's colours, computed back from sRGB by Ottosson's forward matrices.
    rgb = attention_colours(64)(np.arange(64))[:, :3]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_lms = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    to_lab = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    lab = np.cbrt(linear @ np.array(to_lms).T) @ np.array(to_lab).T
    assert lab[0, 0] == pytest.approx(STOPS[0][0], abs=0.01)
    assert (np.diff(lab[:, 0]) < 0).all()
    steps = np.linalg.norm(np.diff(lab, axis=0), axis=1)
    assert steps.max() < 1.25 * steps.min()


def test_a_large_model_is_drawn_at_most_12_by_12_and_the_figure_says_so():
    figure = attention_figure(random_probe(layers=25, heads=16, tokens=40))
    *layers, mosaic = images(figure)
    assert len(layers) == 12
    assert all(shown.shape == (24, 24) for shown in layers)
    gutter = 3
    assert mosaic.shape == (12 * (24 + gutter) + gutter,) * 2
    text = " ".join(drawn_text(figure))
    for note in ("12 of 25 layers", "12 of 16 heads", "24 of 40 tokens", "layer 24", "head 15"):
        assert note in text


@pytest.mark.parametrize("sizes", [(1, 1, 2), (12, 12, 24)])
def test_a_heat_map_stays_under_its_size_and_readable(sizes):
    layers, heads, tokens = sizes
    content = png(attention_figure(random_probe(layers=layers, heads=heads, tokens=tokens)))
    picture = Image.open(io.BytesIO(content))
    picture.load()
    assert len(content) < 300_000
    assert picture.width >= 600


def test_a_picture_that_cannot_be_small_enough_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="100 bytes"):
        save_figure(density_figure(DENSITIES), tmp_path / "x.png", most_bytes=100)
    assert not (tmp_path / "x.png").exists()


def test_the_density_figure_has_a_bar_a_layer():
    (axes,) = density_figure(DENSITIES).axes
    assert [bar.get_height() for bar in axes.patches] == [0.6, 0.2]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1"]


def test_without_layers_there_is_no_density_figure():
    with pytest.raises(ValueError, match="no density"):
        density_figure({"density": 0.4})


def test_learned_dials_are_drawn_layer_by_head_with_their_numbers():
    learned = {
        f"alpha/layer_{layer:02d}/head_{head:02d}": 1 + 0.1 * layer + 0.01 * head
        for layer in range(2)
        for head in range(3)
    }
    assert learned_keys({**learned, "density/layer_00": 0.5, "lam/layer_00": -1.0}) == ["alpha"]
    panel = dial_figure(learned, "alpha").axes[0]
    assert [text.get_text() for text in panel.texts] == ["1.00", "1.01", "1.02", "1.10", "1.11", "1.12"]
    with pytest.raises(ValueError, match="no lam by layer and head"):
        dial_figure(learned, "lam")


def test_density_over_time_reads_the_steps_at_which_it_was_logged(tmp_path):
    file = tmp_path / "metrics.csv"
    file.write_text(CSV)
    assert density_curves(file) == {
        None: [(50, 0.9), (100, 0.4)],
        0: [(50, 0.95), (100, 0.6)],
        1: [(50, 0.85), (100, 0.2)],
    }
    (axes,) = density_over_time(file).axes
    assert sorted(tuple(line.get_ydata()) for line in axes.get_lines()) == [
        (0.85, 0.2),
        (0.9, 0.4),
        (0.95, 0.6),
    ]


def test_a_csv_without_density_is_an_error(tmp_path):
    file = tmp_path / "metrics.csv"
    file.write_text("step,train/loss\n1,0.5\n")
    with pytest.raises(ValueError, match="no attention density"):
        density_over_time(file)


def test_a_run_gets_its_pictures_under_plots(tmp_path):
    (tmp_path / "metrics.csv").write_text(CSV + "2,150,,0.3,0.5,0.1\n")  # three points make a curve
    model = attach(tiny_bert(), AttentionSpec(name="entmax15"))
    probes = probe_attention(model, tiny_tokenizer(), PROBES[:2])
    files = save_plots(tmp_path, DENSITIES, probes)
    names = ["density.png", "density_over_time.png", "probe_00.png", "probe_01.png"]
    assert [file.name for file in files] == names
    for file in files:
        assert file.parent == tmp_path / "plots"
        assert 1_000 < file.stat().st_size < 300_000
        with Image.open(file) as picture:
            assert picture.format == "PNG"


def test_a_run_without_attention_metrics_gets_no_pictures(tmp_path):
    assert save_plots(tmp_path, {}) == []


def test_heat_maps_reach_an_offline_wandb_run_within_their_size(tmp_path):
    run = wandb.init(mode="offline", dir=tmp_path, project="attnlab-test")
    try:
        figure = attention_figure(random_probe(layers=2, heads=2, tokens=6))
        log_heatmaps(run, {"probes/pair": figure}, step=7, most_bytes=60_000)
        assert run.summary["trainer/global_step"] == 7
        logged = run.summary["probes/pair"]
        assert logged["_type"] == "image-file"
        assert logged["size"] < 60_000
    finally:
        run.finish()
