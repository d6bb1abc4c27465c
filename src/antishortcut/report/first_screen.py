"""The first screen of a report or an audit: sentences, images with every network's answer and where it looks, bars.

Only the first seed of one suite is embedded, so a page on hundreds of runs is hardly larger than one on five.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from antishortcut.fileio import content
from antishortcut.report.charts import GREY, style
from antishortcut.report.reader import Notes, Picture, numbers, parse_picture, readable
from antishortcut.report.segmentation_figures import Gallery, SceneColumn
from antishortcut.report.summary import Overview, ScoredSet, overviews, sentences
from antishortcut.report.table import ResultTable

ARTIFACT = "artifacts/maps.npz"  # analysis/answers.py writes it and lists its arrays
LARGEST = 4 * 2**20  # bytes of it; usually 0.1 MB
IMAGES, STUDENTS = 12, 5
BARS, SETS = 7, 6  # methods of a set, sets
SHADE = 0.82  # how dark the map leaves what the network does not look at
REASONS = (
    "T_early and T_final disagree", "students disagree", "student and T_final disagree", "all are wrong", "all agree",
)  # fmt: skip
TEACHER = {"early": "T_early", "final": "T_final"}
TURNS = ("given up: right early, wrong now", "gained: wrong early, right now", "changed, still wrong", "both are wrong",
         "both are right")  # fmt: skip
CHOSEN = "Test images chosen by rule, with what {who} answer (✓ right, ✗ wrong) and how sure they are. "
LOOK = (
    "The right picture is bright where the chosen network looks, by Grad-CAM: an attribution. Point at another answer, "
    "choose it, or tap the picture."
)
SCENE = (
    "Scenes of the {set} set on which the networks differ most, under what the chosen network says. Beside it: what it "
    "mistakes most often, and the share of pixels it gets right. Point at another, choose it, or tap the picture."
)
SCENES = 8
NOTHING = "Nothing it sees speaks for this answer"


@dataclass(frozen=True)
class NetworkAnswer:
    """What one network says of one image, or of its pixels."""

    network: str
    answer: str
    confidence: float  # of pixels: how many are right
    right: bool | None  # None of pixels
    heat: str  # data URI of a PNG that darkens what it does not look at; of pixels, their classes in colours
    method: str | None  # of a student, so that its checkbox hides it
    empty: bool = False  # nothing on the map

    @property
    def words(self) -> str:
        if self.right is None:
            return f"{self.network}: {self.answer}, {100 * self.confidence:.0f} % of the pixels right. Show its classes"
        text = f"{self.answer}, {'right' if self.right else 'wrong'}, {100 * self.confidence:.0f} % sure"
        return f"{self.network}: {text}. {NOTHING if self.empty else 'Show where it looks'}"


@dataclass(frozen=True)
class ImageCard:
    name: str
    label: str
    reason: str
    picture: Picture
    answers: tuple[NetworkAnswer, ...]


@dataclass(frozen=True)
class BarRow:
    name: str
    value: float
    colour: str
    method: str | None = None


@dataclass(frozen=True)
class SetBars:
    """One set: the share of right answers of every method, and what guessing would have."""

    title: str
    rows: tuple[BarRow, ...]
    chance: float | None


@dataclass(frozen=True)
class FirstScreen:
    sentences: list[str]
    cards: list[ImageCard]
    caption: str  # below the images; without any, how to have them
    bars: list[SetBars]
    below: str  # the bars
    percent: bool = True  # whether scores are shares of images
    command: str = ""  # to have images, after the caption
    key: dict[str, str] = field(default_factory=dict)  # of scenes: class → colour


def first_screen(table: ResultTable, scenes: Sequence[Gallery], notes: Notes) -> FirstScreen | None:
    """None before a student is finished."""
    if not table.cells:
        return None
    one = overviews(table)[0]
    cards, command, key = image_cards(one, notes), "", {}
    if cards:
        caption = CHOSEN.format(who="T_early, T_final and the students of the first seed") + LOOK
    elif own := [gallery for gallery in scenes if gallery.suite == one.suite]:
        telling = own[-1]  # the set "conflict" comes after the ordinary one
        cards, caption = scene_cards(telling), SCENE.format(set=telling.scene_set.set)
        key = telling.key([int(card.name) - 1 for card in cards], telling.columns)
    else:
        what = {"accuracy": "maps", "miou": "scenes"}.get(one.metric)
        caption = "To see here what every network answers on a dozen test images, and where it looks:" if what else ""
        command = f"asd evaluate {table.runs.folder}/* --on {what}" if what else ""
    bars, percent = set_bars(one), one.metric in ("accuracy", "agreement")
    below = "Mean over seeds" + "; the line is chance" * (bars[0].chance is not None) + "."
    return FirstScreen(sentences(table.runs), cards, caption, bars, below, percent, command, key)


def audit_screen(audit: Mapping[str, Any], folder: Path) -> FirstScreen:
    """What training gave up: T_early beside T_final, and a student if there is one."""
    cards, path = [], folder / "pictures" / Path(ARTIFACT).name
    caption = f"No images here: {audit['no_maps']}." if "no_maps" in audit else ""
    if path.exists():
        saved = SavedMaps.read(path, "student")
        cards = [_card([saved], name, turn) for name in saved.places]
        cards.sort(key=lambda card: TURNS.index(card.reason))
        student = " and the student" if "student" in audit else ""
        caption = CHOSEN.format(who=f"T_early, T_final{student}") + LOOK
    states = {row["state"]: row for row in audit["energy"]}
    pair = {"T_early": states[audit["early"]], "T_final": states["final"]}
    scored = pair | ({"student": audit["student"]} if "student" in audit else {})
    random = audit["energy_random"]
    sets = (
        ("right answers", "accuracy", scored, 1 / audit["classes"]),
        ("energy in the displaced directions", "shortcut", pair, random),
        ("energy in the abandoned directions", "abandoned", pair, random),
    )
    bars = []
    for title, key, rows, chance in sets:
        known = [BarRow(name, row[key], GREY) for name, row in rows.items() if row[key] is not None]
        if known:
            bars.append(SetBars(title, tuple(known), chance))
    return FirstScreen(audit["sentences"], cards, caption, bars, "The line is chance, or random directions.")


# --- images ---


@dataclass(frozen=True)
class SavedMaps:
    """maps.npz of one student, with places of images by name."""

    title: str
    method: str | None
    arrays: dict[str, NDArray[Any]]
    places: dict[str, int]

    @classmethod
    def read(cls, path: Path, title: str, method: str | None = None) -> SavedMaps:
        try:
            with np.load(io.BytesIO(content(path, LARGEST)), allow_pickle=False) as saved:
                arrays = {name: saved[name] for name in saved.files}
        except (BadZipFile, zlib.error, EOFError) as error:
            raise ValueError(f"no archive of arrays, or damaged ({error})") from None
        k, n = len(arrays["network"]), len(arrays["name"])
        shapes = {"top": (k, n), "confidence": (k, n), "grad_cam": (k, n), "label": (n,), "jpeg_end": (n,)}
        if any(arrays[name].shape[: len(shape)] != shape for name, shape in shapes.items()):
            raise ValueError("arrays of different lengths")
        return cls(title, method, arrays, {str(name): at for at, name in enumerate(arrays["name"])})

    def class_name(self, index: int) -> str:
        return str(readable(str(self.arrays["classes"][index])))

    def answers(self, roles: Mapping[str, str], name: str) -> list[NetworkAnswer]:
        """Of those of its networks that are asked for: role → title."""
        rows = {role: at for at, role in enumerate(self.arrays["network"])}
        return [self._answer(rows[role], self.places[name], roles[role]) for role in roles if role in rows]

    def _answer(self, row: int, at: int, title: str) -> NetworkAnswer:
        top = int(self.arrays["top"][row, at, 0])
        (confidence,) = numbers([float(self.arrays["confidence"][row, at, 0])])
        heat, right = self.arrays["grad_cam"][row, at], top == int(self.arrays["label"][at])
        method = None if title in TEACHER.values() else self.method
        return NetworkAnswer(title, self.class_name(top), confidence, right, darkened(heat), method, not heat.any())

    def picture(self, name: str) -> Picture:
        ends = [0, *(int(end) for end in self.arrays["jpeg_end"])]
        at = self.places[name]
        return parse_picture(self.arrays["jpeg"][ends[at] : ends[at + 1]].tobytes())


def darkened(heat: NDArray[Any]) -> str:
    """A map (32, 32) as a black picture that is clear where the network looks."""
    alpha = ((255 - heat.astype(np.uint8)) * SHADE).round().astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(np.stack([np.zeros_like(alpha), alpha], axis=-1), "LA").save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def image_cards(one: Overview, notes: Notes) -> list[ImageCard]:
    """Images that all shown students answered."""
    saved = _saved_maps(one, notes)
    if not saved:
        return []
    cards = []
    with notes.reading(f"{one.groups[saved[0].method or ''][0].path}/{ARTIFACT}"):
        for name in saved[0].places:
            if all(name in each.places for each in saved):
                cards.append(_card(saved, name, reason))
    return in_turn(cards)[:IMAGES]


def in_turn(cards: Iterable[ImageCard]) -> list[ImageCard]:
    """One of each reason, then the second of each …: the first few in view are not all alike.

    Of one reason, those first that T_early gets wrong and others right.
    """
    by_reason: dict[str, list[ImageCard]] = {reason: [] for reason in REASONS}
    for card in sorted(cards, key=lambda card: card.answers[0].right or not any(one.right for one in card.answers)):
        by_reason[card.reason].append(card)
    ranked = [(rank, at, card) for at, each in enumerate(by_reason.values()) for rank, card in enumerate(each)]
    return [card for _, _, card in sorted(ranked, key=lambda each: each[:2])]


def _saved_maps(one: Overview, notes: Notes) -> list[SavedMaps]:
    """Of the first seed's students that share data and teacher: the compared ones first, then the others."""
    first = list(dict.fromkeys([one.chosen, *([one.baseline] if one.baseline else []), *one.groups]))
    saved: dict[str, SavedMaps] = {}
    origin = None
    for method in first:
        student = one.groups[method][0]
        own = student.run.teacher, student.run.early, student.run.fingerprint
        if len(saved) < STUDENTS and origin in (None, own):
            with notes.reading(f"{student.path}/{ARTIFACT}"):
                saved[method] = SavedMaps.read(student.place / ARTIFACT, student.run.name, method)
                origin = own
    return [saved[method] for method in one.groups if method in saved]


