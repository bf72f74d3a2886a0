"""What mask a model is to have: the plain data that goes into config.json and comes out of it."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import UserError, closest
from .learned import DifferentiableMask, check_options
from .patterns import PATTERNS, build_pattern, check_pattern, density
from .saved import SavedMask, read_mask

APPLY = ("scores", "probabilities")
# Of mask=dam, read in training only.
LEARNING = ("lr", "lam", "penalty", "target_density", "temperature", "final_temperature")
LEARNED = ("form", "per_layer", "length", "init_density", "hard", "keep_special", "apply")
SAVED = ("shape", "keep_special", "apply")


@dataclass(frozen=True, kw_only=True)
class MaskSpec:
    """name of a pattern, `dam` or `file`, and its options.

    length: tokens of the longest text it is meant for. cls_id, special_ids ([CLS] and [SEP]): the tokens that hubs
    and always-kept positions are found by.
    """

    name: str
    length: int
    options: Mapping[str, Any] = field(default_factory=dict)
    cls_id: int | None = None
    special_ids: tuple[int, ...] = ()

    @classmethod
    def from_config(cls, mask: Mapping[str, Any], max_length: int) -> "MaskSpec | None":
        """From the `mask` group of a config; None for mask=none. Raises UserError for what cannot work.

        max_length: the longest text that will come. A mask file is read here, for its shape.
        """
        name = str(mask["name"])
        given = {key: value for key, value in mask.items() if key not in ("name", *LEARNING)}
        if name == "none":
            return None
        if name == "dam":
            given["length"] = max_length if given["length"] is None else given["length"]
            for key in ("per_layer", "hard", "keep_special"):
                _check_flag(key, given[key])
            check_options(form=given["form"], init_density=given["init_density"], length=given["length"])
            _check_apply(given["apply"])
            check_learning(mask)
            if given["form"] == "unstructured" and given["length"] < max_length:
                raise UserError(
                    f"mask.length={given['length']} is less than data.max_length={max_length}: an unstructured mask "
                    "has no logit for longer texts. Type mask.length=null, or mask.form=structured"
                )
        elif name == "file":
            _check_apply(given["apply"])
            given = _of_file(given, max_length)
        else:
            if name not in PATTERNS:
                raise UserError(f"unknown mask {name!r}{closest(name, ('none', *PATTERNS, 'dam', 'file'))}")
            check_pattern(build_pattern(name, **given), max_length)
        return cls(name=name, length=max_length, options=given)

    def with_tokens(self, cls_id: int | None, sep_id: int | None) -> "MaskSpec":
        """The same for a tokenizer's [CLS] and [SEP]. Raises UserError where it lacks the one that is the hub."""
        ids = {i for i in (cls_id, sep_id) if i is not None}
        spec = replace(self, cls_id=cls_id, special_ids=tuple(sorted(ids)))
        if spec.hubs == "cls" and cls_id is None:
            raise UserError(f"mask={self.name} has the classification token as its hub, but this tokenizer has none")
        return spec

    @property
    def hubs(self) -> str:
        """Which tokens attend to all and are attended by all: cls, special or none."""
        if self.name in ("dam", "file"):
            return "special" if self.options["keep_special"] else "none"
        return build_pattern(self.name, **self.options).hubs

    @property
    def apply(self) -> str:
        """Where a mask enters: the scores, or the probabilities."""
        return str(self.options.get("apply", "scores"))

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        return plain | {"options": dict(self.options), "special_ids": list(self.special_ids)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "MaskSpec":
        """From what `to_dict` gave. Raises UserError on anything else, for a config may come from anywhere."""
        try:
            spec = cls(**plain)
            ids = tuple(int(i) for i in spec.special_ids)
            spec = replace(spec, length=int(spec.length), options=dict(spec.options), special_ids=ids)
            allowed = {"dam": LEARNED, "file": SAVED}.get(spec.name)
            odd = [] if allowed is None else sorted(set(allowed) ^ set(spec.options))
            if odd:
                raise UserError(f"the model's mask spec has to have the keys {', '.join(allowed or ())}: see {odd[0]}")
        except (TypeError, ValueError) as error:
            raise UserError(f"the model's mask spec cannot be read: {error}") from error
        return spec


def build_mask(spec: MaskSpec, *, num_heads: int, num_layers: int) -> "AnyMask":
    """The mask of a model; a SavedMask is still to be filled."""
    if spec.name == "dam":
        options = {key: spec.options[key] for key in ("form", "length", "init_density", "hard")}
        layers = num_layers if spec.options["per_layer"] else 1
        return DifferentiableMask(num_heads=num_heads, num_layers=layers, **options)
    if spec.name == "file":
        check_shape(spec, num_heads=num_heads, num_layers=num_layers)
        return SavedMask(torch.ones(tuple(spec.options["shape"]), dtype=torch.bool))
    return FixedMask(spec)


class FixedMask(nn.Module):
    """A pattern; nothing is drawn and nothing stored."""

    def __init__(self, spec: MaskSpec) -> None:
        super().__init__()
        self.pattern = build_pattern(spec.name, **spec.options)
        self.length = spec.length

    def sample(self) -> None:
        return None

    def at(self, gates: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """keep (1, 1, ...) of the pairs of these positions (int64, broadcast together)."""
        keep: torch.Tensor = self.pattern(query, key)
        return keep[None, None]

    def density(self) -> float:
        """Share of pairs kept in a text of `length` tokens, hubs included."""
        return density(self.pattern, self.length)

    def extra_repr(self) -> str:
        return repr(self.pattern)


def check_shape(spec: MaskSpec, *, num_heads: int, num_layers: int) -> None:
    """Raise UserError for a mask file that is not for a model of so many heads and layers."""
    if spec.name != "file":
        return
    layers, heads, *_ = spec.options["shape"]
    if layers not in (1, num_layers):
        raise UserError(f"mask.path: the mask has {layers} layers, the model {num_layers}: it must have that or 1")
    if heads not in (1, num_heads):
        raise UserError(f"mask.path: the mask has {heads} heads, the model {num_heads}: it must have that or 1")


AnyMask = FixedMask | SavedMask | DifferentiableMask


def check_learning(mask: Mapping[str, Any]) -> None:
    """Raise UserError for a value in the `mask` group that no training of a mask can have."""

    target = mask["target_density"]
    rules: dict[str, tuple[Callable[[float], bool], str]] = {
        "lr": (lambda value: value > 0, "a number above 0"),
        "temperature": (lambda value: value > 0, "a number above 0"),
        "final_temperature": (lambda value: value > 0, "a number above 0"),
        "lam": (lambda value: value >= 0, "a number from 0 on"),
    }
    if target is not None:
        rules["target_density"] = (lambda value: 0 < value < 1, "in (0, 1): the share of pairs to keep")
    for key, (fits, allowed) in rules.items():
        value = mask[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not fits(value):
            raise UserError(f"mask.{key}={value} must be {allowed}")
    if mask["penalty"] not in ("density", "l1"):
        raise UserError(f"mask.penalty={mask['penalty']} must be density or l1")
    if target is not None and not mask["hard"]:
        raise UserError("mask.target_density is the share of pairs kept, which mask.hard=false does not choose")


def _check_flag(key: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise UserError(f"mask.{key}={value} must be true or false")


def _check_apply(apply: Any) -> None:
    if apply not in APPLY:
        raise UserError(f"unknown mask.apply {apply!r}{closest(str(apply), APPLY)}")


def _of_file(given: dict[str, Any], max_length: int) -> dict[str, Any]:
    if not given.get("path"):
        raise UserError("mask=file needs mask.path=FILE: `attnlab export run=FOLDER what=mask` writes one")
    path = given["path"]
    keep, notes = read_mask(Path(str(path)).expanduser())
    length = keep.shape[-1]
    if length < max_length:
        raise UserError(
            f"mask.path={path} is for texts of at most {length} tokens, but data.max_length={max_length}: "
            f"type data.max_length={length}, or take a mask of that length"
        )
    special = given["keep_special"]
    if special is None:
        special = notes.get("keep_special") == "true"
    _check_flag("keep_special", special)
    # a text of n tokens has the first n queries and keys, and at least two, [CLS] and [SEP]
    first_key = torch.where(keep.any(dim=-1), keep.int().argmax(dim=-1), length)
    empty = (first_key > torch.arange(length).clamp(min=1)).nonzero()
    if len(empty) and not special:
        layer, head, query = empty[0].tolist()
        raise UserError(
            f"mask.path={path} leaves query {query} of head {head}, layer {layer}, without a key in a text of "
            f"{max(query + 1, 2)} tokens: type mask.keep_special=true, which keeps [CLS] and [SEP]"
        )
    return {"shape": list(keep.shape), "keep_special": special, "apply": given["apply"]}
