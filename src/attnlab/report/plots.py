"""Density plots, and pictures saved small enough for a repository, a page or W&B."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from ..analysis.probes import Probe
from ..files import write_whole
from .colours import ACCENT, INK, MUTED, attention_colours
from .heatmaps import attention_figure, dial_figure, learned_keys

MOST_BYTES = 300_000
DPIS = (200, 160, 130, 100, 80, 60, 40)
DENSITY = re.compile(r"(?:.*/)?attention/density(?:/layer_(\d+))?$")
LAYER = re.compile(r"density/layer_(\d+)$")

Curve = list[tuple[float, float]]


def density_figure(attention: Mapping[str, float]) -> Figure:
    """Attention density by layer, from the "attention" part of metrics.json.

    Raises ValueError when it holds no density by layer.
    """
    layers = {int(match[1]): value for key, value in attention.items() if (match := LAYER.match(key))}
    if not layers:
        raise ValueError("no density by layer among the attention metrics")
    figure, axes = framed(width=max(4.2, 1.6 + 0.5 * len(layers)))
    names = sorted(layers)
    bars = axes.bar([str(name) for name in names], [layers[name] for name in names], width=0.7)
    for patch in bars:
        patch.set_facecolor(ACCENT)
    # The white ground keeps the mean's line out of the numbers.
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
    axes.bar_label(bars, fmt="{:.2f}", fontsize=8, color=INK, padding=2.5, bbox=ground, zorder=4)
    mean = attention.get("density")
    if mean is not None:
        axes.axhline(mean, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=3)
        axes.annotate(
            f"mean {mean:.2f}", (1.01, mean), xycoords=("axes fraction", "data"),
            fontsize=8, color=MUTED, va="center",
        )  # fmt: skip
    axes.set_ylim(0, min(1.08, max(layers.values()) * 1.18 + 0.02))
    axes.set_xlabel("layer", fontsize=9, color=INK)
    axes.set_ylabel("share of allowed pairs with p > 0", fontsize=9, color=INK)
    axes.set_title("Attention density by layer", fontsize=11, color=INK, loc="left", weight="bold")
    return figure


def density_over_time(metrics_csv: Path) -> Figure:
    """Attention density over training steps, a line a layer and a bold one for the mean.

    Reads the columns `[...]attention/density[/layer_NN]` beside `step`; a blank cell is a step at
    which it was not logged. Raises ValueError when there is no such column.
    """
    curves = density_curves(metrics_csv)
    if not curves:
        raise ValueError(f"{metrics_csv}: no attention density was logged")
    figure, axes = framed(width=5.6)
    layers = sorted(layer for layer in curves if layer is not None)
    colours = attention_colours()
    ends: list[tuple[float, str, object]] = []
    for place, layer in enumerate(layers):
        colour = colours(0.25 + 0.7 * place / max(len(layers) - 1, 1))
        axes.plot(*zip(*curves[layer], strict=True), color=colour, linewidth=1.3)
        ends.append((curves[layer][-1][1], f"layer {layer}", colour))
    if None in curves:
        axes.plot(*zip(*curves[None], strict=True), color="#d1495b", linewidth=2.2)
        ends.append((curves[None][-1][1], "mean", "#d1495b"))
    axes.set_ylim(0, 1.03)
    axes.margins(x=0.01)
    _label_ends(axes, ends)
    axes.set_xlabel("training step", fontsize=9, color=INK)
    axes.set_ylabel("share of allowed pairs with p > 0", fontsize=9, color=INK)
    axes.set_title("Attention density during training", fontsize=11, color=INK, loc="left", weight="bold")
    return figure


def density_curves(metrics_csv: Path) -> dict[int | None, Curve]:
    """(step, density) by layer, None for the mean over layers, from a run's metrics.csv."""
    curves: dict[int | None, Curve] = {}
    with metrics_csv.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name, cell in row.items():
                match = DENSITY.match(name or "")
                if match and cell and row.get("step"):
                    layer = int(match[1]) if match[1] else None
                    curves.setdefault(layer, []).append((float(row["step"]), float(cell)))
    return curves


