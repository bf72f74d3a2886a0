"""What README says can be typed: its commands name what exists, and its example of a transform works as printed."""

import re
from pathlib import Path

import pytest
import torch

from attnlab import transforms
from attnlab.attention import AttentionSpec, attach, cores
from attnlab.cli.overrides import check

from .encoders import tiny_encoder, token_batch

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
COMMANDS = [
    command
    for command in re.findall(r"(?:`|^    )(?:ATTNLAB_DATA=\S+ )?python train\.py *([^`\n#]*)", README, re.MULTILINE)
    if "resume=" not in command and "attn=softermax" not in command
]


def test_readme_shows_enough_commands():
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_readme_names_only_what_exists(command):
    words = [word for word in command.split() if word not in ("-m", "--help", "--cfg", "job")]
    check(words, multirun="-m" in command.split())


def test_the_example_transform_in_readme_works_as_printed(monkeypatch):
    (code,) = re.findall(r"```python\n(\"\"\"Softermax.*?)```", README, re.DOTALL)
    module: dict = {"__package__": "attnlab.transforms"}
    exec(code, module)
    monkeypatch.setitem(transforms.TRANSFORMS, "softermax", module["Softermax"])
    model = attach(tiny_encoder("bert"), AttentionSpec(name="softermax", dials={"base": 4.0}))
    stock = attach(tiny_encoder("bert"), AttentionSpec(name="sparsemax"))
    scores = torch.randn(2, 4, 5, 5)
    p = cores(model)[0].transform(scores)
    torch.testing.assert_close(p, 4**scores / (4**scores).sum(-1, keepdim=True))
    with torch.no_grad():
        batch = token_batch([8, 20])
        assert not torch.equal(model(**batch).logits, stock(**batch).logits)
