"""torchproof: builds GPU training environments from a matrix and proves that they train."""

__version__ = "0.1.0"
