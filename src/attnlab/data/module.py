"""The Lightning data module: examples, tokens, loaders."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import datasets
import numpy as np
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerBase

from attnlab.data.batches import EvalBatches, Pick, TrainBatches, collate
from attnlab.data.load import Examples, load_examples
from attnlab.data.spec import DataSpec
from attnlab.data.store import values_of
from attnlab.data.tokens import check_tokenizer, tokenised
from attnlab.errors import UserError

Batch = dict[str, Tensor]
EVAL_FACTOR = 4


class _Weighted(Dataset[Any]):
    """Rows by (index, weight); a batch is read from Arrow in one go."""

    def __init__(self, part: datasets.Dataset) -> None:
        self.part = part

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, pick: Pick) -> dict[str, list[Any]]:
        return self.__getitems__([pick])

    def __getitems__(self, picks: Sequence[Pick]) -> dict[str, list[Any]]:
        rows: dict[str, list[Any]] = self.part[[index for index, _ in picks]]
        rows["weight"] = [weight for _, weight in picks]
        return rows


class TextDataModule(pl.LightningDataModule):
    """Loaders of the batches that `collate` describes.

    After `setup`: examples; truncated, per split how many texts were cut; notes, what the user must be told, cuts
    included. tested: the split that the trainer's next test reads. Slices its batches over torch.distributed by
    itself, so the Trainer needs use_distributed_sampler=False. model_limit: positions that the model has, where the
    tokenizer does not know.
    """

    collated: Callable[..., Batch] = staticmethod(collate)
    evaluated: tuple[str, ...] = ()  # columns that only an evaluation reads

    def __init__(
        self,
        spec: DataSpec,
        tokenizer: PreTrainedTokenizerBase,
        seed: int,
        model_limit: int | None = None,
    ) -> None:
        super().__init__()
        check_tokenizer(tokenizer)
        self.spec = spec
        self.tokenizer = tokenizer
        self.seed = seed
        self.limit = min(tokenizer.model_max_length, model_limit or tokenizer.model_max_length)
        self.max_length = min(spec.max_length, self.limit)
        least = tokenizer.num_special_tokens_to_add(pair=spec.text_pair is not None) + 1
        if self.max_length < least:
            raise UserError(f"data.max_length={spec.max_length} leaves no room for text: at least {least}")
        self.tested = "test"
        self._examples: Examples | None = None
        self.truncated: dict[str, int] = {}
        self.tokens: dict[str, datasets.Dataset] = {}
        self.notes: tuple[str, ...] = ()

    def prepare_data(self) -> None:
        """Load and tokenise into the datasets cache; Lightning calls it in one process a node."""
        self._load()

    def setup(self, stage: str | None = None) -> None:
        """Open what prepare_data cached; does the work itself where it was not called."""
        self._load()

    @property
    def examples(self) -> Examples:
        """What was loaded; loads it at the first call."""
        self._load()
        assert self._examples is not None
        return self._examples

    def _load(self) -> None:
        if self.tokens:
            return
        examples = load_examples(self.spec)
        tokens = {split: self._tokenised(part, split) for split, part in examples.splits.items()}
        self._examples, self.tokens = examples, tokens
        self.truncated = {split: int(np.count_nonzero(values_of(part, "cut"))) for split, part in tokens.items()}
        notes = [
            f"{split}: {count:,} of {len(tokens[split]):,} texts cut at {self.max_length} tokens"
            for split, count in self.truncated.items()
            if count
        ]
        self.notes = (*examples.notes, *notes, *self._length_notes())

    def _tokenised(self, part: datasets.Dataset, split: str) -> datasets.Dataset:
        """The rows of batches, with columns length and cut."""
        return tokenised(part, self.tokenizer, max_length=self.max_length, name=split)

    def _length_notes(self) -> list[str]:
        if self.spec.max_length <= self.max_length:
            return []
        return [f"data.max_length={self.spec.max_length} is more than the model can read: {self.max_length} used"]

    def baselines(self, split: str) -> dict[str, float]:
        """What a score on `split` is to be read against, by name."""
        return {}

    def train_dataloader(self) -> DataLoader[Batch]:
        """Length-grouped batches; the epoch is taken from the trainer and from `set_epoch`."""
        rank, world = place()
        part = self._part("train")
        batches = TrainBatches(values_of(part, "length"), self.spec.batch_size, seed=self.seed, rank=rank, world=world)
        if self.trainer is not None:
            batches.set_epoch(self.trainer.current_epoch)
        return self._loader(part, batches)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Every example once over all processes."""
        return self._eval("val")

    def test_dataloader(self) -> DataLoader[Batch]:
        """As val, of the split named `tested`; UserError where the data has no such split with labels."""
        return self._eval(self.tested)

    def eval_dataloader(self, split: str) -> DataLoader[Batch]:
        """Any split as an evaluation reads it."""
        return self._eval(split)

    def spread(self, split: str, count: int) -> Batch:
        """One batch of `count` examples (fewer where there are fewer), evenly chosen over all lengths."""
        part = self._part(split)
        order = np.argsort(values_of(part, "length"), kind="stable").tolist()
        chosen = [order[i * len(order) // min(count, len(order))] for i in range(min(count, len(order)))]
        loader = self._loader(part, EvalBatches([1], 1))
        batch: Batch = loader.collate_fn(loader.dataset.__getitems__([(i, 1.0) for i in chosen]))  # type: ignore[attr-defined]
        return batch

    def _eval(self, split: str) -> DataLoader[Batch]:
        rank, world = place()
        part = self._part(split)
        size = EVAL_FACTOR * self.spec.batch_size
        return self._loader(part, EvalBatches(values_of(part, "length"), size, rank=rank, world=world))

    def _part(self, split: str) -> datasets.Dataset:
        self._load()
        if split not in self.tokens:
            raise UserError(f"task={self.spec.task} has no {split} data here; there is {', '.join(self.tokens)}")
        return self.tokens[split]

    def _loader(self, part: datasets.Dataset, batches: TrainBatches | EvalBatches) -> DataLoader[Batch]:
        unread = ("length", "cut") if isinstance(batches, EvalBatches) else ("length", "cut", *self.evaluated)
        return DataLoader(
            _Weighted(part.select_columns([c for c in part.column_names if c not in unread])),
            batch_sampler=batches,
            collate_fn=partial(self.collated, pad_id=int(self.tokenizer.pad_token_id), longest=self.limit),
            num_workers=self.spec.workers,
            persistent_workers=self.spec.workers > 0,
            pin_memory=torch.cuda.is_available(),
        )


def place() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
