"""What is measured: a final state, its candidates for an early one, images, and a student if there is one."""
# N images, C classes, D features, d student features, K directions

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antishortcut.analysis import (
    Chunks,
    Moments,
    angles,
    ends,
    energy,
    judge,
    leanings,
    parts,
    plain,
    project,
    ridge_map,
)
from antishortcut.analysis.audit_text import findings, notes
from antishortcut.analysis.directions import ENDS, K, describe, geometry, head, kinds, meaning, stability
from antishortcut.analysis.features import features, predictions
from antishortcut.analysis.geometry import LEFT, Select
from antishortcut.data import order
from antishortcut.data.splits import take
from antishortcut.errors import UserError, suggest
from antishortcut.models import Network
from antishortcut.types import AnySet, DataSplits, FileSet

VERSION = 1  # of audit.json
POOL = 5_000  # images of each set, unless told (S-Sec. A.3)
GROWN = 2.0  # a direction has grown when its share of the energy is more than this many times the early one
RESERVED = ("final", "student")
PICTURES = "pictures"
KINDS: tuple[Select, ...] = ("displaced", "abandoned")
PAPER = (  # projections of KD students on the shortcut eigenspace (S-Sec. A.9.1); the random value is √(K/D)
    {"pair": "P1, ResNet-34 → ResNet-18", "projection": 0.21, "random": math.sqrt(4 / 512), "outcome": "ASD helped"},
    {"pair": "P3, ResNet-32x4 → ResNet-8x4", "projection": 0.07, "random": math.sqrt(4 / 256), "outcome": "it did not"},
)

Rows = Mapping[str, Tensor]  # state → features (N, D) of the same images


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
    """Findings as JSON takes them, with pictures in out/pictures. Networks are put into evaluation mode.

    states: candidates for the early state by name, in the order of training; `early` is the one whose directions are
    described, by default the first. Images: a test set, by default the first, and the training set for the stability
    and the student's linear map; `limit` of each at most.
    """
    early, (title, images) = _early(states, early), _test(sets, set_name)
    pool, places = part(images, limit)
    more = {} if student is None else {"student": student}
    outputs, right = look({**states, "final": final, **more}, pool, sets, device, quiet)
    taught, _ = part(sets.train, limit)
    pair = {"early": states[early], "final": final}
    trained = features({**pair, **more}, taught, sets.image_size, device, "training images", quiet)
    _sound(trained)
    course = {name: outputs[name] for name in (*states, "final")}
    bases = kinds(course, early)
    result = _facts(sets, title, len(taught)) | geometry(course, early) | stability(trained)
    for row in result["energy"]:
        row |= {"accuracy": right[row["state"]], "abandoned": energy(course[row["state"]], bases["abandoned"]).mean}
    result["overlap"] = overlap(course, early, bases)
    result["directions"] = directions(course, early, pool, places, sets, out / PICTURES)
    result["candidates"] = [row | {"accuracy": right[row["state"]]} for row in candidates(course)]
    _explain(result, bases, pair, sets, limit, device)
    if final.head is not None and final.head.in_features == result["width"]:
        result["head"] = head(final.head.weight, bases["displaced"])
    if student is not None:
        result["student"] = {"accuracy": right["student"]} | leans({**outputs, "early": outputs[early]}, trained, bases)
    message: dict[str, Any] = plain(result)
    return message | {"notes": notes(message), "findings": findings(message)}


def _facts(sets: DataSplits, title: str, taught: int) -> dict[str, Any]:
    return {
        "audit": VERSION,
        "data": sets.name,
        "set": title,
        "fingerprint": sets.fingerprint,
        "classes": len(sets.classes),
        "training_images": taught,
        "limits": {"abandoned": LEFT, "grown": GROWN},
    }


def _early(states: Mapping[str, Network], early: str | None) -> str:
    if not states:
        raise UserError("no early state to compare the final one with")
    for name in RESERVED:
        if name in states:
            raise UserError(f"an early state cannot be called {name!r}; name it otherwise")
    chosen = next(iter(states)) if early is None else early
    if chosen not in states:
        raise UserError(f"no early state {chosen!r}{suggest(chosen, states)}")
    return chosen


def _test(sets: DataSplits, name: str | None) -> tuple[str, AnySet]:
    title = next(iter(sets.tests)) if name is None else name
    if title not in sets.tests:
        raise UserError(f"{sets.name} has no test set {title!r}{suggest(title, sets.tests)}")
    return title, sets.tests[title]


def part(images: AnySet, count: int) -> tuple[AnySet, Tensor]:
    """A fixed random part of a set, the one evaluation takes, and the places (N,) of its images in the set."""
    if count < 1:
        raise UserError(f"--limit must be at least 1, not {count}")
    if len(images) <= count:
        return images, torch.arange(len(images))
    places = order(len(images), 0, 0)[:count].sort().values
    return take(images, places), places


