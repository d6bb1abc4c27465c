"""What there is to compute with and what a run would use of it; what is amiss, and what to do about it.

No torch until it is asked for: a torch that cannot be imported is one of the findings.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, NamedTuple

from antishortcut import __version__, machine
from antishortcut.errors import UserError

FIRST = ("torch", "torchvision", "timm", "lightning-fabric")  # the versions people are asked for
IMPORTED = {"torch": "torch", "torchvision": "torchvision", "timm": "timm", "lightning-fabric": "lightning_fabric"}
WATCHED = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "ANTISHORTCUT_DATA", "ANTISHORTCUT_NATIVE")
KNOWN = {  # what lies below the data root when a set is there
    "cifar100": ("cifar-100-python/train",),
    "tiny-imagenet": ("tiny-imagenet-200/wnids.txt",),
    "imagenet100": tuple(f"{place}train/n01558993" for place in ("", "imagenet100/", "imagenet/", "ILSVRC2012/")),
    "ade20k": ("ADEChallengeData2016/images/training",),
    "camvid": ("camvid/train", "CamVid/train"),
}
SHARED, DISK = 2**28, 5 * 2**30  # bytes below which a word is said
GIB = 2**30
_NEED = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?\s*(?:>=\s*([0-9.]+))?[^;]*(?:;.*extra == ['\"](\w+)['\"])?")


def examine(data_root: Path | None = None) -> dict[str, Any]:
    """Everything, as JSON takes it: `warnings` say what to do, `broken` why asd cannot run."""
    needs = _needs()
    found: dict[str, Any] = {"versions": _versions(needs), "extras": _extras(needs), "broken": _broken(needs)}
    warnings: list[str] = []
    if not needs:
        warnings.append("antishortcut is not installed, so nobody knows what it needs: pip install .")
    found["devices"] = _devices()
    if not found["broken"]:
        found["devices"] |= _accelerators(warnings)
        found["default"] = _default(warnings)
    found["data"] = _data(data_root, warnings)
    found["room"] = _room(found["data"]["root"], warnings)
    found["environment"] = {name: os.environ[name] for name in sorted(_named(os.environ))}
    _wonder(found["environment"], warnings)
    return found | {"warnings": warnings}


def _named(environment: Iterable[str]) -> list[str]:
    return [name for name in environment if name in WATCHED or name.startswith("ANTISHORTCUT_")]


class Need(NamedTuple):
    name: str
    least: str  # version, empty for any
    extra: str  # that brings it, empty for what is always installed


def _needs() -> list[Need]:
    """Packages, the least version, and the extra that brings them; empty when run from a folder of sources."""
    try:
        lines = requires("antishortcut") or []
    except PackageNotFoundError:
        return []
    matches = [match for line in lines if (match := _NEED.match(line))]
    return [Need(match[1], match[2] or "", match[3] or "") for match in matches if match[1] != "antishortcut"]


def _versions(needs: list[Need]) -> dict[str, str | None]:
    core = [name for name, _, extra in needs if not extra]
    ours = {"python": platform.python_version(), "antishortcut": __version__}
    return ours | {name: _there(name) for name in dict.fromkeys([*FIRST, *core])}


def _there(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _extras(needs: list[Need]) -> dict[str, dict[str, Any]]:
    """What each extra brings that is there or not, and the line that brings the rest. Not what developers need."""
    found: dict[str, dict[str, Any]] = {}
    for name, _, extra in needs:
        if extra and extra not in ("dev", "docs"):
            line = f"pip install 'antishortcut[{extra}]'"
            entry = found.setdefault(extra, {"there": [], "missing": [], "install": line})
            entry["missing" if _there(name) is None else "there"].append(name)
    return found


def _broken(needs: list[Need]) -> list[str]:
    """Why asd cannot run: a package that is not there, too old, or will not be imported."""
    wrong = []
    for name, least, extra in needs:
        here = _there(name)
        if extra:
            continue
        if here is None:
            wrong.append(f"{name} is missing: pip install '{name}>={least}'")
        elif least and _numbers(here) < _numbers(least):
            wrong.append(f"{name} {here} is too old: pip install '{name}>={least}'")
    for name, module in IMPORTED.items():
        if any(line.startswith(f"{name} is missing") for line in wrong):
            continue
        try:
            importlib.import_module(module)
        except Exception as error:  # a library that does not fit its neighbours can raise anything
            reason = (str(error) or type(error).__name__).splitlines()[0]
            wrong.append(f"{name} cannot be imported ({reason}): install torch and {name} anew, versions that fit")
    return wrong


def _numbers(text: str) -> tuple[int, ...]:
    """2.6.0+cpu → (2, 6, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", text.partition("+")[0])[:3])


def _devices() -> dict[str, Any]:
    return {
        "cpu": machine.processor(),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "cores": machine.cores(),
        "cores_present": os.cpu_count(),
        "cores_allowed": _quota(),  # by the container, which no count of cores shows
        "memory_gib": _memory(),
    }


def _quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    try:
        most, every = file.read_text().split()
        return round(int(most) / int(every), 2)
    except (OSError, ValueError):  # none, or "max"
        return None


def _memory() -> float | None:
    """Of the machine, or what the container may have of it."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    with suppress(OSError, ValueError):  # none, or "max"
        whole = min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return round(whole / GIB, 1)


def _accelerators(warnings: list[str]) -> dict[str, Any]:
    import torch

    cards = []
    for number in range(torch.cuda.device_count()) if torch.cuda.is_available() else ():
        facts = torch.cuda.get_device_properties(number)
        cards.append({"name": facts.name, "memory_gib": round(facts.total_memory / GIB, 1)})
    apple = torch.backends.mps.is_available()
    if not cards and shutil.which("nvidia-smi"):
        built = "was built without CUDA" if torch.version.cuda is None else "cannot reach it"
        warnings.append(f"there is an NVIDIA driver, but torch {built}: install the build of pytorch.org/get-started")
    return {"cuda": cards, "mps": apple}


def _default(warnings: list[str]) -> dict[str, Any]:
    """What a run takes when no flag says otherwise."""
    import torch

    from antishortcut.fabric import resolved
    from antishortcut.frozen import fastest, has_compiler
    from antishortcut.run import Execution

    kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    device = torch.device(kind)
    try:
        chosen = resolved(Execution())
        precision, teachers = chosen.precision, fastest(device)
    except UserError as error:  # ANTISHORTCUT_NATIVE, misspelt
        warnings.append(str(error))
        precision, teachers, chosen = "32-true", "float32", Execution(workers=machine.workers())
    compiler = has_compiler(device)
    if not compiler:
        warnings.append("no C++ compiler, so teachers are never compiled on the CPU: install g++ if runs are long")
    if kind == "cpu":
        warnings.append("no GPU: fine for asd demo, cues and the desk suites; suites of the paper would take weeks")
    return {
        "device": kind,
        "student_precision": precision,
        "teacher_precision": teachers,
        "threads": torch.get_num_threads(),
        "workers": chosen.workers,
        "compiler": compiler,
    }


def _data(root: Path | None, warnings: list[str]) -> dict[str, Any]:
    place = root if root is not None else Path(os.environ.get("ANTISHORTCUT_DATA") or "data")
    there = {name: any(_below(place, mark) for mark in marks) for name, marks in KNOWN.items()}
    if root is not None and not place.is_dir():
        warnings.append(f"--data-root {place}: no such folder")
    elif os.environ.get("ANTISHORTCUT_DATA") and not place.is_dir():
        warnings.append(f"ANTISHORTCUT_DATA={place}: no such folder")
    return {"root": str(place), "exists": place.is_dir(), "sets": there}


def _below(root: Path, mark: str) -> bool:
    """Below the root, or the root itself when the person pointed right at the set."""
    home = root.parent if root.name == mark.partition("/")[0] else root
    return (root / mark).exists() or (home / mark).exists()


def _room(root: str, warnings: list[str]) -> dict[str, Any]:
    """Free space where runs and data go, and for what processes hand to each other."""
    free = {"here": _free(Path.cwd()), "data": _free(Path(root))}
    shared = machine.shared_bytes()
    for place, room in free.items():
        if room is not None and room < DISK:
            where = "here" if place == "here" else f"at {root}"
            warnings.append(f"{room / GIB:.1f} GiB of disk free {where}: make room")
    if shared is not None and shared < SHARED:
        warnings.append(
            f"{machine.SHARED} has {shared / 2**20:.0f} MiB free, so few workers can hand over batches: start the "
            "container with --shm-size=8g (or --ipc=host)"
        )
    return {
        "disk_gib": {place: None if room is None else round(room / GIB, 1) for place, room in free.items()},
        "shared_gib": None if shared is None else round(shared / GIB, 2),
    }


def _free(place: Path) -> int | None:
    """Of the disk a folder is on, or would be."""
    try:
        there = next((above for above in (place.resolve(), *place.resolve().parents) if above.exists()), None)
        return None if there is None else shutil.disk_usage(there).free
    except OSError:
        return None


def _wonder(environment: dict[str, str], warnings: list[str]) -> None:
    """Settings of the machine that make runs slow or are likely slips."""
    for name in environment:
        if name.startswith("ANTISHORTCUT_") and name not in WATCHED:
            warnings.append(f"{name} is set, but means nothing; known: ANTISHORTCUT_DATA, ANTISHORTCUT_NATIVE")
    quota, cores = _quota(), machine.cores()
    if quota is not None and quota + 0.5 < cores:
        warnings.append(
            f"{cores} cores are seen but the container may use {quota:g}: give --threads {max(round(quota), 1)} "
            f"--workers {max(round(quota), 1)}"
        )
    if sys.platform != "linux":
        warnings.append("images on disk are decoded without workers here; sets of up to 64 × 64 are in memory anyway")
