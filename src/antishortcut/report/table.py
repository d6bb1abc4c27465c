"""Students → one row per method, and paired differences to KD."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from antishortcut.errors import UserError, suggest
from antishortcut.experiments.printed import find
from antishortcut.report.collect import BASELINE, Found, Student
from antishortcut.report.paper_pairs import labels, pair_of, row_labels
from antishortcut.report.reader import CORRUPTIONS, GROUPS, MECHANISM, SCENES
from antishortcut.report.stats import Paired, Summary, paired, seeds_needed, sign_test, summary

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
    primary_metric: str = "accuracy"  # what `last` and `best` are, in words
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
            sources={name: " / ".join(outputs) for name, outputs in sources.items()},
            signs=_signs(rivals, every),
            labels=row_labels(found),
            told=tuple(f"{suite}: {label}." for suite, each in labels(found).items() for label in each),
            primary_metric=" / ".join(dict.fromkeys(words(student.primary_metric) for student in found.students)),
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
            way, (ours, reference) = better(name), in_pairs(group, base, name)
            if way and ours and pair_of(group[0].run) == RIVALS:
                signs.setdefault(method, {})[name] = sign_test([way * x for x in ours], [way * x for x in reference])
    return signs


def against(group: Sequence[Student], reference: Sequence[Student], column: str) -> Paired | None:
    """The difference to the reference over the seeds in common, None when there are none."""
    ours, other = in_pairs(group, reference, column)
    return paired(ours, other) if ours else None


def in_pairs(group: Sequence[Student], reference: Sequence[Student], column: str) -> tuple[list[float], list[float]]:
    """The values of both over the seeds in common."""
    ours, other = ({s.run.seed: s.values[column] for s in side if column in s.values} for side in (group, reference))
    seeds = sorted(ours.keys() & other.keys())
    return [ours[seed] for seed in seeds], [other[seed] for seed in seeds]


# --- Columns of the tables ---

KINDS = {  # of corruptions, in the paper's words (S-Sec. A.3)
    "texture": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
}


class Metric(NamedTuple):
    label: str
    higher_is_better: bool | None = None  # None: neither way is better
    format: str = ".3f"


class Evaluation(NamedTuple):
    metrics: dict[str, Metric]
    first: tuple[str, ...] = ()  # metrics of the first table


ANY = Evaluation(  # metrics of every set of images
    {
        "accuracy": Metric("accuracy", True),
        "miou": Metric("mIoU", True),
        "error": Metric("error", False),
        "shape_bias": Metric("shape bias", True),
        "accuracy_overlap": Metric("accuracy overlap", True),
        "clean_accuracy": Metric("clean accuracy", True),
        "clean_error": Metric("clean error", False),
        "gap": Metric("gap", False),
    },
    first=("miou", "accuracy", "shape_bias"),
)
EVALUATIONS = {  # in the order of the columns
    "training": Evaluation({"last": Metric("last", True), "best": Metric("best", True)}, first=("last", "best")),
    CORRUPTIONS: Evaluation(
        {
            "mce": Metric("mCE", False),
            "mce_all": Metric("mCE, all severities", False),
            "mce_relative": Metric("relative mCE", False),
            "mce_relative_5": Metric("relative mCE, severity 5", False),
            **{kind: Metric(kind, False) for kind in KINDS},
            **{f"{kind}_all": Metric(f"{kind} all", False) for kind in KINDS},
        },
        first=("mce", "mce_relative"),
    ),
    "stylized": Evaluation({}, first=("accuracy", "gap")),
    "cue-conflict": Evaluation({}, first=ANY.first),
    "imagenet-r": Evaluation({}, first=("accuracy", "accuracy_overlap")),
    "imagenet-a": Evaluation({}, first=("accuracy", "accuracy_overlap")),
    GROUPS: Evaluation(
        {
            "worst_group": Metric("worst group", True),
            "mean_group": Metric("mean group", True),
            "adjusted": Metric("adjusted", True),
        },
        first=("worst_group", "mean_group"),
    ),
    "attack": Evaluation(
        {key: Metric(key, True) for key in ("clean", "1/255", "2/255", "4/255", "8/255")}, first=("1/255", "4/255")
    ),
    "hard": Evaluation(  # images that T_early gets wrong, and right
        {
            "hard_accuracy": Metric("hard accuracy", True),
            "easy_accuracy": Metric("easy accuracy", True),
            "balanced_accuracy": Metric("balanced accuracy", True),
        },
        first=("hard_accuracy", "balanced_accuracy"),
    ),
    SCENES: Evaluation({"agreement": Metric("agreement with the teacher")}, first=("agreement",)),
    MECHANISM: Evaluation(
        {
            "cos_final": Metric("cosine to T_final"),
            "cos_early": Metric("cosine to T_early"),
            "closer_final": Metric("closer to T_final"),
            "closer_to_final": Metric("closer to T_final"),
            "signed_cosine": Metric("signed cosine"),
            "signed_above": Metric("above −0.1"),
            "projection": Metric("on shortcut directions"),
            "robust_projection": Metric("on robust directions"),
            "projection_change": Metric("change against kd", format="+.3f"),
            "projection_final": Metric("T_final on shortcut directions"),
            "projection_early": Metric("T_early on shortcut directions"),
            "hinge_share": Metric("share above the hinge"),
            "hinge_mean": Metric("mean above the hinge"),
            "infonce_binary": Metric("InfoNCE, binary"),
            "infonce_full": Metric("InfoNCE, full"),
            "infonce_ceiling": Metric("its ceiling"),
            "head_share": Metric("head’s share of shortcut directions"),
            "shift_largest": Metric("largest logit shift"),
            "shift_bound": Metric("its bound"),
        },
        first=("cos_final", "cos_early", "projection"),
    ),
}
ORDER = list(EVALUATIONS)
LABELS = {key: metric.label for each in (ANY, *EVALUATIONS.values()) for key, metric in each.metrics.items()}
FEW = 3  # numbers of a score file that the first table shows when it knows none of them
VIEWS = ("aligned", "raw", "projector")  # of the mechanism; the first there is stands in the first table
RANDOM = {  # measure of the mechanism → what a random direction would have
    "projection": "projection_random",
    "projection_final": "projection_random",
    "projection_early": "projection_random",
    "robust_projection": "robust_random",
    "head_share": "head_random",
}
PROJECTIONS = ("projection", "robust_projection")  # of the student, those that are drawn
BASELINES = {*RANDOM.values(), "random"}


def parts(column: str) -> tuple[str, str]:
    """("conflict", "accuracy"): the set, or the mechanism's view, and the score."""
    group, _, score = column.rpartition(" ")
    return group or "training", score


