"""Write docs/results/shortcuts from the runs of suite `shortcuts` at ρ 0.9: `python benchmarks/shortcuts.py RUNS`.

KIND.md is `asd report RUNS/shortcuts-KIND-rho90 --columns …`. shortcuts.md gets the differences to kd of all kinds and
their mean, whose unit is the seed: a method's mean over the kinds is taken seed by seed. runs.tar.xz keeps the runs
without their weights; unpacked, they are reported as before, and `asd suite run shortcuts` goes on after them.
"""

import sys
import tarfile
from pathlib import Path
from statistics import fmean

from antishortcut.report.collect import BASELINE, collect
from antishortcut.report.stats import Paired, paired
from antishortcut.report.table import ResultTable, in_pairs, interval, leaves_zero_out, signed
from antishortcut.report.text import write_markdown

PAGES = Path(__file__).resolve().parent.parent / "docs" / "results" / "shortcuts"

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


def gains_tables(runs: Path, rho: str = "90") -> str:
    """Of every test set."""
    lines = [f"Difference to {BASELINE} (95 % interval; pairs of seeds). \\*: the interval leaves zero out."]
    for which, title in SETS.items():
        lines += ["", f"### {title}", "", table(gains(runs, rho, which))]
    return "\n".join(lines)


def default_table(runs: Path, ours: str = "contrast+hint") -> str:
    """The default beside kd on every kind, means over the seeds that both have."""
    lines = [f"| shortcut | seeds | in-domain: `{BASELINE}` | `{ours}` | conflict: `{BASELINE}` | `{ours}` |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for kind in KINDS:
        groups = collect(runs / f"shortcuts-{kind}-rho90").groups
        both = [in_pairs(groups[BASELINE], groups[ours], f"{which} accuracy") for which in ("iid", "conflict")]
        means = " | ".join(f"{fmean(values):.3f}" for pair in both for values in pair)
        lines.append(f"| {kind} | {len(both[0][0])} | {means} |")
    return "\n".join(lines)


def fill(page: Path, name: str, text: str) -> None:
    """Put a text between a page's marks."""
    before, mark, rest = page.read_text().partition(f"<!-- {name} -->\n")
    page.write_text(f"{before}{mark}{text}\n{rest[rest.index('<!-- end -->') :]}")


def write_pages(runs: Path, to: Path) -> None:
    """The tables of every kind below `to`, and what joins them between the marks of the pages above."""
    for kind in KINDS:
        folder = runs / f"shortcuts-{kind}-rho90"
        columns = f"iid accuracy,conflict accuracy,{FREE.get(kind, 'without')} accuracy"
        write_markdown(ResultTable(collect(folder)).select(columns), to / f"{kind}.md")
    fill(to.with_suffix(".md"), "gains", gains_tables(runs))
    fill(to.parent.with_suffix(".md"), "kinds", default_table(runs))


def keep(runs: Path, archive: Path) -> None:
    """Settings, results and scores, in an order and with times that do not depend on the machine."""
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in sorted(runs.glob("shortcuts-*/*/")):
            for file in sorted([path / "run.json", path / "result.json", *path.glob("scores/*.json")]):
                if (path / "result.json").is_file() and file.is_file():
                    info = tarfile.TarInfo(str(file.relative_to(runs)))
                    info.size = file.stat().st_size
                    with file.open("rb") as content:
                        tar.addfile(info, content)


def main(runs: Path, to: Path = PAGES) -> None:
    write_pages(runs, to)
    keep(runs, to / "runs.tar.xz")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
