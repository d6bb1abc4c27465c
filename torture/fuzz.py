"""Every reader of somebody's files on many wrong ones; prints {reader: {inputs, failures}} as JSON.

    python -m torture.fuzz --inputs 100000 --out torture-results/hostile.json [NAME...]

Inputs are guided by coverage where atheris is installed (pip install -e '.[torture]'), else drawn by seed alone.
Each reader has a process of its own, one after another. A reader fails when it raises anything but a UserError of one
printable line, takes more than a second, or more memory than it should.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NoReturn

from torture.results import keep

ROOM = 6 * 2**30  # bytes of address space beside what the process has: a bomb ends in a MemoryError, not in the machine


PLACE = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # files are written a million times


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("names", nargs="*", help="readers [default: all]")
    words.add_argument("--inputs", type=int, default=100_000)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--out", type=Path, help="also written here, after every reader")
    words.add_argument("--plain", action="store_true", help="without atheris")
    asked = words.parse_args()
    guided = not asked.plain and importlib.util.find_spec("atheris") is not None
    if guided:
        import atheris

        with atheris.instrument_imports(include=["antishortcut"]):
            from tests.hostile import targets
    else:
        from tests.hostile import targets
    from tests.hostile.test_readers import NAMES

    warnings.simplefilter("ignore")
    told: dict[str, Any] = {}
    for name in asked.names or NAMES:
        told[name] = apart(targets, name, asked.inputs, asked.seed, guided)
        if asked.out:
            _note(asked.out, name, told[name])
    print(json.dumps(told, indent=1))
    sys.exit(any(each["failures"] for each in told.values()))


def _note(out: Path, name: str, found: dict[str, Any]) -> None:
    before = json.loads(out.read_text()).get("readers", {}) if out.exists() else {}
    keep(out, {"readers": {**before, name: found}})


def apart(targets: Any, name: str, inputs: int, seed: int, guided: bool) -> dict[str, Any]:
    """What a reader did, in a process of its own; one that died is a failure too."""
    with tempfile.TemporaryDirectory(dir=PLACE) as folder:
        result = Path(folder) / "told.json"
        child = os.fork()
        if child == 0:
            one(targets, Path(folder), name, inputs, seed, guided)
        _, status = os.waitpid(child, 0)
        if result.exists():
            return dict(json.loads(result.read_text()))
    return {"inputs": 0, "failures": 1, "first": [f"the process ended with {os.waitstatus_to_exitcode(status)}"]}


def one(targets: Any, folder: Path, name: str, inputs: int, seed: int, guided: bool) -> NoReturn:
    from tests.hostile.mutation import mutated

    work = folder / "work"
    work.mkdir()
    target, bench, began = targets.targets(work)[name], targets.Bench(), time.monotonic()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))

    def told() -> None:
        found = {
            "inputs": bench.inputs,
            "failures": len(bench.failures),
            "first": list(bench.failures.values())[:20],
            "slowest_ms": round(bench.slowest * 1000, 1),
            "seconds": round(time.monotonic() - began, 1),
            "guided": guided,
        }
        (folder / "told.json").write_text(json.dumps(found))

    def attempt(data: bytes) -> None:
        bench.attempt(target, data)
        if bench.inputs >= inputs:
            told()
            os._exit(0)  # the fuzzer's own end would run nothing of Python's

    for data in target.seeds:
        attempt(data)
    if not guided:
        for number in range(inputs):
            attempt(mutated(target.seeds[number % len(target.seeds)], seed * 10**9 + number, 1 + number % 4))
        os._exit(1)  # not reached: the last input ends it
    import atheris

    corpus = folder / "corpus"
    corpus.mkdir()
    for number, data in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(data)

    def structured(data: bytes, most: int, chance: int) -> bytes:
        """Half of the time as files of these kinds go wrong, else byte by byte."""
        if chance % 2:
            return mutated(data or target.seeds[0], chance, 1 + chance % 3)[:most]
        return bytes(atheris.Mutate(data, most))

    most = max(8_192, 2 * max(map(len, target.seeds)))  # bytes; longer ones are the mutations' own
    flags = [f"-seed={seed}", f"-max_len={most}", "-rss_limit_mb=0", "-timeout=60", "-verbosity=0", "-runs=-1"]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], attempt, custom_mutator=structured)
    atheris.Fuzz()
    os._exit(1)


if __name__ == "__main__":
    main()
