"""Frost to lay over images: crystals grown here, or photographs from a folder.

The official scripts use photographs that are not part of this package, nor may be; see crystals.py for ours.
"""
# H × W pixels of a texture

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ...errors import UserError
from ..pictures import read
from .crystals import HABITS, texture
from .noise import Bytes, Floats

SCALES: dict[int, float] = {32: 0.2, 64: 0.3, 224: 1.0}  # by table: textures are shrunk as much by the official scripts
FROST = "procedural-2"  # the frost grown here, and its version
TEXTURES = 5  # the official scripts have six files and draw from the first five
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}


@dataclass(frozen=True)
class Frost:
    """Textures, shrunk to suit the images."""

    textures: tuple[Bytes, ...]  # each (H, W, 3)


@lru_cache(maxsize=3)
def grown_frost(table: int) -> Frost:
    """The textures made here, for the constants of 32, 64 or 224 pixels."""
    return Frost(tuple(shrunk(texture(number), SCALES[table]) for number in range(len(HABITS))))


def read_frost(folder: Path, table: int, side: int) -> Frost:
    """The first five pictures of a folder by name, for the constants of 32, 64 or 224 pixels."""
    textures = []
    for path in _pictures(folder):
        picture = shrunk(np.asarray(read(path)), SCALES[table])  # (H, W, 3)
        if min(picture.shape[:2]) <= side:
            least = int((side + 2) / SCALES[table])
            raise UserError(f"{path} is too small to cut frost of {side} pixels from; it needs {least} pixels a side")
        textures.append(picture)
    return Frost(tuple(textures))


def frost_mark(folder: Path | None) -> str:
    """What copies say of their frost: FROST, or sixteen hex digits of the pictures that are used."""
    if folder is None:
        return FROST
    digest = hashlib.sha256()
    for path in _pictures(folder):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _pictures(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"no folder {folder} of frost pictures")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)[:TEXTURES]
    if not paths:
        raise UserError(f"no pictures in {folder}; frost textures are .png or .jpg files")
    return paths


def shrunk(texture: Bytes, scale: float) -> Bytes:
    """A texture (H, W, 3) made smaller as OpenCV's resize does by default: bilinear, without smoothing first."""
    if scale == 1:
        return texture
    values: Floats = texture.astype(np.float64)
    for axis in (0, 1):
        length = values.shape[axis]
        place = ((np.arange(round(length * scale)) + 0.5) / scale - 0.5).clip(0, length - 1)
        low = np.minimum(place.astype(int), length - 2)
        share = np.expand_dims(place - low, (1, 2) if axis == 0 else (0, 2))
        values = values.take(low, axis) * (1 - share) + values.take(low + 1, axis) * share
    return np.rint(values).astype(np.uint8)
