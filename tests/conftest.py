"""A recipe small enough to train in a second, shared by the tests of the loop and the command."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("ANTISHORTCUT_NATIVE", "float32")  # what is compared bit by bit is the same on all machines
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # before torch: threads that spin while they wait ruin shared cores

import pytest
import torch

from antishortcut.config.recipe import Execution, load_recipe
from antishortcut.training.pipeline import Session

TINY = """
epochs = 2
[data]
name = "cues"
augment = "crop"
options = {count = 256, test_count = 100}
[teacher]
name = "cnn-4-16"
[student]
name = "cnn-2-16"
[optim]
batch = 32
[methods.asd]
warmup = 1.0
queue = 64
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A recipe file: 256 images, 8 steps an epoch, two epochs."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def session(tmp_path: Path) -> Session:
    torch.set_num_threads(1)
    return Session(tmp_path / "runs", execution=Execution(accelerator="cpu", threads=1, save_every=1e9), quiet=True)


@pytest.fixture
def recipe(tiny: Path):  # type: ignore[no-untyped-def]
    return load_recipe(str(tiny))
