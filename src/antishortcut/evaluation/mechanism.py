"""Where the student's features stand between the two teacher states."""
# N images, C classes, D teacher features, d student features
# N images, C classes, D features
# N images, D features, K directions

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antishortcut.analysis import Chunks, Moments, Spread, infonce, leanings, ridge_map, standing
from antishortcut.analysis.directions import ROBUST, K, describe, geometry, head, kinds, meaning, stability, written
from antishortcut.analysis.features import tsne
from antishortcut.errors import UserError
from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Examination, Scored, part
from antishortcut.evaluation.shift_scores import compared
from antishortcut.methods import build_method
from antishortcut.models import Network, feature_shapes
from antishortcut.models.weights import load_checked, read_weights
from antishortcut.run_dir import RunDir, read_json, write_json
from antishortcut.tasks import method_sizes
from antishortcut.teachers.trajectory import Teachers, Trajectory
from antishortcut.types import Projects

ARTIFACT = Path("artifacts") / "mechanism.json"


def mechanism(bench: EvalContext) -> Iterator[Examination]:
    """Views of the student's features, as far as they exist:

    raw        as they are: equal widths only, as the paper does; the student's basis is not the teacher's
    aligned    after a ridge map to the teacher's space, fitted on training images: the ruler for every method and width
    projector  through the method's own projector, where it has one
    """
    yield Scored("mechanism", f"{bench.sets.fingerprint}-{VERSION}", _score, _made)


def _made(subject: EvaluatedRun) -> bool:
    return (subject.folder.path / ARTIFACT).exists() and examined(subject)


def _score(subject: EvaluatedRun) -> Mapping[str, Any]:
    sets = subject.bench.sets
    if subject.run.teacher is None:
        raise UserError(f"{subject.folder.path} is a teacher; the mechanism is measured on students")
    teachers = compared(subject)
    pool = part(subject.bench.primary_metric[1], POOL)
    final, early = teachers.network("final"), teachers.network("early")
    outputs = subject.features({"final": final, "early": early, "student": subject.network}, pool)
    values: dict[str, Any] = {}
    built: dict[str, Any] = {"views": {}}
    for view, rows in _views(subject, teachers, outputs).items():
        values[view], histograms = values_of({**outputs, "student": rows})
        built["views"][view] = {"histograms": histograms}
    if "raw" in values:
        values["raw"] |= _head(subject.network, len(sets.classes), kinds(outputs, "early")["displaced"])
    built["embedding"] = tsne({"teacher": outputs["final"], "student": outputs["student"]}, pool.label, sets.classes)
    write_json(subject.folder.path / ARTIFACT, built)
    examine_teacher(teachers, subject)
    return {"count": len(pool), "values": values}


