"""Students → one row per method, and paired differences to KD."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from statistics import fmean
from typing import Any, ClassVar

from antishortcut.errors import UserError, suggest
from antishortcut.evaluation import EVALUATIONS, FOLDER, Metric
from antishortcut.report.collect import BASELINE, Collected, StudentRun
from antishortcut.report.paper_pairs import row_labels, suite_labels
from antishortcut.report.reader import CORRUPTIONS, GROUPS, MECHANISM, SCENES
from antishortcut.report.stats import Paired, Summary, paired, seeds_needed, summary

HEADLINE = "last"  # the accuracy or mIoU after the last epoch (decisions.md)
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
    "clean": ("miou", "accuracy", "agreement", "cosine", "shape_bias"),
    CORRUPTIONS: ("mce", "mce_all", "mce_relative"),
    "stylized": ("accuracy", "gap"),
    "cue-conflict": ("accuracy", "shape_bias"),
    "imagenet-r": ("accuracy", "accuracy_overlap"),
    "imagenet-a": ("accuracy", "accuracy_overlap"),
    FOLDER: ("accuracy", "accuracy_overlap"),
    GROUPS: ("worst_group", "mean_group"),
    "attack": ("1/255", "4/255"),
    "hard": ("hard_accuracy", "balanced_accuracy"),
    "probes": ("needs_colour", "texture_share", "surround_share"),
    "maps": ("glyph_share_cam", "glyph_share_ig"),
    SCENES: ("agreement",),
    MECHANISM: ("cos_final", "cos_early", "projection"),
}
FEW = 3
FEWEST = 100  # images of a set in which a method is marked as the best
VIEWS = ("aligned", "raw", "projector")  # of the mechanism; the first that exists stands in the first table
RANDOM = {  # measure of the mechanism → what a random direction would have
    "projection": "projection_random",
    "projection_final": "projection_random",
    "projection_early": "projection_random",
    "robust_projection": "robust_random",
    "head_share": "head_random",
}
CHANCE = {*RANDOM.values(), "random", "chance", "chance_overlap"}  # what guessing has: of no method
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


def column_name(column: str) -> str:
    """As tables head it: errors on corruptions say at which severity."""
    group, score = split_column(column)
    return f"{group} {words(score)}" if _evaluation(group) == CORRUPTIONS else column


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


def by_set(columns: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Columns that follow each other under one set, or one view of the mechanism."""
    return [(name, list(each)) for name, each in groupby(columns, key=lambda column: split_column(column)[0])]


def view_of(names: Iterable[str]) -> str | None:
    """The view of the mechanism that the first table shows, the same for all methods."""
    views = {split_column(name)[0].partition(" ")[2] for name in names if name.startswith(f"{MECHANISM} ")} - {""}
    return next((view for view in VIEWS if view in views), min(views, default=None))


def first_columns(names: Sequence[str]) -> list[str]:
    """The columns of the first table: a few of every set; all others are further down the page."""
    view = view_of(names)
    result: list[str] = []
    for group, columns in by_set(names):
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
        matches = [name for name in names if word in (name, column_name(name))]
        matches = matches or [name for name in names if f" {name}".endswith(f" {word}")]
        if not matches:
            ends = [split_column(name)[1] for name in names]
            raise UserError(f"{flag}: no column {word!r} here{suggest(word, dict.fromkeys([*names, *ends]))}")
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


def values_of(students: Sequence[StudentRun], column: str) -> list[float]:
    return [student.values[column] for student in students if column in student.values]


def in_pairs(
    group: Sequence[StudentRun], reference: Sequence[StudentRun], column: str
) -> tuple[list[float], list[float]]:
    """The values of both over the seeds in common."""
    ours, other = ({s.run.seed: s.values[column] for s in side if column in s.values} for side in (group, reference))
    seeds = sorted(ours.keys() & other.keys())
    return [ours[seed] for seed in seeds], [other[seed] for seed in seeds]


