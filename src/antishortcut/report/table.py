"""Students → one row per method, and paired differences to KD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from antishortcut.report.collect import BASELINE, Found, Student
from antishortcut.report.columns import BASELINES, better, chosen, metric, ordered, parts, random_of, shown, words
from antishortcut.report.marks import Mark, mark
from antishortcut.report.pair import labels, pair_of, row_labels
from antishortcut.report.stats import Paired, Summary, paired, sign_test, summary

HEADLINE = "last"  # the accuracy or mIoU after the last epoch (decisions.md)
RIVAL, CHALLENGER = "crd+kd", "asd"  # whom the paper compares seed by seed,
RIVALS = "P12"  # and on which pair (S-Table 9)


@dataclass(frozen=True)
class Table:
    """Means over seeds by method and column."""

    columns: tuple[str, ...]  # shown in the first table
    every: tuple[str, ...]  # all there are
    cells: dict[str, dict[str, Summary]]  # method → column → mean ± std
    seeds: dict[str, int]
    differences: dict[str, dict[str, Paired]]  # method → column → against the baseline of its suite
    rivalry: dict[str, dict[str, Paired]]  # ASD → column → against CRD, on P12 and where there is no baseline
    random: dict[str, float]  # projection → that of a random direction
    suites: dict[str, str]  # method → suite
    sources: dict[str, str]  # set → where its images come from
    signs: dict[str, dict[str, float]]  # ASD on P12 → column → p of the paper's sign test against CRD
    labels: dict[str, str]  # method → in what its runs are not the paper's
    told: tuple[str, ...]  # the same by suite, in sentences
    headline: str = "accuracy"  # what `last` and `best` are, in words
    asked: bool = False  # the columns were chosen by a person

    @classmethod
    def of(cls, found: Found) -> Table:
        groups = found.groups
        every = ordered(name for student in found.students for name in student.values)
        cells = {
            method: {name: summary(values) for name in every if (values := values_of(students, name))}
            for method, students in groups.items()
        }
        baselines = {name: values_of(found.students, random) for name in every if (random := random_of(name))}
        sources: dict[str, dict[str, None]] = {}
        for student in found.students:
            for name, source in student.sources.items():
                sources.setdefault(name, {})[source] = None
        rivals = _pairs(groups, RIVAL)
        return cls(
            columns=tuple(shown([name for name in every if parts(name)[1] not in BASELINES])),
            every=tuple(every),
            cells=cells,
            seeds={method: len(students) for method, students in groups.items()},
            differences=_differences(_pairs(groups, BASELINE), every),
            rivalry=_differences(rivals, every),
            random={name: summary(values).mean for name, values in baselines.items() if values},
            suites={method: students[0].run.suite for method, students in groups.items()},
            sources={name: " / ".join(seen) for name, seen in sources.items()},
            signs=_signs(rivals, every),
            labels=row_labels(found),
            told=tuple(f"{suite}: {label}." for suite, each in labels(found).items() for label in each),
            headline=" / ".join(dict.fromkeys(words(student.headline) for student in found.students)),
        )

    def choose(self, wanted: str) -> Table:
        """The same with the columns a person asks for."""
        return replace(self, columns=tuple(chosen(wanted, self.every)), asked=True)

    def rows(self) -> list[dict[str, Any]]:
        """Flat rows for the command and for JSON."""
        rows = []
        marks = {name: self.marks(name) for name in self.columns}
        for method, cells in self.cells.items():
            row: dict[str, Any] = {"method": method, "label": self.labels.get(method, ""), "seeds": self.seeds[method]}
            for name in self.columns:
                cell = cells.get(name)
                row |= {name: cell.mean if cell else None, f"{name} ±": cell.std if cell else None}
                row |= {f"{name} mark": str(marks[name][method])}
                if name in self.random:
                    row[random_of(name) or name] = self.random[name]
            if self.differences and HEADLINE in self.columns:
                value = self.differences.get(method, {}).get(HEADLINE)
                row[f"vs {BASELINE}"] = value.difference if value else None
                row[f"vs {BASELINE} low"] = value.low if value else None
                row[f"vs {BASELINE} high"] = value.high if value else None
            rows.append(row)
        return rows

    def compared(self) -> list[str]:
        """Of the shown columns, those with a difference to the baseline or to CRD; `best` was chosen by looking."""
        rows = (*self.differences.values(), *self.rivalry.values())
        return [name for name in self.columns if name != "best" and any(name in row for row in rows)]

    def sets(self) -> dict[str, list[str]]:
        """All columns by the set or view they belong to, without the training and the random values."""
        sets: dict[str, list[str]] = {}
        for name in self.every:
            group, score = parts(name)
            if group != "training" and score not in BASELINES:
                sets.setdefault(group, []).append(name)
        return sets

    def source(self, group: str) -> str:
        """How the images of a set came about, for its heading."""
        return self.sources.get(group, "")

    def best(self, column: str) -> set[str]:
        """The methods with their suite's best mean, where one way is better at all; nobody wins alone, nor all."""
        way, best = better(column), set()
        suites: dict[str, dict[str, float]] = {}
        for method, cells in self.cells.items():
            if column in cells and way != 0:
                suites.setdefault(self.suites[method], {})[method] = way * cells[column].mean
        for means in suites.values():
            top = {method for method, mean in means.items() if mean == max(means.values())}
            best |= top if len(top) < len(means) else set()
        return best

    def marks(self, column: str) -> dict[str, Mark]:
        """Of every method: whether it is the best, and how it stands to the baseline; `best` was chosen by looking."""
        top = self.best(column)
        differences = {} if column == "best" else self.differences
        return {method: mark(column, differences.get(method, {}).get(column), method in top) for method in self.cells}

    def texts(self, method: str, column: str) -> tuple[str, str]:
        """A cell for a person: the mean, and its deviation; seeds without the score are said."""
        cell = self.cells[method].get(column)
        if cell is None:
            return "–", ""
        spread = [] if cell.std is None else [f"± {cell.std:.3f}"]
        missing = [] if cell.count == self.seeds[method] else [f"({cell.count} of {self.seeds[method]})"]
        form = metric(column).format
        mean = signed(cell.mean) if form.startswith("+") else f"{cell.mean:z{form}}".replace("-", "−")
        return mean, " ".join(spread + missing)


