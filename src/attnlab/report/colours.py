"""The colours of the attention plots: zero is white, the rest climbs in equal steps to the eye.

Colours are mixed in OKLab (Ottosson 2020, bottosson.github.io/posts/oklab), where equal distances
look equal. A probability of exactly 0 is white; the smallest positive one already starts at a tint,
so that absent and tiny differ.
"""

import numpy as np
from matplotlib.colors import Colormap, ListedColormap
from numpy.typing import NDArray

Array = NDArray[np.float64]

INK = "#1f2a37"
MUTED = "#6b7785"
GUTTER = "#dfe4ea"
ACCENT = "#2468a8"
# OKLab: lightness, green-red, blue-yellow. From a pale sky over a full blue to a near-black navy.
STOPS = ((0.915, -0.025, -0.045), (0.60, -0.035, -0.135), (0.24, -0.005, -0.085))

FROM_OKLAB = np.array(
    [
        [1.0, 0.3963377774, 0.2158037573],
        [1.0, -0.1055613458, -0.0638541728],
        [1.0, -0.0894841775, -1.2914855480],
    ]
)
FROM_LMS = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


def attention_colours(steps: int = 256) -> Colormap:
    """Map (0, 1] to blue, masked (exactly zero) cells to white, negative ones to grey."""
    colours = ListedColormap(_srgb(_even_path(np.array(STOPS), steps)), name="attention")
    return colours.with_extremes(bad="white", under=GUTTER)


def _even_path(stops: Array, steps: int) -> Array:
    lengths = np.linalg.norm(np.diff(stops, axis=0), axis=1)
    travelled = np.concatenate([[0.0], np.cumsum(lengths)])
    at = np.linspace(0.0, travelled[-1], steps)
    return np.stack([np.interp(at, travelled, stops[:, axis]) for axis in range(3)], axis=1)


def _srgb(oklab: Array) -> Array:
    linear = ((oklab @ FROM_OKLAB.T) ** 3 @ FROM_LMS.T).clip(0, 1)
    curve = 1.055 * linear ** (1 / 2.4) - 0.055
    encoded: Array = np.where(linear <= 0.0031308, 12.92 * linear, curve)
    return encoded
