"""What the numbers say, in two or three sentences made by rules; the page and the commands begin or end with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from antishortcut.evaluation import FOLDER
from antishortcut.report.collect import BASELINE, Collected, StudentRun
from antishortcut.report.reader import CORRUPTIONS, PROBES
from antishortcut.report.reference_rows import teacher_value
from antishortcut.report.stats import Paired
from antishortcut.report.table import FEWEST, ResultTable, better, leaves_zero_out, split_column

SUITES = 3  # that have a sentence; the tables have all
ORDINARY = ("iid", "test")  # what data sets call their first test set
ONE_SEED = "One seed: a sign, not a proof."
UNSCORED = "Nothing is scored yet where a shortcut would fail"
HOW = "asd evaluate RUN --on probes, or --on NAME=FOLDER with images you fear"
VERBS = {  # primary metric → what comes before its numbers
    "accuracy": ("is right in ", "in "),
    "agreement": ("answers as its teacher in ", "in "),
    "miou": ("has mIoU ", ""),
    "cosine": ("has a cosine to its teacher of ", ""),
}
FEARED = {  # set and score → in words, the hardest evidence first; {cue} is what the shortcut is
    "conflict {metric}": "when the {cue} lies",
    "without {metric}": "without the {cue}",
    "uncorrelated {metric}": "when the {cue} is random",
    f"{FOLDER} accuracy": "on {name}",
    "groups worst_group": "in the worst group",
    "stylized accuracy": "on stylised copies",
    "imagenet-r accuracy": "on ImageNet-R",
    "imagenet-a accuracy": "on ImageNet-A",
    f"{CORRUPTIONS} mce": "under the strongest corruptions",
    "hard hard_accuracy": "on those that T_early gets wrong",
}
LEANS = {"texture_share": "leans on texture", "needs_colour": "needs colour", "surround_share": "looks at the surround"}
NEAR = 0.05  # above chance: such a teacher knows nothing there; between shares of probes: as good as equal
SAME = 0.01  # states that differ by less on every set are taken as one


@dataclass(frozen=True)
class ScoredSet:
    """A column, and the images it was measured on in words."""

    column: str
    words: str

    @property
    def name(self) -> str:
        return split_column(self.column)[0]

    @property
    def score(self) -> str:
        return split_column(self.column)[1]

    def share(self, value: float) -> float:
        """An error as the share of right answers."""
        return 1 - value if better(self.column) < 0 else value


@dataclass(frozen=True)
class Overview:
    """The methods of one suite: on which sets they are compared, which one stands for the others, and its teacher."""

    table: ResultTable
    suite: str

    @cached_property
    def groups(self) -> dict[str, list[StudentRun]]:
        runs = self.table.runs
        return {method: group for method, group in runs.groups.items() if runs.suites[method] == self.suite}

    @cached_property
    def first(self) -> StudentRun:
        return next(iter(self.groups.values()))[0]

    @cached_property
    def metric(self) -> str:
        return self.first.primary_metric

    @cached_property
    def ordinary(self) -> ScoredSet:
        """The first test set, or the score of the training."""
        names = [f"{name} {self.metric}" for name in (*ORDINARY, self.first.eval_split)]
        return ScoredSet(next((name for name in names if self._scored(name)), "last"), "On ordinary images")

    @cached_property
    def feared(self) -> list[ScoredSet]:
        """Sets on which a shortcut fails, the most telling first."""
        cue = "texture" if self.first.run.data.name.startswith("cues") else "shortcut"
        result = []
        for pattern, words in FEARED.items():
            column = pattern.format(metric=self.metric)
            own = [name for name in self.table.every if split_column(name)[0].startswith(f"{FOLDER} ")]
            names = [name for name in own if name.endswith(" accuracy")] if column.startswith(FOLDER) else [column]
            for name in names:
                title = split_column(name)[0].removeprefix(f"{FOLDER} ")
                if self._scored(name):
                    result.append(ScoredSet(name, words.format(cue=cue, name=title)))
        return result

    def _scored(self, column: str) -> bool:
        return any(column in student.values for group in self.groups.values() for student in group)

    def mean(self, method: str, scored: ScoredSet) -> float | None:
        cell = self.table.cells[method].get(scored.column)
        return None if cell is None else scored.share(cell.mean)

    @cached_property
    def baseline(self) -> str | None:
        return next((method for method, group in self.groups.items() if group[0].run.name == BASELINE), None)

    @cached_property
    def candidates(self) -> list[str]:
        """What kd is compared with: methods that learn from a teacher; those that cost no ordinary accuracy if any."""
        others = [method for method in self.groups if method != self.baseline]
        taught = [method for method in others if self.groups[method][0].run.roles]
        known = [method for method in taught or others if self.mean(method, self.target) is not None]
        return [method for method in known if not self._pays(method)] or known

    @cached_property
    def target(self) -> ScoredSet:
        return self.feared[0] if self.feared else self.ordinary

    @cached_property
    def chosen(self) -> str:
        """The best on the feared set."""
        if not self.candidates:
            return self.baseline or next(iter(self.groups))
        return max(self.candidates, key=lambda method: self.mean(method, self.target) or 0.0)

    def _pays(self, method: str) -> bool:
        """Whether it is below kd on ordinary images: by the interval over seeds, of one seed by that over images."""
        value = self.table.difference(method, self.ordinary.column)
        if value is None or self.baseline is None:
            return False
        if value.high is not None:
            return value.high < 0
        count = self.first.counts.get(self.ordinary.name)
        if not count:
            return value.difference < 0
        both = [self.mean(each, self.ordinary) or 0.0 for each in (method, self.baseline)]
        return value.difference < -1.96 * math.sqrt(sum(max(0.0, p * (1 - p)) / count for p in both))

    def teacher(self, scored: ScoredSet, early: bool = False) -> float | None:
        """The score of the chosen student's teacher, mean over those of its seeds."""
        values = []
        for student in self.groups[self.chosen]:
            value = teacher_value(self.table.runs, student, scored.column, early)
            if value is None:
                return None
            values.append(scored.share(value))
        return fmean(values)

    @cached_property
    def difference(self) -> Paired | None:
        """Of the chosen method to kd on the feared set."""
        return self.table.difference(self.chosen, self.target.column)

    def chance(self, scored: ScoredSet) -> float | None:
        """The share that guessing gets right, where the number of classes is known."""
        known = self.first.values.get(f"{scored.name} chance")
        count = self.first.class_count
        return known or (1 / count if count and self.metric == "accuracy" else None)


