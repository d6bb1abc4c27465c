"""Files of run folders → plain values. A file that cannot be read leaves a one-line note and stops nothing."""

import base64
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from antishortcut.errors import printable
from antishortcut.fileio import PAGE_FORMATS, content

LOG = 2**30  # bytes of metrics.jsonl
MANY = 2_000  # lines of metrics.jsonl; of a longer file all evaluations and every n-th step are read
HUGE = 1e150  # the squares of larger numbers overflow
BINS = 120  # points of a loss curve
CORRUPTIONS, GROUPS, MECHANISM, SCENES = "corruptions", "groups", "mechanism", "scenes"
COST, PROBES = "cost", "probes"
SEVERITIES = 5
COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
DIRECTION_KINDS = ("displaced", "abandoned")
PICTURE, PICTURES = 2**20, 32 * 2**20  # bytes of one picture, and of all pictures of a page
UNREADABLE = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)

Json = dict[str, Any]
Explained = dict[str, dict[str, float]]  # state → cue → share of variance
Confusion = dict[str, dict[str, float]]  # class → answer → images
Histogram = dict[float, float]  # centre of a bin → share of the samples in it


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

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Whatever is wrong with the file that the block reads becomes a note. A missing file needs none."""
        try:
            yield
        except FileNotFoundError:
            pass
        except UNREADABLE as error:
            self.add(name, f"skipped: {error_text(error)}")


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


def numbers(values: Iterable[Any]) -> tuple[float, ...]:
    """The same numbers; a ValueError if one of them is not finite."""
    result = [number(value) for value in values]
    if None in result:
        raise ValueError("expected finite numbers")
    return tuple(value for value in result if value is not None)


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    """Of a JSON object, the keys that hold a finite number."""
    return {key: value for key, raw in values.items() if (value := number(raw)) is not None}


def read_object(path: Path) -> Json:
    """The JSON object in a file."""
    data = content(path)
    result = json.loads(data)
    if not isinstance(result, dict):
        raise ValueError("not a JSON object")
    plain = data.isascii() and not any(sign in data for sign in b"\\\x7f\0")  # all text in it is readable
    return result if plain else dict(readable(result))


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
                rows.append(dict(json.loads(line)))
            except (ValueError, TypeError, RecursionError):
                break
    return rows


def curve(rows: list[Json], split: Any, score: str = "accuracy") -> tuple[tuple[float, float], ...]:
    """(epoch, score) on the set that was scored during training."""
    scored = [row for row in rows if "scores" in row and row["set"] == split]
    points = [(number(row["epoch"]), number(row["scores"].get(score))) for row in scored]
    return tuple((epoch, value) for epoch, value in points if epoch is not None and value is not None)


def last_logged(rows: list[Json], key: str) -> float:
    """The last epoch or step that was logged."""
    return next((value for row in reversed(rows) if (value := number(row.get(key))) is not None), 0.0)


def terms(rows: list[Json], epochs: float) -> tuple[tuple[float, str, float], ...]:
    """(epoch, term, mean): the loss terms over at most BINS equal parts of the training, each at its end."""
    sums: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if "terms" in row:
            bin_ = math.ceil(row["epoch"] / epochs * BINS)
            for term, value in finite(row["terms"]).items():
                sums.setdefault((readable(term), bin_), []).append(value)
    return tuple((bin_ * epochs / BINS, term, math.fsum(values) / len(values)) for (term, bin_), values in sums.items())


# --- scores/ ---


class Mistake(NamedTuple):
    """An image that is taken for another class."""

    image: str  # its number in the set, or its path
    label: str
    answer: str
    confidence: float


@dataclass
class Scores:
    """What scores/ holds of one run."""

    values: dict[str, float] = field(default_factory=dict)  # "<set> <score>"; "mechanism <view> <measure>"
    sources: dict[str, str] = field(default_factory=dict)  # set → official, generated or given
    marks: dict[str, str] = field(default_factory=dict)  # set → fingerprint of what was scored
    counts: dict[str, float] = field(default_factory=dict)  # set → its number of images
    references: dict[str, str] = field(default_factory=dict)  # set → the run that its relative scores are relative to
    errors: dict[str, tuple[float, ...]] = field(default_factory=dict)  # corruption → error at severity 1 … 5
    groups: dict[str, float] = field(default_factory=dict)  # group with its number of images → accuracy
    probes: dict[str, dict[str, float]] = field(default_factory=dict)  # own, early, final → probe → accuracy
    unchanged: dict[str, dict[str, float]] = field(default_factory=dict)  # likewise: answers as on the whole image
    classes: dict[str, dict[str, float | None]] = field(default_factory=dict)  # set → class → IoU, None if not there
    confusion: dict[str, Confusion] = field(default_factory=dict)  # set → its matrix
    mistakes: dict[str, list[Mistake]] = field(default_factory=dict)  # set → the surest first
    cost: dict[str, float] = field(default_factory=dict)  # milliseconds, bytes, parameters, and its teacher's
    machine: str = ""  # on which they were measured


def read_scores(place: Path, name: str, notes: Notes) -> Scores:
    """All of scores/<set>.json; a file that cannot be read is noted under the run's name."""
    scores = Scores()
    for path in sorted((place / "scores").glob("*.json")):
        with notes.reading(f"{name}/scores/{path.name}"):
            _add_scores(scores, readable(path.stem), read_object(path))
    return scores


