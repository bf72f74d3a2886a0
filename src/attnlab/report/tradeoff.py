"""Score against attention density: a curve an attention, named at its sparse end, and softmax as a dashed line."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from scipy.optimize import isotonic_regression

from .colours import ACCENT, INK, MUTED
from .plots import framed

TICKS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
DENSEST = 1.08  # a little beyond 1, which is softmax
# An attention has a colour; a setting of what else is swept has a stroke.
COLOURS = (ACCENT, "#d1495b", "#2a9d8f", "#8a5fb0", "#c77d0a", "#3d405b", "#d77fa1", "#6a8f2f")
MARKERS = "os^DvPX"
STROKES = ("-", ":", "-.")
LABEL = 8  # points
LINE = 11.0  # points from one label to the next
PAD = 9.0  # points between a label and its curve


@dataclass(frozen=True, kw_only=True)
class Point:
    """The mean over `runs` runs. wanted: the density steered to; spread: standard deviation of the score of several."""

    attn: str
    setting: str
    wanted: float | None
    density: float
    score: float
    spread: float | None
    runs: int

    @property
    def curve(self) -> str:
        return f"{self.attn} {self.setting}".strip()


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One task and model: the points of all curves, and the softmax references."""

    task: str
    model: str
    metric: str
    points: Sequence[Point]
    references: Sequence[Point]


@dataclass(frozen=True, kw_only=True)
class _End:
    """Where a curve is named."""

    x: float
    y: float
    text: str
    colour: str


def tradeoff_figure(picture: Picture) -> Figure:
    """Score on the validation data against measured attention density, sparse on the left, log scale.

    Error bars and the band of softmax are one standard deviation to each side.
    """
    curves: dict[str, list[Point]] = {}
    for point in picture.points:
        curves.setdefault(point.curve, []).append(point)
    attentions = list(dict.fromkeys(point.attn for point in picture.points))
    settings = list(dict.fromkeys(point.setting for point in picture.points))
    names = max(text_width(name) for name in curves)
    figure, axes = framed(width=5.4 + names / 72, height=max(3.8, 1.2 + len(curves) * LINE / 72))
    sparsest = min(point.density for point in picture.points)
    _references(axes, picture.references, sparsest)
    ends = []
    for name, points in curves.items():
        points.sort(key=lambda point: point.density)
        hue, stroke = attentions.index(points[0].attn), settings.index(points[0].setting)
        colour = COLOURS[hue % len(COLOURS)]
        x, y = [p.density for p in points], [p.score for p in points]
        axes.plot(
            x, y, color=colour, marker=MARKERS[(hue + stroke) % len(MARKERS)], markersize=5.5, markeredgecolor="white",
            markeredgewidth=0.6, linewidth=1.6, linestyle=STROKES[stroke % len(STROKES)], zorder=4, label=name,
        )  # fmt: skip
        spread = [p.spread or 0.0 for p in points]
        if any(spread):
            axes.errorbar(x, y, yerr=spread, fmt="none", ecolor=colour, elinewidth=0.8, zorder=3)
        ends.append(_End(x=x[0], y=y[0], text=name, colour=colour))
    several = any(point.runs > 1 for point in [*picture.points, *picture.references])
    axes.set_ylabel(f"val {picture.metric}" + (", mean ± std" if several else ""), fontsize=9, color=INK)
    axes.set_xlabel("attention density: share of allowed pairs with p > 0", fontsize=9, color=INK)
    title = f"{picture.task}, {picture.model}: {picture.metric} against attention density"
    axes.set_title(title, fontsize=11, color=INK, loc="left", weight="bold")
    axes.margins(y=0.08)
    axes.set_xscale("log")
    axes.set_xlim(sparsest / 1.05, DENSEST)
    axes.set_ylim(axes.get_ylim())  # what names the curves shall not stretch the axis
    _name_references(figure, axes, picture.references)
    _name_curves(figure, axes, ends, sparsest, names)
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in TICKS if tick >= sparsest / 1.2]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
    return figure


def _references(axes: Axes, references: Sequence[Point], sparsest: float) -> None:
    for point in references:
        # Not over the whole width: the curves' names stand left of it.
        span = [sparsest / 1.03, DENSEST]
        axes.plot(span, [point.score] * 2, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)), zorder=2)
        if point.spread:
            low, high = point.score - point.spread, point.score + point.spread
            axes.fill_between(span, low, high, color=MUTED, alpha=0.13, linewidth=0, zorder=1)


def _name_references(figure: Figure, axes: Axes, references: Sequence[Point]) -> None:
    for point, height in zip(references, _heights(figure, axes, [p.score for p in references]), strict=True):
        axes.annotate(
            f"{point.curve} {point.score:.3f}", (1.01, height), xycoords=("axes fraction", "data"),
            fontsize=LABEL, color=MUTED, va="center",
        )  # fmt: skip


def _name_curves(figure: Figure, axes: Axes, ends: Sequence[_End], sparsest: float, names: float) -> None:
    """Each curve's name left of all points, as high as its sparsest point or a little off, with a thin line to it."""
    heights = _heights(figure, axes, [end.y for end in ends])
    share = min((names + 2 * PAD) / _size(figure, axes)[0], 0.6)
    decades = np.log(DENSEST / sparsest) / (1 - share)
    axes.set_xlim(DENSEST / np.exp(decades), DENSEST)
    place = sparsest / np.exp(decades * PAD / _size(figure, axes)[0])
    for end, height in zip(ends, heights, strict=True):
        axes.plot([place, end.x], [height, end.y], color=end.colour, linewidth=0.7, alpha=0.55, zorder=2)
        axes.annotate(
            end.text, (place, height), (-3, 0), textcoords="offset points",
            fontsize=LABEL, color=end.colour, ha="right", va="center",
        )  # fmt: skip


def _heights(figure: Figure, axes: Axes, wanted: Sequence[float]) -> list[float]:
    """The heights, in units of the data, nearest to the wanted ones at which lines of text do not overlap."""
    low, high = axes.get_ylim()
    gap = (high - low) * min(LINE / _size(figure, axes)[1], 1 / max(len(wanted), 1))
    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    # Least squares under y[i + 1] >= y[i] + gap, which is isotonic regression of y[i] - i gap.
    spread = np.clip(
        isotonic_regression(np.array(wanted)[order] - steps).x if len(wanted) else np.array([]),
        low + gap / 2,
        high - gap * (len(wanted) - 0.5),
    )
    heights = np.empty(len(wanted))
    heights[order] = spread + steps
    return [float(height) for height in heights]


def _size(figure: Figure, axes: Axes) -> tuple[float, float]:
    """Width and height of the axes in points, as laid out now."""
    figure.draw_without_rendering()
    box = axes.get_window_extent()
    return box.width * 72 / figure.dpi, box.height * 72 / figure.dpi


def text_width(text: str) -> float:
    """Of a label, in points."""
    return float(TextPath((0, 0), text, size=LABEL, prop=FontProperties()).get_extents().width)