def _evaluation(group: str) -> str:
    """ "mechanism" of "mechanism raw", "corruptions" of "corruptions@15%"."""
    return group.split(" ")[0].split("@")[0]


def metric(column: str) -> Metric:
    """What is known of a column; of a score that nobody has described, its name."""
    group, score = parts(column)
    name = _evaluation(group)
    known = EVALUATIONS.get(name, ANY).metrics
    if score not in known and name != MECHANISM:
        known = ANY.metrics
    return known.get(score, Metric(words(score)))


def better(column: str) -> int:
    """1 where more is better, −1 where less is, 0 where neither can be said."""
    higher = metric(column).higher_is_better
    return 0 if higher is None else 1 if higher else -1


def arrow(column: str) -> str:
    return {1: "↑", -1: "↓", 0: ""}[better(column)]


def words(score: str) -> str:
    """A score's name for a person."""
    return LABELS.get(score, score.replace("_", " "))


def opening(text: str) -> str:
    """Words that open a title: Accuracy, but mIoU."""
    return text if text[:2] == "mI" else text[:1].upper() + text[1:]


def random_of(column: str) -> str | None:
    """The column that says how far a random direction would project, for a column that is a projection."""
    group, score = parts(column)
    return f"{group} {RANDOM[score]}" if score in RANDOM and group.startswith(MECHANISM) else None


