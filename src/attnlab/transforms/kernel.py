"""How the row kernels run: in C++, compiled from PyTorch, or plain PyTorch.

A row kernel is a short plain-PyTorch function of score-shaped tensors. Compiled with dynamic shapes it becomes one
loop over the rows (C++ on a CPU, Triton on a GPU). sparsemax, entmax and fusedmax, and what is made of them, have
kernels in C++ besides, for float32 and bfloat16 on a CPU (`native.py`), several times faster. `use_kernel` chooses:
`auto` takes either for tensors large enough to win, `compiled` always, `eager` never. Inside somebody else's
`torch.compile` a function is simply traced. `blocks` and `dense` are about masks (attention/blocks.py) and leave the
row kernels as `auto` does.
"""

import functools
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, ParamSpec, TypeVar, get_args

import torch

P = ParamSpec("P")
R = TypeVar("R")
KernelMode = Literal["auto", "compiled", "eager", "blocks", "dense"]
KERNELS = get_args(KernelMode)
# Below this many elements, compiled and plain kernels differ by less than the call overhead.
SMALLEST_COMPILED = 1 << 16

_mode: KernelMode = "auto"


def set_kernel(mode: KernelMode) -> None:
    """Choose for this process how attention runs from now on."""
    global _mode
    if mode not in KERNELS:
        raise ValueError(f"attn.kernel must be one of {', '.join(KERNELS)}, not {mode!r}")
    _mode = mode


def kernel() -> KernelMode:
    """What `set_kernel` chose."""
    return _mode


@contextmanager
def use_kernel(mode: KernelMode) -> Iterator[None]:
    """Like `set_kernel`, for the length of a `with` block."""
    before = _mode
    set_kernel(mode)
    try:
        yield
    finally:
        set_kernel(before)


@functools.cache
def has_compiler() -> bool:
    """Whether `torch.compile` builds code here, found by building a line of it; warns once when it does not."""
    reason = "no C++ compiler found"
    if any(name and shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++", "gcc")):
        try:
            torch.compile(lambda x: x + 1)(torch.zeros(8))
            return True
        except Exception as error:  # whatever a broken tool chain raises
            reason = f"the C++ compiler does not work ({type(error).__name__})"
    warnings.warn(
        f"{reason}: attention runs uncompiled, several times slower. Install g++ or clang++ for the fast kernels.",
        stacklevel=2,
    )
    return False


def unfit(scores: torch.Tensor) -> bool:
    """Whether plain PyTorch is to be used: as `use_kernel` says, for few scores, and for second derivatives."""
    if _mode == "eager":
        return True
    if _mode != "compiled" and not torch.compiler.is_compiling() and scores.numel() < SMALLEST_COMPILED:
        return True
    # A compiled function cannot be differentiated twice; `create_graph=True` arrives here with grad mode on.
    return torch.is_grad_enabled() and scores.requires_grad


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a row kernel on first use; without a working compiler run it as it is, after one warning."""
    compiled: Callable[P, R] | None = None
    broken = False

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal compiled, broken
        if torch.compiler.is_compiling() or broken or unfit(args[0]):
            return function(*args, **kwargs)
        if not has_compiler():
            broken = True
            return function(*args, **kwargs)
        if compiled is None:
            # Variants, each compiled once: with and without a mask, numbers of dims, dtypes, sizes of one.
            torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
            compiled = torch.compile(function, dynamic=True)
        try:
            return compiled(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            broken = True
            warnings.warn(
                f"the compiler failed ({type(error).__name__}: {str(error).splitlines()[0]}): "
                "sparse attention runs uncompiled, several times slower.",
                stacklevel=2,
            )
            return function(*args, **kwargs)

    return run
