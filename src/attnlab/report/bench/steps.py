"""Table 5: one training step with every transform of the catalogue, against the same step with softmax.

Both are ours: attention attached, layers compiled. Step, batch and sides' turns are those of table `step`.
"""

from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from attnlab.report.bench.models import training_step
from attnlab.report.bench.options import BenchOptions
from attnlab.report.bench.page import Result, Target
from attnlab.report.bench.timing import paired_ratio, take_turns
from attnlab.report.bench.transforms import Case, cases
from attnlab.training.speed import forget_compiled

ROUNDS, QUICK_ROUNDS, WARM_UP = 7, 3, 2
MOST_OF_SOFTMAX = 1.25
MOST_OF_SLOW = {"fusedmax": 2.0, "normmax": 2.0, "budget": 2.0}


def measure(options: BenchOptions, chosen: list[Case] | None = None) -> Result:
    """Ratios (median within the rounds) at each length, for each transform; all but softmax by default."""
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    lengths = options.lengths
    rows, targets = [], []
    numbers: dict[str, Any] = {}
    for case in chosen or [case for case in cases() if case.name != "softmax"]:
        # Layers of many models are kinds of one and the same code to the compiler: only two at a time.
        forget_compiled()
        softmax = training_step("ours", replace(options, attn="softmax"))
        steps = {"softmax": softmax, "ours": training_step("ours", options, case.spec)}
        for length in (min(lengths), min(lengths) + 5):
            for step in steps.values():
                step(length)
        found: dict[str, Any] = {}
        for length in lengths:
            turns = {side: partial(step, length) for side, step in steps.items()}
            seconds = take_turns(turns, rounds=rounds, warm_up=WARM_UP)
            ratio = paired_ratio(seconds["ours"], seconds["softmax"])
            found[str(length)] = {"seconds": seconds, "ours/softmax": ratio}
            bound = MOST_OF_SLOW.get(case.name, MOST_OF_SOFTMAX)
            targets.append(Target(name=f"{case.label} / softmax at {length}", ratio=ratio, bound=bound, at_most=True))
        numbers[case.label] = found
        cells = []
        for part in found.values():
            cells += [f"{median(part['seconds']['ours']) * 1000:,.1f} ms", f"{part['ours/softmax']:.2f}"]
        rows.append([case.label, *cells])
    forget_compiled()
    return Result(
        name="steps",
        title=f"One training step of {options.model} with each transform, batch {options.batch}",
        columns=("transform", *(name for length in lengths for name in (f"at {length}", "/ softmax"))),
        rows=rows,
        targets=targets,
        notes=(f"median of {rounds} rounds in turns with softmax; ratios within each round, then the median",),
        numbers=numbers,
    )
