"""sparsemax and sparsegen-lin: Euclidean projections of the scores onto the simplex."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from .kernel import fused
from .rows import TOLERANCE, exact_theta, settled, shifted

STEPS = 8


@fused
def _project(scores: Tensor, keep: Tensor | None, scale: float) -> Tensor:
    w, live = shifted(scores, keep)
    w = w * scale
    tau = torch.full_like(w[..., :1], -1.0)
    for _ in range(STEPS):
        excess = w - tau
        mass = excess.clamp_min(0).sum(-1, keepdim=True)
        size = (excess > 0).to(w.dtype).sum(-1, keepdim=True).clamp_min(1)
        tau = tau + (mass - 1) / size
    mass = (w - tau).clamp_min(0).sum(-1, keepdim=True)
    off = live & ((mass - 1).abs() > TOLERANCE)
    tau = exact_theta(w, torch.full_like(tau, 2.0), tau + 1, off) - 1
    return settled((w - tau).clamp_min(0), scores.dtype)


@fused
def _project_backward(probabilities: Tensor, grad: Tensor, scale: float) -> Tensor:
    support = probabilities > 0
    g = torch.where(support, grad.to(torch.promote_types(grad.dtype, torch.float32)), 0.0)
    size = support.to(g.dtype).sum(-1, keepdim=True).clamp_min(1)
    centred = g - g.sum(-1, keepdim=True) / size
    return (scale * torch.where(support, centred, 0.0)).to(grad.dtype)


class _Projection(torch.autograd.Function):
    """Saves the probabilities and nothing else."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, keep: Tensor | None, scale: float) -> Tensor:
        probabilities = _project(scores, keep, scale)
        ctx.save_for_backward(probabilities)
        ctx.scale = scale
        return probabilities

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (probabilities,) = ctx.saved_tensors
        return _project_backward(probabilities, grads[0], ctx.scale), None, None


def sparsemax(scores: Tensor, keep: Tensor | None = None) -> Tensor:
    """Euclidean projection of each row onto the simplex: p = max(z - tau, 0), sum(p) = 1.

    Martins & Astudillo 2016, arXiv:1602.02068. scores (..., K) of any float dtype; keep broadcastable bool, True = may
    be attended. Returns probabilities of the same shape and dtype; a row with no key kept is all zeros. Gradient: on
    the support S, g - mean_S(g).
    """
    return cast(Tensor, _Projection.apply(scores, keep, 1.0))  # type: ignore[no-untyped-call]


def sparsegen(scores: Tensor, keep: Tensor | None = None, *, lam: float = 0.0) -> Tensor:
    """sparsegen-lin: p = max((z - tau) / (1 - lam), 0), sum(p) = 1, for lam < 1.

    Laha et al. 2018, arXiv:1810.11975; the attention of SSAF (Cui et al. 2019). It equals sparsemax(z / (1 - lam)):
    lam = 0 is sparsemax, lam -> 1 keeps one key, lam -> -inf keeps all alike. Shapes and masking as `sparsemax`.
    Gradient: on the support S, (g - mean_S(g)) / (1 - lam). Raises ValueError for lam >= 1.
    """
    if not lam < 1:
        raise ValueError(f"sparsegen needs lam < 1, not {lam}")
    return cast(Tensor, _Projection.apply(scores, keep, 1.0 / (1.0 - lam)))  # type: ignore[no-untyped-call]


class Sparsemax(nn.Module):
    """`sparsemax` as a transform of attention scores (B, H, Q, K)."""

    def __init__(self, *, num_heads: int) -> None:
        super().__init__()

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return sparsemax(scores, keep)


class Sparsegen(nn.Module):
    """`sparsegen` with a fixed lam as a transform of attention scores (B, H, Q, K)."""

    def __init__(self, *, num_heads: int, lam: float) -> None:
        super().__init__()
        if not lam < 1:
            raise ValueError(f"attn.lam must be below 1 (SSAF uses -7 to -3), not {lam}")
        self.lam = float(lam)

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return sparsegen(scores, keep, lam=self.lam)

    def extra_repr(self) -> str:
        return f"lam={self.lam}"
