"""An exported mask is what the run kept: the file trains on as mask=file, the pictures show it, the rest is refused."""

import pytest
import torch
from PIL import Image
from safetensors import safe_open

from attnlab.attention import AttentionSpec, attach, load
from attnlab.attention.masking import encoder_mask
from attnlab.cli.from_run import export_command
from attnlab.errors import UserError
from attnlab.masks.saved import read_mask
from attnlab.masks.spec import MaskSpec
from attnlab.report.export import export_mask
from attnlab.report.mask_figure import head_figure, overview_figure
from attnlab.training.masking import fill_mask

from .tiny import tiny_bert, tiny_tokenizer

LENGTH = 12
DAM = {"form": "structured", "per_layer": False, "length": LENGTH, "init_density": 0.5, "hard": True}


@pytest.fixture
def run(tmp_path):
    """`run("dam", **options)`: a run folder with a random model that has that mask, and the model."""

    def make(name=None, **options):
        torch.manual_seed(0)
        tokenizer = tiny_tokenizer()
        spec = MaskSpec(name=name, length=LENGTH, options=options) if name else None
        if spec:
            spec = spec.with_tokens(tokenizer.cls_token_id, tokenizer.sep_token_id)
        model = attach(tiny_bert(), AttentionSpec(name="softmax", mask=spec)).eval()
        folder = tmp_path / "run"
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        (folder / "config.yaml").write_text("task: {}\n")
        (folder / "status.json").write_text("{}")
        return folder, model

    return make


def dam(**changes):
    return {**DAM, "keep_special": False, "apply": "scores", **changes}


def test_the_file_holds_what_has_a_positive_logit_and_says_where_it_is_from(run):
    folder, model = run("dam", **dam())
    exported = export_mask(folder)
    keep, notes = read_mask(folder / "export")
    logits = encoder_mask(model).mask.logits[0]
    distance = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()
    assert torch.equal(keep[0], (logits > 0)[:, distance])
    assert keep.shape == (1, 4, LENGTH, LENGTH)
    assert exported.density == pytest.approx(float(keep.float().mean()))
    assert notes["form"] == "structured"
    assert notes["keep_special"] == "false"
    assert float(notes["density"]) == pytest.approx(exported.density, abs=1e-6)
    assert notes["run"] == str(folder)


def test_each_head_has_a_picture_and_all_have_one_together(run):
    folder, _ = run("dam", **dam())
    exported = export_mask(folder)
    names = ["mask.safetensors", "mask.png", *(f"mask_head_{head:02d}.png" for head in range(4))]
    assert [file.name for file in exported.files] == names
    assert {file.parent for file in exported.files} == {folder / "export"}
    for file in exported.files[1:]:
        with Image.open(file) as picture:
            assert picture.width >= 400


def test_where_layers_differ_a_picture_is_of_a_layers_head(run, tmp_path):
    folder, _ = run("dam", **dam(form="unstructured", per_layer=True))
    exported = export_mask(folder, tmp_path / "elsewhere")
    names = [f"mask_layer_{layer:02d}_head_{head:02d}.png" for layer in range(3) for head in range(4)]
    assert [file.name for file in exported.files[2:]] == names
    assert read_mask(tmp_path / "elsewhere")[0].shape[0] == 3


