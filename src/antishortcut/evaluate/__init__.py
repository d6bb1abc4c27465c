"""A trained network over sets: one forward pass each, results in scores/<set>.json. Repeating it costs nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from typing import Any

from antishortcut.errors import UserError, near
from antishortcut.evaluate.between import mechanism
from antishortcut.evaluate.corrupted import corruptions
from antishortcut.evaluate.hard import hard
from antishortcut.evaluate.latency import cost
from antishortcut.evaluate.own import clean
from antishortcut.evaluate.scenes import scenes
from antishortcut.evaluate.shifted import attack, conflict, groups, renditions, stylized
from antishortcut.evaluate.subject import Bench, Examination, Subject, mark
from antishortcut.folder import Folder, swept, write_json

__all__ = ["Bench", "EVALUATIONS", "Subject", "evaluate"]

EVALUATIONS: dict[str, Callable[[Bench], Iterable[Examination]]] = {
    "clean": clean,
    "corruptions": corruptions,
    "stylized": stylized,
    "cue-conflict": conflict,
    "imagenet-r": renditions("imagenet-r"),
    "imagenet-a": renditions("imagenet-a"),
    "groups": groups,
    "attack": attack,
    "hard": hard,
    "mechanism": mechanism,
    "scenes": scenes,
    "cost": cost,
}


def evaluate(
    folder: Folder, bench: Bench, on: Iterable[str], state: str = "final", device: str = "cpu"
) -> dict[str, dict[str, Any]]:
    """Run the named evaluations of a finished run and keep their scores; what is scored already is not repeated.

    Scores of an earlier state of a teacher are kept as <set>@<state>. What is wrong with one evaluation is said when
    the others are done.
    """
    for name in on:
        if name not in EVALUATIONS:
            raise UserError(f"unknown evaluation {name!r}{near(name, EVALUATIONS)}")
    subject, wrong = Subject(folder, bench, state, device), list[str]()
    swept(folder.path)  # no lock keeps a killed evaluation's halves from lying there
    for name in on:
        try:
            _examine(subject, EVALUATIONS[name](bench))
        except UserError as error:  # one that cannot be done keeps no other from it
            wrong.append(str(error))
    if wrong:
        raise UserError("; ".join(dict.fromkeys(wrong)))
    return folder.scores()


def _examine(subject: Subject, examinations: Iterable[Examination]) -> None:
    folder, state = subject.folder, subject.state
    for examination in examinations:
        title = examination.name + mark(state)
        known = folder.score(title)
        stands = known is not None and known.get("fingerprint") == examination.fingerprint
        if stands and examination.made(subject):
            continue
        _writable(folder)
        kept = {"set": examination.name, "state": state, "fingerprint": examination.fingerprint}
        write_json(folder.path / "scores" / f"{title}.json", kept | dict(examination.score(subject)))


def _writable(folder: Folder) -> None:
    """A folder that takes no files is refused before anything is computed that would be lost."""
    place = folder.path / "scores"
    try:
        with tempfile.TemporaryFile(dir=place if place.is_dir() else folder.path):
            pass
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise UserError(f"cannot write to {place} ({why}); make it writable, or evaluate a copy of the run") from None
