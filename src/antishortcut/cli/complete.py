"""What a shell offers after a tab: names of methods, models, recipes, data. Read from the tables, never by import.

Importing a table would import torch, seconds after every tab; the keys of a table that is written out can be read
from its file in a millisecond.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from antishortcut.errors import UserError
from antishortcut.files import expanded

PACKAGE = Path(__file__).parent.parent
TABLES = {  # what → the file its table is in, and the names of the table there
    "methods": ("methods/__init__.py", ("METHODS",)),
    "models": ("models/zoo.py", ("FAMILIES", "DEEPLAB", "IMAGENET")),
    "datasets": ("data/sources.py", ("DATASETS",)),
    "augmentations": ("data/augment.py", ("AUGMENTS",)),
}
WITH_PATH = ("folder", "groups")
PREFIXES = ("timm:", "torchvision:", "import:")
REGISTRIES = ("timm", "torchvision")
REGISTERED = re.compile(r"^@register_model\b.*\n(?:@.*\n)*def (\w+)", re.MULTILINE)


@cache
def names(what: str) -> tuple[str, ...]:
    """The keys of a table, in its order."""
    file, tables = TABLES[what]
    found = dict(_written(PACKAGE / file))
    return tuple(name for table in tables for name in found[table])


def _written(file: Path) -> Iterator[tuple[str, list[str]]]:
    """Names and keys of the tables that are written out in a file."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            if isinstance(target, ast.Name):
                yield target.id, [str(key) for key in keys]


def shipped() -> list[str]:
    """Names of the shipped recipes, P2 before P10."""
    return sorted((path.stem for path in (PACKAGE / "recipes").glob("*.toml")), key=lambda name: (len(name), name))


def methods(incomplete: str) -> list[str]:
    return _starting(names("methods"), incomplete)


def models(incomplete: str) -> list[str]:
    """Our own, and behind timm: and torchvision: theirs."""
    package, colon, _ = incomplete.partition(":")
    if colon and package in REGISTRIES:
        return _starting((f"{package}:{name}" for name in _registered(package)), incomplete)
    return _starting((*names("models"), *PREFIXES), incomplete)


def _registered(package: str) -> list[str]:
    """What a package registers as models, read from its files."""
    found = find_spec(package)
    folders = [] if found is None else found.submodule_search_locations or []
    files = (file for folder in folders for file in Path(folder, "models").rglob("*.py"))
    return sorted({name for file in files for name in REGISTERED.findall(file.read_text(encoding="utf-8"))})


def recipes(incomplete: str) -> list[str]:
    """Shipped ones, and TOML files."""
    return [*_starting(shipped(), incomplete), *_files(incomplete, lambda path: path.suffix == ".toml")]


def datasets(incomplete: str) -> list[str]:
    """Names of sets, and folders behind folder: and groups:."""
    kind, colon, path = incomplete.partition(":")
    if colon and kind in WITH_PATH:
        return [f"{kind}:{found}" for found in _files(path, lambda path: False)]
    return _starting([f"{name}:" if name in WITH_PATH else name for name in names("datasets")], incomplete)


def data(incomplete: str) -> list[str]:
    """Names of sets, recipes and folders."""
    return [*dict.fromkeys([*datasets(incomplete), *recipes(incomplete)])]


def suites(incomplete: str) -> list[str]:
    from antishortcut.suites import SUITES

    return _starting(SUITES, incomplete)


def listed(known: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """For options of several names with commas between: the last one is completed."""

    def offer(incomplete: str) -> list[str]:
        done, comma, last = incomplete.rpartition(",")
        given = {word.strip() for word in done.split(",")}
        return [f"{done}{comma}{name}" for name in _starting(known(), last) if name not in given]

    return offer


def _starting(known: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in known if name.startswith(incomplete)]


def _files(incomplete: str, wanted: Callable[[Path], bool]) -> list[str]:
    """Folders, and files that are wanted, whose path begins like this; hidden ones only when asked for."""
    folder, slash, start = incomplete.rpartition("/")
    try:
        found = sorted(expanded(f"{folder}{slash}" or ".").iterdir())
    except (OSError, UserError):
        return []
    there = [path for path in found if path.name.startswith(start) and (start or not path.name.startswith("."))]
    return [
        f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}" for path in there if path.is_dir() or wanted(path)
    ]