def _card(saved: list[SavedMaps], name: str, why: Callable[..., str]) -> ImageCard:
    first = saved[0]
    teachers = first.answers(TEACHER, name)
    students = [answer for each in saved for answer in each.answers({"own": each.title}, name)]
    label = first.class_name(int(first.arrays["label"][first.places[name]]))
    shown = (*teachers, *students)
    return ImageCard(str(readable(name)), label, why(teachers, students), first.picture(name), shown)


def reason(teachers: Iterable[NetworkAnswer], students: Iterable[NetworkAnswer]) -> str:
    """Why an image is worth a look: the first rule of REASONS that fits."""
    taught, own = [each.answer for each in teachers], [each.answer for each in students]
    if len(set(taught)) > 1:
        return REASONS[0]
    if len(set(own)) > 1:
        return REASONS[1]
    if taught and set(taught) != set(own):
        return REASONS[2]
    return REASONS[4] if any(each.right for each in students) else REASONS[3]


def turn(teachers: Iterable[NetworkAnswer], students: Iterable[NetworkAnswer]) -> str:
    """What training made of an image."""
    early, final = teachers
    if early.answer == final.answer:
        return TURNS[4 if final.right else 3]
    return TURNS[0 if early.right else 1 if final.right else 2]


def scene_cards(gallery: Gallery) -> list[ImageCard]:
    """The scenes on which T_early, T_final and the students differ most."""
    by_title = {column.title: column for column in gallery.columns}
    titles = {"truth": "labels", "early": "T_early", "teacher": "T_final"}
    shown = [by_title[title] for title in titles if title in by_title]
    shown += [column for column in gallery.first if column.method][:STUDENTS]
    cards = []
    for at, picture in by_title["input"].shots.items():
        there = [column for column in shown if at in column.shots]
        truth = by_title["truth"].shots.get(at)
        if truth is None or len({(c.shots[at].width, c.shots[at].height) for c in there}) > 1:
            continue  # nothing to hold the others against
        answers = [_mask_answer(gallery, column, column.shots[at], truth, titles) for column in there]
        shares = [each.confidence for each in answers[1:]] or [1.0]
        card = ImageCard(f"{at + 1}", f"scene {at + 1}", "", picture, tuple(answers))
        cards.append((max(shares) - min(shares), card))
    return [card for _, card in sorted(cards, key=lambda each: -each[0])[:SCENES]]


