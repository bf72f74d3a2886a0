"""Scores to probabilities: `transform(scores, keep=None) -> probs`, scores (B, H, Q, K).

Each transform is a small module named in `TRANSFORMS`; to add one, write it in a file of its own, name it here, and
give it a YAML in `conf/attn/`. Nothing here knows of encoders or training. A transform class may say more of itself:

    dial    what makes it sparser (`dial.py`); without one it cannot be steered to a density
    breaks  laws it does not keep, of: sum (rows sum to one), shift, permutation, order, sparse (exact zeros)
    finish  a method applied to the context (B, Q, H, D) that its probabilities gathered
"""

import inspect
from typing import Any

from torch import nn

from ..errors import UserError, closest
from .budget import Budget, Constrained
from .entmax import Entmax, Entmax15
from .fusedmax import Fusedmax
from .normmax import Normmax
from .relu import ReLA, ReLU
from .sigmoid import Sigmoid
from .softmax import Softmax
from .sparsegen import Sparsegen, SparsegenExp, Sparsehourglass
from .sparsemax import Sparsemax
from .truncated import TopK, TopP

TRANSFORMS: dict[str, type[nn.Module]] = {
    "softmax": Softmax,
    "sparsemax": Sparsemax,
    "entmax15": Entmax15,
    "entmax": Entmax,
    "sparsegen": Sparsegen,
    "sparsegen_exp": SparsegenExp,
    "sparsehourglass": Sparsehourglass,
    "topk": TopK,
    "topp": TopP,
    "rela": ReLA,
    "relu": ReLU,
    "sigmoid": Sigmoid,
    "fusedmax": Fusedmax,
    "constrained": Constrained,
    "normmax": Normmax,
    "budget": Budget,
}


def build_transform(name: str, *, num_heads: int, head_dim: int = 1, **dials: Any) -> nn.Module:
    """The transform called `name` with its dials (alpha, lam, ...), for `num_heads` heads of width `head_dim`.

    Raises UserError for an unknown name, a dial the transform does not have, or a value out of range.
    """
    if name not in TRANSFORMS:
        raise UserError(f"unknown attn {name!r}{closest(name, TRANSFORMS)}")
    kind = TRANSFORMS[name]
    shape = {"num_heads": num_heads, "head_dim": head_dim}
    accepted = set(inspect.signature(kind).parameters)
    known = accepted - set(shape)
    for dial in dials:
        if dial not in known:
            has = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise UserError(f"attn={name} has no dial {dial!r}: {has}")
    try:
        return kind(**{key: size for key, size in shape.items() if key in accepted}, **dials)
    except TypeError as error:
        given = ", ".join(f"attn.{dial}={value}" for dial, value in dials.items())
        raise UserError(f"attn={name}: {given}: a value is of the wrong kind (a number is wanted)") from error
    except ValueError as error:
        raise UserError(f"attn={name}: {error}") from error
