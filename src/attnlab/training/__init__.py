"""From a config to a finished run folder, and back from the folder to numbers and predictions."""

from .train import TrainResult, train

__all__ = ["TrainResult", "train"]
