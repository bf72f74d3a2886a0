"""Every file in conf/ composes, explains itself, and offers a command that works."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from attnlab.cli.choices import conf_dir, group_choices
from attnlab.cli.overrides import check
from attnlab.data.formats import FORMATS
from attnlab.data.spec import DataSpec

CONF = Path(__file__).parents[1] / "conf"
FILES = sorted(CONF.rglob("*.yaml"))
CHOICES = [(group, name) for group, names in group_choices([CONF]).items() for name in names]


# in the order in which every task has them
TASK_KEYS = [
    "name",
    "kind",
    "dataset",
    "files",
    "header",
    "layouts",
    "wheel",
    "hub",
    "columns",
    "labels",
    "aliases",
    "merge",
    "range",
    "metrics",
    "rows",
    "max_length",
    "stride",
    "longest_answer",
    "n_best",
    "no_answer",
    "mask_probability",
    "whole_word",
    "unknown",
]

ELSEWHERE = {"custom", "mlm"}  # not in the tables of docs/tasks.md


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
    # what only some kinds of task or only some files need
    optional = set(TASK_KEYS) - {"name", "kind", "dataset", "files", "wheel", "hub", "columns", "labels", "metrics"}
    keys = {
        name: frozenset(map(str, composed(f"{group}={name}")[group])) - optional
        for name in group_choices([CONF])[group]
    }
    assert len(set(keys.values())) == 1, keys


@pytest.mark.parametrize("name", group_choices([CONF])["task"])
def test_a_task_has_known_keys_in_their_order(name: str) -> None:
    keys = list(yaml.safe_load((CONF / "task" / f"{name}.yaml").read_text("utf-8")))
    assert keys == [key for key in TASK_KEYS if key in keys]


@pytest.mark.parametrize("name", group_choices([CONF])["task"])
def test_a_task_is_what_its_file_is_called_and_counts_only_splits_that_it_has(name: str) -> None:
    task = yaml.safe_load((CONF / "task" / f"{name}.yaml").read_text("utf-8"))
    spec = DataSpec.from_config(task, {})
    assert spec.task == name
    assert set(spec.rows) <= set(spec.files) | set(spec.hub.splits if spec.hub else ())
    assert not set(spec.aliases.values()) - set(spec.labels or ())
    names = [name for alternatives in spec.files.values() for name in alternatives]
    for layout in spec.layouts:
        assert layout.format == "auto" or layout.format in FORMATS
        # "*.*": the user's own files, where else a layout for folders would fit them
        assert layout.match in ("*.*", "hub:*") or any(fnmatch(name, layout.match) for name in names), layout


@pytest.mark.parametrize("name", sorted({*group_choices([CONF])["task"]} - ELSEWHERE))
def test_the_docs_tell_of_each_task_its_metrics_rows_and_source(name: str) -> None:
    task = yaml.safe_load((CONF / "task" / f"{name}.yaml").read_text("utf-8"))
    lines = (CONF.parent / "docs" / "tasks.md").read_text("utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith(f"| `{name}` |")]
    _, _, _, metrics, _, source, _, _ = line.split("|")
    assert metrics.strip() == ", ".join(task["metrics"])
    for count in task.get("rows", {}).values():
        assert f"{count if isinstance(count, int) else count[0]:,}" in line
    hub = (task["hub"] or {}).get("path", "nyu-mll/glue")
    assert hub == "nyu-mll/glue" or hub in source
    assert task["dataset"] is None or f"`{task['dataset']}/" in source


@pytest.mark.parametrize("name", group_choices([CONF])["attn"])
def test_every_attention_can_be_limited_to_layers_and_warmed_up(name: str) -> None:
    attn = composed(f"attn={name}").attn
    assert attn.name == name
    assert {"layers", "warmup_ratio", "kernel"} <= set(attn)


@pytest.mark.parametrize("name", group_choices([CONF])["model"])
def test_a_model_is_new_or_a_full_hub_id_or_the_embedded_one(name: str) -> None:
    model = composed(f"model={name}").model
    if model.config is not None:
        assert (model.name, model.tokenizer) == (name, "corpus")
    else:
        assert name == "minilm" or re.fullmatch(r"[\w-]+/[\w.-]+", model.name)


def test_a_new_model_brings_its_learning_rate_and_length_and_what_is_typed_wins() -> None:
    old, new = composed("model=minilm"), composed("model=bert_tiny")
    assert (new.optim.lr, new.trainer.max_epochs) == (3e-3, 40)
    assert (old.optim.lr, old.trainer.max_epochs) == (1e-4, 3)
    typed = composed("model=bert_tiny", "optim=adamw", "trainer.max_epochs=2")
    assert (typed.optim.lr, typed.trainer.max_epochs) == (1e-4, 2)


@pytest.mark.parametrize(
    ("name", "layers", "width"),
    [("bert_tiny", 2, 128), ("bert_mini", 4, 256), ("bert_small", 4, 512), ("bert_base_scratch", 12, 768)],
)
def test_new_models_have_the_sizes_of_turc_2019(name: str, layers: int, width: int) -> None:
    config = composed(f"model={name}").model.config
    assert (config.num_hidden_layers, config.hidden_size) == (layers, width)
    assert (config.num_attention_heads, config.intermediate_size) == (width // 64, 4 * width)


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


def test_a_task_says_how_long_its_texts_are_and_the_user_has_the_last_word() -> None:
    assert composed("task=sst2").data.max_length == 128
    assert composed("task=squad").data.max_length == 384
    assert composed("data.max_length=64", "task=squad").data.max_length == 64
