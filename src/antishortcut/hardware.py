"""Cores, shared memory and versions of this machine. No torch."""

import os
import platform
import re
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

SHARED = Path("/dev/shm")  # shared memory of processes; a container may have 64 MB of it


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The name of the CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    name = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text() if cpuinfo.exists() else "", re.MULTILINE)
    return name[1] if name else platform.processor() or platform.machine()


def workers(processes: int = 1) -> int:
    """Data-loading workers for each of so many processes: one per core; none where they would have to be spawned."""
    return max(cores() // processes, 1) if sys.platform == "linux" else 0


def shared_bytes() -> int | None:
    """Free shared memory; None if unknown."""
    return shutil.disk_usage(SHARED).free if SHARED.is_dir() else None


def versions() -> dict[str, str]:
    """Of everything that can change a result."""
    names = ("antishortcut", "torch", "torchvision", "timm", "numpy", "lightning-fabric")
    return {"python": platform.python_version(), "platform": platform.platform()} | {n: version(n) for n in names}
