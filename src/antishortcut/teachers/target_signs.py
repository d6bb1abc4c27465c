"""Signs of contrast targets before any student is trained, by which λ and T_early are chosen (docs/contrast.md)."""
# N images, C classes

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from torch import Tensor

from antishortcut.methods.contrast import contrast_logits

LOST = 0.03  # share of T_final's accuracy that targets may lose: students lost none below (docs/results/diagnostics.md)


def target_statistics(
    final: Tensor, early: Tensor, label: Tensor, strength: float, *, floor: float = -8.0, temperature: float = 4.0
) -> dict[str, Any]:
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


def largest(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The largest λ up to which the targets of one state lose no more than LOST; None if the smallest loses more."""
    rising = sorted(rows, key=lambda row: float(row["strength"]))
    return max((float(row["strength"]) for row in takewhile(bearable, rising)), default=None)


def best_reference(rows: Sequence[Mapping[str, Any]]) -> int:
    """Which of several states, in the order they were reached, should take T_early's place: its number.

    T_early must know the easy answer and nothing more. One that knows too little moves no targets, one that knows too
    much agrees with T_final and moves none either, and one that is merely bad moves them away from what is right. So,
    at λ = 1: of the states whose targets lose at most LOST of T_final's accuracy, the one that moves most targets. If
    all lose more, the one that loses least. Of equals the one that agrees with T_final more often, then the earlier.
    """
    fit = [at for at, row in enumerate(rows) if bearable(row)]
    sign = "moved" if fit else "target_accuracy"
    return max(fit or range(len(rows)), key=lambda at: (rows[at][sign], rows[at]["agreement"]))


def bearable(row: Mapping[str, Any]) -> bool:
    """Whether targets lose no more than LOST of T_final's accuracy."""
    return bool(row["target_accuracy"] >= (1 - LOST) * row["final_accuracy"])