def _add_scores(scores: Scores, name: str, saved: Json) -> None:
    if name == MECHANISM:
        views = {view: finite(measures) for view, measures in saved["values"].items()}
        values = {f"{view} {measure}": x for view, measures in views.items() for measure, x in measures.items()}
    else:
        values = finite(saved["values"])
    if not saved["values"]:  # of an evaluation that has pictures only
        return
    if not values:
        raise ValueError("no finite number among its values")
    if name.partition("@")[0] == COST:
        if name == COST:
            scores.cost, scores.machine = values, str(saved.get("machine", ""))
        return
    scores.values |= {f"{name} {key}": value for key, value in values.items()}
    for target, key in ((scores.sources, "source"), (scores.marks, "fingerprint")):
        if saved.get(key):
            target[name] = str(saved[key])
    scores.counts |= finite({name: saved.get("count")})
    if saved.get("reference"):
        scores.references[name] = str(saved["reference"]["run"])
    if name == CORRUPTIONS:
        errors = {key: numbers(each) for key, each in saved.get("errors", {}).items()}
        scores.errors = {key: each for key, each in errors.items() if len(each) == SEVERITIES}
    if name == GROUPS:
        groups = {f"{key} ({one['count']})": one["accuracy"] for key, one in saved.get("groups", {}).items()}
        scores.groups = finite(groups)
    if name == PROBES:
        for role, each in saved.get("networks", {}).items():
            scores.probes[role] = finite({key: one["accuracy"] for key, one in each.items()})
            scores.unchanged[role] = finite({key: one.get("agreement") for key, one in each.items()})
    classes = {key: number(value) for key, value in (saved.get("classes") or {}).items()}
    if any(value is not None for value in classes.values()):
        scores.classes[name] = classes
    if rows := {key: row for key, raw in (saved.get("confusion") or {}).items() if (row := finite(raw))}:
        scores.confusion[name] = rows
        scores.mistakes[name] = [
            Mistake(str(each["image"]), str(each["class"]), str(each["answer"]), *numbers([each["confidence"]]))
            for each in saved["mistakes"]
        ]


# --- artifacts/ of a student ---


@dataclass(frozen=True)
class Embedding:
    """The same samples in two planes."""

    method: str
    label: tuple[str, ...]
    teacher: tuple[tuple[float, float], ...]
    student: tuple[tuple[float, float], ...]
    colours: dict[str, str] = field(default_factory=dict)  # class → its colour in masks, where samples are locations


def read_histograms(place: Path, name: str, notes: Notes) -> dict[str, dict[str, Histogram]]:
    """View → measure → histogram."""
    with notes.reading(f"{name}/artifacts/{MECHANISM}.json"):
        views = read_object(place / "artifacts" / f"{MECHANISM}.json").get("views", {})
        return {
            view: {measure: _histogram(raw) for measure, raw in saved["histograms"].items()}
            for view, saved in views.items()
        }
    return {}


def _histogram(raw: Json) -> Histogram:
    edges, counts = numbers(raw["edges"]), numbers(raw["counts"])
    bins = zip(edges, edges[1:], counts, strict=False)
    return {round((low + high) / 2, 6): count / sum(counts) for low, high, count in bins}


def read_embedding(place: Path, name: str, notes: Notes) -> Embedding | None:
    """Teacher and student features in the plane, of images or of locations; read only for the runs that are drawn."""
    for kind in (MECHANISM, SCENES):
        with notes.reading(f"{name}/artifacts/{kind}.json"):
            saved = read_object(place / "artifacts" / f"{kind}.json")
            if raw := saved.get("embedding"):
                colours = class_colours(saved) if kind == SCENES else {}
                label = tuple(str(raw["classes"][index]) for index in raw["label"])
                teacher, student = (tuple((x, y) for x, y in map(numbers, raw[key])) for key in ("teacher", "student"))
                if not len(label) == len(teacher) == len(student):
                    raise ValueError("an embedding needs as many labels as points")
                return Embedding(str(raw.get("method", "t-SNE")), label, teacher, student, colours)
    return None


