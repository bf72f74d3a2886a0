"""Table 7: attention under a mask by its kept blocks, against dense SDPA without any mask.

One attention layer of 12 heads of 32, two texts, and a band as wide as gives the wanted share of blocks; forward alone,
as in inference, and forward with backward. Sparsemax goes against itself under the same mask, dense. Memory is what
forward and backward hold at their peak on top of the inputs, in a process of its own, at every length under the same
band: of what grows with the square of the length it would show.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.attention.blocks import BLOCK, pays
from attnlab.attention.core import SparseAttention
from attnlab.attention.masking import EncoderMask, Masks
from attnlab.masks.spec import MaskSpec
from attnlab.report.bench.memory import in_a_process, peak_of
from attnlab.report.bench.models import device
from attnlab.report.bench.options import BenchOptions, parse
from attnlab.report.bench.page import Result, Target
from attnlab.report.bench.timing import paired_ratio, take_turns
from attnlab.training.speed import keep_freed_memory
from attnlab.transforms import build_transform
from attnlab.transforms.kernel import KernelMode, use_kernel

BATCH, HEADS, WIDTH = 2, 12, 32
SHARES = {128: (0.5,), 512: (0.1, 0.25, 0.5), 1024: (0.1, 0.25), 2048: (0.05, 0.1), 4096: (0.05,), 8192: (0.05,)}
QUICK_LENGTHS = (128, 512)
LONGEST_SPARSEMAX = 2048
LONGEST_DENSE_MEMORY = 4096  # dense sparsemax would need 20 GB at 8192
WINDOW = 64
# of these the memory is measured
MEASURED = ("sdpa", "blocks", "sparsemax dense", "sparsemax blocks")
SHORT = {"sdpa": "SDPA", "blocks": "blocks", "sparsemax dense": "sm dense", "sparsemax blocks": "sm blocks"}
ROUNDS, QUICK_ROUNDS, WARM_UP = 7, 3, 2
# (length, share of blocks) -> least speed-up of the forward pass, and of forward and backward
TARGETS = {(2048, 0.05): (4.0, 3.0), (1024, 0.1): (2.0, 2.0)}


@dataclass(frozen=True, kw_only=True)
class Side:
    """One way to compute a layer's attention: run() is a forward pass, run(True) adds the backward pass."""

    run: Callable[[bool], None]
    kept: float = 1.0


