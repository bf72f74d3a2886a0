"""alpha-entmax: the family between softmax (alpha = 1) and sparsemax (alpha = 2)."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from .kernel import fused
from .rows import TOLERANCE, exact_theta, settled, shifted
from .softmax import softmax

STEPS = 8
# Below this alpha - 1 the result differs from softmax by less than float32 can hold.
SMALLEST_EXCESS = 1e-4


@fused
def _forward15(scores: Tensor, keep: Tensor | None) -> Tensor:
    w, live = shifted(scores, keep)
    half = w / 2
    tau = torch.full_like(w[..., :1], -1.0)
    for _ in range(STEPS):
        excess = (half - tau).clamp_min(0)
        norm = (excess * excess).sum(-1, keepdim=True).sqrt()
        total = excess.sum(-1, keepdim=True)
        tau = tau + (norm - 1) * norm / torch.where(live, total, 1.0)
    excess = (half - tau).clamp_min(0)
    off = live & (((excess * excess).sum(-1, keepdim=True) - 1).abs() > TOLERANCE)
    tau = exact_theta(w, torch.full_like(tau, 1.5), 2 * (tau + 1), off) / 2 - 1
    excess = (half - tau).clamp_min(0)
    return settled(excess * excess, scores.dtype)


@fused
def _forward(scores: Tensor, keep: Tensor | None, alpha: Tensor) -> Tensor:
    w, live = shifted(scores, keep)
    eps = alpha.to(w.dtype) - 1
    theta = torch.zeros_like(w[..., :1])

    def probabilities(theta: Tensor) -> tuple[Tensor, Tensor]:
        step = (eps * (w - theta)).clamp_min(-1)
        return torch.where(step > -1, torch.exp(torch.log1p(step) / eps), 0.0), 1 + step

    for _ in range(STEPS):
        p, base = probabilities(theta)
        mass = torch.where(live, p.sum(-1, keepdim=True), 1.0)
        slope = torch.where(base > 0, p / base, 0.0).sum(-1, keepdim=True)
        log_mass = mass.log()
        rise = torch.expm1(eps * log_mass) / eps * torch.exp((1 - eps) * log_mass)
        theta = theta + rise / torch.where(live, slope, 1.0)
    off = live & ((probabilities(theta)[0].sum(-1, keepdim=True) - 1).abs() > TOLERANCE)
    theta = exact_theta(w, alpha.to(w.dtype), theta, off)
    return settled(probabilities(theta)[0], scores.dtype)


@fused
def _backward(probabilities: Tensor, grad: Tensor, alpha: Tensor) -> Tensor:
    p = probabilities.to(torch.promote_types(grad.dtype, torch.float32))
    # The inner where keeps a second derivative from meeting 0 ** -x.
    weight = torch.where(p > 0, torch.where(p > 0, p, 1.0) ** (2 - alpha.to(p.dtype)), 0.0)
    total = weight.sum(-1, keepdim=True)
    mean = (weight * grad).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
    return (weight * (grad - mean)).to(grad.dtype)


@fused
def _backward15(probabilities: Tensor, grad: Tensor) -> Tensor:
    p = probabilities.to(torch.promote_types(grad.dtype, torch.float32))
    weight = torch.where(p > 0, torch.where(p > 0, p, 1.0).sqrt(), 0.0)
    total = weight.sum(-1, keepdim=True)
    mean = (weight * grad).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
    return (weight * (grad - mean)).to(grad.dtype)


@fused
def _alpha_slope(probabilities: Tensor, alpha: Tensor) -> Tensor:
    """dp/dalpha at fixed scores, from the probabilities alone.

    With e = alpha - 1 and t = e log p: log p moves by h = (1 - exp(-t) - t) / e^2 at fixed theta, and theta moves so
    that the sum stays one. The difference cancels for small t, where its series is used.
    """
    p = probabilities.to(torch.promote_types(probabilities.dtype, torch.float32))
    inside = p > 0
    eps = alpha.to(p.dtype) - 1
    log_p = torch.where(inside, p, 1.0).log()
    t = eps * log_p
    series = -0.5 * log_p * log_p * (1 - t / 3 * (1 - t / 4 * (1 - t / 5 * (1 - t / 6))))
    h = torch.where(t.abs() < 0.1, series, (-torch.expm1(-t) - t) / (eps * eps))
    rise = torch.where(inside, p * h, 0.0)
    weight = torch.where(inside, torch.exp((1 - eps) * log_p), 0.0)
    total = weight.sum(-1, keepdim=True)
    return rise - weight * (rise.sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0))


class _Entmax15(torch.autograd.Function):
    """Saves the probabilities and nothing else."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, keep: Tensor | None) -> Tensor:
        probabilities = _forward15(scores, keep)
        ctx.save_for_backward(probabilities)
        return probabilities

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (probabilities,) = ctx.saved_tensors
        return _backward15(probabilities, grads[0]), None


