"""The kernels in C++ against float64 and the same formulas in PyTorch, on the instruction sets that users have."""

import ctypes
import os
import platform
import subprocess
import sys
import warnings

import pytest
import torch

from attnlab.transforms import functional as F
from attnlab.transforms import kernel, native
from attnlab.transforms.fusedmax import fuse_runs, prox_tv1d
from attnlab.transforms.kernel import use_kernel

INTEL = platform.machine() in ("x86_64", "AMD64")
# "native" has 512, 256 or 128 bits a vector; laptops often have 256
MACHINES = ["native", *(["x86-64-v3", "x86-64"] if INTEL else [])]


@pytest.fixture(params=MACHINES)
def machine(request, monkeypatch):
    """The kernels as built for one kind of processor."""
    flags = () if request.param == "native" else (f"-march={request.param}",)
    library = native.build(*flags)
    monkeypatch.setattr(native, "_library", lambda: library)
    with use_kernel("compiled"):
        yield request.param


def in_float64(function, z, *args, **kwargs):
    with use_kernel("eager"):
        return function(z.double(), *args, **kwargs)


def scores(*shape, seed=0, spread=2.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("keys", [1, 3, 16, 33, 128, 300])
@pytest.mark.parametrize("alpha", [0.7, 1.001, 1.05, 1.3, 1.5, 1.9, 2.0, 3.0])
def test_rows_of_any_length_under_a_mask_equal_float64(machine, keys, alpha):
    z, keep = scores(3, 4, 7, keys), scores(3, 1, 1, keys, seed=1) > -1
    p = F.entmax(z, keep, alpha=alpha)
    torch.testing.assert_close(p.double(), in_float64(F.entmax, z, keep, alpha=alpha), atol=5e-6, rtol=0)
    assert (p[~keep.expand_as(p)] == 0).all()


def test_each_head_has_its_own_alpha_and_its_gradient(machine):
    z, upstream = scores(5, 6, 9, 40), scores(5, 6, 9, 40, seed=2, spread=1.0)
    found = []
    for dtype, mode in ((torch.float32, "compiled"), (torch.float64, "eager")):
        alpha = torch.tensor([1.05, 1.2, 1.5, 1.500001, 1.8, 2.0], dtype=dtype).view(6, 1, 1).requires_grad_()
        x = z.to(dtype, copy=True).requires_grad_()
        with use_kernel(mode):
            p = F.entmax(x, alpha=alpha)
            (p * upstream).sum().backward()
        found.append([t.double() for t in (p.detach(), x.grad, alpha.grad)])
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours, exact, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("keys", [8, 128, 512])
@pytest.mark.parametrize("alpha", [1.05, 1.2, 1.5, 1.8, 2.0, 2.5, 4.0])
def test_hardly_any_row_is_left_to_float64(machine, alpha, keys):
    z = scores(8, 4, 64, keys)
    exact_rows = native._library().attnlab_exact_rows
    exact_rows.restype = ctypes.c_int64
    before = exact_rows()
    F.entmax(z, alpha=torch.full((4, 1, 1), alpha))
    # above 2 the root's slope grows without bound at the threshold, and rounding shows
    most = 0.01 if alpha <= 2 else 0.2
    assert exact_rows() - before <= most * z[..., 0].numel()


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_the_gradient_of_a_fixed_alpha_equals_pytorch(machine, alpha):
    grads = []
    for mode in ("compiled", "eager"):
        x = scores(3, 2, 5, 37).requires_grad_()
        with use_kernel(mode):
            (F.entmax(x, alpha=alpha) * scores(3, 2, 5, 37, seed=3)).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads, atol=2e-5, rtol=1e-4)


def test_sparsegen_scales_each_row_and_its_gradient(machine):
    results = []
    for mode in ("compiled", "eager"):
        x, lam = scores(2, 3, 5, 50).requires_grad_(), torch.tensor([-3.0, 0.0, 0.5]).view(3, 1, 1).requires_grad_()
        with use_kernel(mode):
            p = F.sparsegen(x, lam=lam)
            p.pow(2).sum().backward()
        results.append((p.detach(), x.grad, lam.grad))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_bfloat16_keeps_float32s_support(machine, alpha):
    z = scores(4, 3, 8, 45).bfloat16()
    p, exact = F.entmax(z, alpha=alpha), in_float64(F.entmax, z, alpha=alpha)
    assert p.dtype == torch.bfloat16
    torch.testing.assert_close(p.double(), exact, atol=1e-6, rtol=2**-8)
    assert (p > 0).equal(F.entmax(z.float(), alpha=alpha) > 0)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_a_row_without_a_key_is_zero_and_one_that_is_not_a_number_stays_so(machine, alpha):
    z = scores(4, 20)
    z[1], z[2, 3], z[3, 4] = -torch.inf, torch.nan, torch.inf
    p = F.entmax(z, alpha=alpha)
    assert p[0].sum() == pytest.approx(1)
    assert (p[1] == 0).all()
    assert p[2:].isnan().all()


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.8, 2.0, 3.5])
@pytest.mark.parametrize("spread", [1e-4, 1e4])
def test_flat_and_huge_scores_come_out_as_in_float64(machine, alpha, spread):
    z = scores(40, 500, spread=spread)
    torch.testing.assert_close(
        F.entmax(z, alpha=alpha).double(), in_float64(F.entmax, z, alpha=alpha), atol=4e-6, rtol=0
    )


