"""A finished run answers rows of every kind of task as its model does, out of files, streams and splits."""

import csv
import io
import json

import pytest
import torch

import attnlab
from attnlab.cli.from_run import task_group
from attnlab.errors import UserError
from attnlab.tasks.squad import exact_match, f1
from attnlab.training.evaluate import evaluate
from attnlab.training.predict import predict, predict_split

from ..finished_runs import finished_run, lines
from ..report.tiny import tiny_tokenizer

TEXTS = ["a fine film", "dull, dull, dull.", "it was", "the long end of a long film", "A joy"]
OTHERS = ["fine", "a film was dull", "it", "joy", "an end"]


def logits_of(run, *texts):
    """(1, K), computed one row at a time without any of our code but the attention."""
    encoded = tiny_tokenizer()(*texts, return_tensors="pt")
    with torch.no_grad():
        return attnlab.load(run)(**encoded)


def given(tmp_path, rows, name="in.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def answered(run, source, tmp_path):
    assert predict(run, source, tmp_path / "out.jsonl") > 0
    return lines(tmp_path / "out.jsonl")


def test_classes_of_pairs(tmp_path):
    run = finished_run(tmp_path / "run", "task=mnli")
    pairs = [{"premise": a, "hypothesis": b} for a, b in zip(TEXTS, OTHERS, strict=True)]
    rows = answered(run, given(tmp_path, pairs), tmp_path)
    assert [row["id"] for row in rows] == [0, 1, 2, 3, 4]
    for row, a, b in zip(rows, TEXTS, OTHERS, strict=True):
        shares = logits_of(run, a, b).logits.softmax(-1)[0].tolist()
        assert list(row["probabilities"]) == ["entailment", "neutral", "contradiction"]
        assert list(row["probabilities"].values()) == pytest.approx(shares, abs=1e-5)
        assert row["prediction"] == max(row["probabilities"], key=row["probabilities"].get)
    glue = tmp_path / "test_matched.tsv"
    glue.write_text("sentence1\tsentence2\n" + "".join(f"{a}\t{b}\n" for a, b in zip(TEXTS, OTHERS, strict=True)))
    again = answered(run, glue, tmp_path)
    assert [row["prediction"] for row in again] == [row["prediction"] for row in rows]


def test_numbers_are_clipped_to_the_tasks_range(tmp_path):
    run = finished_run(tmp_path / "run", "task=stsb")
    pairs = [{"text": a, "text_pair": b} for a, b in zip(TEXTS, OTHERS, strict=True)]
    rows = answered(run, given(tmp_path, pairs), tmp_path)
    raw = [float(logits_of(run, a, b).logits) for a, b in zip(TEXTS, OTHERS, strict=True)]
    assert min(raw) < 0
    assert [row["prediction"] for row in rows] == pytest.approx([min(max(x, 0.0), 5.0) for x in raw], abs=1e-4)


def test_several_labels(tmp_path):
    words = ("task=custom", "task.kind=multilabel", "data.text=comment", "data.label=[rude,sad,odd]")
    run = finished_run(tmp_path / "run", *words, labels=["rude", "sad", "odd"])
    rows = answered(run, given(tmp_path, [{"comment": text} for text in TEXTS]), tmp_path)
    for row, text in zip(rows, TEXTS, strict=True):
        shares = logits_of(run, text).logits.sigmoid()[0].tolist()
        assert list(row["probabilities"].values()) == pytest.approx(shares, abs=1e-5)
        assert row["prediction"] == [n for n, p in zip(["rude", "sad", "odd"], shares, strict=True) if p > 0.5]


def endings(run, before, begun, choices):
    """Logits of the choices, each put together and encoded on its own."""
    encoded = [tiny_tokenizer()(before, f"{begun} {end}", return_tensors="pt") for end in choices]
    model = attnlab.load(run)
    with torch.no_grad():
        return torch.stack([model(**{k: v[None] for k, v in one.items()}).logits[0, 0] for one in encoded])


def test_choices_as_columns_or_as_a_list(tmp_path):
    run = finished_run(tmp_path / "run", "task=swag")
    ends = [["it was", "a film", "dull.", "joy"], ["an end", "fine", "it", "a joy"]]
    wide = [{"sent1": TEXTS[i], "sent2": OTHERS[i]} | {f"ending{k}": e for k, e in enumerate(ends[i])} for i in (0, 1)]
    rows = answered(run, given(tmp_path, wide), tmp_path)
    for i, row in enumerate(rows):
        expected = endings(run, TEXTS[i], OTHERS[i], ends[i])
        assert row["prediction"] == int(expected.argmax())
        assert row["probabilities"] == pytest.approx(expected.softmax(-1).tolist(), abs=1e-5)
    table = tmp_path / "in.csv"
    with table.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, wide[0])
        writer.writeheader()
        writer.writerows(wide)
    listed = [{"text": TEXTS[i], "text_pair": OTHERS[i], "choices": ends[i]} for i in (0, 1)]
    for source in (table, given(tmp_path, listed, "list.jsonl")):
        assert [row["prediction"] for row in answered(run, source, tmp_path)] == [row["prediction"] for row in rows]


