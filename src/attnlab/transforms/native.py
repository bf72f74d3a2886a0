"""The kernels in C++, entmax.cpp and fusedmax.cpp, as PyTorch operations for float32 and bfloat16 on a CPU.

They are built once by the C++ compiler that `torch.compile` uses, with its flags and in its cache on disk. Where there
is none, and on a GPU, for other dtypes, for second derivatives and under `attn.kernel=eager`, the same formulas run in
PyTorch.
"""

import ctypes
import functools
import hashlib
import platform
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .kernel import has_compiler, unfit

SOURCES = tuple(Path(__file__).with_name(name) for name in ("rows.cpp", "entmax.cpp", "fusedmax.cpp"))
FLAGS = ("-ftree-loop-vectorize", "-ffp-contract=fast", "-fno-math-errno")
DTYPES = (torch.float32, torch.bfloat16)
MOST_DIMS = 8
# A thread is not worth waking for fewer numbers.
FEWEST_A_THREAD = 1 << 13


def _processor() -> str:
    """What -march=native depends on, so that machines of different kinds can share the cache."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        told = sorted(
            {line for line in lines if line.split("\t")[0] in ("model name", "flags", "Features", "CPU part")}
        )
    except OSError:
        told = [platform.machine(), platform.processor()]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def build(*flags: str) -> ctypes.CDLL:
    """The kernels, built with these flags for the compiler on top."""
    from torch._inductor.codecache import CppCodeCache

    source = "\n".join([*(path.read_text() for path in SOURCES), f"// built for {_processor()}"])
    library: ctypes.CDLL = CppCodeCache.load(source, extra_flags=(*FLAGS, *flags), needs_vec_isa=False)
    return library


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        return build()
    except Exception as error:  # whatever a missing or broken tool chain raises
        if has_compiler():  # which says so where there is none
            warnings.warn(
                f"the kernels in C++ do not build here ({type(error).__name__}): sparse attention runs on what "
                "torch.compile makes of it, more slowly.",
                stacklevel=2,
            )
        return None


def _built() -> bool:
    return _library() is not None


# What torch.compiler.assume_constant_result sets; that one imports the compiler, and with it makes its cache folder.
_built._dynamo_marked_constant = True  # type: ignore[attr-defined]


def runs_native(scores: Tensor) -> bool:
    """Whether the kernels in C++ take a tensor of this kind, here and now."""
    return (
        scores.device.type == "cpu"
        and scores.dtype in DTYPES
        and 1 <= scores.dim() <= MOST_DIMS
        and not unfit(scores)
        and _built()
    )


def _address(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _integers(numbers: Any) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _a_row(value: Tensor, scores: Tensor, dtype: torch.dtype) -> tuple[Tensor, ctypes.Array[ctypes.c_int64]]:
    """One value a row, and its strides along the rows."""
    if value.device != scores.device:
        raise ValueError(f"scores are on {scores.device}, but a value for each row is on {value.device}")
    value = value.to(dtype)
    return value, _integers(value.expand(*scores.shape[:-1], 1).stride())


def _keep(keep: Tensor | None, scores: Tensor) -> tuple[ctypes.c_void_p, ctypes.Array[ctypes.c_int64]]:
    if keep is None:
        return _address(None), _integers([0] * scores.dim())
    if keep.dtype != torch.bool or keep.device != scores.device:
        raise ValueError(
            f"keep must be a bool tensor, True = may be attended, on {scores.device}, not {keep.dtype} on {keep.device}"
        )
    try:
        strides = keep.expand(scores.shape).stride()
    except RuntimeError as error:
        shapes = f"keep of shape {tuple(keep.shape)} does not broadcast to scores of shape {tuple(scores.shape)}"
        raise ValueError(shapes) from error
    return _address(keep), _integers(strides)


def _threads(scores: Tensor) -> int:
    return max(1, min(torch.get_num_threads(), scores.numel() // FEWEST_A_THREAD))


@torch.library.custom_op("attnlab::entmax_rows", mutates_args=())
def entmax_rows(scores: Tensor, keep: Tensor | None, alpha: Tensor, scale: Tensor) -> Tensor:
    """entmax of scale * scores; alpha and scale broadcast to (..., 1). alpha = 2 is sparsemax."""
    library = _library()
    assert library is not None
    scores = scores.contiguous()
    result = torch.empty_like(scores)
    if scores.numel():
        alphas, alpha_strides = _a_row(alpha, scores, torch.float64)
        scales, scale_strides = _a_row(scale, scores, torch.float32)
        library.attnlab_entmax(
            ctypes.c_bool(scores.dtype == torch.bfloat16), _address(scores), _address(result),
            _integers(scores.shape), ctypes.c_int64(scores.dim() - 1), *_keep(keep, scores),
            _address(scales), scale_strides, _address(alphas), alpha_strides, ctypes.c_int(_threads(scores)),
        )  # fmt: skip
    return result


@entmax_rows.register_fake
def _(scores: Tensor, keep: Tensor | None, alpha: Tensor, scale: Tensor) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


@torch.library.custom_op("attnlab::entmax_rows_gradient", mutates_args=())
def entmax_rows_gradient(
    probabilities: Tensor, grad: Tensor, alpha: Tensor, scale: Tensor, learned: bool
) -> tuple[Tensor, Tensor]:
    """(gradient in the scores, grad . dp/dalpha of each row (..., 1)); the second is empty unless `learned`."""
    library = _library()
    assert library is not None
    p = probabilities.contiguous()
    g = grad.to(p.dtype).contiguous()
    result = torch.empty_like(p)
    pull = torch.zeros((*p.shape[:-1], 1) if learned else (0,), dtype=torch.float32)
    if p.numel():
        alphas, alpha_strides = _a_row(alpha, p, torch.float64)
        scales, scale_strides = _a_row(scale, p, torch.float32)
        library.attnlab_entmax_gradient(
            ctypes.c_bool(p.dtype == torch.bfloat16), _address(p), _address(g), _address(result),
            _address(pull if learned else None), _integers(p.shape), ctypes.c_int64(p.dim() - 1),
            _address(scales), scale_strides, _address(alphas), alpha_strides, ctypes.c_int(_threads(p)),
        )  # fmt: skip
    return result, pull


@entmax_rows_gradient.register_fake
def _(probabilities: Tensor, grad: Tensor, alpha: Tensor, scale: Tensor, learned: bool) -> tuple[Tensor, Tensor]:
    result = torch.empty_like(probabilities, memory_format=torch.contiguous_format)
    shape = (*probabilities.shape[:-1], 1) if learned else (0,)
    return result, probabilities.new_empty(shape, dtype=torch.float32)


def fuse_runs(z: Tensor, keep: Tensor | None, tv: float, label_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(y, label) of float32 scores: see `attnlab.transforms.fusedmax.fuse_runs`."""
    library = _library()
    assert library is not None
    z = z.contiguous()
    y, label = torch.empty_like(z), torch.empty(z.shape, dtype=label_dtype)
    if z.numel():
        library.attnlab_fuse_runs(
            ctypes.c_int(label.itemsize), _address(z), _address(y), _address(label), _integers(z.shape),
            ctypes.c_int64(z.dim() - 1), *_keep(keep, z), ctypes.c_double(tv), ctypes.c_int(_threads(z)),
        )  # fmt: skip
    return y, label


@torch.library.custom_op("attnlab::run_means", mutates_args=())
def run_means(grad: Tensor, label: Tensor, keep: Tensor | None) -> Tensor:
    """The mean of a float32 gradient over the kept keys of each run, 0 at masked keys."""
    library = _library()
    assert library is not None
    grad, label = grad.contiguous(), label.contiguous()
    result = torch.empty_like(grad)
    if grad.numel():
        library.attnlab_run_means(
            ctypes.c_int(label.itemsize), _address(grad), _address(label), _address(result), _integers(grad.shape),
            ctypes.c_int64(grad.dim() - 1), *_keep(keep, grad), ctypes.c_int(_threads(grad)),
        )  # fmt: skip
    return result


@run_means.register_fake
def _(grad: Tensor, label: Tensor, keep: Tensor | None) -> Tensor:
    return torch.empty_like(grad, memory_format=torch.contiguous_format)
