"""Dropout from a counter-based generator: one integer hash an element instead of one draw from a serial stream.

PyTorch's CPU generator draws a training step's dropout masks one after another, a fifth of the step; inside compiled
code it is slower still. Here element i of a call is kept when hash(i, seed) falls under the keep rate, with two fresh
seed words a call from PyTorch's own generator, so that `torch.manual_seed` decides as before. The hash is computed in
registers, forward and again backward, and no mask is stored. Mixer: C. Wellons' lowbias32.
"""

import torch
from torch import Tensor, nn


def _mix(h: Tensor) -> Tensor:
    """A bijection of int32 in which each input bit moves each output bit about half of the time."""
    h = h ^ ((h >> 16) & 0xFFFF)
    h = h * 0x7FEB352D
    h = h ^ ((h >> 15) & 0x1FFFF)
    h = h * (0x846CA68B - (1 << 32))
    return h ^ ((h >> 16) & 0xFFFF)


def draw_seed(device: torch.device) -> Tensor:
    """Two int32 words from PyTorch's generator of that device."""
    return torch.randint(-(1 << 31), (1 << 31) - 1, (2,), dtype=torch.int32, device=device)


def keep_mask(shape: torch.Size, rate: float, seed: Tensor) -> Tensor:
    """Boolean tensor of that shape, True with probability 1 - rate, decided by the two seed words."""
    count = 1
    for size in shape:
        count *= size
    index = torch.arange(count, dtype=torch.int32, device=seed.device).view(shape)
    h = _mix(_mix(index ^ seed[0]) + seed[1])
    threshold = min(int((1 - rate) * 2.0**32) - (1 << 31), (1 << 31) - 1)
    return h < threshold


def dropout(x: Tensor, rate: float, *, training: bool = True) -> Tensor:
    """Inverted dropout: each element is 0 with probability `rate`, else x / (1 - rate). Same shape and dtype."""
    if not training or rate == 0.0:
        return x
    if rate >= 1.0:
        return x * 0.0
    keep = keep_mask(x.shape, rate, draw_seed(x.device))
    return torch.where(keep, x * (1.0 / (1.0 - rate)), 0.0)


class CounterDropout(nn.Module):
    """`dropout` as a module: takes the place of nn.Dropout in compiled layers."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, training=self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def use_counter_dropout(module: nn.Module) -> int:
    """Replace every nn.Dropout below `module`; returns how many there were."""
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                setattr(parent, name, CounterDropout(child.p))
                count += 1
    return count