def overviews(table: ResultTable) -> list[Overview]:
    return [Overview(table, suite) for suite in dict.fromkeys(table.runs.suites.values())]


def sentences(runs: Collected) -> list[str]:
    """Of one suite two or three; of several the first of each, and where the others are."""
    each = overviews(ResultTable(runs))
    if len(each) == 1:
        return _sentences(each[0])
    lines = [f"{one.suite}: {' '.join([_numbers(one), *_limits(one)])}" for one in each[:SUITES]]
    more = [f"{len(each) - SUITES} more suites are in the tables."] if len(each) > SUITES else []
    return lines + more


def _sentences(one: Overview) -> list[str]:
    lines = [_numbers(one)]
    if all(scored.name == "hard" for scored in one.feared):
        lines.append(_probed(one))
    lines += _limits(one)
    return [*lines, " ".join([_seeds(one), *_few_images(one)]), *_images(one)]


def _images(one: Overview) -> list[str]:
    compared = [student for name in (one.chosen, one.baseline) if name for student in one.groups[name]]
    if len({student.run.fingerprint for student in compared}) == 1:
        return []
    return ["Its runs were not all trained on the same images, so their numbers do not compare."]


def _numbers(one: Overview) -> str:
    """On ordinary images asd is right in 93 %, when the texture lies in 48 %; kd in 92 % and 19 %."""
    verb, before = VERBS.get(one.metric, (f"has {one.metric} ", ""))
    feared = one.feared[0] if one.feared else None
    among = ""
    if len(one.candidates) > 1:
        enough = one.table.enough(one.target.column)
        among = f" (best of {len(one.candidates)})" if enough else f" (of {len(one.candidates)}, on few images)"
    name = _method(one, one.chosen) + among
    here = one.mean(one.chosen, one.ordinary)
    text = f"{one.ordinary.words} {name} {verb}{_amount(one, here)}"
    if feared:
        text += f", {feared.words} {before}{_amount(one, one.mean(one.chosen, feared))}"
    others = {}
    if one.baseline is not None and one.baseline != one.chosen:
        others[BASELINE] = [one.mean(one.baseline, scored) for scored in (one.ordinary, feared) if scored]
    if one.metric in ("accuracy", "miou"):
        others["its teacher"] = [one.teacher(scored) for scored in (one.ordinary, feared) if scored]
    beside = [f"{who} {before}{pair}" for who, values in others.items() if (pair := _pair(one, values))]
    return text + "".join(f"{'; ' if at == 0 else ', '}{part}" for at, part in enumerate(beside)) + "."


def _method(one: Overview, method: str) -> str:
    """Without its suite."""
    return one.groups[method][0].run.name


def _amount(one: Overview, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.0f} %" if one.metric in ("accuracy", "agreement") else f"{value:.2f}"


def _pair(one: Overview, values: list[float | None]) -> str:
    """On ordinary and on feared images, or on which of them."""
    known = [_amount(one, value) for value in values if value is not None]
    if len(known) == len(values):
        return " and ".join(known)
    return f"{known[0]} {'there' if values[0] is None else 'on ordinary ones'}" if known else ""


