"""Students → one row per method, and paired differences to KD."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from antishortcut.errors import UserError, suggest
from antishortcut.evaluation import EVALUATIONS, Metric
from antishortcut.experiments.printed import find
from antishortcut.report.collect import BASELINE, Collected, Student
from antishortcut.report.paper_pairs import pair_of, row_labels, suite_labels
from antishortcut.report.reader import CORRUPTIONS, GROUPS, MECHANISM, SCENES
from antishortcut.report.stats import Paired, Summary, paired, seeds_needed, sign_test, summary

HEADLINE = "last"  # the accuracy or mIoU after the last epoch (decisions.md)
RIVAL, CHALLENGER = "crd+kd", "asd"  # which methods the paper compares seed by seed,
RIVALS = "P12"  # and on which pair (S-Table 9)
CORRUPTION_KINDS = {  # in the paper's words (S-Sec. A.3)
    "texture": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
}
DERIVED: dict[str, Metric] = {  # computed by the report itself
    "last": ("last", True),
    "best": ("best", True),
    "projection_change": (f"change against {BASELINE}", None),
}
LABELS = DERIVED | {key: metric for each in EVALUATIONS.values() for key, metric in each.metrics.items()}
ORDER = ["training", *EVALUATIONS]  # of the columns; the data's own sets are of the evaluation "clean"
SHOWN = {  # evaluation → its columns in the first table; of others the first few
    "training": ("last", "best"),
    "clean": ("miou", "accuracy", "shape_bias"),
    CORRUPTIONS: ("mce", "mce_relative"),
    "stylized": ("accuracy", "gap"),
    "cue-conflict": ("accuracy", "shape_bias"),
    "imagenet-r": ("accuracy", "accuracy_overlap"),
    "imagenet-a": ("accuracy", "accuracy_overlap"),
    GROUPS: ("worst_group", "mean_group"),
    "attack": ("1/255", "4/255"),
    "hard": ("hard_accuracy", "balanced_accuracy"),
    SCENES: ("agreement",),
    MECHANISM: ("cos_final", "cos_early", "projection"),
}
FEW = 3
VIEWS = ("aligned", "raw", "projector")  # of the mechanism; the first that exists stands in the first table
RANDOM = {  # measure of the mechanism → what a random direction would have
    "projection": "projection_random",
    "projection_final": "projection_random",
    "projection_early": "projection_random",
    "robust_projection": "robust_random",
    "head_share": "head_random",
}
CHANCE = {*RANDOM.values(), "random"}
BEST, SURE = "★", "*"
MARKS = {1: "▲", -1: "▼", 0: ""}  # better than the baseline, worse, neither
POWER = 0.8
MOST = 1000  # seeds needed that are still written out


# --- columns: "last", "conflict accuracy", "corruptions mce", "mechanism aligned projection" ---


def split_column(column: str) -> tuple[str, str]:
    """("conflict", "accuracy"): the set, or the mechanism's view, and the score."""
    group, _, score = column.rpartition(" ")
    return group or "training", score


def _evaluation(group: str) -> str:
    """ "mechanism" of "mechanism raw", "corruptions" of "corruptions@15%", "clean" of the data's own sets."""
    name = group.split(" ")[0].split("@")[0]
    return name if name in ORDER else "clean"


def better(column: str) -> int:
    """1 where higher is better, −1 where lower is, 0 where neither."""
    group, score = split_column(column)
    name = _evaluation(group)
    known = DERIVED if name == "training" else EVALUATIONS[name].metrics
    if score not in known and name != MECHANISM:
        known = EVALUATIONS["clean"].metrics
    higher = known[score][1] if score in known else None
    return 0 if higher is None else 1 if higher else -1


def arrow(column: str) -> str:
    return {1: "↑", -1: "↓", 0: ""}[better(column)]


def words(score: str) -> str:
    """A score's label."""
    return LABELS[score][0] if score in LABELS else score.replace("_", " ")


