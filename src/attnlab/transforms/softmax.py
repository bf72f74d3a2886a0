"""softmax, the dense reference: every allowed key gets a positive share."""

import torch
from torch import Tensor, nn

from .rows import settled, shifted


def softmax(scores: Tensor, keep: Tensor | None = None) -> Tensor:
    """p = exp(z) / sum exp(z) over the kept keys.

    scores (..., K) of any float dtype; keep broadcastable bool, True = may be attended. Returns probabilities of the
    same shape and dtype; masked keys get exactly 0 and a row with no key kept is all zeros, with zero gradient.
    """
    w, live = shifted(scores, keep)
    weights = torch.exp(torch.where(live, w, 0.0))
    weights = torch.where(live & (w != float("-inf")), weights, 0.0)
    return settled(weights / torch.where(live, weights.sum(-1, keepdim=True), 1.0), scores.dtype)


class Softmax(nn.Module):
    """`softmax` as a transform of attention scores (B, H, Q, K)."""

    breaks = frozenset({"sparse"})

    def __init__(self, *, num_heads: int) -> None:
        super().__init__()

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return softmax(scores, keep)
