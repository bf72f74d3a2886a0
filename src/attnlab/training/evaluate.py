"""Score a finished run again, from its folder alone."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from ..data.load import narrowed
from ..data.pretraining import build_data
from ..errors import UserError
from .finished import open_run
from .models import longest_input
from .module import FineTuner
from .precision import resolve_precision
from .train import quieten

log = logging.getLogger("attnlab")


def evaluate(
    run: Path, split: str = "test", data: Mapping[str, object] | None = None, task: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Metrics and loss of the model in run folder `run` on `split`, with what its attention did.

    `data` overrides keys of the run's `data` group (root, test, ...); `task` is the config group of another task with
    the same labels. Raises UserError for a folder that is no finished run, a split that the task has not, or data that
    cannot be found.
    """
    if split == "train":
        raise UserError("split=train: a score on what was learned by heart says nothing; val and test do")
    quieten()
    opened = open_run(run, task=task, data=data)
    model, settings, spec = opened.model, opened.settings, opened.data
    module_data = build_data(
        spec if spec.kind == "mlm" else narrowed(spec, split),
        opened.tokenizer,
        seed=settings["seed"],
        model_limit=longest_input(model.config),
    )
    module_data.setup()
    for note in module_data.notes:
        log.info("note: %s", note)
    assert module_data.examples is not None
    if split not in module_data.examples.splits:
        if spec.kind == "mlm":
            raise UserError(f"task={spec.task} has no {split} text here; there is {', '.join(module_data.tokens)}")
        raise UserError(
            f"task={spec.task} has no labels for {split} here: it can be predicted, attnlab predict run={run} "
            f"{f'task={spec.task} ' if task else ''}split={split}"
        )
    module = FineTuner(model, opened.task, settings, examples=module_data.examples.splits)
    module.tested = split
    if opened.task.kind == "span" and split != "val":
        module.leave_unanswered_above(opened.no_answer_threshold)
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