class _Entmax(torch.autograd.Function):
    """Saves the probabilities and alpha."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, keep: Tensor | None, alpha: Tensor) -> Tensor:
        probabilities = _forward(scores, keep, alpha)
        ctx.save_for_backward(probabilities, alpha)
        return probabilities

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        probabilities, alpha = ctx.saved_tensors
        grad = grads[0]
        grad_scores = _backward(probabilities, grad, alpha) if ctx.needs_input_grad[0] else None
        grad_alpha = None
        if ctx.needs_input_grad[2]:
            pull = grad * _alpha_slope(probabilities, alpha)
            grad_alpha = pull.sum_to_size(alpha.shape).to(alpha.dtype)
        return grad_scores, None, grad_alpha


def entmax15(scores: Tensor, keep: Tensor | None = None) -> Tensor:
    """1.5-entmax: p = max(z/2 - tau, 0)^2, sum(p) = 1.

    Peters, Niculae & Martins 2019, arXiv:1905.05702. scores (..., K) of any float dtype; keep broadcastable bool, True
    = may be attended. Returns probabilities of the same shape and dtype; a row with no key kept is all zeros.
    Gradient: u (g - sum(u g) / sum(u)) with u = sqrt(p).
    """
    return cast(Tensor, _Entmax15.apply(scores, keep))  # type: ignore[no-untyped-call]


def entmax(scores: Tensor, keep: Tensor | None = None, *, alpha: float | Tensor = 1.5) -> Tensor:
    """alpha-entmax: p = max((alpha - 1) z - tau, 0)^(1 / (alpha - 1)), sum(p) = 1, for alpha in [1, 2].

    Peters, Niculae & Martins 2019, arXiv:1905.05702; gradient in alpha: Correia, Niculae & Martins 2019,
    arXiv:1909.00015. alpha is a number, or a tensor that broadcasts to scores with one value a row, such as (H, 1, 1).
    Other shapes and masking as `entmax15`. Gradient: u (g - sum(u g) / sum(u)) with u = p^(2 - alpha) on the support.
    Raises ValueError for a number outside [1, 2]; a tensor must hold values in (1, 2].
    """
    if isinstance(alpha, Tensor):
        return cast(Tensor, _Entmax.apply(scores, keep, alpha))  # type: ignore[no-untyped-call]
    if not 1 <= alpha <= 2:
        raise ValueError(f"entmax needs alpha in [1, 2], not {alpha}")
    if alpha - 1 < SMALLEST_EXCESS:
        return softmax(scores, keep)
    if alpha == 1.5:
        return entmax15(scores, keep)
    tensor = torch.full((1,) * scores.dim(), alpha, dtype=torch.float64, device=scores.device)
    return cast(Tensor, _Entmax.apply(scores, keep, tensor))  # type: ignore[no-untyped-call]


class Entmax15(nn.Module):
    """`entmax15` as a transform of attention scores (B, H, Q, K)."""

    def __init__(self, *, num_heads: int) -> None:
        super().__init__()

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return entmax15(scores, keep)


class Entmax(nn.Module):
    """`entmax` as a transform of attention scores (B, H, Q, K), alpha fixed or learned per head.

    A learned alpha is 1 + sigmoid(a), one a per head, starting at the given alpha (Correia et al. 2019). It stays
    above 1 + 1e-4, where the attention is softmax to float32's last digit.
    """

    def __init__(self, *, num_heads: int, alpha: float = 1.5, learn_alpha: bool = False) -> None:
        super().__init__()
        low, high = (1.01, 1.99) if learn_alpha else (1.0, 2.0)
        if not low <= alpha <= high:
            kind = "learned" if learn_alpha else "fixed"
            raise ValueError(f"attn.alpha must be in [{low}, {high}] when {kind}, not {alpha}")
        self.fixed_alpha = float(alpha)
        self.raw_alpha: nn.Parameter | None = None
        if learn_alpha:
            logit = torch.logit(torch.tensor(alpha - 1.0))
            self.raw_alpha = nn.Parameter(logit.repeat(num_heads))

    @property
    def alpha(self) -> Tensor | float:
        """The exponent in use: a number, or one value per head (H,)."""
        if self.raw_alpha is None:
            return self.fixed_alpha
        return 1 + torch.sigmoid(self.raw_alpha).clamp_min(SMALLEST_EXCESS)

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        alpha = self.alpha
        if isinstance(alpha, Tensor):
            alpha = alpha[:, None, None]
        return entmax(scores, keep, alpha=alpha)

    def extra_repr(self) -> str:
        return "alpha learned per head" if self.raw_alpha is not None else f"alpha={self.fixed_alpha}"