def ordered(names: Iterable[str]) -> list[str]:
    """last, best, the data's own sets by name, shifted sets, the mechanism; within a set mIoU, then as in its file."""
    return sorted(dict.fromkeys(names), key=_place)


def _place(column: str) -> tuple[float, int, str, bool]:
    group, score = parts(column)
    name, view = _evaluation(group), group.partition(" ")[2]
    place = ORDER.index(name) if name in ORDER else 0.5  # the data's own sets follow the training
    return place, VIEWS.index(view) if view in VIEWS else len(VIEWS), group, score != "miou"


def view_of(names: Iterable[str]) -> str | None:
    """The view that the first table shows: one ruler for all methods."""
    views = {parts(name)[0].partition(" ")[2] for name in names if name.startswith(f"{MECHANISM} ")} - {""}
    return next((view for view in VIEWS if view in views), min(views, default=None))


def shown(names: Sequence[str]) -> list[str]:
    """The columns of the first table: a few of every set; all others are further down the page."""
    view = view_of(names)
    sets: dict[str, list[str]] = {}
    for name in names:
        sets.setdefault(parts(name)[0], []).append(name)
    result: list[str] = []
    for group, columns in sets.items():
        name = _evaluation(group)
        usual = [column for column in columns if parts(column)[1] in EVALUATIONS.get(name, ANY).first]
        if name != MECHANISM:
            result += usual or columns[:FEW]
        elif group == f"{MECHANISM} {view}":
            result += usual
    return result


def chosen(wanted: str, names: Sequence[str], flag: str = "--columns") -> list[str]:
    """--columns "last,conflict accuracy,mce": whole names, or their ends where only one column ends so."""
    result: dict[str, None] = {}
    for word in (word for part in wanted.split(",") if (word := " ".join(part.split()))):
        matches = [name for name in names if name == word] or [name for name in names if name.endswith(f" {word}")]
        if not matches:
            ends = suggest(word, dict.fromkeys(parts(name)[1] for name in names))
            hint = suggest(word, names)
            hint = ends if ends.startswith("; did") and not hint.startswith("; did") else hint
            raise UserError(f"{flag}: no column {word!r} here{hint}")
        if len(matches) > 1:
            raise UserError(f"{flag}: {word!r} may be {' or '.join(repr(name) for name in matches)}; write it out")
        result[matches[0]] = None
    if not result:
        raise UserError(f"{flag} names no column; known: {', '.join(names)}")
    return list(result)


# --- Marks beside a mean ---

BEST, SURE = "★", "*"
MARKS = {1: "▲", -1: "▼", 0: ""}  # better than the baseline, worse, neither


@dataclass(frozen=True)
class Mark:
    """Of one method in one column."""

    best: bool = False
    way: int = 0  # 1 better than the baseline, −1 worse, 0 the same, or not compared
    sure: bool = False  # the interval of the difference leaves zero out

    @property
    def against(self) -> str:
        return MARKS[self.way] + SURE * self.sure

    @property
    def words(self) -> str:
        """The same for those who hear the page."""
        message = {1: f"better than {BASELINE}", -1: f"worse than {BASELINE}", 0: ""}[self.way]
        return message + ", the interval leaves zero out" * self.sure

    def __str__(self) -> str:
        return BEST * self.best + self.against


def mark(column: str, value: Paired | None, best: bool) -> Mark:
    """From the difference to the baseline, seed by seed; without one, only whether it is the best."""
    if value is None or value.difference == 0:
        return Mark(best)
    return Mark(best, better(column) * (1 if value.difference > 0 else -1), leaves_zero_out(value))


def leaves_zero_out(value: Paired) -> bool:
    """Whether the interval does; one pair has none."""
    return value.low is not None and value.high is not None and not value.low <= 0 <= value.high


def legend(compared: bool, suites: int = 1, best: str = BEST, sure: str = SURE) -> str:
    """What the marks mean, in a line; `best` and `sure` as they are written there."""
    message = f"{best}: best of the column" + " in its suite" * (suites > 1)
    if not compared:
        return f"{message}."
    return (
        f"{message}; {MARKS[1]} better, {MARKS[-1]} worse than {BASELINE} over the seeds in common; {sure}: the 95 % "
        "interval of that difference leaves zero out (Student’s t, not corrected for looking at many)."
    )


