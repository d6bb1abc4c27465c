"""Commands killed at random moments and started again must end where uninterrupted ones end, bit for bit.

    python -m torture.kills --kills 60 --seed 1

A case is a command (and a method). It is carried out once without interruption and once with SIGKILL, to the process
and all its children, at several moments; then every file of the two folders of runs is compared.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from torture.forks import Command, descendants, part_main, progress, ready
from torture.moments import MOMENTS

TINY = """
epochs = 2
[data]
name = "cues"
augment = "crop"
options = {count = 256, test_count = 100}
[teacher]
name = "cnn-4-16"
keep = [2, 15, 25, 50, 75, 100]
[student]
name = "cnn-4-8"  # as many channels as the teacher, for fsp
[optim]
batch = 32
[methods.asd]
warmup = 1.0
queue = 64
[methods.ab]
init = 1.0
[methods.fsp]
init = 1.0
[methods.ft]
init = 1.0
"""
EXECUTION = ["--threads", "1", "--device", "cpu", "--save-every", "0"]
SUITE = ["suite", "run", "desk-cues", "--only", "kd", "--only", "asd", "--seeds", "1", *EXECUTION]
SMALL = ("epochs=2", "optim.batch=16", "teacher.name=cnn-4-16", "student.name=cnn-2-16", "data.options.count=128",
         "data.options.test_count=60", "teacher.keep=[15]")  # fmt: skip
SCORED = "clean,hard,corruptions,mechanism"
ORPHANS = 90.0  # seconds in which what a killed process leaves behind must have ended

# moments of each kind of command, in the order of a run, so that few are missed
TEACH = ("begin", "snapshot", "cut", "step", "save", "rename", "snapshot", "evaluate", "start", "step", "end")
DISTILL = ("begin", "step", "save", "cut", "rename", "evaluate", "start", "save", "step", "end")
SUITES = ("snapshot", "save", "end", "scores", "later", "step")
EVALUATE = ("start", "scores", "later", "scores")


@dataclass
class Case:
    """A command, whose run folder lies at `folder` below --runs."""

    command: str
    method: str
    words: list[str]
    folder: str
    before: Path | None = None  # runs that are there when it starts
    moments: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"{self.command}-{self.method}".replace("+", "-")


def cases(place: Path, methods: list[str], on: str = SCORED) -> list[Case]:
    """Every command, and distill with every method; what is evaluated `on`."""
    recipe = str(place / "tiny.toml")
    (place / "tiny.toml").write_text(TINY)
    taught, scored = place / "taught", place / "distilled"
    _done(["teach", recipe, *EXECUTION, "--runs", str(taught)], place)
    teacher = next((taught / "teachers").iterdir()).name
    if "ckptkd" in methods:  # its choice among the states takes longer than everything else: made once
        _done(["distill", recipe, "--method", "ckptkd", *EXECUTION, "--runs", str(taught)], place)
        shutil.rmtree(taught / "tiny")
    shutil.copytree(taught, scored)
    _done(["distill", recipe, "--method", "kd", *EXECUTION, "--runs", str(scored)], place)
    settings = [word for text in SMALL for word in ("--set", text)]
    score = ["evaluate", "{runs}/tiny/kd-s1", "--on", on, "--threads", "1"]
    learn = ["distill", recipe, *EXECUTION, "--method"]
    return [
        Case("teach", "", ["teach", recipe, *EXECUTION], f"teachers/{teacher}"),
        *(Case("distill", name, [*learn, name], f"tiny/{name}-s1", taught) for name in methods),
        Case("suite run", "kd, asd", [*SUITE, *settings], "desk-cues/*-s1"),
        Case("evaluate", "", score, "tiny/kd-s1", scored),
    ]


def assign_moments(every: list[Case], kills: int, chance: Random) -> None:
    """Give every case its moments: a sixth to teaching, few to suites and evaluations, the rest to methods."""
    students = [case for case in every if case.command == "distill"]
    single = {"teach": (TEACH, 6), "suite run": (SUITES, 15), "evaluate": (EVALUATE, 15)}
    for case in every:
        if case.command in single:
            order, divisor = single[case.command]
            share = -(-kills // divisor) if students else kills
            case.moments = [order[number % len(order)] for number in range(share)]
    for number in range(kills - sum(len(case.moments) for case in every)):
        case = students[number % len(students)]
        turn = number // len(students) + students.index(case)  # another method begins at another moment
        case.moments.append(DISTILL[turn % len(DISTILL)])
    for case in students:
        case.moments.sort(key=DISTILL.index)
    chance.shuffle(every)


def try_case(case: Case, place: Path, chance: Random) -> dict[str, Any]:
    """One case: uninterrupted, then killed at its moments."""
    log, began = place / f"{case.title}.log", time.monotonic()
    whole, torn = place / f"{case.title}-whole", place / f"{case.title}-torn"
    prepare(case, whole)
    code = Command(words_of(case, whole), log).wait()
    assert code == 0, f"asd {' '.join(case.words)} ends with {code} uninterrupted; see {log}"
    result: dict[str, Any] = {"command": case.command, "method": case.method, "kills": 0, "missed": 0}
    struck, differ = Counter[str](), list[str]()
    waiting = list(case.moments)
    while waiting:
        prepare(case, torn)
        while waiting:
            if not strike(case, torn, waiting[0], log, chance):
                result["missed"] += 1
                if result["missed"] > 3 * len(case.moments) + 10:
                    raise RuntimeError(f"{case.title}: the moment {waiting[0]!r} never comes")
                if result["missed"] % 3 == 0:  # one that this run has passed for good: any other instead
                    waiting[0] = "step" if case.command in ("teach", "distill") else "start"
                break
            struck[waiting.pop(0)] += 1
            result["kills"] += 1
        code = Command(words_of(case, torn), log).wait()
        differ += [f"exit code {code}"] if code else differences(whole, torn)
    result |= {"moments": dict(sorted(struck.items())), "identical": not differ}
    if differ:
        result["differ"] = differ[:5]
    return result | {"seconds": round(time.monotonic() - began, 1)}


def strike(case: Case, runs: Path, moment: str, log: Path, chance: Random) -> bool:
    """Start the command and kill it at the moment; whether it was still there to be killed."""
    folder = _watched(case, runs, moment)
    sign, pause = MOMENTS[moment](folder, chance)
    command = Command(words_of(case, runs), log)
    while not sign():
        if command.poll() is not None:
            return False
        time.sleep(0.0002)
    end = time.monotonic() + pause
    while time.monotonic() < end and command.poll() is None:
        time.sleep(0.0005)
    if command.poll() is not None:
        return False
    family = list(descendants(command.pid))
    everyone = not family or chance.random() < 0.5  # or the first process alone, and the others have to notice
    command.kill(everyone)
    wait_until_ended(family)
    return command.code == -9


def _watched(case: Case, runs: Path, moment: str) -> Path:
    """The folder in which the moment will show: of a suite, its teacher's, or the first unfinished student's."""
    if moment == "snapshot" and case.command == "suite run":
        whole = runs.with_name(f"{case.title}-whole")  # its hash is known from the uninterrupted run
        return runs / "teachers" / next((whole / "teachers").iterdir()).name
    folders = [runs / case.folder.replace("*", name) for name in ("kd", "asd")] if "*" in case.folder else []
    return next(
        (each for each in folders if not (each / "result.json").exists()),
        folders[-1] if folders else runs / case.folder,
    )


def wait_until_ended(family: list[int]) -> None:
    """What a process has started ends soon after it."""
    end = time.monotonic() + ORPHANS
    while alive := [pid for pid in family if is_running(pid)]:
        if time.monotonic() > end:
            raise RuntimeError(f"processes {alive} outlive the one that started them by {ORPHANS:.0f} s")
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def words_of(case: Case, runs: Path) -> list[str]:
    words = [word.replace("{runs}", str(runs)) for word in case.words]
    return words if case.command == "evaluate" else [*words, "--runs", str(runs)]


def prepare(case: Case, runs: Path) -> None:
    """A folder of runs as it is before the command."""
    shutil.rmtree(runs, ignore_errors=True)
    if case.before is None:
        runs.mkdir()
    else:
        shutil.copytree(case.before, runs)


def _done(words: list[str], place: Path) -> None:
    code = Command(words, place / "before.log").wait()
    assert code == 0, (place / "before.log").read_text()


TIMES = ("seconds",)  # of result.json: how long it took is nobody's promise


def contents(runs: Path) -> dict[str, str]:
    """Every file of a folder of runs but TensorBoard's and locks, by its sha256; what was left half done too."""
    return dict(_contents(runs))


