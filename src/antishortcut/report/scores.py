"""scores/ and artifacts/ of a run → numbers by name, and what figures are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from antishortcut.report.reading import Notes, number, numbers, readable, tree

CORRUPTIONS, GROUPS, MECHANISM, SCENES = "corruptions", "groups", "mechanism", "scenes"
COST = "cost"
SEVERITIES = 5
BARS = 200  # bins of a histogram
POINTS = 2_000  # of an embedding
CLASSES = 1_000  # of a table of classes
MASKED = 255  # classes of a mask, which has a byte for each pixel
COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
WORD = 60  # characters of a name shown


@dataclass(frozen=True)
class Scores:
    """What evaluations found out about one run."""

    values: dict[str, float] = field(default_factory=dict)  # "<set> <score>"; "mechanism <view> <measure>"
    sources: dict[str, str] = field(default_factory=dict)  # set → official, generated or given
    marks: dict[str, str] = field(default_factory=dict)  # set → fingerprint of what was scored
    references: dict[str, str] = field(default_factory=dict)  # set → the run that its relative scores are relative to
    errors: dict[str, tuple[float, ...]] = field(default_factory=dict)  # corruption → error at severity 1 … 5
    groups: dict[str, float] = field(default_factory=dict)  # group with its number of images → accuracy
    classes: dict[str, dict[str, float | None]] = field(default_factory=dict)  # set → class → IoU, None if not seen
    cost: dict[str, float] = field(default_factory=dict)  # of the network, which is no score of its answers
    machines: list[str] = field(default_factory=list)  # on which it was measured


@dataclass(frozen=True)
class Histogram:
    """Shares of the samples between edges; one edge more than shares."""

    edges: tuple[float, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Embedding:
    """The same samples in two planes."""

    method: str
    label: tuple[str, ...]
    teacher: tuple[tuple[float, float], ...]
    student: tuple[tuple[float, float], ...]
    colours: dict[str, str] = field(default_factory=dict)  # class → its colour in masks, where samples are locations


def read_scores(place: Path, name: str, notes: Notes) -> Scores:
    """All of scores/<set>.json; a file that cannot be read is noted under the run's name."""
    scores = Scores()
    for path in sorted((place / "scores").glob("*.json")):
        label = f"{name}/scores/{path.name}"
        notes.attempt(label, partial(_take, scores, path), None)
    return scores


def _take(scores: Scores, path: Path) -> None:
    name, found = readable(path.stem), tree(path)
    values = dict(_flat(name, found["values"]))
    if not values:
        raise ValueError("no finite number among its values")
    if name.partition("@")[0] == COST:
        if name == COST:
            scores.cost.update({key.partition(" ")[2]: value for key, value in values.items()})
            scores.machines.append(str(found.get("machine", ""))[: 2 * WORD])
        return
    scores.values.update(values)
    for kept, key in ((scores.sources, "source"), (scores.marks, "fingerprint")):
        if isinstance(found.get(key), str):
            kept[name] = found[key][:WORD]
    if isinstance(found.get("reference"), dict):
        scores.references[name] = str(found["reference"].get("run", "?"))[-WORD:]
    if name == CORRUPTIONS and "errors" in found:
        errors = {str(key): numbers(each, SEVERITIES) for key, each in found["errors"].items()}
        scores.errors.update({key: each for key, each in errors.items() if len(each) == SEVERITIES})
    if name == GROUPS and "groups" in found:
        accuracies = {
            f"{key} ({each.get('count', '?')})": number(each["accuracy"]) for key, each in found["groups"].items()
        }
        scores.groups.update({key: value for key, value in accuracies.items() if value is not None})
    if isinstance(found.get("classes"), dict) and len(found["classes"]) <= CLASSES:
        held = {str(key)[:WORD]: number(value) for key, value in found["classes"].items()}
        scores.classes.update({name: held} if any(value is not None for value in held.values()) else {})


