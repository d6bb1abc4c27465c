"""The tests of single promises, the slow ones too, with counts: python -m torture.checks --out torture-results."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torture.results import keep_result

HERE = Path(__file__).resolve().parent.parent
ONE_LINE = "one line, soon, with little memory"


@dataclass(frozen=True)
class Promise:
    """What may happen, what is promised then, and the tests that hold it."""

    fault: str
    promise: str
    tests: tuple[str, ...]


PROMISES = (
    Promise("a pickle that runs code when read", "refused wherever weights or states are read; nothing runs", (
        "tests/hostile/test_pickles.py",)),
    Promise("an archive with paths outside, links, a bomb", "refused, or nothing of it is unpacked", (
        "tests/hostile/test_archives.py",)),
    Promise("images that are bombs, torn or none; loops and pipes in folders", ONE_LINE, (
        "tests/hostile/test_images.py",)),
    Promise("files of any content (hypothesis)", ONE_LINE, ("tests/hostile/test_readers.py",)),
    Promise("names that are markup, code or terminal commands", "shown as words", ("tests/hostile/test_pages.py",)),
    Promise("losses, features, weights that are no numbers; odd batches", "a defined result or one line, per method", (
        "tests/test_numbers.py", "tests/test_odd_batches.py")),
    Promise("two processes instead of one", "the same terms, gradients, queue and directions; whole runs to 1e-3", (
        "tests/test_parallel.py", "tests/test_methods_in_two.py", "tests/test_distributed.py")),
    Promise("a process that waits for a killed one; torch's threads late at its end", "ends soon, with its own code", (
        "tests/test_fabric.py",)),
    Promise("a lock that is held, stale, or of another machine", "names the holder; one that is gone keeps none out", (
        "tests/test_locks.py",)),
)  # fmt: skip


def counted(promise: Promise) -> dict[str, Any]:
    """How many tests held, failed, or could not be run here."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "tests.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", f"--junitxml={report}"]
        done = subprocess.run([*words, *promise.tests], cwd=HERE, check=False, stdout=sys.stderr)
        (suite,) = ElementTree.parse(report).getroot()
        number = {key: int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"] or int(done.returncode != 0)
    held = number["tests"] - failed - number["skipped"]
    about = {"fault": promise.fault, "promise": promise.promise, "tests": list(promise.tests)}
    return about | {"held": held, "failed": failed, "skipped": number["skipped"]}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--out", type=Path)
    words.add_argument("--first", action="store_true", help="the first promise only")
    asked = words.parse_args()
    told = {"promises": [counted(promise) for promise in PROMISES[: 1 if asked.first else None]]}
    if asked.out:
        keep_result(asked.out, "checks", told)
    print(json.dumps(told, indent=1))
    sys.exit(any(each["failed"] for each in told["promises"]))


if __name__ == "__main__":
    main()
