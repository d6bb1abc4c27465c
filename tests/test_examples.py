"""The examples run as they are: each trains a teacher, keeps its states and distils a student, on made-up images."""

import os
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from antishortcut.data.readers import Request
from antishortcut.errors import UserError
from antishortcut.teachers.snapshots import load_state
from antishortcut.types import Batch, Features, Shape, Sizes

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
NEEDS = {  # what an example needs beyond the package
    "plain_loop.py": (),
    "lightning_module.py": ("pytorch_lightning",),
    "hf_trainer.py": ("transformers", "accelerate"),
    "timm_script.py": (),
}


def run(tmp_path: Path, name: str, *words: str, processes: int = 1) -> str:
    """Standard output of an example that must succeed."""
    missing = [module for module in NEEDS[name] if find_spec(module) is None]
    if missing:
        pytest.skip(f"{name} needs {', '.join(missing)}: pip install 'antishortcut[dev]'")
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    call = [sys.executable, *(several if processes > 1 else []), str(EXAMPLES / name), "--out", "made", *words]
    # offline, on one thread; the time only ends what hangs
    single = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environ = os.environ | single | {"PYTHONPATH": path}
    for _ in range(3):
        done = subprocess.run(call, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=3000)
        if processes == 1 or "terminate called without an active exception" not in done.stderr:
            break  # else torch aborted a process that was done: its issue 190489
        shutil.rmtree(tmp_path / "made")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(tmp_path: Path, out: str) -> None:
    """Two different states were kept, the terms are numbers, and the student is there alone."""
    early, final = (load_state(tmp_path / "made" / "teacher-states", state) for state in ("15%", "final"))
    assert early.keys() == final.keys()
    assert any(not torch.equal(early[key], final[key]) for key in final)
    message = [line for line in out.splitlines() if " tc " in line][-1].split(": ")[1].split()
    terms = dict(zip(message[::2], map(float, message[1::2]), strict=True))
    assert list(terms) == ["task", "kd", "tc", "ss"]
    assert all(np.isfinite(value) for value in terms.values())
    assert terms["tc"] > 0
    student = tmp_path / "made" / "student.pt"
    state = torch.load(student) if student.exists() else load_file(tmp_path / "made" / "student" / "model.safetensors")
    assert all(value.isfinite().all() for value in state.values())
    assert not [key for key in state if "asd" in key or "projector" in key]


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(NEEDS)


def extension(name: str) -> dict[str, Any]:
    """An example of docs/extend.md."""
    return runpy.run_path(str(EXAMPLES / "extend" / f"{name}.py"))


def test_the_method_of_the_documentation() -> None:
    sizes = Sizes(classes=10, examples=1000, student=Shape(64), teachers={"final": Shape(128)})
    method = extension("method")["CosineHint"](sizes, weight=2.0)
    batch = Batch(image=torch.rand(8, 3, 32, 32), label=torch.randint(10, (8,)), index=torch.arange(8))
    student = Features(logits=torch.randn(8, 10), embedding=torch.randn(8, 64, requires_grad=True))
    teacher = Features(logits=torch.randn(8, 10), embedding=torch.randn(8, 128, requires_grad=True))
    method.terms(student, {"final": teacher}, batch, 0.5)["cosine"].backward()
    assert student.embedding.grad is not None
    assert teacher.embedding.grad is None


def test_the_data_set_of_the_documentation(tmp_path: Path) -> None:
    open_stripes = extension("data")["open_stripes"]
    for split, count in (("train", 8), ("test", 4)):
        (tmp_path / "stripes").mkdir(exist_ok=True)
        image = np.zeros((count, 3, 32, 32), np.uint8)
        image[::2, :, ::2], image[1::2, :, :, ::2] = 255, 255
        np.savez(tmp_path / "stripes" / f"{split}.npz", image=image, label=np.arange(count) % 2)
    opened = open_stripes(Request(tmp_path))
    assert opened.train.image.shape == (8, 3, 32, 32)
    assert opened.tests["test"].label.tolist() == [0, 1, 0, 1]
    (tmp_path / "stripes" / "test.npz").write_bytes(b"damaged")
    with pytest.raises(UserError, match="needs the arrays image and label"):
        open_stripes(Request(tmp_path))


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_runs(tmp_path: Path, name: str) -> None:
    check(tmp_path, run(tmp_path, name))


def test_a_folder_of_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("ape", "bee", "cat"):
        (folder := tmp_path / "own" / name).mkdir(parents=True)
        for number in range(15):  # 45 in all: the last batch is smaller
            Image.fromarray(rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    check(tmp_path, run(tmp_path, "plain_loop.py", "--data", "own", "--size", "16", "--epochs", "4"))
    assert load_state(tmp_path / "made" / "teacher-states")["head.weight"].shape == (3, 64)


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    """torchrun: rows are joined, the first process alone writes and speaks."""
    out = run(tmp_path, "timm_script.py", processes=2)
    check(tmp_path, out)
    assert out.count("last batch:") == 1
