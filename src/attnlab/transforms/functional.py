"""The transforms as pure functions of a tensor of scores."""

from .entmax import entmax, entmax15
from .softmax import softmax
from .sparsemax import sparsegen, sparsemax

__all__ = ["entmax", "entmax15", "softmax", "sparsegen", "sparsemax"]
