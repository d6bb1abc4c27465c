"""Networks: name → builder, and any network → Features."""

from antishortcut.models.taps import Tapped
from antishortcut.models.zoo import NAMES, Network, build, describe, load_weights, probe

__all__ = ["NAMES", "Network", "Tapped", "build", "describe", "load_weights", "probe"]
