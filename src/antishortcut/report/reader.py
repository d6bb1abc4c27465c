"""Files of run folders → plain values. A file that cannot be read leaves a one-line note and stops nothing."""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import orjson
from PIL import Image

from antishortcut.errors import printable
from antishortcut.fileio import content

LARGEST = 32 * 2**20  # bytes of a JSON file
LOG = 2**30  # bytes of metrics.jsonl
MANY = 2_000  # lines of metrics.jsonl; of a longer file all evaluations and every n-th step are read
HUGE = 1e150  # the squares of larger numbers overflow
BINS = 120  # points of a loss curve
MOST = 2_000  # entries of a list
WORD = 60  # characters of a name shown
CORRUPTIONS, GROUPS, MECHANISM, SCENES, COST = "corruptions", "groups", "mechanism", "scenes", "cost"
SEVERITIES = 5
CLASSES = 1_000  # of a table of classes
MASKED = 255  # classes of a mask, which has one byte per pixel
COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
DIRECTION_KINDS = ("displaced", "abandoned")
PICTURE, PICTURES = 2**20, 32 * 2**20  # bytes of one picture, and of all pictures of a page
SIDE = 8_192  # pixels
UNREADABLE = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)

T = TypeVar("T")
Json = dict[str, Any]
Explained = dict[str, dict[str, float]]  # state → cue → share of variance


@dataclass(frozen=True)
class Skipped:
    """A run folder or a file that is not shown, and why."""

    run: str
    state: str


class Notes:
    """Files that could not be read, and how many bytes of pictures may still be embedded."""

    def __init__(self) -> None:
        self.skipped: list[Skipped] = []
        self.bytes_left = PICTURES

    def add(self, name: str, why: str) -> None:
        note = Skipped(readable(name), readable(why))
        if note not in self.skipped:  # a file may be read for two purposes
            self.skipped.append(note)

    def attempt(self, name: str, read: Callable[[], T], otherwise: T) -> T:
        """The result of `read`; if it fails `otherwise`, with a note. A missing file needs no note."""
        try:
            return read()
        except FileNotFoundError:
            return otherwise
        except UNREADABLE as error:
            self.add(name, f"skipped: {error_text(error)}")
            return otherwise


def error_text(error: BaseException) -> str:
    """An error in one short line."""
    text = " ".join(str(error).split())[:200]
    if isinstance(error, OSError):
        return error.strerror or text
    return text if type(error) is ValueError else f"{type(error).__name__}: {text}"


def number(value: Any) -> float | None:
    """A finite number, or None: NaN has no place in JSON nor in a mean."""
    plain = type(value) is float or type(value) is int  # called a million times; a bool is no number
    return float(value) if plain and -HUGE <= value <= HUGE else None


def numbers(value: Any, most: int = MOST) -> tuple[float, ...]:
    """A list of finite numbers."""
    result = tuple(x for raw in value if (x := number(raw)) is not None)
    if not isinstance(value, list | tuple) or len(result) != len(value) or len(value) > most:
        raise ValueError(f"expected a list of at most {most} finite numbers")
    return result


def finite(values: Any, keys: Iterable[str]) -> dict[str, float]:
    """Of a JSON object, those keys that hold a finite number."""
    return {key: value for key in keys if (value := number(values.get(key))) is not None}


def read_object(path: Path) -> Json:
    """The JSON object in a file."""
    result = parse(content(path, LARGEST))
    if not isinstance(result, dict):
        raise ValueError("not a JSON object")
    return dict(readable(result))


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


# --- metrics.jsonl ---


