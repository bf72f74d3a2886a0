"""normmax: the simplex with the norm of p as its price."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from .dial import TEMPERATURE
from .kernel import fused
from .rows import exact_rows, one_value_a_row, rowwise, settled, shifted, unsettled

STEPS = 8


@fused
def _forward(scores: Tensor, keep: Tensor | None, alpha: Tensor) -> Tensor:
    w, live = shifted(scores, keep)
    power = 1 / (alpha.to(w.dtype) - 1)
    dual = 1 + power
    tau = torch.full_like(w[..., :1], -1.0)
    for _ in range(STEPS):
        excess = (w - tau).clamp_min(0)
        raised = torch.where(excess > 0, torch.exp(power * torch.where(excess > 0, excess, 1.0).log()), 0.0)
        mass = torch.where(live, (raised * excess).sum(-1, keepdim=True), 1.0)
        norm = torch.exp(mass.log() / dual)
        # The dual norm of the excess is convex and falling in tau: Newton steps rise to the root and never pass it.
        slope = raised.sum(-1, keepdim=True) * norm / mass
        tau = tau + (norm - 1) / torch.where(live, slope, 1.0)
    excess = (w - tau).clamp_min(0)
    weights = torch.where(excess > 0, torch.exp(power * torch.where(excess > 0, excess, 1.0).log()), 0.0)
    off = live & unsettled((weights * excess).sum(-1, keepdim=True), 1)
    # A weight excess ** power with a small power hangs on the last digit of a small excess.
    smallest = torch.where(excess > 0, excess, 1.0).amin(-1, keepdim=True)
    off = off | (live & (power < 1) & (smallest < 1e-3))
    total = torch.where(live, weights.sum(-1, keepdim=True), 1.0)
    result = settled(weights / total, scores.dtype)
    exact_rows(result, scores, keep, off, "normmax", torch.ones_like(alpha), alpha, alpha)
    return result


@fused
def _backward(probabilities: Tensor, grad: Tensor, alpha: Tensor) -> Tensor:
    p = probabilities.to(torch.promote_types(grad.dtype, torch.float32))
    a = alpha.to(p.dtype)
    log_p = torch.where(p > 0, p, 1.0).log()
    powers = torch.where(p > 0, torch.exp(a * log_p), 0.0).sum(-1, keepdim=True)
    # p = q / s with sum q^alpha = 1, hence s = (sum p^alpha)^(-1/alpha).
    shrink = torch.exp((a - 1) / a * torch.where(powers > 0, powers, 1.0).log())
    weight = torch.where(p > 0, torch.exp((2 - a) * log_p), 0.0) * shrink / (a - 1)
    pull = weight * (grad - (p * grad).sum(-1, keepdim=True))
    return (pull - p * pull.sum(-1, keepdim=True)).to(grad.dtype)


class _Normmax(torch.autograd.Function):
    """Saves the probabilities and alpha."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, keep: Tensor | None, alpha: Tensor) -> Tensor:
        probabilities = _forward(scores, keep, rowwise(alpha, scores))
        ctx.save_for_backward(probabilities, alpha)
        return probabilities

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        probabilities, alpha = ctx.saved_tensors
        return _backward(probabilities, grads[0], alpha), None, None


def normmax(scores: Tensor, keep: Tensor | None = None, *, alpha: float | Tensor = 2.0) -> Tensor:
    """alpha-normmax: argmax over the simplex of <z, p> - ||p||_alpha, for alpha > 1.

    Blondel, Martins & Niculae 2020, arXiv:1901.02324. p is proportional to max(z - tau, 0)^(1 / (alpha - 1)), with tau
    such that max(z - tau, 0) has norm one in alpha / (alpha - 1). alpha is a number, or a tensor that broadcasts to
    scores with one value a row; no gradient in alpha. scores (..., K) of any float dtype; keep broadcastable bool,
    True = may be attended. Returns probabilities of the same shape and dtype; a row with no key kept is all zeros.
    Raises ValueError for a number <= 1.
    """
    if not isinstance(alpha, Tensor) and not alpha > 1:
        raise ValueError(f"normmax needs alpha > 1, not {alpha}")
    return cast(Tensor, _Normmax.apply(scores, keep, one_value_a_row(alpha, scores)))  # type: ignore[no-untyped-call]


class Normmax(nn.Module):
    """`normmax` as a transform of attention scores (B, H, Q, K)."""

    dial = TEMPERATURE

    def __init__(self, *, num_heads: int, alpha: float = 2.0) -> None:
        super().__init__()
        if not 1 < alpha <= 10:
            raise ValueError(f"attn.alpha must be in (1, 10] for normmax, not {alpha}")
        self.alpha = float(alpha)

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return normmax(scores, keep, alpha=self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:g}"
