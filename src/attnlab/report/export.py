"""A run's mask as a file that `mask=file` trains with, and as pictures.

mask.safetensors                    keep (layers or 1, heads or 1, L, L), as `masks/saved.py` reads it
mask.png                            all heads in small
mask_head_00.png, ...               one head; mask_layer_00_head_00.png, ... where layers differ
"""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..analysis.importance import mask_gates
from ..attention import load
from ..attention.masking import EncoderMask, encoder_mask
from ..errors import UserError
from ..masks.saved import write_mask
from .mask_figure import head_figure, overview_figure
from .plots import save_figure

MOST_BYTES = 1_500_000  # of the overview, where the maps of many heads are fine-grained


@dataclass(frozen=True, kw_only=True)
class ExportedMask:
    """files: the mask, its overview, then a picture a head. density: share of pairs kept. notes: what to know of it."""

    files: tuple[Path, ...]
    density: float
    notes: tuple[str, ...]


def hard_mask(held: EncoderMask) -> Tensor:
    """keep (layers or 1, heads or 1, L, L) bool: the pairs whose gate in eval mode is above 0.5."""
    return mask_gates(held) > 0.5


def export_mask(run: Path, output: Path | None = None) -> ExportedMask:
    """Write the mask that the run learned, or has, to `output` (default: run/export). Raises UserError without one."""
    held = encoder_mask(load(run))
    if held is None:
        raise UserError(
            f"{run} has no mask to export: it was trained with mask=none. Train one with mask=dam, or take a run "
            "with a pattern, such as mask=star"
        )
    folder = output if output is not None else run / "export"
    folder.mkdir(parents=True, exist_ok=True)
    keep = hard_mask(held)
    density = float(keep.float().mean())
    special = held.hubs == "special"
    file = folder / "mask.safetensors"
    notes = {"form": _form(held), "keep_special": str(special).lower(), "density": f"{density:.6f}", "run": str(run)}
    write_mask(file, keep, {"name": held.spec.name, "apply": held.spec.apply, **notes})
    files = (file, *_pictures(folder, keep, held.spec.name))
    return ExportedMask(files=files, density=density, notes=tuple(_remarks(held, keep)))


def _pictures(folder: Path, keep: Tensor, name: str) -> list[Path]:
    layers, heads, length, _ = keep.shape
    density = float(keep.float().mean())
    title = f"mask={name}: {100 * density:.1f} % of the pairs of {length} tokens kept"
    files = [save_figure(overview_figure(keep, title), folder / "mask.png", most_bytes=MOST_BYTES)]
    for layer in range(layers):
        for head in range(heads):
            prefix = f"layer_{layer:02d}_" if layers > 1 else ""
            shown = f"{f'Layer {layer}, head' if layers > 1 else 'Head'} {head}" if heads > 1 else "Every head"
            figure = head_figure(keep[layer, head], shown)
            files.append(save_figure(figure, folder / f"mask_{prefix}head_{head:02d}.png"))
    return files


def _form(held: EncoderMask) -> str:
    return held.learned.form if held.learned is not None else held.spec.name


def _remarks(held: EncoderMask, keep: Tensor) -> list[str]:
    remarks = []
    if held.hubs == "special":
        remarks.append("besides, pairs with a special token ([CLS], [SEP]) are kept in every text: keep_special")
    elif not bool(keep.any(dim=-1).all()):
        empty = int((~keep.any(dim=-1)).sum())
        remarks.append(f"{empty} queries, over heads and layers, keep no key: mask=file needs mask.keep_special=true")
    if held.learned is not None and not held.learned.hard:
        remarks.append("the run's gates are soft (mask.hard=false): kept is what has a gate above 0.5")
    if held.multiply:
        remarks.append("the run multiplied the probabilities: add mask.apply=probabilities to mask=file")
    return remarks
