"""Dials: the one number that makes a transform sparser or denser, whether fixed, learned or steered in training.

A transform class names its dial in the class attribute `dial`; the module holds the value under the dial's key, as a
number, or, once `free_dial` was called, as a buffer that can change without a recompilation. A dial with the key
`temperature` divides the scores before the transform and is held by the attention layer.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

# How finely alpha, lam, ... are learned.
LEARNED = {"head": "one value a head", "layer": "one a layer", "model": "one for all layers"}


@dataclass(frozen=True, kw_only=True)
class Dial:
    """How a dial is turned: `value` maps a coordinate to the dial's value, `coordinate` back.

    Attention becomes sparser as the coordinate rises from `dense` to `sparse`, about evenly in log density;
    `near_softmax` is where it resembles softmax most.
    """

    key: str
    value: Callable[[float], float]
    coordinate: Callable[[float], float]
    dense: float
    sparse: float
    near_softmax: float


@runtime_checkable
class Dialled(Protocol):
    """A transform with a dial."""

    dial: ClassVar[Dial]


def dial_of(transform: nn.Module | type[nn.Module]) -> Dial | None:
    """What makes a transform, or one of that class, sparser."""
    return transform.dial if isinstance(transform, Dialled) else None


TEMPERATURE = Dial(
    key="temperature",
    value=lambda t: math.exp(-t),
    coordinate=lambda temperature: -math.log(temperature),
    dense=-math.log(64.0),
    sparse=-math.log(1e-3),
    near_softmax=-math.log(3.0),
)


def free_dial(holder: nn.Module, key: str) -> None:
    """Turn the number that `holder` keeps under `key` into a buffer of the same value."""
    value = getattr(holder, key)
    if isinstance(value, Tensor):
        return
    delattr(holder, key)
    holder.register_buffer(key, torch.tensor(float(value)))


def learned_values(learn: bool | str, key: str, start: float, num_heads: int) -> nn.Parameter | None:
    """The parameter behind a learned dial, one raw value a head or a single one; None when nothing is learned.

    Raises ValueError for a `learn` that is none of false, true (= head), head, layer, model.
    """
    if learn is False or learn is None:
        return None
    granularity = "head" if learn is True else learn
    if granularity not in LEARNED:
        allowed = ", ".join(f"{name} ({what})" for name, what in LEARNED.items())
        raise ValueError(f"attn.learn_{key} must be false, true or one of {allowed}, not {learn!r}")
    return nn.Parameter(torch.full((num_heads if granularity == "head" else 1,), start))
