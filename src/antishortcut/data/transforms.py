"""Augmentations as pure functions of (seed, epoch, index)."""
# B batch, H × W pixels, P padding, S side of the square output

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from antishortcut.data import rng

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

    Numpy rather than torch: one thread copies these few bytes faster than several can be started.
    """
    count, channels, height, width = image.shape
    place = index.numpy()  # (B,)
    padded = np.zeros((count, channels, height + 2 * padding, width + 2 * padding), dtype=np.uint8)
    padded[:, :, padding : padding + height, padding : padding + width] = image.numpy()
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))  # (B, 3, 2P+1, 2P+1, H, W)
    row = rng.below(2 * padding + 1, seed, epoch, place, rng.ROW)  # (B,)
    column = rng.below(2 * padding + 1, seed, epoch, place, rng.COLUMN)  # (B,)
    return torch.from_numpy(windows[np.arange(count), :, row, column])  # (B, 3, H, W)


def flip(image: Tensor, seed: int, epoch: int, index: Tensor) -> Tensor:
    """Mirror half of the images. (B, 3, H, W) uint8 to the same."""
    mirrored = rng.uniform(seed, epoch, index.numpy(), rng.FLIP) < 0.5  # (B,)
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


# --- ImageNet's usual augmentation ---

AREA = (0.08, 1.0)  # share of the picture in a crop
ASPECT = (3 / 4, 4 / 3)  # of a crop, width by height
JITTER = (0.6, 1.4)  # factors of brightness, contrast and saturation
TRIES = 10  # for a crop that lies within the picture

_LOG_ASPECT: list[float] = torch.log(torch.tensor(ASPECT)).tolist()

Box = tuple[int, int, int, int]  # left, top, right, bottom


def varied(picture: Image.Image, size: int, seed: int, epoch: int, index: int) -> NDArray[np.uint8]:
    """An RGB picture of any size, cropped, resized, mirrored and jittered. (3, S, S)"""
    generator = torch.Generator().manual_seed(int(rng.mix(seed, epoch, rng.PIPELINE, index)) >> 1)
    cut = picture.crop(_box(generator, *picture.size)).resize((size, size), Image.Resampling.BILINEAR)
    if float(torch.rand(1, generator=generator)) < 0.5:
        cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    turns: list[int] = torch.randperm(4, generator=generator).tolist()  # the fourth is hue, which stays as it is
    factors: list[float] = torch.empty(3).uniform_(*JITTER, generator=generator).tolist()
    for turn in turns:
        if turn < 3:
            cut = Image.blend(_target(turn, cut), cut, factors[turn])
    return np.asarray(cut).transpose(2, 0, 1)


def _target(turn: int, picture: Image.Image) -> Image.Image:
    """What brightness (0), contrast (1) and saturation (2) blend with: black, the mean grey, the grey picture."""
    if turn == 0:
        return Image.new("RGB", picture.size)
    grey = picture.convert("L")
    if turn == 2:
        return grey.convert("RGB")
    values = np.asarray(grey)
    level = int(int(values.sum()) / values.size + 0.5)
    return Image.new("RGB", picture.size, (level, level, level))


def _box(generator: torch.Generator, width: int, height: int) -> Box:
    """A random part of the picture; the centre where none fits."""
    for _ in range(TRIES):
        area = width * height * float(torch.empty(1).uniform_(*AREA, generator=generator))
        aspect = float(torch.exp(torch.empty(1).uniform_(*_LOG_ASPECT, generator=generator)))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            top = int(torch.randint(height - high + 1, (1,), generator=generator))
            left = int(torch.randint(width - wide + 1, (1,), generator=generator))
            return left, top, left + wide, top + high
    wide = min(width, round(height * ASPECT[1]))
    high = min(height, round(width / ASPECT[0]))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high
