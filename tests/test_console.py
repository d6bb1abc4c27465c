"""What is told on the way may be lost, what it is about may not: a log on a full disk ends no training."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from antishortcut.console import Forgiving, forgive

FULL = Path("/dev/full")  # a disk that always is


def nobody() -> int:
    """A pipe whose reader is gone."""
    there, here = os.pipe()
    os.close(there)
    return here


def full() -> int:
    return os.open(FULL, os.O_WRONLY)


def ended(code: str, stderr: int) -> tuple[int, str]:
    """Exit code and output of a process with such a standard error."""
    words = [sys.executable, "-c", f"import sys\nfrom antishortcut.console import forgive\n{code}"]
    try:
        done = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=stderr, text=True)
    finally:
        os.close(stderr)
    return done.returncode, done.stdout


WRITES = """
from antishortcut.console import Watch
print("a" * 20_000, file=sys.stderr, flush=True)
sys.stderr.writelines(["a\\n"] * 2)
Watch("a run", 3).say("a" * 20_000)
print("a", sys.stderr.fileno(), file=sys.stderr)
print("done")
"""


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("stream", [full, nobody])
def test_standard_error_does_not_fail_and_nor_does_the_end(stream: Callable[[], int]) -> None:
    assert ended(f"forgive()\nforgive(){WRITES}", stream()) == (0, "done\n")
    assert ended(WRITES, stream())[0] != 0


def test_one_that_is_not_there_or_closed_meanwhile() -> None:
    for before in ("sys.stderr.close()", "sys.stderr = None"):
        assert ended(f"{before}\nforgive()\nprint('a', file=sys.stderr)\nprint('done')", nobody()) == (0, "done\n")


def test_it_is_put_around_once_and_hands_on_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    forgive()
    once = sys.stderr
    forgive()
    assert sys.stderr is once
    assert isinstance(once, Forgiving)
    assert once.write("a\n") == 2
    once.writelines(["b\n", "c\n"])
    assert (once.isatty(), once.getvalue()) == (False, "a\nb\nc\n")
    with pytest.raises(AttributeError):
        _ = once.nothing


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("stream", [full, nobody])
def test_a_training_ends_well_where_its_log_cannot_be_written(
    tiny: Path, tmp_path: Path, stream: Callable[[], int]
) -> None:
    words = ["distill", str(tiny), "--method", "ce", "--threads", "1", "--device", "cpu", "--save-every", "0"]
    command = [sys.executable, "-m", "antishortcut", *words, "--runs", str(tmp_path / "runs"), "--set", "epochs=1"]
    lost = stream()
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=lost, text=True)
    os.close(lost)
    assert done.returncode == 0
    assert "tiny/ce-s1" in done.stdout
    assert (tmp_path / "runs/tiny/ce-s1/result.json").exists()


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_results_that_cannot_be_told_are_an_error() -> None:
    lost = full()
    done = subprocess.run([sys.executable, "-m", "antishortcut", "--version"], check=False, stdout=lost)
    os.close(lost)
    assert done.returncode != 0
