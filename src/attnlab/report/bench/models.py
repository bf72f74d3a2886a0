"""The sides compared: stock transformers models, the entmax package plugged into one, and ours.

All start from the same weights, keep their own dropout and train under the same autocast.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)
from transformers import logging as hf_logging
from transformers.masking_utils import sdpa_mask

from attnlab.attention import AttentionSpec, attach
from attnlab.errors import UserError
from attnlab.report.bench.options import BenchOptions
from attnlab.training.models import longest_input, model_source
from attnlab.training.optim import build_optimizer
from attnlab.training.precision import auto_precision
from attnlab.training.speed import compile_layers, keep_freed_memory
from attnlab.transforms.kernel import use_kernel

SIDES = ("sdpa", "eager", "entmax", "ours")
OPTIM = {"lr": 1e-5, "layer_decay": 1.0, "dial_lr": 1e-2, "weight_decay": 0.01}
GRAD_CLIP = 1.0
# So many tokens of the first sentence are padding: each side has to mind a mask.
PADDING = 3

Step = Callable[[int], None]


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def autocast_dtype(precision: str) -> torch.dtype | None:
    """bfloat16, or None for plain float32."""
    if precision == "auto":
        precision = auto_precision("gpu" if device().type == "cuda" else "cpu")
    return torch.bfloat16 if precision.startswith("bf16") else None


def build(side: str, options: BenchOptions, spec: AttentionSpec | None = None) -> PreTrainedModel:
    """One side's model in training mode: stock ones untouched, ours as `attnlab train` has it.

    spec: our attention, where `options.attn` with its default dials is not meant.
    """
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    if side == "entmax":
        _register_entmax()
    dispatch = {"ours": "sdpa", "entmax": "bench_entmax"}.get(side, side)
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(
        model_source(options.model), attn_implementation=dispatch
    )
    if max(options.lengths) > longest_input(model.config):
        raise UserError(
            f"lengths={max(options.lengths)} is more than the {longest_input(model.config)} "
            f"tokens that {options.model} has positions for"
        )
    nn.Module.to(model, device())
    model.train()
    if side == "ours":
        keep_freed_memory()
        attach(model, spec or AttentionSpec(name=options.attn))
        if options.compile:
            compile_layers(model)
    return model


def training_step(side: str, options: BenchOptions, spec: AttentionSpec | None = None) -> Step:
    """step(length): forward, backward, clipping, fused AdamW, zeroed gradients on such a batch."""
    model = build(side, options, spec)
    where, dtype = device(), autocast_dtype(options.precision)
    optimizer = build_optimizer(model, OPTIM)
    parameters = [p for p in model.parameters() if p.requires_grad]

    def step(length: int) -> None:
        batch = random_batch(length, options.batch, int(model.config.vocab_size))
        autocast: AbstractContextManager[Any] = nullcontext() if dtype is None else torch.autocast(where.type, dtype)
        with use_kernel("auto" if options.compile else "eager"):
            with autocast:
                loss = model(**batch).loss
            loss.backward()
        nn.utils.clip_grad_norm_(parameters, GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad()
        if where.type == "cuda":
            torch.cuda.synchronize()

    return step


def random_batch(length: int, size: int, vocabulary: int) -> dict[str, Tensor]:
    """The same random tokens for every side; one padded sentence."""
    generator = torch.Generator().manual_seed(length)
    mask = torch.ones(size, length, dtype=torch.long)
    mask[0, -min(PADDING, length - 1) :] = 0
    batch = {
        "input_ids": torch.randint(vocabulary // 2, vocabulary, (size, length), generator=generator),
        "attention_mask": mask,
        "labels": torch.randint(0, 2, (size,), generator=generator),
    }
    return {name: values.to(device()) for name, values in batch.items()}


def _register_entmax() -> None:
    try:
        from entmax import sparsemax
    except ImportError as error:
        raise UserError("the comparison needs the entmax package: pip install 'attnlab[dev]'") from error

    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Scores to float32, -inf on masked keys: the package is wrong in bfloat16."""
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        scores = (torch.matmul(query, key.transpose(-1, -2)) * scale).float()
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask, float("-inf"))
        probabilities = sparsemax(scores, dim=-1).to(value.dtype)
        probabilities = nn.functional.dropout(probabilities, dropout, module.training)
        return torch.matmul(probabilities, value).transpose(1, 2).contiguous(), None

    AttentionInterface.register("bench_entmax", forward)
    AttentionMaskInterface.register("bench_entmax", sdpa_mask)