def heading(text: str) -> str:
    """Capitalised: Accuracy, but mIoU."""
    return text if text[:2] == "mI" else text[:1].upper() + text[1:]


def random_of(column: str) -> str | None:
    """For a column that is a projection, the column that says how far a random direction would project."""
    group, score = split_column(column)
    return f"{group} {RANDOM[score]}" if score in RANDOM and group.startswith(MECHANISM) else None


def ordered(names: Iterable[str]) -> list[str]:
    """last, best, the data's own sets by name, shifted sets, the mechanism; within a set mIoU, then as in its file."""

    def place(column: str) -> tuple[int, int, str, bool]:
        group, score = split_column(column)
        view = group.partition(" ")[2]
        rank = VIEWS.index(view) if view in VIEWS else len(VIEWS)
        return ORDER.index(_evaluation(group)), rank, group, score != "miou"

    return sorted(dict.fromkeys(names), key=place)


def view_of(names: Iterable[str]) -> str | None:
    """The view of the mechanism that the first table shows, the same for all methods."""
    views = {split_column(name)[0].partition(" ")[2] for name in names if name.startswith(f"{MECHANISM} ")} - {""}
    return next((view for view in VIEWS if view in views), min(views, default=None))


def first_columns(names: Sequence[str]) -> list[str]:
    """The columns of the first table: a few of every set; all others are further down the page."""
    view = view_of(names)
    sets: dict[str, list[str]] = {}
    for name in names:
        sets.setdefault(split_column(name)[0], []).append(name)
    result: list[str] = []
    for group, columns in sets.items():
        name = _evaluation(group)
        usual = [column for column in columns if split_column(column)[1] in SHOWN.get(name, ())]
        if name != MECHANISM:
            result += usual or columns[:FEW]
        elif group == f"{MECHANISM} {view}":
            result += usual
    return result


def select_columns(text: str, names: Sequence[str], flag: str = "--columns") -> list[str]:
    """--columns "last,conflict accuracy,mce": whole names, or their ends where only one column ends so."""
    result: dict[str, None] = {}
    for word in (word for piece in text.split(",") if (word := " ".join(piece.split()))):
        matches = [name for name in names if name == word] or [name for name in names if name.endswith(f" {word}")]
        if not matches:
            ends = suggest(word, dict.fromkeys(split_column(name)[1] for name in names))
            hint = suggest(word, names)
            hint = ends if ends.startswith("; did") and not hint.startswith("; did") else hint
            raise UserError(f"{flag}: no column {word!r} here{hint}")
        if len(matches) > 1:
            raise UserError(f"{flag}: {word!r} may be {' or '.join(repr(name) for name in matches)}; write it out")
        result[matches[0]] = None
    if not result:
        raise UserError(f"{flag} names no column; known: {', '.join(names)}")
    return list(result)


# --- numbers ---


def signed(value: float | None, digits: int = 3) -> str:
    """With its sign, save where it rounds to zero."""
    if value is None:
        return "–"
    text = f"{value:+z.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


def interval(value: Paired) -> str:
    """Its ends keep their signs: −0.000 says that zero lies inside."""
    return "–" if value.low is None else f"{value.low:+.3f} … {value.high:+.3f}".replace("-", "−")


def leaves_zero_out(value: Paired) -> bool:
    """Whether the interval does; one pair has none."""
    return value.low is not None and value.high is not None and not value.low <= 0 <= value.high


def values_of(students: Sequence[Student], column: str) -> list[float]:
    return [student.values[column] for student in students if column in student.values]


def in_pairs(group: Sequence[Student], reference: Sequence[Student], column: str) -> tuple[list[float], list[float]]:
    """The values of both over the seeds in common."""
    ours, other = ({s.run.seed: s.values[column] for s in side if column in s.values} for side in (group, reference))
    seeds = sorted(ours.keys() & other.keys())
    return [ours[seed] for seed in seeds], [other[seed] for seed in seeds]


