"""Who may import whom. A room that reaches where it may not is a design error, whatever the tests say."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "antishortcut"

FREE = {"errors", "files", "lettering", "toml", "", "__version__"}  # what knows nothing of the rest
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "files": set(),
    "lettering": set(),
    "toml": set(),
    "types": set(),
    "settings": set(),
    "run": {"settings"},
    "machine": set(),
    "stats": set(),
    "subspace": set(),
    "parallel": set(),
    "snapshots": set(),
    "console": set(),
    "log": set(),
    "folder": {"run"},
    "schedule": {"run"},
    "optimiser": {"settings"},
    "averaging": set(),
    "logs": {"run"},
    "resume": {"folder"},
    "recipes": set(),
    "tasks": {"types", "scorers", "parallel"},
    "models": {"types"},
    "data": {"types", "console", "folder", "machine"},
    "scorers": {"types"},
    "methods": {"types", "subspace", "parallel", "models"},
    "diagnose": {"types", "subspace"},
    "step": {"types", "parallel"},
    "attack": {"types", "data"},
    "stylize": {"types", "models", "data", "folder", "console"},
    "mechanism": {"types", "folder", "models", "data", "diagnose", "console"},
    "signals": set(),
    "exits": set(),
    "frozen": {"types", "models"},
    "fabric": {"run", "frozen", "machine", "parallel", "signals"},
    "teachers": {"run", "folder", "types", "models", "data", "subspace", "frozen", "snapshots"},
    "cache": {"run", "folder", "teachers", "types"},
    "mixing": {"settings", "types", "data", "parallel"},
    "memory": {"settings", "types", "optimiser", "parallel"},
    "answers": {"run", "types", "data", "frozen", "teachers", "cache"},
    "train": {
        "run", "folder", "resume", "schedule", "console", "parallel", "step",
        "types", "tasks", "models", "methods", "data", "teachers", "scorers", "answers",
        "fabric", "signals", "optimiser", "averaging", "mixing", "memory", "logs", "machine",
    },
    "given": {"run", "folder", "types", "tasks", "models", "data", "teachers", "snapshots"},
    "plan": {"run", "types", "models", "data"},
    "choose": {"run", "types", "models", "data", "teachers"},
    "evaluate": {
        "run", "folder", "types", "tasks", "models", "data", "teachers", "scorers", "diagnose", "subspace",
        "console", "methods", "stylize", "attack", "mechanism", "machine",
    },
    "audit": {"run", "folder", "types", "models", "data", "scorers", "diagnose", "subspace", "mechanism", "console"},
    "report": {"run", "folder", "log", "stats", "paper"},
    "workflow": {
        "run", "folder", "console", "choose", "types", "data", "models", "methods", "tasks", "teachers",
        "train", "resume", "fabric", "mixing", "given", "machine",
    },
    "export": {"run", "folder", "types", "models", "data", "teachers", "cost", "evaluate"},
    "targets": {"folder", "types", "data", "methods", "teachers"},
    "bench": {
        "run", "machine", "teachers", "types", "models", "methods", "step", "tasks", "frozen", "cache", "data", "cost",
        "fabric",
    },
    "job": {"run"},
    "paper": {"run", "job"},
    "suites": {"run", "job", "paper"},
    "work": {"run", "folder", "console", "suites", "evaluate", "workflow"},
    "launch": {
        "run", "folder", "suites", "methods", "work", "workflow", "train", "machine", "signals", "exits", "console",
    },
    "cost": {"run", "folder", "job", "launch"},
    "demo": {"run", "folder", "evaluate", "workflow", "report"},
    "doctor": {"machine", "run", "frozen", "fabric"},
}  # fmt: skip
TORCH_FREE = [
    "settings", "run", "machine", "folder", "stats", "schedule", "console", "errors", "report", "job", "paper.printed",
    "suites", "launch", "cost", "cli", "doctor", "exits",
]  # fmt: skip


def room(path: Path) -> str:
    pieces = path.relative_to(PACKAGE).with_suffix("").parts
    return "" if pieces == ("__init__",) else pieces[0]


def imports(path: Path) -> set[str]:
    """Rooms of ours that a file imports, absolutely or relatively."""
    result = set()
    here = path.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ["antishortcut", *here[: len(here) - node.level + 1]] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "antishortcut" else [module]
        else:
            continue
        result |= {name.split(".")[1] if "." in name else "" for name in names if name.split(".")[0] == "antishortcut"}
    return result


FILES = sorted(path for path in PACKAGE.rglob("*.py") if room(path) not in ("", "cli", "__main__"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    here = room(path)
    assert here in ALLOWED, f"{here} is a new room: say in ALLOWED what it may import"
    extra = imports(path) - ALLOWED[here] - FREE - {here}
    assert not extra, f"{here} may not import {sorted(extra)}"


def test_methods_do_not_lean_on_each_other() -> None:
    """Each method is one file; shared are two losses, a norm that bears a single row, and ASD's basis."""
    shared, losses = {"kd", "asd", "basis", "norm"}, {"kd": {"kd_loss"}, "asd": {"ASDLoss"}}
    for path in (PACKAGE / "methods").glob("*.py"):
        if path.stem == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("antishortcut.methods."):
                other = (node.module or "").split(".")[-1]
                assert other in shared, f"{path.stem} imports {other}"
                assert {alias.name for alias in node.names} <= losses.get(other, {alias.name for alias in node.names})


def test_only_parallel_and_the_trainer_know_of_processes() -> None:
    for path in (PACKAGE / "methods").glob("*.py"):
        assert "torch.distributed" not in path.read_text()


def test_nothing_asks_for_a_method_by_name() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                assert "method ==" not in ast.unparse(node), f"{path}: {ast.unparse(node)}"


def test_nothing_outside_the_rooms_of_data_asks_which_task_it_is() -> None:
    """`bench` draws labels of the data's shape."""
    allowed = {"types", "tasks", "data", "scorers", "models"}
    also = {"bench": {"Classification", "Segmentation", "is_dense"}}
    for path in PACKAGE.rglob("*.py"):
        if room(path) in allowed:
            continue
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        requested = names & {"is_dense", "Segmentation", "Classification"} - also.get(room(path), set())
        assert not requested, f"{path} asks {requested}"


@pytest.mark.parametrize("name", TORCH_FREE)
def test_rooms_without_torch(name: str) -> None:
    code = f"import sys, antishortcut.{name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_package_itself_loads_nothing() -> None:
    code = "import sys, antishortcut; assert 'ASDLoss' in dir(antishortcut); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_files_stay_readable() -> None:
    long = {p.name: n for p in PACKAGE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 500}
    assert not long, f"split them: {long}"
    assert not [p for p in PACKAGE.rglob("*") if p.stem in ("utils", "helpers", "common", "misc")]
