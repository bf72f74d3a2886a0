"""The counter-based dropout drops as often as told, independently, and as the seed says."""

import pytest
import torch
from torch import nn

from attnlab.attention.dropout import CounterDropout, dropout, keep_mask, use_counter_dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_it_keeps_the_share_told_and_scales_what_it_keeps(rate):
    torch.manual_seed(0)
    x = dropout(torch.ones(2000, 500), rate)
    kept = (x > 0).double().mean()
    deviation = (rate * (1 - rate) / x.numel()) ** 0.5
    assert abs(float(kept) - (1 - rate)) < 5 * deviation
    torch.testing.assert_close(x.max(), torch.tensor(1 / (1 - rate)))


def test_neighbours_rows_and_calls_are_uncorrelated():
    torch.manual_seed(1)
    first, second = (
        keep_mask(torch.Size([1000, 512]), 0.5, seed)
        for seed in torch.randint(-(2**31), 2**31 - 1, (2, 2), dtype=torch.int32)
    )
    a, b = first.double() - 0.5, second.double() - 0.5
    bound = 5 * 0.25 / a.numel() ** 0.5
    pairs = {
        "next element": (a[:, 1:], a[:, :-1]),
        "next row": (a[1:], a[:-1]),
        "a power of two away": (a[:, 256:], a[:, :-256]),
        "another call": (a, b),
    }
    for what, (x, y) in pairs.items():
        assert abs(float((x * y).mean())) < bound, what


def test_single_bit_seeds_give_unrelated_masks():
    masks = [
        keep_mask(torch.Size([1 << 16]), 0.5, torch.tensor([1 << i, 0], dtype=torch.int32)).double() - 0.5
        for i in range(16)
    ]
    for i in range(16):
        for j in range(i):
            assert abs(float((masks[i] * masks[j]).mean())) < 5 * 0.25 / 256


def test_the_seed_decides_and_compiled_code_draws_the_same_mask():
    seed = torch.tensor([123, -456], dtype=torch.int32)
    shape = torch.Size([64, 96])
    plain = keep_mask(shape, 0.1, seed)
    assert torch.equal(torch.compile(keep_mask, dynamic=True)(shape, 0.1, seed), plain)
    assert not torch.equal(keep_mask(shape, 0.1, seed + 1), plain)
    torch.manual_seed(3)
    one = dropout(torch.ones(50), 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(torch.ones(50), 0.5), one)


def test_the_backward_pass_uses_the_mask_of_the_forward_pass():
    for run in (dropout, torch.compile(dropout)):
        x = torch.ones(400, requires_grad=True)
        y = run(x, 0.5)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())


def test_evaluation_and_rate_zero_leave_the_input_alone():
    x = torch.randn(10)
    assert CounterDropout(0.5).eval()(x) is x
    assert dropout(x, 0.0) is x
    assert (dropout(x, 1.0) == 0).all()


def test_every_dropout_of_a_module_is_replaced_with_its_rate():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3), nn.Sequential(nn.Dropout(0.2)))
    assert use_counter_dropout(module) == 2
    assert [m.p for m in module.modules() if isinstance(m, CounterDropout)] == [0.3, 0.2]
