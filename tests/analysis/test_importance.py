"""The mean gate of a kind of pair is what counting by hand gives, and a model's gates are those of its evaluation."""

import math

import pytest
import torch

from attnlab.analysis.importance import PARTS, importance, importance_by_layer, mask_gates, parts_of
from attnlab.attention import AttentionSpec, attach
from attnlab.attention.masking import encoder_mask
from attnlab.masks.spec import MaskSpec

from ..encoders import tiny_encoder

CLS, SEP, LENGTH = 7, 8, 10
DAM = {"per_layer": False, "length": LENGTH, "init_density": 0.5, "hard": True, "apply": "scores"}


def counted(gates, *, inner: bool = False):
    """The five means by a loop over all pairs."""
    layers, heads, length, _ = gates.shape
    values = {name: [] for name in PARTS}
    for i in range(length):
        for j in range(length):
            if inner and {i, j} & {0, length - 1}:
                continue
            kinds = [
                name
                for name, is_so in (
                    ("diagonal", i == j),
                    ("neighbours", abs(i - j) == 1),
                    ("cls", j == 0),
                    ("sep", j == length - 1),
                )
                if is_so
            ]
            for name in kinds or ["rest"]:
                values[name] += [float(gates[layer, head, i, j]) for layer in range(layers) for head in range(heads)]
    return {name: math.fsum(found) / len(found) for name, found in values.items() if found}


def held(name: str, **options):
    torch.manual_seed(0)
    spec = MaskSpec(name=name, length=LENGTH, options=options, cls_id=CLS, special_ids=(CLS, SEP))
    return encoder_mask(attach(tiny_encoder("bert"), AttentionSpec(name="softmax", mask=spec)))


@pytest.mark.parametrize("shape", [(1, 1, 6, 6), (3, 4, 9, 9), (1, 2, 2, 2)])
def test_importance_is_the_mean_gate_of_each_kind_of_pair(shape):
    gates = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    assert importance(gates) == pytest.approx(counted(gates))


def test_special_tokens_that_are_kept_anyway_count_as_one_and_nowhere_else():
    gates = torch.rand(2, 3, 7, 7, generator=torch.Generator().manual_seed(1))
    found = importance(gates, special_kept=True)
    assert found["cls"] == found["sep"] == 1.0
    expected = counted(gates, inner=True)
    assert {name: found[name] for name in ("diagonal", "neighbours", "rest")} == pytest.approx(expected)


def test_every_pair_is_of_a_part_and_the_rest_is_of_no_other():
    parts = parts_of(5)
    assert tuple(parts) == PARTS
    assert torch.stack(list(parts.values())).any(dim=0).all()
    named = torch.stack([pairs for name, pairs in parts.items() if name != "rest"]).any(dim=0)
    assert not (parts["rest"] & named).any()
    assert int(parts["rest"].sum()) == 25 - 5 - 8 - 3 - 3


def test_a_mask_a_layer_has_a_row_a_layer_whose_mean_is_the_whole():
    gates = torch.rand(3, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    rows = importance_by_layer(gates)
    assert list(rows) == ["all", "0", "1", "2"]
    assert rows["1"] == pytest.approx(counted(gates[1:2]))
    for name in PARTS:
        assert rows["all"][name] == pytest.approx(sum(rows[str(layer)][name] for layer in range(3)) / 3)
    assert list(importance_by_layer(gates[:1])) == ["all"]


def test_soft_gates_are_the_sigmoids_of_the_logits_by_pair():
    mask = held("dam", **{**DAM, "hard": False, "per_layer": True}, form="unstructured", keep_special=False)
    torch.testing.assert_close(mask_gates(mask), mask.mask.logits.detach().sigmoid())
    assert mask.learned is mask.mask


def test_hard_gates_are_where_the_logit_of_the_distance_is_positive():
    mask = held("dam", **DAM, form="structured", keep_special=True)
    mask.train()
    gates = mask_gates(mask)
    logits = mask.mask.logits
    for i, j in ((0, 0), (3, 1), (2, 9)):
        assert gates[0, :, i, j].tolist() == (logits[0, :, abs(i - j)] > 0).float().tolist()
    assert mask.mask.training, "it goes on training as before"


def test_a_hub_stands_at_the_first_position():
    gates = mask_gates(held("star", window=1, hubs="cls"))
    assert gates.shape == (1, 1, LENGTH, LENGTH)
    expected = torch.zeros(LENGTH, LENGTH)
    for i in range(LENGTH):
        for j in range(LENGTH):
            expected[i, j] = float(abs(i - j) <= 1 or i == 0 or j == 0)
    assert torch.equal(gates[0, 0], expected)


def test_a_pattern_is_not_learned():
    assert held("band", window=2).learned is None
