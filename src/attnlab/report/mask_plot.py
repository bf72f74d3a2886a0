"""Score against mask density: our masks and published ones in panels of their own, then each task in small."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .colours import ACCENT, INK, MUTED
from .plots import style
from .published import SPARSEBERT
from .tradeoff import COLOURS, LABEL, TICKS, text_width

LEARNED, PUBLISHED = COLOURS[1], COLOURS[2]
SPARSEST = 0.003  # masks with fewer pairs stand there, too
MOST_NAMED = 2  # panels of tasks that are wide enough for names
CLEARANCE = 4.5  # points between the middle of a dot and what stands beside it
HEIGHT = LABEL + 1.5  # points of a line of text


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A mask: share of pairs kept, score in [0, 1]; spread: standard deviation of the score where there are several."""

    label: str
    density: float
    score: float
    spread: float | None = None

    @property
    def x(self) -> float:
        """Where it stands on the axis, which is logarithmic."""
        return max(self.density, SPARSEST)


@dataclass(frozen=True)
class _Box:
    """In points."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: "_Box") -> float:
        across = min(self.right, other.right) - max(self.left, other.left)
        along = min(self.top, other.top) - max(self.bottom, other.bottom)
        return across * along if across > 0 and along > 0 else 0.0


def masks_figure(ours: Sequence[Dot], theirs: Sequence[Dot], tasks: Mapping[str, Sequence[Dot]]) -> Figure:
    """Average scores of ours and of SparseBERT, and ours on each task when there are several; sparse on the left.

    A dashed line is the score without a mask; an error bar one standard deviation to each side.
    """
    several = len(tasks) > 1
    sparsest = min([0.5, *(dot.x for dot in (*ours, *theirs))])
    figure = Figure(figsize=(10.4, 6.6 if several else 4.2), layout="constrained")
    upper = figure
    named: list[tuple[Axes, Sequence[Dot]]] = []
    if several:
        upper, lower = list(figure.subfigures(2, 1, height_ratios=(1.75, 1)))  # type: ignore[arg-type]
        for axes, (name, dots) in zip(lower.subplots(1, len(tasks), squeeze=False)[0], tasks.items(), strict=True):
            _panel(axes, dots, name, sparsest, small=True)
            named += [(axes, dots)] if len(tasks) <= MOST_NAMED else []
    left, right = upper.subplots(1, 2)
    mean = f"average over {len(tasks)} tasks" if several else next(iter(tasks), "")
    _panel(left, ours, f"Ours: {mean}", sparsest)
    _panel(right, theirs, f"Published: {SPARSEBERT}", sparsest, colour=PUBLISHED)
    left.set_ylabel("100 x score on the validation data", fontsize=9, color=INK)
    for axes in (left, right):
        axes.set_xlabel("mask density: share of pairs kept", fontsize=9, color=INK)
    figure.draw_without_rendering()
    for axes, dots in (*named, (left, ours), (right, theirs)):
        _name(axes, dots)
    return figure


def _panel(
    axes: Axes, dots: Sequence[Dot], title: str, sparsest: float, *, small: bool = False, colour: str | None = None
) -> None:
    style(axes)
    axes.set_title(title, fontsize=8 if small else 11, color=INK, loc="left", weight="bold")
    axes.set_xscale("log")
    axes.set_xlim(sparsest / 1.3, 1.2)
    for dot in dots:
        hue = colour or _hue(dot.label)
        axes.errorbar(
            [dot.x], [100 * dot.score], yerr=[100 * (dot.spread or 0.0)], fmt="o", color=hue,
            markersize=4 if small else 6, markeredgecolor="white", markeredgewidth=0.6, elinewidth=0.8, zorder=3,
        )  # fmt: skip
        if _is_reference(dot):
            axes.axhline(100 * dot.score, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.margins(y=0.12)
    ticks = [tick for tick in TICKS if sparsest / 1.3 <= tick]
    axes.xaxis.set_major_locator(FixedLocator(ticks[::2] if small and len(ticks) > 4 else ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
    axes.tick_params(labelsize=7 if small else 8)


def _is_reference(dot: Dot) -> bool:
    return dot.label.split()[0] == "none"


def _hue(label: str) -> str:
    name = label.split()[0]
    return {"none": MUTED, "dam": LEARNED, "file": LEARNED}.get(name, ACCENT)


def _name(axes: Axes, dots: Sequence[Dot]) -> None:
    """Each dot's name at the nearest place that is free, with a thin line to it where that is not beside the dot."""
    axes.set_ylim(axes.get_ylim())
    figure = axes.get_figure(root=True)
    assert figure is not None
    scale = 72 / figure.dpi
    area = axes.get_window_extent()
    inside = _Box(area.x0 * scale, area.y0 * scale, area.x1 * scale, area.y1 * scale)
    middles = [tuple(axes.transData.transform((dot.x, 100 * dot.score)) * scale) for dot in dots]
    taken = []
    for dot, (x, y) in zip(dots, middles, strict=True):
        bar = scale * (axes.transData.transform((1, 100 * (dot.spread or 0)))[1] - axes.transData.transform((1, 0))[1])
        taken += [
            _Box(x - CLEARANCE, y - CLEARANCE, x + CLEARANCE, y + CLEARANCE),
            _Box(x - 1, y - bar, x + 1, y + bar),
        ]
        if _is_reference(dot):
            taken.append(_Box(inside.left, y - 1, inside.right, y + 1))
    for dot, (x, y) in sorted(zip(dots, middles, strict=True), key=lambda pair: pair[1]):
        width = text_width(dot.label)
        best = min(_places(x, y, width), key=lambda place: (_cost(place[0], taken, inside), place[1]))
        box, away = best
        taken.append(box)
        to = ((box.left + box.right) / 2 - x, (box.bottom + box.top) / 2 - y)
        axes.annotate(
            dot.label, (dot.x, 100 * dot.score), to, textcoords="offset points", fontsize=LABEL, color=INK,
            ha="center", va="center",
            arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": MUTED} if away else None,
        )  # fmt: skip


def _places(x: float, y: float, width: float) -> list[tuple[_Box, int]]:
    """Boxes around the dot, the nearer ones first, and how many steps away each is."""
    places = []
    for away in range(7):
        gap = CLEARANCE + 7 * away
        beside = [(gap, 0.0), (-gap, 0.0), (0.0, gap), (0.0, -gap), (gap, gap), (gap, -gap), (-gap, gap), (-gap, -gap)]
        for right, up in beside:
            left = x + right if right > 0 else x + right - width if right < 0 else x - width / 2
            bottom = y + up if up > 0 else y + up - HEIGHT if up < 0 else y - HEIGHT / 2
            places.append((_Box(left, bottom, left + width, bottom + HEIGHT), away))
    return places


def _cost(box: _Box, taken: Sequence[_Box], inside: _Box) -> float:
    """Area that overlaps what is there, or lies outside the axes."""
    area = (box.right - box.left) * (box.top - box.bottom)
    return sum(box.overlap(other) for other in taken) + (area - box.overlap(inside))
