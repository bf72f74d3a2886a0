"""Windows of long texts: nothing lost, answers where they are, the same as the tokenizer's own windows."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import yaml
from transformers import AutoTokenizer

from attnlab.data.pretraining import build_data
from attnlab.data.spans import SpanDataModule, collate_windows, longest_question, windows
from attnlab.data.spec import DataSpec
from attnlab.data.wheels import minilm_folder
from attnlab.errors import UserError
from tests.squad_files import examples, squad_v2_sample, xquad

CONTEXT = "The old lobster lives under a blue rock in the cold sea. It eats small crabs and sleeps all day long."
CONF = Path(__file__).parents[2] / "conf" / "task"
# of 1,190 answers one ends within a word
HALF_WORDS = {("7,000,000 square kilometres (2,70", "7,000,000 square kilometres (2,700")}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(minilm_folder())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def cut(part: datasets.Dataset, tokenizer: Any, max_length: int = 24, stride: int = 6) -> list[dict[str, Any]]:
    return list(windows(part, tokenizer, max_length=max_length, stride=stride, name="train"))


def answered(window: dict[str, Any], context: str) -> str:
    start, end = window["label"]
    return context[window["offsets"][2 * start] : window["offsets"][2 * end + 1]]


def one(answer: str, question: str = "where?", context: str = CONTEXT) -> datasets.Dataset:
    return examples([("q", question, context, [(answer, context.index(answer))])])


def test_every_answer_of_xquad_is_recovered_from_its_tokens(shared_data: Path, tokenizer: Any) -> None:
    part = xquad(shared_data)
    contexts, golds = dict(zip(part["id"], part["text_pair"], strict=True)), {}
    for row in part:
        golds[row["id"]] = row["label"]["text"][0]
    for max_length, stride in ((384, 128), (128, 40)):
        found, longer = set(), set()
        for window in cut(part, tokenizer, max_length, stride):
            assert window["length"] == len(window["input_ids"]) <= max_length
            if window["label"] != [0, 0]:
                text, gold = answered(window, contexts[window["id"]]).strip(), golds[window["id"]].strip()
                found.add(window["id"])
                if text != gold:
                    longer.add((gold, text))
        assert len(golds) == 1190
        assert found == set(golds)
        assert longer == HALF_WORDS


def test_windows_are_those_of_the_tokenizer(shared_data: Path, tokenizer: Any) -> None:
    part = xquad(shared_data, range(6))
    ours = cut(part, tokenizer, 96, 30)
    theirs = tokenizer(
        list(part["text"]),
        list(part["text_pair"]),
        truncation="only_second",
        max_length=96,
        stride=30,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    assert [w["input_ids"] for w in ours] == theirs["input_ids"]
    assert [w["token_type_ids"] for w in ours] == theirs["token_type_ids"]
    assert [w["id"] for w in ours] == [part[i]["id"] for i in theirs["overflow_to_sample_mapping"]]
    for row, window in enumerate(ours):
        kinds, spans = theirs.sequence_ids(row), theirs["offset_mapping"][row]
        expected = [c for kind, span in zip(kinds, spans, strict=True) for c in (span if kind == 1 else (-1, -1))]
        assert window["offsets"] == expected


def test_a_context_shorter_than_a_window_is_one_window(tokenizer: Any) -> None:
    part = one("a blue rock")
    (window,) = cut(part, tokenizer, 64, 20)
    whole = tokenizer(part["text"][0], part["text_pair"][0])
    assert window["input_ids"] == whole["input_ids"]
    assert answered(window, CONTEXT) == "a blue rock"


def test_an_answer_over_a_border_is_whole_in_one_window_and_nowhere_in_the_other(tokenizer: Any) -> None:
    first, second, *_ = cut(one("lobster"), tokenizer)
    covered = [c for c in first["offsets"] if c >= 0]
    last = CONTEXT[covered[-2] : covered[-1]]
    over = CONTEXT[covered[-2] : covered[-2] + len(last) + 4]  # begins in the first window's last token
    inside = CONTEXT[covered[-4] : covered[-1]]
    first, second, *_ = cut(one(over), tokenizer)
    assert first["label"] == [0, 0]
    assert answered(second, CONTEXT).startswith(last)
    first, second, *_ = cut(one(inside), tokenizer)
    assert answered(first, CONTEXT) == answered(second, CONTEXT) == inside
    assert first["label"][1] == len(first["input_ids"]) - 2


def test_an_answer_longer_than_any_window_is_in_none(tokenizer: Any) -> None:
    assert all(window["label"] == [0, 0] for window in cut(one(CONTEXT), tokenizer))


def test_the_first_of_several_answers_is_learned(tokenizer: Any) -> None:
    part = examples([("q", "who?", CONTEXT, [("lobster", 8), ("The old lobster", 0)])])
    assert answered(cut(part, tokenizer)[0], CONTEXT) == "lobster"


def test_blanks_at_an_answers_ends_and_half_a_word_give_whole_tokens(tokenizer: Any) -> None:
    for answer, tokens in ((" blue rock ", "blue rock"), ("lob", "lobster"), ("ea.", "sea.")):
        found = {answered(w, CONTEXT) for w in cut(one(answer), tokenizer) if w["label"] != [0, 0]}
        assert found == {tokens}


def test_a_question_without_an_answer_points_at_cls(tokenizer: Any) -> None:
    assert all(w["label"] == [0, 0] for w in cut(examples([("q", "who?", CONTEXT, [])]), tokenizer))


def test_characters_count_not_bytes(tokenizer: Any) -> None:
    context = "Ünïcödé \U0001f980 crabs: Beyoncé ate 中文 twice\u200b."
    for answer in ("Beyoncé", "中文", "\U0001f980", "twice\u200b"):
        (window,) = cut(one(answer, "was?", context), tokenizer, 64, 20)
        assert answered(window, context).strip("\u200b") == answer.strip("\u200b")


def test_a_question_longer_than_half_a_window_is_cut(tokenizer: Any) -> None:
    part = one("a blue rock", question="why " * 40)
    rows = cut(part, tokenizer, 48, 8)
    assert all(len(w["input_ids"]) <= 48 and w["cut"] for w in rows)
    why = tokenizer.convert_tokens_to_ids("why")
    assert {w["input_ids"].count(why) for w in rows} == {longest_question(tokenizer, 48)} == {22}
    assert "a blue rock" in {answered(w, CONTEXT) for w in rows if w["label"] != [0, 0]}


def test_an_empty_context_still_has_a_window(tokenizer: Any) -> None:
    (window,) = cut(examples([("q", "who?", "", [])]), tokenizer)
    assert set(window["offsets"]) == {-1}


def test_windows_are_made_once(tokenizer: Any, cache: Path) -> None:
    part = one("a blue rock")
    cut(part, tokenizer)
    (file,) = (cache / "attnlab").glob("*.arrow")
    made = file.stat().st_mtime_ns
    cut(part, tokenizer)
    assert file.stat().st_mtime_ns == made
    cut(part, tokenizer, stride=5)
    cut(one("blue rock"), tokenizer)
    assert len(list((cache / "attnlab").glob("*.arrow"))) == 3


def test_batches_have_the_contracts_shapes(tokenizer: Any) -> None:
    part = windows(one("a blue rock"), tokenizer, max_length=24, stride=6, name="train")
    rows = part[:] | {"weight": [1.0] * len(part)}
    batch = collate_windows(rows, pad_id=0, longest=512)
    B, L = batch["input_ids"].shape
    assert batch["labels"].shape == (B, 2)
    assert batch["labels"].dtype == torch.int64
    assert batch["offsets"].shape == (B, L, 2)
    assert batch["example_id"].tolist() == [1] * B
    assert set(batch["offsets"][batch["attention_mask"] == 0].flatten().tolist()) <= {-1}
    hidden = collate_windows({k: v for k, v in rows.items() if k not in ("label", "offsets")}, pad_id=0, longest=512)
    assert "labels" not in hidden
    assert "offsets" not in hidden


def module(part: datasets.Dataset, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> SpanDataModule:
    from attnlab.data.load import Examples

    made = Examples(splits={"train": part, "val": part}, labels=(), source="here", notes=(), fingerprint="0")
    monkeypatch.setattr("attnlab.data.spans.load_examples", lambda spec: made)
    data = {key: settings.pop(key) for key in ("max_length",) if key in settings}
    columns = {"text": "question", "text_pair": "context", "label": "answers"}
    spec = DataSpec.from_config({"kind": "span", "columns": columns, **settings}, {"batch_size": 4, **data})
    built = SpanDataModule(spec, tokenizer, 3)
    built.setup()
    return built


def test_training_reads_every_window_once_and_offsets_are_for_evaluation(
    shared_data: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = module(xquad(shared_data, range(2)), tokenizer, monkeypatch, max_length=128, stride=30)
    batches = list(data.train_dataloader())
    assert sum(len(batch["labels"]) for batch in batches) == len(data.tokens["train"]) > 60
    assert not any("offsets" in batch for batch in batches)
    assert {float(w) for batch in batches for w in batch["weight"]} == {1.0}
    seen = [i for batch in data.val_dataloader() for i in batch["example_id"].tolist()]
    assert sorted(seen) == sorted(data.tokens["val"]["id"])
    assert all("offsets" in batch for batch in data.val_dataloader())


def test_what_the_windows_are_and_what_was_cut_is_noted(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("a", "why " * 40, CONTEXT, [("sea", CONTEXT.index("sea"))]), ("b", "who?", CONTEXT, [(CONTEXT, 0)])]
    data = module(examples(rows), tokenizer, monkeypatch, max_length=24)
    assert data.stride == 8
    assert data.truncated == {"train": 1, "val": 1}
    notes = "\n".join(data.notes)
    assert "train: 2 questions in" in notes
    assert "train: 1 of 2 questions cut at 10 tokens" in notes
    assert "train: 1 of 2 answers fit in no window whole" in notes


def test_unanswered_questions_need_a_task_that_knows_them(
    shared_data: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = squad_v2_sample(shared_data)
    with pytest.raises(UserError, match=r"train: 6 of 14 questions have no answer: type task\.no_answer=true"):
        module(sample, tokenizer, monkeypatch)
    assert len(module(sample, tokenizer, monkeypatch, no_answer=True).tokens["val"]) >= 14
    notes = module(one("sea"), tokenizer, monkeypatch, no_answer=True).notes
    assert "val: every question has an answer, though task.no_answer=true" in notes


def test_a_stride_that_leaves_windows_no_way_on_is_refused(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"task\.stride=128 is too much for windows of 128 tokens: at most 62"):
        module(one("sea"), tokenizer, monkeypatch, max_length=128, stride=128)
    module(one("sea"), tokenizer, monkeypatch, max_length=128, stride=62)


def test_the_questions_at_hand_are_divided_by_article_and_keep_their_keys(
    shared_data: Path, tokenizer: Any, tmp_path: Path
) -> None:
    task = yaml.safe_load((CONF / "squad.yaml").read_text("utf-8"))
    data = build_data(DataSpec.from_config(task, {"root": str(shared_data), "max_length": 384}), tokenizer, 1)
    data.setup()
    splits = data.examples.splits
    assert {split: len(part) for split, part in splits.items()} == {"train": 862, "val": 154, "test": 174}
    contexts = {split: set(part["text_pair"]) for split, part in splits.items()}
    assert sum(map(len, contexts.values())) == len(set.union(*contexts.values())) == 240
    whole = {row["key"]: row for row in xquad(shared_data)}
    for part in splits.values():
        for row in part:
            assert {k: v for k, v in row.items() if k != "id"} == {
                k: v for k, v in whole.pop(row["key"]).items() if k != "id"
            }
    assert not whole
    # the user's own file is never divided
    given = {"train": str(shared_data / "SQuAD" / "xquad.en.json"), "source": "local", "root": str(tmp_path)}
    own = build_data(DataSpec.from_config(task, {**given, "val": given["train"], "max_length": 384}), tokenizer, 1)
    assert len(own.examples.splits["train"]) == 1190


def test_a_task_without_a_context_is_refused(tokenizer: Any) -> None:
    with pytest.raises(UserError, match=r"data\.text_pair=CONTEXT"):
        SpanDataModule(DataSpec.from_config({"kind": "span"}, {}), tokenizer, 1)
