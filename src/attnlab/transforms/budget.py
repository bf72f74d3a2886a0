"""Projections onto a capped simplex, 0 <= p <= upper, sum(p) = total: budget and constrained sparsemax."""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from .dial import TEMPERATURE
from .kernel import fused
from .rows import exact_rows, one_value_a_row, rowwise, settled, shifted, unsettled

STEPS = 12


@fused
def _project(scores: Tensor, keep: Tensor | None, upper: Tensor, total: Tensor, raised: bool) -> Tensor:
    """p = clip(w - tau, 0, upper) with sum(p) = total; a row whose bounds sum to less than that gets its bounds.

    raised: lift a bound below 1/n to 1/n in a row of n keys.

    The sum is a falling chain of line segments in tau, neither convex nor concave: Newton steps inside a bracket.
    """
    w, live = shifted(scores, keep)
    kept = w != float("-inf")
    keys = kept.to(w.dtype).sum(-1, keepdim=True)
    bound = torch.maximum(upper.to(w.dtype), 1 / keys.clamp_min(1)) if raised else upper.to(w.dtype)
    cap = torch.where(kept, bound, 0.0)
    target = torch.minimum(total.to(w.dtype).expand_as(w[..., :1]), cap.sum(-1, keepdim=True))
    bottom = torch.where(kept & live, w, 0.0).amin(-1, keepdim=True)
    low = bottom - cap.amax(-1, keepdim=True)
    high = torch.zeros_like(low)
    tau = torch.maximum(-target, bottom - target / keys.clamp_min(1))
    for _ in range(STEPS):
        excess = w - tau
        mass = torch.minimum(excess.clamp_min(0), cap).sum(-1, keepdim=True)
        sloping = ((excess > 0) & (excess <= cap)).to(w.dtype).sum(-1, keepdim=True)
        low, high = torch.where(mass >= target, tau, low), torch.where(mass >= target, high, tau)
        step = tau + (mass - target) / sloping.clamp_min(1)
        inside = (sloping > 0) & (step >= low) & (step <= high)
        tau = torch.where(inside, step, torch.where(mass == target, tau, (low + high) / 2))
    probabilities = torch.minimum((w - tau).clamp_min(0), cap)
    off = live & unsettled(probabilities.sum(-1, keepdim=True) / target.clamp_min(1), target.clamp_max(1))
    result = settled(torch.where(live, probabilities, 0.0), scores.dtype)
    if result.dtype != w.dtype:  # what lies below its bound must not be rounded to it: it would lose its gradient
        below = (cap * (1 - torch.finfo(result.dtype).eps)).to(result.dtype)
        result = torch.where((probabilities < cap) & (result >= cap.to(result.dtype)), below, result)
    exact_rows(result, scores, keep, off, "box", torch.ones_like(total), cap, target)
    return result


@fused
def _active_mean(probabilities: Tensor, grad: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p = probabilities.to(torch.promote_types(grad.dtype, torch.float32))
    # In half precision the cap is met when its rounded value is.
    active = (p > 0) & (probabilities < upper.to(probabilities.dtype))
    count = active.to(p.dtype).sum(-1, keepdim=True).clamp_min(1)
    return p, active, torch.where(active, grad, 0.0).sum(-1, keepdim=True) / count


class _Capped(torch.autograd.Function):
    """Saves the probabilities and the bounds."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, keep: Tensor | None, upper: Tensor, total: Tensor, raised: bool) -> Tensor:
        probabilities = _project(scores, keep, upper, rowwise(total, scores), raised)
        ctx.save_for_backward(probabilities, upper)
        return probabilities

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor | None, None, None]:
        probabilities, upper = ctx.saved_tensors
        grad = grads[0]
        p, active, mean = _active_mean(probabilities, grad, upper)
        grad_scores = torch.where(active, grad - mean, 0.0).to(grad.dtype)
        grad_upper = None
        if ctx.needs_input_grad[2]:
            pull = torch.where((p > 0) & ~active, grad - mean, 0.0)
            grad_upper = pull.sum_to_size(upper.shape).to(upper.dtype)
        return grad_scores, None, grad_upper, None, None


def _capped(scores: Tensor, keep: Tensor | None, upper: float | Tensor, total: float | Tensor) -> Tensor:
    given = [one_value_a_row(value, scores) for value in (upper, total)]
    raised = not isinstance(upper, Tensor)
    return cast(Tensor, _Capped.apply(scores, keep, *given, raised))  # type: ignore[no-untyped-call]


def budget(scores: Tensor, keep: Tensor | None = None, *, budget: float | Tensor = 2.0) -> Tensor:
    """budget sparsemax: the projection onto 0 <= p <= 1, sum(p) = budget: p = clip(z - tau, 0, 1).

    Amos, Koltun & Kolter 2019, arXiv:1906.08707 (limited multi-label projection), with a Euclidean price. budget is a
    number, or a tensor that broadcasts to scores with one value a row. A row with no more keys than the budget has 1
    on each. scores (..., K) of any float dtype; keep broadcastable bool, True = may be attended; a row with no key is
    all zeros. Gradient: on 0 < p < 1, g - mean(g). Raises ValueError for a number <= 0.
    """
    if not isinstance(budget, Tensor) and not budget > 0:
        raise ValueError(f"budget sparsemax needs a budget above 0, not {budget}")
    return _capped(scores, keep, 1.0, budget)


def constrained_sparsemax(scores: Tensor, keep: Tensor | None = None, *, upper: float | Tensor = 0.5) -> Tensor:
    """constrained sparsemax: p = clip(z - tau, 0, u), sum(p) = 1: no key gets more than its bound u.

    Malaviya, Ferreira & Martins 2018, arXiv:1805.08241. upper is a number, or a tensor that broadcasts to scores,
    differentiable. Bounds that sum to less than one cannot be met: a number is raised to 1/n in a row of n keys, and a
    row of a tensor's bounds is returned as it is. Shapes and masking as `budget`. Gradient: on A = {0 < p < u},
    g - mean_A(g); in u, g - mean_A(g) where p = u. Raises ValueError for a number outside (0, 1].
    """
    if not isinstance(upper, Tensor) and not 0 < upper <= 1:
        raise ValueError(f"constrained sparsemax needs a bound in (0, 1], not {upper}")
    return _capped(scores, keep, upper, 1.0)


class Budget(nn.Module):
    """`budget` as a transform of attention scores (B, H, Q, K)."""

    dial = TEMPERATURE
    breaks = frozenset({"sum"})

    def __init__(self, *, num_heads: int, budget: float = 2.0) -> None:
        super().__init__()
        if not 0 < budget < math.inf:
            raise ValueError(f"attn.budget must be above 0, not {budget}")
        self.budget = float(budget)

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return budget(scores, keep, budget=self.budget)

    def extra_repr(self) -> str:
        return f"budget={self.budget:g}"


class Constrained(nn.Module):
    """`constrained_sparsemax` as a transform of attention scores (B, H, Q, K)."""

    dial = TEMPERATURE

    def __init__(self, *, num_heads: int, upper: float = 0.5) -> None:
        super().__init__()
        if not 0 < upper <= 1:
            raise ValueError(f"attn.upper must be in (0, 1], not {upper}")
        self.upper = float(upper)

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return constrained_sparsemax(scores, keep, upper=self.upper)

    def extra_repr(self) -> str:
        return f"upper={self.upper:g}"
