"""The transforms as functions and layers, under the names and arguments of the entmax package.

    from attnlab.transforms import functional as entmax    # in place of `import entmax`

takes code written for entmax 1.3, and for its repository's later `return_support_size`. Results are exact, so `k` (how
many scores to sort), `n_iter` (how often to halve) and `ensure_sum_one` are accepted and change nothing.

X is of any float dtype, float16 and bfloat16 are computed in float32, and a transform returns the shape and dtype of X.
It works on the slices along `dim`: a score of -inf gets exactly 0, and a slice of nothing but -inf gets zeros with zero
gradient. `keep`, a bool tensor that broadcasts to X, masks without -inf: True = may get a share. alpha and budget are
numbers, or tensors that expand to X with size 1 along `dim`. All of it can be differentiated twice.

The transforms that the package doesn't have are here as they are: (scores, keep=None, *, ...) on the last dim.
"""

from typing import Any

from torch import Tensor, nn

from .budget import budget, constrained_sparsemax
from .entmax import entmax
from .entmax import entmax15 as _entmax15
from .fusedmax import fusedmax
from .losses import (
    Entmax15Loss,
    EntmaxBisectLoss,
    NormmaxBisectLoss,
    SparsemaxBisectLoss,
    SparsemaxLoss,
    entmax15_loss,
    entmax_bisect_loss,
    normmax_bisect_loss,
    sparsemax_bisect_loss,
    sparsemax_loss,
)
from .normmax import normmax
from .relu import rela, relu
from .sigmoid import sigmoid
from .softmax import softmax
from .sparsegen import sparsegen, sparsegen_exp, sparsehourglass
from .sparsemax import sparsemax as _sparsemax
from .truncated import topk, topp

__all__ = [
    "BudgetBisect",
    "Entmax15",
    "Entmax15Loss",
    "EntmaxBisect",
    "EntmaxBisectLoss",
    "NormmaxBisect",
    "NormmaxBisectLoss",
    "Sparsemax",
    "SparsemaxBisect",
    "SparsemaxBisectLoss",
    "SparsemaxLoss",
    "budget",
    "budget_bisect",
    "constrained_sparsemax",
    "entmax",
    "entmax15",
    "entmax15_loss",
    "entmax_bisect",
    "entmax_bisect_loss",
    "fusedmax",
    "normmax",
    "normmax_bisect",
    "normmax_bisect_loss",
    "rela",
    "relu",
    "sigmoid",
    "softmax",
    "sparsegen",
    "sparsegen_exp",
    "sparsehourglass",
    "sparsemax",
    "sparsemax_bisect",
    "sparsemax_bisect_loss",
    "sparsemax_loss",
    "topk",
    "topp",
]

# budget_bisect has an argument of that name.
_budget = budget


