"""fusedmax against float64 oracles that share nothing with it: enumeration, dual descent, optimality conditions."""

import itertools

import pytest
import torch

from attnlab.report.bench.oracles import by_sorting
from attnlab.transforms.fusedmax import Fusedmax, fusedmax, prox_tv1d
from attnlab.transforms.kernel import use_kernel


def by_enumeration(row: torch.Tensor, tv: float) -> torch.Tensor:
    """The minimiser over every way to cut a row into runs and to step up or down between them."""
    z, best, best_cost = row.double(), None, float("inf")
    for steps in itertools.product((-1, 0, 1), repeat=len(z) - 1):
        runs, pull = [[0]], [0.0] * len(z)
        for i, step in enumerate(steps):
            if step == 0:
                runs[-1].append(i + 1)
            else:
                runs.append([i + 1])
            pull[i] += step * tv
            pull[i + 1] -= step * tv
        y = torch.empty_like(z)
        for run in runs:
            y[run] = sum(z[i] + pull[i] for i in run) / len(run)
        cost = 0.5 * (y - z).square().sum() + tv * y.diff().abs().sum()
        if cost < best_cost:
            best, best_cost = y, cost
    return best


def by_dual_descent(rows: torch.Tensor, tv: float, steps: int = 40_000) -> torch.Tensor:
    """y = z - D'u, |u| <= tv, by accelerated projected gradient in float64."""
    z = rows.double()
    u = look = torch.zeros_like(z[:, 1:])
    t = 1.0

    def primal(u):
        return z + torch.nn.functional.pad(u, (0, 1)) - torch.nn.functional.pad(u, (1, 0))

    for _ in range(steps):
        new = (look + primal(look).diff(dim=-1) / 4).clamp(-tv, tv)
        grow = (1 + (1 + 4 * t * t) ** 0.5) / 2
        # Restarting where momentum points uphill makes the convergence linear.
        if ((look - new) * (new - u)).sum() > 0:
            grow = 1.0
        look, u, t = new + (t - 1) / grow * (new - u), new, grow
    return primal(u)


