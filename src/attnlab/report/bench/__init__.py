"""attnlab bench: what a step costs, what it holds in memory, how fast an epoch goes, what each transform does.

Ratios are what counts. Each comes out of one run, in which all sides took turns on the same
machine.
"""

import json
import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from attnlab.errors import UserError, closest
from attnlab.report.bench.options import TABLES, BenchOptions, parse
from attnlab.report.bench.page import Result, machine_line, show

HELP = """\
usage: attnlab bench [step|memory|trainer|transforms|steps|compile|blocks|all] [KEY=VALUE ...]

  step        one training step: stock SDPA softmax, our sparsemax, the entmax package's sparsemax
  memory      peak memory of that step, each in a process of its own
  trainer     a whole SST-2 epoch: Hugging Face Trainer against attnlab train
  transforms  every transform by itself: time, chosen keys, error, laws, memory for the backward
  steps       a training step with every transform against one with softmax
  compile     what compiling costs a run, with the cache empty and filled, and what is compiled again
  blocks      long texts under a mask, by its kept blocks, against dense attention: time and memory

  quick=true      fewer rounds; trainer: 1,600 sentences; transforms: smaller; compile: no whole epoch
  threads=2       CPU threads (default: torch's own choice)
  lengths=32,64   tokens a sentence   batch=32   rounds=15   (step, memory, steps)
  attn=sparsemax  our attention (compile: one more of them)
  model=minilm    or a folder with a BERT
  precision=bf16  or 32 (step, memory, steps: auto; blocks: 32)
  compile=false   our side uncompiled (step, memory, steps, transforms)
  json=FILE       write the numbers there, too
"""


def main(argv: Sequence[str]) -> int:
    """Print the tables asked for (all of them by default). Exit code 0."""
    words = list(argv)
    if any(word in ("-h", "--help") for word in words):
        print(HELP, end="")
        return 0
    table = words.pop(0) if words and "=" not in words[0] else "all"
    if table not in (*TABLES, "all"):
        raise UserError(f"unknown table {table!r}{closest(table, (*TABLES, 'all'))}")
    options = parse(words)
    import torch  # here, because it takes seconds to import

    before = torch.get_num_threads()
    torch.set_num_threads(options.threads or before)
    try:
        results = run_tables(TABLES if table == "all" else (table,), options)
        machine = machine_line(options)
    finally:
        torch.set_num_threads(before)
    if options.json is not None:
        numbers = {result.name: result.numbers for result in results}
        page = {"machine": machine, "tables": numbers}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(page, indent=2) + "\n", encoding="utf-8")
    return 0


def run_tables(tables: Sequence[str], options: BenchOptions) -> list[Result]:
    """Measure and print one table after the other."""
    from attnlab.report.bench import blocks, compiling, memory, step, steps, trainer, transforms

    measures: dict[str, Callable[[BenchOptions], Result]] = {
        "step": step.measure,
        "memory": memory.measure,
        "trainer": trainer.measure,
        "transforms": transforms.measure,
        "steps": steps.measure,
        "compile": compiling.measure,
        "blocks": blocks.measure,
    }
    console = Console(width=None if sys.stdout.isatty() else 100)
    results = []
    for name in tables:
        results.append(measures[name](options))
        show(results[-1], machine_line(options), console)
    return results


def script(table: str) -> int:
    """For benchmarks/TABLE.py: that table with the options of the command line."""
    try:
        return main([table, *sys.argv[1:]])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


__all__ = ["BenchOptions", "Result", "main", "run_tables", "script"]
