"""Open and decode every file once: its properties, or why it cannot be read."""
# N images, H × W pixels

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antishortcut.data.image_io import as_rgb, in_threads, opened, reason
from antishortcut.data.masks import read_values
from antishortcut.errors import UserError
from antishortcut.types import VOID, AnySet, FileSet, ImageSet, is_dense

_ORIENTATION = 0x0112  # of EXIF: 1 is upright
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Seen:
    """One image, and its mask where it has one."""

    size: tuple[int, int] = (0, 0)  # width, height
    mode: str = ""  # how its pixels are stored; empty for images in memory
    digest: bytes = b""  # of its pixels before they are resized
    turned: bool = False  # whether EXIF asks for a rotation, which training does not do
    wrong: str = ""  # why it cannot be read
    values: Counts | None = None  # (256,) pixels of every value in its mask
    mask_wrong: str = ""

    @property
    def readable(self) -> bool:
        return not self.wrong and not self.mask_wrong


def look(images: AnySet, tell: Callable[[], None] = lambda: None) -> list[Seen]:
    """All images of a set, those on disk decoded in threads; `tell` is called after each of these."""
    if isinstance(images, ImageSet):
        size = (int(images.image.shape[3]), int(images.image.shape[2]))
        pixels, label = images.image.numpy().transpose(0, 2, 3, 1), images.label.numpy()
        dense = is_dense(images)
        return [
            Seen(size, digest=_digest(pixels[at]), values=_counted(label[at]) if dense else None)
            for at in range(len(images))
        ]
    seen = [Seen()] * len(images)

    def fill(at: int) -> None:
        seen[at] = _file(images, at)
        tell()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about odd files that it reads all the same
        in_threads(fill, len(images))
    return seen


def _file(files: FileSet, at: int) -> Seen:
    seen = _picture(files.paths[at])
    if not files.masks:
        return seen
    path = files.masks[at]
    try:
        values = read_values(path)  # (H, W)
    except UserError as error:
        why = str(error).removeprefix(f"cannot read the mask {path} (").removesuffix("); replace or remove the file")
        return replace(seen, mask_wrong=why)
    height, width = values.shape
    if not seen.wrong and (width, height) != seen.size:
        return replace(seen, mask_wrong=f"{width} × {height} pixels, its image {seen.size[0]} × {seen.size[1]}")
    return replace(seen, values=_counted(values))


def _picture(path: Path) -> Seen:
    try:
        with opened(path) as picture:
            turned = picture.getexif().get(_ORIENTATION, 1) not in (0, 1)
            mode = f"{picture.mode}, transparent" if "transparency" in picture.info else picture.mode
            return Seen(picture.size, mode, _digest(np.asarray(as_rgb(picture))), turned)
    except Exception as error:  # a damaged file can make a decoder raise anything
        return Seen(wrong=reason(error))


def _digest(pixels: NDArray[np.uint8]) -> bytes:
    """Of an image's pixels (H, W, 3): equal for exact copies, whatever their format."""
    person = b"%dx%d" % pixels.shape[:2]
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16, person=person).digest()


def _counted(values: NDArray[np.uint8]) -> Counts:
    return np.bincount(values.ravel(), minlength=VOID + 1)
