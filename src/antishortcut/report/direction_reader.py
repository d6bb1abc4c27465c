"""<teacher>/artifacts/directions-<key>.json → what the teacher's directions are, with pictures at their ends."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from antishortcut.config.recipe import Run
from antishortcut.fileio import content
from antishortcut.report.reader import WORD, Notes, number, numbers, tree

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
T = TypeVar("T")


@dataclass(frozen=True)
class Picture:
    """A strip of images, ready to stand in the page."""

    uri: str
    width: int
    height: int

    @classmethod
    def of(cls, data: bytes) -> Picture:
        """From the bytes of a PNG."""
        width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))  # of the IHDR chunk
        if not data.startswith(PNG) or not (0 < width <= SIDE and 0 < height <= SIDE):
            raise ValueError("a picture is no PNG")
        return cls("data:image/png;base64," + base64.b64encode(data).decode(), width, height)


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
    left: list[int]  # bytes for pictures, shared by all files of a report

    def part(self, key: str, read: Callable[[Any], T], otherwise: T) -> T:
        """One entry of the file; what cannot be read leaves a note."""
        return self.notes.attempt(f"{self.name}, {key}", lambda: read(self.tree.get(key) or {}), otherwise)

    def directions(self, held: Any) -> tuple[Direction, ...]:
        each = []
        for kind in KINDS:
            for place, raw in enumerate(list(held.get(kind) or ())[:MOST], start=1):
                label = f"{self.name}, {kind} {place}"
                each.append(self.notes.attempt(label, partial(self._direction, kind, raw), None))
        return tuple(direction for direction in each if direction is not None)

    def _direction(self, kind: str, raw: dict[str, Any]) -> Direction:
        energies = ((state, number(raw.get(f"energy_{state}"))) for state in STATES)
        label = f"{self.name}, {kind} {int(raw['number'])}"
        ends = {}
        for end in ("high", "low"):
            picture = self.notes.attempt(label, partial(self._picture, raw[end]), None) if raw.get(end) else None
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

    def _picture(self, name: Any) -> Picture:
        """A PNG inside the artifacts folder; other files, other folders and large pictures are refused."""
        path = self.artifacts / str(name)
        if not path.resolve().is_relative_to(self.artifacts.resolve()):
            raise ValueError("a picture outside its artifacts folder is not shown")
        size = path.stat().st_size
        if size > min(PICTURE, self.left[0]):
            raise ValueError(f"a picture of {size >> 10} kB is too large to be embedded")
        picture = Picture.of(content(path, PICTURE))
        self.left[0] -= size
        return picture


def read_directions(runs: Iterable[tuple[Path, Run]], notes: Notes) -> list[Directions]:
    """One for every teacher and early state that students were examined with, in the order of the students."""
    left = [PICTURES]
    known: dict[tuple[Path, str], Directions | None] = {}
    for place, run in runs:
        home = home_of(place, run)
        early = run.roles.get("early", run.early)  # the state that the student was examined with
        if home is not None and (home, early) not in known:
            known[home, early] = _newest(home, early, notes, left)
    return [each for each in known.values() if each is not None]


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
    return Directions(
        teacher=home.name,
        early=early,
        title=_title(home),
        facts=_plain(source.tree, ("count", "width", "K")),
        angles=source.part("angles", _angles, {}),
        angle_random=source.part("angles", lambda held: number(held.get("random")), None),
        spectrum=source.part("spectrum", _spectrum, {}),
        gaps=source.part("spectrum", _gaps, {}),
        bootstrap=source.part("bootstrap", lambda held: _plain(held, ("mean", "std", "pairs", "parts", "random")), {}),
        batches=source.part("batches", _batches, ()),
        batches_random=number(source.tree.get("batches_random")),
        energy=source.part("energy", _energy, ()),
        energy_random=number(source.tree.get("energy_random")),
        each=source.part("directions", source.directions, ()),
        pooled=source.part("explained", _pooled, {}),
    )


def _title(home: Path) -> str:
    """The teacher's model, where its own run.json says it."""
    try:
        return str(tree(home / "run.json")["run"]["model"]["name"])[:WORD]
    except (OSError, ValueError, LookupError, TypeError):
        return "teacher"


def _plain(values: Any, keys: Iterable[str]) -> dict[str, float]:
    return {key: value for key in keys if (value := number(values.get(key))) is not None}


def _angles(held: Any) -> dict[str, tuple[float, ...]]:
    each = {str(pair): numbers(value["each"], MOST) for pair, value in held.items() if pair != "random"}
    return {pair: angles for pair, angles in each.items() if angles}


def _spectrum(held: Any) -> dict[str, tuple[float, ...]]:
    return {key: numbers(held[key], MOST) for key in ("uncentred", "centred") if held.get(key)}


def _gaps(held: Any) -> dict[str, float]:
    gaps = held.get("eigengap") or {}
    return _plain({key: gap.get("absolute") if isinstance(gap, dict) else gap for key, gap in gaps.items()}, gaps)


def _batches(held: Any) -> tuple[dict[str, float], ...]:
    rows = [_plain(row, ("batch", "to_whole", "between", "reference")) for row in list(held)[:MOST]]
    return tuple(row for row in rows if row.get("batch", 0) > 0)


def _energy(held: Any) -> tuple[dict[str, float], ...]:
    rows = [_plain(row, ("epoch", "shortcut", "robust", "accuracy")) for row in list(held)[:MOST]]
    return tuple(sorted((row for row in rows if "epoch" in row), key=lambda row: row["epoch"]))


def _explained(held: Any) -> Explained:
    return {state: shares for state in STATES if (shares := _plain((held or {}).get(state) or {}, CUES))}


def _pooled(held: Any) -> dict[str, Explained]:
    return {kind: explained for kind in KINDS if (explained := _explained(held.get(kind)))}
