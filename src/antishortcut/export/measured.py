"""What a run's scores say of it, and which of them there are not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from antishortcut.errors import UserError
from antishortcut.export.opened import Opened
from antishortcut.teachers import Trajectory

Score = Mapping[str, Any]
MECHANISM, COST, CLEAN = "mechanism", "cost", "clean"
EVALUATIONS = {  # as asd evaluate --on names them, and what each would tell
    CLEAN: "the data's own test sets",
    "corruptions": "noise, blur, weather and other corruptions",
    "stylized": "copies in the style of paintings",
    "cue-conflict": "the shape of one class with the texture of another",
    "imagenet-r": "paintings, toys and cartoons",
    "imagenet-a": "photographs that others got wrong",
    "groups": "the worst group",
    "attack": "small adversarial changes",
    "hard": "images that the early teacher gets wrong",
    MECHANISM: "its features beside the teacher's early and final ones",
    COST: "latency",
}
LEANS = {  # set → what of its scores says so, in which words
    "conflict": ("where shape and texture say different classes", ("shape_bias", "by_shape", "by_texture")),
    "cue-conflict": ("where shape and texture say different classes", ("shape_bias", "by_shape", "by_texture")),
    "groups": ("group by group", ("worst_group", "mean_group")),
    "hard": ("images the early teacher gets wrong, and right", ("hard_accuracy", "easy_accuracy")),
    "stylized": ("with the texture of a painting", ("accuracy", "clean_accuracy")),
}
MEASURES = ("cos_final", "cos_early", "projection", "projection_random")
VIEWS = ("aligned", "raw")


@dataclass(frozen=True)
class Row:
    """One number."""

    set: str
    score: str
    value: float
    count: int | None  # of images
    source: str

    def texts(self) -> tuple[str, ...]:
        return self.set, self.score, f"{self.value:.4f}", counted(self.count), self.source


def scores_of(opened: Opened) -> dict[str, dict[str, Any]]:
    """Those of this very state."""
    mark = "" if opened.state == "final" else f"@{opened.state}"
    return {
        name.removesuffix(mark) if mark else name: score
        for name, score in opened.folder.scores().items()
        if (name.endswith(mark) if mark else "@" not in name)
    }


def rows(opened: Opened, scores: Mapping[str, Score]) -> Iterator[Row]:
    """What training ended with, then every score of a set."""
    yield from _trained(opened)
    for name, score in scores.items():
        if name in (MECHANISM, COST):
            continue
        source = str(score.get("source", "the data's own"))
        reference = score.get("reference")
        source += f", relative to {reference.get('run', '?')}" if isinstance(reference, dict) else ""
        for key, value in score["values"].items():
            if is_number(value):
                yield Row(name, str(key), value, whole(score.get("count")), source)


def _trained(opened: Opened) -> Iterator[Row]:
    if opened.state == "final":
        try:
            name, value = opened.folder.headline()
            result = opened.folder.result()
        except (UserError, KeyError, TypeError, ValueError):  # not whole
            return
        count = whole(result["last"].get("images"))  # these weights; the best state is not kept
        yield Row(str(result.get("set", "test")), name, value, count, "at the end of training")
    else:
        entry = Trajectory(opened.folder).entry(opened.state)
        for name in ("accuracy", "miou"):
            if is_number(entry.get(name)):
                yield Row("judged", name, entry[name], whole(entry.get("images")), "while training")


def leaning(scores: Mapping[str, Score]) -> list[str]:
    """Lines on what it goes by, as far as that was scored."""
    lines = []
    for name, (words, keys) in LEANS.items():
        values = scores.get(name, {}).get("values", {})
        told = [f"{key} {values[key]:.3f}" for key in keys if is_number(values.get(key))]
        lines += [f"- {name}, {words}: {', '.join(told)}."] if told else []
    views = _views(scores)
    view = next((each for each in VIEWS if each in views), None)
    told = [f"{key} {views[view][key]:.3f}" for key in MEASURES if view and key in views[view]]
    words = "features beside the teacher's, and their length on its shortcut directions beside a random direction's"
    return lines + ([f"- {MECHANISM}, {words} ({view}): {', '.join(told)}."] if told else [])


def mechanism(scores: Mapping[str, Score]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Every measure in every view: head and rows of a table."""
    views = _views(scores)
    measures = dict.fromkeys(key for view in views.values() for key in view)
    texts = [(key, *(f"{view[key]:.3f}" if key in view else "–" for view in views.values())) for key in measures]
    return ("measure", *views), texts


def _views(scores: Mapping[str, Score]) -> dict[str, dict[str, float]]:
    held = scores.get(MECHANISM, {}).get("values", {})
    return {
        str(view): {str(key): value for key, value in values.items() if is_number(value)}
        for view, values in held.items()
        if isinstance(values, dict)
    }


def unmeasured(opened: Opened, scores: Mapping[str, Score]) -> list[str]:
    """Names of evaluations that left no score."""
    try:
        own = str(opened.folder.result().get("set"))
    except UserError:
        own = ""
    return [name for name in EVALUATIONS if (own if name == CLEAN else name) not in scores]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def counted(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
