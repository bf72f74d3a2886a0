"""Every file in conf/ composes, explains itself, and offers a command that works."""

import re
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from attnlab.cli.choices import conf_dir, group_choices
from attnlab.cli.overrides import check

CONF = Path(__file__).parents[1] / "conf"
FILES = sorted(CONF.rglob("*.yaml"))
CHOICES = [(group, name) for group, names in group_choices([CONF]).items() for name in names]


def composed(*words: str) -> DictConfig:
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        return compose("config", overrides=list(words))


def name_of(file: Path) -> str:
    return str(file.relative_to(CONF))


def test_a_checkout_uses_its_own_conf() -> None:
    assert conf_dir() == CONF.resolve()


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_every_choice_composes_to_plain_values(group: str, name: str) -> None:
    plain = OmegaConf.to_container(composed(f"{group}={name}"), resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    assert "_target_" not in str(plain)
    assert group in plain or group in ("experiment", "sweep")


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_file_starts_with_a_comment_and_a_command_to_try(file: Path) -> None:
    lines = file.read_text("utf-8").splitlines()
    if lines[0].startswith("# @package"):
        del lines[0]
    assert lines[0].startswith("# ")
    assert any(line.startswith("# Try: python train.py") for line in lines)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_the_command_to_try_names_only_what_exists(file: Path) -> None:
    (line,) = re.findall(r"^# Try: python train\.py *(.*)$", file.read_text("utf-8"), re.MULTILINE)
    words = []
    for word in line.split():
        if "=" not in word and word != "-m":
            break
        words.append(word)
    check([word for word in words if word != "-m"], multirun="-m" in words)


@pytest.mark.parametrize("group", ["model", "optim", "trainer", "strategy", "logger", "task"])
def test_the_choices_of_a_group_have_the_same_keys(group: str) -> None:
    optional = {"header"}  # of a task's files without one
    keys = {
        file.stem: frozenset(yaml.safe_load(file.read_text("utf-8"))) - optional
        for file in (CONF / group).glob("*.yaml")
    }
    assert len(set(keys.values())) == 1, keys


@pytest.mark.parametrize("name", group_choices([CONF])["attn"])
def test_every_attention_can_be_limited_to_layers_and_warmed_up(name: str) -> None:
    attn = composed(f"attn={name}").attn
    assert attn.name == name
    assert {"layers", "warmup_ratio", "kernel"} <= set(attn)


@pytest.mark.parametrize("name", group_choices([CONF])["model"])
def test_a_model_is_a_full_hub_id_or_the_embedded_one(name: str) -> None:
    assert name == "minilm" or re.fullmatch(r"[\w-]+/[\w.-]+", composed(f"model={name}").model.name)


def test_the_default_needs_no_hub() -> None:
    config = composed()
    assert (config.task.name, config.model.name, config.attn.name) == (
        "movie_reviews",
        "minilm",
        "sparsemax",
    )


def test_the_data_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNLAB_DATA", "/somewhere")
    assert composed().data.root == "/somewhere"
    monkeypatch.delenv("ATTNLAB_DATA")
    assert composed().data.root == "data"


def test_the_attention_sweep_has_every_attention() -> None:
    file = yaml.safe_load((CONF / "sweep" / "attentions.yaml").read_text("utf-8"))
    swept = file["hydra"]["sweeper"]["params"]["attn"].split(",")
    assert sorted(swept) == group_choices([CONF])["attn"]
