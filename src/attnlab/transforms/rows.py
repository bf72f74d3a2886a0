"""What every transform does with a row of scores: mask it, shift it, and check its threshold.

sparsemax, entmax and their relatives are one root-finding problem. With w = z - max(z) and e = alpha - 1,

    p(theta) = [1 + e (w - theta)]_+ ^ (1/e),      S(theta) = sum p(theta) = 1,

which is exp(w - theta) in the limit alpha -> 1 and sparsemax (theta = tau + 1) at alpha = 2. theta = 0 gives a sum of
at least one, and S^e, a norm of the kept excess, is convex and falling in theta. So Newton steps on it from theta = 0,

    theta += S^(1-e) (S^e - 1) / (e sum p^(2-alpha)),

rise monotonically to the root and never pass it. A few unrolled steps suffice for nearly every row; a row whose sum is
still off one afterwards is solved in float64 by `exact_theta`. Shapes: scores (..., K); thresholds (..., 1).
"""

import torch
from torch import Tensor

# A sum further from one than this counts as not converged. Float32 sums of a row carry about 1e-7 of rounding.
TOLERANCE = 2e-6
TINY_FLOAT16 = 6e-8


def working(scores: Tensor) -> Tensor:
    """Scores in the precision the kernels calculate in: float32, or float64 when given."""
    return scores if scores.dtype == torch.float64 else scores.float()


def shifted(scores: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """(w, live): scores minus their row's maximum, -inf where masked; and which rows have any key at all."""
    z = working(scores)
    if keep is not None:
        z = torch.where(keep, z, float("-inf"))
    top = z.amax(dim=-1, keepdim=True)
    live = top != float("-inf")
    return z - torch.where(live, top, 0.0), live


def settled(probabilities: Tensor, dtype: torch.dtype) -> Tensor:
    """Probabilities in the caller's dtype, keeping a tiny one from vanishing in float16."""
    if dtype == torch.float16:
        tiny = probabilities.clamp_min(TINY_FLOAT16)
        probabilities = torch.where(probabilities > 0, tiny, 0.0)
    return probabilities.to(dtype)


@torch.library.custom_op("attnlab::exact_theta", mutates_args=())
def exact_theta(w: Tensor, alpha: Tensor, theta: Tensor, off: Tensor) -> Tensor:
    """Solve the rows marked `off` in float64 by bracketed bisection and keep the other thresholds.

    w (..., K), alpha broadcastable to w, theta and off (..., 1). Costs nothing when no row is marked.
    """
    solved = theta.clone()
    if not bool(off.any()):
        return solved
    rows = off.squeeze(-1)
    w64 = w[rows].double()
    eps = alpha.expand_as(w)[..., :1][rows].double() - 1
    low = torch.zeros_like(w64[:, :1])
    # At this theta even a row of equal scores sums to at most one.
    high = -torch.expm1(-eps * torch.tensor(float(w.shape[-1])).log().double()) / eps
    for _ in range(80):
        middle = (low + high) / 2
        base = (1 + eps * (w64 - middle)).clamp_min(0)
        heavy = (base ** (1 / eps)).sum(-1, keepdim=True) > 1
        low = torch.where(heavy, middle, low)
        high = torch.where(heavy, high, middle)
    solved[rows] = ((low + high) / 2).to(theta.dtype)
    return solved


@exact_theta.register_fake
def _(w: Tensor, alpha: Tensor, theta: Tensor, off: Tensor) -> Tensor:
    return torch.empty_like(theta)