def _probed(one: Overview) -> str:
    """What takes the place of a feared set: the probes, or how to have them."""
    student = one.groups[one.chosen][0]
    values: Mapping[str, float] = student.values
    right = min((each.get("whole", 1.0) for each in student.probes.values()), default=1.0)
    right *= student.counts.get(PROBES) or math.inf  # answers whose shares are compared; few say little
    near = max(NEAR, 1 / math.sqrt(max(right, 1.0)))
    known = {leans: own for name, leans in LEANS.items() if (own := values.get(f"probes {name}")) is not None}
    if not known:
        return f"{UNSCORED}: {HOW}." if one.metric == "accuracy" else f"{UNSCORED}."
    if right < FEWEST:
        return f"The probes have only {right:.0f} correct answers to go by: too few to say what it relies on."
    pairs = [(LEANS[name], values.get(f"probes {name}"), values.get(f"probes {name}_final")) for name in LEANS]
    ways: dict[str, list[tuple[str, str]]] = {"more": [], "less": [], "about as much": []}
    for leans, own, final in pairs:
        if own is not None and final is not None:
            way = "more" if own > final + near else "less" if own < final - near else "about as much"
            ways[way].append((leans, f"{own:.2f} against {final:.2f}"))
    parts = [
        f"{_listed([leans for leans, _ in each])} {way} ({', '.join(numbers for _, numbers in each)})"
        for way, each in ways.items()
        if each
    ]
    if parts:
        return f"Beside its teacher it {_listed(parts, ', ')}."
    return f"With evidence taken away it {_listed([f'{leans} ({own:.2f})' for leans, own in known.items()])}."


def _listed(words: list[str], last: str = " and ") -> str:
    *most, end = words
    return f"{', '.join(most)}{last}{end}" if most else end


def _limits(one: Overview) -> list[str]:
    """Where the teacher has nothing to hand down, or T_early nothing to keep away from."""
    known = []
    for scored in (one.ordinary, *one.feared):
        where = "there" if one.feared and scored is one.target else scored.words[:1].lower() + scored.words[1:]
        known.append((where, one.teacher(scored), one.teacher(scored, early=True), one.chance(scored)))
    lines, (_, _, early, chance) = teacher_limits(known), known[0]
    uses = "early" in one.groups[one.chosen][0].run.roles
    if uses and not lines and early is not None and chance is not None and early <= min(2 * chance, chance + NEAR):
        lines.append(f"T_early is hardly better than chance ({100 * chance:.0f} %): it has no easy cues to show yet.")
    return lines


def teacher_limits(scored: Iterable[tuple[str, float | None, float | None, float | None]]) -> list[str]:
    """Where a teacher has nothing to hand down, in sentences.

    scored: where ("on sketch"), the shares that T_final, T_early and guessing get right there; None: not known.
    """
    scored = list(scored)
    lines = [
        f"Its teacher is hardly better than chance {where} ({100 * chance:.0f} %): nothing can be handed down."
        for where, final, _, chance in scored
        if final is not None and chance is not None and final <= chance + NEAR
    ]
    gaps = [abs(final - early) for _, final, early, _ in scored if final is not None and early is not None]
    if not lines and gaps and max(gaps) < SAME:
        lines.append("T_early and T_final score the same: there is nothing early to keep away from.")
    return lines


def _few_images(one: Overview) -> list[str]:
    """How much is luck in a small test set: the 95 % interval of a difference of two shares."""
    count, share = one.first.counts.get(one.ordinary.name), one.mean(one.chosen, one.ordinary)
    if one.metric != "accuracy" or share is None or not count or count >= FEWEST:
        return []
    points = 100 * 1.96 * math.sqrt(2 * max(share * (1 - share), 0.05) / count)
    return [f"Only {count:.0f} test images: a difference of less than {points:.0f} points may be luck."]


def _seeds(one: Overview) -> str:
    value, seeds = one.difference, len(one.groups[one.chosen])
    if seeds == 1 or (value is not None and value.count == 1):
        return ONE_SEED
    if value is None or value.low is None or value.high is None:
        alone = f", without a {BASELINE} to compare with" if one.baseline is None else ""
        return f"Means over {seeds} seeds{alone}."
    sign = better(one.target.column)
    low, high = sorted((100 * sign * value.low, 100 * sign * value.high))
    points = 100 * sign * value.difference
    side = "above" if points >= 0 else "below"
    verdict = "leaves zero out" if leaves_zero_out(value) else "includes zero: not shown"
    where = one.target.words if one.feared else one.ordinary.words.lower()
    ends = f"{low:+.0f} … {high:+.0f}".replace("-", "−")
    return (
        f"Over {value.count} seeds it is {abs(points):.0f} points {side} {BASELINE} {where}; "
        f"the 95 % interval ({ends}) {verdict}."
    )
