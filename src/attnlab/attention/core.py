"""One layer's attention: scores and mask through the transform to the context, measured on the way.

Shapes: B batch, H heads, Q queries, K keys, D head width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..transforms.dial import TEMPERATURE, Dial
from ..transforms.functional import softmax
from ..transforms.softmax import Softmax
from .dropout import dropout


class SparseAttention(nn.Module):
    """The transform of one attention layer and what was measured of it.

    walk      share of the sparse transform in training's attention (1 - walk) softmax + walk transform; 1 when done.
              Evaluation always uses the transform alone.
    record    measure density, support and entropy while running.
    capture   keep the last probabilities (B, H, Q, K) in `captured`.
    temperature  divides the scores; a number, or a buffer where it is steered.
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
        keep: Tensor | None,
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
        if self.dense and not looked_at and isinstance(scale, float) and (rate == 0.0 or query_BHQD.is_cuda):
            context_BHQD = F.scaled_dot_product_attention(
                query_BHQD, key_BHKD, value_BHKD, attn_mask=keep, dropout_p=rate, scale=scale
            )
            return context_BHQD.transpose(1, 2).contiguous(), None
        scores_BHQK = torch.matmul(query_BHQD * scale, key_BHKD.transpose(-1, -2))
        probs_BHQK = self.transform(scores_BHQK, keep)
        if self.training and self.walking:
            mixed = torch.lerp(softmax(scores_BHQK, keep).float(), probs_BHQK.float(), self.walk)
            probs_BHQK = mixed.to(probs_BHQK.dtype)
        if self.record:
            self._measure(probs_BHQK, keep)
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

    @torch.no_grad()
    def _measure(self, probs_BHQK: Tensor, keep: Tensor | None) -> None:
        B, _, Q, K = probs_BHQK.shape
        if keep is None:
            pairs = probs_BHQK.new_ones((1, 1, 1, 1), dtype=torch.bool).expand(B, 1, Q, K)
        else:
            pairs = keep.expand(B, keep.shape[1], Q, K)
            if Q == K:
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
