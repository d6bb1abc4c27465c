"""Networks: name → builder, and any network → Features."""

from antishortcut.models.feature_extractor import FeatureExtractor
from antishortcut.models.preact import tapped_features
from antishortcut.models.registry import NAMES, build, describe
from antishortcut.models.weights import load_weights
from antishortcut.models.wrapper import Network, feature_shapes

__all__ = [
    "NAMES",
    "FeatureExtractor",
    "Network",
    "build",
    "describe",
    "feature_shapes",
    "load_weights",
    "tapped_features",
]
