"""antishortcut: distil a vision model without handing down its shortcuts."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antishortcut.api import Student as Student
    from antishortcut.api import audit as audit
    from antishortcut.api import distill as distill
    from antishortcut.api import evaluate as evaluate
    from antishortcut.api import export as export
    from antishortcut.api import predict as predict
    from antishortcut.config.recipe import Run as Run
    from antishortcut.deployment.hub import load as load
    from antishortcut.methods import METHODS as METHODS
    from antishortcut.methods.asd import ASDLoss as ASDLoss
    from antishortcut.methods.contrast import contrast_loss as contrast_loss
    from antishortcut.methods.kd import kd_loss as kd_loss
    from antishortcut.subspace import shortcut_subspace as shortcut_subspace
    from antishortcut.teachers.snapshots import Snapshots as Snapshots
    from antishortcut.teachers.snapshots import load_state as load_state

__version__ = "0.2.0"

_PLACES = {
    "ASDLoss": "antishortcut.methods.asd",
    "METHODS": "antishortcut.methods",
    "Run": "antishortcut.config.recipe",
    "Snapshots": "antishortcut.teachers.snapshots",
    "Student": "antishortcut.api",
    "audit": "antishortcut.api",
    "contrast_loss": "antishortcut.methods.contrast",
    "distill": "antishortcut.api",
    "evaluate": "antishortcut.api",
    "export": "antishortcut.api",
    "kd_loss": "antishortcut.methods.kd",
    "load": "antishortcut.deployment.hub",
    "load_state": "antishortcut.teachers.snapshots",
    "predict": "antishortcut.api",
    "shortcut_subspace": "antishortcut.subspace",
}
__all__ = [
    "ASDLoss",
    "METHODS",
    "Run",
    "Snapshots",
    "Student",
    "audit",
    "contrast_loss",
    "distill",
    "evaluate",
    "export",
    "kd_loss",
    "load",
    "load_state",
    "predict",
    "shortcut_subspace",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Public names load their room on first use (PEP 562), so that `import antishortcut` costs nothing."""
    if name not in _PLACES:
        raise AttributeError(f"module 'antishortcut' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
