"""The examples run as they are: each trains a teacher, keeps its states and distils a student, on made-up images."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from antishortcut.teachers.snapshots import load_state

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


def test_two_processes(tmp_path: Path) -> None:
    """torchrun: rows are joined, the first process alone writes and speaks."""
    out = run(tmp_path, "timm_script.py", processes=2)
    check(tmp_path, out)
    assert out.count("last batch:") == 1
