"""The differentiable attention mask: one logit a position, learned with the weights.

    gate = 1[alpha + noise > 0],  gradient of sigmoid((alpha + noise) / temperature),  noise = log u - log(1 - u)

Shi et al. 2021, SparseBERT, arXiv:2102.12871 (the difference of two Gumbel variables is logistic). The straight-through
gradient is Bengio et al. 2013, arXiv:1308.3432. In eval mode nothing is drawn: a pair is kept where alpha > 0, which is
where its probability of being kept is above 0.5.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError, closest

FORMS = ("structured", "signed", "unstructured")
SPREAD = 0.5  # of the first logits, so that those the task says nothing of do not all cross zero at once


class DifferentiableMask(nn.Module):
    """Gates in [0, 1] for every query-key pair of every head.

    form     structured: one logit an offset |i - j|; signed: one an offset i - j; unstructured: one a pair (i, j).
    logits   (layers or 1, heads, offsets) or (layers or 1, heads, length, length); 1: shared by all layers.
    length   tokens the logits are for. A structured mask goes on beyond it with its farthest offset; an unstructured
             one refuses what it never saw.
    hard     gates are 0 or 1; else they are sigmoid(alpha), without noise, in eval mode too.
    temperature, draw  of the relaxation, and the number that fixes the noise of the next training forward: the same
             number draws the same gates, in every process.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        num_layers: int = 1,
        length: int = 128,
        form: str = "structured",
        init_density: float = 0.9,
        hard: bool = True,
    ) -> None:
        super().__init__()
        check_options(form=form, init_density=init_density, length=length)
        shape = {"structured": (length,), "signed": (2 * length - 1,), "unstructured": (length, length)}[form]
        centre = math.log(init_density / (1 - init_density))
        self.logits = nn.Parameter(centre + SPREAD * torch.randn(num_layers, num_heads, *shape))
        self.form = form
        self.length = length
        self.hard = hard
        self.temperature = 1.0
        self.draw = 0

    def sample(self) -> Tensor:
        """Gates in the shape of the logits: bool in eval mode when hard, else float32 with a gradient."""
        if not (self.hard and self.training):
            return self.settled()
        logits = self.logits.float()
        generator = torch.Generator().manual_seed(self.draw)
        u = torch.rand(logits.shape, generator=generator).clamp(1e-6, 1 - 1e-6).to(logits.device)
        soft = torch.sigmoid((logits + u.logit()) / self.temperature)
        return (soft.detach() > 0.5).float() + (soft - soft.detach())

    def settled(self) -> Tensor:
        """Gates in the shape of the logits, with nothing drawn: bool when hard, else float32."""
        logits = self.logits.float()
        return logits > 0 if self.hard else torch.sigmoid(logits)

    def at(self, gates: Any, query: Tensor, key: Tensor) -> Tensor:
        """The gates (layers or 1, heads, ...) of the pairs of these positions (int64, broadcast together).

        Raises UserError for a position that an unstructured mask has no logit for.
        """
        if self.form == "unstructured":
            longest = 1 + int(max(query.max(), key.max()))
            if longest > self.length:
                raise UserError(
                    f"the unstructured mask was learned for texts of {self.length} tokens, this one has {longest}: "
                    f"type data.max_length={self.length}, or learn one with mask.form=structured"
                )
            place: Any = (..., query, key)
        elif self.form == "structured":
            place = (..., (query - key).abs().clamp(max=self.length - 1))
        else:
            place = (..., (query - key).clamp(1 - self.length, self.length - 1) + self.length - 1)
        chosen: Tensor = gates[place]
        return chosen

    def square(self, gates: Tensor, length: int) -> Tensor:
        """The gates of a text of that length: (layers or 1, heads, length, length)."""
        position = torch.arange(length, device=gates.device)
        return self.at(gates, position[:, None], position[None, :])

    @torch.no_grad()
    def density(self) -> float:
        """Share of the pairs of a text of `length` tokens that the mask keeps in eval mode, all heads and layers."""
        return float(self.square(self.settled().float(), self.length).mean())

    @torch.no_grad()
    def shift_to(self, density: float) -> None:
        """Shift all logits alike so that the density in eval mode is as near to the wanted one as it can be."""
        values, counts = self.square(self.logits.float(), self.length).unique(return_counts=True)
        if len(values) < 2:
            return
        kept = 1 - counts.cumsum(0)[:-1] / counts.sum()  # by a threshold between each value and the next
        place = int((kept - density).abs().argmin())
        self.logits.sub_((values[place] + values[place + 1]) / 2)

    def extra_repr(self) -> str:
        return f"{self.form}, length={self.length}, hard={self.hard}"


def check_options(*, form: Any, init_density: Any, length: Any) -> None:
    """Raise UserError for a value that no differentiable mask can have."""
    if form not in FORMS:
        raise UserError(f"unknown mask.form {form!r}{closest(str(form), FORMS)}")
    if isinstance(init_density, bool) or not isinstance(init_density, int | float) or not 0 < init_density < 1:
        raise UserError(f"mask.init_density={init_density} must be in (0, 1): the share of pairs kept at the start")
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise UserError(f"mask.length={length} must be a whole number from 1 on")