def test_soft_gates_are_cut_at_a_half(run):
    folder, model = run("dam", **dam(form="unstructured", hard=False))
    exported = export_mask(folder)
    keep, _ = read_mask(folder / "export" / "mask.safetensors")
    assert torch.equal(keep, encoder_mask(model).mask.logits.sigmoid() > 0.5)
    assert any("above 0.5" in note for note in exported.notes)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dam", dam(keep_special=True)),
        ("dam", dam(form="unstructured", per_layer=True, keep_special=True)),
        ("star", {"window": 1, "hubs": "cls"}),
        ("longformer", {"window": 2, "hubs": "special"}),
        ("band", {"window": 2}),
    ],
    ids=["dam", "dam by layer", "star", "longformer special", "band"],
)
def test_a_model_with_the_exported_mask_gives_the_runs_logits(run, name, options):
    folder, model = run(name, **options)
    export_mask(folder)
    config = {"name": "file", "path": str(folder / "export"), "keep_special": None, "apply": "scores"}
    tokenizer = tiny_tokenizer()
    spec = MaskSpec.from_config(config, LENGTH).with_tokens(tokenizer.cls_token_id, tokenizer.sep_token_id)
    again = attach(tiny_bert(), AttentionSpec(name="softmax", mask=spec)).eval()
    fill_mask(again, config["path"])
    ours = {key: value for key, value in model.state_dict().items() if "encoder_mask" not in key}
    again.load_state_dict(ours, strict=False)
    batch = tokenizer(["abc def g", "ab"], padding=True, return_tensors="pt")
    assert batch["input_ids"].shape[1] > 5
    with torch.no_grad():
        torch.testing.assert_close(again(**batch).logits, model(**batch).logits)
    assert not [name for name, p in again.named_parameters() if "encoder_mask" in name], "the mask is frozen"


def test_a_pattern_is_one_head_with_its_hub_first(run):
    folder, _ = run("star", window=1, hubs="cls")
    exported = export_mask(folder)
    keep, notes = read_mask(folder / "export")
    assert keep.shape == (1, 1, LENGTH, LENGTH)
    assert keep[0, 0, 0].all()
    assert keep[0, 0, :, 0].all()
    assert notes["form"] == "star"
    # 3 L - 2 of the band, and what is of the first row and column beyond it
    assert exported.density == pytest.approx((3 * LENGTH - 2 + 2 * (LENGTH - 2)) / LENGTH**2)


def test_a_mask_that_leaves_a_query_without_a_key_is_exported_with_the_remedy(run):
    folder, model = run("dam", **dam())
    with torch.no_grad():
        encoder_mask(model).mask.logits[0, 1] = -1.0
    model.save_pretrained(folder / "model")
    assert any("mask.keep_special=true" in note for note in export_mask(folder).notes)


def test_the_command_prints_each_file_and_the_density(run, tmp_path, capsys):
    folder, _ = run("band", window=2)
    assert export_command([f"run={folder}", "what=mask", f"output={tmp_path / 'out'}"]) == 0
    *files, density = capsys.readouterr().out.splitlines()
    assert files == [str(tmp_path / "out" / name) for name in ("mask.safetensors", "mask.png", "mask_head_00.png")]
    with safe_open(tmp_path / "out" / "mask.safetensors", framework="pt") as file:
        assert density.startswith(f"density {float(file.metadata()['density']):.4f}")


def test_what_cannot_be_exported_is_refused_with_the_remedy(run, tmp_path):
    folder, _ = run()
    assert encoder_mask(load(folder)) is None
    with pytest.raises(UserError, match="trained with mask=none"):
        export_mask(folder)
    assert not (folder / "export").exists()
    (tmp_path / "file").write_text("")
    for words, meant in (
        (["what=mask", f"output={tmp_path / 'file'}"], "is a file: name a folder"),
        (["what=masks"], "unknown what 'masks': did you mean 'mask'?"),
        ([], "export what"),
    ):
        with pytest.raises(UserError, match=meant.replace("?", r"\?")):
            export_command([f"run={folder}", *words])


def test_pictures_show_the_pairs_that_are_kept():
    keep = torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(0)) > 0.5
    (panel,) = head_figure(keep[1, 2], "Head 2").axes
    assert torch.equal(torch.from_numpy(panel.get_images()[0].get_array().data).bool(), keep[1, 2])
    panels = [axes for axes in overview_figure(keep, "both").axes if axes.get_visible()]
    assert len(panels) == 6
    for panel, expected in zip(panels, keep.flatten(0, 1), strict=True):
        assert torch.equal(torch.from_numpy(panel.get_images()[0].get_array().data).bool(), expected)


def test_a_large_model_is_drawn_at_most_12_by_12():
    keep = torch.ones(24, 16, 4, 4, dtype=torch.bool)
    panels = [axes for axes in overview_figure(keep, "large").axes if axes.get_visible()]
    assert len(panels) == 144
