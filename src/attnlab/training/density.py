"""Sparsity by density: steer each layer's dial so that attention on the validation data keeps the wanted share.

A dial's coordinate t and the density d it gives are related by a smooth falling curve that moves while the model is
trained. Every few steps the density of a fixed probe of validation sentences is measured and each dial corrected by
(log d - log target) / slope, the slope being estimated from the corrections before. The target falls from the density
at the start to the wanted one over the warm-up. Before an evaluation at the wanted density the same correction is
repeated on the validation data itself, until every layer is within the tolerance; the dials then stand still.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor

from ..attention import AttentionSpec, recording
from ..attention.dials import LayerDial, dial_named, layer_dials
from ..attention.statistics import recorded
from ..data.module import TextDataModule
from ..errors import UserError

log = logging.getLogger("attnlab")

PROBE_EXAMPLES = 48
CORRECTIONS = 100  # over the whole training
CALIBRATION_EXAMPLES = 2048
CALIBRATION_ROUNDS = 16
PROMISED = 0.01
TOLERANCE = 0.003
LONGEST_STEP = 1.0
FLATTEST, STEEPEST = -0.05, -1000.0  # slopes of log density in the coordinate
SCHEDULES = ("linear", "cosine", "constant")

Batch = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class SparsitySpec:
    """The `sparsity` group: density wanted, for each layer or their mean, and how to come down to it."""

    density: float
    per: str
    schedule: str
    warmup_ratio: float

    @classmethod
    def from_config(cls, sparsity: Mapping[str, Any], attn: Mapping[str, Any]) -> "SparsitySpec | None":
        """None where nothing is steered. Raises UserError for a value, or an attention, that cannot work."""
        if sparsity.get("density") is None:
            return None
        name = str(attn["name"])
        density = sparsity["density"]
        if isinstance(density, bool) or not isinstance(density, int | float) or not 0 < density <= 1:
            raise UserError(f"sparsity.density={density} must be in (0, 1]: the share of pairs to keep, such as 0.1")
        dial = dial_named(name)
        if dial is None:
            raise UserError(
                f"attn={name} has no dial that makes it sparser, so sparsity.density={density} cannot be reached: "
                "type attn=entmax, attn=sparsegen or attn=topk instead, or sparsity=none"
            )
        learned = [key for key, value in attn.items() if key.startswith("learn_") and value not in (False, None)]
        if learned:
            raise UserError(
                f"attn.{learned[0]}={attn[learned[0]]} and sparsity.density={density} both turn {dial.key}: "
                f"type attn.{learned[0]}=false, or sparsity=none"
            )
        return cls(
            density=float(density),
            per=str(sparsity["per"]),
            schedule=str(sparsity["schedule"]),
            warmup_ratio=float(sparsity["warmup_ratio"]),
        )

    def target(self, start: float, progress: float) -> float:
        """The density to have at `progress` in [0, 1] of training, coming from `start`."""
        if self.schedule == "constant" or self.warmup_ratio == 0:
            return self.density
        way = min(1.0, progress / self.warmup_ratio)
        if self.schedule == "cosine":
            way = (1 - math.cos(math.pi * way)) / 2
        return math.exp((1 - way) * math.log(start) + way * math.log(self.density))


class DensityControl(Callback):
    """Turns the free dials of a model (see `attention.dials`) so that `spec` is met.

    After a run, `dials()` are the values the layers ended with. Raises UserError before the first step when the
    density lies outside what the dial reaches on the validation data.
    """

    def __init__(self, spec: SparsitySpec, attention: AttentionSpec) -> None:
        self.spec = spec
        self.attention = attention
        dial = dial_named(attention.name)
        assert dial is not None
        self.dial = dial
        self.start = 1.0
        self.coordinates: list[float] = []
        self.slopes: list[float] = []
        self._before: tuple[list[float], list[float]] | None = None
        self._bounds: list[tuple[float, float]] = []
        self._layers: list[LayerDial] = []
        self._probe: list[Batch] = []
        self._wide: list[Batch] = []
        self._interval = 1
        self._hasty = False
        self._last = -1

    def state_dict(self) -> dict[str, Any]:
        return {"start": self.start, "coordinates": list(self.coordinates), "slopes": list(self.slopes)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.start = float(state_dict["start"])
        self.coordinates = [float(t) for t in state_dict["coordinates"]]
        self.slopes = [float(s) for s in state_dict["slopes"]]

    def at_target(self, trainer: pl.Trainer) -> bool:
        """Whether the way down is done."""
        way = 0.0 if self.spec.schedule == "constant" else self.spec.warmup_ratio
        return trainer.global_step >= int(way * trainer.estimated_stepping_batches)

    def dials(self) -> list[float]:
        """The value of the dial in each layer of the model; where a layer is not steered, what it started with."""
        values = self.attention.by_layer[self.dial.key]
        if len(self._layers) == 1 and self._layers[0].core.layer == 0 and self.attention.layers is None:
            return [self._layers[0].value] * len(values)  # one attention that all layers share
        for layer in self._layers:
            values[layer.core.layer] = layer.value
        return values

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._layers = layer_dials(pl_module, self.attention.name)
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TextDataModule)
        self._probe = [data.spread("val", PROBE_EXAMPLES)]
        self._hasty = isinstance(trainer.limit_val_batches, int)  # trainer.fast
        self._wide = self._probe if self._hasty else _spread(list(data.val_dataloader()), CALIBRATION_EXAMPLES)
        total = int(trainer.estimated_stepping_batches)
        self._interval = max(1, total // CORRECTIONS)
        self._look_afresh()
        if self.coordinates:  # resumed
            self._turn(self.coordinates)
            return
        self._check_range(trainer, pl_module)
        opening = self._opening(trainer, pl_module)
        self.coordinates = [opening] * len(self._layers)
        self.slopes = [-1.0] * len(self._layers)
        self._turn(self.coordinates)
        self.start = _mean(self._measure(trainer, pl_module, self._probe))

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        step = trainer.global_step
        if step % self._interval or step == self._last:  # the same step: a batch of several that are accumulated
            return
        self._last = step
        wanted = self.spec.target(self.start, step / float(trainer.estimated_stepping_batches))
        found = self._measure(trainer, pl_module, self._probe)
        self._correct(found, wanted)
        pl_module.log("sparsity/target", wanted)
        pl_module.log("sparsity/density", _mean(found))
        for layer in self._layers:
            pl_module.log(f"sparsity/{self.dial.key}/layer_{layer.core.layer:02d}", layer.value)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING or not self.at_target(trainer):
            return
        self._look_afresh()
        best = (math.inf, self.coordinates, 0.0)
        for _ in range(3 if self._hasty else CALIBRATION_ROUNDS):
            found = self._measure(trainer, pl_module, self._wide)
            distance, worst = self._distance(found)
            if distance < best[0]:
                best = (distance, list(self.coordinates), worst)
            if distance <= TOLERANCE:
                return
            self._narrow(found)
            self._correct(found, self.spec.density)
        self.coordinates = best[1]
        self._turn(self.coordinates)
        if best[0] > PROMISED and trainer.is_global_zero:
            log.info("note: attention density is %.3f where sparsity.density=%g was wanted", best[2], self.spec.density)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._look_afresh()  # as after a resume: an evaluation lies between this correction and the last

    def _look_afresh(self) -> None:
        """Forget what the last correction saw and within which bounds."""
        self._before = None
        self._bounds = [(self.dial.dense, self.dial.sparse)] * len(self._layers)

    # measuring and turning

    def _turn(self, coordinates: Sequence[float]) -> None:
        for layer, coordinate in zip(self._layers, coordinates, strict=True):
            layer.turn(coordinate)

    @torch.no_grad()
    def _measure(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batches: Sequence[Batch]) -> list[float]:
        """Density of each steered layer over the batches, in eval mode, over all processes."""
        training = pl_module.training
        pl_module.eval()
        with recording(pl_module), trainer.precision_plugin.forward_context():
            for batch in batches:
                pl_module({key: value.to(pl_module.device) for key, value in batch.items()})
        pl_module.train(training)
        sums = [recorded(layer.core) for layer in self._layers]
        return [kept / allowed for _, allowed, kept, _ in sums]

    def _correct(self, found: Sequence[float], wanted: float) -> None:
        """Move each coordinate towards the wanted density by what the slope says; learn the slope on the way."""
        logs = [math.log(max(density, 1e-6)) for density in found]
        if self.spec.per == "model":
            logs = [math.log(max(_mean(found), 1e-6))] * len(logs)
        if self._before is not None:
            for i, (old_t, old) in enumerate(zip(*self._before, strict=True)):
                moved = self.coordinates[i] - old_t
                if abs(moved) > 1e-4:
                    seen = min(max((logs[i] - old) / moved, STEEPEST), FLATTEST)
                    self.slopes[i] = 0.5 * self.slopes[i] + 0.5 * seen
        self._before = (list(self.coordinates), logs)
        for i, density in enumerate(logs):
            step = (math.log(wanted) - density) / self.slopes[i]
            t = self.coordinates[i] + min(max(step, -LONGEST_STEP), LONGEST_STEP)
            t = min(max(t, self.dial.dense), self.dial.sparse)
            low, high = self._bounds[i]
            self.coordinates[i] = t if low <= t <= high else (low + high) / 2
        self._turn(self.coordinates)

    def _narrow(self, found: Sequence[float]) -> None:
        """While nothing else moves: a density above the wanted one bounds its coordinate below, and the reverse.

        The layers before it do move; where they shift a layer out of its bounds, the bounds are opened again.
        """
        for i, density in enumerate([_mean(found)] * len(found) if self.spec.per == "model" else found):
            low, high = self._bounds[i]
            t = self.coordinates[i]
            self._bounds[i] = (t, high) if density > self.spec.density else (low, t)
            if self._bounds[i][1] - self._bounds[i][0] < 1e-3:
                self._bounds[i] = (max(t - 0.1, self.dial.dense), min(t + 0.1, self.dial.sparse))

    def _distance(self, found: Sequence[float]) -> tuple[float, float]:
        """How far the density is from the wanted one, and the density itself, in the layer where that is most."""
        counted = [_mean(found)] if self.spec.per == "model" else found
        worst = max(counted, key=lambda density: abs(density - self.spec.density))
        return abs(worst - self.spec.density), worst

    def _at(self, trainer: pl.Trainer, pl_module: pl.LightningModule, coordinate: float) -> list[float]:
        self._turn([coordinate] * len(self._layers))
        return self._measure(trainer, pl_module, self._probe)

    def _check_range(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        sparsest, densest = (self._at(trainer, pl_module, t) for t in (self.dial.sparse, self.dial.dense))
        least, most = (_mean(sparsest), _mean(densest)) if self.spec.per == "model" else (max(sparsest), min(densest))
        # The bounds are those before training, on a sample: one that is a hair's breadth off is still tried.
        slack = min(TOLERANCE, self.spec.density / 10)
        if not least - slack <= self.spec.density <= most + slack:
            ends = [f"{self.dial.key}={self.dial.value(t):.3g}" for t in (self.dial.sparse, self.dial.dense)]
            raise UserError(
                f"sparsity.density={self.spec.density:g} cannot be reached: on this data attn={self.attention.name} "
                f"keeps from {least:.3f} ({ends[0]}) to {most:.3f} ({ends[1]}) of the pairs, one key a query being the "
                "least. Type a sparsity.density in that range"
            )

    def _opening(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> float:
        """The coordinate to start from: near softmax, and never sparser than wanted."""
        near = self.dial.near_softmax
        at_once = self.spec.schedule == "constant" or self.spec.warmup_ratio == 0
        if not at_once and _mean(self._at(trainer, pl_module, near)) >= self.spec.density:
            return near
        low, high = self.dial.dense, self.dial.sparse
        for _ in range(12):
            middle = (low + high) / 2
            if _mean(self._at(trainer, pl_module, middle)) > self.spec.density:
                low = middle
            else:
                high = middle
        return (low + high) / 2


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(batches: list[Batch], examples: int) -> list[Batch]:
    """All batches, or evenly chosen ones that hold about so many examples."""
    total = sum(len(batch["example_id"]) for batch in batches)
    step = max(1, round(total / examples))
    return batches[::step]
