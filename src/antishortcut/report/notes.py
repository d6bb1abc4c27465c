"""Settings, execution and versions of many runs: where they differ, and what a reader must know of it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from antishortcut.report.collect import Collected, StudentRun
from antishortcut.report.paper_pairs import dotted
from antishortcut.report.stats import paired
from antishortcut.report.table import ResultTable, interval, signed, words

ROUNDING = {  # execution settings that change last digits, and their defaults
    "precision": "32-true",
    "teacher_precision": "float32",
    "teacher_compile": "off",
    "compile": False,
    "micro_batches": 1,  # changes more than last digits where batch norm or a method sees only a micro-batch
}
Fields = list[tuple[str, str]]


def settings(runs: Collected) -> tuple[dict[str, dict[str, str]], Fields]:
    """Settings in which methods differ (field → method → value), and those all share."""
    methods = {method: _counted(_settings(students)) for method, students in runs.groups.items()}
    different, same = {}, []
    for field in dict.fromkeys(field for counts in methods.values() for field in counts):
        values = {method: ", ".join(counts.get(field, ["–"])) for method, counts in methods.items()}
        if len(set(values.values())) == 1:
            same.append((field, next(iter(values.values()))))
        else:
            different[field] = values
    return different, same


def _settings(students: Iterable[StudentRun]) -> list[dict[str, Any]]:
    return [student.run.model_dump(mode="json", exclude={"name", "seed"}) for student in students]


def _counted(trees: Iterable[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """Field → value → how many have it."""
    rows = [dict(dotted(tree)) for tree in trees]
    fields = dict.fromkeys(field for row in rows for field in row)
    return {field: Counter("–" if row.get(field) is None else str(row[field]) for row in rows) for field in fields}


def tally(trees: Iterable[Mapping[str, Any]]) -> Fields:
    """Values of each field over all runs, with how many runs have them where they differ."""
    return [(field, _listed(counts)) for field, counts in _counted(trees).items()]


def _listed(counts: Counter[str]) -> str:
    return ", ".join(value if len(counts) == 1 else f"{value} ({count} runs)" for value, count in counts.items())


def _grouped(pairs: Iterable[tuple[Any, str]]) -> dict[Any, list[str]]:
    """Key → its different values, in order."""
    groups: dict[Any, dict[str, None]] = {}
    for key, value in pairs:
        groups.setdefault(key, {})[value] = None
    return {key: list(values) for key, values in groups.items()}


def warnings(table: ResultTable) -> list[str]:
    """What a reader of the page must know before comparing."""
    runs, result = table.runs, list(table.suite_labels)
    few = runs.drawn.groups
    if len(few) < len(runs.groups):
        suites = ", ".join(dict.fromkeys(group[0].run.suite for group in few.values()))
        result.append(
            f"Charts show {len(few)} of {len(runs.groups)} methods, those of {suites}; the tables show all. "
            "A report on one suite’s folder draws that suite."
        )
    return [*result, *differences(runs)]


def differences(runs: Collected) -> list[str]:
    """Where runs that stand side by side were not trained, judged or computed alike."""
    students, result = runs.students, list[str]()
    seeds = {method: _counted(_settings(group)).items() for method, group in runs.groups.items()}
    mixed = _grouped((", ".join(f for f, counts in each if len(counts) > 1), method) for method, each in seeds.items())
    for fields, methods in mixed.items():
        result += [f"The seeds of {', '.join(methods)} differ in more than the seed: {fields}."] * bool(fields)
    metrics = _grouped((words(s.primary_metric), s.run.suite) for s in students)
    if len(metrics) > 1:
        scores = "; ".join(f"{score} ({', '.join(suites)})" for score, suites in metrics.items())
        result.append(f"Runs were judged by different scores, which last and best are: {scores}.")
    different = []
    for field, default in ROUNDING.items():  # those of the teacher count only in runs that have one
        own = [s for s in students if s.execution and (s.run.roles or not field.startswith("teacher_"))]
        counts = Counter(str(s.execution.get(field, default)) for s in own)
        different += [f"{field} {_listed(counts)}"] * (len(counts) > 1)
    if different:
        result.append(f"Runs were not all computed alike, which changes last digits: {'; '.join(different)}.")
    splits = sorted({student.eval_split for student in students})
    if len(splits) > 1:
        result.append(f"Runs were judged on different sets during training: {', '.join(splits)}.")
    for kind, text in (("sources", "come from different places"), ("marks", "are not the same")):
        values = _grouped(((s.run.suite, name), value) for s in students for name, value in getattr(s, kind).items())
        if sets := sorted({name for (_, name), each in values.items() if len(each) > 1}):
            result.append(f"The images of {', '.join(sets)} {text} for all runs: their numbers do not compare.")
    return result


def subtitle(runs: Collected) -> str:
    """What was compared, in a line."""
    each = [student.run for student in runs.students]
    names = ((r.model.name for r in each), (r.data.name for r in each), (r.length for r in each))
    texts = [" / ".join(dict.fromkeys(values)) for values in names]
    for count, word in ((len(runs.groups), "method"), (len(each), "finished run")):
        texts.append(f"{count} {word}{'s' * (count != 1)}")
    return " · ".join(text for text in texts if text)


def teacher_notes(runs: Collected) -> list[str]:
    """Whether the teacher is better than students trained on labels: a line for every suite that has both."""
    suites: dict[str, list[tuple[StudentRun, StudentRun]]] = {}  # suite → (teacher, student)
    for student in runs.students:
        teacher = runs.teacher_runs.get(student.run.teacher or "")
        scored = student.eval_split, student.primary_metric
        if teacher and not student.run.roles and (teacher.eval_split, teacher.primary_metric) == scored:
            suites.setdefault(student.run.suite, []).append((teacher, student))
    lines = []
    for suite, pairs in suites.items():
        if len(pairs) < 2:
            continue
        above, below = ([run.values["last"] for run in side] for side in zip(*pairs, strict=True))
        ahead, first = paired(above, below), pairs[0][1]
        line = (
            f"{suite}: the teacher has {words(first.primary_metric)} {fmean(above):.3f} on {first.eval_split}, "
            f"students trained on labels only {fmean(below):.3f}; difference {signed(ahead.difference)}, 95 % interval "
            f"{interval(ahead)}."
        )
        if ahead.low is not None and ahead.low <= 0:
            line += (
                f" With {len(pairs)} seeds we cannot tell whether the teacher beats training from labels, so do not "
                "rank the methods that learn from it."
            )
        lines.append(line)
    return lines
