"""What the attention of a model did while its cores recorded: density, support size, entropy."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from .attach import cores
from .core import SparseAttention


def start_recording(model: nn.Module) -> None:
    """Measure every layer's attention afresh from here on."""
    for core in cores(model):
        core.reset_statistics()
        core.record = True


def stop_recording(model: nn.Module) -> None:
    """Measure no further; what was measured stays until the next start."""
    for core in cores(model):
        core.record = False


@contextmanager
def recording(model: nn.Module) -> Iterator[None]:
    """Measure every layer's attention afresh within the `with` block."""
    start_recording(model)
    try:
        yield
    finally:
        stop_recording(model)


def recorded(core: SparseAttention) -> tuple[float, float, float, float]:
    """What one layer recorded, over all processes: rows, allowed pairs, kept pairs and entropy (means over heads)."""
    sums = torch.cat([core.rows[None], core.allowed[None], core.kept, core.entropy])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums)
    kept, entropy = sums[2 : 2 + core.num_heads].mean(), sums[2 + core.num_heads :].mean()
    return float(sums[0]), float(sums[1]), float(kept), float(entropy)


def attention_statistics(model: nn.Module) -> dict[str, float]:
    """Means over heads and layers of what was recorded, and each layer's density.

    density: share of allowed query-key pairs with p > 0. support: keys with p > 0 a query. entropy: nats a query.
    Sums over all processes when torch.distributed is in use. Padding counts neither as query nor as key.
    """
    result: dict[str, float] = {}
    density, support, entropy = [], [], []
    for core in cores(model):
        rows, allowed, kept, spread = recorded(core)
        if rows == 0:
            return {}
        density.append(kept / allowed)
        support.append(kept / rows)
        entropy.append(spread / rows)
        result[f"density/layer_{core.layer:02d}"] = density[-1]
    count = len(density)
    means = {
        "density": sum(density) / count,
        "support": sum(support) / count,
        "entropy": sum(entropy) / count,
    }
    return means | result
