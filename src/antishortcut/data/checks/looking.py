"""Every file opened and decoded once: what it is, or why it cannot be read."""
# N images, H × W pixels

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ...types import VOID, AnySet, FileSet, ImageSet, is_dense
from ..masks import read_values
from ..pictures import as_rgb, in_threads, opened, reason

_ORIENTATION = 0x0112  # of EXIF: 1 is upright
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Seen:
    """One image, and its mask where it has one."""

    size: tuple[int, int] = (0, 0)  # width, height
    mode: str = ""  # how its pixels are stored; of images in memory none
    digest: bytes = b""  # of what a network would be given, before it is resized
    turned: bool = False  # whether it asks to be shown turned, which training does not do
    wrong: str = ""  # why it cannot be read
    values: Counts | None = None  # (256,) pixels of every value in its mask
    mask_wrong: str = ""

    @property
    def readable(self) -> bool:
        return not self.wrong and not self.mask_wrong


def look(images: AnySet, tell: Callable[[], None] = lambda: None) -> list[Seen]:
    """All images of a set, those on disk decoded in threads; `tell` is called after each of these."""
    if isinstance(images, ImageSet):
        return _in_memory(images)
    files = images
    seen = [Seen()] * len(files)

    def fill(at: int) -> None:
        seen[at] = _file(files, at)
        tell()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of odd files, which read all the same
        in_threads(fill, len(files))
    return seen


def _in_memory(images: ImageSet) -> list[Seen]:
    height, width = images.image.shape[2:]
    pixels, label = images.image.numpy(), images.label.numpy()
    dense = is_dense(images)
    return [
        Seen(
            (width, height),
            digest=_digest((width, height), pixels[at].transpose(1, 2, 0)),
            values=_counted(label[at]) if dense else None,
        )
        for at in range(len(images))
    ]


def _file(files: FileSet, at: int) -> Seen:
    seen = _picture(files.paths[at])
    if not files.masks:
        return seen
    try:
        values = read_values(files.masks[at])  # (H, W)
    except UserError as error:
        return Seen(**vars(seen) | {"mask_wrong": _inside(str(error), files.masks[at])})
    high, wide = values.shape
    if not seen.wrong and (wide, high) != seen.size:
        unlike = f"{wide} × {high} pixels, its image {seen.size[0]} × {seen.size[1]}"
        return Seen(**vars(seen) | {"mask_wrong": unlike})
    return Seen(**vars(seen) | {"values": _counted(values)})


def _picture(path: Path) -> Seen:
    try:
        with opened(path) as picture:
            size, mode = picture.size, picture.mode
            turned = picture.getexif().get(_ORIENTATION, 1) not in (0, 1)
            mode = f"{mode}, transparent" if "transparency" in picture.info else mode
            shown = as_rgb(picture)
            return Seen(size, mode, _digest(size, np.asarray(shown)), turned)
    except Exception as error:  # a damaged file can make a decoder raise anything
        return Seen(wrong=reason(error))


def _inside(text: str, path: Path) -> str:
    """The reason alone, of the line a refusal is."""
    return text.removeprefix(f"cannot read the mask {path} (").removesuffix("); replace or remove the file")


def _digest(size: tuple[int, int], pixels: NDArray[np.uint8]) -> bytes:
    """Of an image's pixels (H, W, 3): equal for exact copies, whatever format they are in."""
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16, person=b"%dx%d" % size).digest()


def _counted(values: NDArray[np.uint8]) -> Counts:
    return np.bincount(values.ravel(), minlength=VOID + 1)
