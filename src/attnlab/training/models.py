"""The encoder, pre-trained or new, with the head a task needs and the attention a user chose."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers import logging as hf_logging

from ..attention import AttentionSpec, attach
from ..data.hub import offline_unless, reachable
from ..data.spec import DataSpec
from ..data.vocabulary import corpus_tokenizer
from ..data.wheels import minilm_folder
from ..errors import UserError, closest
from ..tasks.heads import HEADS
from ..tasks.spec import TaskSpec

log = logging.getLogger("attnlab")

FROM_CORPUS = "corpus"

# Each family calls its dropout rates by other names.
DROPOUT_KEYS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "mlp_dropout",
    "classifier_dropout",
    "classifier_dropout_prob",
    "seq_classif_dropout",
    "summary_last_dropout",
)
# The families that `attach` is tested with.
FAMILIES = ("albert", "bert", "camembert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta")
DEFAULT_VOCABULARY = 8192
# These count positions from the padding id on.
OFFSET_POSITIONS = (
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "xmod",
    "roberta-prelayernorm",
    "data2vec-text",
)


def model_source(name: str) -> str:
    """Where `from_pretrained` finds the model called `name`: a folder, or a Hub id."""
    return str(minilm_folder()) if name == "minilm" else name


@contextmanager
def _reading(name: str) -> Iterator[str]:
    """Where to load the model called `name` from; a failure to load it there becomes a UserError."""
    source = model_source(name)
    online = Path(source).is_dir() or reachable()
    try:
        with offline_unless(online):
            yield source
    except (OSError, ValueError) as error:
        raise _unavailable(name, error) from error


def _unavailable(name: str, error: Exception) -> UserError:
    first = (str(error).splitlines() or [type(error).__name__])[0]
    if Path(name).is_dir():
        return UserError(f"the folder {name} holds no model that transformers can load: {first}")
    return UserError(
        f"model {name!r} cannot be loaded: it is no folder here and the Hugging Face Hub does not give it ({first}). "
        "Remedies: check the name; log in for a private model; without network use model=minilm, "
        "which comes from the package index, or model.name=<folder of a downloaded model>"
    )


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of the model called `name`. Raises UserError when it cannot be had."""
    with _reading(name) as source:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    return tokenizer


def choose_tokenizer(model: Mapping[str, Any], data: DataSpec) -> PreTrainedTokenizerBase:
    """The tokenizer of the `model` group: the model's own, or for a model from scratch the one it names.

    Raises UserError when it cannot be had.
    """
    wanted = model.get("tokenizer")
    if not from_scratch(model):
        return load_tokenizer(str(model["name"]))
    if wanted != FROM_CORPUS:
        return load_tokenizer(str(wanted))
    if data.kind != "mlm":
        raise UserError(
            f"model.tokenizer=corpus trains a tokenizer on the text of task=mlm; task={data.task} needs one that is "
            "there: type model.tokenizer=minilm, or go on from a pre-training: model=minilm "
            "model.name=outputs/mlm/<...>/model"
        )
    return corpus_tokenizer(data, int(model["config"].get("vocab_size") or DEFAULT_VOCABULARY))


def from_scratch(model: Mapping[str, Any]) -> bool:
    """Whether the `model` group describes a new model rather than names a trained one."""
    return bool(model.get("config"))


def choose_config(model: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
    """The config of the `model` group. Raises UserError when it cannot be had, or asks for what there is not."""
    if not from_scratch(model):
        return load_config(str(model["name"]))
    given = dict(model["config"])
    family = str(given.pop("model_type", ""))
    if family not in FAMILIES:
        raise UserError(f"model.config.model_type={family}: there is no such family{closest(family, FAMILIES)}")
    known = AutoConfig.for_model(family)
    for key in given:
        if not hasattr(known, key):
            raise UserError(f"model.config.{key}: a {family} has no such key{closest(key, known.to_dict())}")
    given |= {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    config: PretrainedConfig = AutoConfig.for_model(family, **given)
    if config.hidden_size % config.num_attention_heads:
        raise UserError(
            f"model.config.hidden_size={config.hidden_size} must be a multiple of "
            f"model.config.num_attention_heads={config.num_attention_heads}"
        )
    return config


def build_model(
    model: Mapping[str, Any], task: TaskSpec, attention: AttentionSpec, config: PretrainedConfig | None = None
) -> PreTrainedModel:
    """The encoder of the `model` group with a head for `task` and `attention` attached, in training mode.

    config: what `choose_config` gave. Raises UserError when the model cannot be loaded or its attention cannot be
    replaced.
    """
    name = str(model["name"])
    if config is None:
        config = load_config(name)
    hf_logging.set_verbosity_error()  # a new head is what we want, not worth a report
    hf_logging.disable_progress_bar()
    if task.kind != "mlm":
        config.num_labels = task.num_outputs
    if task.labels:
        config.id2label = dict(enumerate(task.labels))
        config.label2id = {label: i for i, label in enumerate(task.labels)}
    if model.get("dropout") is not None:
        for key in DROPOUT_KEYS:
            if isinstance(getattr(config, key, None), float):
                setattr(config, key, float(model["dropout"]))
    auto = HEADS[task.kind].auto
    encoder: PreTrainedModel
    if from_scratch(model):
        encoder = auto.from_config(config)
    else:
        with _reading(name) as source:
            encoder, loaded = auto.from_pretrained(
                source, config=config, ignore_mismatched_sizes=True, output_loading_info=True
            )
        if task.kind == "mlm" and any(not key.startswith(encoder.base_model_prefix) for key in loaded["missing_keys"]):
            log.info("note: %s brings no head for masked language modelling: it starts with a new one", name)
    attach(encoder, attention)
    encoder.train()  # from_pretrained leaves eval mode, and Lightning keeps it: dropout would never act
    return encoder


def load_config(name: str) -> PretrainedConfig:
    """The config of the model called `name`. Raises UserError when it cannot be had."""
    with _reading(name) as source:
        config: PretrainedConfig = AutoConfig.from_pretrained(source)
    return config


def in_head_order(spec: DataSpec, config: PretrainedConfig) -> DataSpec:
    """`spec` with its labels in the order of the checkpoint's own head, where it has one for these very labels.

    MNLI's, for one, come in three orders. Ids in the files keep the meaning that the task gives them.
    """
    names = [str(name).lower() for _, name in sorted((config.id2label or {}).items())]
    ours = {label.lower(): label for label in spec.labels or ()}
    if spec.labels is None or sorted(names) != sorted(ours):
        return spec
    ids = {} if any(label.isdigit() for label in spec.labels) else dict(zip("0123456789", spec.labels, strict=False))
    return replace(spec, labels=tuple(ours[name] for name in names), aliases=ids | dict(spec.aliases))


def label_names(model: PreTrainedModel) -> tuple[str, ...]:
    """The model's class names in id order."""
    names = model.config.id2label or {}
    return tuple(str(names[i]) for i in sorted(names))  # type: ignore[index]


def longest_input(config: PretrainedConfig) -> int:
    """Tokens the model has positions for."""
    positions = int(getattr(config, "max_position_embeddings", 512))
    if config.model_type in OFFSET_POSITIONS:
        positions -= int(config.pad_token_id or 0) + 1
    return positions


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """A save_pretrained folder that `attnlab.load` reads."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
