"""Progress lines may be lost, results may not: stderr on a full disk ends no training."""

import io
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from antishortcut.progress import ProgressBar

FULL = Path("/dev/full")  # a disk that is always full
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


def test_a_line_tells_what_is_done_and_how_fast(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 25)).__next__
    monkeypatch.setattr("antishortcut.progress.time", SimpleNamespace(monotonic=clock))
    with ProgressBar("teacher cnn s0", 100, images=64) as bar:  # begins at 0 s
        bar.update(50, {"task": 0.5})  # at 25 s
    assert capsys.readouterr().err.strip() == "teacher cnn s0: step 50/100, 128 images/s, 25 s left, task 0.500"


def test_a_terminal_of_80_columns_shows_the_time_left_and_as_many_terms_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBar("contrast+hint s1", 1000, images=64) as bar:
        for step in (0, 500):
            bar.update(step, {"task": 1.8, "contrast": 0.123, "hint": 12.345})
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert re.search(r" 50% +[0-9:-]+ +[0-9,]+ images/s task 1\.800", text)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "hint" not in text.replace("contrast+hint", "")


@needs_full
def test_a_training_goes_on_where_its_progress_cannot_be_printed(tiny: Path, tmp_path: Path) -> None:
    words = ["distill", str(tiny), "--method", "ce", "--threads", "1", "--device", "cpu", "--save-every", "0"]
    command = [sys.executable, "-m", "antishortcut", *words, "--runs", str(tmp_path / "runs"), "--set", "epochs=1"]
    with FULL.open("w") as lost:
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=lost, text=True)
    assert "tiny/ce-s1" in done.stdout
    assert (tmp_path / "runs/tiny/ce-s1/result.json").exists()


@needs_full
def test_results_that_cannot_be_printed_are_an_error() -> None:
    with FULL.open("w") as lost:
        done = subprocess.run([sys.executable, "-m", "antishortcut", "--version"], check=False, stdout=lost)
    assert done.returncode != 0
