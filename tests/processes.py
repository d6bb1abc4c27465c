"""Real processes: two joined by gloo, and the command."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

WORLD = 2
LONGEST = 600.0  # seconds: busy cores are no error, hanging is


def in_two(work: Callable[[int, Path], None], folder: Path) -> None:
    """Call `work` with its rank and a folder in each of two processes, and wait for both."""
    running = spawn(_joined, args=(work, folder), nprocs=WORLD, join=False)  # type: ignore[no-untyped-call]
    deadline = time.monotonic() + LONGEST
    try:
        while not running.join(timeout=1):
            assert time.monotonic() < deadline, "two processes did not finish within ten minutes"
    finally:
        for process in running.processes:
            with contextlib.suppress(ValueError):
                process.kill()


def _joined(rank: int, work: Callable[[int, Path], None], folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=120))
    work(rank, folder)
    dist.destroy_process_group()
    os._exit(0)  # DDP keeps gloo's threads, and torch may abort when Python is taken apart under them (issue 190489)


def asd(here: Path, *words: str) -> str:
    """Run the command in a folder, on the CPU with one thread; what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "antishortcut", *words, "--device", "cpu", "--threads", "1", "--json"],
        cwd=here, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
