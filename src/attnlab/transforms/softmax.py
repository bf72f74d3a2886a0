"""softmax, the dense reference: every allowed key gets a positive share."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from .kernel import fused
from .rows import settled, shifted


@fused
def _forward(scores: Tensor, keep: Tensor | None) -> Tensor:
    w, live = shifted(scores, keep)
    weights = torch.exp(torch.where(live, w, 0.0))
    weights = torch.where(live & (w != float("-inf")), weights, 0.0)
    return settled(weights / torch.where(live, weights.sum(-1, keepdim=True), 1.0), scores.dtype)


@fused
def softmax_backward(probabilities: Tensor, grad: Tensor) -> Tensor:
    """p (g - sum(p g)), the gradient of softmax over whatever keys have p > 0."""
    p = probabilities.to(torch.promote_types(grad.dtype, torch.float32))
    return (p * (grad - (p * grad).sum(-1, keepdim=True))).to(grad.dtype)


class _Softmax(torch.autograd.Function):
    """Saves the probabilities and nothing else."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, keep: Tensor | None) -> Tensor:
        probabilities = _forward(scores, keep)
        ctx.save_for_backward(probabilities)
        return probabilities

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (probabilities,) = ctx.saved_tensors
        return softmax_backward(probabilities, grads[0]), None


def softmax(scores: Tensor, keep: Tensor | None = None) -> Tensor:
    """p = exp(z) / sum exp(z) over the kept keys.

    scores (..., K) of any float dtype; keep broadcastable bool, True = may be attended. Returns probabilities of the
    same shape and dtype; masked keys get exactly 0 and a row with no key kept is all zeros, with zero gradient.
    Gradient: p (g - sum(p g)).
    """
    return cast(Tensor, _Softmax.apply(scores, keep))  # type: ignore[no-untyped-call]


class Softmax(nn.Module):
    """`softmax` as a transform of attention scores (B, H, Q, K)."""

    breaks = frozenset({"sparse"})

    def __init__(self, *, num_heads: int) -> None:
        super().__init__()

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return softmax(scores, keep)
