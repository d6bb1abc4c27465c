"""A weak network in T_early's place: which of its states it is, chosen by the signs of contrast targets."""
# N images, or locations of images with masks, C classes

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from antishortcut.config.recipe import WEAK
from antishortcut.data import Loader, to_device
from antishortcut.data.splits import limited
from antishortcut.models import Network
from antishortcut.tasks import build_task
from antishortcut.teachers.target_signs import LOST, bearable, best_reference, target_statistics
from antishortcut.teachers.trajectory import Trajectory, build_saved
from antishortcut.types import AnySet, DataSplits

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
    loader = Loader(
        images, batch=task.eval_batch_size, seed=0, image_size=sets.image_size, augment="none", shuffle=False
    )
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
