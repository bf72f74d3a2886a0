"""What makes a training step fast without changing what it computes: layers compiled as a whole, memory kept."""

import ctypes
import sys

import torch
import torch._functorch.config as autograd_config
from torch import nn
from transformers import PreTrainedModel

from ..attention import cores
from ..attention.attach import give_every_mask
from ..attention.dropout import use_counter_dropout

ALLOW_CUSTOM_BACKWARD = "autograd_cache_allow_custom_autograd_functions"  # not in every torch
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def encoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The module of each encoder layer: the innermost list member around each attached attention."""
    paths = dict(model.named_modules())
    layers: list[nn.Module] = []
    for core in cores(model):
        path = next(name for name, module in paths.items() if module is core)
        parts = path.split(".")
        for end in range(len(parts) - 1, 0, -1):
            if isinstance(paths[".".join(parts[: end - 1])], nn.ModuleList):
                layers.append(paths[".".join(parts[:end])])
                break
    return list(dict.fromkeys(layers))


def compile_layers(model: PreTrainedModel) -> None:
    """Compile every encoder layer in place, with any batch size and length, and give it counter-based dropout.

    All layers of a model share one compiled graph, so the cost is that of one layer. The names in the state dict
    stay as they are.
    """
    give_every_mask(True)
    torch._dynamo.config.recompile_limit = 64  # variants: walking or not, measuring or not, kinds of layer
    # Floats as symbols (a dropout rate, an epsilon) are given up in the end, and then all is traced a second time.
    torch._dynamo.config.specialize_float = True
    # Without this the disk cache passes over graphs with a custom backward; their code is part of its key.
    if hasattr(autograd_config, ALLOW_CUSTOM_BACKWARD):
        setattr(autograd_config, ALLOW_CUSTOM_BACKWARD, True)
    for layer in encoder_layers(model):
        use_counter_dropout(layer)
        layer.compile(dynamic=True)


def forget_compiled() -> None:
    """Start as a fresh process does: what an earlier run here compiled must not decide how the next one computes."""
    give_every_mask(False)
    torch.compiler.reset()


def keep_freed_memory() -> None:
    """On Linux with glibc, let the allocator keep large blocks instead of returning them to the system each step.

    A step on the CPU otherwise pays again for zeroed pages of each activation and gradient.
    """
    if sys.platform != "linux":
        return
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
    except (OSError, AttributeError):
        return
