"""A run with a mask shows it: what a learned one lets through, and the mask in the closing table."""

import csv
import json

import pytest
import torch

from attnlab.attention import load
from attnlab.attention.masking import encoder_mask
from attnlab.masks.saved import read_mask
from attnlab.report.export import export_mask
from attnlab.report.run import train

SHORT = ("attn=softmax", "trainer.max_epochs=1", "data.limit=48", "data.max_length=24")
PARTS = {"diagonal", "neighbours", "cls", "sep", "rest"}


def line_with(text, word):
    return next(line for line in text.splitlines() if line.startswith(word))


def test_a_learned_mask_is_drawn_measured_exported_and_trained_on(make_config, tmp_path, capsys):
    words = ("mask=dam", "mask.form=unstructured", "mask.per_layer=true", "mask.keep_special=true")
    folder = train(make_config(*SHORT, *words), tmp_path / "learned").run_dir
    assert (folder / "plots" / "mask.png").stat().st_size > 1_000
    with (folder / "plots" / "mask_importance.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["layer"] for row in rows] == [layer for layer in ("all", "0", "1") for _ in PARTS]
    mask = json.loads((folder / "metrics.json").read_text())["mask"]
    assert set(mask) == {"density"} | PARTS
    assert {row["part"]: float(row["gate"]) for row in rows[:5]} == pytest.approx({part: mask[part] for part in PARTS})
    assert line_with(capsys.readouterr().out, "mask").split()[1:4] == ["dam,", "allows", f"{100 * mask['density']:.1f}"]

    exported = export_mask(folder)
    assert exported.density == pytest.approx(mask["density"])
    with torch.no_grad():
        logits = encoder_mask(load(folder)).mask.logits
    assert torch.equal(read_mask(folder / "export")[0], logits > 0)

    words = ("mask=file", f"mask.path={folder / 'export'}", "task.name=again")
    again = train(make_config(*SHORT, *words), tmp_path / "again").run_dir
    held = encoder_mask(load(again))
    assert torch.equal(held.mask.keep, logits > 0), "training leaves a mask from a file as it is"
    assert held.hubs == "special", "as when it was learned"
    metrics = json.loads((again / "metrics.json").read_text())
    assert metrics["mask"] == {"density": pytest.approx(mask["density"])}
    assert line_with(capsys.readouterr().out, "mask").split()[1] == "file,"
    assert not (again / "plots" / "mask.png").exists()


def test_a_pattern_stands_in_the_closing_table_and_no_mask_does_not(make_config, tmp_path, capsys):
    train(make_config(*SHORT, "mask=star"), tmp_path / "star")
    # 24 tokens: a band of 70 pairs, and 2 x 22 of the hub beyond it
    assert line_with(capsys.readouterr().out, "mask").split()[1:4] == [
        "star,",
        "allows",
        f"{100 * (70 + 44) / 576:.1f}",
    ]
    folder = train(make_config(*SHORT), tmp_path / "none").run_dir
    assert not any(line.startswith("mask") for line in capsys.readouterr().out.splitlines())
    assert "mask" not in json.loads((folder / "metrics.json").read_text())
