"""AdamW with linear warm-up and linear decay, as fine-tuning BERT is done."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel


def build_optimizer(model: PreTrainedModel, optim: Mapping[str, Any]) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101); no weight decay on biases, norms and single numbers.

    The head, which starts from random weights, learns at `head_lr`; null there means `lr` for all.
    """
    encoder = {id(p) for p in model.base_model.parameters()}
    rates = {True: float(optim["lr"]), False: float(optim.get("head_lr") or optim["lr"])}
    groups = []
    for inside, rate in rates.items():
        for matrix, decay in ((True, float(optim["weight_decay"])), (False, 0.0)):
            chosen = [
                p
                for p in model.parameters()
                if p.requires_grad and (id(p) in encoder) is inside and (p.dim() >= 2) is matrix
            ]
            if chosen:
                groups.append({"params": chosen, "weight_decay": decay, "lr": rate})
    return torch.optim.AdamW(groups, lr=rates[True], fused=True)


def linear_schedule(optimizer: torch.optim.Optimizer, *, total_steps: int, warmup_ratio: float) -> LambdaLR:
    """Factor on the learning rate: up from 0 to 1 over the warm-up share of the steps, then down to 0 at the end."""
    warmup = int(total_steps * warmup_ratio)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return max(0.0, (total_steps - step) / max(1, total_steps - warmup))

    return LambdaLR(optimizer, factor)
