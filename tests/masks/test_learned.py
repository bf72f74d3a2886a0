"""The differentiable mask: what it draws, what it keeps, how far it reaches."""

import pytest
import torch

from attnlab.errors import UserError
from attnlab.masks.learned import FORMS, DifferentiableMask


def dam(**options) -> DifferentiableMask:
    torch.manual_seed(0)
    return DifferentiableMask(**{"num_heads": 3, "length": 16, **options})


@pytest.mark.parametrize("form", FORMS)
def test_gates_in_training_are_zeros_and_ones_with_the_gradient_of_the_sigmoid(form):
    mask = dam(form=form, init_density=0.5).train()
    mask.draw, mask.temperature = 5, 0.7
    gates = mask.sample()
    assert set(gates.unique().tolist()) == {0.0, 1.0}
    gates.sum().backward()
    u = torch.rand(mask.logits.shape, generator=torch.Generator().manual_seed(5)).clamp(1e-6, 1 - 1e-6)
    s = torch.sigmoid((mask.logits.detach() + u.log() - (1 - u).log()) / 0.7)
    torch.testing.assert_close(mask.logits.grad, s * (1 - s) / 0.7, atol=1e-5, rtol=1e-4)


def test_gates_are_kept_with_the_probability_of_their_logit():
    mask = dam(length=4).train()
    with torch.no_grad():
        mask.logits.copy_(torch.tensor([-2.0, 0.0, 1.0, 3.0]))
    drawn = torch.zeros(4)
    for mask.draw in range(2000):
        drawn += mask.sample().detach().mean(dim=(0, 1))
    torch.testing.assert_close(drawn / 2000, mask.logits[0, 0].sigmoid().detach(), atol=0.02, rtol=0)


def test_the_same_draw_gives_the_same_gates_and_eval_mode_draws_nothing():
    mask = dam(init_density=0.5).train()
    mask.draw = 1
    first = mask.sample()
    assert (mask.sample() == first).all()
    mask.draw = 2
    assert (mask.sample() != first).any()
    mask.eval()
    assert mask.sample().dtype == torch.bool
    assert (mask.sample() == (mask.logits > 0)).all()
    state = torch.get_rng_state()
    mask.train().sample()
    assert (torch.get_rng_state() == state).all()


@pytest.mark.parametrize("form", FORMS)
def test_each_pair_gets_the_logit_of_its_form(form):
    mask = dam(form=form).eval()
    gates = mask.logits.detach()
    square = mask.square(gates, 10)
    assert square.shape == (1, 3, 10, 10)
    for i, j in ((0, 0), (2, 7), (7, 2)):
        one = {"structured": (abs(i - j),), "signed": (i - j + 15,), "unstructured": (i, j)}[form]
        assert (square[0, :, i, j] == gates[(0, slice(None), *one)]).all()


@pytest.mark.parametrize("form", ["structured", "signed"])
def test_a_structured_mask_goes_on_with_its_farthest_offset(form):
    mask = dam(form=form)
    square = mask.square(mask.logits.detach(), 40)
    assert (square[..., 0, 39] == square[..., 0, 15]).all()
    assert (square[..., 39, 0] == square[..., 15, 0]).all()


def test_an_unstructured_mask_refuses_a_longer_text():
    mask = dam(form="unstructured")
    with pytest.raises(UserError, match="texts of 16 tokens, this one has 17"):
        mask.square(mask.sample(), 17)


def test_continuous_gates_are_the_probabilities_in_training_too():
    mask = dam(hard=False)
    for mode in (True, False):
        torch.testing.assert_close(mask.train(mode).sample(), mask.logits.sigmoid())


@pytest.mark.parametrize("wanted", [0.1, 0.5, 0.9])
def test_a_shift_brings_the_density_as_near_as_it_can_be(wanted):
    mask = dam(num_heads=1)
    order = mask.logits.detach().argsort()
    mask.shift_to(wanted)
    position = torch.arange(16)
    pairs = (position[:, None] - position).abs().flatten().bincount()
    ranked = mask.logits[0, 0].detach().sort(descending=True).indices
    nearest = min(abs(int(pairs[ranked[:n]].sum()) / 256 - wanted) for n in range(1, 16))
    assert abs(mask.density() - wanted) == pytest.approx(nearest)
    assert (mask.logits.detach().argsort() == order).all()


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_it_starts_near_the_asked_density(share):
    mask = DifferentiableMask(num_heads=12, length=128, form="unstructured", init_density=share).train()
    assert float(mask.sample().detach().mean()) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"form": "structred"}, "did you mean 'structured'"),
        ({"init_density": 1.0}, "mask.init_density=1.0 must be in"),
        ({"length": 0}, "mask.length=0 must be"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        dam(**options)
