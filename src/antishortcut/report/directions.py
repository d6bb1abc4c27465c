"""<teacher>/artifacts/directions-<key>.json → what the teacher's directions are, with pictures at their ends."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from antishortcut.files import content
from antishortcut.report.reading import Notes, number, numbers, tree
from antishortcut.report.scores import WORD
from antishortcut.run import Run

HASH = re.compile(r"[0-9A-Za-z_-]{1,64}")  # a teacher's name becomes part of a path
PNG = b"\x89PNG\r\n\x1a\n"
PICTURE = 512 * 2**10  # bytes of a picture
PICTURES = 8 * 2**20  # bytes of all pictures of a page
SIDE = 8_192  # pixels
KINDS = ("displaced", "abandoned")
STATES = ("early", "final")
CUES = ("texture", "shape")
MOST = 64  # entries of any list
CLASSES = 12  # names under a strip

Explained = dict[str, dict[str, float]]  # state → cue → share of variance


@dataclass(frozen=True)
class Picture:
    """A strip of images, ready to stand in the page."""

    uri: str
    width: int
    height: int


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
    """What is known of one teacher's way from early to final; any part may be missing."""

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
    each: tuple[Direction, ...]
    pooled: dict[str, Explained]  # displaced, abandoned → over all their directions


@dataclass
class _Source:
    """A file of directions while it is read."""

    name: str
    artifacts: Path
    tree: dict[str, Any]
    notes: Notes
    left: list[int] = field(default_factory=lambda: [PICTURES])  # bytes, shared by all files of a report

    def part(self, key: str) -> Any:
        return self.tree.get(key) or {}


def read_directions(runs: Iterable[tuple[Path, Run]], notes: Notes) -> list[Directions]:
    """One for every teacher and early state that students were examined with, in the order of the students."""
    left = [PICTURES]
    found: dict[tuple[Path, str], Directions | None] = {}
    for place, run in runs:
        home = home_of(place, run)
        if home is None:
            continue
        early = run.roles.get("early", run.early)  # the state that the student was examined with
        if (home, early) not in found:
            found[home, early] = _newest(home, early, notes, left)
    return [each for each in found.values() if each is not None]


def home_of(place: Path, run: Run) -> Path | None:
    """The folder of a student's teacher, whether it is there or not."""
    if run.teacher is None or not HASH.fullmatch(run.teacher):
        return None
    return place.resolve().parent.parent / "teachers" / run.teacher


def _newest(home: Path, early: str, notes: Notes, left: list[int]) -> Directions | None:
    """Of the files for this early state, the one written last."""
    sources: list[tuple[int, str, _Source]] = []
    for path in sorted((home / "artifacts").glob("directions-*.json")):
        name = f"teachers/{home.name}/artifacts/{path.name}"
        held = notes.attempt(name, partial(_dated, path), None)
        if held is not None and held[1].get("early") == early:
            sources.append((held[0], name, _Source(name, path.parent, held[1], notes, left)))
    if not sources:
        return None
    *older, (_, _, newest) = sorted(sources, key=lambda each: each[:2])
    for _, name, _ in older:
        notes.add(name, f"left out: {Path(newest.name).name} is newer and of the same early state")
    return _directions(newest, home, early)


def _dated(path: Path) -> tuple[int, dict[str, Any]]:
    return path.stat().st_mtime_ns, tree(path)


def _directions(source: _Source, home: Path, early: str) -> Directions:
    def read(key: str, reader: Any, otherwise: Any) -> Any:
        return source.notes.attempt(f"{source.name}, {key}", partial(reader, source), otherwise)

    angles, angle_random = read("angles", _angles, ({}, None))
    spectrum, gaps = read("spectrum", _spectrum, ({}, {}))
    return Directions(
        teacher=home.name,
        early=early,
        title=_title(home),
        facts=_plain(source.tree, ("count", "width", "K")),
        angles=angles,
        angle_random=angle_random,
        spectrum=spectrum,
        gaps=gaps,
        bootstrap=read("bootstrap", _bootstrap, {}),
        batches=read("batches", _batches, ()),
        batches_random=_degrees(number(source.tree.get("batches_random")), number(source.tree.get("batches_random"))),
        energy=read("energy", _energy, ()),
        energy_random=number(source.tree.get("energy_random")),
        each=read("directions", _each, ()),
        pooled=read("explained", _pooled, {}),
    )


def _title(home: Path) -> str:
    """The teacher's model, where its own run.json says it."""
    try:
        return str(tree(home / "run.json")["run"]["model"]["name"])[:WORD]
    except (OSError, ValueError, LookupError, TypeError):
        return "teacher"


def _plain(values: Any, keys: Iterable[str]) -> dict[str, float]:
    return {key: value for key in keys if (value := number(values.get(key))) is not None}


