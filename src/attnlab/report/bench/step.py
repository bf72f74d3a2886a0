"""Table 1: one training step at several lengths."""

from functools import partial
from statistics import median
from typing import Any

from attnlab.report.bench.models import training_step
from attnlab.report.bench.options import BenchOptions
from attnlab.report.bench.page import Result, Target
from attnlab.report.bench.timing import paired_ratio, take_turns

SIDES = ("sdpa", "ours", "entmax")
MOST_OF_SDPA = 1.10
LEAST_OF_ENTMAX = 2.0
ENTMAX_FROM = 128
ROUNDS, QUICK_ROUNDS, WARM_UP = 15, 5, 3


def measure(options: BenchOptions) -> Result:
    """Milliseconds (median of the rounds) and ratios (median of the ratios within the rounds)."""
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    steps = {side: training_step(side, options) for side in SIDES}
    # Two other lengths first: compiled code then knows that the length varies.
    for length in (min(options.lengths), min(options.lengths) + 5):
        for step in steps.values():
            step(length)
    rows, targets = [], []
    numbers: dict[str, Any] = {}
    for length in options.lengths:
        turns = {side: partial(step, length) for side, step in steps.items()}
        seconds = take_turns(turns, rounds=rounds, warm_up=WARM_UP)
        against_sdpa = paired_ratio(seconds["ours"], seconds["sdpa"])
        against_entmax = paired_ratio(seconds["entmax"], seconds["ours"])
        times = [f"{median(seconds[side]) * 1000:,.1f} ms" for side in SIDES]
        rows.append([str(length), *times, f"{against_sdpa:.2f}", f"{against_entmax:.2f}"])
        numbers[str(length)] = {
            "seconds": seconds,
            "ours/sdpa": against_sdpa,
            "entmax/ours": against_entmax,
        }
        targets.append(
            Target(
                name=f"ours / SDPA at {length}",
                ratio=against_sdpa,
                bound=MOST_OF_SDPA,
                at_most=True,
            )
        )
        if length >= ENTMAX_FROM:
            targets.append(
                Target(
                    name=f"entmax package / ours at {length}",
                    ratio=against_entmax,
                    bound=LEAST_OF_ENTMAX,
                    at_most=False,
                )
            )
    return Result(
        name="step",
        title=f"One training step of {options.model}, batch {options.batch}",
        columns=(
            "length",
            "SDPA softmax (stock)",
            f"{options.attn} (ours)",
            "sparsemax (entmax)",
            "ours / SDPA",
            "entmax / ours",
        ),
        rows=rows,
        targets=targets,
        notes=(f"median of {rounds} rounds in turns; ratios within each round, then the median",),
        numbers=numbers,
    )
