"""Augmentation as pure functions of (seed, epoch, index): an image varies alike wherever it is built."""
# B batch, H × W pixels, P padding

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from antishortcut.data import rng as draws

AUGMENTS = {
    "none": "as they are",
    "crop": "padded with black, cropped back to size",
    "flip": "mirrored half of the time",
    "crop-flip": "padded with black, cropped back to size, mirrored half of the time",
    "scale-crop-flip": "of images with masks: scaled by 0.5 to 2, a square cut out, mirrored half of the time",
    "imagenet": "random resized crop, mirrored half of the time, colour jitter 0.4 without hue",
}


def crop_flip(image: Tensor, seed: int, epoch: int, index: Tensor, padding: int = 4) -> Tensor:
    """Random crops, mirrored half of the time. (B, 3, H, W) uint8 to the same."""
    return flip(crop(image, seed, epoch, index, padding), seed, epoch, index)


def crop(image: Tensor, seed: int, epoch: int, index: Tensor, padding: int = 4) -> Tensor:
    """Random crops of the images padded with black. (B, 3, H, W) uint8 to the same.

    Numpy rather than torch: one thread moves these few bytes faster than a team of threads can be woken.
    """
    count, channels, height, width = image.shape
    place = index.numpy()  # (B,)
    padded = np.zeros((count, channels, height + 2 * padding, width + 2 * padding), dtype=np.uint8)
    padded[:, :, padding : padding + height, padding : padding + width] = image.numpy()
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))  # (B, 3, 2P+1, 2P+1, H, W)
    row = draws.below(2 * padding + 1, seed, epoch, place, draws.ROW)  # (B,)
    column = draws.below(2 * padding + 1, seed, epoch, place, draws.COLUMN)  # (B,)
    return torch.from_numpy(windows[np.arange(count), :, row, column])  # (B, 3, H, W)


def flip(image: Tensor, seed: int, epoch: int, index: Tensor) -> Tensor:
    """Mirror half of the images. (B, 3, H, W) uint8 to the same."""
    mirrored = draws.uniform(seed, epoch, index.numpy(), draws.FLIP) < 0.5  # (B,)
    out = image.numpy().copy()  # (B, 3, H, W)
    out[mirrored] = out[mirrored][..., ::-1]
    return torch.from_numpy(out)


WHOLE_BATCH: dict[str, Callable[[Tensor, int, int, Tensor], Tensor]] = {
    "crop": crop,
    "flip": flip,
    "crop-flip": crop_flip,
}


def as_float(image: Tensor) -> Tensor:
    """uint8 to float32 in [0, 1], whatever the shape; one thread, for the same reason as above."""
    return torch.from_numpy(np.divide(image.numpy(), np.float32(255), dtype=np.float32))
