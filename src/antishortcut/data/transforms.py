"""Augmentations as pure functions of (seed, epoch, index)."""
# B batch, H × W pixels, P padding, S side of the square output, n images with the same operation

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from antishortcut.data import rng
from antishortcut.types import Batch

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


# --- A strong second view of a batch, as in MLLD (Jin et al. 2023): two of 14 operations, then a grey square ---

# A pure function of (seed, epoch, index), so it depends on no batch, process or earlier step. The operations are those
# of RandAugment in FixMatch's version (a magnitude drawn anew each time) with Pillow's arithmetic, on images that have
# the usual augmentation already.

TURNS = 2  # operations an image gets
OPERATION, MAGNITUDE, SIDE, COLUMN, ROW = 9, 11, 13, 14, 15  # streams of random numbers; 8 is that of mixup
LARGEST = 0.5  # side of the square, as a share of the width
GREY = (125.0, 123.0, 114.0)

Number = float | Tensor

# Each takes pixels (n, 3, H, W), whole numbers from 0 to 255 as floats, and a magnitude for each image (n, 1, 1, 1).


def _autocontrast(pixels: Tensor, value: Tensor) -> Tensor:
    low, high = pixels.amin(dim=(2, 3), keepdim=True), pixels.amax(dim=(2, 3), keepdim=True)  # (n, 3, 1, 1)
    return torch.where(high > low, (255 * (pixels - low) / (high - low).clamp(min=1)).floor(), pixels)


def _equalize(pixels: Tensor, value: Tensor) -> Tensor:
    flat = pixels.flatten(2).long()  # (n, 3, H·W)
    counts = torch.zeros(*flat.shape[:2], 256, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(2, flat, torch.ones_like(flat))  # (n, 3, 256)
    brightest = counts.gather(2, flat.amax(dim=2, keepdim=True))  # (n, 3, 1)
    step = (flat.shape[2] - brightest) // 255
    table = (step // 2 + counts.cumsum(dim=2) - counts) // step.clamp(min=1)
    mapped = table.clamp(max=255).gather(2, flat)
    return torch.where(step > 0, mapped, flat).to(pixels).view_as(pixels)


def _blend(other: Tensor, pixels: Tensor, value: Tensor) -> Tensor:
    return (other + value * (pixels - other)).floor()


def _grey(pixels: Tensor) -> Tensor:
    weights = pixels.new_tensor([19595, 38470, 7471])[:, None, None]
    return (((weights * pixels).sum(dim=1, keepdim=True) + 32768) / 65536).floor()  # (n, 1, H, W)


def _sharpness(pixels: Tensor, value: Tensor) -> Tensor:
    kernel = pixels.new_tensor([[1, 1, 1], [1, 5, 1], [1, 1, 1]]).expand(3, 1, 3, 3)
    smooth = (F.conv2d(pixels, kernel, padding=1, groups=3) / 13 + 0.5).floor()
    inside = pixels.clone()  # the border stays as it is
    inside[:, :, 1:-1, 1:-1] = smooth[:, :, 1:-1, 1:-1]
    return _blend(inside, pixels, value)


def _move(pixels: Tensor, a: Number, b: Number, c: Number, d: Number, e: Number, f: Number) -> Tensor:
    """The pixel at (x, y) comes from (a x + b y + c, d x + e y + f), the nearest; what comes from outside is black."""
    height, width = pixels.shape[2:]
    x = torch.arange(width, device=pixels.device) + 0.5  # (W,)
    y = (torch.arange(height, device=pixels.device) + 0.5)[:, None]  # (H, 1)
    column, row = (a * x + b * y + c).floor(), (d * x + e * y + f).floor()  # one of them (n, 1, H, W), at least
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)  # (n, 1, H, W)
    place = (row * width + column).where(inside, 0).long().flatten(2).expand(-1, 3, -1)  # (n, 3, H·W)
    return pixels.flatten(2).gather(2, place).view_as(pixels) * inside


def _rotate(pixels: Tensor, value: Tensor) -> Tensor:
    height, width = pixels.shape[2:]
    cos, sin = (math.pi / 180 * value).cos(), (math.pi / 180 * value).sin()
    right, down = (width - cos * width + sin * height) / 2, (height - sin * width - cos * height) / 2
    return _move(pixels, cos, -sin, right, sin, cos, down)  # the centre stays


OPERATIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], float, float]] = {  # with the range of magnitudes
    "autocontrast": (_autocontrast, 0, 1),
    "brightness": (lambda x, value: (value * x).floor(), 0.05, 0.95),
    "colour": (lambda x, value: _blend(_grey(x), x, value), 0.05, 0.95),
    "contrast": (
        lambda x, value: _blend((_grey(x).mean(dim=(2, 3), keepdim=True) + 0.5).floor(), x, value), 0.05, 0.95
    ),
    "equalize": (_equalize, 0, 1),
    "identity": (lambda x, value: x, 0, 1),
    "posterize": (lambda x, value: x - x % 2 ** (8 - value.floor()), 4, 8),
    "rotate": (_rotate, -30, 30),
    "sharpness": (_sharpness, 0.05, 0.95),
    "shear_x": (lambda x, value: _move(x, 1, value, 0, 0, 1, 0), -0.3, 0.3),
    "shear_y": (lambda x, value: _move(x, 1, 0, 0, value, 1, 0), -0.3, 0.3),
    "solarize": (lambda x, value: torch.where(x < value, x, 255 - x), 0, 256),
    "translate_x": (lambda x, value: _move(x, 1, 0, value * x.shape[3], 0, 1, 0), -0.3, 0.3),
    "translate_y": (lambda x, value: _move(x, 1, 0, 0, 0, 1, value * x.shape[2]), -0.3, 0.3),
}  # fmt: skip


