"""Learning a mask beside the weights: its temperature, its noise, the weight of its penalty.

    loss = task loss + lam * density        (mask.penalty=density: mean of the gates)
    loss = task loss + lam * sum of gates   (mask.penalty=l1, as SparseBERT's code has it)

With mask.target_density, lam is steered: it holds the mask's density in eval mode on a path that falls in equal ratios
from the first density to the wanted one over the first part of training, and there from then on. What lam has not done
by an evaluation after that, a common shift of all logits does, which leaves their order as it was learned.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn

from ..attention.masking import EncoderMask, encoder_mask
from ..masks.learned import DifferentiableMask
from ..masks.saved import read_mask

log = logging.getLogger("attnlab")

DESCENT = 0.7  # share of training in which the density falls to the wanted one
GAIN = 20.0  # of lam in the distance from the path
MEMORY = 0.3  # of lam in the sum of the distances, a step
NEAR = 0.02
LOG_EVERY = 10


class MaskControl(Callback):
    """Steers the learning of a mask as the `mask` group says, and logs mask/density, mask/lam, mask/temperature."""

    def __init__(self, options: Mapping[str, Any], seed: int) -> None:
        self.options = options
        self.seed = seed
        self.lam = float(options["lam"])
        self.held: EncoderMask
        self.mask: DifferentiableMask
        self._start: float | None = None
        self._sum = 0.0
        self._last = 0

    def state_dict(self) -> dict[str, Any]:
        return {"lam": self.lam, "start": self._start, "sum": self._sum}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.lam, self._start, self._sum = state_dict["lam"], state_dict["start"], state_dict["sum"]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Find the mask in the model."""
        held = encoder_mask(pl_module)
        assert held is not None
        assert held.learned is not None
        self.held, self.mask = held, held.learned

    def penalty(self) -> Tensor:
        """What the mask adds to the loss, from the gates of the forward: over a text of its length, as in the paper."""
        gates = self.mask.square(self.held.gates, self.mask.length)
        return self.lam * (gates.mean() if self.options["penalty"] == "density" else gates.sum())

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        first, last = float(self.options["temperature"]), float(self.options["final_temperature"])
        progress = trainer.global_step / float(trainer.estimated_stepping_batches)
        self.mask.temperature = first * (last / first) ** min(progress, 1.0)
        self.mask.draw = hash((self.seed, trainer.current_epoch, batch_idx)) & 0x7FFFFFFFFFFFFFFF

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._last:  # a batch of several that are accumulated
            return
        self._last = trainer.global_step
        target = self.options["target_density"]
        due = trainer.global_step % LOG_EVERY == 0
        density = self.mask.density() if due or target is not None else 0.0
        if target is not None:
            self._start = self._start or density
            way = min(1.0, trainer.global_step / (DESCENT * float(trainer.estimated_stepping_batches)))
            wanted = self._start * (target / self._start) ** way
            off = density - wanted
            self._sum += MEMORY * off
            self.lam = GAIN * off + self._sum
        if due:
            steered = {"mask/lam": self.lam, "mask/temperature": self.mask.temperature}
            pl_module.log_dict({"mask/density": density, **steered})

    def at_target(self, trainer: pl.Trainer) -> bool:
        """Whether the way down is done."""
        if self.options["target_density"] is None:
            return True
        return trainer.global_step >= int(DESCENT * trainer.estimated_stepping_batches)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        target = self.options["target_density"]
        fitting = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if target is None or not fitting or not self.at_target(trainer):
            return
        before = self.mask.density()
        self.mask.shift_to(target)
        if abs(before - target) > NEAR and trainer.is_global_zero:
            log.info(
                "note: mask.lam brought the mask's density to %.3f, a shift of its logits to %.3f (wanted: %g); "
                "with a higher mask.lr or more epochs lam does it alone",
                before,
                self.mask.density(),
                target,
            )


def mask_metrics(model: nn.Module) -> dict[str, float]:
    """density: share of the pairs that the mask keeps in a text of its length; nothing where the model has no mask."""
    held = encoder_mask(model)
    return {} if held is None else {"density": held.density()}


def fill_mask(model: nn.Module, path: str) -> None:
    """Give the model's mask=file what the file holds."""
    held = encoder_mask(model)
    assert held is not None
    held.mask.get_buffer("keep").copy_(read_mask(Path(path).expanduser())[0])