# --- Paired differences to the baseline ---

POWER = 0.8
MOST = 1000  # seeds needed that are still written out


@dataclass(frozen=True)
class Difference:
    """Of a method to the baseline of its suite, or to CRD, in one column."""

    method: str
    column: str
    value: Paired
    p: float | None  # of the paper's sign test, where it has one
    reference: str = BASELINE

    @property
    def title(self) -> str:
        """The method, with whom it is compared where that is not the baseline."""
        return self.method if self.reference == BASELINE else f"{self.method} against {self.reference}"

    @property
    def needed(self) -> int | None:
        return None if self.value.effect is None else _needed(abs(self.value.effect))

    @property
    def seeds(self) -> str:
        """How many seeds it would need, for a person."""
        needed = self.needed
        return "–" if needed is None else f">{MOST}" if needed > MOST else str(needed)

    def texts(self, tested: bool) -> list[str]:
        value = self.value
        message = [signed(value.difference), interval(value), signed(value.effect, 2), str(value.count), self.seeds]
        return [self.title, self.column, *message, *(["–" if self.p is None else f"{self.p:.3f}"] if tested else [])]

    def flat(self) -> dict[str, Any]:
        value = self.value
        return {
            "method": self.method,
            "reference": self.reference,
            "score": self.column,
            "difference": value.difference,
            "low": value.low,
            "high": value.high,
            "effect": value.effect,
            "pairs": value.count,
            "seeds_needed": self.needed,
        } | ({} if self.p is None else {"sign_test": self.p})


@dataclass(frozen=True)
class Differences:
    """All of a table's, method by method."""

    each: tuple[Difference, ...]

    @classmethod
    def of(cls, table: Table) -> Differences:
        each = [
            Difference(method, column, values[column], None)
            for method, values in table.differences.items()
            for column in table.compared()
            if column in values
        ]
        each += [
            Difference(method, column, values[column], table.signs.get(method, {}).get(column), RIVAL)
            for method, values in table.rivalry.items()
            for column in table.compared()
            if column in values
        ]
        return cls(tuple(each))

    @property
    def rows(self) -> dict[str, dict[str, Difference]]:
        """By title and column."""
        rows: dict[str, dict[str, Difference]] = {}
        for one in self.each:
            rows.setdefault(one.title, {})[one.column] = one
        return rows

    @property
    def references(self) -> str:
        """With whom methods are compared."""
        return " and ".join(dict.fromkeys(one.reference for one in self.each))

    @property
    def tested(self) -> bool:
        return any(one.p is not None for one in self.each)

    def head(self) -> list[str]:
        usual = ["method", "score", "difference", "95 % interval", "effect d_z", "pairs", "seeds needed"]
        return usual + ["sign test p"] * self.tested

    def texts(self) -> list[list[str]]:
        return [one.texts(self.tested) for one in self.each]

    def flat(self) -> list[dict[str, Any]]:
        return [one.flat() for one in self.each]

    def told(self) -> list[str]:
        """How to read the table."""
        lines = [
            f"Seeds needed: to show a true difference and spread like those seen here, with a power of {POWER} at the "
            "5 % level (two-sided paired t test); – where it has no spread to go by."
        ]
        if self.tested:
            printed = find("S-Sec. A.6", CHALLENGER, RIVALS, "p of the one-sided sign test").mean
            lines.append(
                f"Sign test: the paper’s own (S-Sec. A.6, which has {printed:g}), one-sided p of being better than "
                f"{RIVAL} by signs alone. Three seeds cannot give less than 0.125; the interval says more."
            )
        return lines


@lru_cache(maxsize=4096)
def _needed(effect: float) -> int | None:
    """It depends on d_z alone; no number of seeds shows a difference of zero."""
    return seeds_needed(effect, 1.0, POWER) if effect > 0 else None
