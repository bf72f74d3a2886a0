"""AdamW with linear warm-up and linear decay, as fine-tuning BERT is done."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from ..attention.masking import SUBMODULE as MASK
from .speed import encoder_layers

# Of a mask's logits: the weight of their penalty changes, and an average over 1,000 steps would not follow.
MASK_BETAS = (0.9, 0.9)


def build_optimizer(
    model: PreTrainedModel, optim: Mapping[str, Any], mask_lr: float | None = None
) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101); no weight decay on biases, norms and single numbers.

    What lies d layers below the head learns at lr * layer_decay^d (Howard & Ruder 2018, arXiv:1801.06146): the head
    and the pooler at lr, the last layer at lr * layer_decay, the embeddings slowest. Learned dials (alpha, lam) are
    single numbers that have a way to go and learn at dial_lr; the logits of a mask at mask_lr, which stays.
    """
    lr, layer_decay, weight_decay = (float(optim[key]) for key in ("lr", "layer_decay", "weight_decay"))
    layers = encoder_layers(model)
    depths = {id(p): len(layers) - place for place, layer in enumerate(layers) for p in layer.parameters()}
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    of_mask: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        depth = depths.get(id(parameter), len(layers) + 1 if "embed" in name else 0)
        rate = float(optim["dial_lr"]) if ".raw_" in name else lr * layer_decay**depth
        if f".{MASK}." in name:
            of_mask.append(parameter)
        elif parameter.requires_grad:
            groups.setdefault((rate, parameter.dim() >= 2), []).append(parameter)
    chosen: list[dict[str, Any]] = [
        {"params": parameters, "lr": rate, "weight_decay": weight_decay if matrix else 0.0}
        for (rate, matrix), parameters in groups.items()
    ]
    if of_mask:
        assert mask_lr is not None
        chosen.append({"params": of_mask, "lr": mask_lr, "weight_decay": 0.0, "betas": MASK_BETAS, "steady": True})
    return torch.optim.AdamW(chosen, lr=lr, fused=True)


def linear_schedule(optimizer: torch.optim.Optimizer, *, total_steps: int, warmup_ratio: float) -> LambdaLR:
    """Factor on the learning rate: up from 0 to 1 over the warm-up share of the steps, then down to 0 at the end.

    Groups marked `steady` keep theirs.
    """
    warmup = int(total_steps * warmup_ratio)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return max(0.0, (total_steps - step) / max(1, total_steps - warmup))

    return LambdaLR(optimizer, [(lambda _: 1.0) if g.get("steady") else factor for g in optimizer.param_groups])
