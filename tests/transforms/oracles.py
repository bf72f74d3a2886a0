"""Independent answers in float64: sorting for sparsemax, plain bisection for the rest of the family."""

import torch
from torch import Tensor


def by_sorting(scores: Tensor) -> Tensor:
    """sparsemax of the last dim (Martins & Astudillo 2016, algorithm 1)."""
    z = scores.double()
    ordered = z.sort(dim=-1, descending=True).values
    cumulated = ordered.cumsum(-1) - 1
    count = torch.arange(1, z.shape[-1] + 1, dtype=torch.float64)
    size = (ordered * count > cumulated).sum(-1, keepdim=True)
    tau = cumulated.gather(-1, size - 1) / size
    return (z - tau).clamp_min(0)


def by_bisection(scores: Tensor, alpha: float) -> Tensor:
    """alpha-entmax of the last dim, alpha > 1, by 200 halvings of tau's bracket."""
    x = scores.double() * (alpha - 1)
    low = x.amax(-1, keepdim=True) - 1
    high = x.amax(-1, keepdim=True)
    for _ in range(200):
        tau = (low + high) / 2
        heavy = ((x - tau).clamp_min(0) ** (1 / (alpha - 1))).sum(-1, keepdim=True) > 1
        low, high = torch.where(heavy, tau, low), torch.where(heavy, high, tau)
    return (x - low).clamp_min(0) ** (1 / (alpha - 1))
