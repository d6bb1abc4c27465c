"""artifacts/scenes.json and artifacts/scenes/ → scenes side by side: input, truth, teacher, a student per method.

The set "conflict", where it was scored, has its own beside them: artifacts/scenes-conflict.json and its folder.
For other documents they are also pictures, figures/scenes-1.png …, four scenes each, with their set and a legend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any
from unicodedata import normalize

from PIL import Image, ImageDraw, ImageFont

from antishortcut.fileio import atomic_write
from antishortcut.report.collect import BASELINE, Found, Student
from antishortcut.report.reader import (
    ODD,
    PICTURES,
    SCENES,
    WORD,
    Notes,
    Shot,
    number,
    open_shot,
    opened,
    painted,
    said,
    tree,
)
from antishortcut.report.stats import summary
from antishortcut.report.table import HEADLINE, Table

MOST, TOGETHER = 16, 4  # scenes of a gallery, and of one picture, as S-Figures 2–5
ROWS = 6  # methods above which only a few are shown at first
OURS = "asd"
LYING = "conflict"  # the set where the shortcut says another class
KINDS = (SCENES, f"{SCENES}-{LYING}")  # artifacts of scenes
SHARED = ("input", "truth", "teacher")  # the same whichever student they lie with
SMALL = 128  # pixels of a small picture
KEY = 20  # classes that a legend always has
VOID = "#000000"  # where there is no label
WIDE = 224  # pixels of a scene in a still, or the next multiple of its own where that is less
TALL = 1.25  # how much higher than wide a scene may be
GAP, MARGIN, LINE, TEXT = 6, 16, 26, 15
INK, QUIET, EMPTY = "#1c2126", "#5b6670", "#eceff2"
Shots = dict[int, Shot]  # by scene, from 0
Rows = dict[str, tuple[Student, Shots]]  # by method


@dataclass(frozen=True)
class Column:
    """The pictures of one kind: one of SHARED, or a student's."""

    title: str
    shots: Shots
    method: str | None = None
    seed: int | None = None
    more: bool = False  # shown when asked for


@dataclass(frozen=True)
class Artifact:
    """What scenes.json says of its pictures."""

    set: str
    classes: tuple[str, ...]
    colours: tuple[str, ...]
    scenes: int
    kind: str = SCENES  # one of KINDS: the folder of the pictures

    @property
    def shown(self) -> range:
        return range(min(self.scenes, MOST))


@dataclass
class _Reader:
    """Pictures as they are read: how many bytes are left for the page, and what went wrong."""

    notes: Notes
    left: int = PICTURES
    wrong: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # folder, why → files

    def shot(self, student: Student, kind: str, name: str) -> Shot | None:
        try:
            shot = open_shot(student.place / "artifacts", f"{kind}/{name}", self.left)
        except ODD as error:
            why = "not there" if isinstance(error, FileNotFoundError) else said(error)
            self.wrong.setdefault((f"{student.path}/artifacts/{kind}", why), []).append(name)
            return None
        self.left -= len(shot.data)
        return shot

    def note(self) -> None:
        """One note for all pictures of a run with the same fault."""
        for (folder, why), (first, *rest) in self.wrong.items():
            more = f" and {len(rest)} more" if rest else ""
            self.notes.add(f"{folder}/{first}{more}", f"skipped: {why}")


