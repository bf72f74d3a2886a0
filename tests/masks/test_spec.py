"""From the mask group of a config to a spec, and what is refused on the way."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import save_file

from attnlab.errors import UserError
from attnlab.masks.saved import read_mask, write_mask
from attnlab.masks.spec import MaskSpec, build_mask

CONF = Path(__file__).parents[2] / "conf" / "mask"


def group(name: str, **changes) -> dict:
    return {**OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml")), **changes}


@pytest.mark.parametrize("name", sorted(file.stem for file in CONF.glob("*.yaml") if file.stem not in ("none", "file")))
def test_every_choice_makes_a_spec_that_survives_json_and_builds(name):
    spec = MaskSpec.from_config(group(name), 128).with_tokens(101, 102)
    assert MaskSpec.from_dict(spec.to_dict()) == spec
    mask = build_mask(spec, num_heads=2, num_layers=3)
    position = torch.arange(6)
    keep = mask.at(mask.eval().sample(), position[:, None], position[None, :])
    assert keep.dtype == torch.bool
    assert keep.shape[-2:] == (6, 6)


@pytest.mark.parametrize("name", ["dam", "star"])
def test_a_spec_that_lacks_or_has_too_much_is_refused(name):
    plain = MaskSpec.from_config(group(name), 128).to_dict()
    for odd in ({**plain, "options": {"form": "structured"}}, {**plain, "other": 1}, {"name": name}):
        with pytest.raises(UserError):
            MaskSpec.from_dict(odd).hubs  # noqa: B018


def test_no_mask_is_no_spec():
    assert MaskSpec.from_config(group("none"), 128) is None


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("band", {"window": 0}, "mask.window=0 must be a whole number from 1 on"),
        ("random", {"density": 0}, "mask.density=0 must be in"),
        ("random", {"density": 1}, "mask.density=1 must be in"),
        ("dam", {"target_density": 0}, "mask.target_density=0 must be in"),
        ("dam", {"target_density": 1.5}, "mask.target_density=1.5 must be in"),
        ("dam", {"target_density": 0.1, "hard": False}, "mask.hard=false"),
        ("dam", {"lr": 0}, "mask.lr=0 must be a number above 0"),
        ("dam", {"lam": -1}, "mask.lam=-1 must be"),
        ("dam", {"penalty": "l2"}, "density or l1"),
        ("dam", {"apply": "score"}, "did you mean 'scores'"),
        ("dam", {"form": "unstructured", "length": 64}, "mask.length=64 is less than data.max_length=128"),
        ("dam", {"length": 0}, "mask.length=0 must be"),
        ("dam", {"keep_special": "no"}, "mask.keep_special=no must be true or false"),
        ("dam", {"hard": "no"}, "mask.hard=no must be true or false"),
        ("file", {}, "mask.path=FILE"),
        ("file", {"path": "/nowhere/mask.safetensors"}, "there is no such file"),
        ("sta", {"name": "sta"}, "did you mean 'star'"),
    ],
)
def test_what_cannot_work_is_refused_by_name_and_value(name, changes, words):
    chosen = {"name": name} if name == "sta" else group(name)
    with pytest.raises(UserError, match=words):
        MaskSpec.from_config({**chosen, **changes}, 128)


def test_a_hub_that_the_tokenizer_lacks_is_refused():
    with pytest.raises(UserError, match="classification token"):
        MaskSpec.from_config(group("star"), 128).with_tokens(None, None)


def test_a_mask_file_comes_back_as_written(tmp_path):
    keep = torch.rand(1, 3, 8, 8) > 0.5
    write_mask(tmp_path / "mask.safetensors", keep, {"form": "unstructured"})
    for path in (tmp_path, tmp_path / "mask.safetensors"):
        found, notes = read_mask(path)
        assert (found == keep).all()
        assert notes == {"form": "unstructured"}


def a_file(folder: Path, keep: torch.Tensor, **notes: str) -> dict:
    write_mask(folder / "mask.safetensors", keep, notes)
    return group("file", path=str(folder))


def test_a_mask_file_may_be_one_for_all_heads(tmp_path):
    save_file({"keep": torch.eye(8, dtype=torch.bool)}, tmp_path / "mask.safetensors")
    spec = MaskSpec.from_config(group("file", path=str(tmp_path)), 8)
    assert spec.options["shape"] == [1, 1, 8, 8]


def test_a_mask_file_of_another_length_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"texts of at most 8 tokens, but data\.max_length=128"):
        MaskSpec.from_config(a_file(tmp_path, torch.ones(1, 2, 8, 8)), 128)


@pytest.mark.parametrize(
    ("shape", "words"), [((1, 3, 8, 8), "has 3 heads, the model 2"), ((2, 2, 8, 8), "has 2 layers")]
)
def test_a_mask_file_for_another_model_is_refused(tmp_path, shape, words):
    spec = MaskSpec.from_config(a_file(tmp_path, torch.ones(shape)), 8)
    with pytest.raises(UserError, match=words):
        build_mask(spec, num_heads=2, num_layers=3)


def test_a_mask_file_that_leaves_a_query_without_a_key_is_refused_unless_specials_are_kept(tmp_path):
    keep = torch.ones(1, 2, 8, 8)
    keep[0, 1, 3] = 0
    with pytest.raises(UserError, match="leaves query 3 of head 1"):
        MaskSpec.from_config(a_file(tmp_path, keep), 8)
    assert MaskSpec.from_config(a_file(tmp_path, keep, keep_special="true"), 8).hubs == "special"


def test_a_mask_file_that_leaves_a_short_texts_query_without_a_key_is_refused(tmp_path):
    keep = torch.ones(8, 8).triu(1)
    keep[7, 0] = 1  # at full length every query has a key
    with pytest.raises(UserError, match="query 1 of head 0, layer 0, without a key in a text of 2 tokens"):
        MaskSpec.from_config(a_file(tmp_path, keep), 8)


@pytest.mark.parametrize(
    "content",
    [{"other": torch.ones(8, 8)}, {"keep": torch.ones(8, 4)}, {"keep": torch.ones(8)}],
    ids=["name", "oblong", "flat"],
)
def test_a_file_that_holds_no_mask_is_refused(tmp_path, content):
    save_file(content, tmp_path / "mask.safetensors")
    with pytest.raises(UserError, match="keep"):
        read_mask(tmp_path)


def test_a_file_that_is_no_safetensors_is_refused(tmp_path):
    (tmp_path / "mask.safetensors").write_text("nothing")
    with pytest.raises(UserError, match="no safetensors file"):
        read_mask(tmp_path)
