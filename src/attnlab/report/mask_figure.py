"""Pictures of a mask: what each head keeps, and how open a learned mask is for which pairs."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from torch import Tensor

from ..analysis.importance import PARTS, importance_by_layer, mask_gates, parts_of
from ..attention.masking import EncoderMask
from .colours import ACCENT, INK, MUTED, attention_colours
from .heatmaps import evenly
from .plots import save_figure, style
from .sweep import write_csv

KEPT = ListedColormap(["white", ACCENT])
NAMES = {
    "diagonal": "diagonal\ni = j",
    "neighbours": "neighbours\n|i - j| = 1",
    "cls": "[CLS]\nfirst key",
    "sep": "[SEP]\nlast key",
    "rest": "the rest",
}


def head_figure(keep_LL: Tensor, name: str) -> Figure:
    """The pairs that one head keeps: keep (L, L) bool, blue where it is True."""
    figure = Figure(figsize=(3.6, 3.8), layout="constrained")
    panel = figure.subplots()
    _draw(panel, keep_LL)
    _positions(panel, len(keep_LL))
    panel.set_xlabel("key position", fontsize=8, color=INK)
    panel.set_ylabel("query position", fontsize=8, color=INK)
    panel.set_title(f"{name} keeps {_share(keep_LL)}", fontsize=10, color=INK, loc="left", weight="bold")
    return figure


def overview_figure(keep: Tensor, title: str) -> Figure:
    """What every head keeps, in small: keep (layers or 1, heads, L, L) bool; at most 12 layers and 12 heads."""
    layers, heads = evenly(keep.shape[0]), evenly(keep.shape[1])
    several = len(layers) > 1
    columns = len(heads) if several else min(6, len(heads))
    rows = len(layers) if several else -(-len(heads) // columns)
    side = 1.05 if several else 1.5
    figure = Figure(figsize=(max(side * columns + 0.4, 5.4), (side + 0.15) * rows + 0.6), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03)  # type: ignore[union-attr, call-arg]
    figure.suptitle(title, color=INK, fontsize=11, x=0.01, ha="left", weight="bold")
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat:
        panel.set_visible(False)
    for row, layer in enumerate(layers):
        for column, head in enumerate(heads):
            panel = axes[row, column] if several else axes.flat[column]
            panel.set_visible(True)
            own = keep[layer, head]
            _draw(panel, own)
            panel.set_xticks([])
            panel.set_yticks([])
            named = not several or row == 0
            name = f"head {head}: " if named and keep.shape[1] > 1 else ""
            panel.set_title(f"{name}{_share(own)}", fontsize=7, color=INK, loc="left", pad=2)
            if several and column == 0:
                panel.set_ylabel(f"layer {layer}", fontsize=7, color=INK)
    figure.supxlabel("key position", fontsize=8, color=MUTED)
    figure.supylabel("query position", fontsize=8, color=MUTED)
    return figure


def importance_figure(gates: Tensor, rows: Mapping[str, Mapping[str, float]], note: str = "") -> Figure:
    """The mean gate map beside the mean gate of the diagonal, the neighbours, [CLS], [SEP] and the rest, by layer.

    gates (layers or 1, heads, L, L) in [0, 1]; rows as `importance_by_layer` gives them.
    """
    mean = gates.mean(dim=(0, 1)).numpy()
    figure = Figure(figsize=(9.6, 4.1), layout="constrained")
    panel, bars = figure.subplots(1, 2, width_ratios=(1, 1.25))
    low, high = float(mean.min()), float(mean.max())
    shown = np.ma.masked_equal(mean, 0.0)  # white: open in no head and no layer
    image = panel.imshow(shown, cmap=attention_colours(), norm=Normalize(low, max(high, low + 1e-6)))
    _frame(panel)
    _positions(panel, len(mean))
    panel.set_xlabel("key position", fontsize=9, color=INK)
    panel.set_ylabel("query position", fontsize=9, color=INK)
    over = "heads and layers" if gates.shape[0] > 1 else "heads"
    panel.set_title(f"Mean gate over {over}", fontsize=11, color=INK, loc="left", weight="bold")
    bar = figure.colorbar(image, ax=panel, shrink=0.75, aspect=24, pad=0.02)
    bar.ax.tick_params(labelsize=7, colors=INK, length=2)
    bar.outline.set_linewidth(0.4)
    _bars(bars, rows)
    bars.set_title("Mean gate by kind of pair", fontsize=11, color=INK, loc="left", weight="bold")
    if note:
        figure.supxlabel(note, fontsize=8, color=MUTED, x=0.01, ha="left")
    return figure


def save_importance(run_dir: Path, held: EncoderMask) -> dict[str, float]:
    """Write plots/mask.png and plots/mask_importance.csv of a learned mask; return the mean gate of each part."""
    gates, special = mask_gates(held), held.hubs == "special"
    rows = importance_by_layer(gates, special_kept=special)
    folder = run_dir / "plots"
    save_figure(importance_figure(gates, rows, _note(held)), folder / "mask.png")
    pairs = {name: int(part.sum()) for name, part in parts_of(gates.shape[-1]).items()}
    lines = [
        {"layer": layer, "part": name, "pairs": pairs[name], "gate": value}
        for layer, row in rows.items()
        for name, value in row.items()
    ]
    write_csv(folder / "mask_importance.csv", ["layer", "part", "pairs", "gate"], lines)
    return dict(rows["all"])


def _note(held: EncoderMask) -> str:
    notes = []
    if held.hubs == "special":
        notes.append("mask.keep_special=true: pairs with [CLS] or [SEP] are kept whatever the gates say")
    if held.learned is not None and held.learned.form != "unstructured":
        notes.append(f"mask.form={held.learned.form}: a gate a distance, so no position is special to it")
    return "; ".join(notes)


def _bars(axes: Axes, rows: Mapping[str, Mapping[str, float]]) -> None:
    """A group of bars a part, a bar a layer from pale to dark; a line and a number for the mean over layers."""
    style(axes)
    layers = [name for name in rows if name != "all"] or ["all"]
    parts = [name for name in PARTS if name in rows["all"]]
    width = 0.8 / len(layers)
    colours = attention_colours()
    for place, layer in enumerate(layers):
        colour = colours(0.15 + 0.7 * place / max(len(layers) - 1, 1)) if len(layers) > 1 else ACCENT
        at = [column - 0.4 + width * (place + 0.5) for column in range(len(parts))]
        axes.bar(at, [rows[layer][name] for name in parts], width=width * 0.92, color=colour, label=f"layer {layer}")
    top = max(value for row in rows.values() for value in row.values())
    for column, name in enumerate(parts):
        mean = rows["all"][name]
        highest = max(rows[layer][name] for layer in layers)
        if len(layers) > 1:
            axes.plot([column - 0.42, column + 0.42], [mean, mean], color=INK, linewidth=1.2)
        axes.annotate(
            f"{mean:.3f}", (column, highest), (0, 4), textcoords="offset points",
            fontsize=9, color=INK, ha="center", weight="bold",
        )  # fmt: skip
    axes.set_xticks(range(len(parts)), [NAMES[name] for name in parts], fontsize=8, color=INK)
    axes.set_ylim(0, min(max(top * 1.12, 0.05), 1.12))
    several = len(layers) > 1
    axes.set_ylabel("mean gate" + (", line: over all layers" if several else ""), fontsize=9, color=INK)
    if several:
        handles, labels = axes.get_legend_handles_labels()
        shown = evenly(len(handles))
        axes.legend(
            [handles[i] for i in shown], [labels[i] for i in shown], fontsize=7, frameon=False, ncols=6,
            loc="upper center", bbox_to_anchor=(0.5, -0.17), handlelength=1.0, columnspacing=1.0, labelcolor=INK,
        )  # fmt: skip


def _draw(panel: Axes, keep_LL: Tensor) -> None:
    panel.imshow(keep_LL.numpy().astype(np.uint8), cmap=KEPT, vmin=0, vmax=1)
    _frame(panel)


def _frame(panel: Axes) -> None:
    panel.tick_params(labelsize=7, colors=INK, length=2)
    for spine in panel.spines.values():
        spine.set(linewidth=0.5, color="#b8c0c9")


def _positions(panel: Axes, length: int) -> None:
    """Ticks at the first and the last position and about three between."""
    ticks = sorted({0, length - 1, *range(0, length - length // 8, max(1, length // 4))})
    panel.set_xticks(ticks)
    panel.set_yticks(ticks)


def _share(keep_LL: Tensor) -> str:
    share = float(keep_LL.float().mean())
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"
