"""`functional` in place of the entmax package: the same where that is right, and right where it fails."""

import inspect
import types

import entmax as package
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attnlab.transforms import functional as F

NAMES = [
    name
    for name, value in vars(package).items()
    if not name.startswith("_") and not isinstance(value, types.ModuleType)
]
TRANSFORMS = [
    ("sparsemax", {}),
    ("sparsemax_bisect", {}),
    ("entmax15", {}),
    ("entmax_bisect", {"alpha": 1.3}),
    ("entmax_bisect", {"alpha": 2}),
    ("normmax_bisect", {"alpha": 2}),
    ("normmax_bisect", {"alpha": 3.5}),
    ("budget_bisect", {"budget": 1.5}),
    ("budget_bisect", {"budget": 3}),
]
LAYERS = {
    "sparsemax": "Sparsemax",
    "sparsemax_bisect": "SparsemaxBisect",
    "entmax15": "Entmax15",
    "entmax_bisect": "EntmaxBisect",
    "normmax_bisect": "NormmaxBisect",
    "budget_bisect": "BudgetBisect",
}
LOSSES = [
    ("sparsemax_loss", {}),
    ("sparsemax_bisect_loss", {}),
    ("entmax15_loss", {}),
    ("entmax_bisect_loss", {"alpha": 1.3}),
    ("entmax_bisect_loss", {"alpha": 2}),
    ("normmax_bisect_loss", {"alpha": 2}),
    ("normmax_bisect_loss", {"alpha": 3.5}),
]
LOSS_LAYERS = {
    "sparsemax_loss": "SparsemaxLoss",
    "sparsemax_bisect_loss": "SparsemaxBisectLoss",
    "entmax15_loss": "Entmax15Loss",
    "entmax_bisect_loss": "EntmaxBisectLoss",
    "normmax_bisect_loss": "NormmaxBisectLoss",
}
NONE_LEFT = float("-inf")


def ids(cases):
    return ["-".join([name, *map(str, dials.values())]) for name, dials in cases]


every_transform = pytest.mark.parametrize(("name", "dials"), TRANSFORMS, ids=ids(TRANSFORMS))
every_loss = pytest.mark.parametrize(("name", "dials"), LOSSES, ids=ids(LOSSES))


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)) * 1.5


def classes(rows: int, count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(count, (rows,), generator=torch.Generator().manual_seed(seed))


def value_and_gradients(function, *inputs: torch.Tensor):
    """The result, and the gradient of a fixed random combination of it in each input."""
    inputs = tuple(x.clone().requires_grad_() for x in inputs)
    out = function(*inputs)
    return out.detach(), torch.autograd.grad(out, inputs, normal(*out.shape, seed=9, dtype=out.dtype))


# In place of the package


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_of_the_package_is_here_with_its_arguments(name):
    theirs = inspect.signature(getattr(package, name)).parameters.values()
    ours = list(inspect.signature(getattr(F, name)).parameters.values())[: len(theirs)]
    assert [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in theirs]


@every_transform
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_transform_has_the_values_and_gradients_of_the_package(name, dials, dim):
    x = normal(4, 5, 6)
    ours = value_and_gradients(lambda z: getattr(F, name)(z, dim=dim, **dials), x)
    theirs = value_and_gradients(lambda z: getattr(package, name)(z, dim=dim, **dials), x)
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", ["entmax_bisect", "normmax_bisect", "budget_bisect"])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("shape", ["one number", "one a slice", "shared by slices"])
def test_a_dial_may_be_a_tensor_that_expands_to_the_slices(name, dim, shape):
    x = normal(4, 5, 6)
    full = [1 if d == dim % 3 else size for d, size in enumerate(x.shape)]
    dial = {
        "one number": torch.tensor(1.6, dtype=torch.float64),
        "one a slice": 1.2 + 0.3 * normal(*full, seed=1).abs(),
        "shared by slices": 1.2
        + 0.3 * normal(*(size if d == 1 and dim != 1 else 1 for d, size in enumerate(full))).abs(),
    }[shape]
    dial = dial.clamp_max(1.95)
    learned = name == "entmax_bisect"  # the package has a gradient in the dial here only
    inputs = (x, dial) if learned else (x,)
    ours = value_and_gradients(lambda z, a=dial: getattr(F, name)(z, a, dim), *inputs)
    theirs = value_and_gradients(lambda z, a=dial: getattr(package, name)(z, a, dim), *inputs)
    torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=0)


@every_transform
def test_a_layer_is_its_function(name, dials):
    x = normal(4, 5, 6)
    layer = getattr(F, LAYERS[name])(dim=1, **dials)
    assert torch.equal(layer(x), getattr(F, name)(x, dim=1, **dials))
    assert not layer.state_dict()


