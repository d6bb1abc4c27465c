"""A run over several processes, one killed or some asked to end: all end soon, and it goes on as before.

Both before they have met, while one waits for the other in torch's own code, and in the middle of training.

python -m torture.ranks
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torture.forks import descendants, part_main, progress
from torture.kills import EXECUTION, TINY, differences, is_running
from torture.moments import reached

PROMPT = 60.0  # seconds for the others to end in
NUMBERS = {"kills": "SIGKILL", "signals": "SIGTERM"}
APART = 0.5  # seconds after the second has begun: it still reads its program
STEPS = ["--set", "epochs=8", "--set", "teacher.epochs=1"]
CASES = (
    ("SIGKILL", (1,), "apart"),
    ("SIGKILL", (0,), "apart"),
    ("SIGTERM", (0, 1), "apart"),
    ("SIGKILL", (1,), "training"),
    ("SIGTERM", (1,), "training"),
    ("SIGTERM", (0, 1), "training"),
    ("SIGKILL", (0,), "training"),
)


def torment() -> dict[str, Any]:
    place = Path(tempfile.mkdtemp(prefix="torture-"))
    (place / "tiny.toml").write_text(TINY)
    command = [sys.executable, "-m", "antishortcut", "distill", str(place / "tiny.toml"), *EXECUTION, *STEPS]
    whole, torn = place / "whole", place / "torn"
    teach = [*command[:3], "teach", *command[4:], "--runs", str(whole)]
    command += ["--method", "asd"]
    subprocess.run(teach, check=True, capture_output=True)
    shutil.copytree(whole, torn)
    both = [*command, "--method", "asd", "--devices", "2"]
    subprocess.run([*both, "--runs", str(whole)], check=True, capture_output=True)
    results = [
        send(*case, [*both, "--runs", str(torn)], torn / "tiny" / "asd-s1", place / f"{number}.log")
        for number, case in enumerate(CASES)
    ]
    progress(results)
    subprocess.run([*both, "--runs", str(torn)], check=True, capture_output=True)
    wrong = differences(whole, torn)
    assert not wrong, f"{wrong} other than undisturbed"
    shutil.rmtree(place)
    counts = {key: sum(each["signal"] == name for each in results) for key, name in NUMBERS.items()}
    return {**counts, "identical": True, "bound_seconds": PROMPT, "cases": results}


def send(name: str, to: Sequence[int], moment: str, command: list[str], folder: Path, log: Path) -> dict[str, Any]:
    """A signal to some of two processes, as soon as there are two or in the middle of training."""
    before, number = reached(folder), int(getattr(signal, name))
    with log.open("w") as out:
        first = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    rest = list[int]()
    while not rest or (moment == "training" and reached(folder) == before):
        assert first.poll() is None, log.read_text()
        time.sleep(0.01)
        rest = [pid for pid in descendants(first.pid) if _is_second(pid)]
    time.sleep(APART if moment == "apart" else 0.0)
    every = (first.pid, *rest)
    for rank in to:
        os.kill(every[rank], number)
    began = time.monotonic()
    while any(is_running(pid) for pid in every):
        first.poll()
        if time.monotonic() - began > PROMPT:
            for pid in every:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"{name} to {to} {moment}: some still run after {PROMPT:.0f} s: {log.read_text()}")
        time.sleep(0.01)
    seconds = time.monotonic() - began
    code, message = first.wait(), log.read_text()
    assert "Traceback" not in message, message
    text = "stopped" if name == "SIGTERM" else "another process of this run has ended"
    assert text in message, (name, to, moment, message)
    assert code == (128 + number if name == "SIGTERM" else -number if 0 in to else 2), (name, to, moment, code, message)
    return {"signal": name, "to": list(to), "moment": moment, "code": code, "seconds": round(seconds, 1)}


def _is_second(pid: int) -> bool:
    """Whether it is the second of two, by its environment; the first one starts other programs too."""
    try:
        return b"LOCAL_RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended meanwhile
        return False


if __name__ == "__main__":
    part_main(torment)
