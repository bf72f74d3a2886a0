"""What compiling leaves on disk for the next run: whole training graphs, each found by its own code only."""

import pytest
import torch
import torch._functorch.config as autograd_config

from attnlab.attention import AttentionSpec, attach
from attnlab.masks.spec import MaskSpec
from attnlab.training.speed import ALLOW_CUSTOM_BACKWARD, compile_layers, forget_compiled

from ..encoders import tiny_encoder, token_batch
from ..report.tiny import tiny_bert


def gradient(factor: float) -> tuple[float, int]:
    """The gradient of a sine whose hand-written backward is off by `factor`, compiled anew, and the cache's hits."""

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            return grad * factor

    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters["aot_autograd"]
    before = counters["autograd_cache_hit"]
    x = torch.ones(8, requires_grad=True)
    torch.compile(lambda x: Sine.apply(x), dynamic=True)(x).sum().backward()
    return float(x.grad[0]), counters["autograd_cache_hit"] - before


@pytest.mark.skipif(not hasattr(autograd_config, ALLOW_CUSTOM_BACKWARD), reason="this torch cannot")
def test_a_graph_with_a_custom_backward_is_cached_under_the_code_of_that_backward(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    compile_layers(tiny_bert())  # sets what runs set
    try:
        assert gradient(2.0) == (2.0, 0)
        assert gradient(3.0) == (3.0, 0)
        assert gradient(2.0) == (2.0, 1)
    finally:
        forget_compiled()


@pytest.mark.parametrize("name", ["star", "dam"])
def test_compiled_layers_under_a_mask_share_one_graph_and_compute_what_plain_ones_do(name):
    options = {"form": "structured", "per_layer": False, "length": 64, "init_density": 0.6, "hard": True}
    own = {**options, "keep_special": True, "apply": "scores"} if name == "dam" else {}
    spec = MaskSpec(name=name, length=64, options=own, cls_id=7, special_ids=(7,))
    outputs = []
    for compiled in (False, True):
        forget_compiled()
        torch._dynamo.utils.counters.clear()
        encoder = tiny_encoder("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        model = attach(encoder, AttentionSpec(name="softmax", mask=spec)).train()
        if compiled:
            compile_layers(model)
        logits = [model(**token_batch(lengths)).logits for lengths in ([9, 30], [20, 40, 33], [50, 12])]
        outputs.append([one.detach() for one in logits])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    forget_compiled()
    for plain, one in zip(*outputs, strict=True):
        torch.testing.assert_close(one, plain, atol=1e-6, rtol=1e-5)
