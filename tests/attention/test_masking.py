"""Masks reach every layer of every family with the padding, whatever the transform, and come back with the model."""

import pytest
import torch

from attnlab.attention import AttentionSpec, attach, attention_statistics, cores, load, recording
from attnlab.attention.core import _gated
from attnlab.attention.masking import encoder_mask
from attnlab.errors import UserError
from attnlab.masks.patterns import Band, build_pattern, pattern_mask
from attnlab.masks.spec import MaskSpec
from attnlab.transforms import TRANSFORMS
from attnlab.transforms.functional import softmax
from attnlab.transforms.sparsemax import sparsemax

from ..encoders import FAMILIES, tiny_encoder, token_batch

CLS = 7
DAM = {"form": "structured", "per_layer": False, "length": 64, "init_density": 0.6, "hard": True}
PATTERNS = [("band", {"window": 2}), ("star", {}), ("bigbird", {}), ("logsparse", {}), ("random", {"density": 0.2})]
LEARNED = [
    {**DAM, "form": form, "per_layer": per_layer, "keep_special": True, "apply": apply}
    for form in ("structured", "signed", "unstructured")
    for per_layer, apply in ((False, "scores"), (True, "probabilities"))
]


def mask(name: str, options: dict | None = None) -> MaskSpec:
    return MaskSpec(name=name, length=64, options=options or {}, cls_id=CLS, special_ids=(CLS, 8))


def masked(family: str, spec: MaskSpec, attn: str = "softmax"):
    torch.manual_seed(0)
    return attach(tiny_encoder(family), AttentionSpec(name=attn, mask=spec))


def texts(*lengths: int) -> dict[str, torch.Tensor]:
    batch = token_batch(list(lengths))
    batch["input_ids"][:, 0] = CLS
    return batch


@pytest.mark.parametrize("window", [1, 3])
def test_a_masked_model_gives_the_stock_models_logits_under_the_same_mask(window):
    batch = texts(9, 5, 12)
    position = torch.arange(12)
    near = (position[:, None] - position).abs() <= window
    allowed = near & batch["attention_mask"].bool()[:, None, None, :]
    # a padded query has no key left, which the stock model answers with NaN: let it see itself
    allowed = allowed | torch.eye(12, dtype=torch.bool)
    with torch.no_grad():
        expected = tiny_encoder("bert")(input_ids=batch["input_ids"], attention_mask=allowed).logits
        ours = masked("bert", mask("band", {"window": window}))(**batch).logits
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "options"), PATTERNS, ids=[name for name, _ in PATTERNS])
def test_padding_changes_no_logit_under_a_mask(family, name, options):
    model = masked(family, mask(name, options), "entmax15")
    padded = texts(6, 30)
    alone = {key: value[:1, :6] for key, value in padded.items()}
    with torch.no_grad():
        torch.testing.assert_close(model(**padded).logits[:1], model(**alone).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("attn", sorted(TRANSFORMS))
def test_every_transform_gives_masked_keys_exactly_nothing(attn):
    model = masked("bert", mask("band", {"window": 2}), attn)
    maps = model(**texts(20, 20), output_attentions=True).attentions
    outside = ~pattern_mask(Band(window=2), 20)
    assert len(maps) == 3
    assert all((p[..., outside] == 0).all() for p in maps)


def test_a_mask_reaches_every_layer_and_is_what_density_is_counted_of():
    model = masked("bert", mask("band", {"window": 2}))
    with torch.no_grad(), recording(model):
        model(**texts(5, 14))
    pairs = sum(int(pattern_mask(Band(window=2), n).sum()) for n in (5, 14))
    for core in cores(model):
        assert float(core.rows) == 5 + 14
        assert float(core.allowed) == pairs
    assert attention_statistics(model)["density"] == 1.0


def test_a_hub_is_found_by_its_id_wherever_it_stands():
    model = masked("bert", mask("star", {}))
    ids = torch.full((2, 9), 20)
    ids[0, 0] = ids[1, 4] = CLS
    maps = model(input_ids=ids, output_attentions=True).attentions
    for example, hub in ((0, 0), (1, 4)):
        assert (maps[0][example, :, :, hub] > 0).all()
        assert (maps[0][example, :, hub, :] > 0).all()
        assert (maps[0][example, :, 8, hub + 1 : 7] == 0).all()


def test_a_mask_with_a_hub_needs_ids():
    model = masked("bert", mask("star"))
    with pytest.raises(UserError, match="input_ids"):
        model(inputs_embeds=torch.zeros(1, 4, 32))


def test_a_failed_forward_leaves_no_mask_behind():
    with pytest.raises(UserError):
        masked("bert", mask("star"))(inputs_embeds=torch.zeros(1, 4, 32))
    stock = attach(tiny_encoder("bert"), AttentionSpec(name="softmax"))
    batch = texts(9, 5)
    with torch.no_grad():
        torch.testing.assert_close(stock(**batch).logits, tiny_encoder("bert")(**batch).logits, atol=1e-6, rtol=1e-5)


def test_a_mask_of_the_users_own_is_not_silently_taken_for_ours():
    model = masked("bert", mask("band", {"window": 2}))
    with pytest.raises(UserError, match="mask of its own"):
        model(input_ids=torch.full((1, 4), 9), attention_mask=torch.ones(1, 1, 4, 4, dtype=torch.bool))


@pytest.mark.parametrize("options", LEARNED, ids=lambda o: f"{o['form']}-{o['apply']}")
@pytest.mark.parametrize("attn", ["softmax", "sparsemax", "rela"])
def test_a_learned_mask_ignores_padding_and_comes_back_with_the_model(options, attn, tmp_path):
    model = masked("bert", mask("dam", options), attn)
    padded = texts(6, 30)
    alone = {key: value[:1, :6] for key, value in padded.items()}
    with torch.no_grad():
        logits = model(**padded).logits
        torch.testing.assert_close(logits[:1], model(**alone).logits, atol=1e-5, rtol=1e-4)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path)(**padded).logits, logits)