@every_loss
def test_a_loss_has_the_values_and_gradients_of_the_package(name, dials):
    x, y = normal(30, 7), classes(30, 7)
    ours = value_and_gradients(lambda z: getattr(F, name)(z, y, **dials), x)
    theirs = value_and_gradients(lambda z: getattr(package, name)(z, y, **dials), x)
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


@every_loss
@pytest.mark.parametrize("reduction", ["elementwise_mean", "sum", "none"])
@pytest.mark.parametrize("ignore_index", [-100, 3])
def test_a_loss_layer_reduces_and_ignores_as_the_package_does(name, dials, reduction, ignore_index):
    x, y = normal(30, 7), classes(30, 7)
    layers = [
        getattr(m, LOSS_LAYERS[name])(ignore_index=ignore_index, reduction=reduction, **dials) for m in (F, package)
    ]
    ours, theirs = (value_and_gradients(lambda z, layer=layer: layer(z, y), x) for layer in layers)
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_the_support_size_is_counted_along_dim(name):
    x, y = normal(4, 5, 6), classes(4, 5)
    p, size = getattr(F, name)(x, 1, return_support_size=True)
    assert torch.equal(size, (p > 0).sum(1, keepdim=True))
    assert torch.equal(getattr(F, LAYERS[name])(1, None, True)(x)[1], size)
    loss, size = getattr(F, f"{name}_loss")(x[..., 0], y, return_support_size=True)
    assert torch.equal(size, (getattr(F, name)(x[..., 0]) > 0).sum(1, keepdim=True))
    mean, same = getattr(F, LOSS_LAYERS[f"{name}_loss"])(return_support_size=True)(x[..., 0], y)
    assert torch.equal(same, size)
    torch.testing.assert_close(mean, loss.mean())


# Where the package fails


@every_transform
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_slice_of_nothing_but_minus_infinity_is_zero_with_zero_gradient(name, dials, dim):
    x = normal(4, 5, 6).movedim(dim, -1)
    x[2, 1] = NONE_LEFT
    p, (grad,) = value_and_gradients(lambda z: getattr(F, name)(z, dim=dim, **dials), x.movedim(-1, dim))
    p, grad = p.movedim(dim, -1), grad.movedim(dim, -1)
    assert (p[2, 1] == 0).all()
    assert (grad[2, 1] == 0).all()
    assert grad.isfinite().all()
    torch.testing.assert_close(p[0].sum(-1), torch.full_like(p[0, :, 0], dials.get("budget", 1)))


@every_transform
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("how", ["minus infinity", "keep"])
def test_masked_scores_count_for_nothing(name, dials, dim, how):
    function = getattr(F, name)
    x = normal(6, 6)
    kept = torch.arange(6) < 4
    kept = kept[:, None] if dim == 0 else kept
    if how == "keep":
        p, (grad,) = value_and_gradients(lambda z: function(z, dim=dim, keep=kept, **dials), x)
    else:
        p, (grad,) = value_and_gradients(lambda z: function(z, dim=dim, **dials), torch.where(kept, x, NONE_LEFT))
    head = (slice(4), slice(None)) if dim == 0 else (slice(None), slice(4))
    torch.testing.assert_close(p[head], function(x[head].contiguous(), dim=dim, **dials), atol=1e-9, rtol=0)
    assert ((p == 0) & (grad == 0) | kept).all()


@every_transform
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_the_support_of_float32(name, dials, dtype):
    x = normal(32, 100, dtype=torch.float32).to(dtype)
    low, high = (getattr(F, name)(z, **dials) for z in (x, x.float()))
    assert low.dtype == dtype
    assert torch.equal(low > 0, high > 0)
    torch.testing.assert_close(low.float(), high, atol=4e-3, rtol=0)


@pytest.mark.parametrize(
    "alpha", [1, 1.0, torch.ones((), dtype=torch.float64), torch.ones(30, 1)], ids=["int", "float", "tensor", "rows"]
)
def test_alpha_1_is_softmax_and_its_loss_cross_entropy_in_nats(alpha):
    x, y = normal(30, 7), classes(30, 7)
    torch.testing.assert_close(F.entmax_bisect(x, alpha), torch.softmax(x, -1), atol=1e-9, rtol=0)
    ours = value_and_gradients(lambda z: F.entmax_bisect_loss(z, y, alpha), x)
    theirs = value_and_gradients(lambda z: nn.functional.cross_entropy(z, y, reduction="none"), x)
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


