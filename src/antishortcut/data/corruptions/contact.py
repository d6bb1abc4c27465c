"""A contact sheet: one image under every corruption, clean and at five severities."""
# B images, S side

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ...types import ImageSet
from ..loading import MARGIN
from ..pictures import fit, read
from .constants import SEVERITIES
from .noise import Bytes
from .opening import Copies

LEFT, TOP, GAP = 190, 34, 4  # room for names, for severities, between pictures
SMALL, LARGE = 128, 168  # pixels of a picture on the sheet, for images up to 64 and beyond


def striking(images: Bytes) -> int:
    """Which of the images (B, S, S, 3) to show: one of much contrast, neither dark nor pale nor of one colour."""
    flat = images.reshape(len(images), -1, 3).astype(np.float32)
    spread, tint = flat.std(axis=(1, 2)), abs(flat.mean(axis=1) - 127).mean(axis=1)  # (B,)
    return int((spread - tint).argmax())


def contact_sheet(copies: Copies, clean: Bytes, at: int = 0) -> Image.Image:
    """Rows are corruptions, columns the clean image (S, S, 3) and severities 1 to 5 of image number `at`."""
    cell = SMALL if copies.side <= 64 else LARGE
    width = LEFT + (1 + len(SEVERITIES)) * (cell + GAP)
    sheet = Image.new("RGB", (width, TOP + len(copies.names) * (cell + GAP)), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(18)
    for column, title in enumerate(["clean", *(f"severity {severity}" for severity in SEVERITIES)]):
        pen.text((LEFT + column * (cell + GAP) + cell // 2, TOP // 2), title, "black", font, anchor="mm")
    for row, name in enumerate(copies.names):
        top = TOP + row * (cell + GAP)
        pen.text((LEFT - 10, top + cell // 2), name.replace("_", " "), "black", font, anchor="rm")
        pictures = [Image.fromarray(clean), *(_picture(copies, name, severity, at) for severity in SEVERITIES)]
        for column, picture in enumerate(pictures):
            sampling = Image.Resampling.NEAREST if copies.side <= cell else Image.Resampling.LANCZOS
            sheet.paste(picture.resize((cell, cell), sampling), (LEFT + column * (cell + GAP), top))
    return sheet


def _picture(copies: Copies, name: str, severity: int, at: int) -> Image.Image:
    images = copies.part(name, severity)
    if isinstance(images, ImageSet):
        return Image.fromarray(images.image[at].permute(1, 2, 0).numpy())
    return fit(read(images.paths[at]), copies.side, MARGIN)
