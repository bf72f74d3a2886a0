"""The seam into transformers: attach attention of our own to any encoder, layer by layer."""

from .attach import attach, attention_modules, cores
from .core import SparseAttention
from .persist import load
from .spec import AttentionSpec
from .statistics import attention_statistics, recording, start_recording, stop_recording

__all__ = [
    "AttentionSpec",
    "SparseAttention",
    "attach",
    "attention_modules",
    "attention_statistics",
    "cores",
    "load",
    "recording",
    "start_recording",
    "stop_recording",
]
