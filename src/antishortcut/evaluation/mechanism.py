"""Where the student's features lie between the two teacher states, and what the teacher's own states show."""
# N images, D features, K directions, d student features

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antishortcut.analysis.directions import ROBUST, K, cue_images, examine_states, read_by_head
from antishortcut.analysis.features import sample, tsne
from antishortcut.analysis.moments import (
    Distribution,
    Moments,
    infonce,
    state_cosines,
    student_views,
    subspace_projection,
    to_json,
)
from antishortcut.config.recipe import WEAK
from antishortcut.errors import UserError
from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Score, is_current
from antishortcut.fileio import refuse_links
from antishortcut.run_dir import RunDir, read_json, write_json
from antishortcut.teachers.trajectory import Teachers, Trajectory
from antishortcut.types import Projects

ARTIFACT = Path("artifacts") / "mechanism.json"
POOL = 5_000  # images the mechanism is measured on (S-Sec. A.3)
NEGATIVES = 4_159  # of the InfoNCE bound, as in the paper's full-set bound
VERSION = 3  # of the measurements; scores of another version are computed again


def mechanism(context: EvalContext) -> Iterator[Score]:
    """Measured on these views of the student's features, as far as they exist:

    raw        unchanged: equal widths only, as in the paper; the student's basis is not the teacher's
    aligned    after a ridge map to the teacher's space, fitted on training images: for every method and width
    projector  through the method's own projector, if it has one
    """
    yield Score("mechanism", _fingerprint(context), _score, _complete)


def _fingerprint(context: EvalContext) -> str:
    return f"{context.sets.fingerprint}-{VERSION}"


def _complete(evaluated: EvaluatedRun) -> bool:
    return (evaluated.folder.path / ARTIFACT).exists() and _teacher_complete(evaluated)


def _score(evaluated: EvaluatedRun) -> Mapping[str, Any]:
    context, teachers = evaluated.context, evaluated.teachers("mechanism")
    if WEAK in evaluated.run.early:
        raise UserError("mechanism compares embeddings, and those of a weak reference are not in the teacher's space")
    images, _ = sample(context.first_test[1], POOL)
    networks = {"final": teachers.network("final"), "early": teachers.network("early"), "student": evaluated.network}
    rows = evaluated.features(networks, images)
    values: dict[str, Any] = {}
    artifact: dict[str, Any] = {"views": {}}
    for view, student in _views(evaluated, teachers, rows).items():
        values[view], histograms = student_values(student, rows["final"], rows["early"])
        artifact["views"][view] = {"histograms": histograms}
    if "raw" in values:
        basis = Moments(rows["final"], rows["early"]).shortcut(K)
        if (head := read_by_head(evaluated.network, basis)) is not None:
            values["raw"] |= to_json(
                {
                    "head_share": head["share"]["spectral_share"],
                    "head_random": head["share"]["random_spectral_share"],
                    "shift_largest": head["shift"]["largest"],
                    "shift_bound": head["shift"]["bound"],
                }
            )
    planes = {"teacher": rows["final"], "student": rows["student"]}
    artifact["embedding"] = tsne(planes, images.label, context.sets.classes)
    write_json(evaluated.folder.path / ARTIFACT, artifact)
    if not _teacher_complete(evaluated):
        _examine_teacher(evaluated, teachers)
    return {"count": len(images), "values": values}


