"""What compiling leaves on disk for the next run: whole training graphs, each found by its own code only."""

import pytest
import torch
import torch._functorch.config as autograd_config

from attnlab.training.speed import ALLOW_CUSTOM_BACKWARD, compile_layers, forget_compiled

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
