"""Give any encoder that dispatches through transformers' attention interface our attention, layer by layer.

One function is registered under one name with both of transformers' registries: attention, and masks (without the
second, padding would silently be attended). It hands each call to the `SparseAttention` found on the calling module.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

from ..errors import UserError
from ..transforms import build_transform
from ..transforms.dial import dial_of, free_dial
from .core import SparseAttention
from .masking import Masks, give_mask, masks_of, running, take_mask
from .spec import AttentionSpec

NAME = "attnlab"
SUBMODULE = "sparse_attention"
WORKING = "BERT, RoBERTa, DistilBERT, ELECTRA, ALBERT, ModernBERT, XLM-RoBERTa, CamemBERT"

_calls: list[nn.Module] | None = None
_every_mask = False


def _attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | Masks | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    if _calls is not None:
        _calls.append(module)
    core = getattr(module, SUBMODULE, None)
    if core is None:
        if _calls is None:
            raise RuntimeError(
                "this model asks for attnlab's attention but has none attached: "
                "load it with attnlab.load(folder), or call attnlab.attention.attach(model, spec)"
            )
        assert not isinstance(attention_mask, Masks)
        context = nn.functional.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
        return context.transpose(1, 2).contiguous(), None
    keep = attention_mask
    if core.masked and not isinstance(keep, Masks):
        raise UserError("this model has a mask of its own: give it an attention_mask (batch, length), or none")
    if isinstance(keep, Tensor) and keep.dtype != torch.bool:
        # An additive mask, as a user may pass: what it pushes down to the dtype's floor is masked.
        keep = keep > torch.finfo(keep.dtype).min / 2
    result: tuple[Tensor, Tensor | None] = core(
        query,
        key,
        value,
        keep,
        rate=dropout,
        scaling=scaling,
        want_weights=bool(kwargs.get("output_attentions")),
    )
    return result


def _mask(*args: Any, **kwargs: Any) -> Tensor | Masks | None:
    if running() is None:
        if _every_mask:
            kwargs["allow_is_bidirectional_skip"] = False
        return sdpa_mask(*args, **kwargs)
    if kwargs.get("mask_function") is bidirectional_mask_function:
        # One row a text: sdpa_mask would write the square of the length.
        shape = (kwargs["batch_size"], 1, kwargs["q_length"], kwargs["kv_length"])
        given = kwargs.get("attention_mask")
        real = torch.ones(shape[0], shape[3], dtype=torch.bool, device=kwargs["device"]) if given is None else given
        return masks_of(real.bool()[:, None, None, :].expand(shape))
    windowed = sdpa_mask(*args, **kwargs | {"allow_is_bidirectional_skip": False})
    assert windowed is not None
    return masks_of(windowed)


def give_every_mask(always: bool) -> None:
    """Whether, in this process, to hand out a mask even where nothing is padded.

    Compiled layers would otherwise be compiled twice, with and without one.
    """
    global _every_mask
    _every_mask = always


AttentionInterface.register(NAME, _attention_forward)
AttentionMaskInterface.register(NAME, _mask)


def attention_modules(model: PreTrainedModel) -> list[nn.Module]:
    """The modules that call the attention interface, in layer order, found by one dummy forward.

    Raises UserError for an encoder that calls it never, or not once a layer.
    """
    global _calls
    family = type(model).__name__
    config = model.config
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "is_decoder", False):
        raise UserError(f"{family} is a decoder; attnlab works on encoders: {WORKING}")
    layers = int(config.num_hidden_layers)
    before, was_training = config._attn_implementation, model.training
    tokens = torch.full((1, 4), 5, device=model.device)
    _calls = []
    try:
        model.set_attn_implementation(NAME)
        model.eval()
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            # not the head: that of a multiple choice would want a list of texts
            model.base_model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
        calls = _calls
    except ValueError as error:
        raise UserError(f"{family} cannot take another attention ({error}); these can: {WORKING}") from error
    finally:
        _calls = None
        model.train(was_training)
    if len(calls) != layers:
        model.set_attn_implementation(before)
        how = "never calls" if not calls else f"calls {len(calls)} times in {layers} layers"
        raise UserError(
            f"{family} (model type {config.model_type!r}) {how} transformers' attention interface, so its attention "
            f"cannot be replaced. Encoders that work: {WORKING}"
        )
    return list(dict.fromkeys(calls))


def attach(model: PreTrainedModel, spec: AttentionSpec) -> PreTrainedModel:
    """Give `model` the attention of `spec`, in place, and note the spec in its config. Returns the model.

    Call it after `from_pretrained`. Raises UserError for an encoder that cannot be changed, an unknown transform or
    dial, a layer the model does not have, or chosen layers in a model that shares one attention between its layers.
    """
    take_mask(model)
    for core in cores(model):
        core.masked = False
    modules = attention_modules(model)
    layers = int(model.config.num_hidden_layers)
    shared = len(modules) < layers
    if spec.layers is not None:
        if not spec.layers:
            raise UserError("attn.layers=[] names no layer: give a list such as attn.layers=[4,5], or attn=softmax")
        if shared:
            raise UserError(
                f"{type(model).__name__} shares one attention between its {layers} layers: attn.layers must be `all`"
            )
        wrong = [n for n in spec.layers if not 0 <= n < layers]
        if wrong:
            raise UserError(f"attn.layers={list(spec.layers)}: the model has layers 0 to {layers - 1}, not {wrong[0]}")
    heads = int(model.config.num_attention_heads)
    shape = {"num_heads": heads, "head_dim": int(model.config.hidden_size) // heads}
    _check_lists(model, spec, layers, shared=shared)
    first: SparseAttention | None = None
    for layer, module in enumerate(modules):
        here = spec.of_layer(layer)
        transform = build_transform(here.name, **shape, **here.dials)
        assert isinstance(here.temperature, float)
        core = SparseAttention(transform, layer=layer, num_heads=heads, temperature=here.temperature)
        if here.name == spec.name:
            dial = dial_of(transform)
            if dial is not None and dial.key in spec.by_layer:  # else each layer's number would be compiled in
                free_dial(core.holder(dial), dial.key)
            first = first or core
            _tie(core.transform, first.transform)
        core.masked = spec.mask is not None
        core.to(model.device).train(module.training)
        setattr(module, SUBMODULE, core)
    if spec.mask is not None:
        mask = give_mask(model, spec.mask, num_heads=heads, num_layers=layers)
        if shared and mask.by_layer:
            raise UserError(
                f"{type(model).__name__} shares one attention between its {layers} layers: it can't have a mask a layer"
            )
    model.config.attnlab = spec.to_dict()
    return model


def _check_lists(model: PreTrainedModel, spec: AttentionSpec, layers: int, *, shared: bool) -> None:
    family = type(model).__name__
    for key, values in spec.by_layer.items():
        if shared and len(set(values)) > 1:
            raise UserError(
                f"{family} shares one attention between its {layers} layers: give one number, attn.{key}=..."
            )
        if len(values) != layers:
            raise UserError(
                f"attn.{key} has {len(values)} values, but {family} has {layers} layers: one a layer, or one"
            )
    learned = [
        key for key, value in spec.dials.items() if key.startswith("learn_") and value not in (False, None, "model")
    ]
    if shared and learned:
        raise UserError(
            f"{family} shares one attention between its {layers} layers, so a dial cannot be learned by layer or head: "
            f"type attn.{learned[0]}=model, or attn.{learned[0]}=false"
        )


def _tie(transform: nn.Module, first: nn.Module) -> None:
    """Let a value that is learned once for all layers be the first layer's parameter, and only there a parameter."""
    name = getattr(transform, "tied", None)
    if name and transform is not first:
        delattr(transform, name)
        transform.__dict__[name] = getattr(first, name)


def cores(model: nn.Module) -> list[SparseAttention]:
    """The attached attention of each layer, in order."""
    found = [module for module in model.modules() if isinstance(module, SparseAttention)]
    return sorted(found, key=lambda core: core.layer)