def measure(options: BenchOptions) -> Result:
    """Ratios dense / blocks (median within the rounds) for each length and share."""
    keep_freed_memory()
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    rows, targets = [], []
    numbers: dict[str, Any] = {}
    for length in QUICK_LENGTHS if options.quick else tuple(SHARES):
        for share in SHARES[length]:
            window = band(length, share)
            dense, ours = side("sdpa", length, window, options), side("blocks", length, window, options)
            found: dict[str, Any] = {"kept": ours.kept}
            for name, back in (("forward", False), ("both", True)):
                found[name] = _pair(dense, ours, rounds, back)
            with use_kernel("auto"):
                found["auto"] = "blocks" if pays(length, ours.kept) else "dense"
            if share == SHARES[length][0]:
                found["memory"] = {
                    kind: measure_in_a_process(kind, length, options)
                    for kind in MEASURED
                    if length <= LONGEST_DENSE_MEMORY or kind != "sparsemax dense"
                }
            if length <= LONGEST_SPARSEMAX:
                masked = side("sparsemax dense", length, window, options)
                blocks = side("sparsemax blocks", length, window, options)
                found["sparsemax"] = _pair(masked, blocks, max(3, rounds // 2), True)
            numbers[f"{length} {share}"] = found
            rows.append(_row(length, found))
            for place, name in enumerate(("forward", "both")):
                if (length, share) in TARGETS and options.precision != "bf16":
                    what = "forward" if name == "forward" else "forward and backward"
                    label = f"dense / blocks at {length}, {share:.0%} of the blocks, {what}"
                    bound = TARGETS[length, share][place]
                    targets.append(Target(name=label, ratio=found[name]["ratio"], bound=bound, at_most=False))
    return Result(
        name="blocks",
        title=f"Attention by kept blocks of {BLOCK}, {BATCH} texts, {HEADS} heads of {WIDTH}",
        columns=("\nlen", "\nkept", "dense\nfwd", "blocks\nfwd", "\nratio", "dense\nf+b", "blocks\nf+b", "\nratio",
                 "sm", "auto", *(f"MB\n{SHORT[kind]}" for kind in MEASURED)),
        rows=rows,
        targets=targets,
        notes=(
            "dense: scaled_dot_product_attention without a mask; kept: share of the blocks with a kept pair",
            f"fwd, f+b: milliseconds, median of {rounds} rounds in turns; ratio: dense / blocks within the rounds",
            "sm: sparsemax, forward and backward, dense under the same mask / by blocks",
            "auto: whether attn.kernel=auto takes the blocks",
            f"MB: peak of forward and backward on top of the inputs, under |i - j| <= {WINDOW} at every length;",
            "SDPA: without a mask, never holds the probabilities; sm: sparsemax under that mask",
        ),
        numbers=numbers,
    )  # fmt: skip


def _pair(dense: Side, ours: Side, rounds: int, back: bool) -> dict[str, float]:
    with torch.set_grad_enabled(back):
        sides = {"dense": lambda: dense.run(back), "ours": lambda: ours.run(back)}
        seconds = take_turns(sides, rounds=rounds, warm_up=WARM_UP)
    return {
        "dense ms": median(seconds["dense"]) * 1000,
        "ours ms": median(seconds["ours"]) * 1000,
        "ratio": paired_ratio(seconds["dense"], seconds["ours"]),
    }


def _row(length: int, found: dict[str, Any]) -> list[str]:
    forward, both, memory = found["forward"], found["both"], found.get("memory", {})
    return [
        str(length),
        f"{found['kept']:.3f}",
        _ms(forward["dense ms"]),
        _ms(forward["ours ms"]),
        f"{forward['ratio']:.2f}",
        _ms(both["dense ms"]),
        _ms(both["ours ms"]),
        f"{both['ratio']:.2f}",
        f"{found['sparsemax']['ratio']:.2f}" if "sparsemax" in found else "",
        "yes" if found["auto"] == "blocks" else "no",
        *(f"{memory[kind]:,.0f}" if kind in memory else "" for kind in MEASURED),
    ]


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.1f}"


def side(kind: str, length: int, window: int, options: BenchOptions) -> Side:
    """sdpa (without a mask), blocks, sparsemax dense or sparsemax blocks, under |i - j| <= window."""
    where = device()
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    generator = torch.Generator().manual_seed(5)

    def draw() -> Tensor:
        drawn = torch.randn(BATCH, length, HEADS, WIDTH, generator=generator)
        return drawn.to(where, dtype).transpose(1, 2).detach().requires_grad_()

    query, key, value = draw(), draw(), draw()
    upstream = torch.randn(BATCH, length, HEADS, WIDTH, generator=generator).to(where, dtype)
    name = "sparsemax" if kind.startswith("sparsemax") else "softmax"
    core = SparseAttention(build_transform(name, num_heads=HEADS), layer=0, num_heads=HEADS).to(where)
    masks = None if kind == "sdpa" else layer_masks(length, window, "dense" if kind.endswith("dense") else "blocks")

    def run(back: bool) -> None:
        if masks is None:
            context = F.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        else:
            context = core(query, key, value, masks)[0]
        if back:
            context.backward(upstream)
            query.grad = key.grad = value.grad = None
        if where.type == "cuda":
            torch.cuda.synchronize()

    return Side(run=run, kept=1.0 if masks is None or masks.plan is None else masks.plan.kept)


def band(length: int, share: float) -> int:
    """The window of the band that touches about that share of the blocks."""
    return max(1, round((share * -(-length // BLOCK) - 1) / 2)) * BLOCK


def layer_masks(length: int, window: int, kernel: KernelMode) -> Masks:
    """What a layer gets for texts without padding under |i - j| <= window."""
    spec = MaskSpec(name="band", length=length, options={"window": window})
    held = EncoderMask(spec, num_heads=HEADS, num_layers=1).to(device())
    held.begin({})
    padding = torch.ones(BATCH, 1, 1, length, dtype=torch.bool, device=device()).expand(BATCH, 1, length, length)
    with use_kernel(kernel):
        return held.masks(padding, dense=False)


def measure_in_a_process(kind: str, length: int, options: BenchOptions) -> float:
    words = [f"precision={options.precision}", f"threads={options.threads or torch.get_num_threads()}"]
    return float(in_a_process(__name__, kind, length, words))


def measure_here(kind: str, length: int, options: BenchOptions) -> float:
    """Peak of forward and backward on top of what stands before, in megabytes."""
    side(kind, 256, WINDOW, options).run(True)  # code and threads are there now
    one = side(kind, length, WINDOW, options)
    return peak_of(lambda: one.run(True))[0]


if __name__ == "__main__":
    given = parse(sys.argv[3:])
    torch.set_num_threads(given.threads or torch.get_num_threads())
    print(json.dumps(measure_here(sys.argv[1], int(sys.argv[2]), given)))
