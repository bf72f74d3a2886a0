"""Check the values of a config before anything is loaded: one line a key, the whole schema in one place."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..attention.spec import AttentionSpec
from ..data.spec import SPLITS
from ..errors import UserError, closest
from ..masks.spec import MaskSpec
from ..tasks.metrics import check_metrics
from ..tasks.spec import TaskSpec
from ..transforms import build_transform
from ..transforms.kernel import KERNELS
from .density import SCHEDULES, SparsitySpec
from .models import DEFAULT_VOCABULARY

Check = Callable[[Any], bool]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(least: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _share(value: Any) -> bool:
    return _number(value) and 0 <= value <= 1


def _one_of(*choices: object) -> Check:
    return lambda value: value in choices


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


MLM_RULES: dict[str, tuple[Check, str]] = {
    "task.mask_probability": (lambda v: _number(v) and 0 < v < 1, "a share in (0, 1)"),
    "task.whole_word": (_flag, "true or false"),
    "task.unknown": (_maybe(lambda v: isinstance(v, str) and bool(v)), "a word, or null"),
}
RULES: dict[str, tuple[Check, str]] = {
    "seed": (_whole(0), "a whole number from 0 on"),
    "model.name": (lambda v: isinstance(v, str) and bool(v), "minilm, a Hub id or a folder"),
    "model.dropout": (_maybe(lambda v: _number(v) and 0 <= v < 1), "in [0, 1), or null"),
    "attn.warmup_ratio": (_share, "a share in [0, 1]"),
    "attn.kernel": (_one_of(*KERNELS), f"one of {', '.join(KERNELS)}"),
    "sparsity.density": (_maybe(_number), "a share in (0, 1], or null"),
    "sparsity.per": (_one_of("layer", "model"), "layer or model"),
    "sparsity.schedule": (_one_of(*SCHEDULES), "linear, cosine or constant"),
    "sparsity.warmup_ratio": (_share, "a share in [0, 1]"),
    "data.batch_size": (_whole(1), "a whole number from 1 on"),
    "data.max_length": (_whole(1), "a whole number from 1 on"),
    "data.limit": (_maybe(_whole(1)), "a whole number from 1 on, or null"),
    "data.workers": (_whole(0), "a whole number from 0 on"),
    "optim.name": (_one_of("adamw"), "adamw"),
    "optim.lr": (lambda v: _number(v) and v > 0, "a number above 0"),
    "optim.dial_lr": (lambda v: _number(v) and v > 0, "a number above 0"),
    "optim.layer_decay": (lambda v: _number(v) and 0 < v <= 1, "in (0, 1]"),
    "optim.weight_decay": (lambda v: _number(v) and v >= 0, "a number from 0 on"),
    "optim.warmup_ratio": (_share, "a share in [0, 1]"),
    "optim.grad_clip": (_maybe(lambda v: _number(v) and v > 0), "a number above 0, or null"),
    "trainer.max_epochs": (_whole(1), "a whole number from 1 on"),
    "trainer.precision": (
        _one_of("auto", 32, 16, "32", "16", "bf16", "32-true", "16-mixed", "bf16-mixed"),
        "auto, 32, bf16 or 16",
    ),
    "trainer.devices": (
        lambda v: v == "auto" or _whole(1)(v),
        "a whole number from 1 on, or auto",
    ),
    "trainer.num_nodes": (_whole(1), "a whole number from 1 on"),
    "trainer.accelerator": (_one_of("auto", "cpu", "gpu"), "auto, cpu or gpu"),
    "trainer.accumulate": (_whole(1), "a whole number from 1 on"),
    "trainer.fast": (_flag, "true or false"),
    "trainer.compile": (lambda v: v == "auto" or _flag(v), "auto, true or false"),
    "trainer.patience": (_maybe(_whole(1)), "a whole number from 1 on, or null"),
    "trainer.progress_bar": (_flag, "true or false"),
    "strategy.name": (_one_of("auto", "ddp"), "auto or ddp"),
    "logger.wandb": (_flag, "true or false"),
    "logger.tensorboard": (_flag, "true or false"),
}


def validate(settings: Mapping[str, Any]) -> None:
    """Raise UserError for the first value that cannot work, naming the key, the value and what is allowed."""
    mlm = settings["task"].get("kind") == "mlm"
    for key, (fits, allowed) in (RULES | (MLM_RULES if mlm else {})).items():
        group, _, name = key.rpartition(".")
        section = settings if not group else settings.get(group)
        if not isinstance(section, Mapping) or name not in section:
            raise UserError(f"the config has no {key}; it must be {allowed}")
        if not fits(section[name]):
            raise UserError(f"{key}={section[name]} must be {allowed}")
    _check_model(settings["model"])
    _check_task(settings["task"], settings["data"])
    spec = AttentionSpec.from_config(settings["attn"])
    for layer in range(max((len(values) for values in spec.by_layer.values()), default=1)):
        here = replace(spec, layers=None).of_layer(layer)
        build_transform(here.name, num_heads=1, **here.dials)
    MaskSpec.from_config(settings["mask"], settings["data"]["max_length"])
    SparsitySpec.from_config(settings["sparsity"], settings["attn"])


def _check_task(task: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Metrics that exist for the kind and have what they need; a range and a merge that can be."""
    spec = TaskSpec.from_config(task, task.get("labels") or ())
    check_metrics(spec, grouped=bool(data.get("group") or (task.get("columns") or {}).get("group")))
    splits = {*SPLITS, *(task.get("files") or {}), *((task.get("hub") or {}).get("splits") or {})}
    for split in spec.merge:
        if split not in splits:
            raise UserError(f"task.merge: there is no split {split!r}{closest(split, splits)}")
        spec.merged_ids(split)


def _check_model(model: Mapping[str, Any]) -> None:
    """Trained weights and a config for new ones exclude each other."""
    name, config, tokenizer = model["name"], model.get("config"), model.get("tokenizer")
    if config is None and tokenizer is not None:
        raise UserError(f"model.tokenizer={tokenizer}: a trained model keeps its own: leave it null")
    if config is None:
        return
    if not isinstance(config, Mapping) or not isinstance(config.get("model_type"), str):
        raise UserError(f"model.config={config} must name a model_type (bert) and its sizes, or be null")
    if not isinstance(tokenizer, str):
        raise UserError(f"model.tokenizer={tokenizer} must be corpus, minilm, a Hub id or a folder")
    if name == "minilm" or "/" in name:
        raise UserError(
            f"model.name={name} names trained weights, but model.config starts new ones: to go on with the trained "
            "ones leave out model=bert_..., which is what sets model.config"
        )
    size = config.get("vocab_size", DEFAULT_VOCABULARY)
    if not _whole(1000)(size):
        raise UserError(f"model.config.vocab_size={size} must be a whole number from 1000 on")