def perplexity_figure(curve: Curve, unigram: float | None = None) -> Figure:
    """Validation perplexity over training steps, log scale, with the unigram baseline as a dashed line."""
    figure, axes = framed(width=5.6)
    axes.set_yscale("log")
    axes.plot(*zip(*curve, strict=True), color=ACCENT, linewidth=2.2)
    levels = [value for _, value in curve] + ([unigram] if unigram else [])
    axes.set_yticks([tick for power in range(6) for tick in (10**power, 2 * 10**power, 5 * 10**power)])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_ylim(min(levels) / 1.15, max(levels) * 1.15)
    ends = [(curve[-1][1], f"{curve[-1][1]:.1f}", ACCENT)]
    if unigram:
        axes.axhline(unigram, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        ends.append((unigram, f"unigram {unigram:.0f}", MUTED))
    for value, text, colour in ends:
        axes.annotate(
            text, (1.01, value), xycoords=("axes fraction", "data"),
            fontsize=8, color=colour, va="center",
        )  # fmt: skip
    axes.margins(x=0.01)
    axes.set_xlabel("training step", fontsize=9, color=INK)
    axes.set_ylabel("perplexity of masked tokens", fontsize=9, color=INK)
    axes.set_title("Validation perplexity", fontsize=11, color=INK, loc="left", weight="bold")
    return figure


def curve_of(metrics_csv: Path, name: str) -> Curve:
    """(step, value) of one column of a run's metrics.csv, where it was logged."""
    with metrics_csv.open(newline="", encoding="utf-8") as file:
        return [(float(row["step"]), float(row[name])) for row in csv.DictReader(file) if row.get(name)]


def save_plots(
    run_dir: Path, attention: Mapping[str, float], probes: Sequence[Probe] = (), *, unigram: float | None = None
) -> list[Path]:
    """Write what can be drawn of a run to run_dir/plots/ and return the files."""
    folder = run_dir / "plots"
    figures: dict[str, Figure] = {}
    if any(LAYER.match(key) for key in attention):
        figures["density"] = density_figure(attention)
    metrics_csv = run_dir / "metrics.csv"
    if metrics_csv.is_file() and any(len(c) > 2 for c in density_curves(metrics_csv).values()):
        figures["density_over_time"] = density_over_time(metrics_csv)
    if metrics_csv.is_file() and (curve := curve_of(metrics_csv, "val/perplexity")):
        figures["perplexity"] = perplexity_figure(curve, unigram)
    for key in learned_keys(attention):
        figures[key] = dial_figure(attention, key)
    for index, probe in enumerate(probes):
        figures[f"probe_{index:02d}"] = attention_figure(probe)
    return [save_figure(figure, folder / f"{name}.png") for name, figure in figures.items()]


def save_figure(figure: Figure, path: Path, *, most_bytes: int = MOST_BYTES) -> Path:
    """Write a PNG of at most `most_bytes`; see `png`."""
    write_whole(path, png(figure, most_bytes=most_bytes))
    return path


def png(figure: Figure, *, most_bytes: int = MOST_BYTES) -> bytes:
    """The figure as PNG at the highest resolution that stays within `most_bytes`.

    Raises ValueError when even the lowest one does not.
    """
    canvas = FigureCanvasAgg(figure)
    for dpi in DPIS:
        figure.set_dpi(dpi)
        canvas.draw()
        pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        # 256 colours of its own are all that such a picture has, at a third of the bytes.
        packed = pixels.quantize(256, dither=Image.Dither.NONE)
        buffer = io.BytesIO()
        packed.save(buffer, format="png", optimize=True, dpi=(dpi, dpi))
        if buffer.tell() <= most_bytes:
            return buffer.getvalue()
    raise ValueError(f"the picture takes more than {most_bytes} bytes at {DPIS[-1]} dpi")


def framed(*, width: float, height: float = 3.0) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    style(axes)
    return figure, axes


def style(axes: Axes) -> None:
    """What all our charts look like: no box, faint lines for the heights."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b8c0c9")
    axes.tick_params(labelsize=8, colors=INK, length=0)
    axes.grid(axis="y", color="#e4e8ec", linewidth=0.8)
    axes.set_axisbelow(True)


def _label_ends(axes: Axes, ends: list[tuple[float, str, object]], gap: float = 0.052) -> None:
    """Name each line at its right end, moving names apart that would overlap."""
    lowest = float("-inf")
    placed = []
    for value, text, colour in sorted(ends, key=lambda end: end[0]):
        lowest = max(value, lowest + gap)
        placed.append((lowest, text, colour))
    over = max(0.0, placed[-1][0] - 1.0)
    for height, text, colour in placed:
        axes.annotate(
            text, (1.01, height - over), xycoords=("axes fraction", "data"),
            fontsize=8, color=colour, va="center",
        )  # fmt: skip
