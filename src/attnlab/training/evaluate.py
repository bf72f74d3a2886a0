"""Score a finished run again, from its folder alone."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from ..attention import load
from ..data.pretraining import build_data
from ..data.spec import DataSpec
from ..errors import UserError
from ..tasks.spec import TaskSpec
from ..transforms.kernel import set_kernel
from .models import label_names, load_tokenizer, longest_input
from .module import FineTuner
from .precision import resolve_precision
from .run_folder import read_config
from .train import quieten

log = logging.getLogger("attnlab")


def evaluate(run: Path, split: str = "test", data: Mapping[str, object] | None = None) -> dict[str, float]:
    """Metrics and loss of the model in run folder `run` on `split` (val or test), with what its attention did.

    `data` overrides keys of the run's `data` group (root, test, ...). Raises UserError for a folder that is no
    finished run, or data that cannot be found.
    """
    settings = read_config(run)
    settings["data"].update(data or {})
    quieten()
    set_kernel(settings["attn"]["kernel"])
    model = load(run)
    spec = DataSpec.from_config(settings["task"], settings["data"])
    labels = label_names(model) if spec.kind in ("classification", "multilabel") else ()
    spec = replace(spec, labels=labels or None)  # the run's labels, whatever the data now holds
    module_data = build_data(
        spec,
        load_tokenizer(str(run / "model")),
        seed=settings["seed"],
        model_limit=longest_input(model.config),
    )
    module_data.setup()
    for note in module_data.notes:
        log.info("note: %s", note)
    assert module_data.examples is not None
    if split not in module_data.examples.splits:
        there = ", ".join(module_data.examples.splits)
        raise UserError(f"task {spec.task} has no labelled {split} split here; there is {there}")
    task = TaskSpec.from_config(settings["task"], labels)
    module = FineTuner(model, task, settings, examples=module_data.examples.splits)
    module.tested = split
    if task.kind == "span" and split != "val":
        module.leave_unanswered_above(_threshold(run))
    accelerator = "gpu" if torch.cuda.is_available() else "cpu"
    precision: Any = resolve_precision(settings["trainer"]["precision"], accelerator)
    trainer = pl.Trainer(
        accelerator=accelerator,
        devices=1,
        precision=precision,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    score = trainer.validate if split == "val" else trainer.test
    score(module, module_data.eval_dataloader(split), verbose=False)
    values = trainer.callback_metrics
    prefix = f"{split}/"
    metrics = {k.removeprefix(prefix): float(v) for k, v in values.items() if k.startswith(prefix)}
    metrics |= module_data.baselines(split)
    return metrics | {f"attention/{k}": v for k, v in module.attention.items()}


def _threshold(run: Path) -> float | None:
    """Above which null odds the run leaves a question unanswered, as its validation found."""
    path = run / "metrics.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    value = found.get("val", {}).get("no_answer_threshold")
    return None if value is None else float(value)
