"""scores/ and artifacts/ of a run → numbers by name, histograms and embeddings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
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


@dataclass
class Scores:
    """What scores/ holds of one run."""

    values: dict[str, float] = field(default_factory=dict)  # "<set> <score>"; "mechanism <view> <measure>"
    sources: dict[str, str] = field(default_factory=dict)  # set → official, generated or given
    marks: dict[str, str] = field(default_factory=dict)  # set → fingerprint of what was scored
    references: dict[str, str] = field(default_factory=dict)  # set → the run that its relative scores are relative to
    errors: dict[str, tuple[float, ...]] = field(default_factory=dict)  # corruption → error at severity 1 … 5
    groups: dict[str, float] = field(default_factory=dict)  # group with its number of images → accuracy
    classes: dict[str, dict[str, float | None]] = field(default_factory=dict)  # set → class → IoU, None if not seen
    cost: dict[str, float] = field(default_factory=dict)  # milliseconds, bytes, parameters, and its teacher's
    machine: str = ""  # on which they were measured


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
        notes.attempt(f"{name}/scores/{path.name}", partial(_read_set, scores, path), None)
    return scores


def _read_set(scores: Scores, path: Path) -> None:
    name, held = readable(path.stem), tree(path)
    values = dict(_flat(name, held["values"]))
    if not values:
        raise ValueError("no finite number among its values")
    if name.partition("@")[0] == COST:
        if name == COST:
            scores.cost = {key.partition(" ")[2]: value for key, value in values.items()}
            scores.machine = str(held.get("machine", ""))[: 2 * WORD]
        return
    scores.values |= values
    for target, key in ((scores.sources, "source"), (scores.marks, "fingerprint")):
        if isinstance(held.get(key), str):
            target[name] = held[key][:WORD]
    if isinstance(held.get("reference"), dict):
        scores.references[name] = str(held["reference"].get("run", "?"))[-WORD:]
    if name == CORRUPTIONS and "errors" in held:
        errors = {str(key): numbers(each, SEVERITIES) for key, each in held["errors"].items()}
        scores.errors = {key: each for key, each in errors.items() if len(each) == SEVERITIES}
    if name == GROUPS and "groups" in held:
        groups = {f"{key} ({each.get('count', '?')})": number(each["accuracy"]) for key, each in held["groups"].items()}
        scores.groups = {key: value for key, value in groups.items() if value is not None}
    if isinstance(held.get("classes"), dict) and len(held["classes"]) <= CLASSES:
        classes = {str(key)[:WORD]: number(value) for key, value in held["classes"].items()}
        if any(value is not None for value in classes.values()):
            scores.classes[name] = classes


def _flat(name: str, values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """ "<set> <score>" of a plain file, "mechanism <view> <measure>" of one that has views."""
    for key, raw in values.items():
        if name == MECHANISM and isinstance(raw, dict):
            yield from ((f"{name} {key} {what}", value) for what, x in raw.items() if (value := number(x)) is not None)
        elif name != MECHANISM and (value := number(raw)) is not None:
            yield f"{name} {key}", value


def read_histograms(place: Path, name: str, notes: Notes) -> dict[str, dict[str, Histogram]]:
    """View → measure → histogram."""

    def read() -> dict[str, dict[str, Histogram]]:
        views = tree(place / "artifacts" / "mechanism.json").get("views", {})
        return {
            str(view): {str(measure): _histogram(raw) for measure, raw in held["histograms"].items()}
            for view, held in views.items()
        }

    return notes.attempt(f"{name}/artifacts/mechanism.json", read, {})


def _histogram(raw: dict[str, Any]) -> Histogram:
    edges, counts = numbers(raw["edges"], BARS + 1), numbers(raw["counts"], BARS)
    if len(edges) != len(counts) + 1 or sum(counts) <= 0:
        raise ValueError("a histogram's edges and counts do not fit together")
    return Histogram(edges, tuple(count / sum(counts) for count in counts))


def read_embedding(place: Path, name: str, notes: Notes) -> Embedding | None:
    """Teacher and student features in the plane, of images or of locations; read only for the runs that are drawn."""

    def read(kind: str) -> Embedding | None:
        held = tree(place / "artifacts" / f"{kind}.json")
        colours = dict(zip(*painted(held), strict=True)) if kind == SCENES else {}
        embedding = held.get("embedding")
        return None if embedding is None else _embedding(embedding, colours)

    for kind in (MECHANISM, SCENES):
        embedding = notes.attempt(f"{name}/artifacts/{kind}.json", partial(read, kind), None)
        if embedding is not None:
            return embedding
    return None


def painted(held: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The classes of masks and their colours, which the page writes into its styles."""
    classes, colours = (tuple(str(each)[:WORD] for each in list(held[key])) for key in ("classes", "colours"))
    if not 0 < len(classes) == len(colours) <= MASKED:
        raise ValueError(f"masks need as many colours as classes, at most {MASKED}")
    if not all(COLOUR.fullmatch(colour) for colour in colours):
        raise ValueError("a colour is not written as #rrggbb")
    return classes, tuple(colour.lower() for colour in colours)


def _embedding(raw: dict[str, Any], colours: dict[str, str]) -> Embedding:
    classes = [str(each)[:WORD] for each in raw["classes"]]
    teacher, student = (tuple(_point(each) for each in raw[key]) for key in ("teacher", "student"))
    label = tuple(classes[int(at)] for at in raw["label"])
    if not 0 < len(label) == len(teacher) == len(student) <= POINTS:
        raise ValueError(f"an embedding needs as many labels as points, at most {POINTS}")
    return Embedding(str(raw.get("method", "t-SNE"))[:WORD], label, teacher, student, colours)


def _point(raw: Any) -> tuple[float, float]:
    x, y = numbers(raw, 2)
    return x, y