def test_a_row_without_enough_choices_is_named(tmp_path):
    run = finished_run(tmp_path / "run", "task=swag")
    rows = [{"text": "a", "text_pair": "b", "choices": c} for c in (["x", "y"], ["x", "y", "z"], "x")]
    with pytest.raises(UserError, match=r"in.jsonl, line 2: 3 choices, where the first row has 2"):
        predict(run, given(tmp_path, rows), tmp_path / "out")
    with pytest.raises(UserError, match=r"line 1: the choices are no list of at least two: 'x'"):
        predict(run, given(tmp_path, rows[2:]), tmp_path / "out")


QUESTION, CONTEXT = "who was it", "Ada was. Bob, dull Bob, saw a film of a long, long joy and it was fine in an end."


def questions(*ids):
    paragraph = {"context": CONTEXT, "qas": [{"id": i, "question": QUESTION, "answers": []} for i in ids]}
    return {"version": "2.0", "data": [{"title": "Ada", "paragraphs": [paragraph]}]}


def test_a_span_of_a_long_context_is_the_best_of_all_windows(tmp_path):
    run = finished_run(tmp_path / "run", "task=squad", "task.stride=8", "task.longest_answer=6")
    (row,) = answered(run, given(tmp_path, [{"question": QUESTION, "context": CONTEXT}]), tmp_path)
    texts = [one["text"] for one in row["n_best"]]
    assert row["prediction"] == texts[0]
    assert row["probability"] == row["n_best"][0]["probability"]
    assert sum(one["probability"] for one in row["n_best"]) == pytest.approx(1)
    encoded = tiny_tokenizer()(
        QUESTION, CONTEXT, truncation="only_second", max_length=48, stride=8, return_overflowing_tokens=True,
        return_offsets_mapping=True, padding=True, return_tensors="pt",
    )  # fmt: skip
    assert len(encoded["input_ids"]) > 1
    with torch.no_grad():
        inputs = {k: encoded[k] for k in ("input_ids", "attention_mask", "token_type_ids")}
        out = attnlab.load(run)(**inputs)
    best = max(
        (float(out.start_logits[w, i] + out.end_logits[w, j]), CONTEXT[offsets[i][0] : offsets[j][1]])
        for w, offsets in enumerate(encoded["offset_mapping"].tolist())
        for i in range(48)
        for j in range(i, min(i + 6, 48))
        if encoded.sequence_ids(w)[i] == encoded.sequence_ids(w)[j] == 1
    )
    assert row["prediction"] == best[1]


def test_windows_too_short_for_their_stride_are_refused(tmp_path):
    run = finished_run(tmp_path / "run", "task=squad", "task.stride=30")
    with pytest.raises(UserError, match=r"task\.stride=30 is too much for windows of 48 tokens"):
        answered(run, given(tmp_path, [{"question": QUESTION, "context": CONTEXT}]), tmp_path)


def test_squads_json_has_a_text_for_each_question_and_version_2_null_odds_beside_it(tmp_path):
    source = tmp_path / "dev.json"
    source.write_text(json.dumps(questions("q7", "q1")))
    run = finished_run(tmp_path / "run", "task=squad_v2", no_answer_threshold=-1e9)
    assert predict(run, source, tmp_path / "mine.json", format="squad") == 2
    assert json.loads((tmp_path / "mine.json").read_text()) == {"q7": "", "q1": ""}, "validation chose never to answer"
    odds = json.loads((tmp_path / "mine_null_odds.json").read_text())
    assert list(odds) == ["q7", "q1"]
    assert all(isinstance(value, float) for value in odds.values())
    again = finished_run(tmp_path / "other", "task=squad")
    predict(again, source, tmp_path / "one.json", format="squad")
    assert not (tmp_path / "one_null_odds.json").exists()
    texts = json.loads((tmp_path / "one.json").read_text())
    assert list(texts) == ["q7", "q1"]
    assert texts["q7"]
    assert texts["q7"] in CONTEXT
    assert not list(tmp_path.glob("*.tmp"))
    source.write_text(json.dumps(questions("q7", "q7")))
    with pytest.raises(UserError, match="two predictions for 'q7'"):
        predict(run, source, tmp_path / "mine.json", format="squad")


