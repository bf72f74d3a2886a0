"""fusedmax: sparsemax of scores in which neighbouring keys are fused into runs of one value.

The fusing step, total variation denoising, is solved exactly by Condat's walk (2013, "A Direct Algorithm for 1-D Total
Variation Denoising", IEEE Signal Processing Letters 20:11): from its first key a run grows key by key between a lower
and an upper candidate value, until the next key proves that it has ended; the next run begins behind it. Every row
walks at its own pace, and one call of `_move` moves all of them: about K to 4 K calls for random scores, more (K^2 / 6
measured) for one long slope. Shapes: scores (..., K); in the walk R rows of K keys.
"""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import native
from .dial import TEMPERATURE
from .kernel import fused
from .rows import allowed, settled, working
from .sparsemax import sparsemax

# Rows that walk together: enough to hide the cost of a call, few enough to stay in the cache.
ROWS = 12288
# Candidate values lie tv away from the scores and carry tv's rounding; beyond this tv the walk is in float64.
LARGEST_FLOAT32_TV = 4.0


def _at(z: Tensor, index: Tensor) -> Tensor:
    # z[index] without bounds checks, which take a third of the walk's time.
    return cast(Tensor, torch.ops.aten._unsafe_index(z, [index]))


@fused
def _move(z: Tensor, last: Tensor, tv: Tensor, values: Tensor, walk: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """One move of every row: (the walk after it, whether all rows had finished). Notes each run's value at its start.

    z and values flat (R K); last (R,) and all positions are indices into them. The run from key `start` has reached
    key `at`. Its value lies between `low` and `high`, for which the dual variable behind `at` is `dual_low` and
    `dual_high`. At `edge_low` the former last touched +tv, at `edge_high` the latter -tv: if the keys to come are
    lower, or higher, the run ends there.
    """
    at, start, edge_low, edge_high, low, high, dual_low, dual_high = walk
    more = at < last
    key = _at(z, torch.minimum(at + 1, last))
    next_low = torch.where(more, dual_low + (key - low), dual_low)
    next_high = torch.where(more, dual_high + (key - high), dual_high)
    # The dual variable must stay within tv of zero between keys and be zero behind the last.
    room = torch.where(more, tv, 0.0)
    down = next_low < -room
    up = ~down & (next_high > room)
    ends = down | up
    # What the last move in a run notes is final.
    values[start] = torch.where(down, low, torch.where(up, high, low + dual_low / (at - start + 1)))

    at = torch.where(more, at + 1, at)
    size = at - start + 1
    over = torch.where(more, next_low - tv, 0.0).clamp_min(0)
    under = torch.where(more, next_high + tv, 0.0).clamp_max(0)
    behind = torch.where(down, edge_low, edge_high) + 1
    first = _at(z, torch.minimum(behind, last))
    floor = torch.where(down, first, first - 2 * tv)
    walk = [
        torch.where(ends, behind, at),
        torch.where(ends, behind, start),
        torch.where(ends, behind, torch.where(more & (next_low >= tv), at, edge_low)),
        torch.where(ends, behind, torch.where(more & (next_high <= -tv), at, edge_high)),
        torch.where(ends, floor, low + over / size),
        torch.where(ends, floor + 2 * tv, high + under / size),
        torch.where(ends, tv, next_low - over),
        torch.where(ends, -tv, next_high - under),
    ]
    return walk, ~(more | ends).any()


def _run_values(z: Tensor, last: Tensor, tv: float) -> Tensor:
    """The value of each run at its first key, +inf at every other key. z (R, K); last (R,), the last key's index."""
    tv = min(tv, 1 + 2 * z.shape[-1] * float(z.abs().amax()))  # from there on all keys are one run
    wide = z.double() if tv > LARGEST_FLOAT32_TV else z
    values = torch.full_like(wide, math.inf).view(-1)
    start = torch.arange(len(z), dtype=torch.int32, device=z.device) * z.shape[-1]
    bound = torch.full((), tv, dtype=wide.dtype, device=z.device)
    dual = bound.expand(len(z)).clone()
    walk = [start.clone() for _ in range(4)] + [wide[:, 0] - bound, wide[:, 0] + bound, dual, -dual]
    done = False
    while not done:
        walk, finished = _move(wide.view(-1), start + last, bound, values, walk)
        done = bool(finished)
    return values.view_as(z).to(z.dtype)


@fused
def _spread(values: Tensor, label: Tensor) -> Tensor:
    """Give each key the value at the first key of its run; the other keys hold +inf."""
    run = label.long()
    # Place 0 is no run's: it takes what keys that begin nothing write.
    of_run = F.pad(values, (1, 0)).scatter(-1, torch.where(values != math.inf, run, 0), values)
    return of_run.gather(-1, run)


@fused
def _run_means(grad: Tensor, label: Tensor, keep: Tensor | None) -> Tensor:
    """The mean over the kept keys of each run, 0 at masked keys: differences of running sums, which vectorise."""
    keys = grad.shape[-1]
    index = torch.arange(keys, dtype=torch.int32, device=grad.device).expand(label.shape)
    begins = label != F.pad(label[..., :-1], (1, 0))
    # The first key of run 1, 2, ..., and K for a run that does not exist; place 0 as in `_spread`.
    first = index.new_full((*label.shape[:-1], keys + 2), keys)
    first = first.scatter(-1, torch.where(begins, label.long(), 0), index).long()
    size = first.diff()
    if keep is not None:
        grad = torch.where(keep, grad, 0.0)
        size = F.pad(keep.cumsum(-1), (1, 0)).expand(first[..., 1:].shape).gather(-1, first).diff()
    total = F.pad(grad.cumsum(-1), (1, 0)).gather(-1, first).diff()
    mean = (total / size.clamp_min(1)).gather(-1, label.long())
    return mean if keep is None else torch.where(keep, mean, 0.0)


def _label_dtype(keys: int) -> torch.dtype:
    return torch.uint8 if keys < 256 else torch.int16 if keys < 32768 else torch.int32


@torch.library.custom_op("attnlab::fuse_runs", mutates_args=())
@torch.no_grad()
def fuse_runs(z: Tensor, keep: Tensor | None, tv: float) -> tuple[Tensor, Tensor]:
    """(y, label), both (..., K): the denoised scores, -inf where masked, and the number of each key's run from 1 on.

    keep (..., K) broadcastable but for its last dimension. A masked key has the label of the kept key before it, or 0.
    """
    z, keys = z.detach(), z.shape[-1]
    if z.dtype == torch.float32 and native.runs_native(z):
        return native.fuse_runs(z, keep, tv, _label_dtype(keys))
    packed = z
    last = torch.full(z.shape[:-1], keys - 1, dtype=torch.int32, device=z.device)
    place = None
    if keep is not None:
        packed = torch.where(keep, z, 0.0).contiguous()
        last = (keep.sum(-1, dtype=torch.int32) - 1).clamp_min(0).expand(last.shape)
        if bool((keep[..., 1:] & ~keep[..., :-1]).any()):  # not merely cut off at the end: move kept keys to the front
            packed = packed.gather(-1, (~keep).byte().argsort(dim=-1, stable=True).expand(z.shape))
            place = (keep.cumsum(-1) - 1).expand(z.shape)
    y, label = torch.empty_like(packed), torch.empty(z.shape, dtype=_label_dtype(keys), device=z.device)
    parts = -(-last.numel() // ROWS)
    flat = (packed.reshape(-1, keys), last.reshape(-1), y.view(-1, keys), label.view(-1, keys))
    for some_z, some_last, some_y, some_label in zip(*(t.tensor_split(max(parts, 1)) for t in flat), strict=True):
        values = _run_values(some_z, some_last, tv)
        torch.cumsum(values != math.inf, -1, out=some_label)
        some_y.copy_(_spread(values, some_label))
    if place is not None:
        y = y.gather(-1, place.clamp_min(0))
        label = torch.where(place < 0, 0, label.gather(-1, place.clamp_min(0)))
    return y if keep is None else torch.where(keep, y, -math.inf), label


@fuse_runs.register_fake
def _(z: Tensor, keep: Tensor | None, tv: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(z), torch.empty(z.shape, dtype=_label_dtype(z.shape[-1]), device=z.device)


class _Prox(torch.autograd.Function):
    """Saves the label of each key, one byte up to 255 keys, and the mask."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, keep: Tensor | None, tv: float) -> Tensor:
        y, label = cast(tuple[Tensor, Tensor], fuse_runs(z, keep, tv))
        ctx.save_for_backward(label, keep)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        label, keep = ctx.saved_tensors
        grad = grads[0]
        if not torch.is_grad_enabled() and grad.dtype == torch.float32 and native.runs_native(grad):
            return native.run_means(grad, label, keep), None, None
        return _run_means(grad, label, keep), None, None


def prox_tv1d(scores: Tensor, keep: Tensor | None = None, *, tv: float) -> Tensor:
    """Total variation denoising of each row: argmin_y 1/2 |y - z|^2 + tv sum_i |y_{i+1} - y_i|.

    Condat 2013; the prox of Niculae & Blondel 2017, arXiv:1705.07704. scores (..., K) of any float dtype; keep
    broadcastable bool: the kept keys are the chain, a masked key is -inf. Returns float32, or float64 if given.
    Gradient: its mean over each run of equal y. Raises ValueError unless tv is a finite number >= 0.
    """
    if not 0 <= tv < math.inf:
        raise ValueError(f"total variation needs a finite tv >= 0, not {tv}")
    if keep is not None:
        keep = keep.expand(*keep.shape[:-1], scores.shape[-1])
    return cast(Tensor, _Prox.apply(working(scores).contiguous(), keep, float(tv)))  # type: ignore[no-untyped-call]


def fusedmax(scores: Tensor, keep: Tensor | None = None, *, tv: float = 0.1) -> Tensor:
    """Simplex projection that also penalises steps between neighbours: p = sparsemax(prox_tv1d(z)).

    Niculae & Blondel 2017, arXiv:1705.07704. scores (..., K) of any float dtype; keep broadcastable bool, True = may be
    attended; kept keys with only masked ones between them are neighbours. Returns probabilities of the same shape and
    dtype; a row with no key kept is all zeros. Gradient: that of sparsemax, averaged over each run of equal
    probability. tv = 0 is sparsemax, tv -> inf uniform. Raises ValueError unless tv is a finite number >= 0.
    """
    z, keep = working(scores), allowed(scores, keep)
    top = torch.where(keep, z, -math.inf).detach().amax(dim=-1, keepdim=True)
    # Near the top, where the probabilities are, this makes the scores small and their rounding too.
    y = prox_tv1d(z - torch.where(top == -math.inf, 0.0, top), keep, tv=tv)
    return settled(sparsemax(y), scores.dtype)


class Fusedmax(nn.Module):
    """`fusedmax` with a fixed tv as a transform of attention scores (B, H, Q, K)."""

    dial = TEMPERATURE
    breaks = frozenset({"permutation", "order"})

    def __init__(self, *, num_heads: int, tv: float = 0.1) -> None:
        super().__init__()
        if not 0 <= tv < math.inf:
            raise ValueError(f"attn.tv must be a finite number >= 0 (0 is sparsemax), not {tv}")
        self.tv = float(tv)

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return fusedmax(scores, keep, tv=self.tv)

    def extra_repr(self) -> str:
        return f"tv={self.tv}"
