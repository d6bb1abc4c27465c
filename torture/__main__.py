"""All parts: `python -m torture [--only kills,disk,…] [--quick]` → torture-results/<part>.json.

Every part is a process of its own, because a fork must be taken before anything starts a thread.
"""

import argparse
import subprocess
import sys
from pathlib import Path

QUICK: dict[str, list[str]] = {
    "kills": ["--kills", "5", "--only", "teach,kd,asd"],
    "signalling": ["--few"],
    "disk": ["--places", "4", "--sizes", "3"],
    "writers": ["--kills", "1", "--only", "report;export, again"],
    "sharing": ["--no-suites"],
    "ranks": [],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"of {', '.join(QUICK)}, comma-separated")
    parser.add_argument("--quick", action="store_true", help="a little of each")
    parser.add_argument("--out", type=Path, default=Path("torture-results"))
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(QUICK)
    if unknown := set(names) - set(QUICK):
        sys.exit(f"torture: no part {', '.join(sorted(unknown))}; known: {', '.join(QUICK)}")
    options.out.mkdir(parents=True, exist_ok=True)
    failed = [name for name in names if not _holds(name, QUICK[name] if options.quick else [], options.out)]
    print(f"torture: {len(names) - len(failed)} of {len(names)} parts held; failed: {', '.join(failed) or 'none'}")
    sys.exit(bool(failed))


def _holds(name: str, more: list[str], out: Path) -> bool:
    print(f"torture: {name}", file=sys.stderr, flush=True)
    with (out / f"{name}.json").open("w") as result:
        return (
            subprocess.run([sys.executable, "-m", f"torture.{name}", *more], stdout=result, check=False).returncode == 0
        )


if __name__ == "__main__":
    main()
