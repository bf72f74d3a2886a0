"""What is predicted and how it is scored."""

from attnlab.tasks.heads import build_head
from attnlab.tasks.metrics import METRICS, build_metrics
from attnlab.tasks.spec import TaskSpec

__all__ = ["METRICS", "TaskSpec", "build_head", "build_metrics"]
