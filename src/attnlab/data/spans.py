"""Questions on long texts: overlapping windows of tokens, with the answer's place and each token's characters.

B windows of a batch, L tokens.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from attnlab.data.batches import collate
from attnlab.data.load import load_examples
from attnlab.data.module import TextDataModule
from attnlab.data.spec import DataSpec
from attnlab.data.store import key_of, read_arrow, stored, values_of, write_arrow
from attnlab.data.tokens import ROWS, progress, tokenizer_settings
from attnlab.errors import UserError

# part of every cache key: raise it when the stored columns change
_FORMAT = 1
LONGEST_QUESTION = 64  # tokens; Devlin et al. 2019 (run_squad.py) cut there


def longest_question(tokenizer: PreTrainedTokenizerBase, max_length: int) -> int:
    """Tokens of a question that stay: 64, and never more than half of a window."""
    return min(LONGEST_QUESTION, (max_length - tokenizer.num_special_tokens_to_add(pair=True)) // 2)


def stride_of(spec: DataSpec, tokenizer: PreTrainedTokenizerBase, max_length: int) -> int:
    """Tokens that neighbouring windows share: the task's, else a third. UserError where they leave no room."""
    stride = max_length // 3 if spec.stride is None else spec.stride
    texts = max_length - tokenizer.num_special_tokens_to_add(pair=True)
    most = texts - longest_question(tokenizer, max_length) - 1
    if stride > most:
        raise UserError(
            f"task.stride={stride} is too much for windows of {max_length} tokens: at most {max(most, 0)}"
            ", or give a larger data.max_length"
        )
    return stride


def windows(
    part: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, *, max_length: int, stride: int, name: str
) -> datasets.Dataset:
    """Rows of input_ids, [token_type_ids], length, offsets, id, cut, and label where `part` has one.

    part: columns id, text (the question), text_pair (the context), [label]. Windows stand in the order of their
    examples and lie `stride` tokens of the context over each other; an example has at least one. offsets: for each
    token first and end character in the context, -1 -1 outside of it, in one list. id: the example's. cut: the
    question was longer than `longest_question`, and cut there. label: tokens [start, end] of the first answer, end
    included; [0, 0], which is [CLS], where the window does not hold all of it. Kept in the datasets cache.
    """
    key = key_of(["spans", _FORMAT, part._fingerprint, max_length, stride, *tokenizer_settings(tokenizer)])
    features = _features("token_type_ids" in tokenizer.model_input_names, "label" in part.column_names)

    def cut() -> Iterator[dict[str, Any]]:
        with progress(len(part), f"tokenising {name}") as advance:
            for rows in part.iter(batch_size=ROWS):
                yield encode_windows(rows, tokenizer, max_length=max_length, stride=stride)
                advance(len(rows["id"]))

    return read_arrow(stored(f"{key}.arrow", lambda draft: write_arrow(draft, features, cut())), key)


def encode_windows(
    rows: Mapping[str, list[Any]], tokenizer: PreTrainedTokenizerBase, *, max_length: int, stride: int
) -> dict[str, list[Any]]:
    """The windows of some examples, as columns."""
    asked = longest_question(tokenizer, max_length)
    whole = tokenizer(rows["text"], rows["text_pair"], truncation=False, verbose=False).encodings
    labels = rows.get("label", [None] * len(whole))
    made = [
        {"id": example, **window}
        for example, encoding, label in zip(rows["id"], whole, labels, strict=True)
        for window in _cut(encoding, max_length, stride, asked, label)
    ]
    segments = "token_type_ids" in tokenizer.model_input_names
    return {column: [one[column] for one in made] for column in made[0] if segments or column != "token_type_ids"}


def _features(segments: bool, labelled: bool) -> datasets.Features:
    def ints(width: int) -> datasets.List:
        return datasets.List(datasets.Value(f"int{width}"))

    columns = {
        "id": datasets.Value("int64"),
        "input_ids": ints(32),
        **({"token_type_ids": ints(8)} if segments else {}),
        "length": datasets.Value("int32"),
        "offsets": ints(32),
        "cut": datasets.Value("bool"),
        **({"label": ints(32)} if labelled else {}),
    }
    return datasets.Features(columns)


def _cut(
    encoding: Any, max_length: int, stride: int, asked: int, label: dict[str, list[Any]] | None
) -> Iterator[dict[str, Any]]:
    """The windows of one question and context, which `encoding` holds at full length."""
    # each is made anew whenever it is asked for
    ids, types, sequences, offsets = encoding.ids, encoding.type_ids, encoding.sequence_ids, encoding.offsets
    question = [place for place, text in enumerate(sequences) if text == 0]
    context = [place for place, text in enumerate(sequences) if text == 1]
    first = context[0] if context else len(ids)
    dropped = set(question[asked:])
    head = [place for place in range(first) if place not in dropped]
    tail = list(range(first + len(context), len(ids)))
    spans = [offsets[place] for place in context]
    answer = _answer_tokens(spans, label)
    room = max_length - len(head) - len(tail)
    assert room > stride  # see `stride_of`
    begin = 0
    while True:
        end = min(begin + room, len(context))
        places = head + context[begin:end] + tail
        window: dict[str, Any] = {
            "input_ids": [ids[place] for place in places],
            "token_type_ids": [types[place] for place in places],
            "length": len(places),
            "offsets": [
                *[-1] * (2 * len(head)),
                *[character for span in spans[begin:end] for character in span],
                *[-1] * (2 * len(tail)),
            ],
            "cut": bool(dropped),
        }
        if label is not None:
            held = answer is not None and begin <= answer[0] and answer[1] < end
            window["label"] = [len(head) + place - begin for place in answer] if answer and held else [0, 0]
        yield window
        if end == len(context):
            return
        begin += room - stride


