"""Batch norm for the heads of methods, which takes a batch of one 1 × 1 map, too."""

from antishortcut.models.layers import SingleSampleNorm as BatchNorm

__all__ = ["BatchNorm"]