def test_masks_and_scores_of_any_strides(machine):
    z, keep = scores(6, 2, 3, 20).transpose(0, 2), (scores(20, 3, seed=1) > -1).T[:, None, None]
    torch.testing.assert_close(
        F.entmax(z, keep, alpha=1.4).double(), in_float64(F.entmax, z, keep, alpha=1.4), atol=2e-6, rtol=0
    )
    whole_rows = scores(3, 1, 1, 1, seed=4) > 0
    assert (F.sparsemax(z, keep=whole_rows).sum(-1) > 0).equal(whole_rows.squeeze(-1).expand(3, 2, 6))


@pytest.mark.parametrize("tv", [0.0, 0.1, 2.0, 1e30])
@pytest.mark.parametrize("keys", [1, 2, 50, 300])
def test_runs_and_their_means_equal_pytorch(machine, tv, keys):
    keep = scores(5, 1, 1, keys, seed=1) > -1
    results = []
    for mode in ("compiled", "eager"):
        x = scores(5, 3, 4, keys).requires_grad_()
        with use_kernel(mode):
            y = prox_tv1d(x, keep, tv=tv)
            torch.where(keep, y, 0.0).pow(2).sum().backward()
            _, label = fuse_runs(x.detach(), keep, tv)
        results.append((y.detach(), x.grad, label))
    torch.testing.assert_close(*results, atol=2e-5, rtol=1e-5)


def test_threads_do_not_change_a_digit():
    z, results = scores(512, 300, spread=1.0) * scores(512, 1, seed=1).exp(), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append([F.entmax(z, alpha=alpha) for alpha in (1.3, 1.5, 2.0)])
    finally:
        torch.set_num_threads(before)
    for one in results[1:]:
        for first, second in zip(results[0], one, strict=True):
            assert first.equal(second)


def test_a_tool_chain_that_fails_leaves_pytorch(monkeypatch):
    z = scores(4, 20)
    with use_kernel("eager"):
        expected = F.sparsemax(z), F.entmax(z, alpha=1.3)

    def broken(*_):
        raise OSError("no such compiler")

    monkeypatch.setattr(native, "build", broken)
    native._library.cache_clear()
    try:
        with use_kernel("compiled"), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = F.sparsemax(z), F.entmax(z, alpha=1.3)
        texts = [str(one.message) for one in caught if "attention runs" in str(one.message)]
        assert len(texts) == 1
        assert ("do not build here (OSError)" in texts[0]) or not kernel.has_compiler()
    finally:
        native._library.cache_clear()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_a_row_does_not_depend_on_its_neighbours(machine):
    z = scores(64, 90, spread=1.0) * scores(64, 1, seed=1).exp()
    together = F.entmax(z, alpha=1.3)
    assert all(F.entmax(row, alpha=1.3).equal(p) for row, p in zip(z, together, strict=True))


@pytest.mark.parametrize("alpha", [0.01, 0.3, 0.8])
def test_alpha_below_one_on_far_apart_scores_has_no_false_root(machine, alpha):
    z = scores(300, 8, spread=1.0) * scores(300, 1, seed=1).exp() * 20
    torch.testing.assert_close(
        F.entmax(z, alpha=alpha).double(), in_float64(F.entmax, z, alpha=alpha), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("alpha", [0.7, 1.05, 1.3, 3.0])
def test_a_long_flat_row_still_sums_to_one(machine, alpha):
    assert float(F.entmax(torch.zeros(2, 8193), alpha=alpha).double().sum(-1).sub(1).abs().max()) < 1e-5


def test_a_dial_that_is_not_a_number_shows_in_the_probabilities(machine):
    z = scores(2, 3, 10)
    assert F.entmax(z, alpha=torch.full((1, 1, 1), torch.nan)).isnan().all()
    assert F.sparsegen(z, lam=torch.full((1, 1, 1), torch.nan)).isnan().all()


def test_a_mask_that_is_not_bool_is_refused(machine):
    with pytest.raises(ValueError, match="keep must be a bool tensor"):
        F.sparsemax(scores(2, 3, 4), keep=torch.tensor([1, 0, 1, 1]))


@pytest.mark.parametrize("shape", [(2, 2, 3, 4), (5,)])
def test_a_mask_that_does_not_fit_the_scores_is_refused_with_both_shapes(machine, shape):
    with pytest.raises(ValueError, match=r"keep of shape \(.*\) does not broadcast to scores of shape \(2, 3, 4\)"):
        F.sparsemax(scores(2, 3, 4), keep=torch.ones(shape, dtype=torch.bool))


def test_the_cache_can_be_shared_by_machines_of_different_kinds(monkeypatch):
    seen = set()
    monkeypatch.setattr("torch._inductor.codecache.CppCodeCache.load", lambda source, **_: seen.add(source))
    for processor in ("one", "another"):
        monkeypatch.setattr(native, "_processor", lambda processor=processor: processor)
        native.build()
    assert len(seen) == 2


def test_importing_needs_no_compiler_and_no_cache_folder():
    code = "import attnlab.transforms, sys; assert 'torch._dynamo' not in sys.modules"
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": "/dev/null/nowhere"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
