"""What a shell offers after a tab: names from the registries, imported only then."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from glob import glob

PREFIXES = ("timm:", "torchvision:", "import:")


def methods(incomplete: str) -> list[str]:
    from antishortcut.methods import METHODS

    return _starting(METHODS, incomplete)


def models(incomplete: str) -> list[str]:
    """Our own, and behind timm: and torchvision: theirs."""
    if incomplete.startswith("timm:"):
        import timm

        return _starting((f"timm:{name}" for name in timm.list_models()), incomplete)
    if incomplete.startswith("torchvision:"):
        import torchvision

        names = torchvision.models.list_models(module=torchvision.models)
        return _starting((f"torchvision:{name}" for name in names), incomplete)
    from antishortcut.models.registry import DEEPLAB, FAMILIES, IMAGENET

    return _starting((*FAMILIES, *DEEPLAB, *IMAGENET, *PREFIXES), incomplete)


def recipes(incomplete: str) -> list[str]:
    """Shipped ones, and TOML files."""
    from antishortcut.config.recipe import shipped_recipes

    return [*_starting(shipped_recipes(), incomplete), *sorted(glob(f"{incomplete}*.toml")), *_folders(incomplete)]


def datasets(incomplete: str) -> list[str]:
    """Names of sets, and folders behind folder: and groups:."""
    from antishortcut.data.datasets import DATASETS, WITH_PATH

    kind, colon, path = incomplete.partition(":")
    if colon and kind in WITH_PATH:
        return [f"{kind}:{folder}" for folder in _folders(path)]
    return _starting([f"{name}:" if name in WITH_PATH else name for name in DATASETS], incomplete)


def data(incomplete: str) -> list[str]:
    """Names of sets, recipes and folders."""
    return list(dict.fromkeys([*datasets(incomplete), *recipes(incomplete)]))


def suites(incomplete: str) -> list[str]:
    from antishortcut.experiments.suites_suites import SUITES

    return _starting(SUITES, incomplete)


def listed(known: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """For options of several names with commas between: the last one is completed."""

    def offer(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in _starting(known(), last) if name not in before.split(",")]

    return offer


def _starting(known: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in known if name.startswith(incomplete)]


def _folders(incomplete: str) -> list[str]:
    return sorted(glob(f"{incomplete}*/"))
