"""One run, from a composed config to a finished run folder."""

import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities.exceptions import SIGTERMException
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from ..attention import AttentionSpec
from ..attention.dials import dial_named, steered
from ..data.pretraining import build_data
from ..data.spec import DataSpec
from ..errors import UserError
from ..masks.spec import MaskSpec, check_shape
from ..tasks.spec import TaskSpec
from ..transforms.kernel import has_compiler, set_kernel
from .callbacks import EpochLines, Meter, ProgressBar, build_early_stopping
from .checkpoints import (
    LAST,
    WholeCheckpointIO,
    build_checkpoints,
    checkpoint_to_keep,
    checkpoint_to_resume,
    clear_drafts,
    drop_spare,
    require_space,
)
from .density import DensityControl, SparsitySpec
from .launch import RunFolderDDP, process_group_cleared
from .loggers import build_loggers, finish_wandb
from .masking import MaskControl, fill_mask, mask_metrics
from .models import build_model, choose_config, choose_tokenizer, in_head_order, longest_input, save_model
from .module import FineTuner
from .precision import resolve_precision
from .run_folder import (
    differences,
    full_disk_told,
    is_alive,
    plain,
    provenance,
    read_config,
    read_status,
    write_config,
    write_json,
    write_rows,
    write_status,
)
from .speed import compile_layers, forget_compiled, keep_freed_memory
from .validate import validate

log = logging.getLogger("attnlab")

FAST_BATCHES = 8
# Fewer optimiser steps than this do not win back the ten to twenty seconds that compiling the layers takes.
STEPS_WORTH_COMPILING = 100

Metrics = dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """run_dir, and what metrics.json in it holds: {"val", "test", "train", "attention"} -> name -> value."""

    run_dir: Path
    metrics: Metrics


def train(
    config: DictConfig | Mapping[str, Any],
    run_dir: Path | str | None = None,
    *,
    callbacks: Sequence[Callback] = (),
) -> TrainResult:
    """Fine-tune as `config` says and leave everything in `run_dir` (default: a new folder below outputs/).

    A `run_dir` that holds checkpoints is continued from the last whole one. `callbacks` join the trainer's own.
    status.json ends as done, failed or interrupted. Raises UserError for what the user can mend.
    """
    settings = plain(config)
    settings.setdefault("mask", {"name": "none"})  # a config from before there were masks
    validate(settings)
    folder = Path(run_dir) if run_dir is not None else _new_folder(settings)
    folder = folder.resolve()
    first = _is_first_process()
    if first:
        _check_continuation(folder, settings)
    failed = True
    try:
        with full_disk_told(folder):
            if first:
                write_config(folder, settings)
                write_status(folder, "running")
            with process_group_cleared():
                metrics = _train(settings, folder, callbacks)
            if first:
                write_status(folder, "done")
        failed = False
    except (KeyboardInterrupt, SIGTERMException):
        if first:
            _write_end(folder, "interrupted")
        raise
    except BaseException as error:
        if first:
            _write_end(folder, "failed", f"{type(error).__name__}: {error}")
        raise
    finally:
        if first:
            finish_wandb(failed=failed)
    return TrainResult(run_dir=folder, metrics=metrics)


def _write_end(folder: Path, status: str, error: str | None = None) -> None:
    with suppress(OSError):  # what ended the run matters more than that a full disk does not take its end
        write_status(folder, status, error)