def signed(value: float | None, digits: int = 3) -> str:
    """With its sign, save where it rounds to zero."""
    if value is None:
        return "–"
    text = f"{value:+z.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


def interval(value: Paired) -> str:
    """Its ends keep their signs: −0.000 says that zero lies inside."""
    return "–" if value.low is None else f"{value.low:+.3f} … {value.high:+.3f}".replace("-", "−")


def values_of(students: Sequence[Student], column: str) -> list[float]:
    return [student.values[column] for student in students if column in student.values]


Pairs = dict[str, tuple[list[Student], list[Student]]]  # method → its runs, those it is compared with


def _pairs(groups: dict[str, list[Student]], reference: str) -> Pairs:
    """Methods beside the baseline of their suite; or ASD beside CRD as in S-Table 9: on P12, or without a baseline."""
    suites: dict[str, dict[str, list[Student]]] = {}
    for group in groups.values():
        suites.setdefault(group[0].run.suite, {})[group[0].run.name] = group
    pairs: Pairs = {}
    for method, group in groups.items():
        run, rows = group[0].run, suites[group[0].run.suite]
        rival = run.name == CHALLENGER and (BASELINE not in rows or pair_of(run) == RIVALS)
        if reference in rows and run.name != reference and (reference == BASELINE or rival):
            pairs[method] = (group, rows[reference])
    return pairs


def _differences(pairs: Pairs, columns: Sequence[str]) -> dict[str, dict[str, Paired]]:
    """Over the seeds in common, on every column in which one way is better."""
    differences: dict[str, dict[str, Paired]] = {}
    for method, (group, base) in pairs.items():
        for name in columns:
            if better(name) and (value := against(group, base, name)):
                differences.setdefault(method, {})[name] = value
    return differences


def _signs(pairs: Pairs, columns: Sequence[str]) -> dict[str, dict[str, float]]:
    """The paper's sign test of being better, on the paper's pair."""
    signs: dict[str, dict[str, float]] = {}
    for method, (group, base) in pairs.items():
        for name in columns:
            way, (ours, theirs) = better(name), in_pairs(group, base, name)
            if way and ours and pair_of(group[0].run) == RIVALS:
                signs.setdefault(method, {})[name] = sign_test([way * x for x in ours], [way * x for x in theirs])
    return signs


def against(group: Sequence[Student], reference: Sequence[Student], column: str) -> Paired | None:
    """The difference to the reference over the seeds in common, None when there are none."""
    ours, theirs = in_pairs(group, reference, column)
    return paired(ours, theirs) if ours else None


def in_pairs(group: Sequence[Student], reference: Sequence[Student], column: str) -> tuple[list[float], list[float]]:
    """The values of both over the seeds in common."""
    ours, theirs = ({s.run.seed: s.values[column] for s in side if column in s.values} for side in (group, reference))
    seeds = sorted(ours.keys() & theirs.keys())
    return [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]