def test_the_loss_goes_to_cross_entropy_smoothly_in_float32():
    x, y = normal(30, 7, dtype=torch.float32), classes(30, 7)
    cross_entropy = nn.functional.cross_entropy(x, y, reduction="none")
    for excess in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7):
        gap = (F.entmax_bisect_loss(x, y, 1 + excess) - cross_entropy).abs().max()
        assert gap < 5 * excess + 4e-6


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("k", [1, 2, 100])
def test_k_changes_nothing_along_any_dim(name, dim, k):
    x = normal(4, 5, 6) * 0.1
    assert torch.equal(getattr(F, name)(x, dim, k), getattr(F, name)(x, dim))


def test_n_iter_changes_nothing_and_may_be_none():
    x, y = normal(4, 6), classes(4, 6)
    assert torch.equal(F.SparsemaxBisect()(x), F.sparsemax(x))
    assert torch.equal(F.entmax_bisect(x, 1.3, -1, 2, False), F.entmax_bisect(x, 1.3))
    assert torch.equal(F.normmax_bisect(x, 2, -1, 2), F.normmax_bisect(x))
    assert torch.equal(F.budget_bisect(x, 2, -1, 2), F.budget_bisect(x))
    assert torch.equal(F.entmax_bisect_loss(x, y, 1.3, 2), F.entmax_bisect_loss(x, y, 1.3))


@every_transform
@pytest.mark.parametrize("dim", [0, -1])
def test_a_transform_can_be_differentiated_twice(name, dials, dim):
    def function(z):
        return getattr(F, name)(z, dim=dim, **dials)

    x = normal(5, 5).requires_grad_()
    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)


def test_alpha_can_be_differentiated_along_any_dim():
    x, alpha = normal(4, 5, 3).requires_grad_(), (1.2 + 0.5 * torch.rand(4, 1, 3, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda z, a: F.entmax_bisect(z, a, dim=1), (x, alpha))


@every_loss
def test_a_loss_can_be_differentiated_twice_with_masked_classes_and_empty_rows(name, dials):
    x, y = normal(6, 5), torch.tensor([0, 1, 2, 0, 1, 2])
    keep = torch.ones(6, 5, dtype=torch.bool)
    keep[:3, 3:] = False
    keep[5] = False

    def function(z):
        return getattr(F, name)(z, y, keep=keep, **dials)

    x.requires_grad_()
    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)


@every_loss
def test_classes_at_minus_infinity_cost_nothing_and_empty_rows_are_zero(name, dials):
    x, y = normal(6, 5), torch.tensor([0, 1, 2, 0, 1, 2])
    x[:3, 3:] = NONE_LEFT
    x[5] = NONE_LEFT
    loss, (grad,) = value_and_gradients(lambda z: getattr(F, name)(z, y, **dials), x)
    torch.testing.assert_close(loss[:3], getattr(F, name)(x[:3, :3], y[:3], **dials), atol=1e-9, rtol=0)
    assert loss.isfinite().all()
    assert loss[5] == 0
    assert (grad[5] == 0).all()
    assert (grad[:3, 3:] == 0).all()
    assert grad.isfinite().all()


@every_loss
def test_a_target_at_minus_infinity_costs_infinity_with_a_finite_gradient(name, dials):
    x, y = torch.tensor([[1.0, NONE_LEFT, 0.0]], requires_grad=True), torch.tensor([1])
    loss = getattr(F, name)(x, y, **dials)
    loss.backward()
    assert loss == float("inf")
    assert x.grad[0, 1] == -1
    torch.testing.assert_close(x.grad.sum(), torch.tensor(0.0), atol=1e-6, rtol=0)


@every_loss
def test_half_precision_losses_are_those_of_float32_rounded(name, dials):
    y = classes(64, 50)
    for dtype in (torch.bfloat16, torch.float16):
        x = normal(64, 50, dtype=torch.float32).to(dtype)
        low, (grad,) = value_and_gradients(lambda z: getattr(F, name)(z, y, **dials), x)
        high, (wanted,) = value_and_gradients(lambda z: getattr(F, name)(z, y, **dials), x.float())
        assert low.dtype == grad.dtype == dtype
        assert torch.equal(low, high.to(dtype))
        torch.testing.assert_close(grad.float(), wanted, atol=2e-2, rtol=2e-2)


def test_a_mean_whose_sum_is_beyond_float16_is_right():
    x, y = (normal(8000, 4, dtype=torch.float32) * 20).half(), classes(8000, 4)
    layer = F.SparsemaxLoss()
    assert F.SparsemaxLoss(reduction="sum")(x.float(), y) > torch.finfo(torch.float16).max
    torch.testing.assert_close(layer(x, y).float(), layer(x.float(), y), atol=0, rtol=1e-3)


