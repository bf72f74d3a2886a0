"""Scores to probabilities: `transform(scores, keep=None) -> probs`, scores (B, H, Q, K).

Each transform is a small module named in `TRANSFORMS`; to add one, write it in a file of its own, name it here, and
give it a YAML in `conf/attn/`. Nothing here knows of encoders or training.
"""

import inspect
from typing import Any

from torch import nn

from ..errors import UserError, closest
from .entmax import Entmax, Entmax15
from .softmax import Softmax
from .sparsemax import Sparsegen, Sparsemax

TRANSFORMS: dict[str, type[nn.Module]] = {
    "softmax": Softmax,
    "sparsemax": Sparsemax,
    "entmax15": Entmax15,
    "entmax": Entmax,
    "sparsegen": Sparsegen,
}


def build_transform(name: str, *, num_heads: int, **dials: Any) -> nn.Module:
    """The transform called `name` with its dials (alpha, lam, ...), for attention with `num_heads` heads.

    Raises UserError for an unknown name, a dial the transform does not have, or a value out of range.
    """
    if name not in TRANSFORMS:
        raise UserError(f"unknown attn {name!r}{closest(name, TRANSFORMS)}")
    kind = TRANSFORMS[name]
    known = set(inspect.signature(kind).parameters) - {"num_heads"}
    for dial in dials:
        if dial not in known:
            has = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise UserError(f"attn={name} has no dial {dial!r}: {has}")
    try:
        return kind(num_heads=num_heads, **dials)
    except TypeError as error:
        given = ", ".join(f"attn.{dial}={value}" for dial, value in dials.items())
        raise UserError(f"attn={name}: {given}: a value is of the wrong kind (a number is wanted)") from error
    except ValueError as error:
        raise UserError(f"attn={name}: {error}") from error