@dataclass(frozen=True)
class Gallery:
    """Scenes of one test set, seen by one teacher and the students of a suite."""

    suite: str
    teacher: str
    artifact: Artifact
    columns: tuple[Column, ...]

    @cached_property
    def parts(self) -> list[list[int]]:
        """Scenes that have pictures, four by four."""
        known = sorted({scene for column in self.columns for scene in column.shots})
        return [known[at : at + TOGETHER] for at in range(0, len(known), TOGETHER)]

    @property
    def first(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if not column.more)

    @property
    def more(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.more)

    @property
    def title(self) -> str:
        lies = ", where the shortcut says another class" if self.artifact.set == LYING else ""
        return f"{self.suite}, {self.artifact.set} set{lies}"

    @property
    def width(self) -> int:
        """Of its widest picture."""
        return max(shot.width for column in self.columns for shot in column.shots.values())

    @property
    def few(self) -> bool:
        """Whether one legend has room for all its classes."""
        return len(self.artifact.classes) <= KEY

    @property
    def across(self) -> int:
        """How many parts stand side by side where there is room: two of small pictures."""
        return 2 if self.width <= SMALL and len(self.first) <= len(SHARED) + 3 else 1

    @property
    def seeds(self) -> str:
        """Which seed is shown, in words."""
        seeds = {column.seed for column in self.columns if column.method}
        each = ", ".join(f"{column.title} {column.seed}" for column in self.columns if column.method)
        return f"seed {seeds.pop()}" if len(seeds) == 1 else f"seeds: {each}"

    def key(self, scenes: Sequence[int], columns: Sequence[Column]) -> dict[str, str]:
        """Class → colour: those that occur in these pictures, all when they are few; what has no label last."""
        held = self.artifact
        outputs = {
            paint for at in scenes for column in columns if at in column.shots for paint in column.shots[at].colours
        }
        key = {name: c for name, c in zip(held.classes, held.colours, strict=True) if self.few or c in outputs}
        return key | ({"no label": VOID} if VOID in outputs and VOID not in held.colours else {})

    def alt(self, scene: int, column: Column) -> str:
        """A picture in words: what is on it, the largest first."""
        names = dict(zip(self.artifact.colours, self.artifact.classes, strict=True))
        there = [names[colour] for colour in column.shots[scene].colours if colour in names]
        message = ", ".join(there[:5]) + ", …" * (len(there) > 5)
        return f"Scene {scene + 1}, {column.title}" + (f": {message}" if message else "")


def galleries(found: Found, table: Table, notes: Notes) -> list[Gallery]:
    """Of each method the first seed that has scenes; other test sets, suites and teachers are other galleries."""
    reader = _Reader(notes)
    held: dict[tuple[str, str, str, Artifact], Rows] = {}
    for kind, (method, students) in product(KINDS, found.groups.items()):
        for artifact, student, shots in _readable(students, kind, reader):
            run = student.run
            key = run.suite, run.teacher or "", run.fingerprint, artifact
            held.setdefault(key, {})[method] = student, shots
            break
    together = list(dict.fromkeys(key[:3] for key in held))  # sets of the same students stand side by side
    ordered = sorted(held.items(), key=lambda each: together.index(each[0][:3]))
    built = [_gallery(key[0], key[1], key[3], rows, table, reader) for key, rows in ordered]
    reader.note()
    return built


def _readable(students: Iterable[Student], kind: str, reader: _Reader) -> Iterator[tuple[Artifact, Student, Shots]]:
    """Seeds that have an artifact, and pictures of their own to it."""
    for student in students:
        label = f"{student.path}/artifacts/{kind}.json"
        artifact = reader.notes.attempt(label, partial(_artifact, student.place, kind), None)
        if artifact is not None:
            shots = {at: reader.shot(student, kind, _name(at, "student")) for at in artifact.shown}
            if whole := {at: shot for at, shot in shots.items() if shot is not None}:
                yield artifact, student, whole


def _artifact(place: Path, kind: str) -> Artifact:
    held = tree(place / "artifacts" / f"{kind}.json")
    count = number(held["scenes"])
    if count is None or count < 1:
        raise ValueError("it has no scenes")
    return Artifact(str(held["set"])[:WORD], *painted(held), int(count), kind)


def _gallery(suite: str, teacher: str, artifact: Artifact, rows: Rows, table: Table, reader: _Reader) -> Gallery:
    columns = []
    for role in SHARED:
        result: Shots = {}
        for at in artifact.shown:  # from the first student that has it whole
            tried = (reader.shot(student, artifact.kind, _name(at, role)) for student, _ in rows.values())
            result |= next(({at: shot} for shot in tried if shot is not None), {})
        columns.append(Column(role, result))
    for method, more in _ordered(rows, table):
        student, shots = rows[method]
        columns.append(Column(method, shots, method, student.run.seed, more))
    return Gallery(suite, teacher, artifact, tuple(columns))


def _ordered(rows: Rows, table: Table) -> list[tuple[str, bool]]:
    """Methods, and whether they wait to be asked for: of many, kd, asd and the best come first."""
    if len(rows) <= ROWS:
        return [(method, False) for method in rows]
    names = {student.run.name: method for method, (student, _) in rows.items()}
    best = max(rows, key=lambda method: table.cells[method][HEADLINE].mean)
    first = dict.fromkeys([*(names[name] for name in (BASELINE, OURS) if name in names), best])
    return [(method, method not in first) for method in (*first, *(m for m in rows if m not in first))]


