"""What README says can be typed: its commands name what exists, and its example of a transform works as printed."""

import re
from pathlib import Path

import pytest
import torch

from attnlab import transforms
from attnlab.attention import AttentionSpec, attach, attention_statistics, recording
from attnlab.cli.overrides import check

from .encoders import tiny_encoder, token_batch

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
COMMANDS = [
    command
    for command in re.findall(r"(?:`|^    )(?:ATTNLAB_DATA=\S+ )?python train\.py *([^`\n#]*)", README, re.MULTILINE)
    if "resume=" not in command and "attn=topk" not in command
]


def test_readme_shows_enough_commands():
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_readme_names_only_what_exists(command):
    words = [word for word in command.split() if word not in ("-m", "--help", "--cfg", "job")]
    check(words, multirun="-m" in command.split())


def test_the_example_transform_in_readme_works_as_printed(monkeypatch):
    (code,) = re.findall(r"```python\n(\"\"\"Top-k.*?)```", README, re.DOTALL)
    module: dict = {"__package__": "attnlab.transforms"}
    exec(code, module)
    monkeypatch.setitem(transforms.TRANSFORMS, "topk", module["TopK"])
    model = attach(tiny_encoder("bert"), AttentionSpec(name="topk", dials={"k": 2}))
    with torch.no_grad(), recording(model):
        model(**token_batch([8, 20]))
    assert attention_statistics(model)["support"] == pytest.approx(2.0)
