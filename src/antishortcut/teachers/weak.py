"""A weak network in T_early's place: which of its states it is, chosen by the signs of contrast targets."""
# N images, or locations of images with masks, C classes

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from antishortcut.config.recipe import WEAK
from antishortcut.data import Loader, to_device
from antishortcut.data.splits import limited
from antishortcut.methods.contrast import contrast_logits
from antishortcut.models import Network
from antishortcut.tasks import build_task
from antishortcut.teachers.trajectory import Trajectory, build_saved
from antishortcut.types import AnySet, DataSplits

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


IMAGES, SCENES = 5_000, 200  # at most; scenes are images with masks


def choose_weak_state(
    weak: Trajectory, teacher: Trajectory, sets: DataSplits, device: torch.device, say: Callable[[str], None]
) -> None:
    """Label the state of a weak network that stands beside a teacher, and say why it is that one. Done once."""
    label = WEAK + teacher.folder.path.name
    if weak.has(label):
        return
    with weak.folder.locked(wait=True):
        weak.entries = Trajectory(weak.folder).entries  # another run may have done it meanwhile
        if weak.has(label):
            return
        name, images = ("validation", sets.val) if sets.val is not None else ("training", sets.train)
        rows = _signs(weak, teacher, images, sets, device)
        best = best_reference(rows)
        entry, row = weak.entries[best], rows[best]
        for each, known in zip(weak.entries, rows, strict=True):
            each["signs"] = each.get("signs", {}) | {teacher.folder.path.name: known}
        entry["labels"].append(label)
        weak.write()
    rule = f"moves most targets and costs at most {LOST:.0%} of T_final's accuracy" if bearable(row) else "costs least"
    state = f"{weak.folder.read()[0].model.name} after {entry['labels'][0]} of its training"
    agreement = f"agrees with T_final on {row['agreement']:.0%} of the {name} images"
    accuracy = f"accuracy {row['final_accuracy']:.3f} → {row['target_accuracy']:.3f}"
    say(f"weak reference: {state}, of {len(rows)} states the one that {rule}")
    say(f"weak reference: it {agreement}; targets moved: {row['moved']:.1%}, their {accuracy}")
    if row["moved"] == 0:
        say("No target moves: expect no more than from plain KD.")
    if row["early_accuracy"] > row["final_accuracy"]:
        scores = f"{row['early_accuracy']:.3f} against {row['final_accuracy']:.3f}"
        say(f"The weak network is better than T_final on the {name} images ({scores}): is this the right teacher?")


@torch.no_grad()
def _signs(
    weak: Trajectory, teacher: Trajectory, images: AnySet, sets: DataSplits, device: torch.device
) -> list[dict[str, Any]]:
    """The signs of every state of the weak network, at λ = 1."""
    task, networks = build_task(sets), dict[str, Network]()
    for trajectory, state in [(weak, entry["labels"][0]) for entry in weak.entries] + [(teacher, "final")]:
        networks[state] = build_saved(trajectory.folder, len(sets.classes), sets.image_size)
        trajectory.fill(networks[state], state)
        networks[state].to(device).eval()
    images = limited(images, SCENES if task.dense else IMAGES, 0)
    loader = Loader.in_order(images, task.eval_batch_size, sets.image_size)
    logits, labels = defaultdict[str, list[Tensor]](list), list[Tensor]()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # of the locations that are drawn
        for batch in to_device(loader.epoch(0), device):
            outputs = {state: network(batch.image) for state, network in networks.items()}
            _, sampled_outputs, sampled = task.samples(outputs["final"], outputs, batch)
            for state, features in sampled_outputs.items():
                logits[state].append(features.logits.float().cpu())
            labels.append(sampled.label.cpu())
    late, label = torch.cat(logits.pop("final")), torch.cat(labels)
    return [target_statistics(late, torch.cat(rows), label, 1.0) for rows in logits.values()]
