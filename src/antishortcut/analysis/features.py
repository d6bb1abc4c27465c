"""Outputs of networks over a whole set: the loop that evaluation, audit and targets share."""
# B batch, N images, D features
# N images, D features

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antishortcut.data import Loader
from antishortcut.data.segmentation import wants_labels
from antishortcut.models import Network
from antishortcut.progress import ProgressBar
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
    with ProgressBar(title, -(-len(images) // BATCH), quiet) as watch:
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


# --- Features on a plane, teacher beside student, by t-SNE (van der Maaten & Hinton 2008) ---

SHOWN = 10  # classes, the first of the data
EACH = 50  # images of each
PERPLEXITY = 30.0


def places(label: Tensor, shown: int = SHOWN, each: int = EACH) -> Tensor:
    """Which images are drawn: the first `each` of the first `shown` classes, in order. (n,)"""
    chosen = [(label == number).nonzero().flatten()[:each] for number in range(shown)]
    return torch.cat(chosen).sort().values


def tsne(
    rows: Mapping[str, Tensor], label: Tensor, classes: Sequence[str], shown: int = SHOWN, each: int = EACH
) -> dict[str, Any] | None:
    """The same images in each network's own plane: {"label", "classes", role: [[x, y], …]}; None without scikit-learn.

    Planes are made one by one: distances mean something within a plane, not between two.
    """
    try:
        from sklearn.manifold import TSNE
    except ModuleNotFoundError:
        return None
    drawn = places(label, shown, each)
    if len(drawn) < 5:
        return None
    near = min(PERPLEXITY, (len(drawn) - 1) / 3)
    result: dict[str, Any] = {
        "method": "t-SNE",
        "label": label[drawn].tolist(),
        "classes": list(classes[:shown]),
    }
    for role, features in rows.items():
        built = TSNE(perplexity=near, init="pca", random_state=0, n_jobs=1).fit_transform(features[drawn].numpy())
        result[role] = [[round(float(x), 2), round(float(y), 2)] for x, y in built]
    return result
