"""From the logits of windows to the answers of questions, and their scores.

B windows of a batch, L tokens, K starts and ends that are tried, N candidates kept of a window.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import datasets
import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric

from attnlab.errors import UserError
from attnlab.tasks.squad import best_threshold, exact_match, f1, gold_answers

Answer = dict[str, Any]
Candidate = tuple[float, int, int]  # score, first and end character


def span_logits(start_BL: Tensor, end_BL: Tensor, attention_mask_BL: Tensor) -> Tensor:
    """Logits (B, L, 2) in float32. Padding gets the least number: how far a batch is padded must not change a loss."""
    logits = torch.stack([start_BL, end_BL], dim=-1).float()
    return logits.masked_fill(attention_mask_BL[..., None] == 0, torch.finfo(torch.float32).min)


def span_losses(logits_BL2: Tensor, labels_B2: Tensor) -> Tensor:
    """(B,): of each window the mean of the cross-entropies of start and end, in nats (Devlin et al. 2019)."""
    return F.cross_entropy(logits_BL2, labels_B2, reduction="none").mean(-1)


def candidates(
    logits_BL2: Tensor, offsets_BL2: Tensor, *, n_best: int, longest_answer: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Each window's best spans as characters (B, N, 2) int64, their scores (B, N), and its null score (B,).

    N = n_best. Every of the n_best starts with every of the n_best ends: both in the context, the end not before the
    start, at most longest_answer tokens. score: start + end logit, -inf where there are fewer. null score: that of
    [CLS].
    """
    null_B = logits_BL2[:, 0].sum(-1)
    logits = logits_BL2.masked_fill((offsets_BL2 < 0).any(-1, keepdim=True), -math.inf)
    K = min(n_best, logits.shape[1])
    start_BK, starts_BK = logits[..., 0].topk(K)
    end_BK, ends_BK = logits[..., 1].topk(K)
    tokens_BKK = ends_BK[:, None, :] - starts_BK[:, :, None]
    scores_BKK = start_BK[:, :, None] + end_BK[:, None, :]
    scores_BKK = scores_BKK.masked_fill((tokens_BKK < 0) | (tokens_BKK >= longest_answer), -math.inf)
    scores_BN, flat_BN = scores_BKK.flatten(1).topk(min(n_best, K * K))
    first_BN = offsets_BL2[..., 0].gather(1, starts_BK.gather(1, flat_BN // K))
    last_BN = offsets_BL2[..., 1].gather(1, ends_BK.gather(1, flat_BN % K))
    missing = n_best - scores_BN.shape[1]
    spans_BN2 = F.pad(torch.stack([first_BN, last_BN], dim=-1), (0, 0, 0, missing))
    return spans_BN2, F.pad(scores_BN, (0, missing), value=-math.inf), null_B


class SpanScores(Metric):
    """Exact match and F1 as shares of the questions seen, from the logits of their windows.

    examples: the split's, columns id, text_pair (the context), [label], [key]. An example's candidates are those of
    all its windows, its null score their least (Devlin et al. 2019, section 4.3). With no_answer a question is left
    unanswered where null score - best score > threshold; threshold None: the one that is best for F1 on these very
    examples, as is right for validation data; set it to validation's `no_answer_threshold` before `compute` on a test
    set. `compute` under torch.distributed is over all processes' windows, and so are the `answers` it leaves.
    """

    full_state_update = False
    higher_is_better = True

    def __init__(
        self,
        examples: datasets.Dataset,
        *,
        n_best: int = 20,
        longest_answer: int = 30,
        no_answer: bool = False,
        threshold: float | None = None,
    ) -> None:
        super().__init__()
        self.examples = examples
        self.n_best = n_best
        self.longest_answer = longest_answer
        self.no_answer = no_answer
        self.threshold = threshold
        self.ids: list[Tensor]
        self.spans: list[Tensor]
        self.logits: list[Tensor]
        self.nulls: list[Tensor]
        for name in ("ids", "spans", "logits", "nulls"):
            self.add_state(name, default=[], dist_reduce_fx="cat")
        self._answers: list[Answer] = []
        self.reset()

    @classmethod
    def from_config(cls, task: Mapping[str, Any], examples: datasets.Dataset) -> "SpanScores":
        """n_best, longest_answer and no_answer of the `task` group."""
        sizes = {key: task.get(key, usual) for key, usual in (("n_best", 20), ("longest_answer", 30))}
        for key, value in sizes.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"task.{key}={value} must be a whole number of at least 1")
        return cls(examples, **sizes, no_answer=bool(task.get("no_answer")))

    def reset(self) -> None:
        """Forget the windows; the answers stay until the next `compute`."""
        super().reset()
        # a process without a window still has states of the shapes that the others gather
        self._keep(*candidates(torch.zeros(0, 1, 2), torch.zeros(0, 1, 2, dtype=torch.int64), **self._sizes()))
        self.ids.append(torch.zeros(0, dtype=torch.int64, device=self.device))

    def _sizes(self) -> dict[str, int]:
        return {"n_best": self.n_best, "longest_answer": self.longest_answer}

    def _keep(self, spans: Tensor, scores: Tensor, nulls: Tensor) -> None:
        self.spans.append(spans.to(self.device))
        self.logits.append(scores.to(self.device))
        self.nulls.append(nulls.to(self.device))

    def update(self, logits: Tensor, offsets: Tensor, example_id: Tensor) -> None:
        """logits and offsets (B, L, 2), example_id (B,): a window a row, in any order."""
        self._keep(*candidates(logits.detach().float(), offsets, **self._sizes()))
        self.ids.append(example_id)

    def compute(self) -> dict[str, Tensor]:
        """exact_match and f1, with no_answer also has_answer_*, no_answer_* and no_answer_threshold; {} without labels.

        Scalar float64 tensors.
        """
        rows = self._merged()
        labelled = "label" in self.examples.column_names
        threshold = self.threshold
        if self.no_answer and labelled and threshold is None:
            answered = [f1(_best(row), self._golds(row), no_answer=True) for row in rows]
            empty = [f1("", self._golds(row), no_answer=True) for row in rows]
            threshold = best_threshold([row["null_odds"] for row in rows], answered, empty)
        for row in rows:
            unanswered = self.no_answer and row["null_odds"] > (threshold or 0.0)
            row["prediction"] = "" if unanswered else _best(row)
        self._answers = rows
        if not labelled or not rows:
            return {}
        values = self._means("", rows)
        if self.no_answer:
            assert threshold is not None
            values |= self._means("has_answer_", [row for row in rows if row["label"]])
            values |= self._means("no_answer_", [row for row in rows if not row["label"]])
            values["no_answer_threshold"] = threshold
        return {name: torch.tensor(value, dtype=torch.float64, device=self.device) for name, value in values.items()}

    def answers(self) -> list[Answer]:
        """Of each question of the last `compute`, by id: id, key, [label], prediction, null_odds, n_best.

        label: the gold texts, none where it has no answer. n_best: {text, start: its first character, probability},
        from the best on, with no_answer also the empty text. null_odds: null score - best score.
        """
        return self._answers

    def _means(self, prefix: str, rows: list[Answer]) -> dict[str, float]:
        if not rows:
            return {}
        scored = [(row["prediction"], self._golds(row)) for row in rows]
        exact = math.fsum(exact_match(*one) for one in scored) / len(rows)
        overlap = math.fsum(f1(*one, no_answer=self.no_answer) for one in scored) / len(rows)
        return {f"{prefix}exact_match": exact, f"{prefix}f1": overlap}

    def _golds(self, row: Answer) -> tuple[str, ...]:
        return gold_answers(row["label"], no_answer=self.no_answer)

    def _merged(self) -> list[Answer]:
        """Answers without a prediction yet, in the order of their ids."""
        ids, spans, scores, nulls = (
            torch.cat(state).tolist() if isinstance(state, list) else state.tolist()
            for state in (self.ids, self.spans, self.logits, self.nulls)
        )
        found: defaultdict[int, list[Candidate]] = defaultdict(list)
        null: dict[int, float] = {}
        for example, places, values, score in zip(ids, spans, scores, nulls, strict=True):
            null[example] = min(score, null.get(example, math.inf))
            found[example] += [
                (value, first, last) for (first, last), value in zip(places, values, strict=True) if value > -math.inf
            ]
        places_of = {example: place for place, example in enumerate(self.examples["id"])}
        order = sorted(null)
        columns = [name for name in ("key", "text_pair", "label") if name in self.examples.column_names]
        given = self.examples.select_columns(columns)[[places_of[example] for example in order]]
        rows = []
        for place, example in enumerate(order):
            row: Answer = {"id": example, "key": given["key"][place] if "key" in given else str(example)}
            if "label" in given:
                row["label"] = given["label"][place]["text"]
            rows.append(row | self._n_best(found[example], null[example], given["text_pair"][place]))
        return rows

    def _n_best(self, found: list[Candidate], null: float, context: str) -> Answer:
        kept: dict[str, tuple[float, int | None]] = {}
        for score, first, last in sorted(found, key=lambda one: (-one[0], one[1], one[2])):
            text = context[first:last].strip()
            if text and text not in kept:
                kept[text] = (score, first + len(context[first:last]) - len(context[first:last].lstrip()))
            if len(kept) == self.n_best:
                break
        # Without any candidate the best is nothing, of score 0 (run_squad.py's).
        best = next(iter(kept.values()))[0] if kept else 0.0
        if self.no_answer:
            kept[""] = (null, None)
        ranked = sorted(kept.items(), key=lambda one: -one[1][0])
        weights = [math.exp(score - ranked[0][1][0]) for _, (score, _) in ranked]
        total = math.fsum(weights)
        n_best = [
            {"text": text, "start": start, "probability": weight / total}
            for (text, (_, start)), weight in zip(ranked, weights, strict=True)
        ]
        # in float32, so that a threshold that is one of them stays the same in a log of float32
        odds = float(torch.tensor(null - best, dtype=torch.float32))
        return {"prediction": "", "null_odds": odds, "n_best": n_best}


def _best(row: Answer) -> str:
    """The likeliest text that is one."""
    return next((one["text"] for one in row["n_best"] if one["text"]), "")
