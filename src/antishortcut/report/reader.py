"""Files of run folders → plain values. A file that cannot be read leaves a one-line note and stops nothing."""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import orjson
from PIL import Image

from antishortcut.errors import printable
from antishortcut.fileio import content
from antishortcut.run_dir import LOG, shallow

LARGEST = 32 * 2**20  # bytes of a JSON file
MANY = 2_000  # lines of metrics.jsonl; of a longer file all evaluations and every n-th step are read
HUGE = 1e150  # the squares of larger numbers overflow
BINS = 120  # points of a loss curve
ODD = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
# what JSON of an unexpected form can raise

T = TypeVar("T")
Row = dict[str, Any]


@dataclass(frozen=True)
class Aside:
    """A run folder or a file that is not shown, and why."""

    run: str
    state: str


class Notes:
    """Files that could not be read."""

    def __init__(self) -> None:
        self.found: list[Aside] = []

    def add(self, name: str, why: str) -> None:
        note = Aside(readable(name), readable(why))
        if note not in self.found:  # a file may be read for two things
            self.found.append(note)

    def attempt(self, name: str, read: Callable[[], T], otherwise: T) -> T:
        """The result of `read`; if it fails `otherwise`, with a note. A missing file needs no note."""
        try:
            return read()
        except FileNotFoundError:
            return otherwise
        except ODD as error:
            self.add(name, f"skipped: {said(error)}")
            return otherwise


def said(error: BaseException) -> str:
    """An error in one short line."""
    text = " ".join(str(error).split())[:200]
    if isinstance(error, OSError):
        return error.strerror or text
    return text if type(error) is ValueError else f"{type(error).__name__}: {text}"


def number(value: Any) -> float | None:
    """A finite number, or None: NaN has no place in JSON nor in a mean."""
    plain = type(value) is float or type(value) is int  # called a million times; a bool is no number
    return float(value) if plain and -HUGE <= value <= HUGE else None


def numbers(value: Any, most: int) -> tuple[float, ...]:
    """A list of finite numbers, no longer than `most`."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"expected a list of at most {most} numbers")
    result = tuple(x for raw in value if (x := number(raw)) is not None)
    if len(result) != len(value):
        raise ValueError("a list has an entry that is no finite number")
    return result


def tree(path: Path) -> Row:
    """The JSON object in a file."""
    result = parse(content(path, LARGEST))
    if not isinstance(result, dict):
        raise ValueError("not a JSON object")
    return dict(readable(shallow(result)))


def parse(data: bytes) -> Any:
    """JSON, also with the NaN and Infinity of Python's own writer."""
    try:
        return orjson.loads(data)
    except ValueError:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise ValueError("not JSON; restore or remove it") from None


def readable(value: Any) -> Any:
    """With printable text only: vl_convert aborts the whole process at a character that XML does not allow."""
    if isinstance(value, str):
        return value if value.isprintable() else printable(" ".join(value.split()))
    if isinstance(value, list):
        return [readable(each) for each in value]
    return {readable(key): readable(each) for key, each in value.items()} if isinstance(value, dict) else value


def history(path: Path) -> list[Row]:
    """Logged rows up to the first damaged one (a kill cuts the last one short)."""
    try:
        lines = content(path, LOG).splitlines()
    except OSError:
        return []
    every = -(-len(lines) // MANY)
    rows: list[Row] = []
    for left, line in zip(range(len(lines) - 1, -1, -1), lines, strict=True):
        if left % every == 0 or b'"scores"' in line:
            try:
                row = parse(line)
            except ValueError:
                break
            rows += [row] if isinstance(row, dict) else []
    return rows


def curve(rows: list[Row], judge: Any, score: str = "accuracy") -> tuple[tuple[float, float], ...]:
    """(epoch, score) on the set that was scored during training."""
    points = []
    for row in rows:
        if "set" in row and row["set"] == judge and isinstance(row.get("scores"), dict):
            points.append((number(row.get("epoch")), number(row["scores"].get(score))))
    return tuple((epoch, value) for epoch, value in points if epoch is not None and value is not None)


def reached(rows: list[Row], key: str) -> float:
    """The last epoch or step that was logged."""
    return next((value for row in reversed(rows) if (value := number(row.get(key))) is not None), 0.0)


def terms(rows: list[Row], epochs: float) -> tuple[tuple[float, str, float], ...]:
    """(epoch, term, mean): the loss terms over at most BINS equal parts of the training, each at its end."""
    sums: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        logged, epoch = row.get("terms"), number(row.get("epoch"))
        if isinstance(logged, dict) and epoch is not None:
            part = math.ceil(epoch / epochs * BINS)
            for term, raw in logged.items():
                if (value := number(raw)) is not None:
                    sums.setdefault((readable(term), part), []).append(value)
    return tuple((part * epochs / BINS, term, math.fsum(values) / len(values)) for (term, part), values in sums.items())


# --- scores/ and artifacts/ of a run → numbers by name, histograms and embeddings ---

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


# --- A picture of a scene from outside → checked, and ready to stand in a page ---

PICTURE = 2**20  # bytes of a picture
PICTURES = 32 * 2**20  # bytes of all pictures of a page
SIDE = 2_048  # pixels
KINDS = {".jpg": ("JPEG", b"\xff\xd8\xff"), ".png": ("PNG", b"\x89PNG\r\n\x1a\n")}  # how they begin


@dataclass(frozen=True)
class Shot:
    """A picture, ready to stand in the page."""

    kind: str  # JPEG or PNG
    data: bytes
    width: int
    height: int
    colours: tuple[str, ...]  # of a mask, the largest area first

    @property
    def uri(self) -> str:
        return f"data:image/{self.kind.lower()};base64,{base64.b64encode(self.data).decode()}"


def open_shot(artifacts: Path, name: str, left: int = PICTURES) -> Shot:
    """A JPEG, or a PNG with a palette, that can be read to its end; nothing large, nothing from another folder."""
    path = artifacts / name
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(artifacts)):
        raise ValueError("a picture outside its artifacts folder is not shown")
    size = path.stat().st_size
    if not path.is_file():
        raise ValueError("not a file")
    if size > min(PICTURE, left):
        raise ValueError(f"a picture of {size >> 10} kB is too large to be embedded")
    data = path.read_bytes()
    kind, begin = KINDS[path.suffix]
    if not data.startswith(begin):
        raise ValueError(f"no {kind}")
    with opened(data, kind) as image:
        if kind == "PNG" and image.mode != "P":
            raise ValueError("a mask without a palette")
        return Shot(kind, data, *image.size, _areas(image) if kind == "PNG" else ())


def opened(data: bytes, kind: str) -> Image.Image:
    """The picture, read to its end."""
    try:
        image = Image.open(BytesIO(data), formats=[kind])
        if max(image.size) > SIDE:
            raise ValueError(f"more than {SIDE} pixels wide or high")
        image.load()
    except ValueError:
        raise
    except Exception as error:  # whatever a decoder makes of bytes from outside
        raise ValueError(f"damaged ({type(error).__name__})") from None
    return image


def _areas(mask: Image.Image) -> tuple[str, ...]:
    """The colours of a mask, the largest area first."""
    counts = [(count, at) for at, count in enumerate(mask.histogram()) if count]
    paint = bytes(mask.getpalette("RGB") or ())
    order = [at for _, at in sorted(counts, key=lambda each: (-each[0], each[1]))]
    return tuple(dict.fromkeys(f"#{paint[3 * at : 3 * at + 3].hex():0<6}" for at in order))
