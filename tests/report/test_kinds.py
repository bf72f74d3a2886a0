"""Each kind of task from the user's file to the closing plots, and scored again from its folder."""

import json

import pytest

from attnlab.report.run import train
from attnlab.training.evaluate import evaluate

from .tiny import save_tiny

WORDS = ("good", "bad", "a film", "dull and long", "fine")
ROWS = {
    "regression": lambda i: {"text": WORDS[i % 5], "label": i % 5 / 2},
    "multilabel": lambda i: {"text": WORDS[i % 5], "label": [["sad"], ["glad", "sad"], []][i % 3]},
    "multiple_choice": lambda i: {"text": WORDS[i % 5], "end1": "good", "end2": "bad", "label": i % 2},
    "span": lambda i: {"text": "who", "context": f"{WORDS[i % 5]} said Ada", "label": "Ada"},
    "ranking": lambda i: {"text": "who", "context": WORDS[i % 5], "label": i % 2, "question": i // 4},
}
DATA = {
    "multiple_choice": {"choices": ["end1", "end2"]},
    "span": {"text_pair": "context"},
    "ranking": {"text_pair": "context", "group": "question"},
}
FIRST = {
    "regression": "pearson", "multilabel": "micro_f1", "multiple_choice": "accuracy", "span": "f1", "ranking": "map",
}  # fmt: skip


@pytest.mark.parametrize("kind", ROWS)
def test_a_run_of_each_kind_comes_to_its_plots_and_is_scored_again(kind, make_config, tmp_path):
    for split, count in (("train", 24), ("val", 12)):
        rows = (json.dumps(ROWS[kind](i)) + "\n" for i in range(count))
        (tmp_path / f"{split}.jsonl").write_text("".join(rows))
    files = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "val")}
    settings = make_config("task=custom", f"model.name={save_tiny(tmp_path / 'tiny')}", "data.batch_size=8")
    settings["task"]["kind"] = "classification" if kind == "ranking" else kind
    settings["task"]["metrics"] = ["map", "mrr"] if kind == "ranking" else None
    settings["data"] |= {"root": str(tmp_path), "max_length": 64} | files | DATA.get(kind, {})
    result = train(settings, tmp_path / "run")
    assert FIRST[kind] in result.metrics["val"]
    assert list((tmp_path / "run" / "plots").glob("*.png"))
    written = (tmp_path / "run" / "predictions" / "val.jsonl").read_text().splitlines()
    assert len(written) == 12
    again = evaluate(tmp_path / "run", "val")
    for name, value in result.metrics["val"].items():
        assert again[name] == pytest.approx(value, abs=1e-5, nan_ok=True), name
