"""Fenchel-Young losses: what cross-entropy is to softmax, for the sparse transforms.

Blondel, Martins & Niculae 2020, arXiv:1901.02324. With the transform p = argmax <z, p> - Omega(p) over the simplex,

    L(z, y) = <z, p - e_y> - Omega(p) + Omega(e_y),      dL/dz = p - e_y.

It is convex, never negative, and exactly zero once z_y leads by the transform's margin. Names and arguments are the
entmax package's; `functional` says which of them change nothing.

X (N, C) scores of any float dtype; target (N,) int64 classes; the loss (N,) in the dtype of X, computed in float32 for
float16 and bfloat16. More leading dims than N are fine. A class at -inf, or masked by keep, takes no part; a row with
no class left costs 0 with zero gradient; a target at -inf costs inf, as in cross-entropy. Differentiable twice.
"""

import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from .entmax import entmax, entmax15
from .kernel import fused
from .normmax import normmax
from .rows import one_value_a_row, working
from .sparsemax import sparsemax

Map = Callable[[Tensor], Tensor]
REDUCTIONS = ("elementwise_mean", "sum", "none")


@fused
def _gain(scores: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """<w, p> and top, with w = scores - top and top the maximum of the row."""
    top = scores.amax(-1, keepdim=True)
    w = scores - torch.where(top != float("-inf"), top, 0.0)
    return torch.where(p > 0, p * w, 0.0).sum(-1, keepdim=True), top


@fused
def _gini_gap(p: Tensor) -> Tensor:
    """(1 - ||p||^2) / 2, written so that a sum of p just off one doesn't matter."""
    return (p * (1 - p)).sum(-1, keepdim=True) / 2


@fused
def _tsallis15_gap(p: Tensor) -> Tensor:
    """(4/3) (1 - sum p^1.5)."""
    return (p * (1 - p.sqrt())).sum(-1, keepdim=True) / 0.75


@fused
def _tsallis_gap(p: Tensor, alpha: Tensor) -> Tensor:
    """sum(p - p^alpha) / (alpha (alpha - 1)), which is -sum(p log p) at alpha = 1."""
    log_p = torch.where(p > 0, p, 1.0).log()
    eps = (alpha - 1).to(p.dtype)
    fall = torch.where(eps == 0, -log_p, -torch.expm1(eps * log_p) / torch.where(eps == 0, 1.0, eps))
    return (p * fall).sum(-1, keepdim=True) / alpha.to(p.dtype)


@fused
def _norm_gap(p: Tensor, alpha: Tensor) -> Tensor:
    """1 - ||p||_alpha, with p over its maximum so that a high power of it doesn't vanish."""
    top = p.amax(-1, keepdim=True)
    power = alpha.to(p.dtype)
    mass = ((p / torch.where(top > 0, top, 1.0)) ** power).sum(-1, keepdim=True)
    return 1 - top * mass ** (1 / power)


class _FenchelYoung(torch.autograd.Function):
    """The loss (N, 1) of X and target (N, 1), and p = transform(X); gap(p) is Omega(e_y) - Omega(p)."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, target: Tensor, transform: Map, gap: Map) -> tuple[Tensor, Tensor]:
        p = transform(X)
        gain, top = _gain(X, p)
        live = top != float("-inf")
        ctx.transform = transform
        ctx.save_for_backward(X, p, target, live)
        ctx.mark_non_differentiable(p)
        return torch.where(live, gap(p) + gain + (top - X.gather(-1, target)), 0.0), p

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        X, p, target, live = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Someone wants a second derivative: p has to be a function of X again.
            p = ctx.transform(X)
        grad = grads[0]
        return (grad * p).scatter_add_(-1, target, torch.where(live, -grad, 0.0)), None, None, None


def _constant(alpha: float | Tensor, X: Tensor) -> float | Tensor:
    """alpha as the loss takes it: a number, or one value a row, without gradient."""
    if not isinstance(alpha, Tensor):
        return alpha
    if alpha.requires_grad:
        # The loss falls as alpha grows whatever the scores, so a gradient would teach alpha nothing.
        warnings.warn("the loss holds alpha constant: it gets no gradient", stacklevel=3)
    shape = (*X.shape[:-1], 1)
    try:
        return alpha.detach().expand(shape)
    except RuntimeError as error:
        given = tuple(alpha.shape)
        raise ValueError(f"alpha must be a number or expand to {shape}, one value a row, not {given}") from error


def _loss(X: Tensor, target: Tensor, keep: Tensor | None, transform: Map, gap: Map) -> tuple[Tensor, Tensor]:
    """The loss of each row and its p = transform(scores); gap(p) is Omega(e_y) - Omega(p)."""
    if target.shape != X.shape[:-1]:
        raise ValueError(f"X {tuple(X.shape)} wants a target of shape {tuple(X.shape[:-1])}, not {tuple(target.shape)}")
    scores = working(X)
    if keep is not None:
        scores = torch.where(keep, scores, float("-inf"))
    loss, p = _FenchelYoung.apply(scores, target[..., None], transform, gap)  # type: ignore[no-untyped-call]
    return loss[..., 0].to(X.dtype), p


def _with_size(loss: Tensor, p: Tensor, return_support_size: bool) -> Any:
    # Any, since a union would make every caller narrow it.
    return (loss, (p > 0).sum(-1, keepdim=True)) if return_support_size else loss


def sparsemax_loss(
    X: Tensor, target: Tensor, k: int | None = None, return_support_size: bool = False, *, keep: Tensor | None = None
) -> Any:
    """(1 - ||p||^2) / 2 + <z, p - e_y> with p = sparsemax(z); zero once z_y leads by 1.

    Martins & Astudillo 2016, arXiv:1602.02068. With return_support_size also the count of nonzeros in p, (N, 1) int64.
    """
    return _with_size(*_loss(X, target, keep, sparsemax, _gini_gap), return_support_size)


def entmax15_loss(
    X: Tensor, target: Tensor, k: int | None = None, return_support_size: bool = False, *, keep: Tensor | None = None
) -> Any:
    """(4/3) (1 - sum p^1.5) + <z, p - e_y> with p = entmax15(z); zero once z_y leads by 2.

    Peters, Niculae & Martins 2019, arXiv:1905.05702. With return_support_size also the count of nonzeros in p, (N, 1)
    int64.
    """
    return _with_size(*_loss(X, target, keep, entmax15, _tsallis15_gap), return_support_size)


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int | None = 50, *, keep: Tensor | None = None) -> Tensor:
    """`sparsemax_loss` under its other name."""
    return cast(Tensor, sparsemax_loss(X, target, keep=keep))


def entmax_bisect_loss(
    X: Tensor, target: Tensor, alpha: float | Tensor = 1.5, n_iter: int = 50, *, keep: Tensor | None = None
) -> Tensor:
    """H_alpha(p) + <z, p - e_y> with p = entmax(z, alpha): cross-entropy in nats at alpha = 1.

    H_alpha(p) = sum(p - p^alpha) / (alpha (alpha - 1)); zero once z_y leads by 1 / (alpha - 1). Peters, Niculae &
    Martins 2019, arXiv:1905.05702. alpha a number, or a tensor that expands to (N, 1), in the range of `entmax`.
    """
    alpha = _constant(alpha, X)
    return _loss(
        X,
        target,
        keep,
        lambda scores: entmax(scores, alpha=alpha),
        lambda p: _tsallis_gap(p, one_value_a_row(alpha, p)),
    )[0]


def normmax_bisect_loss(
    X: Tensor, target: Tensor, alpha: float | Tensor = 2, n_iter: int = 50, *, keep: Tensor | None = None
) -> Tensor:
    """1 - ||p||_alpha + <z, p - e_y> with p = normmax(z, alpha).

    Blondel, Martins & Niculae 2020, arXiv:1901.02324. alpha a number, or a tensor that expands to (N, 1).
    """
    alpha = _constant(alpha, X)
    return _loss(
        X, target, keep, lambda scores: normmax(scores, alpha=alpha), lambda p: _norm_gap(p, one_value_a_row(alpha, p))
    )[0]


class _Loss(nn.Module):
    """Reduces the losses of the rows whose target isn't ignore_index; their mean is 0 when there is none."""

    def __init__(self, ignore_index: int, reduction: str) -> None:
        super().__init__()
        if reduction not in REDUCTIONS:
            raise ValueError(f"unknown reduction {reduction!r}: one of {', '.join(REDUCTIONS)}")
        self.ignore_index, self.reduction = ignore_index, reduction

    def loss(self, X: Tensor, target: Tensor) -> Any:
        raise NotImplementedError

    def forward(self, X: Tensor, target: Tensor) -> Any:
        counted = target != self.ignore_index
        # In float32, so that a sum over many rows fits what float16 holds.
        result = self.loss(working(X), torch.where(counted, target, 0))
        loss, *size = result if isinstance(result, tuple) else (result,)
        loss = torch.where(counted, loss, 0.0)
        if self.reduction != "none":
            loss = loss.sum()
        if self.reduction == "elementwise_mean":
            loss = loss / counted.sum().clamp_min(1)
        return (loss.to(X.dtype), *size) if size else loss.to(X.dtype)


class SparsemaxLoss(_Loss):
    """`sparsemax_loss`, reduced."""

    def __init__(
        self,
        k: int | None = None,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
        return_support_size: bool = False,
    ) -> None:
        super().__init__(ignore_index, reduction)
        self.k, self.return_support_size = k, return_support_size

    def loss(self, X: Tensor, target: Tensor) -> Any:
        return sparsemax_loss(X, target, self.k, self.return_support_size)


class Entmax15Loss(_Loss):
    """`entmax15_loss`, reduced."""

    def __init__(
        self,
        k: int | None = 100,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
        return_support_size: bool = False,
    ) -> None:
        super().__init__(ignore_index, reduction)
        self.k, self.return_support_size = k, return_support_size

    def loss(self, X: Tensor, target: Tensor) -> Any:
        return entmax15_loss(X, target, self.k, self.return_support_size)


class SparsemaxBisectLoss(_Loss):
    """`sparsemax_bisect_loss`, reduced."""

    def __init__(self, n_iter: int | None = 50, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        self.n_iter = n_iter

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return sparsemax_bisect_loss(X, target, self.n_iter)


class EntmaxBisectLoss(_Loss):
    """`entmax_bisect_loss`, reduced."""

    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        n_iter: int = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction)
        self.alpha, self.n_iter = alpha, n_iter

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return entmax_bisect_loss(X, target, self.alpha, self.n_iter)


class NormmaxBisectLoss(_Loss):
    """`normmax_bisect_loss`, reduced."""

    def __init__(
        self,
        alpha: float | Tensor = 2,
        n_iter: int = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction)
        self.alpha, self.n_iter = alpha, n_iter

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return normmax_bisect_loss(X, target, self.alpha, self.n_iter)