def test_a_split_of_squad_has_the_questions_ids_as_keys(tmp_path):
    (tmp_path / "SQuAD").mkdir()
    (tmp_path / "SQuAD" / "dev-v1.1.json").write_text(json.dumps(questions("q7", "q1")))
    run = finished_run(tmp_path / "run", "task=squad", f"data.root={tmp_path}")
    assert predict_split(run, "val", tmp_path / "out.jsonl") == 2
    assert [(row["id"], row["key"]) for row in lines(tmp_path / "out.jsonl")] == [(0, "q7"), (1, "q1")]


def test_squads_scores_are_the_official_ones_of_the_json_that_is_written(tmp_path):
    golds = ["a film", "it", "Bob, dull Bob", "fine", "joy"]
    rows = [
        (f"q{i}", QUESTION, CONTEXT[5 * i :], [(gold, CONTEXT[5 * i :].find(gold))]) for i, gold in enumerate(golds)
    ]
    data = [
        {"title": key, "paragraphs": [{"context": context, "qas": [{"id": key, "question": question, "answers": [
            {"text": text, "answer_start": start} for text, start in answers]}]}]}
        for key, question, context, answers in rows
    ]  # fmt: skip
    (tmp_path / "SQuAD").mkdir()
    (tmp_path / "SQuAD" / "dev-v1.1.json").write_text(json.dumps({"data": data}))
    run = finished_run(tmp_path / "run", "task=squad", f"data.root={tmp_path}", "task.stride=8")
    metrics = evaluate(run, "val")
    predict_split(run, "val", tmp_path / "dev.json", format="squad")
    texts = json.loads((tmp_path / "dev.json").read_text())
    assert metrics["exact_match"] == pytest.approx(sum(exact_match(texts[k], [a[0][0]]) for k, _, _, a in rows) / 5)
    expected = sum(f1(texts[k], [a[0][0]], no_answer=False) for k, _, _, a in rows) / 5
    assert metrics["f1"] == pytest.approx(expected)
    assert expected > 0


def test_masks_are_filled_and_a_line_without_any_is_named(tmp_path):
    run = finished_run(tmp_path / "run", "task=mlm")
    out = io.StringIO()
    assert predict(run, io.StringIO("a [MASK] film\nit was [MASK] in [MASK] end\n"), out) == 2
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [len(row["probabilities"]) for row in rows] == [1, 2]
    with pytest.raises(UserError, match=r"line 2 of the input: this run fills masks, and 'no mask' has none"):
        predict(run, io.StringIO("a [MASK] film\nno mask\n"), io.StringIO())
    source = given(tmp_path, [{"text": "a [MASK]"}, {"text": "none"}])
    with pytest.raises(UserError, match=r"in.jsonl, line 2: this run fills masks"):
        predict(run, source, tmp_path / "out")


