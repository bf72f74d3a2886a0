"""The dials of a model's attention, layer by layer: find them, read them, turn them."""

from dataclasses import dataclass

from torch import Tensor, nn

from ..transforms import TRANSFORMS
from ..transforms.dial import TEMPERATURE, Dial, Dialled
from .attach import cores
from .core import SparseAttention
from .spec import AttentionSpec


def dial_of(name: str) -> Dial | None:
    """What makes the transform called `name` sparser, or None."""
    return dial_of_module(TRANSFORMS[name])


def dial_of_module(transform: nn.Module | type[nn.Module]) -> Dial | None:
    return transform.dial if isinstance(transform, Dialled) else None


def steered(spec: AttentionSpec, layers: int) -> AttentionSpec:
    """`spec` with its dial free in each of the `layers` layers, at its densest."""
    dial = dial_of(spec.name)
    assert dial is not None
    return spec.with_dial(dial.key, [dial.value(dial.dense)] * layers)


@dataclass(frozen=True, kw_only=True)
class LayerDial:
    """The dial of one layer, held as a buffer that can be turned during training."""

    core: SparseAttention
    dial: Dial

    @property
    def buffer(self) -> Tensor:
        holder: nn.Module = self.core if self.dial.key == TEMPERATURE.key else self.core.transform
        buffer: Tensor = holder.get_buffer(self.dial.key)
        return buffer

    def turn(self, coordinate: float) -> None:
        """Set the dial to the value at `coordinate`, kept between its densest and its sparsest."""
        self.buffer.fill_(self.dial.value(min(max(coordinate, self.dial.dense), self.dial.sparse)))

    @property
    def value(self) -> float:
        return float(self.buffer)


def layer_dials(model: nn.Module, name: str) -> list[LayerDial]:
    """The free dials of the layers that have the transform called `name`, in layer order."""
    dial = dial_of(name)
    assert dial is not None
    kind = TRANSFORMS[name]
    return [LayerDial(core=core, dial=dial) for core in cores(model) if isinstance(core.transform, kind)]


def _learned(core: SparseAttention) -> dict[str, Tensor]:
    learned = getattr(core.transform, "learned", None)
    values: dict[str, Tensor] = learned() if learned is not None else {}
    return values


def learned_dials(model: nn.Module) -> dict[int, dict[str, Tensor]]:
    """Layer -> dial -> its learned values: one a head (H,), or one (1,)."""
    found: dict[int, dict[str, Tensor]] = {}
    for core in cores(model):
        values = _learned(core)
        if values:
            found[core.layer] = {key: value.detach().float().cpu() for key, value in values.items()}
    return found


def dial_metrics(model: nn.Module) -> dict[str, float]:
    """The free dials by layer, and the learned ones by layer and head: lam/layer_03, alpha/layer_03/head_07."""
    named: dict[str, float] = {}
    for core in cores(model):
        dial = dial_of_module(core.transform)
        holder = core if dial is not None and dial.key == TEMPERATURE.key else core.transform
        value = getattr(holder, dial.key, None) if dial is not None else None
        if dial is not None and isinstance(value, Tensor) and not _learned(core):
            named[f"{dial.key}/layer_{core.layer:02d}"] = float(value)
    for layer, dials in learned_dials(model).items():
        for key, values in dials.items():
            single = values.numel() == 1
            for head, value in enumerate(values.tolist()):
                named[f"{key}/layer_{layer:02d}" + ("" if single else f"/head_{head:02d}")] = value
    return named
