"""All of it: `python -m torture [--kills 200] [--only kills,disk,…] [--quick]` → torture-results/*.json.

Every part has a process of its own, for a fork must be taken before anything starts a thread. Fuzzing, half of the work
and one process, goes on beside the others. What was found is kept in docs/results/torture with --keep, and fills the
table of docs/reliability.md (`python -m torture.page`).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from torture.page import PAGE, RESULTS, filled

QUICK: dict[str, list[str]] = {
    "kills": ["--kills", "5", "--only", "teach,kd,asd"],
    "signalling": ["--few"],
    "disk": ["--places", "4", "--sizes", "3"],
    "writers": ["--kills", "1", "--only", "report;export, again"],
    "sharing": ["--no-suites"],
    "ranks": [],
    "long": ["--steps", "400", "--lines", "100000"],
    "checks": ["--first"],
    "fuzz": ["--inputs", "1000"],
}
BESIDE = ("fuzz",)  # begun first, waited for last
FILES = {"fuzz": "hostile.json"}  # this one is told a file, the others a folder


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--kills", type=int, default=200)
    words.add_argument("--only", help=f"of {', '.join(QUICK)}, comma-separated")
    words.add_argument("--quick", action="store_true", help="a little of each")
    words.add_argument("--out", type=Path, default=Path("torture-results"))
    words.add_argument(
        "--keep", action="store_true", help="keep the results with the documentation, and fill its table"
    )
    asked = words.parse_args()
    parts = asked.only.split(",") if asked.only else list(QUICK)
    if unknown := set(parts) - set(QUICK):
        sys.exit(f"torture: no part {', '.join(sorted(unknown))}; known: {', '.join(QUICK)}")
    beside = {part: _begun(part, asked) for part in parts if part in BESIDE}
    ended = {part: _begun(part, asked).wait() for part in parts if part not in BESIDE}
    ended |= {part: process.wait() for part, process in beside.items()}
    failed = [part for part in parts if ended[part]]
    if asked.keep and not failed:
        RESULTS.mkdir(parents=True, exist_ok=True)
        for path in asked.out.glob("*.json"):
            shutil.copy(path, RESULTS / path.name)
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"torture: {len(parts) - len(failed)} of {len(parts)} parts held; failed: {', '.join(failed) or 'none'}")
    sys.exit(bool(failed))


def _begun(part: str, asked: argparse.Namespace) -> subprocess.Popen[bytes]:
    more = QUICK[part] if asked.quick else ["--kills", str(asked.kills)] if part == "kills" else []
    out = asked.out / FILES[part] if part in FILES else asked.out
    command = [sys.executable, "-m", f"torture.{part}", "--out", str(out), *more]
    print(f"torture: {part}", file=sys.stderr, flush=True)
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
