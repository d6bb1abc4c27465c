"""Audit a model: a final state, candidates for an early one, images, and optionally a student → audit.json."""
# N images, D features, K directions

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from antishortcut.analysis.alignment import subspace_projection
from antishortcut.analysis.answers import write_answers
from antishortcut.analysis.audit_text import findings, notes, sentences
from antishortcut.analysis.directions import GROWN, K, States, cue_images, displaced_and_abandoned, examine_states
from antishortcut.analysis.features import Predictions, features, predictions, sample
from antishortcut.analysis.geometry import LEFT, Kind, energy, folds, held_out_directions
from antishortcut.analysis.moments import Moments, angles, ratio, student_views, to_json
from antishortcut.errors import UserError, suggest
from antishortcut.models import Network
from antishortcut.types import DataSplits

VERSION = 1  # of audit.json
POOL = 5_000  # images of each set by default (S-Sec. A.3)
MAPS = Path("pictures") / "maps.npz"
KINDS: tuple[Kind, ...] = ("displaced", "abandoned")
PAPER = (  # projections of KD students on the shortcut eigenspace (S-Sec. A.9.1); the random value is √(K/D)
    {"pair": "P1, ResNet-34 → ResNet-18", "projection": 0.21, "random": math.sqrt(4 / 512), "outcome": "ASD helped"},
    {"pair": "P3, ResNet-32x4 → ResNet-8x4", "projection": 0.07, "random": math.sqrt(4 / 256), "outcome": "it did not"},
)


def audit(
    final: Network,
    states: Mapping[str, Network],
    sets: DataSplits,
    out: Path,
    *,
    early: str | None = None,
    student: Network | None = None,
    set_name: str | None = None,
    limit: int = POOL,
    device: str = "cpu",
    quiet: bool = True,
) -> dict[str, Any]:
    """Measurements ready for JSON, with strips of images in out/pictures.

    states: candidates for the early state by name, in the order of training. `early` is the one whose directions are
    described, by default the first. Images are those of a test set, by default the first, and of the training set for
    stability and the student's linear map; at most `limit` of each.
    """
    early = next(iter(states)) if early is None else early
    if early not in states:
        raise UserError(f"no early state {early!r}{suggest(early, states)}")
    set_name = next(iter(sets.tests)) if set_name is None else set_name
    if set_name not in sets.tests:
        raise UserError(f"{sets.name} has no test set {set_name!r}{suggest(set_name, sets.tests)}")
    images, names = sample(sets.tests[set_name], limit)
    students = {} if student is None else {"student": student}
    results = predictions({**states, "final": final, **students}, images, sets.image_size, device, "states", quiet)
    pool = {name: results[name].features for name in (*states, "final")}
    if len({rows.shape[1] for rows in pool.values()}) > 1:
        widths = {name: rows.shape[1] for name, rows in pool.items()}
        raise UserError(f"the states have features of different widths, {widths}: they are not of one model")
    accuracy = {
        name: float((one.label == images.label).double().mean()) if one.classes == len(sets.classes) else None
        for name, one in results.items()
    }
    pair = {"early": states[early], "final": final}
    train_images, _ = sample(sets.train, limit)
    train = features({**pair, **students}, train_images, sets.image_size, device, "training images", quiet)

    cues = None
    if (known := cue_images(sets)) is not None:
        known, _ = sample(known, limit)
        cues = features(pair, known, sets.image_size, device), known
    (out / "pictures").mkdir(parents=True, exist_ok=True)
    measured = examine_states(pool, early, train, images, names, sets.classes, out / "pictures", final, cues)
    moments = Moments(pool["final"], pool[early])
    bases = displaced_and_abandoned(moments)
    result: dict[str, Any] = {
        "audit": VERSION,
        "data": sets.name,
        "set": set_name,
        "fingerprint": sets.fingerprint,
        "classes": len(sets.classes),
        "training_images": len(train_images),
        "pixels": final.size or sets.image_size,
        **{
            key: [round(x, 4) for x in value.flatten().tolist()]
            for key, value in (("mean", final.mean), ("std", final.std))
        },
        "limits": {"abandoned": LEFT, "grown": GROWN},
        "early": early,
        "answers": None if accuracy[early] is None else changed(results[early], results["final"], images.label),
        **measured,
        "overlap": overlap(moments),
        "candidates": [row | {"accuracy": accuracy[row["state"]]} for row in candidates(pool)],
    }
    for row in result["energy"]:
        row |= {"accuracy": accuracy[row["state"]], "abandoned": energy(pool[row["state"]], bases["abandoned"])}
    if student is not None:
        rows = {"final": pool["final"], "early": pool[early], "student": results["student"].features}
        result["student"] = {"accuracy": accuracy["student"]} | student_projections(rows, train, bases)
    if result["answers"] is not None:
        roles = {"early": early, "final": "final"} | ({} if accuracy.get("student") is None else {"own": "student"})
        networks = {role: ({**states} | {"final": final} | students)[name] for role, name in roles.items()}
        answers = {role: results[roles[role]].label for role in ("early", "final")}  # what training gave up comes first
        try:
            write_answers(out / MAPS, networks, answers, images, names, sets, device)
        except UserError as error:  # of a network without feature maps
            result["no_maps"] = str(error)
    result = to_json(result)
    text = {"notes": list(notes(result)), "sentences": list(sentences(result)), "findings": findings(result)}
    return result | text


