"""What every transform does with a row of scores: mask it, shift it, find its threshold, check it.

sparsemax, entmax and their relatives are one root-finding problem. With w = z - max(z) and e = alpha - 1,

    p(theta) = [1 + e (w - theta)]_+ ^ (1/e),      S(theta) = sum p(theta) = 1,

which is exp(w - theta) in the limit alpha -> 1 and sparsemax (theta = tau + 1) at alpha = 2. S(0) >= 1, and S^e, a
norm of the kept excess, is convex and falling while e <= 1. So Newton steps on it from theta = 0,

    theta += S^(1-e) (S^e - 1) / (e sum p^(2-alpha)),

rise monotonically to the root and never pass it. For e > 1 the function bends the other way and a step may overshoot:
a bracket, which costs nothing beside the row, sends it to the middle instead. A few unrolled steps suffice for nearly
every row. Then the sum is checked: a row still off one is solved in float64 with a bracket (`exact_rows`), the others
are left as they are. On a CPU `entmax.cpp` solves the same equation, each row for as long as it takes. Shapes: scores
and probabilities (..., K); thresholds (..., 1).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

TINY_FLOAT16 = 6e-8
MOST_STEPS = 100


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
    w = z - torch.where(live, top, 0.0)
    return w if keep is None else written_out(w), live


def allowed(scores: Tensor, keep: Tensor | None) -> Tensor:
    """The keys that can be attended: kept, and with a score above -inf."""
    finite = scores != float("-inf")
    return finite if keep is None else finite & keep


def settled(probabilities: Tensor, dtype: torch.dtype) -> Tensor:
    """Probabilities in the caller's dtype, keeping a tiny one from vanishing in float16."""
    if dtype == torch.float16:
        tiny = probabilities.clamp_min(TINY_FLOAT16)
        probabilities = torch.where(probabilities > 0, tiny, 0.0)
    return probabilities.to(dtype)


def number_of_keys(scores: Tensor, keep: Tensor | None) -> Tensor:
    """Keys that each query may attend, as a float tensor that broadcasts to (..., 1)."""
    if keep is None:
        return torch.full((1,) * scores.dim(), scores.shape[-1], dtype=working(scores).dtype, device=scores.device)
    return keep.expand(*keep.shape[:-1], scores.shape[-1]).sum(-1, keepdim=True).to(working(scores).dtype)


def unsettled(total: Tensor, target: float | Tensor) -> Tensor:
    """Whether a sum is further from its target than rounding explains: the steps have not converged.

    Float32 sums of a row carry about 1e-7 of rounding, float64 ones 1e-15.
    """
    return (total - target).abs() > (1e-13 if total.dtype == torch.float64 else 2e-6)


def one_value_a_row(value: float | Tensor, scores: Tensor) -> Tensor:
    """A number as a tensor of as many dims as the scores; a tensor as it is. Kernels take tensors: no recompiling."""
    if isinstance(value, Tensor):
        return value if value.dim() else value.view((1,) * scores.dim())
    return torch.full((1,) * scores.dim(), value, dtype=torch.float64, device=scores.device)


@torch.library.custom_op("attnlab::per_row", mutates_args=())
def per_row(value: Tensor, scores: Tensor) -> Tensor:
    """`value` written out as (..., 1): a kernel that reads it broadcast over heads falls apart into many loops."""
    return value.expand(*scores.shape[:-1], 1).clone(memory_format=torch.contiguous_format)


@per_row.register_fake
def _(value: Tensor, scores: Tensor) -> Tensor:
    return value.new_empty((*scores.shape[:-1], 1))


@torch.library.custom_op("attnlab::written_out", mutates_args=())
def written_out(w: Tensor) -> Tensor:
    """A copy in memory: dozens of passes over it would each work it out again, mask and all."""
    return w.clone(memory_format=torch.contiguous_format)


@written_out.register_fake
def _(w: Tensor) -> Tensor:
    return torch.empty_like(w, memory_format=torch.contiguous_format)


def rowwise(value: Tensor, scores: Tensor) -> Tensor:
    """`value` in a shape that kernels read fast: a single number as it is, else one a row."""
    return value if value.numel() == 1 else per_row(value, scores)


