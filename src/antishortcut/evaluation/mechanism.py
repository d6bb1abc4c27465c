"""Where the student's features stand between the two teacher states."""
# N images, C classes, D teacher features, d student features

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antishortcut.analysis import ridge_map
from antishortcut.analysis.directions import head, kinds
from antishortcut.analysis.maps import tsne
from antishortcut.errors import UserError
from antishortcut.evaluation.context import Bench, Examination, Scored, Subject, part
from antishortcut.evaluation.hard import compared
from antishortcut.evaluation.leaning import values_of
from antishortcut.evaluation.trajectory import POOL, VERSION, classifier, examine_teacher, examined
from antishortcut.methods import make_method
from antishortcut.models import probe
from antishortcut.models.weights import put
from antishortcut.models.weights import read as read_weights
from antishortcut.run_dir import write_json
from antishortcut.tasks import sizes_of
from antishortcut.teachers.trajectory import Teachers
from antishortcut.types import Projects

ARTIFACT = Path("artifacts") / "mechanism.json"


def mechanism(bench: Bench) -> Iterator[Examination]:
    """Views of the student's features, as far as they exist:

    raw        as they are: equal widths only, as the paper does; the student's basis is not the teacher's
    aligned    after a ridge map to the teacher's space, fitted on training images: the ruler for every method and width
    projector  through the method's own projector, where it has one
    """
    yield Scored("mechanism", f"{bench.sets.fingerprint}-{VERSION}", _score, _made)


def _made(subject: Subject) -> bool:
    return (subject.folder.path / ARTIFACT).exists() and examined(subject)


def _score(subject: Subject) -> Mapping[str, Any]:
    sets = subject.bench.sets
    if subject.run.teacher is None:
        raise UserError(f"{subject.folder.path} is a teacher; the mechanism is measured on students")
    teachers = compared(subject)
    pool = part(subject.bench.headline[1], POOL)
    final, early = teachers.network("final"), teachers.network("early")
    seen = subject.features({"final": final, "early": early, "student": subject.network}, pool)
    values: dict[str, Any] = {}
    made: dict[str, Any] = {"views": {}}
    for view, rows in _views(subject, teachers, seen).items():
        values[view], histograms = values_of({**seen, "student": rows})
        made["views"][view] = {"histograms": histograms}
    if "raw" in values:
        values["raw"] |= _head(subject.network, len(sets.classes), kinds(seen, "early")["displaced"])
    made["embedding"] = tsne({"teacher": seen["final"], "student": seen["student"]}, pool.label, sets.classes)
    write_json(subject.folder.path / ARTIFACT, made)
    examine_teacher(teachers, subject)
    return {"count": len(pool), "values": values}


def _views(subject: Subject, teachers: Teachers, seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The pool's student features, each (N, D) in the teacher's space."""
    student, final = subject.network, teachers.network("final")
    fitted = subject.features({"student": student, "final": final}, part(subject.bench.sets.train, POOL))
    matrix, offset = ridge_map(fitted["student"], fitted["final"])
    views = {"aligned": seen["student"] @ matrix + offset}
    if seen["student"].shape[1] == seen["final"].shape[1]:
        views["raw"] = seen["student"]
    method = _method(subject)
    if isinstance(method, Projects) and "raw" not in views:
        with torch.no_grad():
            views["projector"] = method.project(seen["student"])
    return views


def _method(subject: Subject) -> nn.Module | None:
    """The run's method with what it had learned, in evaluation mode; None when it kept nothing."""
    run, sets = subject.run, subject.bench.sets
    if not subject.folder.method.exists():
        return None
    teachers = Teachers(run, subject.bench.runs, len(sets.classes), sets.image_size)
    shapes = {role: teachers.shapes[role] for role in run.roles}
    student = probe(subject.network, sets.image_size)
    sizes = sizes_of(sets, student, shapes)
    method = make_method(run.method, sizes, run.options)
    put(method, read_weights(subject.folder.weights(subject.folder.method)), subject.folder.method)
    return method.eval()


def _head(network: nn.Module, classes: int, basis: Tensor) -> dict[str, float]:
    """How much the student's classifier reads the shortcut directions, beside random ones (S-Prop. 3)."""
    weight = classifier(network, classes, basis.shape[0])
    if weight is None:
        return {}
    found = head(weight, basis)
    return {
        "head_share": found["share"]["spectral_share"],
        "head_random": found["share"]["random_spectral_share"],
        "shift_largest": found["shift"]["largest"],
        "shift_bound": found["shift"]["bound"],
    }
