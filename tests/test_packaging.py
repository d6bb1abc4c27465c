"""Wheel and sdist, built and used from a fresh venv: what is installed is all it needs."""

import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TINY = """
epochs = 1
[data]
name = "cues"
options = {count = 64, test_count = 50}
[teacher]
name = "cnn-2-8"
[student]
name = "cnn-2-8"
"""


def call(*words: object, folder: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_make_demo_installs_less_than_make_test_and_both_say_so(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    installed = {}
    for goal in ("demo", "test"):
        text = call("make", "--dry-run", goal, folder=tmp_path)
        installed[goal] = re.findall(r"-e '\.(\S+)'", text)
        steps = [line for line in text.splitlines() if "pip install" in line and "-e " in line]
        assert not [step for step in steps if "--quiet" in step]
        assert text.count('echo "Installing') == len(steps)
    assert installed == {"demo": ["[report,export]"], "test": ["[report,export]", "[dev]"]}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--outdir", folder, ROOT, folder=folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_an_installed_package_trains_and_reports(dist: Path, tmp_path: Path, kind: str) -> None:
    (archive,) = dist.glob(kind)
    call(sys.executable, "-m", "venv", tmp_path / "venv", folder=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    call(python, "-m", "pip", "install", "--quiet", "--no-deps", archive, folder=tmp_path)
    packages = call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=tmp_path).strip()
    # the dependencies are those of this environment; the package itself is found in its own venv first
    (Path(packages) / "zz_dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    where = call(python, "-c", "import antishortcut; print(antishortcut.__file__)", folder=tmp_path)
    assert str(tmp_path) in where
    asd = tmp_path / "venv" / "bin" / "asd"
    assert "P2" in call(asd, "list", "recipes", folder=tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    call(asd, "distill", "tiny.toml", "--method", "asd", "--device", "cpu", "--threads", "1", folder=tmp_path)
    call(asd, "report", "runs/tiny", folder=tmp_path)
    assert (tmp_path / "runs" / "tiny" / "report.html").stat().st_size > 10_000
