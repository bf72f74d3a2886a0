"""The dials of a model's attention, layer by layer: find them, read them, turn them."""

from dataclasses import dataclass

from torch import Tensor, nn

from ..transforms import TRANSFORMS
from ..transforms.dial import Dial, dial_of
from .attach import cores
from .core import SparseAttention
from .spec import AttentionSpec


def dial_named(name: str) -> Dial | None:
    """The dial of the transform called `name`, or None."""
    return dial_of(TRANSFORMS[name])


def steered(spec: AttentionSpec, layers: int) -> AttentionSpec:
    """`spec` with its dial free in each of the `layers` layers, at its densest."""
    dial = dial_named(spec.name)
    assert dial is not None
    return spec.with_dial(dial.key, [dial.value(dial.dense)] * layers)


@dataclass(frozen=True, kw_only=True)
class LayerDial:
    """The dial of one layer, held as a buffer that can be turned during training."""

    core: SparseAttention
    dial: Dial

    @property
    def buffer(self) -> Tensor:
        return self.core.holder(self.dial).get_buffer(self.dial.key)

    def turn(self, coordinate: float) -> None:
        """Set the dial to the value at `coordinate`, kept between its densest and its sparsest."""
        self.buffer.fill_(self.dial.value(min(max(coordinate, self.dial.dense), self.dial.sparse)))

    @property
    def value(self) -> float:
        return float(self.buffer)


def layer_dials(model: nn.Module, name: str) -> list[LayerDial]:
    """The free dials of the layers that have the transform called `name`, in layer order."""
    dial = dial_named(name)
    assert dial is not None
    kind = TRANSFORMS[name]
    return [LayerDial(core=core, dial=dial) for core in cores(model) if isinstance(core.transform, kind)]


def dial_metrics(model: nn.Module) -> dict[str, float]:
    """The learned dials by layer and head, and the free ones by layer: alpha/layer_03/head_07, lam/layer_03."""
    named: dict[str, float] = {}
    for core in cores(model):
        learned: dict[str, Tensor] = getattr(core.transform, "learned", dict)()
        for key, values in learned.items():
            for head, value in enumerate(values.tolist()):
                named[f"{key}/layer_{core.layer:02d}" + (f"/head_{head:02d}" if len(values) > 1 else "")] = value
        dial = dial_of(core.transform)
        value = getattr(core.holder(dial), dial.key, None) if dial is not None else None
        if dial is not None and not learned and isinstance(value, Tensor):
            named[f"{dial.key}/layer_{core.layer:02d}"] = float(value)
    return named
