"""One layer's attention: scores and mask through the transform to the context, measured on the way.

Shapes: B batch, H heads, Q queries, K keys, D head width.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..transforms.dial import TEMPERATURE, Dial
from ..transforms.functional import softmax
from ..transforms.softmax import Softmax
from .blocks import gather, scatter
from .dropout import dropout
from .masking import Masks


class SparseAttention(nn.Module):
    """The transform of one attention layer and what was measured of it.

    walk      share of the sparse transform in training's attention (1 - walk) softmax + walk transform; 1 when done.
              Evaluation always uses the transform alone.
    record    measure density, support and entropy while running.
    capture   keep the last probabilities (B, H, Q, K) in `captured`.
    temperature  divides the scores; a number, or a buffer where it is steered.
    masked    the encoder has a mask, which comes with the padding.
    """

    def __init__(self, transform: nn.Module, *, layer: int, num_heads: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.transform = transform
        self.temperature: float | Tensor = temperature
        self.layer = layer
        self.num_heads = num_heads
        self.dense = isinstance(transform, Softmax)
        self.finish = getattr(transform, "finish", None)
        self.sums_to_one = "sum" not in getattr(transform, "breaks", ())
        self.masked = False
        self.walking = False
        self.record = False
        self.capture = False
        self.captured: Tensor | None = None
        self.walk: Tensor
        self.rows: Tensor
        self.allowed: Tensor
        self.kept: Tensor
        self.entropy: Tensor
        self.register_buffer("walk", torch.ones(()), persistent=False)
        # Sums over measured rows: rows, allowed pairs, kept pairs (per head), entropy in nats (per head).
        self.register_buffer("rows", torch.zeros((), dtype=torch.float64), persistent=False)
        self.register_buffer("allowed", torch.zeros((), dtype=torch.float64), persistent=False)
        self.register_buffer("kept", torch.zeros(num_heads, dtype=torch.float64), persistent=False)
        self.register_buffer("entropy", torch.zeros(num_heads, dtype=torch.float64), persistent=False)

    def forward(
        self,
        query_BHQD: Tensor,
        key_BHKD: Tensor,
        value_BHKD: Tensor,
        keep: Tensor | Masks | None,
        *,
        rate: float = 0.0,
        scaling: float | None = None,
        want_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Context (B, Q, H, D), and the probabilities (B, H, Q, K) before dropout when wanted, else None."""
        if scaling is None:
            scaling = query_BHQD.shape[-1] ** -0.5
        scale = scaling / self.temperature
        looked_at = self.record or self.capture or want_weights
        gate = real = None
        multiply = by_block = False
        if isinstance(keep, Masks):
            if keep.plan is not None:
                return self._by_blocks(query_BHQD, key_BHKD, value_BHKD, keep, rate, scaling), None
            by_block = keep.by_block
            masks = keep
            assert isinstance(masks.keep, Tensor)
            keep, gate, real, multiply = masks.keep, masks.gate, masks.real, masks.multiply
            if masks.by_layer:  # else the number of the layer would be compiled in
                keep = keep[self.layer] if keep.dim() == 5 else keep
                gate = gate[self.layer] if gate is not None else None
        plain = self.dense and gate is None and not looked_at and (rate == 0.0 or query_BHQD.is_cuda)
        # in bfloat16 the CPU's fused kernel takes twice as long for blocks, forward and backward
        slow = by_block and torch.is_grad_enabled() and query_BHQD.dtype == torch.bfloat16 and not query_BHQD.is_cuda
        if plain and not slow and isinstance(scale, float):
            context_BHQD = F.scaled_dot_product_attention(
                query_BHQD, key_BHKD, value_BHKD, attn_mask=keep, dropout_p=rate, scale=scale
            )
            return context_BHQD.transpose(1, 2).contiguous(), None
        scores_BHQK = torch.matmul(query_BHQD * scale, key_BHKD.transpose(-1, -2))
        probs_BHQK = _gated(self.transform, scores_BHQK, keep, gate, multiply)
        if self.training and self.walking:
            dense_BHQK = _gated(softmax, scores_BHQK, keep, gate, multiply)
            probs_BHQK = torch.lerp(dense_BHQK.float(), probs_BHQK.float(), self.walk).to(probs_BHQK.dtype)
        if self.record:
            self._measure(probs_BHQK, keep, real)
        if self.capture:
            self.captured = probs_BHQK.detach()
        context_BHQD = torch.matmul(dropout(probs_BHQK, rate).to(value_BHKD.dtype), value_BHKD)
        context_BQHD = context_BHQD.transpose(1, 2).contiguous()
        if self.finish is not None:
            finished_BQHD = self.finish(context_BQHD)
            if self.training and self.walking:
                finished_BQHD = torch.lerp(context_BQHD.float(), finished_BQHD.float(), self.walk)
            context_BQHD = finished_BQHD.to(context_BQHD.dtype)
        return context_BQHD, probs_BHQK if want_weights else None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _by_blocks(
        self, query_BHLD: Tensor, key_BHLD: Tensor, value_BHLD: Tensor, masks: Masks, rate: float, scaling: float
    ) -> Tensor:
        """Context (B, L, H, D), of the kept blocks alone: each group of them is a batch of short texts to `forward`."""
        plan = masks.plan
        assert plan is not None
        assert masks.real is not None
        contexts = []
        for group, keep in zip(plan.groups, masks.keep, strict=True):
            real = None
            if self.record:
                query = group.positions()[0].squeeze(-1)
                inside = query < plan.length
                real = (masks.real[:, query.clamp(max=plan.length - 1)] & inside).flatten(0, 1)
            own = keep[self.layer] if keep.dim() == 5 else keep
            short = Masks(keep=own, real=real, by_block=True)
            parts = gather(query_BHLD, group.query), gather(key_BHLD, group.key), gather(value_BHLD, group.key)
            contexts.append(self(*parts, short, rate=rate, scaling=scaling)[0])
        return scatter(contexts, plan, len(query_BHLD))

    @torch.no_grad()
    def _measure(self, probs_BHQK: Tensor, keep: Tensor | None, real: Tensor | None) -> None:
        B, _, Q, K = probs_BHQK.shape
        if keep is None:
            pairs = probs_BHQK.new_ones((1, 1, 1, 1), dtype=torch.bool).expand(B, 1, Q, K)
        else:
            pairs = keep.expand(B, keep.shape[1], Q, K)
            if real is not None:
                pairs = pairs & real[:, None, :, None]
            elif Q == K:
                # In self-attention a key that nobody may attend is padding, and so is that position's query.
                pairs = pairs & pairs.any(dim=-2).unsqueeze(-1)
        p = torch.where(pairs, probs_BHQK.float(), 0.0)
        self.rows += pairs.any(dim=-1).sum() / pairs.shape[1]
        self.allowed += pairs.sum() / pairs.shape[1]
        self.kept += (p > 0).sum(dim=(0, 2, 3))
        if not self.sums_to_one:
            p = p / p.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)
        self.entropy -= torch.xlogy(p, p).sum(dim=(0, 2, 3))

    def holder(self, dial: Dial) -> nn.Module:
        """The module that keeps the value of the transform's dial: this layer the temperature, the transform others."""
        return self if dial.key == TEMPERATURE.key else self.transform

    def reset_statistics(self) -> None:
        for name in ("rows", "allowed", "kept", "entropy"):
            getattr(self, name).zero_()

    def extra_repr(self) -> str:
        return f"layer={self.layer}"


def _gated(
    transform: Callable[..., Tensor], scores: Tensor, keep: Tensor | None, gate: Tensor | None, multiply: bool
) -> Tensor:
    """transform(scores + log gate), or transform(scores) * gate: a gate of 0 removes the key, of 1 leaves it.

    At a gate of exactly 0 the gradient is that of the limit. Softmax has one there, for p = g e^s / sum(g e^s); what
    lies outside the support of a sparse transform has none.
    """
    if gate is None:
        return transform(scores, keep)
    scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    if multiply:
        return transform(scores, keep) * gate
    open_ = gate > 0
    kept = open_ if keep is None else keep & open_
    if transform is softmax or isinstance(transform, Softmax):
        top = scores.detach().masked_fill(~kept, -torch.inf).amax(dim=-1, keepdim=True)
        # a removed key that would outweigh the kept ones counts, in the gradient of its gate, like the first of them
        weights = (scores - top.clamp_min(-1e30)).clamp(max=0).exp()
        shares = weights * (gate if keep is None else torch.where(keep, gate, 0.0))
        total = shares.sum(dim=-1, keepdim=True)
        return shares / torch.where(total > 0, total, 1.0)
    return transform(scores + torch.where(open_, gate, 1.0).log(), kept)
