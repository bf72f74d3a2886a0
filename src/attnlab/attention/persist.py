"""A model with its attention on disk: a save_pretrained folder whose config.json names the attention."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)
from transformers import logging as hf_logging

from ..errors import UserError
from .attach import SUBMODULE, attach
from .masking import SUBMODULE as MASK
from .spec import AttentionSpec

SPEC_KEY = "attnlab"
# How the class that a saved config names ends.
CLASSES = {
    "ForMaskedLM": AutoModelForMaskedLM,
    "ForMultipleChoice": AutoModelForMultipleChoice,
    "ForQuestionAnswering": AutoModelForQuestionAnswering,
}


def load(folder: str | Path) -> PreTrainedModel:
    """The transformers model saved in `folder`, in eval mode, with its sparse attention back in place.

    Takes the `model/` folder of a run, or the run folder itself. Reads safetensors and JSON only: no pickle, no remote
    code. Raises UserError when the folder holds no such model.
    """
    path = Path(folder)
    if not (path / "config.json").is_file() and (path / "model" / "config.json").is_file():
        path = path / "model"
    for name in ("config.json", "model.safetensors"):
        if not (path / name).is_file():
            raise UserError(f"{folder} holds no saved model: {path / name} is missing")
    verbosity = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()  # our parameters, which attach() brings, count as unexpected there
    hf_logging.disable_progress_bar()
    try:
        model: PreTrainedModel = _class_of(path).from_pretrained(path, use_safetensors=True)
    finally:
        hf_logging.set_verbosity(verbosity)
    plain = getattr(model.config, SPEC_KEY, None)
    if not isinstance(plain, dict):
        raise UserError(f"{path / 'config.json'} names no attention: not a model saved by attnlab")
    attach(model, AttentionSpec.from_dict(plain))
    own: dict[str, torch.Tensor] = {}
    with safe_open(path / "model.safetensors", framework="pt") as weights:
        for key in weights.keys():  # noqa: SIM118 (not a mapping)
            if _is_ours(key):
                own[key] = weights.get_tensor(key)
    expected = {key for key in model.state_dict() if _is_ours(key)}
    if expected != set(own):
        odd = sorted(expected ^ set(own))[0]
        raise UserError(f"{path}: the attention's parameters do not fit its spec ({odd})")
    model.load_state_dict(own, strict=False)
    model.eval()
    return model


def _class_of(path: Path) -> Any:
    """What loads the saved model, by the class that its config names."""
    named = json.loads((path / "config.json").read_text(encoding="utf-8")).get("architectures") or [""]
    return next((auto for end, auto in CLASSES.items() if named[0].endswith(end)), AutoModelForSequenceClassification)


def _is_ours(key: str) -> bool:
    return f".{SUBMODULE}." in key or f".{MASK}." in key
