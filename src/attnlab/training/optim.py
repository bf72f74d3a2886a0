"""AdamW with linear warm-up and linear decay, as fine-tuning BERT is done."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR


def build_optimizer(model: nn.Module, optim: Mapping[str, Any]) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101); no weight decay on biases, norms and single numbers."""
    decayed = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    plain = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    groups = [
        {"params": decayed, "weight_decay": float(optim["weight_decay"])},
        {"params": plain, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=float(optim["lr"]), fused=True)


def linear_schedule(optimizer: torch.optim.Optimizer, *, total_steps: int, warmup_ratio: float) -> LambdaLR:
    """Factor on the learning rate: up from 0 to 1 over the warm-up share of the steps, then down to 0 at the end."""
    warmup = int(total_steps * warmup_ratio)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return max(0.0, (total_steps - step) / max(1, total_steps - warmup))

    return LambdaLR(optimizer, factor)
