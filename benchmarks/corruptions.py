"""How fast corruptions are made: 32 × 32 images a second, and all of CIFAR-100-C on one process and on two.

Every chunk is made, written and counted as `asd corrupt` does; starting the processes counts. On a busy
machine look at cpu_seconds, which do not count waiting. Prints JSON.

    python benchmarks/corruptions.py [images]
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from antishortcut.data.corruptions import CHUNK, CORRUPTIONS, SEVERITIES, corrupt, grown_frost, write_copies
from antishortcut.data.synthetic import make_cues

SIDE, WHOLE = 32, 10_000


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    test = make_cues("iid", count, seed=0, size=SIDE)
    images = np.ascontiguousarray(test.image.permute(0, 2, 3, 1).numpy())
    begin = time.perf_counter()
    grown_frost(SIDE)
    message: dict[str, object] = {"images": count, "frost_grown_s": round(time.perf_counter() - begin, 2)}
    message["one_core"] = rates(images[: CHUNK[SIDE]])
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for processes in (1, 2):
            begin = time.perf_counter()
            write_copies(test, SIDE, Path(folder) / str(processes), processes=processes, quiet=True)
            seconds[processes] = (time.perf_counter() - begin) * WHOLE / count
            message[f"processes_{processes}"] = {
                "15_x_5_x_10000_s": round(seconds[processes], 1),
                "images_per_s": round(len(CORRUPTIONS) * len(SEVERITIES) * WHOLE / seconds[processes]),
            }
    message["ratio"] = round(seconds[1] / seconds[2], 2)
    print(json.dumps(message, indent=1))


def rates(images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> dict[str, dict[str, float]]:
    """Images a second by corruption, best of three chunks at each severity; nothing is written."""
    message = {}
    for name in CORRUPTIONS:
        wall, cpu = 0.0, 0.0
        for severity in SEVERITIES:
            times = [_timed(images, name, severity) for _ in range(3)]
            wall, cpu = wall + min(time[0] for time in times), cpu + min(time[1] for time in times)
        copies = len(SEVERITIES) * len(images)
        message[name] = {"images_per_s": round(copies / wall), "cpu_seconds": round(cpu * WHOLE / len(images), 2)}
    fifteen = sum(message[name]["cpu_seconds"] for name in CORRUPTIONS)
    return message | {"fifteen": {"cpu_seconds": round(fifteen, 1)}}


def _timed(images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], name: str, severity: int) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    corrupt(images, name, severity)
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main()