def _degrees(value: float | None, scale: float | None) -> float | None:
    """Angles of random subspaces are tens of degrees, so a `scale` below π/2 says that radians were written."""
    if value is None:
        return None
    return math.degrees(value) if scale is not None and scale <= math.pi / 2 + 1e-6 else value


def _angles(source: _Source) -> tuple[dict[str, tuple[float, ...]], float | None]:
    held = dict(source.part("angles"))
    random = number(held.pop("random", None))
    each = {str(pair): numbers(value["each"], MOST) for pair, value in held.items()}
    all_ = [*([] if random is None else [random]), *(angle for angles in each.values() for angle in angles)]
    scale = max(all_, default=None)
    turned = {pair: tuple(_degrees(a, scale) or 0.0 for a in angles) for pair, angles in each.items() if angles}
    return turned, _degrees(random, scale)


def _spectrum(source: _Source) -> tuple[dict[str, tuple[float, ...]], dict[str, float]]:
    held = source.part("spectrum")
    values = {key: numbers(held[key], MOST) for key in ("uncentred", "centred") if held.get(key)}
    gaps = held.get("eigengap") or {}
    absolute = {key: gap.get("absolute") if isinstance(gap, dict) else gap for key, gap in gaps.items()}
    return values, _plain(absolute, values)


def _bootstrap(source: _Source) -> dict[str, float]:
    held = _plain(source.part("bootstrap"), ("mean", "std", "pairs", "parts", "random"))
    scale = held.get("random", held.get("mean"))
    return {key: (_degrees(x, scale) or 0.0) if key in ("mean", "std", "random") else x for key, x in held.items()}


def _batches(source: _Source) -> tuple[dict[str, float], ...]:
    rows = [_plain(row, ("batch", "to_whole", "between", "reference")) for row in list(source.part("batches"))[:MOST]]
    angles = [row[key] for row in rows for key in row if key != "batch"]
    random = number(source.tree.get("batches_random"))
    scale = max([*angles, *([] if random is None else [random])], default=None)
    return tuple(
        {key: x if key == "batch" else (_degrees(x, scale) or 0.0) for key, x in row.items()}
        for row in rows
        if row.get("batch", 0) > 0
    )


def _energy(source: _Source) -> tuple[dict[str, float], ...]:
    rows = [_plain(row, ("epoch", "shortcut", "robust", "accuracy")) for row in list(source.part("energy"))[:MOST]]
    return tuple(sorted((row for row in rows if "epoch" in row), key=lambda row: row["epoch"]))


def _explained(held: Any) -> Explained:
    return {state: shares for state in STATES if (shares := _plain((held or {}).get(state) or {}, CUES))}


def _pooled(source: _Source) -> dict[str, Explained]:
    held = source.part("explained")
    return {kind: found for kind in KINDS if (found := _explained(held.get(kind)))}


def _each(source: _Source) -> tuple[Direction, ...]:
    held = source.part("directions")
    found = []
    for kind in KINDS:
        for place, raw in enumerate(list(held.get(kind) or ())[:MOST], start=1):
            direction = source.notes.attempt(f"{source.name}, {kind} {place}", partial(_one, source, kind, raw), None)
            found += [] if direction is None else [direction]
    return tuple(found)


def _one(source: _Source, kind: str, raw: dict[str, Any]) -> Direction:
    energies = ((state, number(raw.get(f"energy_{state}"))) for state in STATES)
    label = f"{source.name}, {kind} {int(raw['number'])}"
    ends = {}
    for end in ("high", "low"):
        picture = source.notes.attempt(label, partial(_picture, source, raw[end]), None) if raw.get(end) else None
        if picture is not None:
            names = raw.get(f"classes_{end}") or ()
            ends[end] = picture, tuple(str(name)[:WORD] for name in list(names)[:CLASSES])
    return Direction(
        kind=kind,
        number=int(raw["number"]),
        energy={state: value for state, value in energies if value is not None},
        explained=_explained(raw.get("explained")),
        ends=ends,
    )


def _picture(source: _Source, name: Any) -> Picture:
    """A PNG inside the artifacts folder; other files, other folders and large pictures are refused."""
    path = source.artifacts / str(name)
    if not path.resolve().is_relative_to(source.artifacts.resolve()):
        raise ValueError("a picture outside its artifacts folder is not shown")
    size = path.stat().st_size
    if size > min(PICTURE, source.left[0]):
        raise ValueError(f"a picture of {size >> 10} kB is too large to be embedded")
    data = content(path, PICTURE)
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))  # of the IHDR chunk
    if not data.startswith(PNG) or not (0 < width <= SIDE and 0 < height <= SIDE):
        raise ValueError("a picture is no PNG")
    source.left[0] -= size
    return Picture("data:image/png;base64," + base64.b64encode(data).decode(), width, height)
