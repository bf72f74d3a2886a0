"""AdamW with linear warm-up and linear decay, as fine-tuning BERT is done."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from .speed import encoder_layers


def build_optimizer(model: PreTrainedModel, optim: Mapping[str, Any]) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101); no weight decay on biases, norms and single numbers.

    What lies d layers below the head learns at lr * layer_decay^d (Howard & Ruder 2018, arXiv:1801.06146): the head
    and the pooler at lr, the last layer at lr * layer_decay, the embeddings slowest. Learned dials (alpha, lam) are
    single numbers that have a way to go and learn at dial_lr.
    """
    lr, layer_decay, weight_decay = (float(optim[key]) for key in ("lr", "layer_decay", "weight_decay"))
    layers = encoder_layers(model)
    depths = {id(p): len(layers) - place for place, layer in enumerate(layers) for p in layer.parameters()}
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        depth = depths.get(id(parameter), len(layers) + 1 if "embed" in name else 0)
        rate = float(optim["dial_lr"]) if ".raw_" in name else lr * layer_decay**depth
        if parameter.requires_grad:
            groups.setdefault((rate, parameter.dim() >= 2), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": chosen, "lr": rate, "weight_decay": weight_decay if matrix else 0.0}
            for (rate, matrix), chosen in groups.items()
        ],
        lr=lr,
        fused=True,
    )


def linear_schedule(optimizer: torch.optim.Optimizer, *, total_steps: int, warmup_ratio: float) -> LambdaLR:
    """Factor on the learning rate: up from 0 to 1 over the warm-up share of the steps, then down to 0 at the end."""
    warmup = int(total_steps * warmup_ratio)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return max(0.0, (total_steps - step) / max(1, total_steps - warmup))

    return LambdaLR(optimizer, factor)
