"""Whole batches against per-image PIL transforms: the same crop, flip and conversion of 64 images of 32 × 32.

The two take turns, so that whatever else the machine does falls on both; medians. Prints JSON.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torchvision import transforms

from antishortcut.data import Loader
from antishortcut.types import ImageSet

BATCH, IMAGES, ROUNDS = 64, 4096, 60


def main() -> None:
    raw = np.random.default_rng(0).integers(0, 256, (IMAGES, 3, 32, 32), dtype=np.uint8)
    loader = Loader(
        ImageSet(torch.from_numpy(raw), torch.zeros(IMAGES, dtype=torch.int64)), batch=BATCH, seed=0, image_size=32
    )
    pictures = [Image.fromarray(image.transpose(1, 2, 0)) for image in raw]
    one = transforms.Compose(
        [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    batches = loader.epoch(0)

    def ours() -> None:
        next(batches)

    def theirs() -> None:
        torch.stack([one(pictures[at]) for at in torch.randint(IMAGES, (BATCH,)).tolist()])

    seconds: dict[Callable[[], None], list[float]] = {ours: [], theirs: []}
    for _ in range(ROUNDS):
        for build, times in seconds.items():
            begin = time.perf_counter()
            build()
            times.append(time.perf_counter() - begin)
    ms = {build.__name__: 1000 * statistics.median(times) for build, times in seconds.items()}
    print(
        json.dumps({"batch": BATCH, "ours_ms": ms["ours"], "pil_ms": ms["theirs"], "ratio": ms["theirs"] / ms["ours"]})
    )


if __name__ == "__main__":
    main()
