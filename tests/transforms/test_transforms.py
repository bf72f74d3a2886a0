"""Every transform against independent oracles, and the laws that all of them keep."""

import itertools

import entmax as entmax_package
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.errors import UserError
from attnlab.report.bench.oracles import by_bisection, by_sorting
from attnlab.transforms import TRANSFORMS, build_transform
from attnlab.transforms import functional as F
from attnlab.transforms.kernel import use_kernel

DIALS = {
    "sparsegen": [{"lam": -3.0}, {"lam": 0.5}, {"lam": -1.0, "learn_lam": True}],
    "entmax": [{"alpha": 1.2}, {"alpha": 2.0}, {"alpha": 3.0}, {"alpha": 1.4, "learn_alpha": "head"}],
    "topk": [{"k": 3}, {"k": 0.4}],
    "topp": [{"p": 0.7}],
    "relu": [{}, {"threshold": 0.3}],
    "budget": [{"budget": 1.5}],
    "constrained": [{"upper": 0.4}],
    "normmax": [{"alpha": 1.5}, {"alpha": 3.0}],
}
CASES = [(name, dials) for name in TRANSFORMS for dials in DIALS.get(name, [{}])]
every_transform = pytest.mark.parametrize(
    ("name", "dials"), CASES, ids=[f"{n}-{'-'.join(map(str, d.values()))}" for n, d in CASES]
)


def make(name, dials, heads=3):
    return build_transform(name, num_heads=heads, **dials)


def broken(name):
    return getattr(TRANSFORMS[name], "breaks", frozenset())


def rough_scores(kind: str, rows: int = 40, keys: int = 300) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    normal = torch.randn(rows, keys, generator=generator)
    return {
        "normal": normal,
        "peaked": normal * 20,
        "flat": normal * 1e-4,
        "huge": normal * 1e4,
        "cauchy": normal / torch.randn(rows, keys, generator=generator),
        "exponential": normal.exp(),
        "linear": torch.linspace(0, -3, keys).expand(rows, keys),
        "geometric": (-0.03 * torch.arange(keys)).exp().expand(rows, keys),
        "ties": normal.round(),
        "constant": torch.full((rows, keys), 3.25),
        "one key": normal[:, :1],
        "two keys": normal[:, :2],
        "long": torch.randn(4, 8192, generator=generator),
    }[kind]


SHAPES = [
    "normal", "peaked", "flat", "huge", "cauchy", "exponential", "linear",
    "geometric", "ties", "constant", "one key", "two keys", "long",
]  # fmt: skip


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("kernel", ["eager", "compiled"])
def test_sparsemax_equals_float64_sorting(kind, kernel):
    scores = rough_scores(kind)
    with use_kernel(kernel):
        torch.testing.assert_close(F.sparsemax(scores).double(), by_sorting(scores), atol=4e-7, rtol=0)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("alpha", [1.05, 1.25, 1.5, 1.75, 2.0])
def test_entmax_equals_float64_bisection(kind, alpha):
    scores = rough_scores(kind)
    expected = by_bisection(scores, alpha)
    torch.testing.assert_close(F.entmax(scores, alpha=alpha).double(), expected, atol=4e-6, rtol=0)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
def test_compiled_and_plain_entmax_agree(alpha):
    scores = rough_scores("normal")
    grads = []
    for kernel in ("eager", "compiled"):
        with use_kernel(kernel):
            z = scores.clone().requires_grad_()
            p = F.entmax(z, alpha=alpha)
            p.pow(2).sum().backward()
            grads.append((p.detach(), z.grad))
    torch.testing.assert_close(grads[0], grads[1], atol=1e-6, rtol=1e-4)


def test_entmax15_and_sparsemax_equal_the_entmax_package_forward_and_backward():
    upstream = rough_scores("normal")
    for ours, theirs in (
        (F.sparsemax, entmax_package.sparsemax),
        (F.entmax15, entmax_package.entmax15),
    ):
        mine, other = (rough_scores("normal").requires_grad_() for _ in range(2))
        p, q = ours(mine), theirs(other, dim=-1)
        p.backward(upstream)
        q.backward(upstream)
        torch.testing.assert_close(p, q, atol=1e-6, rtol=0)
        torch.testing.assert_close(mine.grad, other.grad, atol=2e-5, rtol=0)


def test_rows_that_newton_leaves_open_are_solved_exactly():
    # Each key lies just under the threshold that the ones before it set, so that steps drop one key at a time.
    keys, z = 40, [0.0]
    while len(z) < keys:
        tau = (sum(z) - 1) / len(z)
        z.append(tau - 1e-4 * 2.0 ** -len(z))
    slow = torch.tensor(z).expand(3, keys)
    torch.testing.assert_close(F.sparsemax(slow).double(), by_sorting(slow), atol=4e-7, rtol=0)
    torch.testing.assert_close(F.sparsegen(slow, lam=0.9).double(), by_sorting(slow * 10), atol=2e-6, rtol=0)