def look(
    networks: Mapping[str, Network], pool: AnySet, sets: DataSplits, device: str, quiet: bool
) -> tuple[dict[str, Tensor], dict[str, float | None]]:
    """Features of the pool in every network, and its accuracy; None where its outputs are not the data's classes."""
    results = predictions(networks, pool, sets.image_size, device, "states", quiet)
    rows = {name: result.features for name, result in results.items()}
    _sound(rows)
    widths = {name: each.shape[1] for name, each in rows.items() if name != "student"}
    if len(set(widths.values())) > 1:
        raise UserError(f"the states have features of different widths, {widths}: they are not of one model")
    accuracy = {
        name: float((result.label == pool.label).double().mean()) if result.classes == len(sets.classes) else None
        for name, result in results.items()
    }
    return rows, accuracy


def _sound(rows: Rows) -> None:
    for name, each in rows.items():
        if not each.isfinite().all():
            raise UserError(f"features of {name!r} are not finite: has that network diverged, or is its file damaged?")


def overlap(course: Rows, early: str, bases: Rows) -> dict[str, Any]:
    """The displaced directions beside T_final's own principal ones, and beside the abandoned ones."""
    moments = Moments.of(Chunks({"final": course["final"], "early": course[early]}))
    displaced, principal = bases["displaced"], moments.pca("final", K)
    variance = moments.final.moment(centred=True)  # (D, D)

    def share(basis: Tensor) -> float:
        total = float(variance.diagonal().sum())
        return float((basis * (variance @ basis)).sum()) / total if total > 0 and basis.shape[1] > 0 else math.nan

    return {
        "angles": angles(displaced, principal),
        "displaced_abandoned": angles(displaced, bases["abandoned"]),
        "variance_displaced": share(displaced),
        "variance_principal": share(principal),
        "variance_random": displaced.shape[1] / moments.width if displaced.shape[1] > 0 else math.nan,
    }


def fate(kept: float | None) -> str | None:
    """What became of a direction, by its final over its early share of the energy: limits of arithmetic, no test."""
    if kept is None or math.isnan(kept):
        return None
    return "abandoned" if kept < LEFT else "reused" if kept <= GROWN else "grown"


def directions(
    course: Rows, early: str, pool: AnySet, places: Tensor, sets: DataSplits, folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """`describe`, with what became of each direction and which images lie at its ends: files, or places in the set."""
    folder.mkdir(parents=True, exist_ok=True)
    result = describe(course, early, pool, sets.classes, folder)
    names = [str(path) for path in pool.paths] if isinstance(pool, FileSet) else places.tolist()
    for kind, basis in kinds(course, early).items():
        far = ends(project(Chunks({"early": course[early]}), basis, "early"), ENDS)
        for direction, high, low in zip(result[kind], far.positive, far.negative, strict=True):
            direction["fate"] = fate(direction["kept"])
            direction["images_high"] = [names[number] for number in high]
            direction["images_low"] = [names[number] for number in low]
    return result


def candidates(course: Rows) -> list[dict[str, Any]]:
    """Every candidate for the early state: its directions fitted on one half of the images, measured on the other."""
    final = course["final"]
    if len(final) < 2:
        return []
    half = parts(len(final), 2)
    a, b = (half == 0).nonzero().flatten(), (half == 1).nonzero().flatten()
    return [
        {"state": state} | {kind: judge(rows[a], final[a], rows[b], final[b], K, kind) for kind in KINDS}
        for state, rows in course.items()
        if state != "final"
    ]


def _explain(
    found: dict[str, Any], bases: Rows, pair: Mapping[str, Network], sets: DataSplits, limit: int, device: str
) -> None:
    """Where texture and shape of every image are known and independent: what each direction carries."""
    images = sets.tests.get("uncorrelated")
    if images is None or "texture" not in images.cues:
        return
    shown, _ = part(images, limit)
    factors = {"texture": shown.cues["texture"], "shape": shown.label}
    message = meaning(bases, features(pair, shown, sets.image_size, device), factors)
    for kind, shares in message.items():
        for direction, share in zip(found["directions"][kind], shares["each"], strict=True):
            direction["explained"] = share
    found["explained"] = {kind: shares["pooled"] for kind, shares in message.items()}


def leans(outputs: Rows, trained: Rows, bases: Rows) -> dict[str, Any]:
    """Mean ‖h̄ᵀU‖ of a student, T_final and T_early. Views of the student: raw where widths are equal, and aligned.

    aligned: after a linear map onto T_final's features, fitted on training images by ridge regression.
    """
    matrix, offset = ridge_map(trained["student"], trained["final"])
    views = {"aligned": outputs["student"] @ matrix + offset}  # (N, D)
    if outputs["student"].shape[1] == outputs["final"].shape[1]:
        views = {"raw": outputs["student"], **views}
    rows = {"final": outputs["final"], "early": outputs["early"], **views}
    result = leanings(Chunks(rows), bases, tuple(rows))
    return {
        "view": next(iter(views)),
        "width": outputs["student"].shape[1],
        "projections": {
            name: {kind: one.projection.mean for kind, one in by.items()} | {"random": by["displaced"].random}
            for name, by in result.items()
        },
        "paper": list(PAPER),
    }


# --- Checkpoints of anyone's model and their images → which directions training left ---

__all__ = ["GROWN", "PAPER", "POOL", "audit", "fate"]
