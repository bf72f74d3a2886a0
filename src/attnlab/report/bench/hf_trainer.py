"""One epoch of the Hugging Face Trainer, as its users run it, with the data of one of our runs.

bf16 where the hardware has it, dynamic padding, its default random sampling and fused AdamW,
nothing logged, saved or evaluated within the epoch. `python -m attnlab.report.bench.hf_trainer
CONFIG.yaml` prints JSON.
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers import logging as hf_logging

from attnlab.data.load import load_examples
from attnlab.data.spec import DataSpec
from attnlab.errors import UserError
from attnlab.report.bench.models import autocast_dtype
from attnlab.training.callbacks import WARMING_STEPS
from attnlab.training.models import load_tokenizer, model_source


class EpochClock(TrainerCallback):
    """When the epoch began and when each of its steps ended, in seconds."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self.marks.append(time.perf_counter())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.marks.append(time.perf_counter())

    def rates(self, examples: int, batch: int) -> dict[str, float]:
        """Seconds of the epoch, and examples a second after the steps that attnlab leaves out."""
        seconds = self.marks[-1] - self.marks[0]
        skipped = WARMING_STEPS if len(self.marks) > WARMING_STEPS + 1 else 0
        warm = (examples - skipped * batch) / (self.marks[-1] - self.marks[skipped])
        return {"examples": float(examples), "seconds": seconds, "warm_rate": warm}


def epoch(config: Mapping[str, Any]) -> dict[str, float]:
    """examples, seconds and warm_rate (see EpochClock), then accuracy on the validation split."""
    name = str(config["model"]["name"])
    examples = load_examples(DataSpec.from_config(config["task"], config["data"]))
    tokenizer = load_tokenizer(name)
    limit = min(int(config["data"]["max_length"]), tokenizer.model_max_length)

    def encode(rows: Mapping[str, list[str]]) -> Any:
        pair = (rows["text_pair"],) if "text_pair" in rows else ()
        return tokenizer(rows["text"], *pair, truncation=True, max_length=limit)

    splits = {
        split: part.map(encode, batched=True).select_columns(["label", *(n for n in tokenizer.model_input_names)])
        for split, part in examples.splits.items()
        if split in ("train", "val")
    }
    torch.manual_seed(int(config["seed"]))
    model = AutoModelForSequenceClassification.from_pretrained(model_source(name), num_labels=len(examples.labels))
    clock = EpochClock()
    with tempfile.TemporaryDirectory(prefix="attnlab-bench-") as scratch:
        trainer = Trainer(
            model=model,
            args=_arguments(config, scratch),
            train_dataset=splits["train"],
            data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[clock],
        )
        trainer.train()
        predicted = trainer.predict(splits["val"])
    right = np.argmax(predicted.predictions, axis=-1) == predicted.label_ids
    rates = clock.rates(len(splits["train"]), int(config["data"]["batch_size"]))
    return {**rates, "accuracy": float(np.mean(right))}


def _arguments(config: Mapping[str, Any], folder: str) -> TrainingArguments:
    optim = config["optim"]
    try:
        return TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=int(config["data"]["batch_size"]),
            per_device_eval_batch_size=int(config["data"]["batch_size"]),
            num_train_epochs=1,
            learning_rate=float(optim["lr"]),
            weight_decay=float(optim["weight_decay"]),
            warmup_steps=float(optim["warmup_ratio"]),
            lr_scheduler_type="linear",
            bf16=autocast_dtype(str(config["trainer"]["precision"])) is not None,
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
            seed=int(config["seed"]),
            save_strategy="no",
            eval_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
    except ImportError as error:
        raise UserError("the Hugging Face Trainer needs accelerate: pip install 'attnlab[dev]'") from error


if __name__ == "__main__":
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    print(json.dumps(epoch(yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8")))))
