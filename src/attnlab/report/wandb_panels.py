"""Heat maps as W&B images."""

import io
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from .plots import png

MOST_BYTES = 150_000


def log_heatmaps(
    run: Any,
    figures: Mapping[str, Figure],
    *,
    step: int | None = None,
    step_metric: str = "trainer/global_step",
    most_bytes: int = MOST_BYTES,
) -> None:
    """Log each figure under its name to a `wandb.Run`, at most `most_bytes` each.

    step is written under step_metric, as Lightning's WandbLogger does, so that W&B's own step
    counter stays free.
    """
    import wandb
    from PIL import Image

    panels: dict[str, Any] = {
        name: wandb.Image(Image.open(io.BytesIO(png(figure, most_bytes=most_bytes))), caption=name)
        for name, figure in figures.items()
    }
    if panels:
        run.log(panels if step is None else {**panels, step_metric: step})
