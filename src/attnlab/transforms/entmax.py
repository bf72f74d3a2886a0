"""alpha-entmax: the family between softmax (alpha = 1) and sparsemax (alpha = 2)."""

import math
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from .dial import TEMPERATURE, Dial, learned_values
from .kernel import fused
from .native import entmax_rows, entmax_rows_gradient, runs_native
from .rows import exact_rows, number_of_keys, one_value_a_row, rowwise, settled, shifted, unsettled
from .softmax import softmax
from .sparsemax import sparsemax

STEPS_15 = 5
STEPS = 7
# An |alpha - 1| below this is raised to it: beyond any digit of the result, and never a division by zero.
SMALLEST_EXCESS = 1e-12
LARGEST_ALPHA = 4.0


def _excess(alpha: Tensor, dtype: torch.dtype) -> Tensor:
    eps = (alpha - 1).to(dtype)
    return torch.where(eps.abs() < SMALLEST_EXCESS, SMALLEST_EXCESS, eps)


@fused
def _forward15(scores: Tensor, keep: Tensor | None) -> Tensor:
    w, live = shifted(scores, keep)
    half = w / 2
    tau = torch.full_like(w[..., :1], -1.0)
    for _ in range(STEPS_15):
        excess = (half - tau).clamp_min(0)
        norm = (excess * excess).sum(-1, keepdim=True).sqrt()
        total = excess.sum(-1, keepdim=True)
        tau = tau + (norm - 1) * norm / torch.where(live, total, 1.0)
    excess = (half - tau).clamp_min(0)
    probabilities = excess * excess
    off = live & unsettled(probabilities.sum(-1, keepdim=True), 1)
    result = settled(probabilities, scores.dtype)
    one = torch.ones((1,) * scores.dim(), device=scores.device)
    exact_rows(result, scores, keep, off, "entmax", one, one * 1.5, one)
    return result


@fused
def _forward(scores: Tensor, keep: Tensor | None, alpha: Tensor) -> Tensor:
    w, live = shifted(scores, keep)
    eps = _excess(alpha, w.dtype)
    low = torch.zeros_like(w[..., :1])
    # At this theta even a row of equal scores sums to at most one.
    high = low - torch.expm1(-eps * number_of_keys(scores, None).log()) / eps
    theta = low
    base = (1 + eps * w).clamp_min(0)
    p = torch.where(base > 0, torch.exp(torch.log1p((eps * w).clamp_min(-1)) / eps), 0.0)
    for _ in range(STEPS):
        mass = torch.where(live, p.sum(-1, keepdim=True), 1.0)
        slope = torch.where(base > 0, p / base, 0.0).sum(-1, keepdim=True)
        log_mass = mass.log()
        rise = torch.expm1(eps * log_mass) / eps * torch.exp((1 - eps) * log_mass)
        low, high = torch.where(mass >= 1, theta, low), torch.where(mass >= 1, high, theta)
        theta = theta + rise / torch.where(live, slope, 1.0)
        theta = torch.where((theta >= low) & (theta <= high), theta, (low + high) / 2)
        step = (eps * (w - theta)).clamp_min(-1)
        base = 1 + step
        p = torch.where(base > 0, torch.exp(torch.log1p(step) / eps), 0.0)
    off = live & unsettled(p.sum(-1, keepdim=True), 1)
    result = settled(p, scores.dtype)
    exact_rows(result, scores, keep, off, "entmax", torch.ones_like(alpha), alpha, alpha)
    return result


