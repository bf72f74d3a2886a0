"""sparsemax, and the projection kernel that sparsegen shares with it."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from .dial import TEMPERATURE
from .kernel import fused
from .native import entmax_rows, entmax_rows_gradient, runs_native
from .rows import exact_rows, one_value_a_row, rowwise, settled, shifted, unsettled

STEPS = 8


def _project(scores: Tensor, keep: Tensor | None, scale: Tensor) -> Tensor:
    if runs_native(scores):
        return cast(Tensor, entmax_rows(scores, keep, torch.full_like(scale, 2.0), scale))
    return _newton(scores, keep, rowwise(scale, scores))


@fused
def _newton(scores: Tensor, keep: Tensor | None, scale: Tensor) -> Tensor:
    w, live = shifted(scores, keep)
    w = w * scale.to(w.dtype)
    tau = torch.full_like(w[..., :1], -1.0)
    for _ in range(STEPS):
        excess = w - tau
        mass = excess.clamp_min(0).sum(-1, keepdim=True)
        size = (excess > 0).to(w.dtype).sum(-1, keepdim=True).clamp_min(1)
        tau = tau + (mass - 1) / size
    probabilities = (w - tau).clamp_min(0)
    off = live & unsettled(probabilities.sum(-1, keepdim=True), 1)
    result = settled(probabilities, scores.dtype)
    two = torch.full_like(scale, 2.0)
    exact_rows(result, scores, keep, off, "entmax", scale, two, two)
    return result


@fused
def _project_backward(probabilities: Tensor, grad: Tensor, scale: Tensor) -> Tensor:
    support = probabilities > 0
    g = torch.where(support, grad.to(torch.promote_types(grad.dtype, torch.float32)), 0.0)
    size = support.to(g.dtype).sum(-1, keepdim=True).clamp_min(1)
    centred = g - g.sum(-1, keepdim=True) / size
    return (scale.to(g.dtype) * torch.where(support, centred, 0.0)).to(grad.dtype)


@fused
def _scale_pull(probabilities: Tensor, grad: Tensor) -> Tensor:
    """grad . dp/dscale, still to be divided by scale: on the support p - 1/|S|."""
    support = probabilities > 0
    p = probabilities.to(torch.promote_types(grad.dtype, torch.float32))
    size = support.to(p.dtype).sum(-1, keepdim=True).clamp_min(1)
    return torch.where(support, grad * (p - 1 / size), 0.0).sum(-1, keepdim=True)


class _Projection(torch.autograd.Function):
    """Saves the probabilities and the scale, one number a head at most."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, keep: Tensor | None, scale: Tensor) -> Tensor:
        probabilities = _project(scores, keep, scale)
        ctx.save_for_backward(probabilities, scale)
        return probabilities

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        probabilities, scale = ctx.saved_tensors
        grad_scores = grad_scale = None
        if ctx.needs_input_grad[0] and runs_native(probabilities):
            two = torch.full_like(scale, 2.0)
            grad_scores = entmax_rows_gradient(probabilities, grads[0], two, scale, False)[0]
        elif ctx.needs_input_grad[0]:
            s = scale if torch.is_grad_enabled() else rowwise(scale, probabilities)
            grad_scores = _project_backward(probabilities, grads[0], s)
        if ctx.needs_input_grad[2]:
            grad_scale = _scale_pull(probabilities, grads[0]).sum_to_size(scale.shape).to(scale.dtype) / scale
        return grad_scores, None, grad_scale


def project(scores: Tensor, keep: Tensor | None, scale: float | Tensor) -> Tensor:
    """sparsemax(scale * scores), scale a number or a tensor with one value a row, differentiable in both."""
    return cast(Tensor, _Projection.apply(scores, keep, one_value_a_row(scale, scores)))  # type: ignore[no-untyped-call]


def sparsemax(scores: Tensor, keep: Tensor | None = None) -> Tensor:
    """Euclidean projection of each row onto the simplex: p = max(z - tau, 0), sum(p) = 1.

    Martins & Astudillo 2016, arXiv:1602.02068. scores (..., K) of any float dtype; keep broadcastable bool, True = may
    be attended. Returns probabilities of the same shape and dtype; a row with no key kept is all zeros. Gradient: on
    the support S, g - mean_S(g).
    """
    return project(scores, keep, 1.0)


class Sparsemax(nn.Module):
    """`sparsemax` as a transform of attention scores (B, H, Q, K)."""

    dial = TEMPERATURE

    def __init__(self, *, num_heads: int) -> None:
        super().__init__()

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return sparsemax(scores, keep)
