"""Stop signals before a training can stop cleanly."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# as `asd …`, with a signal in the middle of an import; an exception there is swallowed, as some packages do
SCRIPT = """
import os, sys

class Signals:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), {number})
                for _ in range(1000):
                    pass
            except BaseException:
                pass

sys.meta_path.insert(0, Signals())
from antishortcut.__main__ import main
sys.argv = ["asd", "distill", "cues", "--runs", {runs!r}]
main()
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("module", ["typer", "numpy", "torch", "torchvision"])
def test_a_signal_during_an_import_ends_the_command_at_once(tmp_path: Path, module: str, name: str) -> None:
    number = int(getattr(signal, name))
    code = SCRIPT.format(module=module, number=number, runs=str(tmp_path / "runs"))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (128 + number, "")
    assert not (tmp_path / "runs").exists()


def test_a_signal_outside_of_training_is_one_line() -> None:
    code = f"""
import os, sys
from antishortcut.__main__ import main
from antishortcut.data import inspect
inspect.open_finding = lambda *args, **options: os.kill(os.getpid(), {int(signal.SIGTERM)})
sys.argv = ["asd", "check", "cues"]
main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 128 + signal.SIGTERM
    assert ended.stderr == "asd: stopped by SIGTERM; finished work is saved\n"