def _check_continuation(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to train in a folder that holds another run, a finished one, or one that is under way."""
    if is_alive(folder):
        raise UserError(f"another process is training in {folder} right now: wait for it, or stop it")
    if settings["resume"] or not (folder / "config.yaml").is_file() or not (folder / "checkpoints").is_dir():
        return
    changed = differences(read_config(folder), settings)
    if changed:
        raise UserError(
            f"{folder} holds a run with other settings ({', '.join(changed[:5])}): choose another folder, or go on "
            f"with that run by resume={folder}"
        )
    if read_status(folder) == "done":
        raise UserError(f"{folder} holds this very run, finished: choose another folder")


def _is_first_process() -> bool:
    return all(int(os.environ.get(name, "0")) == 0 for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))


def _new_folder(settings: Mapping[str, Any]) -> Path:
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    place = Path("outputs", settings["task"]["name"], settings["attn"]["name"])
    return place / f"{stamp}_s{settings['seed']}"


def _train(settings: dict[str, Any], folder: Path, callbacks: Sequence[Callback]) -> Metrics:
    quieten()
    forget_compiled()
    options = settings["trainer"]
    kernel = settings["attn"]["kernel"]
    set_kernel("eager" if options["fast"] and kernel in ("auto", "compiled") else kernel)
    if not torch.cuda.is_available():
        keep_freed_memory()

    data_spec = DataSpec.from_config(settings["task"], settings["data"])
    tokenizer = choose_tokenizer(settings["model"], data_spec)
    model_config = choose_config(settings["model"], tokenizer)
    data_spec = in_head_order(data_spec, model_config)
    data = build_data(data_spec, tokenizer, seed=settings["seed"], model_limit=longest_input(model_config))
    mask = MaskSpec.from_config(settings["mask"], data.max_length)
    if mask is not None:
        mask = mask.with_tokens(tokenizer.cls_token_id, tokenizer.sep_token_id)
        heads, layers = int(model_config.num_attention_heads), int(model_config.num_hidden_layers)
        check_shape(mask, num_heads=heads, num_layers=layers)  # before the data take their time
    data.setup()
    assert data.examples is not None
    for note in data.notes:
        _say(f"note: {note}")

    pl.seed_everything(settings["seed"], workers=True, verbose=False)
    task = TaskSpec.from_config(settings["task"], data.examples.labels)
    attention = AttentionSpec.from_config(settings["attn"], mask)
    sparsity = SparsitySpec.from_config(settings["sparsity"], settings["attn"])
    density = None
    if sparsity:
        attention = steered(attention, int(model_config.num_hidden_layers))
        density = DensityControl(sparsity, attention)
    model = build_model(settings["model"], task, attention, model_config)
    if settings["mask"]["name"] == "file":
        fill_mask(model, settings["mask"]["path"])
    _note_ignored(settings)

    if _is_first_process():
        clear_drafts(folder)
    resumed = (folder / "metrics.csv").is_file()
    checkpoint = checkpoint_to_resume(folder)
    if checkpoint is not None:
        _say(f"going on from {checkpoint.path} (after epoch {checkpoint.epochs})")
    elif resumed:
        _say("note: there is no whole checkpoint: training starts from the beginning")
    if _is_first_process() and (checkpoint is None or checkpoint.epochs < _epochs(options)):
        require_space(folder, model, _epochs(options))
    meter = Meter()
    mask_control = MaskControl(settings["mask"], settings["seed"]) if settings["mask"]["name"] == "dam" else None
    steering = [control for control in (density, mask_control) if control is not None]
    watchers: list[Callback] = [*steering, meter, *callbacks]
    watchers += build_checkpoints(folder, task, steering)
    if options["patience"]:
        watchers.append(build_early_stopping(task, options["patience"], steering))
    bar = bool(options["progress_bar"]) and sys.stdout.isatty()
    watchers.append(ProgressBar() if bar else EpochLines(task))
    loggers = (
        build_loggers(folder, settings, resumed=resumed, last_step=checkpoint.step if checkpoint else -1)
        if _is_first_process()
        else []
    )
    checkpoint_io = WholeCheckpointIO(last_is_whole=checkpoint is not None and checkpoint.path.name == LAST)
    trainer = _build_trainer(settings, folder, watchers, loggers, checkpoint_io, bar=bar)
    if settings["data"]["batch_size"] < trainer.world_size:
        raise UserError(
            f"data.batch_size={settings['data']['batch_size']} is shared by {trainer.world_size} devices: "
            "give at least one example to each"
        )
    steps = len(data.train_dataloader()) // options["accumulate"] * _epochs(options)
    if _worth_compiling(options, steps):
        compile_layers(model)
    module = FineTuner(model, task, settings, mask_control, examples=data.examples.splits)

    count = sum(p.numel() for p in model.parameters())
    under = f" under mask {mask.name} (density {mask_metrics(model)['density']:.3f})" if mask is not None else ""
    where = f"{trainer.world_size} processes (ddp)" if trainer.world_size > 1 else "one process"
    _say(
        f"{settings['model']['name']} ({count / 1e6:.1f} M parameters) with {settings['attn']['name']}{under} "
        f"on {task.name}: "
        f"{len(data.examples.splits['train']):,} training examples, {where}, {trainer.precision}\nrun folder {folder}"
    )
    started = time.perf_counter()
    _interruptible(
        trainer, trainer.fit, module, data, ckpt_path=str(checkpoint.path) if checkpoint else None, weights_only=True
    )
    trainer.strategy.barrier()
    costs = meter.summary(trainer)  # now: an evaluation from a checkpoint sets the meter back to it
    kept = checkpoint_to_keep(folder)
    keep_path = str(kept.path) if kept else None
    metrics: Metrics = {}
    for split in data.examples.splits:
        if split == "train":
            continue
        module.tested = data.tested = split
        run = trainer.validate if split == "val" else trainer.test
        _interruptible(trainer, run, module, datamodule=data, ckpt_path=keep_path, weights_only=True, verbose=False)
        metrics[split] = _values(trainer, split) | data.baselines(split)
        keep_path = None
        if split == "val":
            metrics["attention"] = module.attention
            metrics |= {"mask": mask_metrics(model)} if mask is not None else {}
    metrics["train"] = costs
    metrics["train"]["wall_seconds"] = time.perf_counter() - started
    if density:
        attention = attention.with_dial(density.dial.key, density.dials())
        model.config.attnlab = attention.to_dict()
    if trainer.is_global_zero:
        drop_spare(folder / "checkpoints")
        save_model(model, tokenizer, folder / "model")
        for split, rows in module.rows.items():
            if rows:
                write_rows(folder / "predictions" / f"{split}.jsonl", rows)
        origin = provenance(settings, data_source=data.examples.source, fingerprint=data.examples.fingerprint)
        write_json(folder / "provenance.json", origin | {"wall_seconds": metrics["train"]["wall_seconds"]})
        write_json(folder / "metrics.json", metrics)
    trainer.strategy.barrier()
    return metrics


def _values(trainer: pl.Trainer, split: str) -> dict[str, float]:
    logged = trainer.callback_metrics
    prefix = f"{split}/"
    return {k.removeprefix(prefix): float(v) for k, v in logged.items() if k.startswith(prefix)}


def _epochs(options: Mapping[str, Any]) -> int:
    return 1 if options["fast"] else int(options["max_epochs"])


def _worth_compiling(options: Mapping[str, Any], steps: int) -> bool:
    wanted = options["compile"]
    if wanted == "auto":
        return has_compiler() and not options["fast"] and steps >= STEPS_WORTH_COMPILING
    if wanted and not has_compiler():
        raise UserError("trainer.compile=true needs a C++ compiler: install g++ or clang++")
    return bool(wanted)


def _build_trainer(
    settings: Mapping[str, Any],
    folder: Path,
    watchers: list[Callback],
    loggers: list[Logger],
    checkpoint_io: WholeCheckpointIO,
    *,
    bar: bool,
) -> pl.Trainer:
    options = settings["trainer"]
    accelerator = options["accelerator"]
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise UserError("trainer.accelerator=gpu, but torch sees no GPU: use trainer.accelerator=cpu")
    if accelerator == "auto":
        accelerator = "gpu" if torch.cuda.is_available() else "cpu"
    devices = options["devices"]
    if devices == "auto":
        devices = torch.cuda.device_count() if accelerator == "gpu" else 1
    if accelerator == "gpu" and devices > torch.cuda.device_count():
        raise UserError(f"trainer.devices={devices}, but there are {torch.cuda.device_count()} GPUs here")
    several = devices * options["num_nodes"] > 1
    if settings["strategy"]["name"] == "ddp" and not several:
        _say("note: strategy=ddp with one device trains in this one process; set trainer.devices=2 for two")
    limit = FAST_BATCHES if options["fast"] else None
    return pl.Trainer(
        accelerator=accelerator,
        devices=devices,
        num_nodes=options["num_nodes"],
        strategy=RunFolderDDP(folder) if several else "auto",
        precision=resolve_precision(options["precision"], accelerator),  # type: ignore[arg-type]
        max_epochs=_epochs(options),
        limit_train_batches=limit,
        limit_val_batches=limit,
        limit_test_batches=limit,
        accumulate_grad_batches=options["accumulate"],
        callbacks=watchers,
        logger=loggers or False,
        plugins=[checkpoint_io],
        enable_progress_bar=bar,
        enable_model_summary=False,
        num_sanity_val_steps=1,
        inference_mode=False,  # its tensors count as another kind, and compiled layers would be compiled again
        log_every_n_steps=10,
        use_distributed_sampler=False,
    )


def _interruptible(trainer: pl.Trainer, run: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Run a stage of the trainer; a Ctrl-C, which Lightning turns into an exit, is a KeyboardInterrupt again.

    When it fails, the other processes of a distributed run are ended: the next job of a sweep goes on.
    """
    try:
        run(*args, **kwargs)
    except Exception:
        if isinstance(trainer.strategy, RunFolderDDP):
            trainer.strategy.stop_children()
        raise
    except SystemExit as error:
        if isinstance(error, SIGTERMException):
            raise
        raise KeyboardInterrupt from error
    if trainer.interrupted:
        raise KeyboardInterrupt


def _note_ignored(settings: Mapping[str, Any]) -> None:
    if settings["attn"]["name"] == "softmax" and settings["attn"]["warmup_ratio"]:
        _say("note: attn.warmup_ratio has no effect with attn=softmax")
    sparsity = settings["sparsity"]
    if sparsity["density"] is None and (sparsity["schedule"] != "linear" or sparsity["per"] != "layer"):
        _say("note: sparsity.schedule and sparsity.per have no effect without sparsity.density")
    if sparsity["density"] is not None:
        dial = dial_named(settings["attn"]["name"])
        assert dial is not None
        if dial.key in settings["attn"]:
            _say(f"note: attn.{dial.key} is set by sparsity.density={sparsity['density']}, whatever it is given as")
    if settings["trainer"]["fast"] and settings["attn"]["kernel"] == "compiled":
        _say("note: trainer.fast=true compiles nothing: attn.kernel=compiled has no effect")


@rank_zero_only
def _say(text: str) -> None:
    log.info(text)


def quieten() -> None:
    """Silence what libraries say at every start and no user can act on."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*Trying to infer the `batch_size`.*",
        ".*The number of training batches.*",
        ".*It is recommended to use `self.log.*sync_dist=True.*",  # ours are synchronised metrics
        ".*`broadcast_buffers` is deprecated.*",
        ".*SpearmanCorrcoef` will save all targets.*",
        ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*",
    ):
        warnings.filterwarnings("ignore", message)
    with suppress(ImportError):
        import datasets

        datasets.disable_progress_bars()
