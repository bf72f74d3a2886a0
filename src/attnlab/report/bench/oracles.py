"""Independent answers in float64: sorting, breakpoints, plain bisection, dynamic programming, plain definitions.

`ORACLES[name](scores, **dials)` is what the transform called `name` should give on the last dimension of scores. None
of them shares code or method with `attnlab.transforms`, and none is fast.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

HALVINGS = 200


def by_sorting(scores: Tensor) -> Tensor:
    """sparsemax of the last dim (Martins & Astudillo 2016, algorithm 1)."""
    z = scores.double()
    ordered = z.sort(dim=-1, descending=True).values
    cumulated = ordered.cumsum(-1) - 1
    count = torch.arange(1, z.shape[-1] + 1, dtype=torch.float64, device=z.device)
    size = (ordered * count > cumulated).sum(-1, keepdim=True)
    tau = cumulated.gather(-1, size - 1) / size
    return (z - tau).clamp_min(0)


def by_bisection(scores: Tensor, alpha: float) -> Tensor:
    """alpha-entmax of the last dim, alpha > 1, by 200 halvings of tau's bracket."""
    x = scores.double() * (alpha - 1)
    low = x.amax(-1, keepdim=True) - 1
    high = x.amax(-1, keepdim=True)
    for _ in range(HALVINGS):
        tau = (low + high) / 2
        heavy = ((x - tau).clamp_min(0) ** (1 / (alpha - 1))).sum(-1, keepdim=True) > 1
        low, high = torch.where(heavy, tau, low), torch.where(heavy, high, tau)
    return (x - low).clamp_min(0) ** (1 / (alpha - 1))


def normmax_by_bisection(scores: Tensor, alpha: float) -> Tensor:
    """alpha-normmax: p ~ max(z - tau, 0)^(1 / (alpha - 1)) where the norm of max(z - tau, 0) is one."""
    z = scores.double() - scores.double().amax(-1, keepdim=True)
    power = 1 / (alpha - 1)
    low, high = torch.full_like(z[..., :1], -1.0), torch.zeros_like(z[..., :1])
    for _ in range(HALVINGS):
        tau = (low + high) / 2
        heavy = ((z - tau).clamp_min(0) ** (1 + power)).sum(-1, keepdim=True) > 1
        low, high = torch.where(heavy, tau, low), torch.where(heavy, high, tau)
    weights = (z - low).clamp_min(0) ** power
    return weights / weights.sum(-1, keepdim=True)


def by_breakpoints(scores: Tensor, upper: float, total: float) -> Tensor:
    """clip(z - tau, 0, upper) with sum `total`, or all bounds where they sum to less.

    The sum is a chain of line segments in tau with breakpoints at z and z - upper: walk down to the one that holds tau.
    """
    z = scores.double() - scores.double().amax(-1, keepdim=True)
    points, order = torch.cat([z, z - upper], -1).sort(dim=-1, descending=True)
    slope = torch.where(order < z.shape[-1], 1.0, -1.0).double().cumsum(-1)
    mass = (slope[..., :-1] * -points.diff(dim=-1)).cumsum(-1)
    before = torch.nn.functional.pad(mass, (1, 0))
    target = min(total, upper * z.shape[-1])
    # The last breakpoint at which the sum is still below the target.
    index = ((before < target).sum(-1, keepdim=True) - 1).clamp_min(0)
    rise = (target - before.gather(-1, index)) / slope.gather(-1, index).clamp_min(1)
    return (z - points.gather(-1, index) + rise).clamp(0, upper)


def denoised(scores: Tensor, tv: float) -> Tensor:
    """argmin_y 1/2 |y - z|^2 + tv sum_i |y_{i+1} - y_i| of each row, one after the other (Johnson 2013)."""
    rows = scores.double().reshape(-1, scores.shape[-1]).tolist()
    solved = [_denoised_row(row, tv) for row in rows]
    return torch.tensor(solved, dtype=torch.float64, device=scores.device).view(scores.shape)


def _denoised_row(z: list[float], tv: float) -> list[float]:
    """Dynamic programming over the derivative of the best cost given the last value, a rising chain of line segments.

    knots: (position, change of slope, change of intercept), from left to right; beyond them the derivative is the
    first, or the last, line. low and high: between them the next value decides nothing about this one.
    """
    n = len(z)
    if n == 1 or tv == 0:
        return z
    position, slopes, offsets = [0.0] * (2 * n), [0.0] * (2 * n), [0.0] * (2 * n)
    left, right = n - 1, n
    low, high = [z[0] - tv], [z[0] + tv]
    position[left], slopes[left], offsets[left] = low[0], 1.0, -z[0] + tv
    position[right], slopes[right], offsets[right] = high[0], -1.0, z[0] + tv
    for k in range(1, n - 1):
        slope, offset = 1.0, -z[k] - tv
        while left <= right and slope * position[left] + offset <= -tv:
            slope, offset, left = slope + slopes[left], offset + offsets[left], left + 1
        end_slope, end_offset = -1.0, z[k] - tv
        while right >= left and -end_slope * position[right] - end_offset >= tv:
            end_slope, end_offset, right = end_slope + slopes[right], end_offset + offsets[right], right - 1
        low.append((-tv - offset) / slope)
        high.append((tv + end_offset) / -end_slope)
        left, right = left - 1, right + 1
        position[left], slopes[left], offsets[left] = low[k], slope, offset + tv
        position[right], slopes[right], offsets[right] = high[k], end_slope, end_offset + tv
    slope, offset = 1.0, -z[-1] - tv
    while left <= right and slope * position[left] + offset <= 0:
        slope, offset, left = slope + slopes[left], offset + offsets[left], left + 1
    y = [-offset / slope]
    for k in reversed(range(n - 1)):
        y.append(min(max(y[-1], low[k]), high[k]))
    return y[::-1]