def _mask_answer(
    gallery: Gallery, column: SceneColumn, shot: Picture, truth: Picture, titles: Mapping[str, str]
) -> NetworkAnswer:
    labels, predicted = (np.asarray(each.image().convert("RGB")).reshape(-1, 3).astype(int) for each in (truth, shot))
    labels, predicted = (
        each @ np.array([65536, 256, 1]) for each in (labels, predicted)
    )  # (pixels,) colours as numbers
    known = labels != 0  # black has no label
    wrong = known & (labels != predicted)
    text = "" if column.title == "truth" else "no mistake"
    if wrong.any():
        names = {int(paint[1:], 16): name for name, paint in gallery.scene_set.colours}
        pairs, counts = np.unique(np.stack([labels[wrong], predicted[wrong]]), axis=1, return_counts=True)
        is_, taken = (names.get(int(value), "?") for value in pairs[:, counts.argmax()])
        text = f"{is_} as {taken}"
    share = 1 - float(wrong.sum()) / max(int(known.sum()), 1)
    name = titles.get(column.title, column.title.rpartition("/")[2])
    return NetworkAnswer(name, text, share, None, shot.uri, column.method)


# --- bars ---


def set_bars(one: Overview) -> list[SetBars]:
    """The ordinary set and the feared ones, with the methods the sentences speak of first in line if there are many."""
    colours = style(one.table.runs.methods)
    first = [one.chosen, *([one.baseline] if one.baseline else [])]
    few = set([*first, *(method for method in one.groups if method not in first)][:BARS])
    result = []
    for scored in (one.ordinary, *one.feared)[:SETS]:
        rows = [
            BarRow(one.groups[method][0].run.name, value, colours[method][0], method)
            for method in one.groups
            if method in few and (value := one.mean(method, scored)) is not None
        ]
        for title, early in (("T_final", False), ("T_early", True)):
            if (value := one.teacher(scored, early)) is not None:
                rows.append(BarRow(title, value, GREY))
        result.append(SetBars(_title(one, scored), tuple(rows), one.chance(scored)))
    return result


def _title(one: Overview, scored: ScoredSet) -> str:
    name = one.first.eval_split if scored.name == "training" else scored.name
    words = scored.words[:1].lower() + scored.words[1:]
    return f"{words} ({name})" if name not in words else words