def history(path: Path) -> list[Json]:
    """Logged rows up to the first damaged one (a kill cuts the last one short)."""
    try:
        lines = content(path, LOG).splitlines()
    except OSError:
        return []
    every = -(-len(lines) // MANY)
    rows: list[Json] = []
    for left, line in zip(range(len(lines) - 1, -1, -1), lines, strict=True):
        if left % every == 0 or b'"scores"' in line:
            try:
                row = parse(line)
            except ValueError:
                break
            rows += [row] if isinstance(row, dict) else []
    return rows


def curve(rows: list[Json], split: Any, score: str = "accuracy") -> tuple[tuple[float, float], ...]:
    """(epoch, score) on the set that was scored during training."""
    points = []
    for row in rows:
        if "set" in row and row["set"] == split and isinstance(row.get("scores"), dict):
            points.append((number(row.get("epoch")), number(row["scores"].get(score))))
    return tuple((epoch, value) for epoch, value in points if epoch is not None and value is not None)


def last_logged(rows: list[Json], key: str) -> float:
    """The last epoch or step that was logged."""
    return next((value for row in reversed(rows) if (value := number(row.get(key))) is not None), 0.0)


def terms(rows: list[Json], epochs: float) -> tuple[tuple[float, str, float], ...]:
    """(epoch, term, mean): the loss terms over at most BINS equal parts of the training, each at its end."""
    sums: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        logged, epoch = row.get("terms"), number(row.get("epoch"))
        if isinstance(logged, dict) and epoch is not None:
            bin_ = math.ceil(epoch / epochs * BINS)
            for term, raw in logged.items():
                if (value := number(raw)) is not None:
                    sums.setdefault((readable(term), bin_), []).append(value)
    return tuple((bin_ * epochs / BINS, term, math.fsum(values) / len(values)) for (term, bin_), values in sums.items())


# --- scores/ ---


@dataclass
class Scores:
    """What scores/ holds of one run."""

    values: dict[str, float] = field(default_factory=dict)  # "<set> <score>"; "mechanism <view> <measure>"
    sources: dict[str, str] = field(default_factory=dict)  # set → official, generated or given
    marks: dict[str, str] = field(default_factory=dict)  # set → fingerprint of what was scored
    references: dict[str, str] = field(default_factory=dict)  # set → the run that its relative scores are relative to
    errors: dict[str, tuple[float, ...]] = field(default_factory=dict)  # corruption → error at severity 1 … 5
    groups: dict[str, float] = field(default_factory=dict)  # group with its number of images → accuracy
    classes: dict[str, dict[str, float | None]] = field(default_factory=dict)  # set → class → IoU, None if not there
    cost: dict[str, float] = field(default_factory=dict)  # milliseconds, bytes, parameters, and its teacher's
    machine: str = ""  # on which they were measured


def read_scores(place: Path, name: str, notes: Notes) -> Scores:
    """All of scores/<set>.json; a file that cannot be read is noted under the run's name."""
    scores = Scores()
    for path in sorted((place / "scores").glob("*.json")):
        notes.attempt(f"{name}/scores/{path.name}", partial(_read_set, scores, path), None)
    return scores


def _read_set(scores: Scores, path: Path) -> None:
    name, saved = readable(path.stem), read_object(path)
    values = dict(_flat_values(name, saved["values"]))
    if not values:
        raise ValueError("no finite number among its values")
    if name.partition("@")[0] == COST:
        if name == COST:
            scores.cost = {key.partition(" ")[2]: value for key, value in values.items()}
            scores.machine = str(saved.get("machine", ""))[: 2 * WORD]
        return
    scores.values |= values
    for target, key in ((scores.sources, "source"), (scores.marks, "fingerprint")):
        if isinstance(saved.get(key), str):
            target[name] = saved[key][:WORD]
    if isinstance(saved.get("reference"), dict):
        scores.references[name] = str(saved["reference"].get("run", "?"))[-WORD:]
    if name == CORRUPTIONS and "errors" in saved:
        errors = {str(key): numbers(each) for key, each in saved["errors"].items()}
        scores.errors = {key: each for key, each in errors.items() if len(each) == SEVERITIES}
    if name == GROUPS and "groups" in saved:
        groups = {f"{key} ({one.get('count', '?')})": number(one["accuracy"]) for key, one in saved["groups"].items()}
        scores.groups = {key: value for key, value in groups.items() if value is not None}
    if isinstance(saved.get("classes"), dict) and len(saved["classes"]) <= CLASSES:
        classes = {str(key)[:WORD]: number(value) for key, value in saved["classes"].items()}
        if any(value is not None for value in classes.values()):
            scores.classes[name] = classes


def _flat_values(name: str, values: Json) -> Iterator[tuple[str, float]]:
    """ "<set> <score>" of a plain file, "mechanism <view> <measure>" of one that has views."""
    for key, raw in values.items():
        if name == MECHANISM and isinstance(raw, dict):
            yield from ((f"{name} {key} {measure}", value) for measure, value in finite(raw, raw).items())
        elif name != MECHANISM and (value := number(raw)) is not None:
            yield f"{name} {key}", value


# --- artifacts/ of a student ---


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
    teacher: tuple[tuple[float, ...], ...]
    student: tuple[tuple[float, ...], ...]
    colours: dict[str, str] = field(default_factory=dict)  # class → its colour in masks, where samples are locations


def read_histograms(place: Path, name: str, notes: Notes) -> dict[str, dict[str, Histogram]]:
    """View → measure → histogram."""

    def read() -> dict[str, dict[str, Histogram]]:
        views = read_object(place / "artifacts" / "mechanism.json").get("views", {})
        return {
            str(view): {str(measure): _histogram(raw) for measure, raw in saved["histograms"].items()}
            for view, saved in views.items()
        }

    return notes.attempt(f"{name}/artifacts/mechanism.json", read, {})


def _histogram(raw: Json) -> Histogram:
    edges, counts = numbers(raw["edges"]), numbers(raw["counts"])
    if len(edges) != len(counts) + 1 or sum(counts) <= 0:
        raise ValueError("a histogram's edges and counts do not match")
    return Histogram(edges, tuple(count / sum(counts) for count in counts))


def read_embedding(place: Path, name: str, notes: Notes) -> Embedding | None:
    """Teacher and student features in the plane, of images or of locations; read only for the runs that are drawn."""

    def read(kind: str) -> Embedding | None:
        saved = read_object(place / "artifacts" / f"{kind}.json")
        colours = dict(zip(*class_colours(saved), strict=True)) if kind == SCENES else {}
        raw = saved.get("embedding")
        if raw is None:
            return None
        classes = [str(each)[:WORD] for each in raw["classes"]]
        teacher, student = (tuple(numbers(each, 2) for each in raw[key]) for key in ("teacher", "student"))
        label = tuple(classes[int(index)] for index in raw["label"])
        pairs = all(len(point) == 2 for point in (*teacher, *student))
        if not pairs or not 0 < len(label) == len(teacher) == len(student) <= MOST:
            raise ValueError(f"an embedding needs as many labels as points, at most {MOST}")
        return Embedding(str(raw.get("method", "t-SNE"))[:WORD], label, teacher, student, colours)

    for kind in (MECHANISM, SCENES):
        embedding = notes.attempt(f"{name}/artifacts/{kind}.json", partial(read, kind), None)
        if embedding is not None:
            return embedding
    return None


def class_colours(saved: Json) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The classes of masks and their colours, which the page writes into its styles."""
    classes, colours = (tuple(str(each)[:WORD] for each in list(saved[key])) for key in ("classes", "colours"))
    if not 0 < len(classes) == len(colours) <= MASKED or not all(COLOUR.fullmatch(colour) for colour in colours):
        raise ValueError(f"masks need a colour #rrggbb for each class, at most {MASKED}")
    return classes, tuple(colour.lower() for colour in colours)


# --- pictures ---


@dataclass(frozen=True)
class Picture:
    """A JPEG or PNG, checked and ready to stand in the page."""

    kind: str
    data: bytes
    width: int
    height: int
    colours: tuple[str, ...] = ()  # of a mask, the largest area first

    @property
    def uri(self) -> str:
        return f"data:image/{self.kind.lower()};base64,{base64.b64encode(self.data).decode()}"

    def image(self) -> Image.Image:
        return Image.open(BytesIO(self.data), formats=[self.kind])


def open_picture(artifacts: Path, name: str, notes: Notes) -> Picture:
    """A picture that can be read to its end; nothing large, nothing from another folder."""
    path = artifacts / name
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(artifacts)):
        raise ValueError("a picture outside its artifacts folder is not shown")
    size = path.stat().st_size
    if not path.is_file():
        raise ValueError("not a file")
    if size > min(PICTURE, notes.bytes_left):
        raise ValueError(f"a picture of {size >> 10} kB is too large to be embedded")
    picture = parse_picture(path.read_bytes(), "JPEG" if path.suffix == ".jpg" else "PNG")
    notes.bytes_left -= size
    return picture


def parse_picture(data: bytes, kind: str) -> Picture:
    try:
        with Image.open(BytesIO(data), formats=[kind]) as image:
            if max(image.size) > SIDE:
                raise ValueError(f"more than {SIDE} pixels wide or high")
            image.load()
            return Picture(kind, data, *image.size, _areas(image) if image.mode == "P" else ())
    except ValueError:
        raise
    except Exception as error:  # whatever a decoder makes of bytes from outside
        raise ValueError(f"no {kind}, or damaged ({type(error).__name__})") from None


def _areas(mask: Image.Image) -> tuple[str, ...]:
    """The colours of a mask, the largest area first."""
    counts = mask.histogram()
    palette = bytes(mask.getpalette("RGB") or ())
    order = sorted((index for index, count in enumerate(counts) if count), key=lambda index: -counts[index])
    return tuple(dict.fromkeys(f"#{palette[3 * index : 3 * index + 3].hex():0<6}" for index in order))


# --- artifacts/directions-<key>.json of a teacher ---


@dataclass(frozen=True)
class Direction:
    """One direction, and the images at its two ends."""

    kind: str
    number: int
    energy: dict[str, float]  # state → share of the features' energy
    explained: Explained
    ends: dict[str, tuple[Picture, tuple[str, ...]]]  # high, low → strip and the classes in it


@dataclass(frozen=True)
class Directions:
    """What is known of one teacher's way from early to final; anything may be missing."""

    teacher: str
    early: str
    title: str
    facts: dict[str, float]  # count, width, K
    angles: dict[str, tuple[float, ...]]  # pair of subspaces → principal angles in degrees
    angle_random: float | None
    spectrum: dict[str, tuple[float, ...]]  # centred, uncentred → eigenvalues, largest first
    gaps: dict[str, float]  # centred, uncentred → λ_K − λ_{K+1}
    bootstrap: dict[str, float]  # mean, std, pairs, parts, random; angles in degrees
    batches: tuple[dict[str, float], ...]  # batch, to_whole, between, reference
    batches_random: float | None
    energy: tuple[dict[str, float], ...]  # epoch, shortcut, robust, accuracy
    energy_random: float | None
    pooled: dict[str, Explained]  # displaced, abandoned → over all their directions
    each: tuple[Direction, ...] = ()


def read_directions(home: Path, early: str, notes: Notes) -> Directions | None:
    """Of a teacher's files for this early state, the one written last."""
    saved: list[tuple[int, Path, Json]] = []
    for path in sorted((home / "artifacts").glob("directions-*.json")):
        data: Json = notes.attempt(_artifact_name(path), partial(read_object, path), Json())
        if data.get("early") == early:
            saved.append((path.stat().st_mtime_ns, path, data))
    if not saved:
        return None
    *older, (_, newest, data) = sorted(saved, key=lambda each: each[:2])
    for _, path, _ in older:
        notes.add(_artifact_name(path), f"left out: {newest.name} is newer and of the same early state")
    return notes.attempt(_artifact_name(newest), partial(_read_directions, home, newest, data, notes), None)


def _artifact_name(path: Path) -> str:
    return f"teachers/{path.parent.parent.name}/artifacts/{path.name}"


def _read_directions(home: Path, path: Path, data: Json, notes: Notes) -> Directions:
    def name() -> str:
        return str(read_object(home / "run.json")["run"]["model"]["name"])[:WORD]

    title = notes.attempt(f"teachers/{home.name}/run.json", name, "teacher")
    each = [
        _direction(path, kind, raw, notes)
        for kind in DIRECTION_KINDS
        for raw in list((data.get("directions") or {}).get(kind) or ())
    ]
    return parse_directions(data, home.name, title, tuple(each))


def parse_directions(data: Mapping[str, Any], teacher: str, title: str, each: tuple[Direction, ...] = ()) -> Directions:
    """From the JSON that analysis/directions and an audit write."""
    angles, spectrum, explained = (data.get(key) or {} for key in ("angles", "spectrum", "explained"))
    gaps = spectrum.get("eigengap") or {}
    gaps = {kind: gap["absolute"] if isinstance(gap, dict) else gap for kind, gap in gaps.items()}
    pairs = {str(pair): numbers(value["each"]) for pair, value in angles.items() if pair != "random"}
    batches = [finite(row, ("batch", "to_whole", "between", "reference")) for row in data.get("batches") or ()]
    energy = [finite(row, ("epoch", "shortcut", "robust", "accuracy")) for row in data.get("energy") or ()]
    pooled = {kind: _explained(explained.get(kind)) for kind in DIRECTION_KINDS}
    return Directions(
        teacher=teacher,
        early=data["early"],
        title=title,
        facts=finite(data, ("count", "width", "K")),
        angles={pair: degrees for pair, degrees in pairs.items() if degrees},
        angle_random=number(angles.get("random")),
        spectrum={kind: numbers(spectrum[kind]) for kind in ("uncentred", "centred") if any(spectrum.get(kind) or ())},
        gaps=finite(gaps, gaps),
        bootstrap=finite(data.get("bootstrap") or {}, ("mean", "std", "pairs", "parts", "random")),
        batches=tuple(row for row in batches if row.get("batch", 0) > 0),
        batches_random=number(data.get("batches_random")),
        energy=tuple(sorted((row for row in energy if "epoch" in row), key=lambda row: row["epoch"])),
        energy_random=number(data.get("energy_random")),
        pooled={kind: states for kind, states in pooled.items() if states},
        each=each,
    )


def _explained(saved: Any) -> Explained:
    states = {state: finite((saved or {}).get(state) or {}, ("texture", "shape")) for state in ("early", "final")}
    return {state: shares for state, shares in states.items() if shares}


def _direction(path: Path, kind: str, raw: Json, notes: Notes) -> Direction:
    ends = {}
    for end in ("high", "low"):
        read = partial(open_picture, path.parent, str(raw.get(end)), notes)
        picture = notes.attempt(f"{_artifact_name(path)}, {kind} {raw['number']}", read, None) if raw.get(end) else None
        if picture is not None:
            ends[end] = picture, tuple(str(name)[:WORD] for name in raw.get(f"classes_{end}") or ())
    energy = {state: raw.get(f"energy_{state}") for state in ("early", "final")}
    return Direction(kind, int(raw["number"]), finite(energy, energy), _explained(raw.get("explained")), ends)
