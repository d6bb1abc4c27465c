"""A teacher and a KD student, trained once and copied for every test."""

import shutil
from pathlib import Path

import pytest
import torch

from antishortcut.config.recipe import Execution, Recipe, load_recipe
from antishortcut.evaluation.context import EvalContext
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill
from tests.conftest import TINY


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("trained")
    (home / "tiny.toml").write_text(TINY)
    session = Session(home / "runs", execution=Execution(accelerator="cpu", threads=1, save_every=1e9), quiet=True)
    distill(load_recipe(str(home / "tiny.toml")), session, method="kd", seed=1, suite="s")
    return home / "runs"


@pytest.fixture
def folder(trained: Path, session: Session) -> RunDir:
    """The student's run folder, below session.runs."""
    shutil.copytree(trained, session.runs)
    return RunDir(next((session.runs / "s").iterdir()))


@pytest.fixture
def context(recipe: Recipe, session: Session, tmp_path: Path) -> EvalContext:
    return EvalContext(session.sets(recipe.data), session.runs, root=tmp_path / "data")
