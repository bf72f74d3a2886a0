"""Batches grouped by length, the same for any number of processes.

The global batch is built first, identically everywhere, and then sliced. So N processes see what
one process sees.
"""

import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

Pick = tuple[int, float]
Lengths = Sequence[int] | np.ndarray[Any, np.dtype[Any]]
MEGA_BATCH = 50
# Tensor cores want lengths in eights; a CPU only pays for them.
PAD_MULTIPLE = 8 if torch.cuda.is_available() else 1


def cut(indices: Sequence[int], size: int) -> list[list[int]]:
    """Consecutive batches of `size`; the last two share what is left evenly, so that none is tiny.

    A batch of one example would make the compiler specialise, and its gradient is mostly noise.
    """
    return [list(indices[start:end]) for start, end in pairwise(_bounds(len(indices), size))]


def _bounds(count: int, size: int) -> list[int]:
    """Where batches begin and end; the last two share what is left."""
    bounds = [*range(0, count, size), count]
    rest = count % size
    if rest and count > size:
        bounds[-2] = count - (size + rest) // 2
    return bounds


def share(batch: Sequence[int], rank: int, world: int) -> list[Pick]:
    """This rank's part of a global batch, as (index, weight).

    Every rank gets m = ceil(n / world) picks. Real ones weigh m * world / n; where a slice is short
    its last place is filled by a repeated example of weight 0. So mean over ranks of mean(weight *
    loss) is the mean loss of the global batch, and each rank's mean may be averaged by DDP. All
    weights are 1.0 when world divides n.
    """
    real = len(batch)
    padded = -(-real // world)
    picks = [(index, padded * world / real) for index in batch[rank::world]]
    return picks + [(batch[-1], 0.0)] * (padded - len(picks))


class TrainBatches(Sampler[list[Pick]]):
    """Every example once an epoch, in an order fixed by (seed, epoch).

    Shuffle, cut into pieces of MEGA_BATCH batches, sort each piece by length, cut into batches,
    shuffle the batches. batch_size is global. Yields this rank's picks.
    """

    def __init__(self, lengths: Lengths, batch_size: int, *, seed: int, rank: int = 0, world: int = 1) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world = world
        self.epoch = 0

    @property
    def sampler(self) -> "TrainBatches":
        """Itself: Lightning calls `set_epoch` on `dataloader.batch_sampler.sampler`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Order of the next iteration."""
        self.epoch = epoch

    def global_batches(self) -> Iterable[list[int]]:
        """All batches of this epoch, before slicing."""
        # a string seeds through sha512, so that (1, 23) and (12, 3) don't meet and neighbours are
        # unrelated
        draw = random.Random(f"{self.seed}/{self.epoch}")
        # arrays, which hold a million places in 8 MB; their order is that of the same shuffles of lists
        order = array("q", range(len(self.lengths)))
        draw.shuffle(order)
        places = np.frombuffer(order, dtype=np.int64)
        batches: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        for start, end in pairwise(_bounds(len(places), MEGA_BATCH * self.batch_size)):
            piece = places[start:end]
            piece = piece[np.argsort(self.lengths[piece], kind="stable")]
            batches += [piece[i:j] for i, j in pairwise(_bounds(len(piece), self.batch_size))]
        draw.shuffle(batches)
        return (batch.tolist() for batch in batches)

    def __len__(self) -> int:
        pieces = pairwise(_bounds(len(self.lengths), MEGA_BATCH * self.batch_size))
        return sum(-(-(end - start) // self.batch_size) for start, end in pieces)

    def __iter__(self) -> Iterator[list[Pick]]:
        for batch in self.global_batches():
            yield share(batch, self.rank, self.world)


class BlockBatches(TrainBatches):
    """The same for examples of one length, of which there may be millions: nothing to sort, and no list of them all.

    Yields this rank's picks with the epoch, on which the masks depend.
    """

    def __init__(self, count: int, batch_size: int, *, seed: int, rank: int = 0, world: int = 1) -> None:
        super().__init__(range(count), batch_size, seed=seed, rank=rank, world=world)

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def global_batches(self) -> Iterable[list[int]]:
        """One batch after the other, before slicing."""
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.lengths))
        for start, end in pairwise(_bounds(len(order), self.batch_size)):
            yield order[start:end].tolist()

    def __iter__(self) -> Iterator[list[Any]]:
        for picks in super().__iter__():
            yield [(index, weight, self.epoch) for index, weight in picks]


class EvalBatches(Sampler[list[Pick]]):
    """Every example exactly once over all ranks, longest first, weight 1. batch_size is global."""

    def __init__(self, lengths: Lengths, batch_size: int, *, rank: int = 0, world: int = 1) -> None:
        order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")[rank::world]
        self.batches = [order[start:end] for start, end in pairwise(_bounds(len(order), -(-batch_size // world)))]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Pick]]:
        for batch in self.batches:
            yield [(index, 1.0) for index in batch.tolist()]


def collate(rows: dict[str, list[Any]], *, pad_id: int, longest: int) -> dict[str, Tensor]:
    """Columns of a batch to tensors, padded on the right to the longest, on a GPU to a multiple of 8.

    rows: input_ids, [token_type_ids], label, id, [group], weight. longest: what the model can take, where rounding
    stops. Returns input_ids, attention_mask, [token_type_ids] (B, L) int64; labels (B,) int64 or float32, for
    multilabel (B, labels) float32; weight (B,) float32; example_id, [group] (B,) int64.
    """
    width = max(len(ids) for ids in rows["input_ids"])
    width = max(width, min(-(-width // PAD_MULTIPLE) * PAD_MULTIPLE, longest))
    batch = {
        "input_ids": _padded(rows["input_ids"], width, pad_id),
        "attention_mask": _padded([[1] * len(ids) for ids in rows["input_ids"]], width, 0),
    }
    if "token_type_ids" in rows:
        batch["token_type_ids"] = _padded(rows["token_type_ids"], width, 0)
    batch["labels"] = torch.tensor(rows["label"])
    batch["weight"] = torch.tensor(rows["weight"])
    batch["example_id"] = torch.tensor(rows["id"])
    if "group" in rows:
        batch["group"] = torch.tensor(rows["group"])
    return batch


def _padded(lists: list[list[int]], width: int, value: int) -> Tensor:
    return torch.tensor([[*ids, *[value] * (width - len(ids))] for ids in lists])
