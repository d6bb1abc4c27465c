"""Runs → lines over one numeric setting: a line's runs differ in nothing but it, the seed and the name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from antishortcut.errors import UserError, near
from antishortcut.report.collect import Student, natural
from antishortcut.report.reading import number
from antishortcut.report.settings import flat

ASIDE = {"kind", "suite", "name", "seed", "teacher", "early", "keep"}  # a line's runs may differ in these
OPTIONS = "options."  # of the method; a person may leave it out
WORD = 24  # characters of a setting in a label
Fields = dict[str, Any]  # dotted name → value


@dataclass(frozen=True)
class Point:
    """The seeds of one suite at one value of the setting."""

    value: float
    students: tuple[Student, ...]

    @property
    def suite(self) -> str:
        return self.students[0].run.suite

    @property
    def method(self) -> str:
        return self.students[0].method


@dataclass(frozen=True)
class Line:
    """Two values of the setting or more, from the smallest."""

    label: str
    suite: str | None  # None where every value has a suite of its own
    fields: Fields  # what its runs share
    points: tuple[Point, ...]


def lines_over(key: str, students: Sequence[Student]) -> list[Line]:
    """All lines with two values or more, suite by suite."""
    settings = [_settings(s) for s in students]
    field = _field(key, settings)
    groups: dict[str, tuple[Fields, list[tuple[float, Student]]]] = {}
    for s, fields in zip(students, settings, strict=True):
        if isinstance(value := fields.pop(field, None), float):
            if field.startswith("data."):
                del fields["fingerprint"]  # other data by design
            groups.setdefault(repr(sorted(fields.items())), (fields, []))[1].append((value, s))
    found = [line for fields, runs in groups.values() for line in _parted(fields, runs) if len(line.points) > 1]
    if not found:
        values = sorted({value for _, runs in groups.values() for value, _ in runs})
        raise UserError(
            f"--sweep {key}: no two runs differ in nothing but it, their seeds and names; its values here: "
            + ", ".join(f"{value:g}" for value in values)
        )
    return _labelled(found)


def _settings(student: Student) -> Fields:
    """What decides the result, as dotted names; a number is a number, however it was written."""
    fields = dict(flat(student.run.model_dump(mode="json", exclude=ASIDE)))
    del fields["model.weights"]  # their digest is there
    return {name: value if (x := number(value)) is None else x for name, value in fields.items()}


def _field(key: str, settings: Sequence[Fields]) -> str:
    """The dotted name that a person means by `strength` or `optim.rate`."""
    values: dict[str, set[float]] = {}
    for fields in settings:
        for name, value in fields.items():
            if isinstance(value, float):
                values.setdefault(name, set()).add(value)
    for name in (key, OPTIONS + key):
        if name in values:
            return name
    if not values:
        raise UserError(f"--sweep {key}: no finished student here yet")
    known = {name.removeprefix(OPTIONS): len(seen) for name, seen in values.items()}
    hint = near(key, known)
    if not hint.startswith("; did"):  # rather the names that end so, or those that vary, than all
        ends = [name for name in known if name.endswith(f".{key}")]
        vary = [name for name, count in known.items() if count > 1]
        hint = f"; did you mean {' or '.join(map(repr, ends))}?" if ends else near(key, vary or known)
    raise UserError(f"--sweep: no run here has {key!r} as a number{hint}")


def _parted(fields: Fields, runs: list[tuple[float, Student]]) -> Iterator[Line]:
    """Runs with equal settings, apart by suite unless every value has a suite of its own."""
    teachers = dict.fromkeys(str(s.run.teacher) for _, s in runs)
    first: dict[tuple[str, float, int], Student] = {}  # a second one is the same run by another name
    for value, s in runs:
        one = first.setdefault((s.run.suite, value, s.run.seed), s)
        if one.run.hash != s.run.hash and len(teachers) > 1:  # or learns from another teacher
            for teacher in teachers:
                its = [(x, each) for x, each in runs if str(each.run.teacher) == teacher]
                yield from _parted(fields | {"teacher": teacher}, its)
            return
    held: dict[tuple[str, float], list[Student]] = {}
    for (suite, value, _), s in first.items():
        held.setdefault((suite, value), []).append(s)
    points = sorted((Point(value, tuple(group)) for (_, value), group in held.items()), key=lambda p: p.value)
    suites = dict.fromkeys(point.suite for point in points)
    if len(suites) == len(points) == len({point.value for point in points}) > 1:
        yield Line("", None, fields, tuple(points))
        return
    for suite in suites:
        yield Line("", suite, fields, tuple(point for point in points if point.suite == suite))


def _labelled(lines: list[Line]) -> list[Line]:
    """By suite; named by it, the method where there are several, and settings where these do not tell lines apart."""
    methods = list(dict.fromkeys(line.fields["method"] for line in lines))
    alike: dict[tuple[str | None, str], list[Fields]] = {}
    for line in lines:
        alike.setdefault((line.suite, line.fields["method"]), []).append(line.fields)
    differ = {group: _differing(fields) for group, fields in alike.items()}

    def order(line: Line) -> Any:
        method = line.fields["method"]
        values = [line.fields.get(name) for name in differ[line.suite, method]]
        ranks = [(0, value, "") if isinstance(value, float) else (1, 0.0, str(value)) for value in values]
        return natural(line.suite or ""), methods.index(method), ranks

    labelled: dict[str, Line] = {}
    for line in sorted(lines, key=order):
        method = line.fields["method"]
        words = [] if line.suite is None else [line.suite]
        words += [method] if len(methods) > 1 or line.suite is None else []
        words += [f"{name.rpartition('.')[2]}={_short(line.fields.get(name))}" for name in differ[line.suite, method]]
        label = " ".join(words)
        if label in labelled:  # told apart by what was cut off
            label += f" #{len(labelled)}"
        labelled[label] = replace(line, label=label)
    return list(labelled.values())


def _differing(several: list[Fields]) -> list[str]:
    """Names of settings that are not the same in all; the data's fingerprint only where nothing else tells."""
    names = dict.fromkeys(name for fields in several for name in fields)
    differ = [name for name in names if len({repr(fields.get(name)) for fields in several}) > 1]
    return [name for name in differ if name != "fingerprint"] or differ


def _short(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)[:WORD]
