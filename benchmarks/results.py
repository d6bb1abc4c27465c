"""Write the pages of docs/results whose runs are kept beside them: `python benchmarks/results.py RUNS`.

Below docs/results, GROUP/BED.md is `asd report RUNS/SUITE --columns …`. GROUP.md gets the differences to kd on all beds
and their mean, whose unit is the seed: a method's mean over the beds is taken seed by seed. runs.tar.xz keeps the runs
without their weights; unpacked, they are reported as before, and `asd suite run` goes on after them.
"""

import sys
import tarfile
import tempfile
from pathlib import Path
from statistics import fmean

from antishortcut.report.collect import BASELINE, collect
from antishortcut.report.stats import Paired, paired
from antishortcut.report.table import ResultTable, in_pairs, interval, leaves_zero_out, signed
from antishortcut.report.text import write_markdown

PAGES = Path(__file__).resolve().parent.parent / "docs" / "results"

KINDS = ("cues", "patch", "frame", "tint", "texture", "watermark")
IID, CONFLICT, RANDOM, WITHOUT = (f"{name} accuracy" for name in ("iid", "conflict", "uncorrelated", "without"))
SHORTCUT_SETS = {
    "On images like training": IID,
    "Under conflict": CONFLICT,
    "Without the cue, or with any texture": WITHOUT,
}
NATURAL_SETS = {"On test images": "test accuracy", "On those that T_early gets wrong": "hard hard_accuracy"}
NATURAL = ("cifar100", "cifar100-cross", "cifar100-coarse", "tiny-imagenet")

Columns = dict[str, str]  # title → column of a bed
Beds = dict[str, tuple[str, Columns]]  # bed → its suite, and what is shown of it
GROUPS: dict[str, Beds] = {
    "shortcuts": {
        kind: (
            f"shortcuts-{kind}-rho90",
            {
                title: RANDOM if kind == "cues" and column == WITHOUT else column
                for title, column in SHORTCUT_SETS.items()
            },
        )
        for kind in KINDS
    },
    "natural": {bed: (f"natural-{bed}", NATURAL_SETS) for bed in NATURAL},
}
ALONE = {"ablation": "shortcuts", "mixing": "mixing"}  # suite with one bed, `cues` → the page that has its first table

Gains = dict[str, dict[int, float]]  # bed → seed → accuracy gained on kd


def gains(runs: Path, beds: Beds, title: str) -> dict[str, Gains]:
    """Method → bed → seed → accuracy on a set, less that of kd of the same seed."""
    result: dict[str, Gains] = {}
    for bed, (suite, columns) in beds.items():
        name = columns[title]
        values = {
            method: {s.run.seed: s.values[name] for s in students if name in s.values}
            for method, students in collect(runs / suite).groups.items()
        }
        base = values.pop(BASELINE, {})
        for method, own in values.items():
            each = {seed: value - base[seed] for seed, value in own.items() if seed in base}
            if each:
                result.setdefault(method, {})[bed] = each
    return result


def over_beds(each: Gains, beds: Beds) -> Paired | None:
    """The mean over the beds, over the seeds that every bed has."""
    seeds = set.intersection(*(set(own) for own in each.values())) if set(each) == set(beds) else set[int]()
    means = [fmean(own[seed] for own in each.values()) for seed in sorted(seeds)]
    return paired(means, [0.0] * len(means)) if means else None


def cell(value: Paired | None) -> str:
    if value is None:
        return "–"
    sure = "*" if leaves_zero_out(value) and value.difference else ""
    return f"{signed(value.difference)}{sure} ({interval(value)}; {value.count})"


def gains_table(found: dict[str, Gains], beds: Beds) -> str:
    lines = [f"| method | {' | '.join(beds)} | mean |", f"| --- |{' ---: |' * (len(beds) + 1)}"]
    for method, each in sorted(found.items(), key=lambda item: -getattr(over_beds(item[1], beds), "difference", -1.0)):
        own = [paired(list(values.values()), [0.0] * len(values)) if values else None for values in map(each.get, beds)]
        lines.append(f"| {method} | {' | '.join(map(cell, own))} | {cell(over_beds(each, beds))} |")
    return "\n".join(lines)


def gains_tables(runs: Path, beds: Beds) -> str:
    """Of every test set."""
    lines = [f"Difference to {BASELINE} (95 % interval; pairs of seeds). \\*: the interval leaves zero out."]
    for title in next(iter(beds.values()))[1]:
        lines += ["", f"### {title}", "", gains_table(gains(runs, beds, title), beds)]
    return "\n".join(lines)


def default_table(runs: Path, ours: str = "contrast+hint") -> str:
    """The default beside kd on every kind, means over the seeds that both have."""
    lines = [f"| shortcut | seeds | in-domain: `{BASELINE}` | `{ours}` | conflict: `{BASELINE}` | `{ours}` |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for kind, (suite, _) in GROUPS["shortcuts"].items():
        groups = collect(runs / suite).groups
        both = [in_pairs(groups[BASELINE], groups[ours], column) for column in (IID, CONFLICT)]
        means = " | ".join(f"{fmean(values):.3f}" for pair in both for values in pair)
        lines.append(f"| {kind} | {len(both[0][0])} | {means} |")
    return "\n".join(lines)


def first_table(table: ResultTable) -> str:
    """Of a report: its first table and what stands below it."""
    with tempfile.TemporaryDirectory() as work:
        write_markdown(table, Path(work) / "table.md")
        return (Path(work) / "table.md").read_text().partition("\n\n")[2].partition("\n## ")[0].strip()


def fill(page: Path, name: str, text: str) -> None:
    """Put a text between a page's marks."""
    before, mark, rest = page.read_text().partition(f"<!-- {name} -->\n")
    page.write_text(f"{before}{mark}{text}\n{rest[rest.index('<!-- end -->') :]}")


def was_run(suite: Path) -> bool:
    return any(suite.glob("*/result.json"))


def write_pages(runs: Path, to: Path) -> None:
    """The tables of every bed that was run, below `to`, and what joins them between the marks of the pages above."""
    for group, all_beds in GROUPS.items():
        beds = {bed: (suite, columns) for bed, (suite, columns) in all_beds.items() if was_run(runs / suite)}
        if not beds:
            continue
        (to / group).mkdir(exist_ok=True)
        for bed, (suite, columns) in beds.items():
            write_markdown(
                ResultTable(collect(runs / suite)).select(",".join(columns.values())), to / group / f"{bed}.md"
            )
        fill(to / f"{group}.md", "gains", gains_tables(runs, beds))
    for suite, page in ALONE.items():
        if not was_run(runs / suite):
            continue
        table = ResultTable(collect(runs / suite)).select(f"{IID},{CONFLICT},{RANDOM}")
        fill(to / f"{page}.md", suite, first_table(table))
    fill(to.with_suffix(".md"), "kinds", default_table(runs))


def keep(runs: Path, archive: Path) -> None:
    """Settings, results and scores, in an order and with times that do not depend on the machine."""
    suites = ["teachers", *(suite for beds in GROUPS.values() for suite, _ in beds.values()), *ALONE]
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in sorted(path for suite in suites for path in (runs / suite).glob("*/")):
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
