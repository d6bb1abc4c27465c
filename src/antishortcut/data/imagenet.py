"""ImageNet's usual augmentation, one picture at a time: bit for bit what torchvision makes of the same seed.

Written out because torchvision draws from the global generator, from which the networks draw too while the next batch
is being made; and it takes a third less time. All in Pillow, whose resampling is the same on every machine.
"""
# S side of the square output

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from antishortcut.data import rng as draws

AREA = (0.08, 1.0)  # of the picture, that a crop covers
ASPECT = (3 / 4, 4 / 3)  # of a crop, width by height
JITTER = (0.6, 1.4)  # factors of brightness, contrast and saturation
TRIES = 10  # for a crop that lies within the picture

_LOG_ASPECT: list[float] = torch.log(torch.tensor(ASPECT)).tolist()

Box = tuple[int, int, int, int]  # left, top, right, bottom


def varied(picture: Image.Image, size: int, seed: int, epoch: int, index: int) -> NDArray[np.uint8]:
    """An RGB picture of any size, cropped, resized, mirrored and jittered. (3, S, S)"""
    chance = torch.Generator().manual_seed(int(draws.mix(seed, epoch, draws.PIPELINE, index)) >> 1)
    cut = picture.crop(_box(chance, *picture.size)).resize((size, size), Image.Resampling.BILINEAR)
    if float(torch.rand(1, generator=chance)) < 0.5:
        cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    turns: list[int] = torch.randperm(4, generator=chance).tolist()  # the fourth is hue, which stays as it is
    factors: list[float] = torch.empty(3).uniform_(*JITTER, generator=chance).tolist()
    for turn in turns:
        if turn < 3:
            cut = Image.blend((_black, _mean, _grey)[turn](cut), cut, factors[turn])
    return np.asarray(cut).transpose(2, 0, 1)


def _box(chance: torch.Generator, width: int, height: int) -> Box:
    """A random part of the picture; the centre where none fits."""
    for _ in range(TRIES):
        area = width * height * float(torch.empty(1).uniform_(*AREA, generator=chance))
        aspect = float(torch.exp(torch.empty(1).uniform_(*_LOG_ASPECT, generator=chance)))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            top = int(torch.randint(height - high + 1, (1,), generator=chance))
            left = int(torch.randint(width - wide + 1, (1,), generator=chance))
            return left, top, left + wide, top + high
    wide = min(width, round(height * ASPECT[1]))
    high = min(height, round(width / ASPECT[0]))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def _black(picture: Image.Image) -> Image.Image:
    return Image.new("RGB", picture.size)


def _mean(picture: Image.Image) -> Image.Image:
    """All in the mean grey of the picture."""
    grey = np.asarray(picture.convert("L"))
    level = int(int(grey.sum()) / grey.size + 0.5)
    return Image.new("RGB", picture.size, (level, level, level))


def _grey(picture: Image.Image) -> Image.Image:
    return picture.convert("L").convert("RGB")