def _last(dim: int, X: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """X and keep with `dim` moved to the end, where the transforms work."""
    # A mask given in place of dim is the likely slip.
    if not isinstance(dim, int):
        raise TypeError(f"dim must be an int, not {type(dim).__name__}; give a mask by its name: keep=...")
    if keep is not None and dim not in (-1, X.dim() - 1):
        keep = keep.expand_as(X).movedim(dim, -1)
    return X.movedim(dim, -1), keep


def _per_slice(name: str, dial: float | Tensor, X: Tensor, dim: int) -> float | Tensor:
    """A dial with `dim` moved to the end, where it has size 1."""
    if not isinstance(dial, Tensor):
        return dial
    shape = list(X.shape)
    shape[dim] = 1
    try:
        return dial.expand(shape).movedim(dim, -1)
    except RuntimeError as error:
        given = tuple(dial.shape)
        raise ValueError(
            f"{name} must be a number or expand to {tuple(shape)}, one value a slice, not {given}"
        ) from error


def _with_size(P: Tensor, dim: int, return_support_size: bool) -> Any:
    # Any, since a union would make every caller narrow it.
    return (P, (P > 0).sum(dim, keepdim=True)) if return_support_size else P


def sparsemax(
    X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False, *, keep: Tensor | None = None
) -> Any:
    """Euclidean projection of each slice onto the simplex: p = max(z - tau, 0), sum(p) = 1.

    Martins & Astudillo 2016, arXiv:1602.02068. With return_support_size also the count of nonzeros, an int64 tensor
    of size 1 along dim.
    """
    P = _sparsemax(*_last(dim, X, keep)).movedim(-1, dim)
    return _with_size(P, dim, return_support_size)


def entmax15(
    X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False, *, keep: Tensor | None = None
) -> Any:
    """1.5-entmax: p = max(z/2 - tau, 0)^2, sum(p) = 1.

    Peters, Niculae & Martins 2019, arXiv:1905.05702. With return_support_size also the count of nonzeros, an int64
    tensor of size 1 along dim.
    """
    P = _entmax15(*_last(dim, X, keep)).movedim(-1, dim)
    return _with_size(P, dim, return_support_size)


def sparsemax_bisect(
    X: Tensor, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True, *, keep: Tensor | None = None
) -> Tensor:
    """`sparsemax` under its other name."""
    return _sparsemax(*_last(dim, X, keep)).movedim(-1, dim)


def entmax_bisect(
    X: Tensor,
    alpha: float | Tensor = 1.5,
    dim: int = -1,
    n_iter: int = 50,
    ensure_sum_one: bool = True,
    *,
    keep: Tensor | None = None,
) -> Tensor:
    """alpha-entmax: p = max((alpha - 1) z - tau, 0)^(1 / (alpha - 1)), sum(p) = 1; softmax at alpha = 1.

    Peters, Niculae & Martins 2019, arXiv:1905.05702. A tensor alpha gets its exact gradient (Correia, Niculae &
    Martins 2019, arXiv:1909.00015). The range of alpha is that of `entmax`.
    """
    moved, keep = _last(dim, X, keep)
    return entmax(moved, keep, alpha=_per_slice("alpha", alpha, X, dim)).movedim(-1, dim)


def normmax_bisect(
    X: Tensor, alpha: float | Tensor = 2, dim: int = -1, n_iter: int = 50, *, keep: Tensor | None = None
) -> Tensor:
    """alpha-normmax: the p on the simplex that maximises <z, p> - ||p||_alpha, for alpha > 1.

    Blondel, Martins & Niculae 2020, arXiv:1901.02324.
    """
    moved, keep = _last(dim, X, keep)
    return normmax(moved, keep, alpha=_per_slice("alpha", alpha, X, dim)).movedim(-1, dim)


def budget_bisect(
    X: Tensor, budget: float | Tensor = 2, dim: int = -1, n_iter: int = 50, *, keep: Tensor | None = None
) -> Tensor:
    """Projection of each slice onto {0 <= p <= 1, sum(p) = budget}: p = min(max(z - tau, 0), 1)."""
    moved, keep = _last(dim, X, keep)
    return _budget(moved, keep, budget=_per_slice("budget", budget, X, dim)).movedim(-1, dim)


class Sparsemax(nn.Module):
    """`sparsemax` as a layer."""

    def __init__(self, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> None:
        super().__init__()
        self.dim, self.k, self.return_support_size = dim, k, return_support_size

    def forward(self, X: Tensor, keep: Tensor | None = None) -> Any:
        return sparsemax(X, self.dim, self.k, self.return_support_size, keep=keep)


class Entmax15(nn.Module):
    """`entmax15` as a layer."""

    def __init__(self, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> None:
        super().__init__()
        self.dim, self.k, self.return_support_size = dim, k, return_support_size

    def forward(self, X: Tensor, keep: Tensor | None = None) -> Any:
        return entmax15(X, self.dim, self.k, self.return_support_size, keep=keep)


class SparsemaxBisect(nn.Module):
    """`sparsemax_bisect` as a layer."""

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__()
        self.dim, self.n_iter = dim, n_iter

    def forward(self, X: Tensor, keep: Tensor | None = None) -> Tensor:
        return sparsemax_bisect(X, self.dim, self.n_iter, keep=keep)


class EntmaxBisect(nn.Module):
    """`entmax_bisect` as a layer; an alpha that is an nn.Parameter is one of the layer's own."""

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__()
        self.alpha, self.dim, self.n_iter = alpha, dim, n_iter

    def forward(self, X: Tensor, keep: Tensor | None = None) -> Tensor:
        return entmax_bisect(X, self.alpha, self.dim, self.n_iter, keep=keep)


class NormmaxBisect(nn.Module):
    """`normmax_bisect` as a layer."""

    def __init__(self, alpha: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__()
        self.alpha, self.dim, self.n_iter = alpha, dim, n_iter

    def forward(self, X: Tensor, keep: Tensor | None = None) -> Tensor:
        return normmax_bisect(X, self.alpha, self.dim, self.n_iter, keep=keep)


class BudgetBisect(nn.Module):
    """`budget_bisect` as a layer."""

    def __init__(self, budget: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__()
        self.budget, self.dim, self.n_iter = budget, dim, n_iter

    def forward(self, X: Tensor, keep: Tensor | None = None) -> Tensor:
        return budget_bisect(X, self.budget, self.dim, self.n_iter, keep=keep)
