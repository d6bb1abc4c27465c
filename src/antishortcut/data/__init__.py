"""Data: sets by name, and batches that depend on nothing but (seed, epoch, index)."""

from antishortcut.data.datasets import DATASETS, open_sets
from antishortcut.data.loader import Loader, to_device
from antishortcut.data.rng import mix, order, uniform
from antishortcut.data.transforms import AUGMENTS, crop_flip

__all__ = ["AUGMENTS", "DATASETS", "Loader", "crop_flip", "mix", "open_sets", "order", "to_device", "uniform"]
