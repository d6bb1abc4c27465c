"""Networks: name → builder, and any network → Features."""

from antishortcut.models.feature_extractor import FeatureExtractor
from antishortcut.models.registry import NAMES, Network, build, describe, load_weights
from antishortcut.models.wrapper import feature_shapes

__all__ = ["NAMES", "Network", "FeatureExtractor", "build", "describe", "load_weights", "feature_shapes"]
