"""Timing in turns, so that whatever else the machine does hits every side alike."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence


def take_turns(sides: Mapping[str, Callable[[], None]], *, rounds: int, warm_up: int) -> dict[str, list[float]]:
    """Seconds of each side in each round: A B C, A B C, ... Warm-up rounds are run and not counted.

    The order turns by one from round to round, so that no side always follows the same one.
    """
    names = list(sides)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    for turn in range(-warm_up, rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            sides[name]()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def paired_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Median over the rounds of over / under within the round."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))