def of_the_best(scores: Tensor, k: int) -> Tensor:
    """softmax over the k largest scores and their ties."""
    z = scores.double()
    least = z.topk(min(k, z.shape[-1]), dim=-1).values[..., -1:]
    return torch.softmax(torch.where(z >= least, z, -math.inf), -1)


def of_the_nucleus(scores: Tensor, p: float) -> Tensor:
    """softmax over the fewest largest scores that hold the share p of it, and their ties."""
    z = scores.double()
    ordered = z.sort(dim=-1, descending=True).values
    share = torch.softmax(ordered, -1).cumsum(-1)
    count = (share < p).sum(-1, keepdim=True).clamp_max(z.shape[-1] - 1)
    return torch.softmax(torch.where(z >= ordered.gather(-1, count), z, -math.inf), -1)


def exp_sparsegen(scores: Tensor, lam: float, rate: float) -> Tensor:
    """sparsegen-lin of exp(rate z), which only the differences to the largest decide: they do not overflow."""
    z = rate * scores.double()
    top = z.amax(-1, keepdim=True)
    return by_sorting(torch.expm1(z - top) * top.clamp_max(700).exp() / (1 - lam))


def hourglass(scores: Tensor, q: float) -> Tensor:
    z = scores.double()
    n = z.shape[-1]
    return by_sorting(z * (1 + n * q) / (z.sum(-1, keepdim=True).abs() + n * q))


def _positive(scores: Tensor, threshold: float) -> Tensor:
    return (scores.double() - threshold).clamp_min(0)


ORACLES: dict[str, Callable[..., Tensor]] = {
    "softmax": lambda z: torch.softmax(z.double(), -1),
    "sparsemax": by_sorting,
    "entmax15": lambda z: by_bisection(z, 1.5),
    "entmax": lambda z, alpha, **_: by_bisection(z, alpha),
    "sparsegen": lambda z, lam, **_: by_sorting(z.double() / (1 - lam)),
    "sparsegen_exp": exp_sparsegen,
    "sparsehourglass": hourglass,
    "topk": of_the_best,
    "topp": of_the_nucleus,
    "rela": _positive,
    "relu": lambda z, threshold: _positive(z, threshold) / z.shape[-1],
    "sigmoid": lambda z: torch.sigmoid(z.double() - math.log(z.shape[-1])),
    "fusedmax": lambda z, tv: by_sorting(denoised(z, tv)),
    "constrained": lambda z, upper: by_breakpoints(z, max(upper, 1 / z.shape[-1]), 1.0),
    "normmax": normmax_by_bisection,
    "budget": lambda z, budget: by_breakpoints(z, 1.0, budget),
}


def rough_rows(shape: tuple[int, ...], device: torch.device | None = None) -> dict[str, Tensor]:
    """Rows that are hard in one way or another: kind -> scores of that shape, or shorter or longer in its last dim."""
    generator = torch.Generator().manual_seed(7)
    *rows, keys = shape

    def normal(keys: int = keys, rows: Any = rows) -> Tensor:
        return torch.randn(*rows, keys, generator=generator)

    kinds = {
        "normal": normal(),
        "peaked": normal() * 20,
        "flat": normal() * 1e-4,
        "huge": normal() * 1e4,
        "cauchy": normal() / normal(),
        "geometric": (-0.03 * torch.arange(keys)).exp().expand(*rows, keys).contiguous(),
        "ties": normal().round(),
        "constant": torch.full((*rows, keys), 3.25),
        "packed": torch.tensor(packed(min(keys, 40))).expand(*rows, -1).contiguous(),
        "one key": normal(1),
        "two keys": normal(2),
        "8192 keys": normal(8192, (*rows[:-1], 1)),
    }
    return {kind: scores.to(device) for kind, scores in kinds.items()}


def packed(keys: int) -> list[float]:
    """Each score lies just under the sparsemax threshold of the ones before it: Newton steps drop one at a time."""
    z = [0.0]
    while len(z) < keys:
        z.append((sum(z) - 1) / len(z) - 1e-4 * 2.0 ** -len(z))
    return z
