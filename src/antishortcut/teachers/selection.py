"""Which state of a trajectory to distil from: the one that knows most of image and label together (CkptKD).

Wang et al. 2022 choose the checkpoint with the largest normalised I(X;F) + I(Y;F). Their criterion is published, their
estimator is not; this is a re-implementation: I(X;F) by how well a small decoder rebuilds the image from the last
feature map, I(Y;F) by how well a linear classifier reads the label from the embedding, both on images held out from
fitting, each scaled to [0, 1] over the trained states.
"""
# N images, C classes, D embedding, c × h × w last feature map, S side of the rebuilt image

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.data import Loader
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import limited
from antishortcut.models import Network
from antishortcut.teachers.trajectory import Trajectory, build_saved
from antishortcut.types import DataSplits

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
