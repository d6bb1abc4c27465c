"""What the signs of `asd targets` foretell: signs of the teachers of beyond-cues beside what became of its students.

Prints two tables of docs/results/diagnostics.md. `python benchmarks/guide.py RUNS`, after asd suite run beyond-cues.
"""

import statistics
import sys
from pathlib import Path
from typing import Any

from antishortcut.experiments.dial import measure
from antishortcut.report.collect import StudentRun, collect
from antishortcut.report.stats import Paired, paired
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session

STATES = {"0%": "untrained", "2%": "early-2", "5%": "early-5", "15%": "contrast-1"}
STATES |= {"30%": "early-30", "50%": "early-50", "75%": "early-75"}
STRENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0)


def main(runs: Path) -> None:
    groups = collect(runs / "beyond-cues").groups
    teachers = [s.run.teacher for s in groups["kd"]]
    session = Session(runs, quiet=True)
    signs: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for teacher in teachers:
        folder = RunDir(runs / "teachers" / str(teacher))
        for row in measure(folder, session.sets(folder.read()[0].data), list(STATES), STRENGTHS)["rows"]:
            signs.setdefault((row["state"], row["strength"]), []).append(row)

    def mean(state: str, strength: float, key: str) -> float:
        return statistics.mean(float(row[key]) for row in signs[state, strength])

    def lost(state: str, strength: float) -> float:
        return mean(state, strength, "final_accuracy") - mean(state, strength, "target_accuracy")

    for state, name in STATES.items():
        gain = difference(groups[name], groups["kd"], "conflict accuracy")
        message = [mean(state, 1.0, key) for key in ("agreement", "moved", "early_accuracy")]
        print(line(state, *(f"{value:.3f}" for value in (*message, lost(state, 1.0))), *interval(gain)))
    print()
    for strength in STRENGTHS:
        group = groups[f"contrast-{strength:g}"]
        gain = difference(group, groups["kd"], "conflict accuracy")
        iid = difference(group, groups["kd"], "iid accuracy")
        message = [mean("15%", strength, "moved"), lost("15%", strength)]
        print(line(f"{strength:g}", *(f"{value:.3f}" for value in message), *interval(gain), *interval(iid)))


def difference(group: list[StudentRun], other: list[StudentRun], column: str) -> Paired:
    """Seed by seed."""
    own, reference = ({s.run.seed: s.values[column] for s in students} for students in (group, other))
    seeds = sorted(own.keys() & reference.keys())
    return paired([own[seed] for seed in seeds], [reference[seed] for seed in seeds])


def interval(found: Paired) -> tuple[str, str]:
    return f"{found.difference:+.3f}", f"{found.low:+.3f} … {found.high:+.3f}"


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |".replace("-", "−").replace("%", " %")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