def against(group: Sequence[Student], reference: Sequence[Student], column: str) -> Paired | None:
    """The difference to the reference over the seeds in common, None when there are none."""
    ours, other = in_pairs(group, reference, column)
    return paired(ours, other) if ours else None


def best_of_suites(means: dict[str, float], suites: dict[str, str]) -> set[str]:
    """The methods with the highest mean of their suite; there is none where all are equal, or only one is there."""
    best: set[str] = set()
    for suite in set(suites.values()):
        own = {method: mean for method, mean in means.items() if suites[method] == suite}
        top = {method for method, mean in own.items() if mean == max(own.values())}
        best |= top if len(top) < len(own) else set()
    return best


# --- marks and differences ---


@dataclass(frozen=True)
class Mark:
    """Of one method in one column."""

    best: bool = False
    way: int = 0  # 1 better than the baseline, −1 worse, 0 the same, or not compared
    sure: bool = False  # the interval of the difference leaves zero out

    @classmethod
    def of(cls, column: str, value: Paired | None, best: bool = False) -> Mark:
        """From the difference to the baseline, seed by seed."""
        if value is None or value.difference == 0:
            return cls(best)
        return cls(best, better(column) * (1 if value.difference > 0 else -1), leaves_zero_out(value))

    @property
    def against(self) -> str:
        return MARKS[self.way] + SURE * self.sure

    def __str__(self) -> str:
        return BEST * self.best + self.against


@dataclass(frozen=True)
class Difference:
    """Of a method to the baseline of its suite, or to CRD, in one column."""

    method: str
    column: str
    value: Paired
    p: float | None = None  # of the paper's sign test, where it has one
    reference: str = BASELINE

    @property
    def title(self) -> str:
        return self.method if self.reference == BASELINE else f"{self.method} against {self.reference}"

    @property
    def needed(self) -> int | None:
        return None if self.value.effect is None else _seeds_needed(abs(self.value.effect))

    @property
    def seeds(self) -> str:
        """How many seeds it would need, as text."""
        needed = self.needed
        return "–" if needed is None else f">{MOST}" if needed > MOST else str(needed)

    def texts(self, tested: bool) -> list[str]:
        value = self.value
        cells = [signed(value.difference), interval(value), signed(value.effect, 2), str(value.count), self.seeds]
        return [self.title, self.column, *cells, *(["–" if self.p is None else f"{self.p:.3f}"] if tested else [])]

    def flat(self) -> dict[str, Any]:
        value = self.value
        return {
            "method": self.method, "reference": self.reference, "score": self.column, "difference": value.difference,
            "low": value.low, "high": value.high, "effect": value.effect, "pairs": value.count,
            "seeds_needed": self.needed,
        } | ({} if self.p is None else {"sign_test": self.p})  # fmt: skip


@lru_cache(maxsize=4096)
def _seeds_needed(effect: float) -> int | None:
    """It depends on d_z alone; no number of seeds shows a difference of zero."""
    return seeds_needed(effect, POWER) if effect > 0 else None


def difference_texts(differences: Sequence[Difference]) -> tuple[list[str], list[list[str]], list[str]]:
    """Head, rows and explanation of a table of differences."""
    tested = any(one.p is not None for one in differences)
    head = ["method", "score", "difference", "95 % interval", "effect d_z", "pairs", "seeds needed"]
    notes = [
        f"Seeds needed: to show a true difference and spread like those seen here, with a power of {POWER} at the "
        "5 % level (two-sided paired t test); – where it has no spread to go by."
    ]
    if tested:
        printed = find("S-Sec. A.6", CHALLENGER, RIVALS, "p of the one-sided sign test").mean
        notes.append(
            f"Sign test: the paper’s own (S-Sec. A.6, which has {printed:g}), one-sided p of being better than "
            f"{RIVAL} by signs alone. Three seeds cannot give less than 0.125; the interval says more."
        )
    return head + ["sign test p"] * tested, [one.texts(tested) for one in differences], notes