def _views(evaluated: EvaluatedRun, teachers: Teachers, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The student's features, each (N, D) in the teacher's space."""
    networks = {"student": evaluated.network, "final": teachers.network("final")}
    train = evaluated.features(networks, sample(evaluated.context.sets.train, POOL)[0])
    views = student_views(rows["student"], rows["final"], train)
    if "raw" not in views and isinstance(method := evaluated.trained_method(), Projects):
        with torch.no_grad():
            views["projector"] = method.project(rows["student"])
    return views


def student_values(
    student: Tensor, final: Tensor, early: Tensor
) -> tuple[dict[str, float | None], dict[str, dict[str, Any]]]:
    """Numbers and histograms of a student's features (N, D) compared with those of T_final and T_early."""
    moments = Moments(final, early)
    shortcut, robust = moments.shortcut(K), moments.pca("final", ROBUST)
    cosines, bounds = state_cosines(student, final, early), infonce(student, final, early, NEGATIVES)
    on_shortcut, on_robust = subspace_projection(student, shortcut), subspace_projection(student, robust)
    values = {
        "cos_final": cosines["final"].mean,
        "cos_early": cosines["early"].mean,
        "closer_final": cosines["closer_to_final"],
        "signed_cosine": cosines["displacement"].mean,
        "signed_above": cosines["above_threshold"],
        "projection": on_shortcut["length"].mean,
        "projection_random": on_shortcut["random"],
        "projection_final": subspace_projection(final, shortcut)["length"].mean,
        "projection_early": subspace_projection(early, shortcut)["length"].mean,
        "hinge_share": on_shortcut["above_margin"],
        "hinge_mean": on_shortcut["hinge"],
        "robust_projection": on_robust["length"].mean,
        "robust_random": on_robust["random"],
        "infonce_binary": bounds["binary"],
        "infonce_full": bounds["full"],
        "infonce_ceiling": bounds["ceiling"],
    }
    names = {"cos_final": "final", "cos_early": "early", "signed_cosine": "displacement"}
    return to_json(values), {name: _histogram(cosines[key]) for name, key in names.items()}


def _histogram(spread: Distribution) -> dict[str, Any]:
    edges = torch.linspace(spread.low, spread.high, len(spread.histogram) + 1, dtype=torch.float64)
    return {"edges": [round(edge, 6) for edge in edges.tolist()], "counts": list(spread.histogram)}


def _examine_teacher(evaluated: EvaluatedRun, teachers: Teachers) -> None:
    """Write the teacher's artifacts for the run's early state, shared by all its students."""
    sets, path = evaluated.context.sets, _teacher_path(evaluated)
    entries = {entry["labels"][0]: entry for entry in Trajectory(RunDir(path.parent.parent)).entries}
    pair = {"early": teachers.network("early"), "final": teachers.network("final")}
    images, names = sample(evaluated.context.first_test[1], POOL)
    pool = evaluated.features(pair | {name: teachers.network(name) for name in entries}, images, "teacher's states")
    train = evaluated.features(pair, sets.train, "training features")
    known = cue_images(sets)
    cues = None if known is None else (evaluated.features(pair, known), known)
    folder = path.with_suffix("")
    refuse_links(path.parent.parent)
    folder.mkdir(parents=True, exist_ok=True)
    result = examine_states(pool, "early", train, images, names, sets.classes, folder, pair["final"], cues)
    mark = {"fingerprint": _fingerprint(evaluated.context), "hashed": sets.hashed}
    result |= mark | {"early": _early_state(evaluated)}
    result["energy"] = [
        row | {key: entries[row["state"]].get(key) for key in ("epoch", "accuracy")}
        for row in result["energy"]
        if row["state"] in entries
    ]
    write_json(path, to_json(result))


def _teacher_complete(evaluated: EvaluatedRun) -> bool:
    """Whether the teacher's artifacts exist for these images; a damaged file counts as missing."""
    try:
        artifact = read_json(_teacher_path(evaluated))
    except UserError:
        return False
    context = evaluated.context
    return isinstance(artifact, dict) and is_current(artifact, _fingerprint(context), context.sets.hashed)


def _early_state(evaluated: EvaluatedRun) -> str:
    return evaluated.run.roles.get("early", evaluated.run.early)


def _teacher_path(evaluated: EvaluatedRun) -> Path:
    name = _early_state(evaluated).replace("/", "-").removesuffix("%")
    teacher = evaluated.context.runs / "teachers" / str(evaluated.run.teacher)
    return teacher / "artifacts" / f"directions-{name}.json"
