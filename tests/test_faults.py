"""Killed without warning, the same command ends where the uninterrupted run ends, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from antishortcut.folder import Folder

ENOUGH = ["--set", "epochs=12", "--threads", "1", "--save-every", "0"]  # 96 steps, a state after each


def command(tmp_path: Path, recipe: Path, runs: str, *more: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "antishortcut", "distill", str(recipe)]
    out = (tmp_path / f"{runs}.log").open("a")
    return subprocess.Popen([*words, *ENOUGH, "--runs", str(tmp_path / runs), *more], stderr=out, stdout=out, text=True)


def steps(folder: Folder) -> int:
    rows = folder.history()
    return int(rows[-1]["step"]) if rows else 0


def interrupt(process: subprocess.Popen[str], folder: Folder, at: int, number: int) -> int:
    """Send the signal a moment after step `at`. Returns the step the log had reached."""
    end = time.monotonic() + 120
    while process.poll() is None and steps(folder) < at:
        assert time.monotonic() < end, "the run does not get on"
        time.sleep(0.005)
    time.sleep(random.random() * 0.02)
    reached = steps(folder)
    os.kill(process.pid, number)
    process.wait(timeout=60)
    return reached


def same(one: Folder, two: Folder) -> None:
    for name in ("student", "method"):
        weights, others = load_file(getattr(one, name)), load_file(getattr(two, name))
        assert all(torch.equal(weights[key], others[key]) for key in weights | others)
    assert one.history() == two.history()


@pytest.mark.parametrize("seed", [0])
def test_sigkill_at_three_random_moments(tmp_path: Path, tiny: Path, seed: int) -> None:
    chance = random.Random(seed)
    whole = command(tmp_path, tiny, "whole")
    assert whole.wait(timeout=300) == 0, (tmp_path / "whole.log").read_text()
    folder = Folder(tmp_path / "parts" / "tiny" / "asd-s1")
    killed = []
    for low in (5, 35, 65):
        process = command(tmp_path, tiny, "parts")
        killed.append(interrupt(process, folder, low + chance.randrange(25), signal.SIGKILL))
        assert process.returncode == -signal.SIGKILL
        assert not folder.finished
    assert killed == sorted(killed)
    assert killed[0] > 0
    assert command(tmp_path, tiny, "parts").wait(timeout=300) == 0, (tmp_path / "parts.log").read_text()
    same(Folder(tmp_path / "whole" / "tiny" / "asd-s1"), folder)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_asked_to_stop_it_saves_and_says_so(tmp_path: Path, tiny: Path, number: int, code: int) -> None:
    folder = Folder(tmp_path / "runs" / "tiny" / "ce-s1")
    interrupt(process := command(tmp_path, tiny, "runs", "--method", "ce"), folder, 3, number)
    assert process.returncode == code
    told = (tmp_path / "runs.log").read_text()
    assert "the same command goes on" in told
    assert "Traceback" not in told
    assert list((folder.path / "resume").glob("*.pt"))