@torch.no_grad()
def strong_view(image: Tensor, seed: int, epoch: int, index: Tensor) -> Tensor:
    """Images (B, 3, H, W), float in [0, 1], strongly augmented; `index` (B,) are their places in the training set."""
    place = index.cpu().numpy()  # (B,)
    pixels = (255 * image).round()  # (B, 3, H, W)

    def magnitude(share: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(share).float().to(pixels).view(-1, 1, 1, 1)

    for turn in range(TURNS):
        choice = rng.below(len(OPERATIONS), seed, epoch, place, OPERATION + turn)  # (B,)
        share = rng.uniform(seed, epoch, place, MAGNITUDE + turn)  # (B,)
        for number, (operation, low, high) in enumerate(OPERATIONS.values()):
            chosen = np.flatnonzero(choice == number)  # (n,)
            if len(chosen):
                rows = torch.from_numpy(chosen).to(pixels.device)
                pixels[rows] = operation(pixels[rows], magnitude(low + (high - low) * share[chosen]))
    side, x, y = (magnitude(rng.uniform(seed, epoch, place, stream)) for stream in (SIDE, COLUMN, ROW))
    return _cut_out(pixels, side, x, y) / 255


def _cut_out(pixels: Tensor, side: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """A grey square around a point; all three from 0 to 1. What hangs over the left or upper edge is moved inside."""
    height, width = pixels.shape[2:]
    side = LARGEST * width * side  # (B, 1, 1, 1)
    left, top = ((centre - side / 2).clamp(min=0).floor() for centre in (width * x, height * y))
    column = torch.arange(width, device=pixels.device)  # (W,)
    row = torch.arange(height, device=pixels.device)[:, None]  # (H, 1)
    cut = (column >= left) & (column <= left + side) & (row >= top) & (row <= top + side)  # (B, 1, H, W)
    return torch.where(cut, pixels.new_tensor(GREY)[:, None, None], pixels)


def with_strong_view(batch: Batch, seed: int, epoch: int) -> Batch:
    """A batch of twice the size: its images as they are, then their strong views."""
    image = strong_view(batch.image, seed, epoch, batch.index if batch.index_cpu is None else batch.index_cpu)
    pairs = {name: (value, value) for name, value in vars(batch).items() if value is not None}
    both = {name: torch.cat(pair) for name, pair in (pairs | {"image": (batch.image, image)}).items()}
    strong = torch.arange(2 * len(image), device=image.device) >= len(image)
    return Batch(**both, strong=strong)
