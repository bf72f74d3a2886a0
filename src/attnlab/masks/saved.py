"""A mask in a file: safetensors with one boolean tensor `keep` (layers or 1, heads or 1, length, length)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..errors import UserError

KEY = "keep"


class SavedMask(nn.Module):
    """A frozen mask, looked up by position; texts longer than it are refused."""

    def __init__(self, keep: Tensor) -> None:
        super().__init__()
        self.keep: Tensor
        self.register_buffer("keep", keep)

    @property
    def length(self) -> int:
        """The longest text it is for."""
        return int(self.keep.shape[-1])

    def sample(self) -> Tensor:
        return self.keep

    def at(self, gates: Any, query: Tensor, key: Tensor) -> Tensor:
        """keep (layers or 1, heads or 1, ...) of the pairs of these positions. Raises UserError beyond its length."""
        longest = 1 + int(max(query.max(), key.max()))
        if longest > self.length:
            raise UserError(
                f"the mask is for texts of at most {self.length} tokens, this one has {longest}: "
                f"type data.max_length={self.length}, or take a mask of that length"
            )
        chosen: Tensor = gates[..., query, key]
        return chosen

    def density(self) -> float:
        """Share of pairs kept, over all heads and layers."""
        return float(self.keep.float().mean())

    def extra_repr(self) -> str:
        return f"{tuple(self.keep.shape)}"


def write_mask(path: Path, keep: Tensor, notes: Mapping[str, str]) -> None:
    """Write `keep` (layers or 1, heads or 1, length, length), with notes as the file's metadata."""
    save_file({KEY: keep.bool().contiguous().cpu()}, path, metadata=dict(notes))


def read_mask(path: Path) -> tuple[Tensor, dict[str, str]]:
    """`keep` (layers or 1, heads or 1, length, length) and the notes of the file, or of mask.safetensors in a folder.

    Tensors of fewer dimensions are taken as (heads, length, length) or (length, length). Raises UserError for a file
    that is not there or holds no mask.
    """
    file = path / "mask.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"mask.path={path}: there is no such file; `attnlab export run=FOLDER what=mask` writes one")
    try:
        with safe_open(file, framework="pt") as content:
            if KEY not in content.keys():  # noqa: SIM118 (not a mapping)
                raise UserError(f"mask.path={path} holds no tensor named {KEY!r}, but {', '.join(content.keys())}")
            keep, notes = content.get_tensor(KEY), content.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"mask.path={path} is no safetensors file that can be read ({error}): "
            "`attnlab export run=FOLDER what=mask` writes one"
        ) from error
    if not 2 <= keep.dim() <= 4 or keep.shape[-1] != keep.shape[-2] or keep.shape[-1] == 0:
        raise UserError(f"mask.path={path}: {KEY} is {tuple(keep.shape)}; wanted is (layers, heads, length, length)")
    return keep.bool().reshape((1,) * (4 - keep.dim()) + tuple(keep.shape)), notes
