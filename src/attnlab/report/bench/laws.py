"""What a transform does, measured: laws kept, keys chosen, error against float64, memory held for the backward."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnlab.report.bench.oracles import rough_rows

LAWS = ("sum", "shift", "permutation", "order", "sparse")
KEYS = 128
SPREAD = 2.0
ALIKE = 1e-6

Function = Callable[[Tensor], Tensor]


def gaussian(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Scores from N(0, 2^2), the same at every call."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(3)) * SPREAD).to(device, dtype)


@torch.no_grad()
def laws_kept(transform: Function, heads: int, device: torch.device) -> frozenset[str]:
    """Which of the laws hold on Gaussian scores, in float64, where rounding can't be taken for a broken law."""
    scores = gaussian((2, heads, 8, KEYS), torch.float64, device)
    order = torch.randperm(KEYS, generator=torch.Generator().manual_seed(4)).to(device)
    p = transform(scores)
    ranked = p.gather(-1, scores.argsort(dim=-1, descending=True))
    found = {
        "sum": ((p.sum(-1) - 1).abs() < ALIKE).all(),
        "shift": ((transform(scores + 3) - p).abs() < ALIKE).all(),
        "permutation": ((transform(scores[..., order]) - p[..., order]).abs() < ALIKE).all(),
        "order": (ranked.diff(dim=-1) < ALIKE).all(),
        "sparse": (p == 0).any(),
    }
    return frozenset(law for law in LAWS if bool(found[law]))


@torch.no_grad()
def mean_support(transform: Function, heads: int, device: torch.device) -> float:
    """Keys with p > 0 a query, of 128, on Gaussian scores."""
    scores = gaussian((4, heads, 128, KEYS), torch.float32, device)
    return float((transform(scores) > 0).sum(-1).float().mean())


@torch.no_grad()
def worst_errors(transform: Function, exact: Function, heads: int, rows: int, device: torch.device) -> dict[str, float]:
    """Kind of rows -> largest |p - exact| / max(1, exact), float32 scores against the same scores in float64."""
    errors = {}
    for kind, scores in rough_rows((1, heads, rows, 300), device).items():
        expected = exact(scores)
        off = (transform(scores).double() - expected).abs() / expected.clamp_min(1)
        errors[kind] = float(off.max())
    return errors


def memory_held(transform: Function, heads: int, device: torch.device) -> float:
    """Bytes that autograd keeps between forward and backward, in multiples of the probabilities' bytes.

    Storages are counted once; those of no more than two numbers a head (alpha, a number of keys) are left out.
    """
    scores = gaussian((2, heads, 64, KEYS), torch.float32, device).requires_grad_()
    held: dict[int, Any] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes() > 16 * heads:
            held[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        p = transform(scores)
    return float(sum(storage.nbytes() for storage in held.values()) / p.untyped_storage().nbytes())