def class_colours(saved: Json) -> dict[str, str]:
    """Class → its colour in masks, which the page writes into its styles."""
    colours = dict(zip(saved["classes"], saved["colours"], strict=True))
    if not all(COLOUR.fullmatch(colour) for colour in colours.values()):
        raise ValueError("masks need a colour #rrggbb for each class")
    return {name: colour.lower() for name, colour in colours.items()}


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
        return Image.open(BytesIO(self.data), formats=PAGE_FORMATS)


def open_picture(path: Path, notes: Notes) -> Picture:
    """A picture that can be read to its end, and that the page has room for."""
    data = content(path, PICTURE)
    if len(data) > notes.bytes_left:
        raise ValueError(f"the pictures of a page may have {PICTURES >> 20} MB together")
    picture = parse_picture(data)
    notes.bytes_left -= len(data)
    return picture


def parse_picture(data: bytes) -> Picture:
    try:
        with Image.open(BytesIO(data), formats=PAGE_FORMATS) as image:
            image.load()
            return Picture(image.format or "", data, *image.size, _areas(image) if image.mode == "P" else ())
    except Exception as error:  # whatever a decoder makes of damaged bytes
        raise ValueError(f"no JPEG or PNG, or damaged ({type(error).__name__})") from None


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
    ends: dict[str, tuple[Picture, list[str]]]  # high, low → strip and the classes in it
    named: str = ""  # statistics of the images that go along with it


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
    batches: list[dict[str, float]]  # batch, to_whole, between, reference
    batches_random: float | None
    energy: list[dict[str, float]]  # epoch, shortcut, robust, accuracy
    energy_random: float | None
    pooled: dict[str, Explained]  # displaced, abandoned → over all their directions
    each: tuple[Direction, ...] = ()


def read_directions(home: Path, early: str, title: str, notes: Notes) -> Directions | None:
    """Of a teacher's files for this early state, the one written last."""
    files = (home / "artifacts").glob("directions-*.json")
    for path in sorted(files, key=lambda path: (path.stat().st_mtime_ns, path), reverse=True):
        name = f"teachers/{home.name}/artifacts/{path.name}"
        with notes.reading(name):
            data = read_object(path)
            if data["early"] == early:
                kinds = data.get("directions") or {}
                raw = [(kind, one) for kind in DIRECTION_KINDS for one in kinds.get(kind, ())]
                each = tuple(_direction(path, name, kind, one, notes) for kind, one in raw)
                return parse_directions(data, home.name, title, each)
    return None


def _direction(path: Path, name: str, kind: str, raw: Json, notes: Notes) -> Direction:
    ends = {}
    for end in ("high", "low"):
        with notes.reading(f"{name}, {kind} {raw['number']}"):
            if raw.get(end):
                ends[end] = open_picture(path.parent / raw[end], notes), list(map(str, raw[f"classes_{end}"]))
    energy = {state: raw.get(f"energy_{state}") for state in ("early", "final")}
    statistics = raw.get("statistics") or {}
    named = f"{statistics['name']}; R² {numbers([statistics['r2']])[0]:.2f}" if statistics.get("name") else ""
    return Direction(kind, int(raw["number"]), finite(energy), _explained(raw.get("explained")), ends, named)


def _explained(saved: Json | None) -> Explained:
    shares = {state: finite(each) for state, each in (saved or {}).items()}
    return {state: each for state, each in shares.items() if each}


def parse_directions(data: Mapping[str, Any], teacher: str, title: str, each: tuple[Direction, ...] = ()) -> Directions:
    """From the JSON that analysis/directions and an audit write."""
    angles, spectrum, explained = (data.get(key) or {} for key in ("angles", "spectrum", "explained"))
    batches, energy = ([finite(row) for row in data.get(key) or ()] for key in ("batches", "energy"))
    return Directions(
        teacher=teacher,
        early=data["early"],
        title=title,
        facts=finite(data),
        angles={pair: numbers(value["each"]) for pair, value in angles.items() if pair != "random" and value["each"]},
        angle_random=number(angles.get("random")),
        spectrum={kind: numbers(spectrum[kind]) for kind in ("uncentred", "centred") if any(spectrum.get(kind) or ())},
        gaps=finite({kind: gap["absolute"] for kind, gap in spectrum.get("eigengap", {}).items()}),
        bootstrap=finite(data.get("bootstrap") or {}),
        batches=[row for row in batches if row.get("batch", 0) > 0],
        batches_random=number(data.get("batches_random")),
        energy=sorted((row for row in energy if "epoch" in row), key=lambda row: row["epoch"]),
        energy_random=number(data.get("energy_random")),
        pooled={kind: states for kind, saved in explained.items() if (states := _explained(saved))},
        each=each,
    )