@pytest.mark.parametrize("options", LEARNED, ids=lambda o: f"{o['form']}-{o['apply']}")
def test_every_seen_logit_of_a_learned_mask_gets_a_gradient_under_softmax(options):
    model = masked("bert", mask("dam", {**options, "keep_special": False})).train()
    model(**texts(64, 64)).logits.square().sum().backward()
    gradient = encoder_mask(model).mask.logits.grad
    assert gradient.isfinite().all()
    assert (gradient[0] != 0).float().mean() > 0.99  # of the last layer only [CLS] is read


def test_special_tokens_may_be_kept_always():
    options = {**DAM, "init_density": 0.001, "keep_special": True, "apply": "scores"}
    model = masked("bert", mask("dam", options))
    ids = torch.full((1, 9), 20)
    ids[0, 0], ids[0, 5] = CLS, 8
    (first, *_) = model(input_ids=ids, output_attentions=True).attentions
    special = torch.zeros(9, dtype=torch.bool)
    special[[0, 5]] = True
    kept = special[:, None] | special[None, :]
    assert ((first > 0) == kept).all()


def test_one_attention_for_all_layers_cannot_have_a_mask_a_layer():
    with pytest.raises(UserError, match="mask a layer"):
        masked("albert", mask("dam", LEARNED[1]))


def test_attaching_anew_takes_the_mask_away():
    model = masked("bert", mask("star"))
    attach(model, AttentionSpec(name="softmax"))
    stock, batch = tiny_encoder("bert"), texts(9, 5)
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, stock(**batch).logits, atol=1e-6, rtol=1e-5)
    assert not [key for key in model.state_dict() if "mask" in key]


def test_gates_enter_softmax_as_their_logarithm():
    torch.manual_seed(0)
    scores, gate = torch.randn(2, 3, 5, 5, dtype=torch.float64), torch.rand(2, 3, 5, 5, dtype=torch.float64)
    keep = torch.rand(2, 1, 1, 5) > 0.3
    expected = softmax(scores + gate.log(), keep)
    torch.testing.assert_close(_gated(softmax, scores, keep, gate, False), expected, atol=1e-12, rtol=1e-9)
    expected = sparsemax(scores + gate.log(), keep)
    torch.testing.assert_close(_gated(sparsemax, scores, keep, gate, False), expected, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(_gated(softmax, scores, keep, gate, True), softmax(scores, keep) * gate)


def test_the_gradient_at_a_closed_gate_is_that_of_the_limit():
    torch.manual_seed(0)
    scores, upstream = torch.randn(1, 1, 6, 6, dtype=torch.float64), torch.randn(1, 1, 6, 6, dtype=torch.float64)
    scores[..., 0] += 3  # in every row, a kept key above those that are closed
    gate = torch.ones_like(scores)
    gate[..., 3:] = 0
    gate.requires_grad_()
    _gated(softmax, scores, None, gate, False).backward(upstream)
    step = 1e-6
    for key in (1, 4):
        nudged = gate.detach().clone()
        nudged[..., key] += step
        moved = (_gated(softmax, scores, None, nudged, False) - _gated(softmax, scores, None, gate, False)).detach()
        slope = (moved * upstream).sum(-1) / step
        torch.testing.assert_close(gate.grad[..., key], slope, atol=1e-4, rtol=1e-4)


def test_a_row_whose_gates_are_all_closed_is_zeros_with_a_finite_gradient():
    scores = torch.randn(1, 1, 2, 4, requires_grad=True)
    gate = torch.zeros(1, 1, 2, 4, requires_grad=True)
    for transform in (softmax, sparsemax):
        p = _gated(transform, scores, None, gate, False)
        assert (p == 0).all()
        p.sum().backward()
        assert gate.grad.isfinite().all()
        assert gate.grad.abs().max() <= 1
        assert scores.grad.isfinite().all()


@pytest.mark.parametrize(("name", "options"), PATTERNS, ids=[name for name, _ in PATTERNS])
def test_density_is_that_of_the_pattern(name, options):
    model = masked("bert", mask(name, options))
    keep = pattern_mask(build_pattern(name, **options), 64, torch.arange(64) == 0)
    assert encoder_mask(model).density() == pytest.approx(float(keep.float().mean()))
