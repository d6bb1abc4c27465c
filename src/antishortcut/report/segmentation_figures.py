"""Segmentation: the IoU of every class, and scenes side by side: input, truth, teacher, a student per method.

Scenes are read from artifacts/scenes.json and artifacts/scenes/; those of the set "conflict" from scenes-conflict. The
page shows them, and figures/scenes-1.png … hold four scenes each.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any
from unicodedata import normalize

from PIL import Image, ImageDraw, ImageFont, ImageOps

from antishortcut.fileio import atomic_write
from antishortcut.report.collect import BASELINE, Collected, StudentRun
from antishortcut.report.reader import SCENES, Notes, Picture, class_colours, open_picture, read_object
from antishortcut.report.stats import summary
from antishortcut.report.table import HEADLINE, ResultTable, best_of_suites

MOST, PER_PICTURE = 16, 4  # scenes of a gallery, and of one picture, as S-Figures 2–5
FEW_METHODS = 6  # of more methods only a few are shown at first
CONFLICT = "conflict"  # the set where the shortcut says another class
KINDS = (SCENES, f"{SCENES}-{CONFLICT}")  # artifacts of scenes
SHARED = ("input", "truth", "teacher", "early")  # the same for every student; the last is shown when asked for
SMALL = 128  # pixels of a small picture
KEY = 20  # classes that a legend always has
VOID = "#000000"  # where there is no label
WIDE = 224  # pixels of a scene in a file, or the nearest multiple of its own width where that is less
TALL = 1.25  # how much higher than wide a scene may be
GAP, MARGIN, LINE, KEY_WIDTH = 6, 16, 26, 150
INK, EMPTY = "#1c2126", "#eceff2"
USUAL = ("test", "iid")  # the first test set, where another was scored during training
MANY = 24  # classes above which their table is folded
Shots = dict[int, Picture]  # by scene, from 0


@dataclass(frozen=True)
class SceneColumn:
    """The pictures of one kind: one of SHARED, or a student's."""

    title: str
    shots: Shots
    method: str | None = None
    seed: int | None = None
    more: bool = False  # shown when its box is ticked


@dataclass(frozen=True)
class SceneSet:
    """What scenes.json says of its pictures."""

    set: str
    colours: tuple[tuple[str, str], ...]  # class, colour
    scenes: int  # how many of them are shown
    kind: str  # one of KINDS: the folder of the pictures


@dataclass(frozen=True)
class Gallery:
    """Scenes of one test set, with the students of one teacher and suite."""

    suite: str
    teacher: str
    scene_set: SceneSet
    columns: list[SceneColumn]

    @cached_property
    def pages(self) -> list[list[int]]:
        """Scenes that have pictures, four by four."""
        known = sorted({scene for column in self.columns for scene in column.shots})
        return [known[start : start + PER_PICTURE] for start in range(0, len(known), PER_PICTURE)]

    @property
    def first(self) -> list[SceneColumn]:
        return [column for column in self.columns if not column.more]

    @property
    def more(self) -> list[SceneColumn]:
        return [column for column in self.columns if column.more]

    @property
    def title(self) -> str:
        conflict = ", where the shortcut says another class" if self.scene_set.set == CONFLICT else ""
        return f"{self.suite}, {self.scene_set.set} set{conflict}"

    @cached_property
    def width(self) -> int:
        """Of its widest picture."""
        return max(shot.width for column in self.columns for shot in column.shots.values())

    @property
    def few(self) -> bool:
        """Whether one legend has room for all its classes."""
        return len(self.scene_set.colours) <= KEY

    @property
    def across(self) -> int:
        """How many tables stand side by side where there is room: two of small pictures."""
        return 2 if self.width <= SMALL and len(self.first) <= FEW_METHODS else 1

    @property
    def seeds(self) -> str:
        """Which seed is shown, in words."""
        return "seeds: " + ", ".join(f"{column.title} {column.seed}" for column in self.columns if column.method)

    def key(self, scenes: Sequence[int], columns: Sequence[SceneColumn]) -> dict[str, str]:
        """Class → colour: those that occur in these pictures, all when they are few; what has no label last."""
        there = {paint for at in scenes for c in columns if at in c.shots for paint in c.shots[at].colours}
        key = {name: paint for name, paint in self.scene_set.colours if self.few or paint in there}
        unlabelled = VOID in there and VOID not in dict(self.scene_set.colours).values()
        return key | ({"no label": VOID} if unlabelled else {})

    def alt(self, scene: int, column: SceneColumn) -> str:
        """A picture in words: what is on it, the largest first."""
        names = {colour: name for name, colour in self.scene_set.colours}
        there = [names[colour] for colour in column.shots[scene].colours if colour in names]
        text = ", ".join(there[:5]) + ", …" * (len(there) > 5)
        return f"Scene {scene + 1}, {column.title}" + (f": {text}" if text else "")


