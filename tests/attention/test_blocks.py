"""Attention over kept blocks equals dense masked attention, and never holds the square of the length."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnlab.attention import AttentionSpec, attach, attention_statistics, recording
from attnlab.attention.blocks import BLOCK, blocks_kept, pays, plan
from attnlab.masks.patterns import Band, Random
from attnlab.masks.spec import MaskSpec
from attnlab.transforms import TRANSFORMS
from attnlab.transforms.kernel import use_kernel

from ..encoders import tiny_encoder, token_batch

CLS = 7
LENGTHS = [200, 150]  # no multiple of the block, and padding in the last block of one


def model(name: str, attn: str = "softmax", length: int = 256, **options):
    encoder = tiny_encoder("bert", max_position_embeddings=length + 2, num_hidden_layers=2, num_attention_heads=2)
    own = {"length": length} if name == "dam" else {}
    spec = MaskSpec(name=name, length=length, options=options | own, cls_id=CLS, special_ids=(CLS,))
    return attach(encoder, AttentionSpec(name=attn, mask=spec))


def texts() -> dict[str, torch.Tensor]:
    batch = token_batch(LENGTHS)
    batch["input_ids"][0, 0] = batch["input_ids"][1, 70] = CLS
    return batch


CASES = [
    ("band", {"window": 5}),
    ("star", {"window": 1}),
    ("bigbird", {"block": 16, "window": 1, "random": 0.1}),
    ("block_local", {"block": 48}),
    ("random", {"density": 0.001}),
    ("logsparse", {}),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=[name for name, _ in CASES])
@pytest.mark.parametrize("attn", ["softmax", "sparsemax"])
def test_blocks_equal_dense_forward_backward_and_in_what_is_measured(name, options, attn):
    found = {}
    for kernel in ("dense", "blocks"):
        net = model(name, attn, **options)
        with use_kernel(kernel):
            with torch.no_grad(), recording(net):
                net(**texts())
            logits = net(**texts()).logits
        logits.square().sum().mul(1e3).backward()
        gradients = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
        found[kernel] = (logits.detach(), gradients, attention_statistics(net))
    (dense, dense_gradient, dense_stats), (blocks, gradient, stats) = found["dense"], found["blocks"]
    torch.testing.assert_close(blocks, dense, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradient, dense_gradient, atol=1e-5 * float(dense_gradient.abs().max()), rtol=1e-3)
    assert stats == pytest.approx(dense_stats, rel=1e-5)


@pytest.mark.parametrize("attn", sorted(TRANSFORMS))
def test_every_transform_takes_blocks(attn):
    net = model("band", attn, window=40)
    text = token_batch([110])  # so few scores that no kernel is compiled
    with torch.no_grad():
        with use_kernel("dense"):
            dense = net(**text).logits
        with use_kernel("blocks"):
            torch.testing.assert_close(net(**text).logits, dense, atol=1e-5, rtol=1e-5)


def test_dropout_and_learned_dials_work_by_blocks():
    net = attach(
        tiny_encoder("bert", max_position_embeddings=258, num_attention_heads=2),
        AttentionSpec(
            name="entmax",
            dials={"alpha": 1.5, "learn_alpha": "head"},
            mask=MaskSpec(name="band", length=256, options={"window": 9}),
        ),
    ).train()
    with use_kernel("blocks"):
        net(**token_batch([110])).logits.square().sum().backward()
    learned = [p.grad for name, p in net.named_parameters() if ".raw_" in name]
    assert learned
    assert all(g is not None and g.isfinite().all() and (g != 0).any() for g in learned)


def test_the_blocks_of_a_learned_mask_follow_its_logits():
    options = {"form": "structured", "per_layer": False, "init_density": 0.9, "hard": True}
    net = model("dam", **options, keep_special=True, apply="scores")
    logits = net.base_model.encoder_mask.mask.logits
    optimizer = torch.optim.AdamW([logits], lr=0.5, fused=True)
    with torch.no_grad():
        logits.copy_(torch.where(torch.arange(256) < 3, 1.0, -0.01).expand_as(logits))
    for _ in range(2):
        with torch.no_grad():
            with use_kernel("dense"):
                dense = net(**texts()).logits
            with use_kernel("blocks"):
                torch.testing.assert_close(net(**texts()).logits, dense, atol=1e-5, rtol=1e-5)
        logits.grad = -torch.ones_like(logits)
        optimizer.step()  # opens all; a fused step leaves no trace in the tensor's version


def test_a_mask_a_layer_and_head_goes_by_blocks(tmp_path):
    keep = torch.zeros(2, 2, 256, 256, dtype=torch.bool)
    position = torch.arange(256)
    for layer in range(2):
        for head in range(2):
            keep[layer, head] = (position[:, None] - position).abs() <= 3 + 20 * layer + 40 * head
    shape = {"shape": list(keep.shape), "keep_special": False, "apply": "scores"}
    net = model("file", "sparsemax", **shape)
    net.base_model.encoder_mask.mask.keep.copy_(keep)
    with torch.no_grad():
        with use_kernel("dense"):
            dense = net(**texts()).logits
        with use_kernel("blocks"):
            torch.testing.assert_close(net(**texts()).logits, dense, atol=1e-5, rtol=1e-5)


class Largest(TorchDispatchMode):
    """Remembers how many elements the largest tensor had that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.untyped_storage().nbytes() // value.element_size())
        return out


def test_memory_grows_with_the_kept_blocks_not_with_the_square():
    largest = {}
    for length in (1024, 4096):
        net = model("band", length=length, window=40)
        with use_kernel("blocks"), Largest() as seen, torch.no_grad():
            net(input_ids=torch.full((1, length), 20))
        largest[length] = seen.elements
    assert largest[4096] < 4096 * 4096 / 8
    assert largest[4096] < 4.5 * largest[1024]


def test_a_plan_keeps_the_blocks_that_hold_a_pair():
    length = 5 * BLOCK + 3
    for pattern in (Band(window=1), Random(density=0.0005)):
        position = torch.arange(6 * BLOCK)
        keep = pattern(position[:, None], position) & (position < length) & (position < length)[:, None]
        expected = keep.view(6, BLOCK, 6, BLOCK).any(3).any(1)
        any_kept = blocks_kept(pattern, length, torch.device("cpu"))
        assert (any_kept == expected).all()
        found = torch.zeros(6, 6, dtype=torch.bool)
        for group in plan(any_kept, length).groups:
            rows = group.query[:, None].expand_as(group.key)
            found[rows[group.there], group.key[group.there]] = True
        assert (found == expected).all()


def test_auto_leaves_short_texts_and_dense_masks_alone():
    with use_kernel("auto"):
        assert not pays(128)
        assert not pays(4096, kept=0.9)
        assert pays(4096, kept=0.05)
    with use_kernel("blocks"):
        assert pays(8, kept=1.0)
    with use_kernel("dense"):
        assert not pays(4096, kept=0.01)
