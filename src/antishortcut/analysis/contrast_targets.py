"""What contrast targets would say before any student is trained: signs to choose λ and T_early by, no test images."""
# N images, C classes

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from antishortcut.analysis.features import predict
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import limited
from antishortcut.errors import UserError
from antishortcut.methods.contrast import contrast_logits
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Trajectory, build_model
from antishortcut.types import DataSplits

IMAGES = 5_000  # at most
LOST = 0.03  # share of T_final's accuracy that targets may lose: up to there students lost none (docs/contrast.md)


@dataclass(frozen=True)
class Signs:
    """Of one early state and one λ. Those in the first row need no label."""

    agreement: float  # share of images that both teachers call the same
    moved: float  # share whose target has another largest class than T_final
    entropy: float  # of the target at τ, in nats
    early_accuracy: float
    final_accuracy: float
    target_accuracy: float
    hard_accuracy: float | None  # of the targets, on the images that T_early gets wrong


def signs(
    final: Tensor, early: Tensor, label: Tensor, strength: float, *, floor: float = -8.0, temperature: float = 4.0
) -> Signs:
    """From the logits of both teachers (N, C) and the labels (N,)."""
    target = contrast_logits(final, early, strength, floor)  # (N, C)
    log_q = (target / temperature).log_softmax(dim=1)
    first, last, text = early.argmax(dim=1), final.argmax(dim=1), target.argmax(dim=1)  # (N,)
    hard = first != label
    return Signs(
        agreement=_share(first == last),
        moved=_share(text != last),
        entropy=float(-(log_q.exp() * log_q).sum(dim=1).mean()),
        early_accuracy=_share(first == label),
        final_accuracy=_share(last == label),
        target_accuracy=_share(text == label),
        hard_accuracy=_share((text == label)[hard]) if hard.any() else None,
    )


def _share(yes: Tensor) -> float:
    return float(yes.double().mean())


def measure(
    folder: RunDir,
    sets: DataSplits,
    states: Sequence[str],
    strengths: Sequence[float],
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Signs of every state and λ, on the validation split, or without one on training images; never on test images."""
    run, _ = folder.read()
    if not folder.finished or not run.keep:
        raise UserError(f"{folder.path} is not a finished teacher (asd teach makes one)")
    if run.fingerprint != sets.fingerprint:
        raise UserError(f"{folder.path} was trained on other data than are here now (fingerprints differ)")
    wants_labels("asd targets", sets.train, of="image")
    trajectory = Trajectory(folder)
    required = list(states) or [entry["labels"][0] for entry in trajectory.entries[:-1]]
    if not required:
        raise UserError(f"{folder.path} kept no state before its last; teach one with more in teacher.keep")
    for state in required:
        trajectory.entry(state)
    name, images = ("val", sets.val) if sets.val is not None else ("train", sets.train)
    if name == "train":
        say("no validation split was held out (data.val_fraction): training images, which the teacher knows by heart")
    images = limited(images, IMAGES, 0)
    blank = run.model.model_copy(update={"weights": None, "pretrained": False})
    network = build_model(blank, len(sets.classes), sets.image_size)
    observed = {}
    for state in (*required, "final"):
        trajectory.fill(network, state)
        outputs = predict({"": network}, images, sets.image_size)
        observed[state] = torch.cat([each[""].logits for each, _ in outputs])
    rows = [
        {"state": state, "strength": strength}
        | asdict(signs(observed["final"], observed[state], images.label, strength))
        for state in required
        for strength in strengths
    ]
    result = {"teacher": str(folder.path), "set": name, "count": len(images), "rows": rows}
    return result | {"largest": {state: largest([row for row in rows if row["state"] == state]) for state in required}}


def largest(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The largest λ up to which the targets of one state lose no more than LOST; None when the smallest loses more."""
    saved = None
    for row in sorted(rows, key=lambda row: float(row["strength"])):
        if row["target_accuracy"] < (1 - LOST) * row["final_accuracy"]:
            break
        saved = float(row["strength"])
    return saved
