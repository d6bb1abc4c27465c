"""Rules of the code that ruff, mypy and import-linter (layers, see pyproject.toml) do not check."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "antishortcut"
FILES = sorted(PACKAGE.rglob("*.py"))
TORCH_FREE = ("config.recipe", "report", "run_dir", "experiments.suites", "evaluation", "training.signals")


@pytest.mark.parametrize("module", TORCH_FREE)
def test_module_imports_without_torch(module: str) -> None:
    code = f"import sys, antishortcut.{module}; assert 'ASDLoss' in dir(antishortcut); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_methods_do_not_use_torch_distributed() -> None:
    for path in (PACKAGE / "methods").glob("*.py"):
        assert "torch.distributed" not in path.read_text(), path


def test_no_code_compares_a_method_by_name() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                assert "method ==" not in ast.unparse(node), f"{path}: {ast.unparse(node)}"


def test_every_image_is_opened_with_its_formats() -> None:
    """Pillow alone would run Ghostscript on a PostScript file, whatever its name."""
    for path in [*FILES, *(path for name in ("scripts", "benchmarks") for path in (ROOT / name).rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Image.open":
                assert "formats" in [word.arg for word in node.keywords], f"{path}: {ast.unparse(node)}"


def test_files_have_at_most_600_lines() -> None:
    assert not {path: lines for path in FILES if (lines := len(path.read_text().splitlines())) > 600}


def test_module_names_are_specific() -> None:
    assert not [path for path in PACKAGE.rglob("*") if path.stem in ("utils", "helpers", "common", "misc")]


def test_private_names_of_other_packages_are_bounded_or_guarded() -> None:
    """`_orig_mod` is asked for with hasattr; Lightning's launcher has an upper bound; the rest is public."""
    private: set[str] = set()
    for path in FILES:
        nodes, text = list(ast.walk(ast.parse(path.read_text()))), path.read_text()
        names = [alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
        names += [node.attr for node in nodes if isinstance(node, ast.Attribute)]
        words = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        names += [word.rpartition(".")[2] for word in words if word.startswith(("torch.", "hashlib."))]
        own = {name for name in names if f"self.{name}" in text or f"def {name}(" in text}
        private |= {name for name in names if name.startswith("_") and not name.startswith("__")} - own
    documented = {"_exit", "_replace"}  # of os, of named tuples
    assert private - documented == {"_SubprocessScriptLauncher", "_orig_mod"}
    assert '"lightning-fabric>=2.5,<2.7"' in (PACKAGE.parent.parent / "pyproject.toml").read_text()
