"""Attention over the kept blocks of a mask only: time and memory grow with them, not with the square of the length.

Queries and keys are cut into blocks of BLOCK positions. Each block of queries gathers the blocks of keys that hold a
kept pair; query blocks with equally many are computed in one batch (a group). Inside a block the mask still decides
pair by pair. Gathering and its gradient are plain indexing, so any transform works here, forward and backward.

B batch, L length, H heads, D head width, N query blocks of a group, M key blocks of each, S block size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..transforms.kernel import kernel

BLOCK = 32
SHORTEST = 512  # texts below gain nothing (benchmarks/README.md)
MOST_KEPT = 0.25  # share of blocks kept above which dense is as fast
# A group's number of key blocks is rounded up to one of these, by blocks without a kept pair.
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 192, 256)

Mask = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Numbers of its query blocks (N,), of the key blocks of each (N, M), and there (N, M), False for a filler."""

    query: Tensor
    key: Tensor
    there: Tensor

    def positions(self) -> tuple[Tensor, Tensor]:
        """Positions of the queries (N, S, 1) and of the keys (N, 1, M*S)."""
        within = torch.arange(BLOCK, device=self.query.device)
        query = self.query[:, None] * BLOCK + within
        key = (self.key[:, :, None] * BLOCK + within).flatten(1)
        return query[:, :, None], key[:, None, :]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which blocks are computed for a text of `length` tokens; kept: their share of all blocks."""

    length: int
    groups: tuple[Group, ...]
    kept: float


def plan(any_kept: Tensor, length: int) -> Plan:
    """The groups out of `any_kept` (blocks, blocks) bool: whether a block holds a kept pair."""
    count = len(any_kept)
    # kept key blocks first, in their order
    order = any_kept.int().argsort(dim=-1, descending=True, stable=True)
    kept = any_kept.sum(dim=-1)
    widths = torch.tensor([*(w for w in WIDTHS if w < count), count], device=any_kept.device)
    rounded = widths[torch.searchsorted(widths, kept.clamp_min(1))]
    groups = []
    for width in rounded.unique().tolist():
        rows = (rounded == width).nonzero().squeeze(-1)
        there = torch.arange(width, device=any_kept.device) < kept[rows, None]
        groups.append(Group(query=rows, key=order[rows, :width], there=there))
    return Plan(length=length, groups=tuple(groups), kept=float(rounded.sum()) / count**2)


def pays(length: int, kept: float = 0.0) -> bool:
    """Whether to compute a text of that length by blocks, of which that share is kept, as attn.kernel says."""
    mode = kernel()
    if mode in ("blocks", "dense"):
        return mode == "blocks"
    return length >= SHORTEST and kept <= MOST_KEPT


@torch.no_grad()
def blocks_kept(mask: Mask, length: int, device: torch.device) -> Tensor:
    """(blocks, blocks) bool: whether `mask(query, key)`, any leading dimensions, keeps a pair of the block.

    One row of blocks is looked at at a time, so that memory does not grow with the square of the length.
    """
    count = -(-length // BLOCK)
    key = torch.arange(length, device=device)
    rows = []
    for start in range(0, length, BLOCK):
        keep = mask(key[start : start + BLOCK, None], key[None, :])
        columns = keep.flatten(0, -2).any(dim=0)
        rows.append(F.pad(columns, (0, count * BLOCK - length)).view(count, BLOCK).any(dim=-1))
    return torch.stack(rows)


def gather(x_BHLD: Tensor, blocks: Tensor) -> Tensor:
    """The blocks (N,) or (N, M) of x, for each n one text of its own: (B*N, H, S or M*S, D)."""
    B, H, L, D = x_BHLD.shape
    x_BLHD = x_BHLD.transpose(1, 2)
    count = -(-L // BLOCK)
    if L % BLOCK:
        x_BLHD = F.pad(x_BLHD, (0, 0, 0, 0, 0, count * BLOCK - L))
    cut = x_BLHD.reshape(B, count, BLOCK, H, D)
    chosen = cut.index_select(1, blocks.flatten())
    return chosen.reshape(B * len(blocks), -1, H, D).transpose(1, 2)


def scatter(contexts: list[Tensor], plan: Plan, batch: int) -> Tensor:
    """Contexts (B*N, S, H, D) of the plan's groups back in order: (B, L, H, D)."""
    _, _, H, D = contexts[0].shape
    order = torch.cat([group.query for group in plan.groups])
    stacked = torch.cat([c.view(batch, -1, BLOCK, H, D) for c in contexts], dim=1)
    return stacked.index_select(1, order.argsort()).reshape(batch, -1, H, D)[:, : plan.length]
