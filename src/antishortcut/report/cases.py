"""Cases that were saved on the page of `asd try`: cases/<n>/ in the folder of a suite."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antishortcut.report.reader import Notes, Picture, numbers, open_picture, read_object

MOST = 24  # on a page: the last ones


@dataclass(frozen=True)
class SavedCase:
    """An image, how it was changed, and what every network answered."""

    name: str
    picture: Picture
    source: str
    label: str | None
    changes: str
    answers: tuple[tuple[str, str, float], ...]  # network, its answer, its probability


def saved_cases(folder: Path, notes: Notes) -> list[SavedCase]:
    """Those of a suite, or of every suite below a folder, the newest first."""
    places = [path.parent for pattern in ("cases/*", "*/cases/*") for path in folder.glob(f"{pattern}/case.json")]
    numbered = sorted((path for path in places if path.name.isdecimal()), key=lambda path: -int(path.name))
    cases: list[SavedCase] = []
    for place in numbered[:MOST]:
        name = str(place.relative_to(folder))
        with notes.reading(name):
            cases.append(_case(name, read_object(place / "case.json"), open_picture(place / "image.png", notes)))
    return cases


def _case(name: str, saved: dict[str, Any], picture: Picture) -> SavedCase:
    source = "an image of one’s own" if saved["set"] is None else f"{saved['set']}, image {int(saved['index']) + 1:,}"
    changes = ", ".join(f"{key} {str(value).replace('_', ' ')}" for key, value in saved["settings"].items())
    answers = [(str(one["network"]), str(one["top"][0][0]), numbers([one["top"][0][1]])[0]) for one in saved["answers"]]
    label = None if saved["label"] is None else str(saved["label"])
    return SavedCase(name, picture, source, label, changes or "unchanged", tuple(answers))
