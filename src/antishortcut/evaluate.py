"""A trained network over sets: one forward pass each, results in scores/<set>.json. Repeating it costs nothing."""
# N images, C classes, D features

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from antishortcut.data import Loader, order
from antishortcut.data.parts import take
from antishortcut.diagnose import alignment, ridge_map, shortcut_projection
from antishortcut.errors import UserError, near
from antishortcut.folder import Folder, write_json
from antishortcut.models import Network
from antishortcut.run import Run
from antishortcut.scorers import accuracy, shape_bias
from antishortcut.teachers import Teachers, Trajectory, network_of
from antishortcut.types import AnySet, Sets

POOL = 5_000  # images the mechanism is measured on (S-Sec. A.3)


class Subject:
    """A finished run, opened to be examined; of a teacher, any state it kept."""

    def __init__(self, folder: Folder, runs: Path, sets: Sets, state: str = "final", device: str = "cpu") -> None:
        if not folder.finished:
            raise UserError(f"{folder.path} is not finished; run its command again to go on with it")
        self.folder, self.runs, self.sets, self.device = folder, runs, sets, device
        self.run, _ = folder.read()
        if self.run.fingerprint != sets.fingerprint:
            raise UserError(f"{folder.path} was trained on other data than are here now (fingerprints differ)")
        self.network = _network(self.run, folder, sets, state).eval()

    @torch.no_grad()
    def outputs(self, network: Network, images: AnySet) -> tuple[Tensor, Tensor]:
        """Logits (N, C) and embeddings (N, D) of a set, in its order."""
        loader = Loader(images, batch=256, seed=0, image_size=self.sets.image_size, augment="none", shuffle=False)
        network.to(self.device)
        seen = [network(batch.image.to(self.device)) for batch in loader.epoch(0)]
        return torch.cat([s.logits.cpu() for s in seen]), torch.cat([s.embedding.cpu() for s in seen])


def _network(run: Run, folder: Folder, sets: Sets, state: str) -> Network:
    blank = run.model.model_copy(update={"weights": None, "pretrained": False})
    network = network_of(blank, len(sets.classes), sets.image_size)
    weights = load_file(folder.student) if state == "final" and not run.keep else Trajectory(folder).weights(state)
    network.load_state_dict(weights)
    return network


def clean(subject: Subject) -> Mapping[str, Mapping[str, Any]]:
    """Accuracy on every test set of the data, and shape bias where the texture of each image is known."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, images in subject.sets.tests.items():
        logits, _ = subject.outputs(subject.network, images)
        values = dict(accuracy(logits, images.label))
        if "texture" in images.cues and bool((images.cues["texture"] != images.label).all()):  # stimuli in conflict
            values |= dict(shape_bias(logits, images.label, images.cues))
        found[name] = {"count": len(images), "values": values}
    return found


def mechanism(subject: Subject) -> Mapping[str, Mapping[str, Any]]:
    """Where the student's features stand between the two teacher states.

    `raw` compares embeddings as they are (equal widths only, as the paper does), `aligned` after a ridge map fitted on
    training images: the ruler that serves every method and width.
    """
    run, sets = subject.run, subject.sets
    if run.teacher is None:
        raise UserError(f"{subject.folder.path} is a teacher; the mechanism is measured on students")
    teachers = Teachers(run, subject.runs, len(sets.classes), sets.image_size)
    pool = part(next(iter(sets.tests.values())), POOL)
    fit = part(sets.train, POOL)
    final, early = (subject.outputs(teachers.network(role), pool)[1] for role in ("final", "early"))
    student = subject.outputs(subject.network, pool)[1]
    fitted = subject.outputs(subject.network, fit)[1]
    matrix, offset = ridge_map(fitted, subject.outputs(teachers.network("final"), fit)[1])
    views = {"aligned": student @ matrix + offset}
    if student.shape[1] == final.shape[1]:
        views["raw"] = student
    values = {
        view: dict(alignment(rows, final, early)) | dict(shortcut_projection(rows, final, early))
        for view, rows in views.items()
    }
    return {"mechanism": {"count": len(pool), "values": values}}


def part(images: AnySet, count: int) -> AnySet:
    """A fixed random part of a set, the same for every run."""
    if len(images) <= count:
        return images
    return take(images, order(len(images), 0, 0)[:count].sort().values)


EVALUATIONS: dict[str, Callable[[Subject], Mapping[str, Mapping[str, Any]]]] = {"clean": clean, "mechanism": mechanism}


def evaluate(
    folder: Folder, runs: Path, sets: Sets, on: list[str], state: str = "final", device: str = "cpu"
) -> dict[str, dict[str, Any]]:
    """Run the named evaluations of a finished run and keep their scores; what is scored already is not repeated.

    Scores of an earlier state of a teacher are kept as <set>@<state>.
    """
    mark = "" if state == "final" else f"@{state}"
    for name in on:
        if name not in EVALUATIONS:
            raise UserError(f"unknown evaluation {name!r}{near(name, EVALUATIONS)}")
    subject: Subject | None = None
    for name in on:
        names = [each + mark for each in (sets.tests if name == "clean" else [name])]
        known = [folder.score(each) for each in names]
        if all(score is not None and score["fingerprint"] == sets.fingerprint for score in known):
            continue
        subject = subject or Subject(folder, runs, sets, state, device)
        for each, score in EVALUATIONS[name](subject).items():
            kept = {"set": each, "state": state, "fingerprint": sets.fingerprint} | dict(score)
            write_json(folder.path / "scores" / f"{each}{mark}.json", kept)
    return folder.scores()