def against(group: Sequence[StudentRun], reference: Sequence[StudentRun], column: str) -> Paired | None:
    """The difference to the reference over the seeds in common, None when there are none."""
    ours, other = in_pairs(group, reference, column)
    return paired(ours, other) if ours else None


def best_of_suites(values: Mapping[str, Mapping[int, float]], suites: dict[str, str], way: int = 1) -> set[str]:
    """The methods that no other of their suite beats over the seeds both have; none where all are equal, or alone.

    values: {method: {seed: score}}. way: 1 where higher is better, −1 where lower is.
    """
    best = set[str]()
    for method, ours in values.items():
        rivals = (seeds for other, seeds in values.items() if other != method and suites[other] == suites[method])
        shared = [(sorted(ours.keys() & rival.keys()), rival) for rival in rivals]
        gaps = [way * fmean(ours[seed] - rival[seed] for seed in seeds) for seeds, rival in shared if seeds]
        if gaps and min(gaps) >= 0 < max(gaps):
            best.add(method)
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
    """Of a method to the baseline of its suite, in one column."""

    HEAD: ClassVar = ("method", "score", "difference", "95 % interval", "effect d_z", "pairs", "seeds needed")
    NOTE: ClassVar = (
        f"Seeds needed: to show a true difference and spread like those seen here, with a power of {POWER} at the "
        "5 % level (two-sided paired t test); – where it has no spread to go by."
    )
    method: str
    column: str
    value: Paired

    @cached_property
    def needed(self) -> int | None:
        """How many seeds would show it; none do where it is zero."""
        effect = abs(self.value.effect or 0.0)
        return seeds_needed(effect, POWER) if effect else None

    @property
    def seeds(self) -> str:
        """The same as text."""
        return "–" if self.needed is None else f">{MOST}" if self.needed > MOST else str(self.needed)

    def texts(self) -> list[str]:
        value = self.value
        cells = [signed(value.difference), interval(value), signed(value.effect, 2), str(value.count), self.seeds]
        return [self.method, column_name(self.column), *cells]

    def flat(self) -> dict[str, Any]:
        value = self.value
        return {
            "method": self.method, "reference": BASELINE, "score": self.column, "difference": value.difference,
            "low": value.low, "high": value.high, "effect": value.effect, "pairs": value.count,
            "seeds_needed": self.needed, "sign_test": value.sign_p,
        }  # fmt: skip


# --- the table ---


