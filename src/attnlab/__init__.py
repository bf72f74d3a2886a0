"""attnlab: fine-tune BERT-like encoders with sparse, masked and measured self-attention."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention import attach, load
    from .report.run import train

__version__ = "0.1.0"
__all__ = ["attach", "load", "train"]


def __getattr__(name: str) -> Any:
    # Imported on first use: the command line must answer --help without loading torch.
    if name in ("attach", "load"):
        from . import attention

        return getattr(attention, name)
    if name == "train":
        from .report.run import train

        return train
    raise AttributeError(f"module 'attnlab' has no attribute {name!r}")
