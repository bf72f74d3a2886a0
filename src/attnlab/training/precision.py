"""Which number format to train in: what the user asked for, or what the hardware does well."""

from pathlib import Path

import torch

NAMES = {
    "32": "32-true",
    "bf16": "bf16-mixed",
    "16": "16-mixed",
    "32-true": "32-true",
    "bf16-mixed": "bf16-mixed",
    "16-mixed": "16-mixed",
}


def auto_precision(accelerator: str = "cpu") -> str:
    """bf16-mixed on CPUs with AMX or AVX512-bf16 and on GPUs from Ampere on, else 32-true."""
    if accelerator == "gpu":
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "32-true"
    return "bf16-mixed" if "avx512_bf16" in flags or "amx_bf16" in flags else "32-true"


def resolve_precision(wanted: object, accelerator: str) -> str:
    """Lightning's name for `trainer.precision`."""
    if wanted == "auto":
        return auto_precision(accelerator)
    return NAMES[str(wanted)]
