"""Commands at the same time: the same run is refused; shared teachers and caches end as one after the other.

python -m torture.sharing
"""

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from torture.forks import Command, part_main, progress, ready
from torture.kills import EXECUTION, SMALL, TINY, differences

SETTINGS = [word for text in SMALL for word in ("--set", text)]


def concurrently(title: str, commands: Sequence[list[str]], place: Path, chance: Random) -> dict[str, Any]:
    """All at once, and one after the other in a folder of their own: every file must be the same."""
    single, shared = place / f"{title}-alone", place / f"{title}-shared"
    for words in commands:
        log = place / "alone.log"
        assert Command([*words, "--runs", str(single)], log).wait() == 0, log.read_text()
    started = []
    for number, words in enumerate(commands):
        started.append(Command([*words, "--runs", str(shared)], place / f"{title}-{number}.log"))
        time.sleep(chance.uniform(0.0, 0.3))
    codes = [command.wait() for command in started]
    assert not any(codes), [command.log.read_text() for command in started]
    wrong = differences(single, shared)
    assert not wrong, f"{title}: {wrong} differ from one at a time"
    shutil.rmtree(single)
    shutil.rmtree(shared)
    return {"what": title, "commands": len(commands), "identical": True}


def twice(recipe: Path, place: Path) -> dict[str, Any]:
    """The same run started again while it goes on."""
    words = ["distill", str(recipe), "--method", "ce", *EXECUTION, "--set", "epochs=200"]
    words += ["--runs", str(place / "twice")]
    first = Command(words, place / "first.log")
    folder = place / "twice" / "tiny" / "ce-s1"
    while not (folder / "resume").exists():
        assert first.poll() is None, first.log.read_text()
        time.sleep(0.005)
    second = Command(words, place / "second.log")
    code, message = second.wait(), second.log.read_text()
    first.kill()
    assert code == 2, message
    assert "is in use by another process" in message, message
    assert "Traceback" not in message, message
    shutil.rmtree(place / "twice")
    return {"what": "the same run twice", "commands": 2, "refused": 1}


def torment(seed: int = 1, suites: bool = True) -> dict[str, Any]:
    ready()
    place, chance = Path(tempfile.mkdtemp(prefix="torture-")), Random(seed)
    recipe = place / "tiny.toml"
    recipe.write_text(TINY)
    results = [twice(recipe, place)]
    learn = ["distill", str(recipe), *EXECUTION, "--cache-teachers", "--method"]
    students = [[*learn, method] for method in ("kd", "asd", "crd")]
    results.append(concurrently("one teacher and cache, three students", students, place, chance))
    if suites:
        suite = ["suite", "run", "desk-cues", "--seeds", "1", *EXECUTION, *SETTINGS, "--only"]
        results.append(concurrently("two suites", [[*suite, method] for method in ("kd", "asd")], place, chance))
    progress(results)
    shutil.rmtree(place)
    return {"seed": seed, "identical": True, "cases": results}


if __name__ == "__main__":
    part_main(torment)
