"""Softmax over the best keys of each row only: the k largest (top-k), or the fewest that hold a share p (top-p).

Both cut a row at a score: with a = max(z) - z, keep a <= cut, the smallest cut under which enough lies, in number of
keys or in probability. Positive floats are ordered as their bits are, so the cut is found exactly, one bit after the
other, by counting: no sort, and ties at the cut stay together.
"""

import math
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from .dial import Dial
from .kernel import fused
from .rows import one_value_a_row, rowwise, settled, shifted
from .softmax import softmax_backward


def _within(distance: Tensor, weight: Tensor, enough: Tensor) -> Tensor:
    """Whether each key is within the smallest distance up to which the weights sum to at least `enough`."""
    whole, bits = (torch.int32, 31) if distance.dtype == torch.float32 else (torch.int64, 63)
    as_bits = distance.view(whole)
    # Too small by as much as can be; each bit is added where still not enough lies below.
    below = torch.full_like(as_bits[..., :1], -1)
    for bit in reversed(range(bits)):
        higher = below + (1 << bit)
        short = torch.where(as_bits <= higher, weight, 0.0).sum(-1, keepdim=True) < enough
        below = torch.where(short, higher, below)
    return as_bits <= below + 1


@fused
def _truncate(scores: Tensor, keep: Tensor | None, number: Tensor, share: Tensor, by_mass: bool) -> Tensor:
    w, live = shifted(scores, keep)
    distance = (-w).clamp_min(0)  # -0.0 has the sign bit set
    weights = torch.where(live, torch.exp(-distance), 0.0)
    keys = (distance != float("inf")).to(w.dtype).sum(-1, keepdim=True)
    if by_mass:
        whole = share.to(w.dtype)
        weight, enough = weights, torch.where(whole < 1, whole * weights.sum(-1, keepdim=True), float("inf"))
    else:
        wanted = torch.where(number > 0, number.to(w.dtype), torch.round(share.to(w.dtype) * keys))
        weight, enough = torch.ones_like(w), torch.minimum(wanted.clamp_min(1), keys)
    weights = torch.where(_within(distance, weight, enough), weights, 0.0)
    return settled(weights / torch.where(live, weights.sum(-1, keepdim=True), 1.0), scores.dtype)


class _Truncated(torch.autograd.Function):
    """Saves the probabilities and nothing else."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, keep: Tensor | None, number: Tensor, share: Tensor, by_mass: bool) -> Tensor:
        probabilities = _truncate(scores, keep, rowwise(number, scores), rowwise(share, scores), by_mass)
        ctx.save_for_backward(probabilities)
        return probabilities

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (probabilities,) = ctx.saved_tensors
        return softmax_backward(probabilities, grads[0]), None, None, None, None


def _truncated(
    scores: Tensor, keep: Tensor | None, number: float | Tensor, share: float | Tensor, by_mass: bool
) -> Tensor:
    given = [one_value_a_row(value, scores) for value in (number, share)]
    return cast(Tensor, _Truncated.apply(scores, keep, *given, by_mass))  # type: ignore[no-untyped-call]


def _fits(k: int | float) -> bool:
    """Whether k is a whole number of keys, or a share of the row in (0, 1)."""
    return not isinstance(k, bool) and 0 < k < math.inf and (k < 1 or k == int(k))


def topk(scores: Tensor, keep: Tensor | None = None, *, k: int | float | Tensor = 8) -> Tensor:
    """top-k softmax: softmax over the k largest scores of each row, 0 elsewhere.

    Zhao et al. 2019, arXiv:1912.11637. k >= 1 is a number of keys; k in (0, 1) a share of the row's kept keys, rounded,
    at least one; a tensor may hold either. Keys that tie with the k-th stay too. scores (..., K) of any float dtype;
    keep broadcastable bool, True = may be attended. Returns probabilities of the same shape and dtype; a row with no
    key kept is all zeros. Gradient: p (g - sum(p g)). Raises ValueError for k <= 0, or a k above 1 that is not whole.
    """
    if isinstance(k, Tensor):
        return _truncated(scores, keep, torch.where(k >= 1, k, 0.0), torch.where(k < 1, k, 0.0), False)
    if not _fits(k):
        raise ValueError(f"top-k needs a whole number k >= 1, or a share of the row in (0, 1), not {k}")
    number, share = (float(k), 0.0) if k >= 1 else (0.0, float(k))
    return _truncated(scores, keep, number, share, False)


def topp(scores: Tensor, keep: Tensor | None = None, *, p: float | Tensor = 0.9) -> Tensor:
    """top-p (nucleus) softmax: the fewest largest keys whose softmax probabilities sum to p or more, renormalised.

    Holtzman et al. 2020, arXiv:1904.09751, here on attention. p in (0, 1]; 1 is softmax. Keys that tie with the last
    one stay too. Shapes, masking and gradient as `topk`. Raises ValueError for a number outside (0, 1].
    """
    if not isinstance(p, Tensor) and not 0 < p <= 1:
        raise ValueError(f"top-p needs p in (0, 1], not {p}")
    return _truncated(scores, keep, 0.0, p, True)


class TopK(nn.Module):
    """`topk` as a transform of attention scores (B, H, Q, K)."""

    dial: ClassVar[Dial] = Dial(
        key="k",
        value=lambda t: math.exp(-t),  # a share of the row
        coordinate=lambda k: -math.log(k),
        dense=1e-4,  # k = 1 would be one key
        sparse=-math.log(1e-3),
        near_softmax=1e-4,
    )

    def __init__(self, *, num_heads: int, k: int | float = 8) -> None:
        super().__init__()
        if not _fits(k):
            raise ValueError(f"attn.k must be a whole number from 1 on, or a share of the row in (0, 1), not {k}")
        self.k: int | float | Tensor = k

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return topk(scores, keep, k=self.k)

    def extra_repr(self) -> str:
        return f"k={float(self.k):g}"


class TopP(nn.Module):
    """`topp` as a transform of attention scores (B, H, Q, K)."""

    dial: ClassVar[Dial] = Dial(
        key="p",
        value=lambda t: 1 / (1 + math.exp(t)),
        coordinate=lambda p: math.log((1 - p) / p) if p < 1 else -9.0,
        dense=-9.0,
        sparse=9.0,
        near_softmax=-4.6,
    )

    def __init__(self, *, num_heads: int, p: float = 0.9) -> None:
        super().__init__()
        if not 0 < p <= 1:
            raise ValueError(f"attn.p must be in (0, 1], not {p}")
        self.p: float | Tensor = float(p)

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return topp(scores, keep, p=self.p)

    def extra_repr(self) -> str:
        return f"p={float(self.p):g}"
