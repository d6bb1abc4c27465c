"""From mask files to labels, beside their images: one number a pixel, looked up in the set's own table."""
# N images, H × W pixels

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFile

from antishortcut.data.image_io import cached, in_threads, opened, read, reason, size_of
from antishortcut.errors import UserError
from antishortcut.types import VOID, FileSet, ImageSet

NO_CLASS = 254  # in a lookup: what no mask may hold
MOST = NO_CLASS  # classes that fit beside it and VOID
SMALL = 2**16  # pixels of an image up to which a set may move into memory …
ROOM = 2**30  # … if all its images are of one size and need no more bytes than this

_PLAIN = {"1", "L", "P", "I", "I;16", "I;16B", "I;16L"}  # one whole number a pixel; of a palette, its place there
_STRETCHED = {"L;2": 85, "L;4": 17}  # how many times Pillow makes grey of two and four bits lighter


def read_values(path: Path) -> NDArray[np.uint8]:
    """The numbers in a mask file, (H, W)."""
    try:
        with opened(path) as picture:
            if picture.mode not in _PLAIN:
                raise ValueError(f"its pixels are {picture.mode}, not one whole number each")
            factor = _factor(picture)
            values = np.asarray(picture) // factor if factor > 1 else np.asarray(picture)  # (H, W)
        if values.dtype.itemsize > 1 and (values.min() < 0 or values.max() > VOID):
            raise ValueError(f"values from {values.min()} to {values.max()}, but a class is below {MOST}")
        return values.astype(np.uint8)
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise UserError(f"cannot read the mask {path} ({reason(error)}); replace or remove the file") from None


def _factor(picture: ImageFile.ImageFile) -> int:
    """By how much its numbers will be multiplied when they are read: right for a picture's grey, wrong for classes."""
    if not picture.tile:
        return 1
    form = picture.tile[0][3]  # a plain tuple before Pillow 11
    kind, *more = (form,) if isinstance(form, str) else form or ("",)
    if picture.format == "PPM" and more and more[0] not in (2**8 - 1, 2**16 - 1):
        raise ValueError(f"its maximum is {more[0]}, by which values would be scaled; save it with 255 as maximum")
    if picture.format in ("PNG", "TIFF") and picture.mode == "L" and kind not in ("L", *_STRETCHED):
        raise ValueError(f"its grey is stored as {kind}, not as plain numbers; save it with 8 bits")
    return _STRETCHED.get(str(kind), 1)


def read_pair(files: FileSet, at: int) -> tuple[Image.Image, NDArray[np.uint8]]:
    """An image as RGB and its labels (H, W), VOID where it has none."""
    picture, path = read(files.paths[at]), files.masks[at]
    values = read_values(path)  # (H, W)
    if values.shape != picture.size[::-1]:
        (height, width), (wide, high) = values.shape, picture.size
        raise UserError(f"the mask {path} has {width} × {height} pixels, its image {files.paths[at]} {wide} × {high}")
    if files.lookup is None:
        return picture, values
    table = files.lookup.numpy()  # (256,)
    label: NDArray[np.uint8] = table[values]  # (H, W)
    if (label == NO_CLASS).any():
        known, void = np.flatnonzero(table < NO_CLASS), np.flatnonzero(table == VOID)
        raise UserError(
            f"the mask {path} has the value {values[label == NO_CLASS][0]}, which is no class: "
            f"they are {known[0]} to {known[-1]}, and {' or '.join(map(str, void))} where a pixel has none"
        )
    return picture, label


def one_small_size(files: FileSet) -> tuple[int, int] | None:
    """(H, W) of all images if they are alike and small enough to move into memory. Big ones are not looked through."""
    width, height = size_of(files.paths[0])
    if height * width > SMALL or 4 * height * width * len(files) > ROOM:
        return None
    return (height, width) if all(size_of(path) == (width, height) for path in files.paths) else None


def decode_pairs(files: FileSet, size: tuple[int, int], root: Path | None) -> ImageSet:
    """Bring a dense set of one size (H, W) into memory, through the cache that pictures.decode uses."""
    shape = (len(files), 4, *size)  # colours, then the label
    table = b"" if files.lookup is None else files.lookup.numpy().tobytes()
    mark = f"pairs 2 {size} {hashlib.sha256(table).hexdigest()}"

    def make() -> NDArray[np.uint8]:
        out = np.empty(shape, dtype=np.uint8)  # (N, 4, H, W)

        def fill(at: int) -> None:
            picture, label = read_pair(files, at)
            out[at, :3] = np.asarray(picture).transpose(2, 0, 1)
            out[at, 3] = label

        in_threads(fill, len(files))
        return out

    array = cached(root, (*files.paths, *files.masks), mark, shape, make)
    pixels = torch.from_numpy(array)
    return ImageSet(pixels[:, :3], pixels[:, 3], files.cues)
