"""What a teacher's own states show, measured once for all its students: artifacts/directions-<state>.json."""
# N images, C classes, D features

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from antishortcut.analysis.directions import describe, geometry, head, kinds, meaning, stability, written
from antishortcut.errors import UserError
from antishortcut.evaluation.context import Subject, part
from antishortcut.models import Network
from antishortcut.run_dir import Folder, read_json, write_json
from antishortcut.teachers.trajectory import Teachers, Trajectory

POOL = 5_000  # images the mechanism is measured on (S-Sec. A.3)
VERSION = 2  # of what is measured; scores of another version are made again


def examine_teacher(teachers: Teachers, subject: Subject) -> Path:
    """Write the teacher's artifacts for the run's early state, unless they are there for these images."""
    bench, path = subject.bench, _path(subject)
    if examined(subject):
        return path
    trajectory = Trajectory(Folder(path.parent.parent))
    course = {entry["labels"][0]: entry for entry in trajectory.entries}
    ends = {"early": teachers.network("early"), "final": teachers.network("final")}
    pool = part(bench.headline[1], POOL)
    seen = subject.features(ends | {name: teachers.network(name) for name in course}, pool, "teacher's states")
    folder = path.parent / path.stem
    folder.mkdir(parents=True, exist_ok=True)
    found = geometry(seen, "early") | stability(subject.features(ends, bench.sets.train, "training features"))
    found["early"] = _state(subject)
    found["energy"] = [
        row | {key: course[row["state"]].get(key) for key in ("epoch", "accuracy")}
        for row in found["energy"]
        if row["state"] in course
    ]
    found["directions"] = describe(seen, "early", pool, bench.sets.classes, folder)
    _explain(found, seen, ends, subject)
    weight = classifier(ends["final"], len(bench.sets.classes), found["width"])
    if weight is not None:
        found["head"] = head(weight, kinds(seen, "early")["displaced"])
    write_json(path, written({"fingerprint": _mark(subject)} | found))
    return path


def examined(subject: Subject) -> bool:
    """Whether the teacher's artifacts are there for these images; a damaged file is as good as none."""
    try:
        known = read_json(_path(subject)) if _path(subject).exists() else None
    except UserError:
        return False
    return isinstance(known, dict) and known.get("fingerprint") == _mark(subject)


def _state(subject: Subject) -> str:
    return subject.run.roles.get("early", subject.run.early)


def _path(subject: Subject) -> Path:
    name = _state(subject).replace("/", "-").removesuffix("%")
    return subject.bench.runs / "teachers" / str(subject.run.teacher) / "artifacts" / f"directions-{name}.json"


def _mark(subject: Subject) -> str:
    return f"{subject.bench.sets.fingerprint}-{VERSION}"


def _explain(found: dict[str, Any], seen: Mapping[str, Tensor], ends: Mapping[str, Network], subject: Subject) -> None:
    """Where texture and shape are known and independent: what each direction encodes, early and final."""
    images = subject.bench.sets.tests.get("uncorrelated")
    if images is None or "texture" not in images.cues:
        return
    factors = {"texture": images.cues["texture"], "shape": images.label}
    told = meaning(kinds(seen, "early"), subject.features(ends, images), factors)
    for kind, shares in told.items():
        for direction, share in zip(found["directions"][kind], shares["each"], strict=True):
            direction["explained"] = share
    found["explained"] = {kind: shares["pooled"] for kind, shares in told.items()}


def classifier(network: nn.Module, classes: int, width: int) -> Tensor | None:
    """The weight (C, D) of the last linear layer of these sizes, if there is one."""
    layers = [
        layer
        for layer in network.modules()
        if isinstance(layer, nn.Linear) and (layer.out_features, layer.in_features) == (classes, width)
    ]
    return layers[-1].weight.detach().cpu() if layers else None