@fused
def _backward(probabilities: Tensor, grad: Tensor, alpha: Tensor, learned: bool) -> tuple[Tensor, Tensor | None]:
    """The gradient in the scores and, where alpha is learned, grad . dp/dalpha of each row (..., 1).

    Both from the probabilities alone. With e = alpha - 1 and t = e log p: log p moves by h = (1 - exp(-t) - t) / e^2
    at fixed theta, and theta moves so that the sum stays one. The difference cancels for small t, where its series is
    used.
    """
    p = probabilities.to(torch.promote_types(grad.dtype, torch.float32))
    inside = p > 0
    eps = _excess(alpha, p.dtype)
    # The inner where keeps a second derivative from meeting 0 ** -x.
    log_p = torch.where(inside, p, 1.0).log()
    # p / base, where base = p ** e lies between 0 and 1.
    t = eps * log_p
    inverse = torch.exp(-t)
    weight = torch.where(inside, p * inverse, 0.0)
    total = weight.sum(-1, keepdim=True)
    share = torch.where(total > 0, total, 1.0)
    mean = (weight * grad).sum(-1, keepdim=True) / share
    grad_scores = (weight * (grad - mean)).to(grad.dtype)
    if not learned:
        return grad_scores, None
    series = -0.5 * log_p * log_p * (1 - t / 3 * (1 - t / 4 * (1 - t / 5 * (1 - t / 6))))
    h = torch.where(t.abs() < 0.1, series, (1 - inverse - t) / (eps * eps))
    rise = torch.where(inside, p * h, 0.0)
    slope = rise - weight * (rise.sum(-1, keepdim=True) / share)
    return grad_scores, (grad * slope).sum(-1, keepdim=True)


@fused
def _backward15(probabilities: Tensor, grad: Tensor) -> Tensor:
    p = probabilities.to(torch.promote_types(grad.dtype, torch.float32))
    weight = torch.where(p > 0, torch.where(p > 0, p, 1.0).sqrt(), 0.0)
    total = weight.sum(-1, keepdim=True)
    mean = (weight * grad).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
    return (weight * (grad - mean)).to(grad.dtype)


class _Entmax15(torch.autograd.Function):
    """Saves the probabilities and nothing else."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, keep: Tensor | None) -> Tensor:
        probabilities: Tensor
        if runs_native(scores):
            probabilities = entmax_rows(scores, keep, one_value_a_row(1.5, scores), one_value_a_row(1.0, scores))
        else:
            probabilities = _forward15(scores, keep)
        ctx.save_for_backward(probabilities)
        return probabilities

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (probabilities,) = ctx.saved_tensors
        grad = grads[0]
        if runs_native(probabilities):
            one, alpha = one_value_a_row(1.0, grad), one_value_a_row(1.5, grad)
            return entmax_rows_gradient(probabilities, grad, alpha, one, False)[0], None
        return _backward15(probabilities, grad), None


class _Entmax(torch.autograd.Function):
    """Saves the probabilities and alpha."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, keep: Tensor | None, alpha: Tensor) -> Tensor:
        probabilities: Tensor
        if runs_native(scores):
            probabilities = entmax_rows(scores, keep, alpha, one_value_a_row(1.0, scores))
        else:
            probabilities = _forward(scores, keep, rowwise(alpha, scores))
        ctx.save_for_backward(probabilities, alpha)
        return probabilities

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        probabilities, alpha = ctx.saved_tensors
        grad, learned = grads[0], ctx.needs_input_grad[2]
        if runs_native(probabilities):
            grad_scores, pull = entmax_rows_gradient(probabilities, grad, alpha, one_value_a_row(1.0, grad), learned)
            pull = pull if learned else None
        else:
            a = alpha if torch.is_grad_enabled() else rowwise(alpha, probabilities)
            grad_scores, pull = _backward(probabilities, grad, a, learned)
        grad_alpha = None if pull is None else pull.sum_to_size(alpha.shape).to(alpha.dtype)
        return grad_scores, None, grad_alpha


def entmax15(scores: Tensor, keep: Tensor | None = None) -> Tensor:
    """1.5-entmax: p = max(z/2 - tau, 0)^2, sum(p) = 1.

    Peters, Niculae & Martins 2019, arXiv:1905.05702. scores (..., K) of any float dtype; keep broadcastable bool, True
    = may be attended. Returns probabilities of the same shape and dtype; a row with no key kept is all zeros.
    Gradient: u (g - sum(u g) / sum(u)) with u = sqrt(p).
    """
    return cast(Tensor, _Entmax15.apply(scores, keep))  # type: ignore[no-untyped-call]


