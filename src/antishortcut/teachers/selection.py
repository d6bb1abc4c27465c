"""Which state of a trajectory to learn from: for CkptKD, and of a weak network in T_early's place.

Wang et al. 2022 choose the checkpoint with the largest normalised I(X;F) + I(Y;F). Their criterion is published, their
estimator is not; this is a re-implementation: I(X;F) by how well a small decoder rebuilds the image from the last
feature map, I(Y;F) by how well a linear classifier reads the label from the embedding, both on images held out from
fitting, each scaled to [0, 1] over the trained states.
"""
# N images, C classes, D embedding, c × h × w last feature map, S side of the rebuilt image

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.config.recipe import WEAK
from antishortcut.data import Loader, to_device
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import limited
from antishortcut.methods.contrast import contrast_logits
from antishortcut.models import Network
from antishortcut.tasks import build_task
from antishortcut.teachers.trajectory import Trajectory, build_saved
from antishortcut.types import AnySet, DataSplits

IMAGES, SIDE, STEPS, BATCH = 1024, 16, 200, 64


def scaled(values: list[float]) -> list[float]:
    """Values moved to [0, 1] by their range; all 0 when they are equal."""
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


def label_information(embedding: Tensor, label: Tensor, classes: int) -> float:
    """H(Y) − cross-entropy, in nats, of a linear classifier fitted on one half of (N, D), scored on the other."""
    half = len(label) // 2
    mean, spread = embedding[:half].mean(dim=0), embedding[:half].std(dim=0) + 1e-6
    rows = (embedding - mean) / spread  # (N, D)
    layer = nn.Linear(rows.shape[1], classes)
    nn.init.zeros_(layer.weight)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(layer(rows[:half]), label[:half]) + 1e-2 * layer.weight.square().sum() / 2
        torch.autograd.backward(loss)
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        spent = float(F.cross_entropy(layer(rows[half:]), label[half:]))
    share = torch.bincount(label[half:], minlength=classes).double() / (len(label) - half)
    return float(-(share * share.clamp(min=1e-12).log()).sum()) - spent


def image_information(maps: Tensor, image: Tensor) -> float:
    """−MSE of images (N, 3, S, S) rebuilt from maps (N, c, h, w), fitted on one half, scored on the other."""
    half = len(maps) // 2
    maps = (maps - maps[:half].mean()) / (maps[:half].std() + 1e-6)
    decoder = Decoder(maps.shape[1], maps.shape[2], image.shape[2])
    optimizer = torch.optim.Adam(decoder.parameters(), lr=3e-3)
    for _ in range(STEPS):
        chosen = torch.randint(half, (BATCH,))
        loss = F.mse_loss(decoder(maps[chosen]), image[chosen])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    decoder.eval()
    with torch.no_grad():
        rebuilt = torch.cat([decoder(maps[start : start + BATCH]) for start in range(half, len(maps), BATCH)])
    return -float(F.mse_loss(rebuilt, image[half:]))


class Decoder(nn.Sequential):
    """1 × 1 convolution, then doubling of the side with a 3 × 3 convolution until the image's side is reached."""

    def __init__(self, channels: int, side: int, target: int, width: int = 32) -> None:
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 1), nn.ReLU()]
        for _ in range(max(math.ceil(math.log2(target / side)), 0)):
            layers += [nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        super().__init__(*layers, nn.Upsample(size=(target, target)), nn.Conv2d(width, 3, 3, padding=1), nn.Sigmoid())


def select_state(trajectory: Trajectory, sets: DataSplits, say: Callable[[str], None]) -> str:
    """Estimate every state's information, keep it in the manifest, and name the state that has most. Done once."""
    wants_labels("to choose a state (ckptkd)", sets.train, of="image")
    if _unknown(trajectory):
        with trajectory.folder.locked(wait=True):
            trajectory.entries = Trajectory(trajectory.folder).entries  # another run may have done it meanwhile
            if _unknown(trajectory):
                _estimate(trajectory, sets, say)
    chosen = str(trajectory.entry("chosen")["labels"][0])
    say(f"chosen: {chosen}")
    return chosen


def _unknown(trajectory: Trajectory) -> bool:
    return any("information" not in entry for entry in trajectory.candidates)


def _estimate(trajectory: Trajectory, sets: DataSplits, say: Callable[[str], None]) -> None:
    states = trajectory.candidates
    network = build_saved(trajectory.folder, len(sets.classes), sets.image_size).eval()
    result = []
    for entry in states:
        trajectory.fill(network, entry["labels"][0])
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # the same draws for every state
            maps, embedding, image, label = _features(network, sets)
            result.append((image_information(maps, image), label_information(embedding, label, len(sets.classes))))
    totals = [a + b for a, b in zip(*(scaled(list(column)) for column in zip(*result, strict=True)), strict=True)]
    for entry, (of_image, of_label), total in zip(states, result, totals, strict=True):
        entry["information"] = {"image": of_image, "label": of_label, "total": total}
    trajectory.write()
    say("state         −MSE of image   nats of label   normalised sum   (our estimate, theirs is not published)")
    for entry in states:
        known = entry["information"]
        say(f"{entry['labels'][0]:<10}{known['image']:>15.4f}{known['label']:>16.3f}{known['total']:>17.3f}")


@torch.no_grad()
def _features(network: Network, sets: DataSplits) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Last maps (N, c, h, w), embeddings (N, D), small images (N, 3, S, S) and labels (N,) of training images."""
    images = limited(sets.train, IMAGES, 0)
    loader = Loader(images, batch=BATCH, seed=0, image_size=sets.image_size, augment="none")  # shuffled: halves alike
    rows = []
    for batch in loader.epoch(0):
        outputs = network(batch.image)
        last = outputs.stages[-1] if outputs.stages else outputs.embedding[:, :, None, None]
        small = F.interpolate(batch.image, (SIDE, SIDE), mode="area") if sets.image_size > SIDE else batch.image
        rows.append((last, outputs.embedding, small, batch.label))
    maps, embedding, image, label = (torch.cat(column) for column in zip(*rows, strict=True))
    return maps, embedding, image, label


# --- A weak network in T_early's place: which of its states it is, chosen by the signs of contrast targets ---

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


MOST_IMAGES, MOST_SCENES = 5_000, 200  # scenes are images with masks


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
    images = limited(images, MOST_SCENES if task.dense else MOST_IMAGES, 0)
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
