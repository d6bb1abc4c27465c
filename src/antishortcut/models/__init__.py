"""Networks: name → builder, and any network → Features."""

from antishortcut.models.feature_extractor import FeatureExtractor
from antishortcut.models.registry import NAMES, build, describe
from antishortcut.models.reused_classifier import reuse_classifier
from antishortcut.models.weights import load_weights
from antishortcut.models.wrapper import Network, feature_shapes, tapped_features

__all__ = [
    "NAMES",
    "Network",
    "FeatureExtractor",
    "build",
    "describe",
    "load_weights",
    "feature_shapes",
    "reuse_classifier",
    "tapped_features",
]
