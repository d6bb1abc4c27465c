"""Moments in the life of a run, recognised from outside by the files in its folder."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

Sign = Callable[[], bool]
Moment = Callable[[Path, Random], tuple[Sign, float]]  # run folder, chance → what to wait for, and seconds afterwards


def lines(folder: Path) -> list[dict[str, object]]:
    """The rows of the log so far, without a line that is being written."""
    try:
        text = (folder / "metrics.jsonl").read_text()
    except OSError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def reached(folder: Path) -> int:
    rows = lines(folder)
    return int(str(rows[-1]["step"])) if rows else 0


def unfinished(folder: Path, name: str = "") -> list[Path]:
    """Files of this folder that are being written, of those whose name begins so."""
    try:
        with os.scandir(folder) as entries:
            return [Path(f.path) for f in entries if f.name.endswith(".part") and f.name.startswith(f".{name}")]
    except OSError:
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def start(folder: Path, chance: Random) -> tuple[Sign, float]:
    """Any time in the first second: settings, images, networks."""
    return lambda: True, chance.uniform(0.0, 1.0)


def begin(folder: Path, chance: Random) -> tuple[Sign, float]:
    """The folder is there and locked, run.json is not or not yet read again."""
    if (folder / "run.json").exists():
        return lambda: True, chance.uniform(0.1, 0.6)
    return lambda: (folder / ".lock").exists() and not (folder / "run.json").exists(), chance.uniform(0.0, 0.05)


def cut(folder: Path, chance: Random) -> tuple[Sign, float]:
    """While the log is cut back to the resumed step, or right after."""
    before = _stamp(folder / "metrics.jsonl")
    return lambda: bool(unfinished(folder, "metrics.jsonl")) or _stamp(folder / "metrics.jsonl") != before, 0.0


def _stamp(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return (0, 0)
    return stat.st_ino, stat.st_mtime_ns


def step(folder: Path, chance: Random) -> tuple[Sign, float]:
    """Inside a step."""
    after = reached(folder) + chance.randrange(1, 5)
    return lambda: reached(folder) >= after, chance.uniform(0.0, 0.03)


def save(folder: Path, chance: Random) -> tuple[Sign, float]:
    """While a state is being written, the second of this start or a later one."""
    waiting = [chance.randrange(1, 4)]

    def sign() -> bool:
        if waiting[0] > 0 and len(list((folder / "resume").glob("0*.pt"))) > 0:
            waiting[0] -= 1
        return waiting[0] <= 0 and bool(unfinished(folder / "resume"))

    return sign, chance.choice((0.0, 0.0005, 0.002))


def rename(folder: Path, chance: Random) -> tuple[Sign, float]:
    """Between the writing of a state and its taking its name."""
    return lambda: any(_size(path) > 0 for path in unfinished(folder / "resume")), 0.0


def snapshot(folder: Path, chance: Random) -> tuple[Sign, float]:
    """While a state of the trajectory is saved, or entered in the manifest."""
    file = chance.choice(("", "manifest.json"))
    return lambda: bool(unfinished(folder, file) if file else unfinished(folder / "snapshots")), chance.choice(
        (0.0, 0.001)
    )


def evaluate(folder: Path, chance: Random) -> tuple[Sign, float]:
    """While the student is scored at the end of an epoch: the step is logged, its scores are not."""
    before = len(lines(folder))

    def sign() -> bool:
        rows = lines(folder)
        return len(rows) > before and "lr" in rows[-1] and float(str(rows[-1]["epoch"])).is_integer()

    return sign, chance.uniform(0.0, 0.01)


def end(folder: Path, chance: Random) -> tuple[Sign, float]:
    """All steps are done, result.json is not there."""
    names = ("student.safetensors", "method.safetensors", "result.json")
    final = folder / "student.safetensors"
    return lambda: any(unfinished(folder, name) for name in names) or final.exists(), 0.0


def scores(folder: Path, chance: Random) -> tuple[Sign, float]:
    """While a finished run is being scored."""
    many = len(list((folder / "scores").glob("*.json")))
    more = many + chance.randrange(0, 2)

    def sign() -> bool:
        if not (folder / "result.json").exists():
            return False
        return len(list((folder / "scores").glob("*.json"))) > more or bool(unfinished(folder / "scores"))

    return sign, chance.uniform(0.0, 0.5)


def later(folder: Path, chance: Random) -> tuple[Sign, float]:
    """Any time within the first eight seconds."""
    return lambda: True, chance.uniform(0.5, 8.0)


MOMENTS: dict[str, Moment] = {
    moment.__name__: moment
    for moment in (start, begin, cut, step, save, rename, snapshot, evaluate, end, scores, later)
}
