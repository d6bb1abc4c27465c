"""What the machine at hand has to offer. No torch."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from pathlib import Path

SHARED = Path("/dev/shm")  # where processes hand tensors over; a container may have 64 MB of it


def cores() -> int:
    """Those this process may use, not all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """What its maker calls it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def workers(processes: int = 1) -> int:
    """How many helpers each of so many processes has cores for; none where they would have to be spawned."""
    return max(cores() // processes, 1) if sys.platform == "linux" else 0


def shared_bytes() -> int | None:
    """Free memory for what processes hand to each other; None where there is no telling."""
    return shutil.disk_usage(SHARED).free if SHARED.is_dir() else None