def test_more_rows_than_are_read_at_once_keep_their_order(tmp_path, monkeypatch):
    run = finished_run(tmp_path / "run", "task=sst2")
    source = given(tmp_path, [{"text": text, "id": f"x{i}"} for i, text in enumerate(TEXTS)])
    whole = answered(run, source, tmp_path)
    monkeypatch.setattr("attnlab.training.predict.CHUNK", 2)
    pieces = answered(run, source, tmp_path)
    assert [row["id"] for row in pieces] == ["x0", "x1", "x2", "x3", "x4"]
    for one, other in zip(pieces, whole, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


@pytest.fixture
def mnli(tmp_path):
    """An MNLI run whose head has the labels in another order, and files of a few rows with and without labels."""
    root = tmp_path / "data"
    for name in ("MNLI", "XNLI", "HANS", "diagnostic", "RTE"):
        (root / name).mkdir(parents=True)
    labels = ["entailment", "neutral", "contradiction", "entailment", "neutral"]
    pairs = list(zip(TEXTS, OTHERS, strict=True))
    labelled = [{"premise": a, "hypothesis": b, "label": y} for (a, b), y in zip(pairs, labels, strict=True)]
    (root / "MNLI" / "dev_matched.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labelled))
    rows = "".join(f"{i}\t{a}\t{b}\n" for i, (a, b) in enumerate(pairs))
    (root / "MNLI" / "test_matched.tsv").write_text(f"index\tsentence1\tsentence2\n{rows}")
    (root / "diagnostic" / "diagnostic.tsv").write_text(f"index\tsentence1\tsentence2\n{rows}")
    (root / "XNLI" / "dev-zh.tsv").write_text(
        "".join(f"{a}\t{b}\t{y}\n" for (a, b), y in zip(pairs, labels, strict=True))
    )
    two = ["entailment" if y == "entailment" else "non-entailment" for y in labels]
    (root / "HANS" / "heuristics_evaluation_set.txt").write_text(
        "gold_label\tsentence1\tsentence2\tpairID\n"
        + "".join(f"{y}\t{a}\t{b}\tex{i}\n" for i, ((a, b), y) in enumerate(zip(pairs, two, strict=True)))
    )
    order = ["contradiction", "entailment", "neutral"]
    run = finished_run(tmp_path / "run", "task=mnli", f"data.root={root}", "data.source=local", labels=order)
    predictions = [order[int(logits_of(run, a, b).logits.argmax())] for a, b in pairs]
    assert len(set(predictions)) > 1
    return run, predictions, labels


def test_hidden_and_labelled_splits_are_predicted_without_any_training_data(mnli, tmp_path):
    run, predictions, _ = mnli
    for split in ("val", "test"):
        assert predict_split(run, split, tmp_path / "out.jsonl") == 5
        rows = lines(tmp_path / "out.jsonl")
        assert [row["prediction"] for row in rows] == predictions
        assert [row["id"] for row in rows] == [0, 1, 2, 3, 4]
        assert rows[0].get("key") == ("0" if split == "test" else None)


def test_a_run_is_scored_on_other_tasks_with_its_labels(mnli):
    run, predictions, labels = mnli
    right = sum(map(str.__eq__, predictions, labels)) / 5
    assert evaluate(run, "val")["accuracy"] == pytest.approx(right)
    assert evaluate(run, "val_zh", task=task_group("xnli"))["accuracy"] == pytest.approx(right)
    two = sum((p == "entailment") == (y == "entailment") for p, y in zip(predictions, labels, strict=True)) / 5
    assert evaluate(run, "test", task=task_group("hans"))["accuracy"] == pytest.approx(two)


def test_what_cannot_be_scored_or_predicted_is_refused_by_name(mnli, tmp_path):
    run, *_ = mnli
    with pytest.raises(UserError, match=r"task=mnli has no labels for test here: it can be predicted.*split=test"):
        evaluate(run, "test")
    with pytest.raises(UserError, match=r"no split 'tset': did you mean 'test'\? One of: test, test_mismatched, train"):
        evaluate(run, "tset")
    with pytest.raises(UserError, match=r"no split 'valid': did you mean 'val'"):
        predict_split(run, "valid", tmp_path / "out")
    said = r"task=rte has the labels entailment, not_entailment.*task=mnli, knows contradiction, entailment, neutral"
    with pytest.raises(UserError, match=said):
        predict_split(run, "val", tmp_path / "out", task=task_group("rte"))
    with pytest.raises(UserError, match=r"task=stsb is a regression, and the model .* learned a classification"):
        evaluate(run, "val", task=task_group("stsb"))
    with pytest.raises(UserError, match=r"(?s)no test_mismatched data found for task=mnli.*test_mismatched.tsv"):
        predict_split(run, "test_mismatched", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_validation_data_held_out_of_train_can_be_predicted_too(tmp_path):
    table = tmp_path / "my.tsv"
    table.write_text("text\tlabel\n" + "".join(f"{text} {i}\t{i % 2}\n" for i, text in enumerate(TEXTS * 8)))
    run = finished_run(tmp_path / "run", "task=custom", f"data.train={table}", labels=["0", "1"])
    assert predict_split(run, "val", tmp_path / "out.jsonl") == 4
    assert predict_split(run, "train", tmp_path / "out.jsonl") == 40
    with pytest.raises(UserError, match=r"no split 'test'"):
        predict_split(run, "test", tmp_path / "out.jsonl")