def galleries(table: ResultTable, notes: Notes) -> list[Gallery]:
    """Of each method the first seed that has scenes; other test sets, suites and teachers are other galleries."""
    groups: dict[tuple[str, str, str], dict[SceneSet, dict[str, tuple[StudentRun, Shots]]]] = {}
    for kind, students in product(KINDS, table.runs.groups.values()):
        for student, scenes in _scene_sets(students, kind, notes):
            if shots := _shots(student, scenes, "student", notes):
                run = student.run
                sets = groups.setdefault((run.suite, run.teacher or "", run.fingerprint), {})
                sets.setdefault(scenes, {})[student.method] = student, shots
                break
    result = []
    for (suite, teacher, _), sets in groups.items():
        for scenes, methods in sets.items():
            columns = []
            for role in SHARED:
                shots = {}
                for student, _ in methods.values():  # from the first student that has it whole
                    if len(shots) < scenes.scenes:
                        shots = _shots(student, scenes, role, notes) | shots
                if shots or role != "early":
                    columns.append(SceneColumn(role, shots, more=role == "early"))
            for method, more in _method_order(methods, table):
                student, shots = methods[method]
                columns.append(SceneColumn(method, shots, method, student.run.seed, more))
            result.append(Gallery(suite, teacher, scenes, columns))
    return result


def _scene_sets(students: Iterable[StudentRun], kind: str, notes: Notes) -> Iterator[tuple[StudentRun, SceneSet]]:
    for student in students:
        with notes.reading(f"{student.path}/artifacts/{kind}.json"):
            saved = read_object(student.place / "artifacts" / f"{kind}.json")
            colours = tuple(class_colours(saved).items())
            yield student, SceneSet(str(saved["set"]), colours, min(int(saved["scenes"]), MOST), kind)


def _shots(student: StudentRun, scenes: SceneSet, role: str, notes: Notes) -> Shots:
    """The pictures of one kind; one that is not there is left out."""
    shots = {}
    for at in range(scenes.scenes):
        name = f"{scenes.kind}/{at:02d}-{role}.{'jpg' if role == 'input' else 'png'}"
        with notes.reading(f"{student.path}/artifacts/{name}"):
            shots[at] = open_picture(student.place / "artifacts" / name, notes)
    return shots


def _method_order(methods: dict[str, tuple[StudentRun, Shots]], table: ResultTable) -> list[tuple[str, bool]]:
    """Methods, and whether they are hidden at first: of many, kd, asd and the best come first."""
    if len(methods) <= FEW_METHODS:
        return [(method, False) for method in methods]
    names = {student.run.name: method for method, (student, _) in methods.items()}
    best = max(methods, key=lambda method: table.cells[method][HEADLINE].mean)
    first = dict.fromkeys([*(names[name] for name in (BASELINE, "asd") if name in names), best])
    return [(method, method not in first) for method in (*first, *(m for m in methods if m not in first))]


# --- pictures for other documents ---


def draw_scenes(galleries: Sequence[Gallery], folder: Path) -> None:
    """figures/scenes-1.png …; of a second gallery scenes-2-1.png …"""
    for index, gallery in enumerate(galleries, start=1):
        for page, scenes in enumerate(gallery.pages, start=1):
            name = f"scenes-{page}" if index == 1 else f"scenes-{index}-{page}"
            with atomic_write(folder / f"{name}.png") as file:
                draw_page(gallery, scenes).save(file, format="PNG")


