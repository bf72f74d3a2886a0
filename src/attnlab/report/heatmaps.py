"""Heat maps of what attention looks at: each layer with its words, and every head in small."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray

from ..analysis.probes import Probe
from .colours import INK, MUTED, attention_colours

Array = NDArray[np.float32]

MOST_PANELS = 12
MOST_TOKENS = 24
LONGEST_TOKEN = 12
# The square root spreads out the small probabilities, where sparse and dense attention differ.
NORM = PowerNorm(gamma=0.5, vmin=0.0, vmax=1.0)
TICKS = (0.0, 0.01, 0.1, 0.25, 0.5, 1.0)


def attention_figure(probe: Probe) -> Figure:
    """One sentence, two views: the mean over heads of each layer with its tokens, then every head.

    White is exactly 0: no head, or not this head, looks there. At most 12 layers, 12 heads and 24
    tokens are drawn (evenly chosen layers and heads, the first tokens); the title says what was
    left out.
    """
    layers = evenly(probe.probabilities.shape[0])
    heads = evenly(probe.probabilities.shape[1])
    maps: Array = probe.probabilities[:, :, :MOST_TOKENS, :MOST_TOKENS].numpy()
    tokens = [_short(token) for token in probe.tokens[:MOST_TOKENS]]
    names = [probe.layers[layer] for layer in layers]

    columns = min(3 if len(layers) <= 6 else 4, len(layers))
    rows = -(-len(layers) // columns)
    # Inches: 0.13 a token holds its label at 6.5 points.
    side = 0.8 + 0.13 * len(tokens)
    width = max(side * columns + 0.8, 7.2)
    small = width / (len(heads) + 0.4)
    tall = (side * rows + 0.45, small * len(layers) + 0.45)
    figure = Figure(figsize=(width, sum(tall) + 0.3), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03)  # type: ignore[union-attr, call-arg]
    figure.suptitle(_clipped(probe.text, 90), color=INK, fontsize=11, x=0.01, ha="left", weight="bold")
    parts = figure.subfigures(2, 1, height_ratios=tall)
    assert isinstance(parts, np.ndarray)
    upper, lower = parts
    _labelled_layers(upper, maps[layers].mean(axis=1), tokens, names, columns, _left_out(probe))
    _head_grid(lower, maps[np.ix_(layers, heads)], names, heads)
    return figure


def dial_figure(attention: Mapping[str, float], key: str) -> Figure:
    """The learned values of the dial `key` (alpha, lam) as a heat map, layer by head, with the numbers in it.

    attention is the "attention" part of metrics.json. Raises ValueError when it holds no key/layer_NN/head_NN.
    """
    cells = {
        (int(match[1]), int(match[2])): value
        for name, value in attention.items()
        if (match := re.fullmatch(rf"{key}/layer_(\d+)/head_(\d+)", name))
    }
    if not cells:
        raise ValueError(f"no {key} by layer and head among the attention metrics")
    layers, heads = sorted({layer for layer, _ in cells}), sorted({head for _, head in cells})
    values = np.array([[cells[layer, head] for head in heads] for layer in layers])
    figure = Figure(figsize=(1.2 + 0.46 * len(heads), 1.1 + 0.36 * len(layers)), layout="constrained")
    panel = figure.subplots()
    spread = max(float(np.ptp(values)), 1e-6)
    norm = Normalize(values.min() - 0.05 * spread, values.max() + 0.05 * spread)
    panel.imshow(values, cmap=attention_colours(), norm=norm, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        ink = "white" if norm(value) > 0.45 else INK
        panel.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=ink)
    panel.set_xticks(range(len(heads)), [str(head) for head in heads], fontsize=8, color=INK)
    panel.set_yticks(range(len(layers)), [str(layer) for layer in layers], fontsize=8, color=INK)
    panel.set_xlabel("head", fontsize=9, color=INK)
    panel.set_ylabel("layer", fontsize=9, color=INK)
    panel.tick_params(length=0)
    for spine in panel.spines.values():
        spine.set_visible(False)
    panel.set_title(f"Learned {key} by layer and head", fontsize=11, color=INK, loc="left", weight="bold")
    return figure


def learned_keys(attention: Mapping[str, float]) -> list[str]:
    """The dials that the attention metrics hold by layer and head."""
    matches = (re.fullmatch(r"(\w+)/layer_\d+/head_\d+", name) for name in attention)
    return sorted({match[1] for match in matches if match})


def _labelled_layers(
    part: SubFigure, maps: Array, tokens: list[str], names: list[int], columns: int, note: str
) -> None:
    part.suptitle(
        f"Mean over heads, by layer (row: query, column: key){note}",
        color=MUTED, fontsize=9, x=0.01, ha="left",
    )  # fmt: skip
    rows = -(-len(names) // columns)
    axes = part.subplots(rows, columns, squeeze=False).ravel()
    for panel, layer, probabilities in zip(axes, names, maps, strict=False):
        _draw(panel, probabilities)
        panel.set_title(f"layer {layer}", fontsize=8.5, color=INK, loc="left", pad=3)
        places = range(len(tokens))
        panel.set_xticks(places, tokens, rotation=90, fontsize=6.5, color=INK)
        panel.set_yticks(places, tokens, fontsize=6.5, color=INK)
    for empty in axes[len(names) :]:
        empty.set_visible(False)
    bar = part.colorbar(ScalarMappable(NORM, attention_colours()), ax=list(axes), shrink=0.6, aspect=28, pad=0.015)
    bar.set_ticks(TICKS, labels=[f"{tick:g}" for tick in TICKS])
    bar.ax.tick_params(labelsize=7, colors=INK, length=2)
    bar.set_label("probability (white: exactly 0)", fontsize=7.5, color=INK)
    bar.outline.set_linewidth(0.4)
    # The bar starts at the tint of the smallest positive value; its foot is the white of zero.
    bar.ax.axhspan(0, 2e-4, color="white", lw=0)


def _head_grid(part: SubFigure, maps: Array, names: list[int], heads: list[int]) -> None:
    part.suptitle("Every head (row: layer)", color=MUTED, fontsize=9, x=0.01, ha="left")
    panel = part.subplots()
    mosaic, gap = _mosaic(maps)
    side = maps.shape[-1]
    _draw(panel, mosaic)
    panel.set_xlim(gap - 1, mosaic.shape[1] - gap)
    panel.set_ylim(mosaic.shape[0] - gap, gap - 1)
    panel.xaxis.tick_top()
    middle = gap + side / 2 - 0.5
    step = side + gap
    panel.set_xticks([middle + step * n for n in range(len(heads))], [f"head {n}" for n in heads])
    panel.set_yticks([middle + step * n for n in range(len(names))], [f"layer {n}" for n in names])
    panel.tick_params(labelsize=6.5, labelcolor=INK)
    for spine in panel.spines.values():
        spine.set_visible(False)


def _mosaic(maps: Array) -> tuple[Array, int]:
    """All maps (layers, heads, T, T) in one image and the width of its gutters, which are -1.

    One image in one pair of axes is drawn ten times as fast as an axes for every head.
    """
    layers, heads, side, _ = maps.shape
    gap = 1 + side // 12
    step = side + gap
    mosaic = np.full((layers * step + gap, heads * step + gap), -1.0, dtype=np.float32)
    for layer in range(layers):
        for head in range(heads):
            top, left = gap + layer * step, gap + head * step
            mosaic[top : top + side, left : left + side] = maps[layer, head]
    return mosaic, gap


def _draw(panel: Axes, probabilities: Array) -> None:
    shown = np.ma.masked_equal(probabilities, 0.0)
    panel.imshow(shown, cmap=attention_colours(), norm=NORM, interpolation="nearest")
    panel.tick_params(length=0, pad=2)
    for spine in panel.spines.values():
        spine.set(linewidth=0.5, color="#b8c0c9")


def evenly(count: int) -> list[int]:
    """All of 0..count-1, or 12 of them at even distances, the first and the last among them."""
    picked: Sequence[float] = np.linspace(0, count - 1, min(count, MOST_PANELS)).tolist()
    return [round(index) for index in picked]


def _left_out(probe: Probe) -> str:
    layers, heads, tokens = probe.probabilities.shape[:3]
    sizes = ((MOST_PANELS, layers, "layers"), (MOST_PANELS, heads, "heads"))
    parts = [
        f"{most} of {count} {name}" for most, count, name in (*sizes, (MOST_TOKENS, tokens, "tokens")) if count > most
    ]
    return f"; drawn: {', '.join(parts)}" if parts else ""


def _short(token: str) -> str:
    # Byte-level and sentencepiece tokenizers mark a space with these; a label needs no mark.
    token = token.replace("Ġ", "").replace("▁", "") or token
    return _clipped(token, LONGEST_TOKEN)


def _clipped(text: str, longest: int) -> str:
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    # A dollar sign would open matplotlib's mathematics.
    return text.replace("$", r"\$")
