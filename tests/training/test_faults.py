"""Killed or signalled commands end where the uninterrupted one does: a little of `torture` (see test_torture.py)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def tortured(part: str, *words: str, minutes: float = 10) -> dict[str, Any]:
    """The result of one part of the torture, which fails where a promise is broken."""
    command = [sys.executable, "-m", f"torture.{part}", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60 * minutes, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout))


def test_killed_commands_end_in_the_same_bits() -> None:
    result = tortured("kills", "--kills", "5", "--only", "teach,kd,asd", "--forked-only")
    assert result["kills"] == 5
    assert result["identical"]
    assert {case["method"] for case in result["cases"]} == {"", "kd", "asd"}


def test_signals_save_and_set_the_exit_code() -> None:
    result = tortured("signalling", "--few")
    codes = {(case["command"], case["signal"]): case["code"] for case in result["cases"]}
    for number, code in (("SIGTERM", 143), ("SIGINT", 130), ("SIGUSR1", 138), ("SIGHUP", 129)):
        assert codes["distill", number] == code
    assert codes["teach", "SIGTERM"] == codes["evaluate", "SIGTERM"] == 143
