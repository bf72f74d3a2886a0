"""Every supported family takes our attention, keeps its logits under softmax, and never sees padding."""

import pytest
import torch

from attnlab.attention import (
    AttentionSpec,
    attach,
    attention_modules,
    attention_statistics,
    cores,
    load,
    recording,
)
from attnlab.errors import UserError
from attnlab.transforms import TRANSFORMS

from ..encoders import FAMILIES, REFUSED, tiny_encoder, token_batch

DIALS = {"sparsegen": {"lam": -3.0}, "entmax": {"alpha": 1.3}}


def spec(name: str, **rest) -> AttentionSpec:
    return AttentionSpec(name=name, dials=DIALS.get(name, {}), **rest)


@pytest.mark.parametrize("family", FAMILIES)
def test_softmax_gives_the_stock_models_logits(family):
    batch = token_batch([9, 5, 12])
    stock = tiny_encoder(family)
    with torch.no_grad():
        expected = stock(**batch).logits
        ours = attach(tiny_encoder(family), spec("softmax"))
        torch.testing.assert_close(ours(**batch).logits, expected, atol=1e-6, rtol=1e-5)
        with recording(ours):
            torch.testing.assert_close(ours(**batch).logits, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", sorted(TRANSFORMS))
def test_padding_changes_no_logit(family, name):
    model = attach(tiny_encoder(family), spec(name))
    padded = token_batch([5, 14])
    alone = {key: value[:1, :5] for key, value in padded.items()}
    with torch.no_grad():
        torch.testing.assert_close(model(**padded).logits[:1], model(**alone).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_sparsemax_changes_the_logits_and_reaches_every_layer(family):
    model = attach(tiny_encoder(family), spec("sparsemax"))
    batch = token_batch([9, 5, 12])
    with torch.no_grad():
        assert not torch.allclose(model(**batch).logits, tiny_encoder(family)(**batch).logits, atol=1e-6)
        with recording(model):
            model(**batch)
    found = attention_statistics(model)
    assert len(cores(model)) == (1 if family == "albert" else 3)
    assert 0 < found["density"] <= 1


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_an_encoder_without_the_interface_is_refused_by_name(family):
    with pytest.raises(UserError, match=type(tiny_encoder(family)).__name__):
        attention_modules(tiny_encoder(family))


def test_a_decoder_is_refused():
    model = tiny_encoder("bert", is_decoder=True)
    with pytest.raises(UserError, match="decoder"):
        attach(model, spec("sparsemax"))


def test_chosen_layers_are_sparse_and_the_rest_stay_softmax():
    model = attach(tiny_encoder("bert"), spec("sparsemax", layers=(2,)))
    for p in model.parameters():
        p.data.mul_(4)
    with torch.no_grad(), recording(model):
        model(**token_batch([20, 30]))
    found = attention_statistics(model)
    assert found["density/layer_00"] == found["density/layer_01"] == 1.0
    assert found["density/layer_02"] < 1.0


def test_a_layer_the_model_does_not_have_is_refused():
    with pytest.raises(UserError, match="layers 0 to 2, not 7"):
        attach(tiny_encoder("bert"), spec("sparsemax", layers=(1, 7)))


def test_chosen_layers_are_refused_where_layers_share_their_attention():
    with pytest.raises(UserError, match="shares one attention"):
        attach(tiny_encoder("albert"), spec("sparsemax", layers=(1,)))


def test_an_unknown_attention_names_the_closest():
    with pytest.raises(UserError, match="did you mean 'sparsemax'"):
        attach(tiny_encoder("bert"), spec("sparsmax"))


def test_statistics_count_neither_padded_keys_nor_padded_queries():
    model = attach(tiny_encoder("bert"), spec("softmax"))
    batch = token_batch([5, 14])
    with torch.no_grad(), recording(model):
        model(**batch)
    core = cores(model)[0]
    assert float(core.rows) == 5 + 14
    assert float(core.allowed) == 5 * 5 + 14 * 14
    assert attention_statistics(model)["density"] == 1.0


def test_asking_for_attentions_returns_the_maps_before_dropout():
    model = attach(tiny_encoder("bert"), spec("sparsemax")).train()
    maps = model(**token_batch([6, 6]), output_attentions=True).attentions
    assert len(maps) == 3
    torch.testing.assert_close(maps[0].sum(-1), torch.ones(2, 4, 6))


def test_a_dial_may_differ_from_layer_to_layer_and_comes_back_with_the_model(tmp_path):
    spec = AttentionSpec(name="entmax", dials={"alpha": [1.2, 1.5, 3.0]}, temperature=[1.0, 0.5, 2.0])
    model = attach(tiny_encoder("bert"), spec)
    batch = token_batch([9, 5])
    with torch.no_grad(), recording(model):
        logits = model(**batch).logits
    assert attention_statistics(model)["density/layer_00"] > attention_statistics(model)["density/layer_02"]
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path)(**batch).logits, logits)


@pytest.mark.parametrize(
    ("name", "dial", "values"),
    [("topk", "k", [2, 0.5, 4]), ("constrained", "upper", [0.2, 0.5, 1.0]), ("fusedmax", "tv", [0.0, 0.1, 1.0])],
)
def test_a_list_gives_each_layer_what_its_number_would_give(name, dial, values):
    whole = attach(tiny_encoder("bert"), AttentionSpec(name=name, dials={dial: values}))
    scores = torch.randn(2, 4, 6, 6)
    for core, value in zip(cores(whole), values, strict=True):
        alone = attach(tiny_encoder("bert"), AttentionSpec(name=name, dials={dial: value}))
        torch.testing.assert_close(core.transform(scores), cores(alone)[0].transform(scores))


def test_no_layer_at_all_is_refused():
    with pytest.raises(UserError, match="names no layer"):
        attach(tiny_encoder("bert"), AttentionSpec(name="sparsemax", layers=()))


@pytest.mark.parametrize("granularity", ["head", "layer", "model"])
def test_what_is_learned_comes_back_with_the_model(tmp_path, granularity):
    model = attach(tiny_encoder("bert"), AttentionSpec(name="entmax", dials={"learn_alpha": granularity}))
    learned = [p for name, p in model.named_parameters() if "raw_alpha" in name]
    assert sum(p.numel() for p in learned) == {"head": 12, "layer": 3, "model": 1}[granularity]
    for p in learned:
        torch.nn.init.normal_(p)
    batch = token_batch([9, 5])
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path)(**batch).logits, model(**batch).logits)


def test_learning_by_layer_is_refused_where_layers_share_their_attention():
    for granularity in (True, "head", "layer"):
        with pytest.raises(UserError, match=r"type attn\.learn_alpha=model"):
            attach(tiny_encoder("albert"), AttentionSpec(name="entmax", dials={"learn_alpha": granularity}))
    attach(tiny_encoder("albert"), AttentionSpec(name="entmax", dials={"learn_alpha": "model"}))


def test_a_list_of_another_length_than_the_model_is_refused():
    with pytest.raises(UserError, match="has 2 values, but BertForSequenceClassification has 3 layers"):
        attach(tiny_encoder("bert"), AttentionSpec(name="sparsegen", dials={"lam": [-3.0, -1.0]}))
