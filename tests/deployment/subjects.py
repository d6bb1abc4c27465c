"""What is exported, and how others read it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from antishortcut.config.recipe import DataSettings, ModelSettings, OptimSettings, Recipe, Run, load_recipe
from antishortcut.models import Network
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import build_model, save_weights
from antishortcut.training.pipeline import Session

TIMM = "timm:mobilenetv3_small_050"  # of few parameters, with batch norm and squeezed channels


def small(*more: str) -> Recipe:
    few = ["epochs=1", "teacher.epochs=1", "data.options.count=96", "data.options.test_count=40", "optim.batch=32"]
    networks = ["teacher.name=cnn-4-16", "student.name=cnn-2-16", "teacher.keep=[15]"]
    return load_recipe("cues", [*few, *networks, *more])


def original(folder: RunDir, session: Session) -> Network:
    """The student as the run left it, opened without the code under test."""
    run, _ = folder.read()
    sets = session.sets(run.data)
    network = build_model(run.model, len(sets.classes), sets.image_size)
    network.load_state_dict(load_file(folder.student))
    return network.eval()


def images(folder: RunDir, session: Session, count: int) -> Tensor:
    """The first of its own test images."""
    held: Any = next(iter(session.sets(folder.read()[0].data).tests.values()))
    return torch.as_tensor(held.image[:count]).float() / 255


def close(actual: Any, expected: Tensor) -> None:
    expected = expected.detach()
    torch.testing.assert_close(torch.as_tensor(actual), expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def runtime(place: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(place / "model.onnx", options)


def without_package(code: str, place: Path) -> None:
    """Run Python in a folder where the package cannot be imported."""
    hide = "import sys; sys.modules['antishortcut'] = None\n"
    subprocess.run([sys.executable, "-W", "ignore", "-c", hide + code], cwd=place, check=True)


def fresh(place: Path, model: str, side: int, classes: int = 3, **more: Any) -> RunDir:
    """A finished run whose student is as it began, written by hand, of data that are not here."""
    settings = {"model": ModelSettings(name=model, **more), "data": DataSettings(name="folder:/x/y", image_size=side)}
    run = Run(
        kind="distill",
        name="kd",
        seed=1,
        suite="s",
        epochs=1,
        method="kd",
        fingerprint="f",
        optim=OptimSettings(),
        **settings,
    )
    folder = RunDir(place)
    folder.begin(run, {}, {})
    torch.manual_seed(0)
    save_weights(folder.student, build_model(run.model, classes, side))
    folder.finish({"set": "test", "last": {"accuracy": 0.5}, "best": {"accuracy": 0.5}})
    return folder


def photo(place: Path, width: int = 90, height: int = 60) -> Path:
    """A JPEG, smooth like a photograph."""
    across, down = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    picture = np.stack([across, down, across * down], 2)  # (H, W, 3)
    Image.fromarray((255 * picture).astype(np.uint8)).save(place)
    return place


def everything(place: Path) -> set[Path]:
    return set(place.rglob("*"))