def root(low: Tensor, high: Tensor, excess: Callable[[Tensor], Tensor]) -> Tensor:
    """The threshold (R, 1) in [low, high] at which a falling `excess` crosses zero, to float64's precision.

    Chandrupatla's method (1997): inverse quadratic interpolation where it is safe, halving where it is not.
    """
    a, b = high, low
    at_a, at_b = excess(a), excess(b)
    c, at_c = a, at_a
    t = torch.full_like(low, 0.5)
    for _ in range(MOST_STEPS):
        x = a + t * (b - a)
        at_x = excess(x)
        same = at_x.sign() == at_a.sign()
        c, at_c = torch.where(same, a, b), torch.where(same, at_a, at_b)
        b, at_b = torch.where(same, b, a), torch.where(same, at_b, at_a)
        a, at_a = x, at_x
        best = torch.where(at_a.abs() < at_b.abs(), a, b)
        margin = 2 * torch.finfo(low.dtype).eps * best.abs() / (b - c).abs().clamp_min(1e-300)
        done = (margin > 0.5) | (torch.minimum(at_a.abs(), at_b.abs()) < 1e-15)
        if bool(done.all()):
            break
        ratio, rise = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
        safe = (rise**2 < ratio) & ((1 - rise) ** 2 < 1 - ratio)
        inverse = at_a / (at_b - at_a) * at_c / (at_b - at_c) + (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (
            at_c - at_b
        )
        t = torch.where(safe, inverse, 0.5).nan_to_num(0.5)
        t = torch.minimum(torch.maximum(t, margin), 1 - margin).clamp(0, 1)
    return torch.where(at_a.abs() < at_b.abs(), a, b)


def _entmax(w: Tensor, alpha: Tensor, _: Tensor) -> Tensor:
    eps = torch.where((alpha - 1).abs() < 1e-12, 1e-12, alpha - 1)
    # At this theta even a row of equal scores sums to less than one.
    high = -torch.expm1(-eps * math.log(w.shape[-1] + 1)) / eps

    def rule(theta: Tensor) -> Tensor:
        return torch.where(w == float("-inf"), 0.0, torch.exp(torch.log1p((eps * (w - theta)).clamp_min(-1)) / eps))

    return rule(root(torch.zeros_like(high), high, lambda theta: rule(theta).sum(-1, keepdim=True) - 1))


def _normmax(w: Tensor, alpha: Tensor, _: Tensor) -> Tensor:
    power = 1 / (alpha - 1)

    def rule(tau: Tensor) -> Tensor:
        return torch.exp(power * (w - tau).clamp_min(0).log())

    high = torch.zeros_like(alpha)
    tau = root(high - 1, high, lambda tau: (rule(tau) * (w - tau).clamp_min(0)).sum(-1, keepdim=True) - 1)
    weights = rule(tau)
    return weights / weights.sum(-1, keepdim=True)


def _box(w: Tensor, upper: Tensor, total: Tensor) -> Tensor:
    finite = torch.where(w == float("-inf"), float("inf"), w)
    low = finite.amin(-1, keepdim=True) - upper.amax(-1, keepdim=True)

    def rule(tau: Tensor) -> Tensor:
        return torch.minimum((w - tau).clamp_min(0), upper)

    return rule(root(low, torch.zeros_like(low), lambda tau: rule(tau).sum(-1, keepdim=True) - total))


SOLVERS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"entmax": _entmax, "normmax": _normmax, "box": _box}


@torch.library.custom_op("attnlab::exact_rows", mutates_args=("probabilities",))
def exact_rows(
    probabilities: Tensor,
    scores: Tensor,
    keep: Tensor | None,
    off: Tensor,
    problem: str,
    scale: Tensor,
    first: Tensor,
    second: Tensor,
) -> None:
    """Solve the rows marked `off` in float64 and write them into `probabilities`; the others stay as they are.

    problem: entmax (first = alpha), normmax (first = alpha) or box (first = the upper bound, second = the sum), of
    scale * scores. off (..., 1); the parameters broadcast to scores. Costs nothing when no row is marked.
    """
    if not bool(off.any()):
        return
    rows = off.squeeze(-1)
    w = scores[rows].double() * scale.expand_as(scores)[rows].double()
    if keep is not None:
        w = torch.where(keep.expand_as(scores)[rows], w, float("-inf"))
    w = w - w.amax(-1, keepdim=True)
    given = [tensor.expand(*scores.shape[:-1], tensor.shape[-1])[rows].double() for tensor in (first, second)]
    if problem != "box" and bool((first > 1).all()):
        # A key so far below the largest has no share: what is left is often a handful.
        reach = w > -1 / (given[0] - 1).clamp_max(1)
        w, columns = w.topk(int(reach.sum(-1).max()), dim=-1)
        solved = torch.zeros_like(reach, dtype=torch.float64).scatter_(-1, columns, SOLVERS[problem](w, *given))
    else:
        solved = SOLVERS[problem](w, *given)
    probabilities[rows] = settled(solved, probabilities.dtype)


@exact_rows.register_fake
def _(*_: object) -> None:
    return None
