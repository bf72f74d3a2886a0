"""A model's mask: found out once a forward, before the encoder, and handed to every layer with the padding.

The encoder's inputs say which tokens are special and which are padding; transformers' mask interface is where the
result goes in, in place of the padding alone, so that each layer gets it as its `attention_mask`.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import UserError
from ..masks.learned import DifferentiableMask
from ..masks.saved import SavedMask
from ..masks.spec import AnyMask, MaskSpec, build_mask
from .blocks import Group, Plan, blocks_kept, pays, plan

SUBMODULE = "encoder_mask"


@dataclass(frozen=True, kw_only=True)
class Masks:
    """What the queries of one forward may attend to. B batch, H heads, L length, 1 where all are alike.

    keep      (B, H, L, L) bool, padding and mask together; one more dimension in front where layers differ.
    gate      (B, H, L, L) float in [0, 1], of a mask that is being learned, likewise; None elsewhere.
    real      (B, L) bool, False on padding; None where nobody asks.
    plan      the blocks to compute; `keep` is then one mask a group instead, (B*N, H, S, M*S).
    multiply  whether the gate multiplies the probabilities; else it enters the scores.
    by_block  these are blocks out of longer texts.
    """

    keep: Tensor | tuple[Tensor, ...]
    real: Tensor | None
    gate: Tensor | None = None
    plan: Plan | None = None
    multiply: bool = False
    by_block: bool = False

    @property
    def by_layer(self) -> bool:
        """Whether each layer has its own."""
        return any(isinstance(part, Tensor) and part.dim() == 5 for part in (self.keep, self.gate))


class EncoderMask(nn.Module):
    """The mask of one encoder, found anew for each forward.

    mask  FixedMask, SavedMask or DifferentiableMask.
    """

    def __init__(self, spec: MaskSpec, *, num_heads: int, num_layers: int) -> None:
        super().__init__()
        self.spec = spec
        self.hubs = spec.hubs
        self.multiply = spec.apply == "probabilities"
        self.mask: AnyMask = build_mask(spec, num_heads=num_heads, num_layers=num_layers)
        self.gates: Any = None  # of the running forward, as `mask.sample` gave them
        self._hub: Tensor | None = None
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._hooks: tuple[Any, ...] = ()

    @property
    def by_layer(self) -> bool:
        """Whether each layer has a mask of its own."""
        return self._held is not None and self._held.shape[0] > 1

    @property
    def _held(self) -> Tensor | None:
        """What decides the mask, where that is not a formula."""
        return getattr(self.mask, "logits", getattr(self.mask, "keep", None))

    @property
    def learned(self) -> DifferentiableMask | None:
        """The mask, where it is one that is learned with the weights."""
        return self.mask if isinstance(self.mask, DifferentiableMask) else None

    def density(self) -> float:
        """Share of the pairs kept in a text of the spec's length, all heads and layers."""
        return self.mask.density()

    # one forward

    def begin(self, inputs: Mapping[str, Any]) -> None:
        """Draw the gates and find the hubs of the encoder's inputs."""
        self.gates = self.mask.sample()
        self._hub = None
        if self.hubs == "none":
            return
        ids = inputs.get("input_ids")
        if ids is None:
            raise UserError(f"mask={self.spec.name} finds special tokens by id: give the model input_ids")
        wanted = [self.spec.cls_id] if self.hubs == "cls" else self.spec.special_ids
        self._hub = torch.isin(ids, torch.tensor([i for i in wanted if i is not None], device=ids.device))

    def masks(self, padding: Tensor, *, dense: bool) -> Masks:
        """What the layers get, from transformers' mask (B, 1, L, L) bool: the padding, in some layers a window too."""
        L = padding.shape[-1]
        windowed = padding.stride(-2) != 0  # else one row, expanded
        real = padding.any(dim=-2).squeeze(1) if windowed else padding[:, 0, 0]
        gates = self.gates
        learning = gates is not None and gates.dtype != torch.bool
        if not dense and not learning and not windowed:
            found = self._plan(L, real)
            if found is not None:
                keep = tuple(self._group_keep(group, real, L) for group in found.groups)
                return Masks(keep=keep, real=real, plan=found)
        position = torch.arange(L, device=padding.device)
        at = self.mask.at(gates, position[:, None], position[None, :])  # (layers, H, L, L)
        if at.shape[0] > 1:
            at = at.unsqueeze(1)
        if self._hub is not None:
            hub_B1LL = (self._hub[:, :, None] | self._hub[:, None, :]).unsqueeze(1)
            at = torch.where(hub_B1LL, torch.ones((), dtype=at.dtype, device=at.device), at)
        if learning:
            return Masks(keep=padding, real=real, gate=at, multiply=self.multiply)
        if self.multiply:
            return Masks(keep=padding, real=real, gate=at.float(), multiply=True)
        return Masks(keep=padding & at, real=real)

    def _plan(self, length: int, real: Tensor) -> Plan | None:
        """The plan of blocks, where that pays. Where probabilities are multiplied, all keys are needed: None."""
        if not pays(length) or self.multiply:
            return None
        hubs: tuple[int, ...] = ()
        if self._hub is not None:
            hubs = tuple((self._hub & real).any(dim=0).nonzero().flatten().tolist())
        key = (length, str(real.device), self._state(), *hubs)
        if key not in self._plans:
            columns = torch.tensor(hubs, dtype=torch.long, device=real.device)

            def mask(query: Tensor, key: Tensor) -> Tensor:
                keep = self.mask.at(self.gates, query, key)
                return keep | torch.isin(query, columns) | torch.isin(key, columns)

            if len(self._plans) > 64:
                self._plans.clear()
            self._plans[key] = plan(blocks_kept(mask, length, real.device), length)
        found = self._plans[key]
        return found if pays(length, found.kept) else None

    def _state(self) -> Any:
        """What changes when the mask does; optimisers change logits without telling."""
        if self._held is None:
            return None
        if isinstance(self.mask, SavedMask):
            return id(self._held), self._held._version
        return hash(self.gates.cpu().numpy().tobytes())

    def _group_keep(self, group: Group, real: Tensor, length: int) -> Tensor:
        """keep (B*N, 1 or H, S, M*S) of a group, one more dimension in front where layers differ.

        Positions beyond the text and fillers are dropped.
        """
        query, key = group.positions()
        inside_q, inside_k = query.clamp(max=length - 1), key.clamp(max=length - 1)
        keep = self.mask.at(self.gates, inside_q, inside_k).transpose(1, 2).unsqueeze(1)  # (layers, B, N, H, S, M*S)
        if self._hub is not None:
            hub = self._hub[:, inside_q] | self._hub[:, inside_k]
            keep = keep | hub.unsqueeze(2)
        there = group.there.repeat_interleave(key.shape[-1] // group.there.shape[1], dim=1)
        good = real[:, inside_k.squeeze(1)] & there & (key.squeeze(1) < length)  # (B, N, M*S)
        keep = (keep & good[:, :, None, None, :]).flatten(1, 2)
        return keep if self.by_layer else keep[0]


_running: EncoderMask | None = None
_dense = False


def running() -> EncoderMask | None:
    """The mask of the encoder that is running in this process."""
    return _running


def masks_of(padding: Tensor) -> Masks:
    """What the running encoder's layers get in place of the padding mask."""
    assert _running is not None
    return _running.masks(padding, dense=_dense)


def _begin(names: list[str], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    global _running, _dense
    _running = module.get_submodule(SUBMODULE)  # type: ignore[assignment]
    inputs = dict(zip(names, args, strict=False)) | kwargs
    wants = inputs.get("output_attentions")
    _dense = bool(wants) or any(getattr(part, "capture", False) for part in module.modules())
    assert _running is not None
    _running.begin(inputs)


def _end(module: nn.Module, args: Any, output: Any) -> None:
    global _running
    _running = None


def give_mask(model: PreTrainedModel, spec: MaskSpec, *, num_heads: int, num_layers: int) -> EncoderMask:
    """Let the encoder of `model` find the mask of `spec` at each forward. Raises UserError for one that cannot fit."""
    encoder = model.base_model
    mask = EncoderMask(spec, num_heads=num_heads, num_layers=num_layers).to(model.device).train(model.training)
    encoder.add_module(SUBMODULE, mask)
    names = list(inspect.signature(encoder.forward).parameters)
    mask._hooks = (
        encoder.register_forward_pre_hook(partial(_begin, names), with_kwargs=True),
        encoder.register_forward_hook(_end, always_call=True),
    )
    return mask


def take_mask(model: PreTrainedModel) -> None:
    """Leave the encoder of `model` without the mask that it was given, if any."""
    mask = encoder_mask(model)
    if mask is not None:
        for hook in mask._hooks:
            hook.remove()
        delattr(model.base_model, SUBMODULE)


def encoder_mask(model: nn.Module) -> EncoderMask | None:
    """The mask that the model was given, or None."""
    return next((part for part in model.modules() if isinstance(part, EncoderMask)), None)