@every_loss
def test_a_loss_does_not_notice_a_shift_of_its_scores(name, dials):
    x, y = normal(30, 7, dtype=torch.float32).round(decimals=1), classes(30, 7)
    shifted = x + 4096  # exact for the difference of two such numbers to about 5e-4
    torch.testing.assert_close(
        getattr(F, name)(shifted, y, **dials), getattr(F, name)(shifted - 4096, y, **dials), atol=1e-5, rtol=0
    )


@every_loss
@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 30), scale=st.sampled_from([0.01, 1.0, 30.0]), seed=st.integers(0, 10_000))
def test_a_loss_is_never_negative_and_zero_once_the_target_leads_by_the_margin(name, dials, count, scale, seed):
    x, y = normal(8, count, seed=seed, dtype=torch.float32) * scale, classes(8, count, seed=seed)
    loss = getattr(F, name)(x, y, **dials)
    assert (loss >= -1e-5 * max(1, scale)).all()
    margin = {"sparsemax_loss": 1, "sparsemax_bisect_loss": 1, "entmax15_loss": 2, "normmax_bisect_loss": 1}
    x[torch.arange(8), y] = x.amax(-1) + margin.get(name, 1 / (dials.get("alpha", 2) - 1)) * 1.001
    assert (getattr(F, name)(x, y, **dials) == 0).all()


@pytest.mark.parametrize("name", ["entmax_bisect_loss", "normmax_bisect_loss"])
def test_each_row_of_a_loss_may_have_its_own_alpha(name):
    x, y, alpha = normal(5, 7), classes(5, 7), torch.linspace(1.1, 2.5, 5, dtype=torch.float64)[:, None]
    each = [getattr(F, name)(x[i : i + 1], y[i : i + 1], alpha[i].item()) for i in range(5)]
    torch.testing.assert_close(getattr(F, name)(x, y, alpha), torch.cat(each), atol=1e-9, rtol=0)


def test_the_loss_says_that_it_does_not_train_alpha():
    x, y, alpha = normal(5, 7), classes(5, 7), torch.tensor(1.5, requires_grad=True)
    with pytest.warns(UserWarning, match="alpha"):
        assert not F.entmax_bisect_loss(x, y, alpha).requires_grad


def test_ignored_rows_may_hold_any_index_and_a_mean_of_none_is_zero():
    x, y = normal(6, 5), torch.tensor([0, -100, 2, 0, -100, 2])
    loss, (grad,) = value_and_gradients(lambda z: F.Entmax15Loss()(z, y), x)
    counted = y != -100
    torch.testing.assert_close(loss, F.entmax15_loss(x[counted], y[counted]).mean())
    assert (grad[~counted] == 0).all()
    loss, (grad,) = value_and_gradients(lambda z: F.Entmax15Loss()(z, torch.full_like(y, -100)), x)
    assert loss == 0
    assert (grad == 0).all()


def test_a_layer_trains_an_alpha_that_is_a_parameter():
    layer = F.EntmaxBisect(nn.Parameter(torch.tensor(1.5)))
    layer(normal(4, 6, dtype=torch.float32)).pow(2).sum().backward()
    assert [name for name, _ in layer.named_parameters()] == ["alpha"]
    assert layer.alpha.grad.abs() > 1e-3


@every_loss
def test_the_whole_compiler_takes_a_loss_without_a_break(name, dials):
    x, y = normal(5, 7), classes(5, 7)

    def function(z):
        return getattr(F, name)(z, y, **dials)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(value_and_gradients(compiled, x), value_and_gradients(function, x), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda x, y: F.sparsemax(x, x > 0), TypeError, "keep="),
        (lambda x, y: F.entmax_bisect(x, torch.full((6,), 1.5)), ValueError, r"alpha.*\(4, 1\).*\(6,\)"),
        (lambda x, y: F.budget_bisect(x, torch.full((6,), 1.5)), ValueError, r"budget.*\(4, 1\)"),
        (lambda x, y: F.entmax_bisect_loss(x, y, torch.full((6,), 1.5)), ValueError, r"alpha.*\(4, 1\)"),
        (lambda x, y: F.sparsemax_loss(x, y[:3]), ValueError, r"\(4,\), not \(3,\)"),
        (lambda x, y: F.SparsemaxLoss(reduction="mean"), ValueError, "elementwise_mean"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_is_allowed(call, error, said):
    with pytest.raises(error, match=said):
        call(normal(4, 6), classes(4, 6))