def entmax(scores: Tensor, keep: Tensor | None = None, *, alpha: float | Tensor = 1.5) -> Tensor:
    """alpha-entmax: p = max((alpha - 1) z - tau, 0)^(1 / (alpha - 1)), sum(p) = 1, for alpha in (0, 4].

    Peters, Niculae & Martins 2019, arXiv:1905.05702; gradient in alpha: Correia, Niculae & Martins 2019,
    arXiv:1909.00015. alpha is a number, or a tensor that broadcasts to scores with one value a row, such as (H, 1, 1).
    Other shapes and masking as `entmax15`. Gradient: u (g - sum(u g) / sum(u)) with u = p^(2 - alpha) on the support.
    alpha = 1 is softmax, below it the tails are heavier than softmax's and nothing is zero. Raises ValueError for a
    number outside (0, 4]; a tensor must hold values in that range.
    """
    if isinstance(alpha, Tensor):
        return cast(Tensor, _Entmax.apply(scores, keep, one_value_a_row(alpha, scores)))  # type: ignore[no-untyped-call]
    if not 0 < alpha <= LARGEST_ALPHA:
        raise ValueError(f"entmax needs alpha in (0, {LARGEST_ALPHA:g}], not {alpha}")
    if abs(alpha - 1) < SMALLEST_EXCESS:
        return softmax(scores, keep)
    if alpha == 1.5:
        return entmax15(scores, keep)
    if alpha == 2:
        return sparsemax(scores, keep)
    return cast(Tensor, _Entmax.apply(scores, keep, one_value_a_row(alpha, scores)))  # type: ignore[no-untyped-call]


class Entmax15(nn.Module):
    """`entmax15` as a transform of attention scores (B, H, Q, K)."""

    dial = TEMPERATURE

    def __init__(self, *, num_heads: int) -> None:
        super().__init__()

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return entmax15(scores, keep)


class Entmax(nn.Module):
    """`entmax` as a transform of attention scores (B, H, Q, K), alpha fixed or learned.

    A learned alpha is 1 + sigmoid(a), starting at the given alpha: one a head as in Correia et al. 2019, one a layer,
    or one for all.
    """

    dial: ClassVar[Dial] = Dial(
        key="alpha",
        value=lambda t: 1 + math.exp(t),
        coordinate=lambda alpha: math.log(alpha - 1),
        dense=math.log(0.01),
        sparse=math.log(LARGEST_ALPHA - 1),
        near_softmax=math.log(0.05),
    )

    def __init__(self, *, num_heads: int, alpha: float = 1.5, learn_alpha: bool | str = False) -> None:
        super().__init__()
        if not 1 < alpha <= LARGEST_ALPHA:
            remedy = "for alpha = 1 take attn=softmax" if alpha <= 1 else f"{LARGEST_ALPHA:g} is the sparsest"
            raise ValueError(f"attn.alpha must be in (1, {LARGEST_ALPHA:g}], not {alpha}: {remedy}")
        if learn_alpha and not 1.01 <= alpha <= 1.99:
            raise ValueError(f"attn.alpha must be in [1.01, 1.99] where learning starts, not {alpha}")
        self.alpha: float | Tensor = float(alpha)
        start = math.log((alpha - 1) / (2 - alpha)) if learn_alpha else 0.0
        self.raw_alpha = learned_values(learn_alpha, "alpha", start, num_heads)
        self.tied = "raw_alpha" if learn_alpha == "model" else None

    def learned(self) -> dict[str, Tensor]:
        """alpha of each head (H,), or (1,), where it is learned."""
        return {} if self.raw_alpha is None else {"alpha": 1 + torch.sigmoid(self.raw_alpha)}

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        if self.raw_alpha is not None:
            return entmax(scores, keep, alpha=self.learned()["alpha"][:, None, None])
        return entmax(scores, keep, alpha=self.alpha)

    def extra_repr(self) -> str:
        return "alpha learned" if self.raw_alpha is not None else f"alpha={float(self.alpha):g}"
