"""The learning rate falls with the distance from the head, in every family, and every parameter is in one group."""

import pytest

from attnlab.attention import AttentionSpec, attach
from attnlab.training.optim import build_optimizer

from ..encoders import FAMILIES, tiny_encoder


@pytest.mark.parametrize("family", FAMILIES)
def test_each_layer_learns_at_its_share_of_the_rate_above(family):
    model = attach(tiny_encoder(family), AttentionSpec(name="entmax", dials={"learn_alpha": "model"}))
    optimizer = build_optimizer(model, {"lr": 1.0, "layer_decay": 0.5, "weight_decay": 0.1, "dial_lr": 3.0})
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert set(rates) == {id(p) for p in model.parameters()}
    layers = 1 if family == "albert" else 3
    assert [rates[id(p)] for name, p in model.named_parameters() if "raw_alpha" in name] == [3.0]
    seen = {rates[id(p)] for name, p in model.named_parameters() if "raw_alpha" not in name}
    assert seen == {0.5**depth for depth in range(layers + 2)}
    for name, p in model.named_parameters():
        assert decays[id(p)] == (0.1 if p.dim() >= 2 else 0.0)
        if name.startswith(("classifier", "head", "pre_classifier")):
            assert rates[id(p)] == 1.0
        if "word_embeddings" in name or "tok_embeddings" in name:
            assert rates[id(p)] == 0.5 ** (layers + 1)
