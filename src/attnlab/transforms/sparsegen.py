"""The sparsegen family: sparsegen-lin, sparsegen-exp and sparsehourglass. Laha et al. 2018, arXiv:1810.11975."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from .dial import TEMPERATURE, Dial, learned_values
from .rows import allowed, number_of_keys, working
from .sparsemax import project, sparsemax

# exp of more than this is beyond float32.
LARGEST_EXPONENT = 80.0


def sparsegen(scores: Tensor, keep: Tensor | None = None, *, lam: float | Tensor = 0.0) -> Tensor:
    """sparsegen-lin: p = max((z - tau) / (1 - lam), 0), sum(p) = 1, for lam < 1.

    Laha et al. 2018, arXiv:1810.11975; the attention of SSAF (Cui et al. 2019). It equals sparsemax(z / (1 - lam)):
    lam = 0 is sparsemax, lam -> 1 keeps one key, lam -> -inf keeps all alike. lam is a number, or a tensor that
    broadcasts to scores with one value a row. Shapes and masking as `sparsemax`. Gradient: on the support S,
    (g - mean_S(g)) / (1 - lam); in lam, sum_S g (p - 1/|S|) / (1 - lam). Raises ValueError for a number >= 1.
    """
    if not isinstance(lam, Tensor) and not lam < 1:
        raise ValueError(f"sparsegen needs lam < 1, not {lam}")
    return project(scores, keep, 1.0 / (1.0 - lam))


def sparsegen_exp(scores: Tensor, keep: Tensor | None = None, *, lam: float = 0.0, rate: float = 1.0) -> Tensor:
    """sparsegen-exp: sparsegen-lin of exp(rate z).

    Laha et al. 2018, arXiv:1810.11975. Not invariant to a shift of z; where exp would overflow float32, exp(80) stands
    for the largest, far beyond the gap at which one key takes all. Shapes, masking and errors as `sparsegen`.
    """
    keep = allowed(scores, keep)
    z = rate * torch.where(keep, working(scores), 0.0)
    top = torch.where(keep, z, float("-inf")).detach().amax(-1, keepdim=True)
    top = torch.where(top == float("-inf"), 0.0, top)
    # exp(z) - exp(top), a shift that sparsegen does not notice: small where the probabilities are.
    raised = torch.exp(top.clamp_max(LARGEST_EXPONENT)) * torch.expm1(z - top)
    return sparsegen(raised, keep, lam=lam).to(scores.dtype)


def sparsehourglass(scores: Tensor, keep: Tensor | None = None, *, q: float = 1.0) -> Tensor:
    """sparsehourglass: sparsemax(z (1 + n q) / (|sum z| + n q)) over the n kept keys, q > 0.

    Laha et al. 2018, arXiv:1810.11975. q sets between invariance to scale (q -> 0) and to shift (q -> inf, sparsemax).
    The gradient has a kink at sum z = 0. Shapes and masking as `sparsemax`. Raises ValueError for q <= 0.
    """
    if not q > 0:
        raise ValueError(f"sparsehourglass needs q > 0, not {q}")
    keep = allowed(scores, keep)
    z = torch.where(keep, working(scores), 0.0)
    n = number_of_keys(scores, keep)
    scale = (1 + n * q) / (z.sum(-1, keepdim=True).abs() + n * q).clamp_min(1e-30)
    return sparsemax(z * scale, keep).to(scores.dtype)


class Sparsegen(nn.Module):
    """`sparsegen` as a transform of attention scores (B, H, Q, K), lam fixed or learned as 1 - exp(a)."""

    dial: ClassVar[Dial] = Dial(
        key="lam",
        value=lambda t: 1 - math.exp(-t),
        coordinate=lambda lam: -math.log(1 - lam),
        dense=TEMPERATURE.dense,
        sparse=TEMPERATURE.sparse,
        near_softmax=TEMPERATURE.near_softmax,
    )

    def __init__(self, *, num_heads: int, lam: float = -3.0, learn_lam: bool | str = False) -> None:
        super().__init__()
        if not -math.inf < lam < 1:
            raise ValueError(f"attn.lam must be below 1 (SSAF uses -7 to -3), not {lam}")
        self.lam: float | Tensor = float(lam)
        self.raw_lam = learned_values(learn_lam, "lam", math.log(1 - lam), num_heads)
        self.tied = "raw_lam" if learn_lam == "model" else None

    def learned(self) -> dict[str, Tensor]:
        """lam of each head (H,), or (1,), where it is learned."""
        return {} if self.raw_lam is None else {"lam": 1 - self.raw_lam.exp()}

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        if self.raw_lam is not None:
            return project(scores, keep, torch.exp(-self.raw_lam)[:, None, None])
        return sparsegen(scores, keep, lam=self.lam)

    def extra_repr(self) -> str:
        return "lam learned" if self.raw_lam is not None else f"lam={float(self.lam):g}"


class SparsegenExp(nn.Module):
    """`sparsegen_exp` as a transform of attention scores (B, H, Q, K)."""

    dial = TEMPERATURE
    breaks = frozenset({"shift"})

    def __init__(self, *, num_heads: int, lam: float = 0.0, rate: float = 1.0) -> None:
        super().__init__()
        if not -math.inf < lam < 1:
            raise ValueError(f"attn.lam must be below 1, not {lam}")
        if not 0 < rate < math.inf:
            raise ValueError(f"attn.rate must be above 0, not {rate}")
        self.lam, self.rate = float(lam), float(rate)

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return sparsegen_exp(scores, keep, lam=self.lam, rate=self.rate)

    def extra_repr(self) -> str:
        return f"lam={self.lam:g}, rate={self.rate:g}"


class Sparsehourglass(nn.Module):
    """`sparsehourglass` as a transform of attention scores (B, H, Q, K)."""

    dial = TEMPERATURE
    breaks = frozenset({"shift"})

    def __init__(self, *, num_heads: int, q: float = 1.0) -> None:
        super().__init__()
        if not 0 < q < math.inf:
            raise ValueError(f"attn.q must be above 0, not {q}")
        self.q = float(q)

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return sparsehourglass(scores, keep, q=self.q)

    def extra_repr(self) -> str:
        return f"q={self.q:g}"