def draw_page(gallery: Gallery, scenes: Sequence[int]) -> Image.Image:
    """The set, a row per scene, a column per kind of picture, a legend below."""
    columns, own = gallery.first, gallery.width
    side = own * max(1, round(WIDE / own)) if own <= WIDE else WIDE  # small ones a whole number of times
    height = round(side * min(max(s.height / s.width for c in columns for s in c.shots.values()), TALL))
    left, top = MARGIN + LINE, MARGIN + 2 * LINE  # room for the scenes' numbers, and for two lines of titles
    width = left + MARGIN + len(columns) * (side + GAP) - GAP
    key = gallery.key(scenes, columns)
    per_line = max(1, (width - 2 * MARGIN) // KEY_WIDTH)
    below = top + len(scenes) * (height + GAP) + GAP
    page = Image.new("RGB", (width, below + LINE * -(-len(key) // per_line) + MARGIN), "white")
    _write(page, gallery.title, MARGIN, MARGIN, width - 2 * MARGIN)
    for row, at in enumerate(scenes):
        _write(page, str(at + 1), MARGIN, top + row * (height + GAP) + height // 2 - LINE // 2, LINE)
    for index, column in enumerate(columns):
        x = left + index * (side + GAP)
        _write(page, column.title, x, MARGIN + LINE, side)
        for row, at in enumerate(scenes):
            tile = Image.new("RGB", (side, height), EMPTY)
            if at in column.shots:
                way = Image.Resampling.NEAREST if column.shots[at].kind == "PNG" else Image.Resampling.BICUBIC
                tile = ImageOps.pad(column.shots[at].image().convert("RGB"), tile.size, way, EMPTY)
            page.paste(tile, (x, top + row * (height + GAP)))
    for index, (word, paint) in enumerate(key.items()):
        x, y = MARGIN + index % per_line * KEY_WIDTH, below + index // per_line * LINE
        page.paste(paint, (x, y + 3, x + 13, y + 16))
        _write(page, word, x + 20, y, KEY_WIDTH - 24)
    return page


def _write(page: Image.Image, text: str, left: int, top: int, width: int) -> None:
    """Text that is cut off where its room ends. Pillow's own font has hardly more than ASCII: accents are dropped."""
    text = normalize("NFKD", " ".join(text.split())).encode("ascii", "ignore").decode()
    line = Image.new("RGB", (width, LINE), "white")
    ImageDraw.Draw(line).text((0, 0), text, INK, ImageFont.load_default(15))
    page.paste(line, (left, top))


# --- IoU of every class ---


@dataclass(frozen=True)
class ClassRow:
    """Of one class, or of all: means over the seeds that have it, and who has its suite's best."""

    name: str
    means: dict[str, float]  # method → IoU
    best: set[str]

    def text(self, method: str) -> str:
        return f"{self.means[method]:.3f}" if method in self.means else "–"


@dataclass(frozen=True)
class ClassTable:
    """Of the runs that have the same classes in the same set."""

    title: str  # the set, with its suites where there are several tables
    methods: list[str]
    rows: list[ClassRow]  # mIoU first

    @property
    def folded(self) -> bool:
        return len(self.rows) - 1 > MANY

    def texts(self) -> list[list[str]]:
        """The table as words, the best in bold."""
        return [
            [row.name, *(f"**{row.text(m)}**" if m in row.best else row.text(m) for m in self.methods)]
            for row in self.rows
        ]

    def explanation(self, best: str) -> str:
        return (
            f"Intersection over union, mean over seeds. {best}: the best of its row among the methods of a suite, over "
            "the seeds in common. –: a class that is neither there nor predicted."
        )

    def flat(self) -> dict[str, Any]:
        return {"set": self.title, "classes": [{"class": row.name} | row.means for row in self.rows[1:]]}


def class_tables(runs: Collected) -> list[ClassTable]:
    """One for every set and list of classes; of a run the set scored during training, or the first test set."""
    tables: dict[tuple[str, tuple[str, ...]], dict[str, list[StudentRun]]] = {}
    for student in runs.students:
        if student.classes:
            usual = (name for name in (student.eval_split, *USUAL) if name in student.classes)
            name = next(usual, next(iter(student.classes)))
            tables.setdefault((name, tuple(student.classes[name])), {}).setdefault(student.method, []).append(student)
    result = []
    for (name, classes), groups in tables.items():
        rows: list[ClassRow] = []
        for title in ("mIoU", *classes):
            values: dict[str, dict[int, float]] = {}
            for method, students in groups.items():
                each = {s.run.seed: s.classes[name][title] if rows else s.values.get(f"{name} miou") for s in students}
                if known := {seed: value for seed, value in each.items() if value is not None}:
                    values[method] = known
            means = {method: summary([*known.values()]).mean for method, known in values.items()}
            rows.append(ClassRow(title, means, best_of_suites(values, runs.suites)))
        of = f" of {', '.join(dict.fromkeys(runs.suites[method] for method in groups))}" if len(tables) > 1 else ""
        result.append(ClassTable(f"{name} set{of}", list(groups), rows))
    return result
