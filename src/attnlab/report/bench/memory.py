"""Table 2: peak memory of one training step, each side and length in a process of its own.

Counted is what the step holds on top of what stands before it (weights, Adam's state, code): the
resident peak during two steps minus the resident size just before, after a warm-up at that length
(compiling done, Adam's state made) and after freed memory went back to the system. On Linux the
peak is VmHWM, reset through /proc/self/clear_refs: ru_maxrss alone could not forget the higher peak
of loading and compiling. On a GPU it is `torch.cuda.max_memory_allocated` minus `memory_allocated`.
"""

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from attnlab.errors import UserError
from attnlab.report.bench.models import device, training_step
from attnlab.report.bench.options import BenchOptions, parse
from attnlab.report.bench.page import Result, Target

SIDES = ("eager", "ours", "sdpa")
MOST_OF_EAGER = 1.15
STEPS = 2
TINY = 8
MEGABYTE = 1_000_000

Measurement = Callable[[str, int, BenchOptions], dict[str, float]]


def measure(options: BenchOptions, run: Measurement | None = None) -> Result:
    """Megabytes (median of `rounds` processes, by default one) and the ratio ours / stock eager.

    run measures one side at one length; by default in a process of its own.
    """
    run = run or measure_in_a_process
    rounds = options.rounds or 1
    rows, targets = [], []
    numbers: dict[str, Any] = {}
    for length in options.lengths:
        runs = {side: [run(side, length, options) for _ in range(rounds)] for side in SIDES}
        peaks = {side: median(run["step_mb"] for run in runs[side]) for side in SIDES}
        ratio = peaks["ours"] / peaks["eager"]
        whole = {side: median(run["step_mb"] + run["before_mb"] for run in runs[side]) for side in SIDES}
        whole_ratio = whole["ours"] / whole["eager"]
        cells = [f"{peaks[side]:,.0f} MB" for side in SIDES]
        rows.append([str(length), *cells, f"{ratio:.2f}", f"{whole_ratio:.2f}"])
        numbers[str(length)] = {
            "runs": runs,
            "ours/eager": ratio,
            "ours/eager, whole process": whole_ratio,
        }
        targets.append(Target(name=f"ours / eager at {length}", ratio=ratio, bound=MOST_OF_EAGER, at_most=True))
    standing = median(run["before_mb"] for part in numbers.values() for run in part["runs"]["eager"])
    return Result(
        name="memory",
        title=f"Peak memory of a training step of {options.model}, batch {options.batch}",
        columns=(
            "length",
            "eager softmax (stock)",
            f"{options.attn} (ours)",
            "SDPA softmax (stock)",
            "ours / eager",
            "whole process",
        ),
        rows=rows,
        targets=targets,
        notes=(
            "on top of what stands before the step (weights, Adam's state, code: "
            f"{standing:,.0f} MB for the stock model)",
            "whole process: the same ratio with that included, the compiler's modules among it",
        ),
        numbers=numbers,
    )


def measure_in_a_process(side: str, length: int, options: BenchOptions) -> dict[str, float]:
    words = [f"batch={options.batch}", f"attn={options.attn}", f"model={options.model}"]
    words += [f"precision={options.precision}", f"compile={options.compile}"]
    words.append(f"threads={options.threads or torch.get_num_threads()}")
    measured: dict[str, float] = in_a_process(__name__, side, length, words)
    return measured


def in_a_process(module: str, side: str, length: int, words: Sequence[str]) -> Any:
    """What `python -m module SIDE LENGTH WORDS` prints last, read as JSON."""
    command = [sys.executable, "-m", module, side, str(length), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the memory of {side} at {length} was not measured:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_here(side: str, length: int, options: BenchOptions) -> dict[str, float]:
    """Peak of one side's step in this process, in megabytes: step_mb on top of before_mb."""
    step = training_step(side, options)
    for warm_up in (TINY, TINY + 5, length):
        step(warm_up)

    def steps() -> None:
        for _ in range(STEPS):
            step(length)

    held, before = peak_of(steps)
    return {"step_mb": held, "before_mb": before}


def peak_of(run: Callable[[], None]) -> tuple[float, float]:
    """Megabytes that `run` holds at its peak on top of what stands before it, and how many stand before."""
    gc.collect()
    cuda = device().type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        _return_freed_memory()
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
    run()
    peak = torch.cuda.max_memory_allocated() if cuda else _resident("VmHWM")
    return (peak - before) / MEGABYTE, before / MEGABYTE


def _return_freed_memory() -> None:
    if not Path("/proc/self/clear_refs").exists():
        raise UserError("attnlab bench memory measures on Linux or on a GPU")
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


if __name__ == "__main__":
    given = parse(sys.argv[3:])
    torch.set_num_threads(given.threads or torch.get_num_threads())
    print(json.dumps(measure_here(sys.argv[1], int(sys.argv[2]), given)))