def test_an_open_row_does_not_change_the_others():
    from attnlab.transforms.rows import exact_rows

    scores = torch.stack([torch.zeros(8), torch.linspace(0, -1, 8)])
    found = torch.full((2, 8), 0.123)
    two = torch.full((1, 1), 2.0)
    exact_rows(found, scores, None, torch.tensor([[False], [True]]), "entmax", two / 2, two, two)
    assert (found[0] == 0.123).all()
    torch.testing.assert_close(found[1].double(), by_sorting(scores[1]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("alpha", [2.5, 3.0, 4.0])
@pytest.mark.parametrize("kind", ["normal", "peaked", "cauchy", "exponential", "geometric", "ties", "two keys", "long"])
def test_above_two_where_the_sum_bends_the_other_way_entmax_is_exact_too(kind, alpha):
    scores = rough_scores(kind)
    expected = by_bisection(scores, alpha)
    torch.testing.assert_close(F.entmax(scores, alpha=alpha).double(), expected, atol=4e-6, rtol=0)


def test_sparsegen_is_sparsemax_at_a_temperature():
    scores = rough_scores("normal")
    for lam in (-8.0, -3.0, 0.0, 0.5, 0.9):
        expected = by_sorting(scores.double() / (1 - lam))
        torch.testing.assert_close(F.sparsegen(scores, lam=lam).double(), expected, atol=1e-6, rtol=0)


def test_entmax_goes_to_softmax_smoothly_as_alpha_goes_to_one():
    scores = rough_scores("normal").double()
    soft = torch.softmax(scores, -1)
    gaps = [(F.entmax(scores, alpha=1 + e) - soft).abs().max() for e in (1e-1, 1e-2, 1e-3, 2e-4)]
    for gap, smaller in itertools.pairwise(gaps):
        assert smaller < gap / 4
    assert gaps[-1] < 3e-4
    torch.testing.assert_close(F.entmax(scores, alpha=1.0), soft)


@pytest.mark.parametrize("excess", [0.5, 1e-1, 1e-2, 1e-3, 2e-4])
def test_the_float32_gradient_in_alpha_equals_float64_finite_differences(excess):
    scores, upstream = (
        rough_scores("normal", rows=6, keys=20),
        rough_scores("peaked", rows=6, keys=20),
    )
    alpha = torch.full((1, 1), 1 + excess, requires_grad=True)
    (F.entmax(scores, alpha=alpha) * upstream).sum().backward()
    step = excess * 1e-3

    def at(a: float) -> torch.Tensor:
        tensor = torch.full((1, 1), a, dtype=torch.float64)
        return (F.entmax(scores.double(), alpha=tensor) * upstream.double()).sum()

    expected = (at(1 + excess + step) - at(1 + excess - step)) / (2 * step)
    torch.testing.assert_close(alpha.grad.double().sum(), expected, rtol=2e-3, atol=1e-3)


@every_transform
def test_gradients_pass_gradcheck_in_float64(name, dials):
    torch.manual_seed(0)
    transform = make(name, dials).double()
    keep = torch.rand(2, 1, 4, 6) > 0.3
    keep[0, 0, 0] = False
    scores = torch.randn(2, 3, 4, 6, dtype=torch.float64, requires_grad=True)
    inputs = (scores, *transform.parameters())
    assert torch.autograd.gradcheck(lambda z, *_: transform(z, keep), inputs)
    assert torch.autograd.gradgradcheck(lambda z: transform(z, keep), (scores,))


@every_transform
def test_masked_keys_get_exactly_zero_and_the_rest_equals_the_truncated_row(name, dials):
    transform = make(name, dials)
    scores = torch.randn(2, 3, 5, 9, generator=torch.Generator().manual_seed(1))
    keep = torch.arange(9) < 6
    p = transform(scores, keep)
    assert (p[..., 6:] == 0).all()
    torch.testing.assert_close(p[..., :6], transform(scores[..., :6].contiguous()), atol=1e-6, rtol=1e-5)


@every_transform
def test_a_row_without_a_key_is_zero_with_zero_gradient(name, dials):
    transform = make(name, dials)
    keep = torch.ones(2, 1, 4, 6, dtype=torch.bool)
    keep[1, :, 2] = False
    scores = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(1), requires_grad=True)
    p = transform(scores, keep)
    (p * torch.randn(p.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    assert (p[1, :, 2] == 0).all()
    assert (scores.grad[1, :, 2] == 0).all()
    assert scores.grad.isfinite().all()
    if "sum" not in broken(name):
        torch.testing.assert_close(p[0].sum(-1), torch.ones(3, 4))


@every_transform
def test_scores_of_minus_infinity_are_masked_keys(name, dials):
    transform = make(name, dials)
    scores = torch.randn(2, 3, 5, 9, generator=torch.Generator().manual_seed(1))
    keep = torch.arange(9) < 6
    keep = keep.expand(2, 1, 5, 9).clone()
    keep[1, 0, 3] = False
    minus = scores.masked_fill(~keep, float("-inf")).requires_grad_()
    p = transform(minus)
    torch.testing.assert_close(p, transform(scores, keep), atol=1e-6, rtol=1e-5)
    p.pow(2).sum().backward()
    assert minus.grad[keep.expand_as(minus)].isfinite().all()


@every_transform
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_the_support_of_float32(name, dials, dtype):
    transform = make(name, dials)
    scores = (torch.randn(2, 3, 16, 64, generator=torch.Generator().manual_seed(1)) * 2).to(dtype)
    low, high = transform(scores), transform(scores.float())
    assert low.dtype == dtype
    assert torch.equal(low > 0, high > 0)
    torch.testing.assert_close(low.float(), high, atol=4e-3, rtol=0)


@every_transform
@settings(max_examples=25, deadline=None)
@given(
    keys=st.integers(1, 40),
    scale=st.sampled_from([0.01, 1.0, 10.0]),
    shift=st.integers(-50, 50),
    seed=st.integers(0, 10_000),
)
def test_a_row_sums_to_one_and_follows_shift_and_permutation(name, dials, keys, scale, shift, seed):
    transform = make(name, dials)
    generator = torch.Generator().manual_seed(seed)
    # multiples of 2 ** -12: a shift by a whole number rounds nothing
    scores = (torch.randn(1, 3, 4, keys, generator=generator) * scale * 4096).round() / 4096
    order = torch.randperm(keys, generator=generator)
    with torch.no_grad():
        p = transform(scores)
        assert (p >= 0).all()
        laws = {"sum", "shift", "permutation", "order"} - broken(name)
        if "sum" in laws:
            torch.testing.assert_close(p.sum(-1), torch.ones(1, 3, 4), atol=4e-6, rtol=0)
        if "shift" in laws:
            torch.testing.assert_close(transform(scores + shift), p, atol=1e-6, rtol=0)
        if "permutation" in laws:
            torch.testing.assert_close(transform(scores[..., order]), p[..., order], atol=2e-6, rtol=0)
        if "order" in laws:
            ranked = p.gather(-1, scores.argsort(-1, descending=True))
            assert (ranked.diff(dim=-1) <= 1e-6).all()


@every_transform
def test_the_compiler_and_export_take_it_without_a_break(name, dials):
    transform = make(name, dials)
    scores = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    keep = torch.arange(8) < 6
    compiled = torch.compile(transform, fullgraph=True, dynamic=True, backend="aot_eager")
    torch.testing.assert_close(compiled(scores, keep), transform(scores, keep), atol=1e-6, rtol=1e-5)
    exported = torch.export.export(transform, (scores, keep.expand(2, 1, 8, 8))).module()
    torch.testing.assert_close(exported(scores, keep.expand(2, 1, 8, 8)), transform(scores, keep), atol=1e-6, rtol=1e-5)


def test_learned_alpha_starts_where_told_and_is_one_per_head():
    transform = build_transform("entmax", num_heads=5, alpha=1.3, learn_alpha=True)
    torch.testing.assert_close(transform.learned()["alpha"], torch.full((5,), 1.3))
    assert [p.shape for p in transform.parameters()] == [(5,)]


@pytest.mark.parametrize("name", ["entmax", "sparsegen"])
def test_a_learned_dial_at_its_start_equals_the_fixed_one(name):
    dial, start = {"entmax": ("alpha", 1.3), "sparsegen": ("lam", -2.0)}[name]
    scores = rough_scores("normal")[:3, :20].expand(2, 3, 3, 20)
    fixed = build_transform(name, num_heads=3, **{dial: start})
    for granularity in (True, "head", "layer", "model"):
        learned = build_transform(name, num_heads=3, **{dial: start, f"learn_{dial}": granularity})
        torch.testing.assert_close(learned(scores), fixed(scores), atol=1e-6, rtol=1e-5)


def test_the_gradient_in_lam_equals_finite_differences():
    scores, upstream = rough_scores("normal", rows=6, keys=20).double(), rough_scores("peaked", rows=6, keys=20)
    lam = torch.tensor([[-1.5]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda at: (F.sparsegen(scores, lam=at) * upstream).sum(), (lam,))


def test_topk_keeps_ties_and_shares_of_the_kept_keys():
    tied = torch.tensor([3.0, 1.0, 1.0, 1.0, 0.0])
    assert (F.topk(tied, k=2) > 0).tolist() == [True, True, True, True, False]
    row = torch.arange(20.0)
    assert int((F.topk(row, k=0.25) > 0).sum()) == 5
    assert int((F.topk(row, row < 8, k=0.25) > 0).sum()) == 2
    assert int((F.topk(row, k=0.001) > 0).sum()) == 1
    torch.testing.assert_close(F.topk(row, k=50), row.softmax(-1))


def test_a_tensor_of_k_holds_numbers_and_shares():
    row = torch.arange(20.0).expand(3, 20)
    kept = (F.topk(row, k=torch.tensor([[2.0], [0.25], [1.0]])) > 0).sum(-1)
    assert kept.tolist() == [2, 5, 1]


def test_a_key_just_below_its_cap_keeps_its_gradient_in_half_precision():
    scores = torch.tensor([1.0, 0.002, -3.0], dtype=torch.bfloat16, requires_grad=True)
    F.budget(scores, budget=1.0)[0].backward()
    torch.testing.assert_close(scores.grad.float(), torch.tensor([0.5, -0.5, 0.0]))


def test_normmax_is_exact_where_a_key_hangs_on_the_last_digit():
    scores = torch.tensor([0.0, -0.9999999, -0.99999994])
    exact = F.normmax(scores.double(), alpha=10.0)
    torch.testing.assert_close(F.normmax(scores, alpha=10.0).double(), exact, atol=1e-6, rtol=0)


def test_topp_takes_the_fewest_keys_that_hold_the_mass():
    scores = rough_scores("normal")
    ranked = scores.softmax(-1).sort(-1, descending=True).values
    fewest = ((ranked.cumsum(-1) - ranked) < 0.8).sum(-1)
    assert torch.equal((F.topp(scores, p=0.8) > 0).sum(-1), fewest)
    torch.testing.assert_close(F.topp(scores, p=1.0), scores.softmax(-1))


def test_constrained_sparsemax_caps_every_key_and_short_rows_become_uniform():
    p = F.constrained_sparsemax(rough_scores("peaked"), upper=0.2)
    assert float(p.max()) == pytest.approx(0.2)
    torch.testing.assert_close(p.sum(-1), torch.ones(len(p)))
    short = F.constrained_sparsemax(torch.tensor([5.0, 0.0, -5.0]), upper=0.2)
    torch.testing.assert_close(short, torch.full((3,), 1 / 3))
    with torch.no_grad():
        torch.testing.assert_close(
            F.constrained_sparsemax(rough_scores("normal"), upper=1.0), F.sparsemax(rough_scores("normal"))
        )


def test_rela_normalises_what_it_gathered_over_all_heads():
    transform = build_transform("rela", num_heads=2, head_dim=3)
    torch.nn.init.normal_(transform.gate)
    context = torch.randn(2, 4, 2, 3)
    x = context.reshape(2, 4, 6)
    expected = torch.sigmoid(transform.gate * x) * torch.nn.functional.rms_norm(x, (6,), eps=1e-6)
    torch.testing.assert_close(transform.finish(context).reshape(2, 4, 6), expected)


@pytest.mark.parametrize(
    ("name", "dials", "said"),
    [
        ("sparsegen", {"lam": 1.0}, "below 1"),
        ("entmax", {"alpha": 1.0}, "attn=softmax"),
        ("entmax", {"alpha": 4.5}, r"\(1, 4\]"),
        ("entmax", {"alpha": 2.0, "learn_alpha": True}, "where learning starts"),
        ("entmax", {"learn_alpha": "heads"}, "one value a head"),
        ("sparsegen", {"lam": float("-inf")}, "attn.lam"),
        ("relu", {"threshold": float("nan")}, "attn.threshold"),
        ("rela", {"threshold": "a"}, "attn.threshold=a"),
        ("topk", {"k": 0}, "whole number from 1 on"),
        ("topk", {"k": 2.5}, "whole number from 1 on"),
        ("topp", {"p": 0.0}, r"\(0, 1\]"),
        ("topp", {"p": 1.1}, r"\(0, 1\]"),
        ("fusedmax", {"tv": -1.0}, "attn.tv"),
        ("constrained", {"upper": 0.0}, "attn.upper"),
        ("budget", {"budget": 0.0}, "attn.budget"),
        ("normmax", {"alpha": 1.0}, "attn.alpha"),
        ("sparsehourglass", {"q": 0.0}, "attn.q"),
        ("sparsemax", {"alpha": 1.5}, "no dial 'alpha'"),
        ("entmax", {"lam": 1.5}, "no dial 'lam'"),
        ("sparsmax", {}, "did you mean 'sparsemax'"),
    ],
)
def test_a_wrong_dial_is_refused_with_what_is_allowed(name, dials, said):
    with pytest.raises(UserError, match=said):
        build_transform(name, num_heads=2, **dials)
