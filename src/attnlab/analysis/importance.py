"""Which positions a mask lets through: the gates of a model's mask, and their means over kinds of pairs.

    importance(part) = mean of g[i, j] over the pairs (i, j) of the part, heads and layers

After the importance study of SparseBERT, Shi et al. 2021, arXiv:2102.12871, where the diagonal is the least important.
Query i, key j, length L; [CLS] stands first and [SEP] last, as in a text that fills the model's input.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..attention.masking import EncoderMask

# "cls" and "sep" are pairs with that key. A pair may be of two parts: (0, 0) is of "diagonal" and of "cls".
PARTS = ("diagonal", "neighbours", "cls", "sep", "rest")


@torch.no_grad()
def mask_gates(held: EncoderMask) -> Tensor:
    """The mask's gates in eval mode: (layers or 1, heads or 1, L, L) float32 on the CPU, 0 or 1 unless they are soft.

    L is the length that the mask is for. A pattern's hub [CLS] stands at position 0. Special tokens that are kept
    whatever the mask says (`held.hubs == "special"`) are not among the gates, for their positions differ by text.
    """
    mask = held.mask
    gates = held.learned.settled() if held.learned is not None else mask.sample()
    position = torch.arange(mask.length, device=None if gates is None else gates.device)
    at = mask.at(gates, position[:, None], position[None, :]).float().cpu()
    if held.hubs == "cls":  # a pattern's, whose gates are newly made
        at[..., 0, :] = 1
        at[..., :, 0] = 1
    return at


def parts_of(length: int) -> dict[str, Tensor]:
    """Which pairs are of each part: (L, L) bool; "rest" is what is of no other."""
    distance = (torch.arange(length)[:, None] - torch.arange(length)).abs()
    key = torch.arange(length).expand(length, length)
    parts = {"diagonal": distance == 0, "neighbours": distance == 1, "cls": key == 0, "sep": key == length - 1}
    return parts | {"rest": ~torch.stack(list(parts.values())).any(dim=0)}


def importance(gates: Tensor, *, special_kept: bool = False) -> dict[str, float]:
    """The mean gate of each part, over heads and layers.

    gates (layers or 1, heads or 1, L, L) in [0, 1]. special_kept: pairs with [CLS] or [SEP] are kept whatever the gates
    say, so "cls" and "sep" are 1, and the other parts count pairs of two other tokens only. A part without pairs, in
    a text of very few tokens, is left out.
    """
    length = gates.shape[-1]
    mean_LL = gates.mean(dim=(0, 1), dtype=torch.float64)
    inner = torch.zeros(length, length, dtype=torch.bool)
    inner[1:-1, 1:-1] = True
    found = {}
    for name, pairs in parts_of(length).items():
        if special_kept and name in ("cls", "sep"):
            found[name] = 1.0
            continue
        chosen = mean_LL[pairs & inner if special_kept else pairs]
        if chosen.numel():
            found[name] = float(chosen.mean())
    return found


def importance_by_layer(gates: Tensor, *, special_kept: bool = False) -> dict[str, Mapping[str, float]]:
    """ "all", and where the mask has several layers "0", "1", ...: the mean gate of each part there."""
    rows = {"all": importance(gates, special_kept=special_kept)}
    if gates.shape[0] > 1:
        for layer, own in enumerate(gates):
            rows[str(layer)] = importance(own[None], special_kept=special_kept)
    return dict(rows)
