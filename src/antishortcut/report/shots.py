"""A picture of a scene from outside → checked, and ready to stand in a page."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image

PICTURE = 2**20  # bytes of a picture
PICTURES = 32 * 2**20  # bytes of all pictures of a page
SIDE = 2_048  # pixels
KINDS = {".jpg": ("JPEG", b"\xff\xd8\xff"), ".png": ("PNG", b"\x89PNG\r\n\x1a\n")}  # how they begin


@dataclass(frozen=True)
class Shot:
    """A picture, ready to stand in the page."""

    kind: str  # JPEG or PNG
    data: bytes
    width: int
    height: int
    colours: tuple[str, ...]  # of a mask, the largest area first

    @property
    def uri(self) -> str:
        return f"data:image/{self.kind.lower()};base64,{base64.b64encode(self.data).decode()}"


def open_shot(artifacts: Path, name: str, left: int = PICTURES) -> Shot:
    """A JPEG, or a PNG with a palette, that can be read to its end; nothing large, nothing from another folder."""
    path = artifacts / name
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(artifacts)):
        raise ValueError("a picture outside its artifacts folder is not shown")
    size = path.stat().st_size
    if not path.is_file():
        raise ValueError("not a file")
    if size > min(PICTURE, left):
        raise ValueError(f"a picture of {size >> 10} kB is too large to be embedded")
    data = path.read_bytes()
    kind, begin = KINDS[path.suffix]
    if not data.startswith(begin):
        raise ValueError(f"no {kind}")
    with opened(data, kind) as image:
        if kind == "PNG" and image.mode != "P":
            raise ValueError("a mask without a palette")
        return Shot(kind, data, *image.size, _areas(image) if kind == "PNG" else ())


def opened(data: bytes, kind: str) -> Image.Image:
    """The picture, read to its end."""
    try:
        image = Image.open(BytesIO(data), formats=[kind])
        if max(image.size) > SIDE:
            raise ValueError(f"more than {SIDE} pixels wide or high")
        image.load()
    except ValueError:
        raise
    except Exception as error:  # whatever a decoder makes of bytes from outside
        raise ValueError(f"damaged ({type(error).__name__})") from None
    return image


def _areas(mask: Image.Image) -> tuple[str, ...]:
    """The colours of a mask, the largest area first."""
    counts = [(count, at) for at, count in enumerate(mask.histogram()) if count]
    paint = bytes(mask.getpalette("RGB") or ())
    order = [at for _, at in sorted(counts, key=lambda each: (-each[0], each[1]))]
    return tuple(dict.fromkeys(f"#{paint[3 * at : 3 * at + 3].hex():0<6}" for at in order))
