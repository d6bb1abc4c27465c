"""Embeddings of a set in several networks at once: images are read once, rows kept in memory or, if many, in a file."""
# N images, D features

from __future__ import annotations

import tempfile
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from antishortcut.console import Watch
from antishortcut.data import Loader
from antishortcut.data.dense import wants_labels
from antishortcut.models import Network
from antishortcut.types import AnySet

IN_MEMORY = 2**29  # bytes of one network's rows; more lie in a temporary file that no one sees
BATCH = 256


@torch.no_grad()
def features(
    networks: Mapping[str, Network], images: AnySet, size: int, device: str = "cpu", title: str = "", quiet: bool = True
) -> dict[str, Tensor]:
    """The embedding of every image in every network, in the set's order: {role: (N, D)}."""
    wants_labels("a comparison of features", images, of="image")
    loader = Loader(images, batch=BATCH, seed=0, image_size=size, augment="none", shuffle=False)
    kept: dict[str, Tensor] = {}
    for network in networks.values():
        network.to(device)
    with Watch(title, len(loader), quiet) as watch:
        for number, batch in enumerate(loader.epoch(0), start=1):
            image = batch.image.to(device)
            for role, network in networks.items():
                rows = network(image).embedding.float().cpu()  # (B, D)
                if role not in kept:
                    kept[role] = _room(len(images), rows.shape[1])
                kept[role][batch.index] = rows
            watch.update(number, {})
    return kept


def _room(count: int, width: int) -> Tensor:
    if 4 * count * width <= IN_MEMORY:
        return torch.empty(count, width)
    with tempfile.TemporaryFile() as file:  # mapped pages outlive the name
        return torch.from_numpy(np.memmap(file, dtype=np.float32, mode="w+", shape=(count, width)))
