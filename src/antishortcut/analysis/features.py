"""Outputs of networks over a whole set: the loop that evaluation, audit and targets share."""
# B batch, N images, D features

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from antishortcut.data import Loader
from antishortcut.data.dense import wants_labels
from antishortcut.models import Network
from antishortcut.progress import Watch
from antishortcut.types import AnySet, Batch, Features

IN_MEMORY = 2**29  # bytes of one network's features; larger ones go to a temporary file
BATCH = 256


@torch.no_grad()
def predict(
    networks: Mapping[str, Network], images: AnySet, size: int, *, device: str = "cpu", batch: int = BATCH
) -> Iterator[tuple[dict[str, Features], Batch]]:
    """Logits and embeddings of every network in evaluation mode, on the CPU, batch by batch in the set's order."""
    for network in networks.values():
        network.to(device).eval()
    loader = Loader(images, batch=batch, seed=0, image_size=size, augment="none", shuffle=False)
    for part in loader.epoch(0):
        image = part.image.to(device)
        outputs = {role: network(image) for role, network in networks.items()}
        yield {role: Features(out.logits.cpu(), out.embedding.cpu()) for role, out in outputs.items()}, part


@dataclass(frozen=True)
class Predictions:
    """Of one network, for every image of a set."""

    features: Tensor  # (N, D) float32
    label: Tensor  # the predicted class. (N,)
    classes: int


def predictions(
    networks: Mapping[str, Network], images: AnySet, size: int, device: str = "cpu", title: str = "", quiet: bool = True
) -> dict[str, Predictions]:
    """What every network predicts for a set, in the set's order, images being read once."""
    wants_labels("a comparison of features", images, of="image")
    results: dict[str, Predictions] = {}
    with Watch(title, -(-len(images) // BATCH), quiet) as watch:
        for number, (outputs, batch) in enumerate(predict(networks, images, size, device=device), start=1):
            for role, out in outputs.items():
                if role not in results:
                    room, label = _room(len(images), out.embedding.shape[1]), torch.empty(len(images)).long()
                    results[role] = Predictions(room, label, out.logits.shape[1])
                results[role].features[batch.index] = out.embedding.float()
                results[role].label[batch.index] = out.logits.argmax(dim=1)
            watch.update(number, {})
    return results


def features(
    networks: Mapping[str, Network], images: AnySet, size: int, device: str = "cpu", title: str = "", quiet: bool = True
) -> dict[str, Tensor]:
    """The embedding of every image in every network: {role: (N, D)}."""
    results = predictions(networks, images, size, device, title, quiet)
    return {role: result.features for role, result in results.items()}


def _room(count: int, width: int) -> Tensor:
    if 4 * count * width <= IN_MEMORY:
        return torch.empty(count, width)
    with tempfile.TemporaryFile() as file:  # mapped pages outlive the name
        return torch.from_numpy(np.memmap(file, dtype=np.float32, mode="w+", shape=(count, width)))
