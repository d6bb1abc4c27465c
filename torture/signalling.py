"""Signals that ask for an end: the state is saved, the exit code says which, nobody is left over, and it goes on.

python -m torture.signalling
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from torture.forks import ASKING, Command, descendants, ready
from torture.kills import Case, cases, gone, prepared, unlike, words_of
from torture.moments import MOMENTS

MISSES = 10  # of one signal and moment
AT = {"teach": ("start", "step", "keep"), "distill": ("step", "judge"), "evaluate": ("scores",), "suite run": ("step",)}


def torment(few: bool = False, seed: int = 1, say: Callable[[str], object] = print) -> dict[str, Any]:
    """Every command, signal and moment; a few: one moment of each command but suites, SIGTERM and three more once."""
    ready()
    chance, place = Random(seed), Path(tempfile.mkdtemp(prefix="torture-"))
    result = cases(place, ["kd"], "clean,attack") if few else cases(place, ["kd"])
    message = []
    for case in result:
        if few and case.command == "suite run":
            continue
        whole = place / f"{case.title}-whole"
        prepared(case, whole)
        assert Command(words_of(case, whole), place / "whole.log").wait() == 0, (place / "whole.log").read_text()
        sent = ASKING if not few else ASKING[:4] if case.command == "distill" else ASKING[:1]
        for number, name in enumerate(sent):
            for moment in AT[case.command][:1] if few or number > 1 else AT[case.command]:
                message.append(heard(case, name, moment, place, chance))
                say(json.dumps(message[-1]))
        shutil.rmtree(whole)
    shutil.rmtree(place)
    return {
        "seed": seed,
        "signals": len(message),
        "identical": all(each["identical"] for each in message),
        "cases": message,
    }


def heard(case: Case, name: str, moment: str, place: Path, chance: Random) -> dict[str, Any]:
    """As `ask`; a command that was over before the signal came is asked again, for on a quick machine many are."""
    for missed in range(MISSES):
        message = ask(case, name, moment, place, chance)
        if message["code"] != 0:
            return message | {"missed": missed}
    raise AssertionError(f"{case.title}: over before {name} at {moment}, {MISSES} times")


def ask(case: Case, name: str, moment: str, place: Path, chance: Random) -> dict[str, Any]:
    """Send one signal at one moment, check how the command ends, and have it go on."""
    runs, log, number = place / "asked", place / "asked.log", int(getattr(signal, name))
    log.unlink(missing_ok=True)
    prepared(case, runs)
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
    gone(family)
    text = log.read_text()
    assert "Traceback" not in text, text
    assert code in (128 + number, 0), f"{case.title}: {name} at {moment} ends with {code}: {text}"
    assert Command(words_of(case, runs), log).wait() == 0, log.read_text()
    wrong = unlike(place / f"{case.title}-whole", runs)
    assert not wrong, f"{case.title}: {name} at {moment}, and {wrong} other than undisturbed"
    about = {"command": case.command, "signal": name, "moment": moment, "code": code}
    return about | {"seconds": round(seconds, 1), "identical": not wrong}


def main() -> None:

    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--few", action="store_true")
    words.add_argument("--seed", type=int, default=1)
    requested = words.parse_args()
    message = torment(requested.few, requested.seed, lambda text: print(text, file=sys.stderr, flush=True))
    print(json.dumps(message, indent=1))


if __name__ == "__main__":
    main()
