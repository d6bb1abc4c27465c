"""A run over several processes, one of which is killed: the others end soon and say why, and it goes on as before.

python -m torture.ranks --out torture-results
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torture.forks import descendants
from torture.kills import HOW, TINY, runs_still, unlike
from torture.moments import reached
from torture.results import keep_result

PROMPT = 60.0  # seconds for the others to end in
STEPS = ["--set", "epochs=8", "--set", "teacher.epochs=1"]


def torment(say: Callable[[str], object] = print) -> dict[str, Any]:
    place = Path(tempfile.mkdtemp(prefix="torture-"))
    (place / "tiny.toml").write_text(TINY)
    command = [sys.executable, "-m", "antishortcut", "distill", str(place / "tiny.toml"), *HOW, *STEPS]
    whole, torn = place / "whole", place / "torn"
    teach = [*command[:3], "teach", *command[4:], "--runs", str(whole)]
    subprocess.run(teach, check=True, capture_output=True)
    shutil.copytree(whole, torn)
    both = [*command, "--method", "asd", "--devices", "2"]
    subprocess.run([*both, "--runs", str(whole)], check=True, capture_output=True)
    told = [
        kill(rank, [*both, "--runs", str(torn)], torn / "tiny" / "asd-s1", place / f"{rank}.log") for rank in (1, 0)
    ]
    for each in told:
        say(json.dumps(each))
    subprocess.run([*both, "--runs", str(torn)], check=True, capture_output=True)
    wrong = unlike(whole, torn)
    assert not wrong, f"{wrong} other than undisturbed"
    shutil.rmtree(place)
    return {"kills": len(told), "identical": True, "bound_seconds": PROMPT, "cases": told}


def kill(rank: int, command: list[str], folder: Path, log: Path) -> dict[str, Any]:
    """SIGKILL to one of two processes in the middle of training."""
    before = reached(folder)
    with log.open("w") as out:
        first = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    others = list[int]()
    while not others or reached(folder) == before:
        assert first.poll() is None, log.read_text()
        time.sleep(0.01)
        others = [pid for pid in descendants(first.pid) if b"distill" in _words(pid)]
    victim = others[0] if rank else first.pid
    left = [pid for pid in (first.pid, *others) if pid != victim]
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    while any(runs_still(pid) for pid in left):
        first.poll()
        if time.monotonic() - began > PROMPT:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"without rank {rank} the others still run after {PROMPT:.0f} s")
        time.sleep(0.01)
    seconds = time.monotonic() - began
    code, said = first.wait(), log.read_text()
    assert "Traceback" not in said, said
    assert "another process of this run has ended" in said, said
    assert code == (2 if rank else -signal.SIGKILL), said
    return {"killed": rank, "code": code, "seconds": round(seconds, 1)}


def _words(pid: int) -> bytes:
    """Of a process; none of one that has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path)
    asked = words.parse_args()
    told = torment(lambda text: print(text, file=sys.stderr, flush=True))
    if asked.out:
        keep_result(asked.out, "ranks", told)
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