# --- the table ---


@dataclass(frozen=True)
class ResultTable:
    """Means over seeds by method and column, and what is computed from them."""

    runs: Collected
    selected: tuple[str, ...] = ()  # columns chosen by a person, if any

    def select(self, text: str) -> ResultTable:
        return replace(self, selected=tuple(select_columns(text, self.every)))

    @cached_property
    def every(self) -> list[str]:
        """All columns there are."""
        return ordered(name for student in self.runs.students for name in student.values)

    @cached_property
    def columns(self) -> list[str]:
        """Those of the first table."""
        return list(self.selected) or first_columns([n for n in self.every if split_column(n)[1] not in CHANCE])

    @cached_property
    def cells(self) -> dict[str, dict[str, Summary]]:
        """Method → column → mean ± std."""
        return {
            method: {name: summary(values) for name in self.every if (values := values_of(students, name))}
            for method, students in self.runs.groups.items()
        }

    @cached_property
    def seeds(self) -> dict[str, int]:
        return {method: len(students) for method, students in self.runs.groups.items()}

    @cached_property
    def suites(self) -> dict[str, str]:
        return {method: students[0].run.suite for method, students in self.runs.groups.items()}

    @cached_property
    def random(self) -> dict[str, float]:
        """Projection → that of a random direction."""
        values = {name: values_of(self.runs.students, chance) for name in self.every if (chance := random_of(name))}
        return {name: summary(each).mean for name, each in values.items() if each}

    @cached_property
    def primary_metric(self) -> str:
        """What `last` and `best` are, in words."""
        return " / ".join(dict.fromkeys(words(student.primary_metric) for student in self.runs.students))

    @cached_property
    def labels(self) -> dict[str, str]:
        """Method → in what its runs are not the paper's."""
        return row_labels(self.runs)

    @cached_property
    def suite_labels(self) -> list[str]:
        """The same by suite, in sentences."""
        return [f"{suite}: {label}." for suite, each in suite_labels(self.runs).items() for label in each]

    @cached_property
    def sources(self) -> dict[str, str]:
        """Set → where its images come from."""
        sources: dict[str, dict[str, None]] = {}
        for student in self.runs.students:
            for name, source in student.sources.items():
                sources.setdefault(name, {})[source] = None
        return {name: " / ".join(each) for name, each in sources.items()}

    def titled(self, group: str, title: str = "") -> str:
        """A set, by its name or a title, with where its images come from."""
        source = self.sources.get(group)
        return f"{title or group} ({source})" if source else title or group

    def sets(self) -> dict[str, list[str]]:
        """All columns by the set or view they belong to, without the training and the random values."""
        sets: dict[str, list[str]] = {}
        for name in self.every:
            group, score = split_column(name)
            if group != "training" and score not in CHANCE:
                sets.setdefault(group, []).append(name)
        return sets

    @cached_property
    def pairs(self) -> dict[str, dict[str, tuple[list[Student], list[Student]]]]:
        """Reference → method → its runs, and those of the reference in its suite.

        References are the baseline and, as in S-Table 9, CRD for ASD: on P12, or where there is no baseline.
        """
        names = {(group[0].run.suite, group[0].run.name): group for group in self.runs.groups.values()}
        pairs: dict[str, dict[str, tuple[list[Student], list[Student]]]] = {BASELINE: {}, RIVAL: {}}
        for method, group in self.runs.groups.items():
            run = group[0].run
            baseline, rival = (names.get((run.suite, name)) for name in (BASELINE, RIVAL))
            if baseline and run.name != BASELINE:
                pairs[BASELINE][method] = group, baseline
            if rival and run.name == CHALLENGER and (not baseline or pair_of(run) == RIVALS):
                pairs[RIVAL][method] = group, rival
        return pairs

    def difference(self, method: str, column: str, reference: str = BASELINE) -> Paired | None:
        """Over the seeds in common, in a column in which one way is better; `best` was selected on the same data."""
        pair = self.pairs[reference].get(method)
        return against(*pair, column) if pair and better(column) and column != "best" else None

    @cached_property
    def differences(self) -> list[Difference]:
        """Of the shown columns, to the baseline and to CRD."""
        each = []
        for reference, methods in self.pairs.items():
            for method, pair in methods.items():
                for column in self.columns:
                    if value := self.difference(method, column, reference):
                        tested = reference == RIVAL and pair_of(pair[0][0].run) == RIVALS
                        ours, other = ([better(column) * x for x in side] for side in in_pairs(*pair, column))
                        each.append(
                            Difference(method, column, value, sign_test(ours, other) if tested else None, reference)
                        )
        return each

    @property
    def references(self) -> str:
        """With which methods others are compared."""
        return " and ".join(dict.fromkeys(one.reference for one in self.differences))

    def compared(self) -> list[str]:
        """Of the shown columns, those with a difference."""
        known = {one.column for one in self.differences}
        return [column for column in self.columns if column in known]

    def best(self, column: str) -> set[str]:
        """The methods with their suite's best mean, where one way is better at all."""
        way = better(column)
        means = {method: way * cells[column].mean for method, cells in self.cells.items() if column in cells and way}
        return best_of_suites(means, self.suites)

    def marks(self, column: str) -> dict[str, Mark]:
        """Of every method: whether it is the best, and how it compares with the baseline."""
        top = self.best(column)
        return {method: Mark.of(column, self.difference(method, column), method in top) for method in self.cells}

    def texts(self, method: str, column: str) -> tuple[str, str]:
        """A cell as text: the mean; its deviation, and how many seeds have the score where some do not."""
        cell = self.cells[method].get(column)
        if cell is None:
            return "–", ""
        spread = [] if cell.std is None else [f"± {cell.std:.3f}"]
        missing = [] if cell.count == self.seeds[method] else [f"({cell.count} of {self.seeds[method]})"]
        mean = signed(cell.mean) if column.endswith("_change") else f"{cell.mean:z.3f}".replace("-", "−")
        return mean, " ".join(spread + missing)

    def rows(self) -> list[dict[str, Any]]:
        """Flat rows for the command and for JSON."""
        rows = []
        marks = {name: self.marks(name) for name in self.columns}
        compared = any(one.reference == BASELINE for one in self.differences)
        for method, cells in self.cells.items():
            row: dict[str, Any] = {"method": method, "label": self.labels.get(method, ""), "seeds": self.seeds[method]}
            for name in self.columns:
                cell = cells.get(name)
                row |= {name: cell.mean if cell else None, f"{name} ±": cell.std if cell else None}
                row |= {f"{name} mark": str(marks[name][method])}
                if name in self.random:
                    row[random_of(name) or name] = self.random[name]
            if compared and HEADLINE in self.columns:
                value = self.difference(method, HEADLINE)
                row[f"vs {BASELINE}"] = value.difference if value else None
                row[f"vs {BASELINE} low"] = value.low if value else None
                row[f"vs {BASELINE} high"] = value.high if value else None
            rows.append(row)
        return rows

    def legend(self, best: str = BEST, sure: str = SURE) -> str:
        """What the marks mean; `best` and `sure` as they are written there."""
        text = f"{best}: best of the column" + " in its suite" * (len(set(self.suites.values())) > 1)
        if not any(one.reference == BASELINE for one in self.differences):
            return f"{text}."
        return (
            f"{text}; {MARKS[1]} better, {MARKS[-1]} worse than {BASELINE} over the seeds in common; {sure}: the 95 % "
            "interval of that difference leaves zero out (Student’s t, not corrected for looking at many)."
        )
