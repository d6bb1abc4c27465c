"""Fill the table of docs/reliability.md from docs/results/torture: `python -m torture.page`. A test compares them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, RESULTS = DOCS / "reliability.md", DOCS / "results" / "torture"
Found = dict[str, Any]
Row = tuple[str, str, str, str]  # fault, promise, what proves it, what was found

IDENTICAL = "ends in the same files, bit for bit"
ONE_LINE = "identical, or one line and exit code 2"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def kills(found: Found) -> list[Row]:
    methods = {case["method"] for case in found["cases"] if case["command"] == "distill"}
    commands = sorted({case["command"] for case in found["cases"]})
    count = f"{found['kills']} kills, {len(methods)} methods, {', '.join(commands)}: {_held(found['identical'])}"
    return [("SIGKILL at any moment", f"the same command again {IDENTICAL}", "`torture.kills`", count)]


def writers(found: Found) -> list[Row]:
    commands = sorted({case["command"].partition(",")[0] for case in found["cases"]})
    promise = f"whole files or those from before; the same command again {IDENTICAL}"
    count = f"{found['kills']} kills, {', '.join(commands)}: {_held(found['identical'])}"
    return [("SIGKILL where files are made of runs or images", promise, "`torture.writers`", count)]


def signals(found: Found) -> list[Row]:
    slowest = max(case["seconds"] for case in found["cases"])
    names = sorted({case["signal"] for case in found["cases"]})
    count = f"{found['signals']} signals, the slowest end {slowest:.0f} s: {_held(found['identical'])}"
    promise = f"saves, exits with 128 + its number, leaves no process over; goes on and {IDENTICAL}"
    return [(", ".join(names), promise, "`torture.signalling`", count)]


FAULTS = {
    "damaged": ("a bit flipped or an end cut off, any file of a run", f"{ONE_LINE}; never another result"),
    "full": ("a disk too small", "one line; with more room it goes on and is identical"),
    "full for a while": ("a disk full for a while", "says so, trains on, saves later; identical"),
    "read-only": ("a read-only disk", "one line; written again, identical"),
    "frozen": ("files that may not be changed any more, mid-run", "one line; freed again, identical"),
    "vanished": ("a disk unmounted mid-run", "one line, nothing written elsewhere; mounted again, identical"),
}


def disk(found: Found) -> list[Row]:
    return [
        (fault, promise, "`torture.disk`", _counts(found["faults"][name]))
        for name, (fault, promise) in FAULTS.items()
        if found["faults"].get(name, {}).get("tries")
    ]


def _counts(told: Found) -> str:
    return ", ".join(f"{told[key]} {key}" for key in ("tries", "identical", "refused") if key in told)


def locks(found: Found) -> list[Row]:
    promises = {"the same run twice": "the second is refused, and told process, machine and time"}
    return [
        (each["what"], promises.get(each["what"], "as one after the other, bit for bit"), "`torture.sharing`",
         f"{each['commands']} commands at once")
        for each in found["cases"]
    ]  # fmt: skip


def ranks(found: Found) -> list[Row]:
    slowest = max(case["seconds"] for case in found["cases"])
    promise = (
        f"all end within {found['bound_seconds']:.0f} s and say so, with 2 or 128 + the signal's number, before they "
        f"have met too; goes on and {IDENTICAL}"
    )
    count = (
        f"{found['kills']} kills, {found['signals']} signals, all ended within {slowest:.0f} s: "
        f"{_held(found['identical'])}"
    )
    return [("one of two processes of a run killed or asked to end", promise, "`torture.ranks`", count)]


def long(found: Found) -> list[Row]:
    life, logs = found["life"], found["logs"]
    bound = f"less than {life['bound_kb_a_step']:g} kB a step, no file left open"
    grown = (
        f"{life['kb_a_step']:+.2f} kB a step of {life['mb']} MB, {life['files_last'] - life['files_first']:+d} files"
    )
    read, cut = logs["report"], logs["cut"]
    cost = f"report {read['seconds']:.1f} s, {read['peak_mb']:.0f} MB; cut {cut['seconds']:.2f} s"
    return [
        (f"{life['steps']:,} steps", bound, "`torture.long`", grown),
        (f"a log of {logs['lines']:,} lines", "read and cut back in seconds, never held whole", "`torture.long`", cost),
    ]


def hostile(found: Found) -> list[Row]:
    readers = found.get("readers", {})
    inputs, failures = (sum(each[key] for each in readers.values()) for key in ("inputs", "failures"))
    count = f"{len(readers)} readers, {inputs:,} inputs, {failures} failures"
    return [("files of others, damaged or hostile", "one line and exit code 2, soon", "`torture.fuzz`", count)]


def checks(found: Found) -> list[Row]:
    return [
        (
            each["fault"],
            each["promise"],
            ", ".join(f"`{path.removeprefix('tests/')}`" for path in each["tests"]),
            ", ".join(f"{each[key]} {key}" for key in ("held", "failed", "skipped") if each[key]),
        )
        for each in found["promises"]
    ]


PARTS: dict[str, Callable[[Found], list[Row]]] = {
    "kills": kills,
    "writers": writers,
    "signals": signals,
    "disk": disk,
    "locks": locks,
    "ranks": ranks,
    "long": long,
    "hostile": hostile,
    "checks": checks,
}


def _held(good: bool) -> str:
    return "all identical" if good else "**not all identical**"


def faults() -> str:
    found = {name: _read(name) for name in PARTS if (RESULTS / f"{name}.json").exists()}
    rows = [row for name, told in found.items() for row in PARTS[name](told)]
    return table(("what happens", "what is promised", "proved by", "found"), rows)


def _read(name: str) -> Found:
    return dict(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))


def filled(text: str) -> str:
    """The page with its table made anew."""
    made = f"<!-- faults -->\n{faults()}\n<!-- end -->"
    return re.sub(r"<!-- faults -->\n.*?\n<!-- end -->", lambda _: made, text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