def _views(subject: EvaluatedRun, teachers: Teachers, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The pool's student features, each (N, D) in the teacher's space."""
    student, final = subject.network, teachers.network("final")
    fitted = subject.features({"student": student, "final": final}, part(subject.bench.sets.train, POOL))
    matrix, offset = ridge_map(fitted["student"], fitted["final"])
    views = {"aligned": outputs["student"] @ matrix + offset}
    if outputs["student"].shape[1] == outputs["final"].shape[1]:
        views["raw"] = outputs["student"]
    method = _method(subject)
    if isinstance(method, Projects) and "raw" not in views:
        with torch.no_grad():
            views["projector"] = method.project(outputs["student"])
    return views


def _method(subject: EvaluatedRun) -> nn.Module | None:
    """The run's method with what it had learned, in evaluation mode; None when it kept nothing."""
    run, sets = subject.run, subject.bench.sets
    if not subject.folder.method.exists():
        return None
    teachers = Teachers(run, subject.bench.runs, len(sets.classes), sets.image_size)
    shapes = {role: teachers.shapes[role] for role in run.roles}
    student = feature_shapes(subject.network, sets.image_size)
    sizes = method_sizes(sets, student, shapes)
    method = build_method(run.method, sizes, run.options)
    load_checked(method, read_weights(subject.folder.weights(subject.folder.method)), subject.folder.method)
    return method.eval()


def _head(network: nn.Module, classes: int, basis: Tensor) -> dict[str, float]:
    """How much the student's classifier reads the shortcut directions, beside random ones (S-Prop. 3)."""
    weight = classifier(network, classes, basis.shape[0])
    if weight is None:
        return {}
    result = head(weight, basis)
    return {
        "head_share": result["share"]["spectral_share"],
        "head_random": result["share"]["random_spectral_share"],
        "shift_largest": result["shift"]["largest"],
        "shift_bound": result["shift"]["bound"],
    }


# --- What a teacher's own states show ---

POOL = 5_000  # images the mechanism is measured on (S-Sec. A.3)
VERSION = 2  # of what is measured; scores of another version are made again


def examine_teacher(teachers: Teachers, subject: EvaluatedRun) -> Path:
    """Write the teacher's artifacts for the run's early state, unless they are there for these images."""
    bench, path = subject.bench, _path(subject)
    if examined(subject):
        return path
    trajectory = Trajectory(RunDir(path.parent.parent))
    course = {entry["labels"][0]: entry for entry in trajectory.entries}
    ends = {"early": teachers.network("early"), "final": teachers.network("final")}
    pool = part(bench.primary_metric[1], POOL)
    outputs = subject.features(ends | {name: teachers.network(name) for name in course}, pool, "teacher's states")
    folder = path.parent / path.stem
    folder.mkdir(parents=True, exist_ok=True)
    result = geometry(outputs, "early") | stability(subject.features(ends, bench.sets.train, "training features"))
    result["early"] = _state(subject)
    result["energy"] = [
        row | {key: course[row["state"]].get(key) for key in ("epoch", "accuracy")}
        for row in result["energy"]
        if row["state"] in course
    ]
    result["directions"] = describe(outputs, "early", pool, bench.sets.classes, folder)
    _explain(result, outputs, ends, subject)
    weight = classifier(ends["final"], len(bench.sets.classes), result["width"])
    if weight is not None:
        result["head"] = head(weight, kinds(outputs, "early")["displaced"])
    write_json(path, written({"fingerprint": _mark(subject)} | result))
    return path


def examined(subject: EvaluatedRun) -> bool:
    """Whether the teacher's artifacts are there for these images; a damaged file is as good as none."""
    try:
        known = read_json(_path(subject)) if _path(subject).exists() else None
    except UserError:
        return False
    return isinstance(known, dict) and known.get("fingerprint") == _mark(subject)


def _state(subject: EvaluatedRun) -> str:
    return subject.run.roles.get("early", subject.run.early)


def _path(subject: EvaluatedRun) -> Path:
    name = _state(subject).replace("/", "-").removesuffix("%")
    return subject.bench.runs / "teachers" / str(subject.run.teacher) / "artifacts" / f"directions-{name}.json"


def _mark(subject: EvaluatedRun) -> str:
    return f"{subject.bench.sets.fingerprint}-{VERSION}"


def _explain(
    found: dict[str, Any], outputs: Mapping[str, Tensor], ends: Mapping[str, Network], subject: EvaluatedRun
) -> None:
    """Where texture and shape are known and independent: what each direction encodes, early and final."""
    images = subject.bench.sets.tests.get("uncorrelated")
    if images is None or "texture" not in images.cues:
        return
    factors = {"texture": images.cues["texture"], "shape": images.label}
    message = meaning(kinds(outputs, "early"), subject.features(ends, images), factors)
    for kind, shares in message.items():
        for direction, share in zip(found["directions"][kind], shares["each"], strict=True):
            direction["explained"] = share
    found["explained"] = {kind: shares["pooled"] for kind, shares in message.items()}


def classifier(network: nn.Module, classes: int, width: int) -> Tensor | None:
    """The weight (C, D) of the last linear layer of these sizes, if there is one."""
    layers = [
        layer
        for layer in network.modules()
        if isinstance(layer, nn.Linear) and (layer.out_features, layer.in_features) == (classes, width)
    ]
    return layers[-1].weight.detach().cpu() if layers else None


# --- A student between the two teacher states: the numbers, and the histograms behind them ---

NEGATIVES = 4_159  # final features each sample is told apart from, as in the paper's full-set bound


def values_of(rows: Mapping[str, Tensor]) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Numbers and histograms of "student" rows (N, D) beside "final" and "early" ones of the same images."""
    stream = Chunks(rows)
    moments = Moments.of(stream)
    bases = {"shortcut": moments.shortcut(K), "robust": moments.pca("final", ROBUST)}
    where, outputs = standing(stream), leanings(stream, bases, ("student", "final", "early"))
    pool = torch.arange(min(len(rows["final"]), NEGATIVES + 1))
    message = infonce(stream, rows["final"][: len(pool)], pool)
    own = outputs["student"]
    numbers = {
        "cos_final": where.final.mean,
        "cos_early": where.early.mean,
        "closer_final": where.closer_to_final,
        "signed_cosine": where.displacement.mean,
        "signed_above": where.above_threshold,
        "projection": own["shortcut"].projection.mean,
        "projection_random": own["shortcut"].random,
        "projection_final": outputs["final"]["shortcut"].projection.mean,
        "projection_early": outputs["early"]["shortcut"].projection.mean,
        "hinge_share": own["shortcut"].fires,
        "hinge_mean": own["shortcut"].hinge,
        "robust_projection": own["robust"].projection.mean,
        "robust_random": own["robust"].random,
        "infonce_binary": message.binary,
        "infonce_full": message.full,
        "infonce_ceiling": message.ceiling,
    }
    spreads = {"cos_final": where.final, "cos_early": where.early, "signed_cosine": where.displacement}
    histograms = {name: _histogram(spread) for name, spread in spreads.items()}
    return {name: value if value == value else None for name, value in numbers.items()}, histograms


def _histogram(spread: Spread) -> dict[str, Any]:
    bins = len(spread.histogram)
    edges = torch.linspace(spread.low, spread.high, bins + 1, dtype=torch.float64)
    return {"edges": [round(edge, 6) for edge in edges.tolist()], "counts": list(spread.histogram)}
