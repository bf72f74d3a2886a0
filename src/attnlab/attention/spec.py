"""What attention a model is to have: the plain data that goes into config.json and comes out of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import UserError, closest

OWN_KEYS = {"name", "layers", "warmup_ratio", "kernel"}


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """name of the transform, its dials (alpha, lam, ...), and the layers that get it (None = every layer).

    Layers not named keep softmax. Layers count from 0.
    """

    name: str
    dials: Mapping[str, Any] = field(default_factory=dict)
    layers: tuple[int, ...] | None = None

    @classmethod
    def from_config(cls, attn: Mapping[str, Any]) -> "AttentionSpec":
        """From the `attn` group of a config: every key that is not about layers or training is a dial."""
        layers = attn.get("layers", "all")
        if layers in ("all", None):
            chosen = None
        elif isinstance(layers, str | int) or not all(isinstance(n, int) for n in layers):
            raise UserError(f"attn.layers={layers!r}: give `all` or a list such as attn.layers=[8,9,10,11]")
        else:
            chosen = tuple(sorted(set(layers)))
        dials = {key: value for key, value in attn.items() if key not in OWN_KEYS}
        return cls(name=attn["name"], dials=dials, layers=chosen)

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["layers"] = None if self.layers is None else list(self.layers)
        plain["dials"] = dict(self.dials)
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "AttentionSpec":
        """From what `to_dict` gave. Raises UserError on anything else, for a config may come from anywhere."""
        for key in plain:
            if key not in ("name", "dials", "layers"):
                raise UserError(
                    f"unknown key {key!r} in the model's attention spec{closest(key, ('name', 'dials', 'layers'))}"
                )
        if "name" not in plain:
            raise UserError("the model's attention spec has no name")
        layers = plain.get("layers")
        return cls(
            name=str(plain["name"]),
            dials=dict(plain.get("dials") or {}),
            layers=None if layers is None else tuple(int(n) for n in layers),
        )
