"""Sigmoid attention: every key judged by itself, none exactly zero."""

import torch
from torch import Tensor, nn

from .rows import allowed, number_of_keys, settled, working


def sigmoid(scores: Tensor, keep: Tensor | None = None) -> Tensor:
    """p = sigmoid(z - log n) over the n kept keys of a row; masked keys get exactly 0.

    Ramapuram et al. 2024, arXiv:2409.04431. scores (..., K) of any float dtype; keep broadcastable bool, True = may be
    attended. Returns weights of the same shape and dtype; equal scores of 0 give each key about 1/n.
    """
    keep = allowed(scores, keep)
    weights = torch.sigmoid(torch.where(keep, working(scores), 0.0) - number_of_keys(scores, keep).clamp_min(1).log())
    return settled(torch.where(keep, weights, 0.0), scores.dtype)


class Sigmoid(nn.Module):
    """`sigmoid` as a transform of attention scores (B, H, Q, K)."""

    breaks = frozenset({"sum", "shift", "sparse"})

    def __init__(self, *, num_heads: int) -> None:
        super().__init__()

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return sigmoid(scores, keep)
