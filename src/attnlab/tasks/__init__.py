"""What is predicted and how it is scored."""

from attnlab.tasks.masked import only_at
from attnlab.tasks.metrics import METRICS, build_metrics, predictions
from attnlab.tasks.spec import TaskSpec

__all__ = ["METRICS", "TaskSpec", "build_metrics", "only_at", "predictions"]
