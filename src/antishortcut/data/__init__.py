"""Data: sets by name, and batches that depend on nothing but (seed, epoch, index)."""

from .ahead import to_device
from .augment import AUGMENTS, crop_flip
from .draws import mix, order, uniform
from .loading import Loader
from .sources import SOURCES, open_sets

__all__ = ["AUGMENTS", "SOURCES", "Loader", "crop_flip", "mix", "open_sets", "order", "to_device", "uniform"]