def _name(scene: int, role: str) -> str:
    return f"{scene:02d}-{role}.{'jpg' if role == 'input' else 'png'}"


# --- pictures for other documents ------------------------------------------------------------------------------------


def stills(galleries: Sequence[Gallery]) -> Iterator[tuple[str, Gallery, list[int]]]:
    """Name, gallery and scenes of each picture."""
    for index, gallery in enumerate(galleries, start=1):
        for part, scenes in enumerate(gallery.parts, start=1):
            yield f"scenes-{part}" if index == 1 else f"scenes-{index}-{part}", gallery, scenes


def draw_scenes(galleries: Sequence[Gallery], folder: Path) -> None:
    """figures/<name>.png."""
    for name, gallery, scenes in stills(galleries):
        with atomic_write(folder / f"{name}.png") as file:
            draw_still(gallery, scenes).save(file, format="PNG")


def draw_still(gallery: Gallery, scenes: Sequence[int]) -> Image.Image:
    """The set, a row per scene, a column per kind of picture, a legend below."""
    font = ImageFont.load_default(TEXT)
    columns, own = gallery.first, gallery.width
    side = own * max(1, round(WIDE / own)) if own <= WIDE else WIDE  # small ones a whole number of times
    heights = [_height(columns, at, side) for at in scenes]
    number = round(font.getlength("00")) + 8  # room for a scene's number
    width = 2 * MARGIN + number + len(columns) * (side + GAP) - GAP
    key = laid(gallery.key(scenes, columns).items(), width - 2 * MARGIN, font, 20, 18)
    below = MARGIN + 2 * LINE + sum(heights) + GAP * len(heights)
    page = Image.new("RGB", (width, below + GAP + LINE * len(key) + MARGIN), "white")
    pen = ImageDraw.Draw(page)
    pen.text((MARGIN, MARGIN), cut(gallery.title, width - 2 * MARGIN, font), INK, font)
    for place, column in enumerate(columns):
        left = MARGIN + number + place * (side + GAP)
        pen.text((left + side / 2, MARGIN + LINE), cut(column.title, side, font), INK, font, anchor="ma")
    top = MARGIN + 2 * LINE
    for at, height in zip(scenes, heights, strict=True):
        pen.text((MARGIN + number - 8, top + height / 2), str(at + 1), QUIET, font, anchor="rm")
        for place, column in enumerate(columns):
            left = MARGIN + number + place * (side + GAP)
            if at in column.shots:
                page.paste(_scaled(column.shots[at], side, height), (left, top))
            else:
                pen.rectangle((left, top, left + side - 1, top + height - 1), fill=EMPTY)
        top += height + GAP
    for line, words in enumerate(key):
        for left, word, paint in words:
            up = below + GAP + line * LINE
            pen.rectangle((MARGIN + left, up + 3, MARGIN + left + 13, up + 16), fill=paint)
            pen.text((MARGIN + left + 20, up), word, INK, font)
    return page


def _height(columns: Sequence[Column], at: int, side: int) -> int:
    """Of a row: as its pictures are, within limits."""
    shots = [column.shots[at] for column in columns if at in column.shots]
    return min(max((round(shot.height * side / shot.width) for shot in shots), default=side), round(side * TALL))


