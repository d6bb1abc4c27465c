"""Contrast targets before any student is trained: measurements to choose λ and T_early by, without test images."""
# N images, C classes

from collections.abc import Callable, Sequence
from typing import Any

import torch

from antishortcut.analysis.features import predict
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import limited
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir
from antishortcut.teachers.target_signs import largest, target_statistics
from antishortcut.teachers.trajectory import Trajectory, build_saved, find_trajectory
from antishortcut.types import DataSplits

IMAGES = 5_000  # at most


def measure(
    folder: RunDir,
    sets: DataSplits,
    states: Sequence[str],
    strengths: Sequence[float],
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Statistics of every state and λ on the validation split, or else on training images; never on test images.

    A state may be another teacher's: "<hash>/15%".
    """
    run, _ = folder.read()
    if not folder.finished or not run.keep:
        raise UserError(f"{folder.path} is not a finished teacher (asd teach makes one)")
    if run.fingerprint != sets.fingerprint:
        raise UserError(f"{folder.path} was trained on other data than these (fingerprints differ)")
    wants_labels("asd targets", sets.train, of="image")
    states = list(states) or [entry["labels"][0] for entry in Trajectory(folder).entries[:-1]]
    if not states:
        raise UserError(f"{folder.path} has no state before its last; teach one with more in teacher.keep")
    runs, places = folder.path.resolve().parent.parent, dict[str, tuple[Trajectory, str]]()
    for state in (*states, "final"):
        places[state] = find_trajectory(runs, "", state) if "/" in state else (Trajectory(folder), state)
    for trajectory, own in places.values():
        trajectory.entry(own)
    name, images = ("val", sets.val) if sets.val is not None else ("train", sets.train)
    if name == "train":
        say("no validation split (data.val_fraction): using training images, on which the teacher looks too good")
    images = limited(images, IMAGES, 0)
    logits = {}
    for state, (trajectory, own) in places.items():
        network = build_saved(trajectory.folder, len(sets.classes), sets.image_size)
        trajectory.fill(network, own)
        batches = predict({"": network}, images, sets.image_size)
        logits[state] = torch.cat([outputs[""].logits for outputs, _ in batches])
    rows = [
        {"state": state, "strength": value} | target_statistics(logits["final"], logits[state], images.label, value)
        for state in states
        for value in strengths
    ]
    best = {state: largest([row for row in rows if row["state"] == state]) for state in states}
    return {"teacher": str(folder.path), "set": name, "count": len(images), "rows": rows, "largest": best}
