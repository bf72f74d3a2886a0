"""Folders of finished runs with a small random model, made without training."""

import json
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    BertConfig,
)

from attnlab.attention import AttentionSpec, attach
from attnlab.cli.overrides import compose_config
from attnlab.training.models import save_model
from attnlab.training.run_folder import plain, write_config, write_json, write_status

from .report.tiny import tiny_tokenizer

AUTO = {
    "mlm": AutoModelForMaskedLM,
    "multiple_choice": AutoModelForMultipleChoice,
    "span": AutoModelForQuestionAnswering,
}


def finished_run(folder: Path, *words: str, labels: list[str] | None = None, **val: float) -> Path:
    """The run that `words` would have made, untrained. labels: as its data would have given them; val: its scores."""
    config = compose_config(
        ["logger=csv", "attn.kernel=eager", "trainer.precision=32", "data.max_length=48", *words], with_hydra=False
    )
    settings: Any = plain(OmegaConf.to_container(config, resolve=True))
    kind = settings["task"]["kind"]
    labels = labels or settings["task"]["labels"] or []
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    sizes = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=64, initializer_range=0.6,
        num_labels=len(labels) or {"span": 2}.get(kind, 1),
    )  # fmt: skip
    if labels:
        sizes.id2label, sizes.label2id = dict(enumerate(labels)), {label: i for i, label in enumerate(labels)}
    model = AUTO.get(kind, AutoModelForSequenceClassification).from_config(sizes)
    attach(model, AttentionSpec(name=settings["attn"]["name"]))
    folder.mkdir(parents=True)
    save_model(model, tokenizer, folder / "model")
    write_config(folder, settings)
    write_status(folder, "done")
    write_json(folder / "metrics.json", {"val": val})
    return folder


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