@dataclass(frozen=True)
class ResultTable:
    """Means over seeds by method and column, and what is computed from them."""

    runs: Collected
    selected: tuple[str, ...] = ()  # columns chosen by a person, if any

    def select(self, text: str | None) -> ResultTable:
        """With the columns that --columns names, if it names any."""
        return self if text is None else replace(self, selected=tuple(select_columns(text, self.every)))

    @cached_property
    def every(self) -> list[str]:
        """All columns there are."""
        return ordered(name for student in self.runs.students for name in student.values)

    @cached_property
    def measured(self) -> list[str]:
        """The same without what guessing has, and without a score that says another again."""
        return [name for name in self.every if split_column(name)[1] not in CHANCE and not self._repeats(name)]

    def _repeats(self, column: str) -> bool:
        """Accuracy among the classes of a folder, where the folder has all of them."""
        group, name = split_column(column)
        each = [student.values for student in self.runs.students if column in student.values]
        return name == "accuracy_overlap" and all(
            own.get(f"{group} chance") == own.get(f"{group} chance_overlap", 0) for own in each
        )

    @cached_property
    def columns(self) -> list[str]:
        """Those of the first table."""
        return list(self.selected) or first_columns(self.measured)

    @cached_property
    def view(self) -> str | None:
        """Of the mechanism, the one that the first table shows."""
        return view_of(self.every)

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
        """Set → where its images come from, and how many there are."""
        sources: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
        for student in self.runs.students:
            for name, source in student.sources.items():
                sources.setdefault(name, ({}, {}))[0][source] = None
            for name, count in student.counts.items():
                sources.setdefault(name, ({}, {}))[1][f"{count:,.0f}"] = None
        return {name: ", ".join(" / ".join(each) for each in both if each) for name, both in sources.items()}

    def titled(self, group: str, title: str = "") -> str:
        """A set, by its name or a title, with where its images come from and how many there are."""
        source = self.sources.get(group)
        return f"{title or group} ({source})" if source else title or group

    def sets(self) -> dict[str, list[str]]:
        """All columns by the set or view they belong to, without those of the training."""
        return {group: columns for group, columns in by_set(self.measured) if group != "training"}

    @cached_property
    def pairs(self) -> dict[str, tuple[list[StudentRun], list[StudentRun]]]:
        """Method → its runs, and those of the baseline in its suite, where there are any."""
        groups, suites = self.runs.groups, self.runs.suites
        baselines = {suites[method]: group for method, group in groups.items() if group[0].run.name == BASELINE}
        pairs = {method: (group, baselines.get(suites[method], [])) for method, group in groups.items()}
        return {method: (group, base) for method, (group, base) in pairs.items() if base and base is not group}

    def difference(self, method: str, column: str) -> Paired | None:
        """Over the seeds in common, in a column in which one way is better; `best` was selected on the same data."""
        comparable = method in self.pairs and better(column) and column != "best"
        return against(*self.pairs[method], column) if comparable else None

    @cached_property
    def differences(self) -> list[Difference]:
        """Of the shown columns."""
        each = [(method, column, self.difference(method, column)) for method in self.pairs for column in self.columns]
        return [Difference(method, column, value) for method, column, value in each if value]

    def compared(self) -> list[str]:
        """Of the shown columns, those with a difference."""
        known = {one.column for one in self.differences}
        return [column for column in self.columns if column in known]

    def best(self, column: str) -> set[str]:
        """The methods that no other of their suite beats over the seeds both have, where one way is better at all."""
        if not (way := better(column)) or not self.enough(column):
            return set()
        values = {
            method: {student.run.seed: student.values[column] for student in students if column in student.values}
            for method, students in self.runs.groups.items()
        }
        return best_of_suites(values, self.runs.suites, way)

    def enough(self, column: str) -> bool:
        """Whether a score is of so many images that one method can be called the best; of unknown numbers it is."""
        group = split_column(column)[0]
        counts = [s.counts.get(group, FEWEST) for s in self.runs.students]
        return min(counts) >= FEWEST

    def marks(self, column: str) -> dict[str, Mark]:
        """Of every method: whether it is the best, and how it compares with the baseline; of few images none."""
        if not self.enough(column):
            return dict.fromkeys(self.cells, Mark())
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
        for method, cells in self.cells.items():
            row: dict[str, Any] = {"method": method, "label": self.labels.get(method, ""), "seeds": self.seeds[method]}
            for name in self.columns:
                cell = cells.get(name)
                row |= {name: cell.mean if cell else None, f"{name} ±": cell.std if cell else None}
                row |= {f"{name} mark": str(marks[name][method])}
                if name in self.random:
                    row[random_of(name) or name] = self.random[name]
            if self.differences and HEADLINE in self.columns:
                value = self.difference(method, HEADLINE)
                row[f"vs {BASELINE}"] = value.difference if value else None
                row[f"vs {BASELINE} low"] = value.low if value else None
                row[f"vs {BASELINE} high"] = value.high if value else None
            rows.append(row)
        return rows

    def legend(self, best: str = BEST, sure: str = SURE) -> str:
        """What the marks mean; `best` and `sure` as they are written there."""
        text = f"{best}: best of the column" + " in its suite" * (len(set(self.runs.suites.values())) > 1)
        text += " over the seeds in common"
        few = f"Below {FEWEST} images nothing is marked."
        if not self.differences:
            return f"{text}. {few}"
        return (
            f"{text}; {MARKS[1]} better, {MARKS[-1]} worse than {BASELINE} over the seeds in common; {sure}: the 95 % "
            f"interval of that difference leaves zero out (Student’s t, not corrected for looking at many). {few}"
        )