def rough_rows(kind: str, rows: int = 12, keys: int = 300) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    normal = torch.randn(rows, keys, generator=generator)
    return {
        "normal": normal,
        "flat": normal * 0.1,
        "nearly constant": normal * 1e-4,
        "thousands": normal * 1e3,
        "near a thousand": normal + 1e3,
        "ties": normal.round(),
        "constant": torch.full((rows, keys), 3.25),
        "alternating": torch.tensor([0.3, -0.3]).repeat(keys // 2).expand(rows, keys),
        "linear": torch.linspace(0, -3, keys).expand(rows, keys),
        "walk": normal.cumsum(-1) * 0.1,
        "one key": normal[:, :1],
        "two keys": normal[:, :2],
    }[kind]


KINDS = [
    "normal", "flat", "nearly constant", "thousands", "near a thousand", "ties",
    "constant", "alternating", "linear", "walk", "one key", "two keys",
]  # fmt: skip


def assert_denoised(z: torch.Tensor, y: torch.Tensor, tv: float, slack: float) -> None:
    """The dual u_i = sum_{j <= i} (y_j - z_j) is within tv of 0: tv where y steps up, -tv where down, 0 at the end."""
    z, y = z.double(), y.double()
    u = (y - z).cumsum(-1)
    step = y.diff(dim=-1)
    assert u[:, -1].abs().max() <= slack
    assert (u.abs() <= tv + slack).all()
    assert ((u[:, :-1] - tv * step.sign()).abs() <= slack)[step.abs() > slack].all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tv", [0.0, 0.1, 3.0, 1e6])
def test_the_denoised_row_meets_the_optimality_conditions(kind, tv):
    z = rough_rows(kind).double()
    assert_denoised(z, prox_tv1d(z, tv=tv), tv, slack=1e-9 * (1 + min(tv, 1e6)) * (1 + z.abs().max().item()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tv", [0.0, 0.1, 3.0, 1e6])
def test_float32_is_exact_to_a_hundred_thousandth(kind, tv):
    z = rough_rows(kind)
    exact = by_sorting(prox_tv1d(z.double(), tv=tv))
    torch.testing.assert_close(fusedmax(z, tv=tv).double(), exact, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS[:-2])
def test_the_compiled_walk_is_exact_too(kind):
    z = rough_rows(kind)
    with use_kernel("compiled"):
        p = fusedmax(z, tv=0.1)
    torch.testing.assert_close(p.double(), by_sorting(prox_tv1d(z.double(), tv=0.1)), atol=1e-5, rtol=0)


def test_extreme_tv_gives_sparsemax_and_the_uniform_distribution():
    z = rough_rows("normal")
    torch.testing.assert_close(fusedmax(z, tv=0).double(), by_sorting(z), atol=1e-6, rtol=0)
    torch.testing.assert_close(fusedmax(z, tv=1e9), torch.full_like(z, 1 / 300), atol=1e-7, rtol=0)


@pytest.mark.parametrize("tv", [0.05, 0.3, 2.0])
def test_short_rows_equal_the_best_of_all_cuts(tv):
    generator = torch.Generator().manual_seed(5)
    for keys in range(1, 7):
        z = torch.cat([torch.randn(2, keys, generator=generator), torch.randn(1, keys, generator=generator).round()])
        expected = torch.stack([by_enumeration(row, tv) for row in z])
        torch.testing.assert_close(prox_tv1d(z, tv=tv).double(), expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(fusedmax(z, tv=tv).double(), by_sorting(expected), atol=1e-6, rtol=0)


def test_long_rows_equal_dual_descent():
    z = rough_rows("walk", rows=6, keys=60)
    expected = by_sorting(by_dual_descent(z, 0.1, steps=8000))
    torch.testing.assert_close(fusedmax(z, tv=0.1).double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("mask", ["end", "middle"])
def test_masked_keys_leave_the_chain(mask):
    z = rough_rows("flat", keys=20)
    keep = torch.arange(20) < 13 if mask == "end" else torch.rand(20, generator=torch.Generator().manual_seed(1)) > 0.4
    p = fusedmax(z.masked_fill(~keep, float("nan")), keep, tv=0.05)
    assert (p[:, ~keep] == 0).all()
    torch.testing.assert_close(p[:, keep], fusedmax(z[:, keep], tv=0.05), atol=1e-6, rtol=0)


def test_a_row_without_a_key_is_zero_with_zero_gradient():
    z = rough_rows("normal", rows=3, keys=8).requires_grad_()
    keep = torch.ones(3, 8, dtype=torch.bool)
    keep[1] = False
    p = fusedmax(z, keep)
    (p * torch.arange(8)).sum().backward()
    assert (p[1] == 0).all()
    assert (z.grad[1] == 0).all()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_pass_gradcheck_and_gradgradcheck(masked):
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(3, 4, 7, dtype=torch.float64, generator=generator, requires_grad=True)
    keep = torch.rand(3, 1, 7, generator=generator) > 0.3 if masked else None
    assert torch.autograd.gradcheck(lambda z: fusedmax(z, keep, tv=0.1), (z,))
    assert torch.autograd.gradgradcheck(lambda z: fusedmax(z, keep, tv=0.1), (z,))
    assert torch.autograd.gradcheck(lambda z: prox_tv1d(z, keep, tv=0.1).clamp_min(-100), (z,))


def test_the_float32_gradient_equals_float64_with_and_without_the_compiler():
    z, upstream = rough_rows("flat", rows=300), rough_rows("normal", rows=300)
    keep = torch.arange(300) < 290
    grads = []
    for dtype, kernel in ((torch.float64, "eager"), (torch.float32, "eager"), (torch.float32, "compiled")):
        with use_kernel(kernel):
            scores = z.to(dtype, copy=True).requires_grad_()
            fusedmax(scores, keep).backward(upstream.to(dtype))
            grads.append(scores.grad.double())
    torch.testing.assert_close(grads[1], grads[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(grads[2], grads[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_the_support_of_float32(dtype):
    z = rough_rows("flat").to(dtype)
    low, high = fusedmax(z), fusedmax(z.float())
    assert low.dtype == dtype
    assert torch.equal(low > 0, high > 0)
    torch.testing.assert_close(low.float(), high, atol=4e-3, rtol=0)


def test_compile_and_export_take_it_whole():
    transform = Fusedmax(num_heads=3)
    z = rough_rows("flat", rows=48, keys=8).view(2, 3, 8, 8)
    keep = torch.arange(8) < 6
    compiled = torch.compile(transform, fullgraph=True, dynamic=True, backend="aot_eager")
    exported = torch.export.export(transform, (z, keep)).module()
    for run in (compiled, exported):
        torch.testing.assert_close(run(z, keep), transform(z, keep))
    z.requires_grad_()
    compiled(z, keep).square().sum().backward()
    through, z.grad = z.grad, None
    transform(z, keep).square().sum().backward()
    torch.testing.assert_close(through, z.grad)


@pytest.mark.parametrize("tv", [-0.1, float("nan"), float("inf")])
def test_a_tv_that_means_nothing_is_refused(tv):
    with pytest.raises(ValueError, match=r"attn\.tv"):
        Fusedmax(num_heads=2, tv=tv)
    with pytest.raises(ValueError, match="tv >= 0"):
        fusedmax(torch.zeros(3), tv=tv)
