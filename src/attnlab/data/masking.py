"""Masked language modelling: which tokens are hidden, and the batches that ask for them.

A block's mask depends on (seed, epoch, block) only: it is the same in any batch, in any number of processes, and after
a resume. In evaluation it depends on the block alone, so that perplexities can be compared over epochs and runs.
Shapes: B blocks, L tokens, M masked tokens of all blocks, V ordinary tokens of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from attnlab.data.batches import collate

MASK, OTHER = 0.8, 0.1  # shares of the masked tokens; the rest stays

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Masking:
    """What hides tokens. special: ids that are never masked; ordinary (V,): all the others."""

    probability: float
    whole_word: bool
    mask_id: int
    special: Ints
    ordinary: Ints

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, *, probability: float, whole_word: bool) -> "Masking":
        special = np.array(sorted(tokenizer.all_special_ids))
        ordinary = np.setdiff1d(np.arange(len(tokenizer)), special)
        return cls(
            probability=probability,
            whole_word=whole_word,
            mask_id=int(tokenizer.mask_token_id),
            special=special,
            ordinary=ordinary,
        )

    def chosen(self, ids_BL: Ints, continues_BL: Bools, draws_2BL: Floats) -> Bools:
        """Which tokens are to be predicted: whole words in random order, until the share is reached.

        On average exactly `probability` of a block's maskable tokens: the word that would go beyond is taken with the
        probability that makes it so (Devlin 2019 leaves it out). At least one word a block. continues: the token
        belongs to the word of the one before it. draws: uniform in [0, 1).
        """
        B, L = ids_BL.shape
        maskable = ~np.isin(ids_BL, self.special)
        inside = np.zeros_like(maskable)
        if self.whole_word:
            inside[:, 1:] = continues_BL[:, 1:] & maskable[:, 1:] & maskable[:, :-1]
        starts = np.maximum.accumulate(np.where(inside, 0, np.arange(L)), axis=1)
        words = starts + L * np.arange(B)[:, None]
        order_draw, last_draw = (draw.reshape(-1)[words] for draw in draws_2BL)
        order = np.argsort(np.where(maskable, order_draw, 2.0), axis=1, kind="stable")
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.broadcast_to(np.arange(L), (B, L)), axis=1)
        before = ranks.reshape(-1)[words]
        sizes = np.bincount(words.reshape(-1), minlength=B * L)[words]
        wanted = self.probability * maskable.sum(axis=1, keepdims=True)
        chosen: Bools = maskable & ((before == 0) | (before + last_draw * sizes < wanted))
        return chosen

    def hidden(self, ids_BL: Ints, chosen_BL: Bools, draws_BL: Floats) -> Ints:
        """The ids with 80 % of the chosen tokens as [MASK], 10 % as any ordinary token, 10 % as they are."""
        place = np.clip((draws_BL - MASK) / OTHER, 0, np.nextafter(1, 0))
        others = self.ordinary[(place * len(self.ordinary)).astype(np.int64)]
        shown = np.where(draws_BL < MASK, self.mask_id, np.where(draws_BL < MASK + OTHER, others, ids_BL))
        return np.where(chosen_BL, shown, ids_BL)


def draws(block_ids: Sequence[int], length: int, stream: int) -> Floats:
    """(3, B, length) uniform numbers; those of a token depend on the stream, its block's id, and its place only."""
    rows = [np.random.Generator(np.random.Philox(key=[stream, i])).random((length, 3)) for i in block_ids]
    return np.stack(rows).transpose(2, 0, 1)


def stream_of(seed: int, epoch: int | None) -> int:
    """The stream of a training epoch; 0 for evaluation, whatever the seed."""
    return 0 if epoch is None else ((seed % 2**31) << 32) + epoch + 1


def collate_masked(
    rows: dict[str, list[Any]], *, masking: Masking, seed: int, pad_id: int, longest: int
) -> dict[str, Tensor]:
    """Columns of a batch to tensors, with tokens hidden.

    rows: id, input_ids, continues, weight, epoch (None in evaluation). Returns what `data.batches.collate` does, with
    masked (B, L) bool: where a token is to be predicted; labels (M,): the tokens that were there; weight (M,): shares
    the weight of a block among its masked tokens, so that mean(weight * loss) over the M tokens is the mean over
    blocks of weight * (mean loss in the block).
    """
    epoch = rows["epoch"][0]
    batch = collate({**rows, "label": rows["id"]}, pad_id=pad_id, longest=longest)
    ids = batch["input_ids"].numpy()
    B, L = ids.shape
    continues = np.zeros((B, L), dtype=np.bool_)
    for row, flags in enumerate(rows["continues"]):
        continues[row, : len(flags)] = flags
    uniform = draws(rows["id"], L, stream_of(seed, epoch))
    chosen = masking.chosen(ids, continues, uniform[:2])
    hidden = masking.hidden(ids, chosen, uniform[2])
    counts = chosen.sum(axis=1)
    shares = np.array(rows["weight"]) * counts.sum() / (B * np.maximum(counts, 1))
    batch["labels"] = torch.from_numpy(ids[chosen])
    batch["masked"] = torch.from_numpy(chosen)
    batch["input_ids"] = torch.from_numpy(hidden)
    batch["weight"] = torch.from_numpy(np.repeat(shares, counts)).float()
    return batch
