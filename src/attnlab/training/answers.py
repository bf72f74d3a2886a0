"""Rows to answers: the same encoding, batches and head as in an evaluation, for every kind of task."""

from collections.abc import Iterator
from typing import Any

import datasets
import torch
from torch import Tensor

from ..data.batches import collate
from ..data.choices import collate_choices, encode_choices
from ..data.given import Rows
from ..data.spans import collate_windows, encode_windows, stride_of
from ..data.tokens import encode
from ..errors import UserError
from ..tasks.heads import Answer, build_head
from ..tasks.spans import SpanScores
from .finished import Finished

BATCH = 64
LIKELIEST = 5  # tokens shown for a mask
Columns = dict[str, list[Any]]


class Answerer:
    """A finished run that answers rows. cut: how many texts were longer than it reads so far."""

    def __init__(self, run: Finished) -> None:
        self.run = run
        self.cut = 0
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        run.model.to(device=self.device)  # type: ignore[call-arg]
        self.head = build_head(run.task)
        self._ask = {
            "multiple_choice": self._choices,
            "span": self._spans,
            "mlm": self._masks,
        }.get(run.task.kind, self._texts)

    @torch.no_grad()
    def answers(self, rows: Rows) -> list[Answer]:
        """Of each row, in their order.

        rows: columns text, [text_pair], [choices]; for kind mlm also where, what an error calls a row. An answer has a
        prediction and, by kind: probabilities by label; one for each choice; for each mask those of the likeliest
        tokens; probability, null_odds and n_best of a span.
        """
        return self._ask(rows)

    def _texts(self, rows: Rows) -> list[Answer]:
        answers = self._in_batches(self._encoded(rows), collate)
        for answer in answers if self.run.task.labels else ():
            answer["probabilities"] = dict(zip(self.run.task.labels, answer["probabilities"], strict=True))
        return answers

    def _choices(self, rows: Rows) -> list[Answer]:
        encoded = encode_choices(rows, self.run.tokenizer, max_length=self.run.limit)
        self.cut += sum(encoded["cut"])
        return self._in_batches(encoded, collate_choices)

    def _in_batches(self, encoded: Columns, collated: Any) -> list[Answer]:
        answers: dict[int, Answer] = {}
        for picks, batch in self._batches(encoded, collated):
            answers |= zip(picks, self.head.answers(self.head.logits(self.run.model, batch)), strict=True)
        return [answers[i] for i in range(len(answers))]

    def _masks(self, rows: Rows) -> list[Answer]:
        tokenizer = self.run.tokenizer
        mask = str(tokenizer.mask_token)
        for text, where in zip(rows["text"], rows["where"], strict=True):
            if mask not in text:
                raise UserError(
                    f"{where}: this run fills masks, and {text[:60]!r} has none: write {mask} for each word to be found"
                )
        answers: dict[int, Answer] = {}
        for picks, batch in self._batches(self._encoded(rows), collate):
            batch["masked"] = batch["input_ids"] == tokenizer.mask_token_id
            counts = batch["masked"].sum(-1).tolist()
            logits = self.head.logits(self.run.model, batch)
            for i, own in zip(picks, logits.split(counts), strict=True):
                answers[i] = self._filled(rows["text"][i], own)
        return [answers[i] for i in range(len(answers))]

    def _filled(self, text: str, logits: Tensor) -> Answer:
        """The text with its masks filled one by one. logits (masks, vocabulary)."""
        likeliest = logits.softmax(-1).topk(LIKELIEST)
        found = [
            {str(self.run.tokenizer.decode([token])).strip(): p for token, p in zip(tokens, shares, strict=True)}
            for tokens, shares in zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
        ]
        for candidates in found:
            text = text.replace(str(self.run.tokenizer.mask_token), next(iter(candidates)), 1)
        return {"prediction": text, "probabilities": found}

    def _spans(self, rows: Rows) -> list[Answer]:
        run, count = self.run, len(rows["text"])
        numbered = {"id": list(range(count)), "text": rows["text"], "text_pair": rows["text_pair"]}
        stride = stride_of(run.data, run.tokenizer, run.limit)
        windows = encode_windows(numbered, run.tokenizer, max_length=run.limit, stride=stride)
        self.cut += len({i for i, cut in zip(windows["id"], windows["cut"], strict=True) if cut})
        scores = SpanScores.from_config(run.settings["task"], datasets.Dataset.from_dict(numbered))
        scores.threshold = run.no_answer_threshold
        for _, batch in self._batches(windows, collate_windows):
            logits = self.head.logits(run.model, batch)
            scores.update(**self.head.scored(logits, batch))
        scores.compute()
        return [
            {
                "prediction": found["prediction"],
                "probability": next(
                    (one["probability"] for one in found["n_best"] if one["text"] == found["prediction"]), 0.0
                ),
                "null_odds": found["null_odds"],
                "n_best": found["n_best"],
            }
            for found in scores.answers()
        ]

    def _encoded(self, rows: Rows) -> Columns:
        texts = [rows[column] for column in ("text", "text_pair") if column in rows]
        encoded = encode(texts, self.run.tokenizer, max_length=self.run.limit)
        self.cut += sum(encoded["cut"])
        return encoded

    def _batches(self, encoded: Columns, collated: Any) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """Places in `encoded` and their batch, neighbours in length together."""
        order = sorted(range(len(encoded["length"])), key=encoded["length"].__getitem__, reverse=True)
        pad = int(self.run.tokenizer.pad_token_id)
        for start in range(0, len(order), BATCH):
            picks = order[start : start + BATCH]
            columns = {key: [encoded[key][i] for i in picks] for key in encoded}
            columns = {"id": list(picks), "weight": [1.0 for _ in picks], **columns}
            if "offsets" not in columns:
                columns["label"] = [0] * len(picks)
            batch = collated(columns, pad_id=pad, longest=self.run.limit)
            yield picks, {key: value.to(self.device) for key, value in batch.items()}
