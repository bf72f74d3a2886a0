"""Logits for some tokens only: a vocabulary of 30,000 for every token is most of a small model's work and memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


@contextmanager
def only_at(model: PreTrainedModel, masked_BL: Tensor) -> Iterator[None]:
    """Within the block, a masked language model's logits are (M, V): at the M true places of masked (B, L), row by row.

    The encoder's output is cut down before the head reads it, which treats each token on its own. So it fits every
    family whose head reads `base_model`'s last hidden state.
    """

    def cut(_: nn.Module, __: Any, output: Any) -> Any:
        output["last_hidden_state"] = output["last_hidden_state"][masked_BL]
        return output

    hook = model.base_model.register_forward_hook(cut)
    try:
        yield
    finally:
        hook.remove()
