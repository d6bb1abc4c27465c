"""Gains against kd on every kind of planted shortcut, and their mean over the kinds: suite `shortcuts` in two tables.

Prints Markdown: `python benchmarks/shortcuts.py RUNS [RHO]`, RUNS as in --runs, RHO 90, 80 or 95. The unit is the seed:
a method's mean over the kinds is taken seed by seed, then compared with kd. Rows that lack a kind have no mean.
"""

import sys
from pathlib import Path
from statistics import fmean

from antishortcut.report.collect import BASELINE, collect
from antishortcut.report.stats import Paired, paired
from antishortcut.report.table import interval, leaves_zero_out, signed

KINDS = ("cues", "patch", "frame", "tint", "texture", "watermark")
SETS = {"iid": "On images like training", "conflict": "Under conflict", "free": "Without the cue, or with any texture"}
FREE = {"cues": "uncorrelated"}  # of the other kinds: without

Gains = dict[str, dict[int, float]]  # kind → seed → accuracy gained on kd


def gains(runs: Path, rho: str, which: str) -> dict[str, Gains]:
    """Method → kind → seed → accuracy on a set, less that of kd of the same seed."""
    result: dict[str, Gains] = {}
    for kind in KINDS:
        folder = runs / f"shortcuts-{kind}-rho{rho}"
        if not folder.is_dir():
            continue
        name = FREE.get(kind, "without") if which == "free" else which
        values = {
            method: {s.run.seed: s.values[f"{name} accuracy"] for s in students if f"{name} accuracy" in s.values}
            for method, students in collect(folder).groups.items()
        }
        base = values.pop(BASELINE, {})
        for method, own in values.items():
            each = {seed: value - base[seed] for seed, value in own.items() if seed in base}
            if each:
                result.setdefault(method, {})[kind] = each
    return result


def over_kinds(each: Gains) -> Paired | None:
    """The mean over the kinds, over the seeds that every kind has."""
    seeds = set.intersection(*(set(own) for own in each.values())) if set(each) == set(KINDS) else set[int]()
    means = [fmean(own[seed] for own in each.values()) for seed in sorted(seeds)]
    return paired(means, [0.0] * len(means)) if means else None


def cell(value: Paired | None) -> str:
    if value is None:
        return "–"
    sure = "*" if leaves_zero_out(value) and value.difference else ""
    return f"{signed(value.difference)}{sure} ({interval(value)}; {value.count})"


def table(found: dict[str, Gains]) -> str:
    lines = [f"| method | {' | '.join(KINDS)} | mean |", f"| --- |{' ---: |' * (len(KINDS) + 1)}"]
    for method, each in sorted(found.items(), key=lambda item: -getattr(over_kinds(item[1]), "difference", -1.0)):
        own = [
            paired(list(values.values()), [0.0] * len(values)) if values else None for values in map(each.get, KINDS)
        ]
        lines.append(f"| {method} | {' | '.join(map(cell, own))} | {cell(over_kinds(each))} |")
    return "\n".join(lines)


def main(runs: Path, rho: str = "90") -> None:
    print(
        f"Difference to {BASELINE}, ρ = 0.{rho.rstrip('0')} (95 % interval; pairs). \\*: the interval leaves zero out."
    )
    for which, title in SETS.items():
        print(f"\n### {title}\n\n{table(gains(runs, rho, which))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
