"""Long lives: memory and open files over thousands of steps, and logs of a million lines.

python -m torture.long --steps 5000 --lines 1000000 --out torture-results
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torture.forks import Command, ready
from torture.kills import TINY
from torture.moments import last_step
from torture.results import keep_result

SLOPE = 2.0  # kB of memory a step may leave behind; a forgotten batch of 32 images would be 400
WARM = 0.3  # of the steps, after which memory has to be flat
Told = dict[str, Any]


def life(steps: int, method: str = "asd") -> Told:
    """Memory and open files of a real training, looked at from outside."""
    place = Path(tempfile.mkdtemp(prefix="torture-"))
    (place / "tiny.toml").write_text(TINY)
    words = ["distill", str(place / "tiny.toml"), "--method", method, "--threads", "1", "--device", "cpu"]
    words += ["--save-every", "1", "--set", "teacher.epochs=1", "--set", f"epochs={-(-steps // 8)}"]
    command = Command([*words, "--runs", str(place / "runs")], place / "log")
    folder = place / "runs" / "tiny" / f"{method}-s1"
    seen: list[tuple[int, float, int]] = []  # step, kB, open files
    while command.poll() is None:
        step = last_step(folder)
        try:
            kilobytes = _own(command.pid)
            files = len(os.listdir(f"/proc/{command.pid}/fd"))
        except (OSError, IndexError):
            break
        if step and (not seen or step > seen[-1][0]) and not (folder / "result.json").exists():
            seen.append((step, kilobytes, files))
        time.sleep(0.05)
    assert command.wait() == 0, (place / "log").read_text()
    shutil.rmtree(place)
    warm = [row for row in seen if row[0] >= WARM * steps]
    assert len(warm) > 10, f"seen only {len(warm)} times"
    few = max(len(warm) // 5, 1)
    found: Told = {
        "method": method,
        "steps": steps,
        "samples": len(warm),
        "kb_a_step": round(_slope([(step, kb) for step, kb, _ in warm]), 3),
        "bound_kb_a_step": SLOPE,
        "mb": round(warm[-1][1] / 1024),
        "files_first": min(row[2] for row in warm[:few]),  # the fewest: one that is being written is not left open
        "files_last": min(row[2] for row in warm[-few:]),
    }
    return found | {"flat": found["kb_a_step"] < SLOPE and found["files_last"] <= found["files_first"]}


def _own(pid: int) -> float:
    """kB of memory that are a process's own, also where they were moved to the disk; libraries come and go."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "VmSwap:"))))


def _slope(points: list[tuple[int, float]]) -> float:
    """Least squares."""
    many = len(points)
    x, y = sum(p[0] for p in points) / many, sum(p[1] for p in points) / many
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, b in points)


def logs(lines: int) -> Told:
    """A log of so many lines: cut back by a tenth of a per cent and by half, and read by the report."""
    from antishortcut.folder import Folder
    from antishortcut.report.reading import history

    place = Path(tempfile.mkdtemp(prefix="torture-"))
    folder = Folder(place)
    row = '{{"step": {0}, "epoch": 1.5, "rate": 0.05, "loss": 1.25, "terms": {{"task": 1.0, "kd": 0.25}}}}\n'
    with folder.metrics.open("w") as file:
        for start in range(0, lines, 10_000):
            file.writelines(row.format(step) for step in range(start + 1, min(start + 10_000, lines) + 1))
    told: Told = {"lines": lines, "mb": round(folder.metrics.stat().st_size / 2**20)}
    told["report"] = _cost(lambda: history(folder.metrics))
    told["cut"] = _cost(lambda: folder.cut(lines // 2))
    last = folder.metrics.read_bytes().rsplit(b"\n", 2)[-2]
    assert json.loads(last)["step"] == lines // 2
    shutil.rmtree(place)
    return told


def _cost(work: Callable[[], object]) -> Told:
    """Seconds, and once more the largest amount of memory, for watching that takes time."""
    began = time.monotonic()
    work()
    seconds = time.monotonic() - began
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"seconds": round(seconds, 3), "peak_mb": round(peak / 2**20, 1)}


def torment(steps: int = 5000, lines: int = 1_000_000, say: Callable[[str], object] = print) -> Told:
    ready()
    told: Told = {"life": life(steps)}
    say(json.dumps(told["life"]))
    told["logs"] = logs(lines)
    say(json.dumps(told["logs"]))
    return told


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--steps", type=int, default=5000)
    words.add_argument("--lines", type=int, default=1_000_000)
    words.add_argument("--out", type=Path)
    asked = words.parse_args()
    told = torment(asked.steps, asked.lines, lambda text: print(text, file=sys.stderr, flush=True))
    if asked.out:
        keep_result(asked.out, "long", told)
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
