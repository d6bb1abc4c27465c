"""Contrast targets before any student is trained: measurements to choose λ and T_early by, without test images."""
# N images, C classes

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from antishortcut.analysis.features import predict
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import limited
from antishortcut.errors import UserError
from antishortcut.methods.contrast import contrast_logits
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Trajectory, build_saved
from antishortcut.types import DataSplits

IMAGES = 5_000  # at most
LOST = 0.03  # share of T_final's accuracy that targets may lose: students lost none up to there (docs/contrast.md)


def target_statistics(
    final: Tensor, early: Tensor, label: Tensor, strength: float, *, floor: float = -8.0, temperature: float = 4.0
) -> dict[str, float | None]:
    """Of one early state and one λ, from the logits of both teachers (N, C) and the labels (N,).

    agreement        share of images where both teachers predict the same class
    moved            share of images whose target has another largest class than T_final
    entropy          of the target at τ, in nats
    hard_accuracy    accuracy of the targets on the images that T_early gets wrong
    """
    target = contrast_logits(final, early, strength, floor)  # (N, C)
    log_q = (target / temperature).log_softmax(dim=1)
    by_early, by_final, by_target = (logits.argmax(dim=1) for logits in (early, final, target))  # (N,)
    hard = by_early != label
    return {
        "agreement": _share(by_early == by_final),
        "moved": _share(by_target != by_final),
        "entropy": float(-(log_q.exp() * log_q).sum(dim=1).mean()),
        "early_accuracy": _share(by_early == label),
        "final_accuracy": _share(by_final == label),
        "target_accuracy": _share(by_target == label),
        "hard_accuracy": _share((by_target == label)[hard]) if hard.any() else None,
    }


def _share(mask: Tensor) -> float:
    return float(mask.double().mean())


def measure(
    folder: RunDir,
    sets: DataSplits,
    states: Sequence[str],
    strengths: Sequence[float],
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Statistics of every state and λ on the validation split, or else on training images; never on test images."""
    run, _ = folder.read()
    if not folder.finished or not run.keep:
        raise UserError(f"{folder.path} is not a finished teacher (asd teach makes one)")
    if run.fingerprint != sets.fingerprint:
        raise UserError(f"{folder.path} was trained on other data than these (fingerprints differ)")
    wants_labels("asd targets", sets.train, of="image")
    trajectory = Trajectory(folder)
    states = list(states) or [entry["labels"][0] for entry in trajectory.entries[:-1]]
    if not states:
        raise UserError(f"{folder.path} has no state before its last; teach one with more in teacher.keep")
    for state in states:
        trajectory.entry(state)
    name, images = ("val", sets.val) if sets.val is not None else ("train", sets.train)
    if name == "train":
        say("no validation split (data.val_fraction): using training images, which the teacher has memorised")
    images = limited(images, IMAGES, 0)
    network = build_saved(folder, len(sets.classes), sets.image_size)
    logits = {}
    for state in (*states, "final"):
        trajectory.fill(network, state)
        batches = predict({"": network}, images, sets.image_size)
        logits[state] = torch.cat([outputs[""].logits for outputs, _ in batches])
    rows = [
        {"state": state, "strength": value} | target_statistics(logits["final"], logits[state], images.label, value)
        for state in states
        for value in strengths
    ]
    best = {state: largest([row for row in rows if row["state"] == state]) for state in states}
    return {"teacher": str(folder.path), "set": name, "count": len(images), "rows": rows, "largest": best}


def largest(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The largest λ up to which the targets of one state lose no more than LOST; None if the smallest loses more."""
    rising = sorted(rows, key=lambda row: float(row["strength"]))
    fit = takewhile(lambda row: row["target_accuracy"] >= (1 - LOST) * row["final_accuracy"], rising)
    return max((float(row["strength"]) for row in fit), default=None)