def changed(early: Predictions, final: Predictions, label: Tensor) -> dict[str, float]:
    """Shares of the images: answered otherwise; wrong early and right now; right early and wrong now."""
    before, now = early.label == label, final.label == label
    which = {"differ": early.label != final.label, "gained": now & ~before, "given_up": before & ~now}
    return {name: float(each.double().mean()) for name, each in which.items()}


def overlap(moments: Moments) -> dict[str, Any]:
    """The displaced directions compared with T_final's own principal ones, and with the abandoned ones."""
    bases, principal = displaced_and_abandoned(moments), moments.pca("final", K)
    displaced, variance = bases["displaced"], moments.final.moment(centred=True)  # (D, K), (D, D)

    def share(basis: Tensor) -> float:
        inside = float((basis * (variance @ basis)).sum())
        return ratio(inside, float(variance.diagonal().sum())) if basis.shape[1] > 0 else math.nan

    return {
        "angles": angles(displaced, principal),
        "displaced_abandoned": angles(displaced, bases["abandoned"]),
        "variance_displaced": share(displaced),
        "variance_principal": share(principal),
        "variance_random": displaced.shape[1] / moments.width if displaced.shape[1] > 0 else math.nan,
    }


def candidates(pool: States) -> list[dict[str, Any]]:
    """Every candidate for the early state: its directions fitted on one half of the images, measured on the other."""
    final = pool["final"]
    if len(final) < 2:
        return []
    fit, test = folds(len(final), 2)
    return [
        {"state": state} | {kind: held_out_directions(rows, final, fit, test, K, kind) for kind in KINDS}
        for state, rows in pool.items()
        if state != "final"
    ]


def student_projections(pool: States, train: States, bases: Mapping[str, Tensor]) -> dict[str, Any]:
    """Mean ‖h̄ᵀU‖ of T_final, T_early and the views of a student; "view" is the one the paper has, where it exists."""
    views = student_views(pool["student"], pool["final"], train)
    projections = {}
    for name, rows in {"final": pool["final"], "early": pool["early"], **views}.items():
        by_kind = {kind: subspace_projection(rows, basis) for kind, basis in bases.items()}
        projections[name] = {kind: one["length"].mean for kind, one in by_kind.items()}
        projections[name]["random"] = by_kind["displaced"]["random"]
    view = "raw" if "raw" in views else "aligned"
    return {"view": view, "width": pool["student"].shape[1], "projections": projections, "paper": list(PAPER)}
