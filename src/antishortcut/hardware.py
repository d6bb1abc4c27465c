"""What the machine at hand has to offer. No torch."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

SHARED = Path("/dev/shm")  # where processes hand tensors over; a container may have 64 MB of it


def cores() -> int:
    """Those this process may use, not all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """What its maker calls it."""
    try:
        result = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        result = None
    return result[1] if result else platform.processor() or platform.machine()


def workers(processes: int = 1) -> int:
    """How many helpers each of so many processes has cores for; none where they would have to be spawned."""
    return max(cores() // processes, 1) if sys.platform == "linux" else 0


def shared_bytes() -> int | None:
    """Free memory for what processes hand to each other; None where there is no telling."""
    return shutil.disk_usage(SHARED).free if SHARED.is_dir() else None


def free_bytes(root: Path = Path("/")) -> int | None:
    """Memory that can still be taken, of the machine and of the container if that allows less; None: no telling."""
    sizes = (_available(root / "proc/meminfo"), _left(root / "sys/fs/cgroup"))
    return min((size for size in sizes if size is not None), default=None)


def _available(meminfo: Path) -> int | None:
    try:
        result = re.search(r"^MemAvailable:\s*(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(result[1]) * 1024 if result else None


def _left(group: Path) -> int | None:
    """What a control group may still take: its limit less its use, where files that can be dropped do not count."""
    try:
        limit, used = int((group / "memory.max").read_text()), int((group / "memory.current").read_text())
        cached = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):  # "max" is no limit
        return None
    return max(limit - used + (int(cached[1]) if cached else 0), 0)


def versions() -> dict[str, str]:
    """Of whatever can change a number."""
    names = ("antishortcut", "torch", "torchvision", "timm", "numpy", "lightning-fabric")
    return {"python": platform.python_version(), "platform": platform.platform()} | {n: version(n) for n in names}
