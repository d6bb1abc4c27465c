"""Data: sets by name, and batches that depend on nothing but (seed, epoch, index)."""

from .augment import AUGMENTS, crop_flip
from .draws import mix, order, uniform
from .loading import Loader, to_device
from .sources import DATASETS, open_sets

__all__ = ["AUGMENTS", "DATASETS", "Loader", "crop_flip", "mix", "open_sets", "order", "to_device", "uniform"]
