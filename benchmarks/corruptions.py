"""How fast corruptions are made: 32 × 32 images a second, and all of CIFAR-100-C on one process and on two.

Every chunk is made, written and counted as `asd corrupt` does; starting the processes is timed by itself. On a busy
machine look at cpu_seconds, which do not count waiting. Prints JSON.

    python benchmarks/corruptions.py [images]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from antishortcut.data.copies import growing
from antishortcut.data.corruptions import ALL, CHUNK, CORRUPTIONS, SEVERITIES, corrupt, grown_frost
from antishortcut.data.corruptions.workers import Work, workers
from antishortcut.data.cues import make_cues

SIDE, WHOLE = 32, 10_000


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    images = np.ascontiguousarray(make_cues("iid", count, seed=0, size=SIDE).image.permute(0, 2, 3, 1).numpy())
    work = Work(images, SIDE, 0)
    begin = time.perf_counter()
    grown_frost(SIDE)
    told: dict[str, object] = {"images": count, "frost_grown_s": round(time.perf_counter() - begin, 2)}
    told["one_core"] = rates(images[: CHUNK[SIDE]])
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for processes in (1, 2):
            start, seconds[processes] = whole(work, Path(folder), processes)
            told[f"processes_{processes}"] = {
                "start_s": round(start, 1),
                "15_x_5_x_10000_s": round(seconds[processes], 1),
                "images_per_s": round(len(CORRUPTIONS) * len(SEVERITIES) * WHOLE / seconds[processes]),
            }
    told["ratio"] = round(seconds[1] / seconds[2], 2)
    print(json.dumps(told, indent=1))


def rates(images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> dict[str, dict[str, float]]:
    """Images a second by corruption, best of three chunks at each severity; nothing is written."""
    told = {}
    for name in ALL:
        wall, cpu = 0.0, 0.0
        for severity in SEVERITIES:
            times = [_timed(images, name, severity) for _ in range(3)]
            wall, cpu = wall + min(time[0] for time in times), cpu + min(time[1] for time in times)
        copies = len(SEVERITIES) * len(images)
        told[name] = {"images_per_s": round(copies / wall), "cpu_seconds": round(cpu * WHOLE / len(images), 2)}
    fifteen = sum(told[name]["cpu_seconds"] for name in CORRUPTIONS)
    return told | {"fifteen": {"cpu_seconds": round(fifteen, 1)}}


def _timed(images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], name: str, severity: int) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    corrupt(images, name, severity)
    return time.perf_counter() - wall, time.process_time() - cpu


def whole(work: Work, folder: Path, processes: int) -> tuple[float, float]:
    """Seconds until the processes have made their first chunks, and seconds for the fifteen of 10,000 images."""
    shape = (len(SEVERITIES) * len(work.images), SIDE, SIDE, 3)
    with workers(work, len(CORRUPTIONS), processes) as run:
        begin = time.perf_counter()
        with growing(folder / "first.npy", shape) as path:
            list(run([("frost", chunk, path) for chunk in range(work.chunks)]))
        started = time.perf_counter()
        for name in CORRUPTIONS:
            with growing(folder / f"{name}.npy", shape) as path:
                list(run([(name, chunk, path) for chunk in range(work.chunks)]))
        spent = time.perf_counter() - started
    return started - begin, spent * WHOLE / len(work.images)


if __name__ == "__main__":
    main()