def _flat(name: str, values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """ "<set> <score>" of a plain file, "mechanism <view> <measure>" of one that has views."""
    for key, raw in values.items():
        if name == MECHANISM and isinstance(raw, dict):
            yield from ((f"{name} {key} {what}", value) for what, x in raw.items() if (value := number(x)) is not None)
        elif name != MECHANISM and (value := number(raw)) is not None:
            yield f"{name} {key}", value


def read_histograms(place: Path, name: str, notes: Notes) -> dict[str, dict[str, Histogram]]:
    """View → measure → histogram."""
    label = f"{name}/artifacts/mechanism.json"
    none: dict[str, Any] = {}
    views = notes.attempt(label, lambda: dict(tree(place / "artifacts" / "mechanism.json").get("views", {})), none)
    found: dict[str, dict[str, Histogram]] = {}
    for view, held in views.items():
        for what, raw in notes.attempt(label, partial(_held, held), none).items():
            shares = notes.attempt(label, partial(_histogram, raw), None)
            if shares is not None:
                found.setdefault(str(view), {})[str(what)] = shares
    return found


def _held(view: dict[str, Any]) -> dict[str, Any]:
    return dict(view["histograms"])


def _histogram(raw: dict[str, Any]) -> Histogram:
    edges, counts = numbers(raw["edges"], BARS + 1), numbers(raw["counts"], BARS)
    total = sum(counts)
    if len(edges) != len(counts) + 1 or any(b <= a for a, b in pairwise(edges)) or min(counts, default=0) < 0:
        raise ValueError("a histogram's edges and counts do not fit together")
    if total <= 0:
        raise ValueError("a histogram is empty")
    return Histogram(edges, tuple(count / total for count in counts))


def read_embedding(place: Path, name: str, notes: Notes) -> Embedding | None:
    """Teacher and student features in the plane, of images or of locations; read only for the runs that are drawn."""

    def read(kind: str) -> Embedding | None:
        held = tree(place / "artifacts" / f"{kind}.json")
        colours = dict(zip(*painted(held), strict=True)) if kind == SCENES else {}
        found = held.get("embedding")
        return None if found is None else _embedding(found, colours)

    labels = ((kind, f"{name}/artifacts/{kind}.json") for kind in (MECHANISM, SCENES))
    found = (notes.attempt(label, partial(read, kind), None) for kind, label in labels)
    return next((each for each in found if each is not None), None)


def painted(held: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The classes of masks and their colours, which are going to stand in a page."""
    classes, colours = (tuple(str(each)[:WORD] for each in list(held[key])) for key in ("classes", "colours"))
    if not 0 < len(classes) == len(colours) <= MASKED:
        raise ValueError(f"masks need as many colours as classes, at most {MASKED}")
    if not all(COLOUR.fullmatch(colour) for colour in colours):
        raise ValueError("a colour is not written as #rrggbb")
    return classes, tuple(colour.lower() for colour in colours)


def _embedding(raw: dict[str, Any], colours: dict[str, str]) -> Embedding:
    classes = [str(each)[:WORD] for each in raw["classes"]]
    teacher, student = (tuple(_point(each) for each in raw[key]) for key in ("teacher", "student"))
    numbers_of = [int(at) for at in raw["label"]]
    if max(numbers_of, default=0) >= len(classes):  # numbers of all classes rather than of those shown
        places = {at: place for place, at in enumerate(sorted(set(numbers_of)))}
        numbers_of = [places[at] for at in numbers_of]
    label = tuple(classes[at] for at in numbers_of if at >= 0)
    if not 0 < len(label) == len(teacher) == len(student) <= POINTS:
        raise ValueError(f"an embedding needs as many labels as points, at most {POINTS}")
    return Embedding(str(raw.get("method", "t-SNE"))[:WORD], label, teacher, student, colours)


def _point(raw: Any) -> tuple[float, float]:
    x, y = numbers(raw, 2)
    return x, y
