"""Data: sets by name, and batches that depend on nothing but (seed, epoch, index)."""

from antishortcut.data.augment import AUGMENTS, crop_flip
from antishortcut.data.draws import mix, order, uniform
from antishortcut.data.loading import Loader, to_device
from antishortcut.data.sources import DATASETS, open_sets

__all__ = ["AUGMENTS", "DATASETS", "Loader", "crop_flip", "mix", "open_sets", "order", "to_device", "uniform"]
