"""A training with all that is shown of it: heat maps while it runs, plots and the closing table after it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.trainer.states import TrainerFn
from transformers import AutoTokenizer

from ..analysis.probes import PROBES, probe_attention
from ..attention import load
from ..attention.dials import dial_metrics
from ..attention.masking import encoder_mask
from ..training import TrainResult
from ..training import train as train_only
from ..training.run_folder import full_disk_told, write_json
from .heatmaps import attention_figure, dial_figure, learned_keys
from .mask_figure import save_importance
from .plots import save_plots
from .table import print_run_summary
from .wandb_panels import log_heatmaps

SHOWN = (PROBES[2], PROBES[4], PROBES[7])  # a negation, a pronoun, a pair


class HeatMaps(Callback):
    """After each evaluation, the attention on three fixed sentences as W&B images, on the first process."""

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        runs = [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
        fitting = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if not fitting or not runs or not trainer.is_global_zero:
            return
        tokenizer = trainer.datamodule.tokenizer  # type: ignore[attr-defined]
        probes = probe_attention(pl_module.model, tokenizer, SHOWN)  # type: ignore[arg-type]
        figures = {f"attention/probe_{i}": attention_figure(p) for i, p in enumerate(probes)}
        learned = dial_metrics(pl_module)
        figures |= {f"attention/{key}": dial_figure(learned, key) for key in learned_keys(learned)}
        for logger in runs:
            log_heatmaps(logger.experiment, figures, step=trainer.global_step)


def train(config: DictConfig | Mapping[str, Any], run_dir: Path | str | None = None) -> TrainResult:
    """Fine-tune as `config` says, as `attnlab.training.train` does, and show it.

    Adds to the run folder: plots/, and of a mask that was learned what it lets through, to metrics.json. Prints the
    closing table. Returns the folder and its metrics.
    """
    result = train_only(config, run_dir, callbacks=[HeatMaps()])
    folder = result.run_dir
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = load(folder)
    probes = probe_attention(model, tokenizer, SHOWN)
    unigram = result.metrics.get("val", {}).get("unigram_perplexity")
    held = encoder_mask(model)
    with full_disk_told(folder):
        save_plots(folder, result.metrics.get("attention", {}), probes, unigram=unigram)
        if held is not None and held.learned is not None:
            result.metrics["mask"] = result.metrics.get("mask", {}) | save_importance(folder, held)
            write_json(folder / "metrics.json", result.metrics)
    print_run_summary(folder, result.metrics, mask=held.spec.name if held is not None else None)
    return result
