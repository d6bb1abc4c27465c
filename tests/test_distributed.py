"""A whole run on two real processes (gloo) ends where one process ends, for a student without batch statistics."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

NETWORK = """
from torch import nn

def net(num_classes):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(108, 24), nn.ReLU(), nn.Linear(24, num_classes),
    )
"""


def asd(here: Path, *words: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "antishortcut", *words],
        cwd=here, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("count", [250])  # 250 images in batches of 32: the last one, 26, is shared as 13 and 13
def test_two_processes_end_where_one_does(tmp_path: Path, tiny: Path, count: int) -> None:
    (tmp_path / "bare.py").write_text(NETWORK)
    common = [
        "--set",
        f"data.options.count={count}",
        "--set",
        "student.name=import:bare:net",
        "--set",
        "optim.rate=0.02",
    ]
    common += ["--threads", "1", "--device", "cpu", "--json"]
    asd(tmp_path, "teach", str(tiny), *common, "--runs", "one")
    shutil.copytree(tmp_path / "one" / "teachers", tmp_path / "two" / "teachers")
    single = json.loads(asd(tmp_path, "distill", str(tiny), *common, "--runs", "one"))
    double = json.loads(asd(tmp_path, "distill", str(tiny), *common, "--runs", "two", "--devices", "2"))
    assert single["hash"] == double["hash"]
    assert single["last"] == pytest.approx(double["last"], abs=0.021)  # every test image counts once
    for name in ("student", "method"):
        one, two = (load_file(tmp_path / runs / f"tiny/asd-s1/{name}.safetensors") for runs in ("one", "two"))
        for key, value in one.items():
            assert torch.allclose(value.float(), two[key].float(), atol=2e-4, rtol=1e-3), key
    assert torch.equal(one["loss.queue_index"], two["loss.queue_index"])


def test_uneven_shares_in_parts_do_not_wait_for_each_other(tmp_path: Path, tiny: Path) -> None:
    """265 images: the last batch, 9, is shared as 5 and 4, and both processes cut their share into four parts."""
    words = ["--set", "data.options.count=265", "--set", "optim.accumulate=4", "--set", "epochs=1", "--method", "kd"]
    made = json.loads(
        asd(tmp_path, "distill", str(tiny), *words, "--threads", "1", "--device", "cpu", "--devices", "2", "--json")
    )
    assert made["steps"] == 9
