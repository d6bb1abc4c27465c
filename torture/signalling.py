"""Signals that stop a command: the state is saved, the exit code names the signal, no process is left, it resumes.

python -m torture.signalling
"""

import shutil
import signal
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from torture.forks import STOPPING, Command, descendants, part_main, progress, ready
from torture.kills import Case, cases, differences, prepare, wait_until_ended, words_of
from torture.moments import MOMENTS

MISSES = 10  # of one signal and moment
AT = {
    "teach": ("start", "step", "snapshot"),
    "distill": ("step", "evaluate"),
    "evaluate": ("scores",),
    "suite run": ("step",),
}


def torment(few: bool = False, seed: int = 1) -> dict[str, Any]:
    """Every signal to distill, two to the others; few: one moment of each command but suites, and fewer signals."""
    ready()
    chance, place = Random(seed), Path(tempfile.mkdtemp(prefix="torture-"))
    results = []
    for case in cases(place, ["kd"], "clean,attack"):
        if few and case.command == "suite run":
            continue
        whole = place / f"{case.title}-whole"
        prepare(case, whole)
        assert Command(words_of(case, whole), place / "whole.log").wait() == 0, (place / "whole.log").read_text()
        last = 4 if few else len(STOPPING)
        signals = STOPPING[:last] if case.command == "distill" else STOPPING[: 1 if few else 2]
        for number, name in enumerate(signals):
            for moment in AT[case.command][:1] if few or number > 1 else AT[case.command]:
                results.append(stop_in_time(case, name, moment, place, chance))
                progress(results[-1])
    shutil.rmtree(place)
    return {"seed": seed, "signals": len(results), "identical": True, "cases": results}


def stop_in_time(case: Case, name: str, moment: str, place: Path, chance: Random) -> dict[str, Any]:
    """As `stop`; a command that ended before the signal came is tried again."""
    for missed in range(MISSES):
        result = stop(case, name, moment, place, chance)
        if result["code"] != 0:
            return result | {"missed": missed}
    raise AssertionError(f"{case.title}: over before {name} at {moment}, {MISSES} times")


def stop(case: Case, name: str, moment: str, place: Path, chance: Random) -> dict[str, Any]:
    """Send one signal at one moment, check how the command ends, and have it go on."""
    runs, log, number = place / "stopped", place / "stopped.log", int(getattr(signal, name))
    log.unlink(missing_ok=True)
    prepare(case, runs)
    folder = runs / case.folder.replace("*", "kd")
    sign, pause = MOMENTS[moment](folder, chance)
    command = Command(words_of(case, runs), log)
    while not sign() and command.poll() is None:
        time.sleep(0.001)
    time.sleep(pause if moment != "scores" else 0.0)
    family = list(descendants(command.pid))
    if command.poll() is None:
        command.send(number)
    began = time.monotonic()
    code = command.wait(120)
    seconds = time.monotonic() - began
    wait_until_ended(family)
    text = log.read_text()
    assert "Traceback" not in text, text
    assert code in (128 + number, 0), f"{case.title}: {name} at {moment} ends with {code}: {text}"
    assert Command(words_of(case, runs), log).wait() == 0, log.read_text()
    wrong = differences(place / f"{case.title}-whole", runs)
    assert not wrong, f"{case.title}: {name} at {moment}, and {wrong} other than undisturbed"
    about = {"command": case.command, "signal": name, "moment": moment, "code": code}
    return about | {"seconds": round(seconds, 1), "identical": True}


if __name__ == "__main__":
    part_main(torment)
