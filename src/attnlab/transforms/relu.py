"""Rectified attention: ReLU/L, and ReLA with its gated RMS norm. Rows do not sum to one."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from .dial import Dial
from .rows import allowed, number_of_keys, settled, working

THRESHOLD = Dial(
    key="threshold",
    value=lambda t: t,
    coordinate=lambda threshold: threshold,
    dense=-20.0,
    sparse=60.0,
    near_softmax=0.0,
)


def relu(scores: Tensor, keep: Tensor | None = None, *, threshold: float | Tensor = 0.0) -> Tensor:
    """ReLU/L: p = max(z - threshold, 0) / n over the n kept keys of a row.

    Wortsman et al. 2023, arXiv:2309.08586, with threshold 0. scores (..., K) of any float dtype; keep broadcastable
    bool, True = may be attended. Returns weights of the same shape and dtype, which sum to anything from 0 on.
    """
    n = number_of_keys(scores, allowed(scores, keep)).clamp_min(1)
    return settled(_rectified(scores, keep, threshold) / n, scores.dtype)


def rela(scores: Tensor, keep: Tensor | None = None, *, threshold: float | Tensor = 0.0) -> Tensor:
    """The weights of rectified linear attention (ReLA): p = max(z - threshold, 0).

    Zhang, Titov & Sennrich 2021, arXiv:2104.07012, with threshold 0. Masked keys get exactly 0. Shapes as `relu`.
    """
    return settled(_rectified(scores, keep, threshold), scores.dtype)


def _rectified(scores: Tensor, keep: Tensor | None, threshold: float | Tensor) -> Tensor:
    excess = (working(scores) - threshold).clamp_min(0)
    return excess if keep is None else torch.where(keep, excess, 0.0)


def _finite(threshold: float) -> float:
    if not -math.inf < threshold < math.inf:
        raise ValueError(f"attn.threshold must be a finite number, not {threshold}")
    return float(threshold)


class ReLU(nn.Module):
    """`relu` as a transform of attention scores (B, H, Q, K)."""

    dial: ClassVar[Dial] = THRESHOLD
    breaks = frozenset({"sum", "shift"})

    def __init__(self, *, num_heads: int, threshold: float = 0.0) -> None:
        super().__init__()
        self.threshold: float | Tensor = _finite(threshold)

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return relu(scores, keep, threshold=self.threshold)

    def extra_repr(self) -> str:
        return f"threshold={float(self.threshold):g}"


class ReLA(nn.Module):
    """`rela` as a transform of attention scores (B, H, Q, K), with the norm that follows it.

    `finish` normalises what the weights gathered, over all heads of a position together:
    sigmoid(gate * x) * gain * x / rms(x), with a learned gate and gain for each of the H * D features.
    """

    dial: ClassVar[Dial] = THRESHOLD
    breaks = frozenset({"sum", "shift"})

    def __init__(self, *, num_heads: int, head_dim: int, threshold: float = 0.0) -> None:
        super().__init__()
        self.threshold: float | Tensor = _finite(threshold)
        self.gain = nn.Parameter(torch.ones(num_heads * head_dim))
        self.gate = nn.Parameter(torch.zeros(num_heads * head_dim))

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return rela(scores, keep, threshold=self.threshold)

    def finish(self, context_BQHD: Tensor) -> Tensor:
        """The gated RMS norm of a context (B, Q, H, D), same shape and dtype."""
        x = working(context_BQHD).flatten(-2)
        rms = (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        normed = torch.sigmoid(self.gate * x) * self.gain * x / rms
        return normed.view_as(context_BQHD).to(context_BQHD.dtype)

    def extra_repr(self) -> str:
        return f"threshold={float(self.threshold):g}"
