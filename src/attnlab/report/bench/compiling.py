"""Table 6: what compiling costs a run, with an empty cache and with a filled one, and what is compiled again.

Each run is `attnlab.training.train` in a process of its own, watched by a callback. An encoder layer is compiled once
for each way in which it runs: measuring (evaluation, attention recorded), walking (training, mixed with softmax),
training (without the mixture). A graph beyond the first of its kind was compiled again: its guards did not hold for
some batch. `python -m attnlab.report.bench.compiling CONFIG.yaml` trains as a config says and prints JSON.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytorch_lightning as pl
import torch
import torch._dynamo.utils
from omegaconf import OmegaConf
from pytorch_lightning.callbacks import Callback
from torch._dynamo.callback import callback_handler

from attnlab.attention import cores
from attnlab.report.bench.options import BenchOptions
from attnlab.report.bench.page import Result, Target
from attnlab.report.bench.trainer import chosen_task, run_process
from attnlab.training.callbacks import WARMING_STEPS
from attnlab.training.train import train
from attnlab.transforms.kernel import has_compiler

ATTENTIONS = ("sparsemax", "entmax15", "entmax")
EXAMPLES, QUICK_EXAMPLES = 3200, 640
MOST_WARM_SECONDS = 3.0

Run = dict[str, Any]


class CompileClock(Callback):
    """Seconds and graphs of each compilation, by the way in which the layers run, and seconds of each training step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.graphs: Counter[str] = Counter()
        self.marks: list[float] = []
        self.lengths: set[int] = set()
        self._model: torch.nn.Module | None = None
        self._started, self._known = 0.0, 0

    def _way(self) -> str:
        assert self._model is not None
        core = cores(self._model)[0]
        if not core.training:
            return "measuring" if core.record else "evaluating"
        return "walking" if core.walking else "training"

    def _begin(self, *_: Any) -> None:
        self._started, self._known = time.perf_counter(), _graphs()

    def _end(self, *_: Any) -> None:
        way = self._way()
        self.seconds[way] = self.seconds.get(way, 0.0) + time.perf_counter() - self._started
        self.graphs[way] += _graphs() - self._known

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Not before: starting a run makes the compiler forget its callbacks.
        self._model = pl_module
        callback_handler.register_start_callback(self._begin)
        callback_handler.register_end_callback(self._end)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.marks.append(time.perf_counter())

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.marks.append(time.perf_counter())
        self.lengths.add(int(batch["input_ids"].shape[1]))

    def summary(self) -> Run:
        """first_step: the first training step minus a usual one. again: graphs beyond the first of each kind."""
        steps = [end - begin for begin, end in zip(self.marks, self.marks[1:], strict=False)]
        usual = median(steps[WARMING_STEPS:] or steps)
        return {
            "seconds": self.seconds,
            "graphs": dict(self.graphs),
            "again": sum(count - 1 for count in self.graphs.values() if count),
            "first_step": steps[0] - usual,
            "steps": len(steps),
            "lengths": len(self.lengths),
        }


def _graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def measure(options: BenchOptions, run: Callable[[Sequence[str], str], Run] | None = None) -> Result:
    """Seconds of compiling (median of `rounds`, by default one) and graphs compiled again in a whole epoch.

    run trains with the words given and with the compiler's cache in a folder; by default in a process of its own.
    """
    run = run or (lambda words, cache: train_in_a_process(words, cache, options))
    task, notes = chosen_task()
    short = QUICK_EXAMPLES if options.quick else EXAMPLES
    rows, targets = [], []
    numbers: dict[str, Any] = {}
    for attention in dict.fromkeys([*ATTENTIONS, options.attn]):
        words = _words(task, attention, options)
        runs: dict[str, list[Run]] = {"cold": [], "warm": [], "epoch": []}
        for _ in range(options.rounds or 1):
            with tempfile.TemporaryDirectory(prefix="attnlab-bench-") as cache:
                for name in ("cold", "warm"):
                    runs[name].append(run([*words, f"data.limit={short}"], cache))
                if not options.quick:
                    runs["epoch"].append(run(words, cache))
        longest = runs["epoch"] or runs["warm"]
        again = max(one["again"] for one in longest)
        ways = " ".join(f"{way} {count}" for way, count in longest[0]["graphs"].items())
        first = {name: median(one["first_step"] for one in runs[name]) for name in ("cold", "warm")}
        rows.append(
            [
                attention,
                *(f"{median(sum(one['seconds'].values()) for one in runs[name]):.1f} s" for name in ("cold", "warm")),
                *(f"{first[name]:.1f} s" for name in ("cold", "warm")),
                f"{median(one['start'] for one in runs['warm']):.1f} s",
                ways,
                str(again),
            ]
        )
        targets += [
            Target(name=f"warm seconds, {attention}", ratio=first["warm"], bound=MOST_WARM_SECONDS, at_most=True),
            Target(name=f"compiled again, {attention}", ratio=float(again), bound=0.0, at_most=True),
        ]
        numbers[attention] = {**runs, "again": again}
    last = (runs["epoch"] or runs["warm"])[0]
    return Result(
        name="compile",
        title=f"Compiling in a run on {task}, {options.model}, batch {options.batch}",
        columns=(
            "",
            "all,\ncold",
            "all,\nwarm",
            "training,\ncold",
            "training,\nwarm",
            "start",
            "graphs",
            "again",
        ),
        rows=rows,
        targets=targets,
        notes=(
            *notes,
            f"cold: the first process, its cache empty; warm: the next one; {short:,} examples each",
            "all: seconds in the compiler, evaluation counted; training: the first training step minus a usual one",
            "start: importing the compiler and trying whether it works, in any process that compiles",
            f"graphs: of a layer, by how it runs; again: beyond one each, in {last['steps']:,} steps with "
            f"{last['lengths']} lengths",
        ),
        numbers=numbers,
    )


def _words(task: str, attention: str, options: BenchOptions) -> list[str]:
    words = [f"task={task}", f"attn={attention}", "logger=csv", "trainer.max_epochs=1", "trainer.compile=true"]
    words += [f"data.batch_size={options.batch}", "trainer.progress_bar=false"]
    words.append(f"trainer.precision={options.precision}")
    words.append("model=minilm" if options.model == "minilm" else f"model.name={options.model}")
    return words


def train_in_a_process(words: Sequence[str], cache: str, options: BenchOptions) -> Run:
    with tempfile.TemporaryDirectory(prefix="attnlab-bench-") as scratch:
        config = Path(scratch) / "config.yaml"
        composed = run_process([sys.executable, "-m", "attnlab", "train", "--cfg", "job", *words], options)
        config.write_text(composed, encoding="utf-8")
        command = [sys.executable, "-m", __name__, str(config)]
        said = run_process(command, options, TORCHINDUCTOR_CACHE_DIR=cache)
    measured: Run = json.loads(said.splitlines()[-1])
    return measured


def train_here(config: Path) -> Run:
    """One training in this process: what the clock saw, and `start`, the seconds until the compiler was ready."""
    before = time.perf_counter()
    has_compiler()
    start = time.perf_counter() - before
    clock = CompileClock()
    with tempfile.TemporaryDirectory(prefix="attnlab-bench-") as scratch:
        train(OmegaConf.load(config), Path(scratch) / "run", callbacks=[clock])  # type: ignore[arg-type]
    return {"start": start, **clock.summary()}


if __name__ == "__main__":
    print(json.dumps(train_here(Path(sys.argv[1]))))