def _scaled(shot: Shot, side: int, height: int) -> Image.Image:
    """Whole, in the middle of its place."""
    scale = min(side / shot.width, height / shot.height)
    size = max(1, round(shot.width * scale)), max(1, round(shot.height * scale))
    way = Image.Resampling.NEAREST if shot.kind == "PNG" else Image.Resampling.BICUBIC
    picture = opened(shot.data, shot.kind).convert("RGB").resize(size, way)
    place = Image.new("RGB", (side, height), EMPTY)
    place.paste(picture, ((side - size[0]) // 2, (height - size[1]) // 2))
    return place


# --- IoU of every class, class by class and method by method ---

USUAL = ("test", "iid")  # the first test set, where another was judged during training
MANY = 24  # classes above which the table is folded


@dataclass(frozen=True)
class ClassRow:
    """Of one class, or of all: means over the seeds that have it, and who has its suite's best."""

    name: str
    means: dict[str, float]  # method → IoU
    best: frozenset[str]

    def text(self, method: str) -> str:
        return f"{self.means[method]:.3f}" if method in self.means else "–"


@dataclass(frozen=True)
class ClassTable:
    """Of the runs that have the same classes in the same set."""

    title: str  # the set, with its suites where there are several tables
    methods: tuple[str, ...]
    whole: ClassRow  # mIoU
    rows: tuple[ClassRow, ...]

    @property
    def folded(self) -> bool:
        return len(self.rows) > MANY

    def texts(self) -> list[list[str]]:
        """The table as words, the best in bold; mIoU first."""
        return [[row.name, *(self._text(row, method) for method in self.methods)] for row in (self.whole, *self.rows)]

    def _text(self, row: ClassRow, method: str) -> str:
        return f"**{row.text(method)}**" if method in row.best else row.text(method)

    def told(self, best: str) -> str:
        """How to read it."""
        return (
            f"Intersection over union, mean over seeds. {best}: the best of its row among the methods of a suite. "
            "–: a class that is neither there nor predicted."
        )

    def flat(self) -> dict[str, Any]:
        return {"set": self.title, "classes": [{"class": row.name} | row.means for row in self.rows]}


def class_tables(found: Found) -> list[ClassTable]:
    """One for every set and list of classes there is; of a run the set that was judged, or the first test set."""
    held: dict[tuple[str, tuple[str, ...]], dict[str, list[Student]]] = {}
    for student in found.students:
        if student.classes:
            usual = (name for name in (student.eval_split, *USUAL) if name in student.classes)
            name = next(usual, next(iter(student.classes)))
            key = name, tuple(student.classes[name])
            held.setdefault(key, {}).setdefault(student.method, []).append(student)
    return [_table(name, classes, groups, len(held) > 1) for (name, classes), groups in held.items()]


def _table(name: str, classes: Sequence[str], groups: dict[str, list[Student]], many: bool) -> ClassTable:
    suites = {method: students[0].run.suite for method, students in groups.items()}

    def row(title: str, values: dict[str, Iterable[float | None]]) -> ClassRow:
        known = {method: [x for x in held if x is not None] for method, held in values.items()}
        means = {method: summary(held).mean for method, held in known.items() if held}
        return ClassRow(title, means, _best(means, suites))

    return ClassTable(
        title=f"{name} set" + (f" of {', '.join(dict.fromkeys(suites.values()))}" if many else ""),
        methods=tuple(groups),
        whole=row("mIoU", {m: [s.values.get(f"{name} miou") for s in held] for m, held in groups.items()}),
        rows=tuple(
            row(each, {m: [s.classes[name][each] for s in held] for m, held in groups.items()}) for each in classes
        ),
    )


def _best(means: dict[str, float], suites: dict[str, str]) -> frozenset[str]:
    """The methods with their suite's best mean; nobody wins alone, nor all."""
    result: set[str] = set()
    for suite in set(suites.values()):
        held = {method: mean for method, mean in means.items() if suites[method] == suite}
        top = {method for method, mean in held.items() if mean == max(held.values())}
        result |= top if len(top) < len(held) else set()
    return frozenset(result)


# --- Text in pictures: as much as fits, and legends in lines ---

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def cut(text: str, width: float, font: Font) -> str:
    """As much of a text as fits. Pillow's own font has hardly more than ASCII: accents are dropped."""
    text = normalize("NFKD", " ".join(text.split())).encode("ascii", "ignore").decode()
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}...") > width:
        text = text[:-1]
    return f"{text}..." if text else ""


def laid(
    key: Iterable[tuple[str, str]], width: int, font: Font, before: int, after: int
) -> list[list[tuple[int, str, str]]]:
    """A legend in lines: place, word and colour, with so much room before and after each word."""
    lines: list[list[tuple[int, str, str]]] = []
    left = 0
    for name, colour in key:
        word = cut(name, width - before, font)
        wide = before + round(font.getlength(word)) + after
        if not lines or left + wide > width:
            lines.append([])
            left = 0
        lines[-1].append((left, word, colour))
        left += wide
    return lines