def _contents(runs: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(runs.rglob("*")):
        name = path.relative_to(runs)
        if not path.is_file() or "tensorboard" in name.parts or path.name == ".lock":
            continue
        data = path.read_bytes()
        if path.name == "result.json":
            with suppress(ValueError):  # a damaged one is compared as it is
                data = json.dumps({key: value for key, value in json.loads(data).items() if key not in TIMES}).encode()
        yield str(name), hashlib.sha256(data.replace(str(runs).encode(), b"RUNS")).hexdigest()


def differences(one: Path, two: Path) -> list[str]:
    """Files in which two folders of runs differ."""
    here, there = contents(one), contents(two)
    return [name for name in sorted(here.keys() | there.keys()) if here.get(name) != there.get(name)]


def fresh_as_forked(place: Path) -> bool:
    """Whether a process that imports torch itself ends in the same bits."""
    words = ["distill", str(place / "tiny.toml"), "--method", "kd", *EXECUTION]
    shutil.copytree(place / "taught", place / "fresh")
    fresh = [sys.executable, "-m", "antishortcut", *words, "--runs", str(place / "fresh")]
    subprocess.run(fresh, check=True, capture_output=True)
    same = not differences(place / "distilled", place / "fresh")
    shutil.rmtree(place / "fresh")
    return same


def torment(kills: int = 60, seed: int = 1, only: str = "", forked_only: bool = False) -> dict[str, Any]:
    """All commands and methods, or `only` some (comma-separated), in a folder that is removed if all is identical."""
    ready()
    from antishortcut.methods import METHODS

    chance, place, chosen = Random(seed), Path(tempfile.mkdtemp(prefix="torture-")), set(filter(None, only.split(",")))
    methods = [name for name in METHODS if not chosen or chosen & {name, "distill"}]
    every = [case for case in cases(place, methods) if not chosen or {case.command, case.method} & chosen]
    assign_moments(every, kills, chance)
    results = []
    for case in (case for case in every if case.moments):
        results.append(try_case(case, place, chance))
        progress(results[-1])
    identical = all(each["identical"] for each in results)
    fresh = None if forked_only else fresh_as_forked(place)
    if identical:
        shutil.rmtree(place)
    return {
        "seed": seed,
        "kills": sum(each["kills"] for each in results),
        "moments": dict(sum((Counter(each["moments"]) for each in results), Counter[str]())),
        "identical": identical and fresh is not False,
        "fresh_as_forked": fresh,
        "cases": sorted(results, key=lambda each: (each["command"], each["method"])),
    }


if __name__ == "__main__":
    part_main(torment)
