"""The data module of masked language modelling: blocks of text, masks, and the unigram baseline."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from attnlab.data.batches import BlockBatches, EvalBatches, TrainBatches
from attnlab.data.choices import ChoiceDataModule
from attnlab.data.corpus import find_corpus, packed
from attnlab.data.load import Examples
from attnlab.data.masking import Masking, collate_masked
from attnlab.data.module import Batch, TextDataModule, place
from attnlab.data.spans import SpanDataModule
from attnlab.data.spec import SPLITS, DataSpec
from attnlab.errors import UserError

HELD_OUT = 0.05
MOST_HELD_OUT = 4096  # blocks: half a million tokens say enough


def build_data(
    spec: DataSpec, tokenizer: PreTrainedTokenizerBase, seed: int, model_limit: int | None = None
) -> TextDataModule:
    """The data module of the task's kind."""
    kinds = {"mlm": CorpusDataModule, "span": SpanDataModule, "multiple_choice": ChoiceDataModule}
    return kinds.get(spec.kind, TextDataModule)(spec, tokenizer, seed, model_limit)


class _Blocks(torch.utils.data.Dataset[Any]):
    """Blocks by (index, weight), in training (index, weight, epoch); a batch is read from Arrow in one go."""

    def __init__(self, part: datasets.Dataset) -> None:
        self.part = part

    def __len__(self) -> int:
        return len(self.part)

    def __getitems__(self, picks: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
        rows: dict[str, list[Any]] = self.part[[pick[0] for pick in picks]]
        rows["weight"] = [pick[1] for pick in picks]
        rows["epoch"] = [pick[2] if len(pick) > 2 else None for pick in picks]
        return rows


class CorpusDataModule(TextDataModule):
    """Loaders of the batches that `collate_masked` describes, from a text of any size.

    `examples.splits` are the blocks themselves, on disk. notes hold the unigram baseline.
    """

    def __init__(
        self, spec: DataSpec, tokenizer: PreTrainedTokenizerBase, seed: int, model_limit: int | None = None
    ) -> None:
        super().__init__(spec, tokenizer, seed, model_limit)
        if any(token is None for token in (tokenizer.mask_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id)):
            raise UserError(f"{type(tokenizer).__name__} has no mask token: choose an encoder such as BERT")
        self.masking = Masking.of(tokenizer, probability=spec.mask_probability, whole_word=spec.whole_word)
        self._unigram: dict[str, float] = {}
        self._collate = partial(
            collate_masked,
            masking=self.masking,
            seed=seed,
            pad_id=int(tokenizer.pad_token_id),
            longest=self.limit,
        )

    def _load(self) -> None:
        if self.tokens:
            return
        corpus = find_corpus(self.spec)
        parts = {
            split: packed(text, self.tokenizer, split=split, max_length=self.max_length, unknown=self.spec.unknown)
            for split, text in corpus.texts.items()
        }
        notes = [*corpus.notes, *self._length_notes()]
        if "val" not in parts:
            parts |= _hold_out(parts["train"], notes)
        if self.spec.limit is not None:
            for split, part in parts.items():
                if len(part) > self.spec.limit:
                    notes.append(f"{split}: {self.spec.limit} of {len(part):,} blocks (data.limit)")
                    parts[split] = part.select(range(self.spec.limit))
        self.tokens = {split: parts[split] for split in SPLITS if split in parts}
        self._examples = Examples(
            splits=self.tokens,
            labels=(),
            source=corpus.source,
            notes=tuple(notes),
            fingerprint=corpus.fingerprint,
        )
        sizes = ", ".join(f"{split} {len(part):,}" for split, part in self.tokens.items())
        notes.append(f"blocks of {self.max_length} tokens: {sizes}")
        perplexity = self.baselines("val")["unigram_perplexity"]
        notes.append(f"unigram baseline: perplexity {perplexity:,.1f} on the masked tokens of val")
        self.notes = tuple(notes)

    def train_dataloader(self) -> DataLoader[Batch]:
        """Shuffled blocks; the epoch is taken from the trainer and from `set_epoch`."""
        rank, world = place()
        part = self._part("train")
        batches = BlockBatches(len(part), self.spec.batch_size, seed=self.seed, rank=rank, world=world)
        if self.trainer is not None:
            batches.set_epoch(self.trainer.current_epoch)
        return self._loader(part, batches)

    def baselines(self, split: str) -> dict[str, float]:
        """unigram_perplexity: of predicting the masked tokens of `split` by how often they stand in train.

        p(w) = (count(w) + 1) / (N + V), over the V tokens that are not special and their N places in train.
        """
        if split not in self._unigram:
            masked = np.zeros(len(self.tokenizer), dtype=np.int64)
            for rows in _columns(self._part(split)).iter(batch_size=256):
                count = len(rows["id"])
                batch = self._collate(rows | {"weight": [1.0] * count, "epoch": [None] * count})
                masked += np.bincount(batch["labels"].numpy(), minlength=len(masked))
            counts = _counts(self._part("train"), len(masked))
            ordinary = self.masking.ordinary
            logs = np.log(counts[ordinary] + 1) - math.log(counts[ordinary].sum() + len(ordinary))
            self._unigram[split] = math.exp(-float(masked[ordinary] @ logs) / masked.sum())
        return {"unigram_perplexity": self._unigram[split]}

    def _loader(self, part: datasets.Dataset, batches: TrainBatches | EvalBatches) -> DataLoader[Batch]:
        return DataLoader(
            _Blocks(_columns(part)),
            batch_sampler=batches,
            collate_fn=self._collate,
            num_workers=self.spec.workers,
            persistent_workers=self.spec.workers > 0,
            pin_memory=torch.cuda.is_available(),
        )


def _columns(part: datasets.Dataset) -> datasets.Dataset:
    return part.select_columns(["id", "input_ids", "continues"])


def _hold_out(train: datasets.Dataset, notes: list[str]) -> dict[str, datasets.Dataset]:
    """The end of the text for validation: blocks from all over would share their paragraphs with training."""
    if len(train) < 2:
        raise UserError("the text fills 1 block, where at least 2 are needed to hold any out: give data.val=FILE")
    size = min(max(1, round(HELD_OUT * len(train))), MOST_HELD_OUT)
    rest = len(train) - size
    notes.append(f"no validation text given: the last {size:,} of {len(train):,} blocks held out of train")
    return {"train": train.select(range(rest)), "val": train.select(range(rest, len(train)))}


def _counts(part: datasets.Dataset, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How often each token stands in the blocks."""
    counts = np.zeros(size, dtype=np.int64)
    for rows in part.with_format("arrow").iter(batch_size=1000):
        ids = rows["input_ids"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        counts += np.bincount(ids, minlength=size)
    return counts
