"""What attention a model is to have: the plain data that goes into config.json and comes out of it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..errors import UserError, closest
from ..masks.spec import MaskSpec

OWN_KEYS = {"name", "layers", "temperature", "warmup_ratio", "kernel"}
FIELDS = ("name", "dials", "layers", "temperature", "mask")


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """name of the transform, its dials (alpha, lam, ...), and the layers that get it (None = every layer).

    temperature divides the scores first. It and each dial may be one number, or a list with one a layer. Layers not
    named keep softmax. Layers count from 0. mask: which pairs may be attended at all, in every layer.
    """

    name: str
    dials: Mapping[str, Any] = field(default_factory=dict)
    layers: tuple[int, ...] | None = None
    temperature: float | Sequence[float] = 1.0
    mask: MaskSpec | None = None

    @classmethod
    def from_config(cls, attn: Mapping[str, Any], mask: MaskSpec | None = None) -> "AttentionSpec":
        """From the `attn` group of a config: every key that is not about layers or training is a dial."""
        layers = attn.get("layers", "all")
        if layers in ("all", None):
            chosen = None
        elif isinstance(layers, str | int) or not all(isinstance(n, int) for n in layers):
            raise UserError(f"attn.layers={layers!r}: give `all` or a list such as attn.layers=[8,9,10,11]")
        else:
            chosen = tuple(sorted(set(layers)))
        dials = {key: _plain(value) for key, value in attn.items() if key not in OWN_KEYS}
        return cls(
            name=attn["name"],
            dials=dials,
            layers=chosen,
            temperature=_temperature(attn.get("temperature", 1.0)),
            mask=mask,
        )

    @property
    def by_layer(self) -> dict[str, list[float]]:
        """The dials that have a value a layer, temperature among them."""
        given = {**self.dials, "temperature": self.temperature}
        return {key: list(value) for key, value in given.items() if isinstance(value, list | tuple)}

    def of_layer(self, layer: int) -> "AttentionSpec":
        """The spec of one layer, with numbers where this one has lists; softmax where the layer is not chosen."""
        if self.layers is not None and layer not in self.layers:
            return AttentionSpec(name="softmax")
        own = {key: values[min(layer, len(values) - 1)] for key, values in self.by_layer.items()}
        temperature = own.pop("temperature", self.temperature)
        return replace(self, dials={**self.dials, **own}, temperature=float(temperature))  # type: ignore[arg-type]

    def with_dial(self, key: str, values: Sequence[float]) -> "AttentionSpec":
        """The same with one value a layer for the dial `key` (or for `temperature`)."""
        if key == "temperature":
            return replace(self, temperature=list(values))
        return replace(self, dials={**self.dials, key: list(values)})

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["layers"] = None if self.layers is None else list(self.layers)
        plain["dials"] = dict(self.dials)
        plain["mask"] = None if self.mask is None else self.mask.to_dict()
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "AttentionSpec":
        """From what `to_dict` gave. Raises UserError on anything else, for a config may come from anywhere."""
        for key in plain:
            if key not in FIELDS:
                raise UserError(f"unknown key {key!r} in the model's attention spec{closest(key, FIELDS)}")
        if "name" not in plain:
            raise UserError("the model's attention spec has no name")
        layers, mask = plain.get("layers"), plain.get("mask")
        return cls(
            name=str(plain["name"]),
            dials=dict(plain.get("dials") or {}),
            layers=None if layers is None else tuple(int(n) for n in layers),
            temperature=_temperature(plain.get("temperature", 1.0)),
            mask=None if mask is None else MaskSpec.from_dict(mask),
        )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value


def _temperature(value: Any) -> float | list[float]:
    values = value if isinstance(value, list | tuple) else [value]
    for one in values:
        if isinstance(one, bool) or not isinstance(one, int | float) or not one > 0:
            raise UserError(f"attn.temperature={value} must be above 0: 1 leaves the scores as they are")
    return [float(one) for one in values] if isinstance(value, list | tuple) else float(value)
