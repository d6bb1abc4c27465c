"""Images with their masks: both move together, whatever varies them; an image bilinearly, its labels to the nearest."""
# B batch, H × W pixels, S side of a square crop

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from antishortcut.data import rng as draws
from antishortcut.data import transforms as vary
from antishortcut.data.masks import read_pair
from antishortcut.errors import UserError
from antishortcut.types import VOID, AnySet, FileSet, ImageSet, is_dense

CROPS = "scale-crop-flip"

Bytes = NDArray[np.uint8]


def check(images: AnySet, augment: str) -> None:
    """Refuse an augmentation that does not suit the set."""
    if not is_dense(images):
        if augment == CROPS:
            raise UserError(f"the augmentation {augment} is for images with masks, which these are not; try crop-flip")
    elif augment not in ("none", CROPS, *vary.WHOLE_BATCH):
        raise UserError(f"the augmentation {augment} cannot move masks with their images; use {CROPS}")
    elif isinstance(images, FileSet) and augment in vary.WHOLE_BATCH:
        raise UserError(
            f"the augmentation {augment} leaves images their size, but those on disk may differ in it and then "
            f"share no batch; use {CROPS}"
        )


def wants_labels(what: str, images: AnySet, *, of: Literal["image", "pixel"]) -> None:
    """Refuse what needs one label an image where every pixel has its own, or the other way round."""
    there = "pixel" if is_dense(images) else "image"
    if there != of:
        raise UserError(f"{what} needs one label for every {of}; here there is one for every {there}")


def alone(images: AnySet, augment: str) -> bool:
    """Whether every image is a batch by itself: whole images on disk, of which no two need have the same size."""
    return isinstance(images, FileSet) and is_dense(images) and augment == "none"


def pairs(images: AnySet, size: int, augment: str, seed: int, epoch: int, index: Tensor) -> tuple[Tensor, Tensor]:
    """The images at these places (B, 3, H, W) and their labels (B, H, W), both uint8.

    Crops are S × S; everything else leaves images their own size, so of those on disk there can be one.
    """
    if augment == CROPS:
        image, label = _crops(images, size, seed, epoch, index)
    elif isinstance(images, ImageSet):
        image, label = _whole(images, augment, seed, epoch, index)
    elif len(index) == 0:
        image, label = np.empty((0, 3, size, size), dtype=np.uint8), np.empty((0, size, size), dtype=np.uint8)
    else:
        picture, mask = read_pair(images, int(index))
        image, label = np.array(picture).transpose(2, 0, 1)[None], mask[None]
    return torch.from_numpy(image), torch.from_numpy(label)


def _whole(images: ImageSet, augment: str, seed: int, epoch: int, index: Tensor) -> tuple[Bytes, Bytes]:
    """(B, 3, H, W) and (B, H, W), varied as images without masks are."""
    image, label = (pixels.numpy()[index.numpy()] for pixels in (images.image, images.label))
    move = vary.WHOLE_BATCH.get(augment)
    if move is None:
        return image, label
    both = np.concatenate([image, ~label[:, None]], axis=1)  # (B, 4, H, W), labels as 255 − label: black is VOID
    both = move(torch.from_numpy(both), seed, epoch, index).numpy()
    return both[:, :3], ~both[:, 3]


def _crops(images: AnySet, size: int, seed: int, epoch: int, index: Tensor) -> tuple[Bytes, Bytes]:
    """(B, 3, S, S) and (B, S, S); what a small image leaves of its square is black and VOID."""
    place = index.numpy()  # (B,)
    scale = (5 + draws.below(16, seed, epoch, place, draws.SCALE)) / 10  # (B,) CIRKD's 0.5, 0.6, … 2.0
    row, column, side = (draws.uniform(seed, epoch, place, key) for key in (draws.ROW, draws.COLUMN, draws.FLIP))
    image = np.zeros((len(place), 3, size, size), dtype=np.uint8)
    label = np.full((len(place), size, size), VOID, dtype=np.uint8)
    for at, number in enumerate(place.tolist()):
        picture, mask = _pair(images, number)
        across = _window(picture.width, size, scale[at], column[at])
        down = _window(picture.height, size, scale[at], row[at])
        box = (across.low, down.low, across.high, down.high)
        cut = picture.resize((across.length, down.length), Image.Resampling.BILINEAR, box)
        image[at, :, : down.length, : across.length] = np.asarray(cut).transpose(2, 0, 1)
        label[at, : down.length, : across.length] = mask[down.nearest[:, None], across.nearest]
    mirrored = side < 0.5  # (B,)
    image[mirrored], label[mirrored] = image[mirrored][..., ::-1], label[mirrored][..., ::-1]
    return image, label


def _pair(images: AnySet, at: int) -> tuple[Image.Image, Bytes]:
    if isinstance(images, ImageSet):
        planes = [Image.fromarray(plane) for plane in images.image[at].numpy()]
        return Image.merge("RGB", planes), images.label[at].numpy()
    return read_pair(images, at)


class Window(NamedTuple):
    """What a crop shows of one side of an image that has been scaled."""

    length: int  # pixels of the crop
    low: float  # where it begins and ends, in pixels of the image
    high: float
    nearest: NDArray[np.int64]  # (length,) the image's pixel in which each pixel of the crop has its middle


def _window(side: int, size: int, scale: float, draw: float) -> Window:
    """A crop of `size`, or of all there is, from anywhere on a side of `side` pixels times `scale`."""
    scaled = max(1, round(side * scale))
    length = min(scaled, size)
    first = int(draw * (scaled - length + 1))
    low, high = (place * side / scaled for place in (first, first + length))
    nearest = (2 * np.arange(first, first + length) + 1) * side // (2 * scaled)  # exact, also where a middle is an edge
    return Window(length, low, min(high, side), nearest)