def _answer_tokens(spans: list[tuple[int, int]], label: dict[str, list[Any]] | None) -> tuple[int, int] | None:
    """First and last of the context's tokens that share a character with the first answer, blanks at its ends aside."""
    if not label or not label["text"]:
        return None
    text, start = label["text"][0], label["start"][0]
    if start < 0:  # it stands nowhere
        return None
    start += len(text) - len(text.lstrip())
    end = start + len(text.strip())
    inside = [place for place, (first, last) in enumerate(spans) if first < end and last > start]
    return (inside[0], inside[-1]) if inside else None


def _answered(examples: datasets.Dataset) -> int:
    """How many have an answer."""
    labels = examples.select_columns("label").with_format("arrow")[:].column("label").combine_chunks()
    return int(np.count_nonzero(labels.field("text").value_lengths().to_numpy()))


def collate_windows(rows: dict[str, list[Any]], *, pad_id: int, longest: int) -> dict[str, Tensor]:
    """`collate` for windows: labels (B, 2) int64, where there are any; offsets (B, L, 2) int64, where asked for.

    rows: input_ids, [token_type_ids], [label], [offsets], id, weight. example_id is the example's, which several rows
    may share.
    """
    blank = [[0, 0]] * len(rows["id"])
    batch = collate({"label": blank, **rows}, pad_id=pad_id, longest=longest)
    if "label" not in rows:
        del batch["labels"]
    if "offsets" in rows:
        size = 2 * batch["input_ids"].shape[1]
        padded = [[*flat, *[-1] * (size - len(flat))] for flat in rows["offsets"]]
        batch["offsets"] = torch.tensor(padded).view(len(padded), -1, 2)
    return batch


class SpanDataModule(TextDataModule):
    """Loaders of the batches that `collate_windows` describes. Training reads every window; offsets are read in
    evaluation only.

    `tokens` are windows; truncated counts the questions cut.
    """

    collated = staticmethod(collate_windows)
    evaluated = ("offsets",)

    def __init__(
        self, spec: DataSpec, tokenizer: PreTrainedTokenizerBase, seed: int, model_limit: int | None = None
    ) -> None:
        if spec.text_pair is None:
            raise UserError(
                f"task={spec.task} finds answers in a text: name the columns of both, "
                "data.text=QUESTION data.text_pair=CONTEXT"
            )
        super().__init__(spec, tokenizer, seed, model_limit)
        self.stride = stride_of(spec, tokenizer, self.max_length)

    def _load(self) -> None:
        if self.tokens:
            return
        examples = load_examples(self.spec)
        notes = [*examples.notes, *self._length_notes()]
        for split, part in examples.splits.items():
            self._check_unanswered(split, part, notes)
        self.tokens = {split: self._tokenised(part, split) for split, part in examples.splits.items()}
        self._examples = examples
        for split, part in self.tokens.items():
            notes += self._window_notes(split, part, examples.splits[split])
        self.notes = tuple(notes)

    def _tokenised(self, part: datasets.Dataset, split: str) -> datasets.Dataset:
        return windows(part, self.tokenizer, max_length=self.max_length, stride=self.stride, name=split)

    def _check_unanswered(self, split: str, part: datasets.Dataset, notes: list[str]) -> None:
        without = len(part) - _answered(part)
        if without and not self.spec.no_answer:
            raise UserError(
                f"{split}: {without:,} of {len(part):,} questions have no answer: type task.no_answer=true for a task "
                "in which that may be right"
            )
        if self.spec.no_answer and not without:
            notes.append(f"{split}: every question has an answer, though task.no_answer=true")

    def _window_notes(self, split: str, part: datasets.Dataset, examples: datasets.Dataset) -> list[str]:
        ids = values_of(part, "id")
        cut = len(np.unique(ids[values_of(part, "cut")]))
        labels = part.select_columns("label").with_format("arrow")[:].column("label").combine_chunks()
        held = len(np.unique(ids[labels.flatten().to_numpy().reshape(-1, 2)[:, 1] > 0]))
        answered = _answered(examples)
        self.truncated[split] = cut
        asked = longest_question(self.tokenizer, self.max_length)
        notes = [
            f"{split}: {len(examples):,} questions in {len(part):,} windows of at most {self.max_length} tokens, "
            f"which lie {self.stride} over each other"
        ]
        if cut:
            notes.append(f"{split}: {cut:,} of {len(examples):,} questions cut at {asked} tokens")
        if held < answered:
            notes.append(f"{split}: {answered - held:,} of {answered:,} answers fit in no window whole")
        return notes
