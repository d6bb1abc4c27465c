"""A contact sheet: one image under every corruption, clean and at five severities."""
# B images, S side

from __future__ import annotations

import numpy as np
from PIL import Image

from antishortcut.data import contact_sheet as sheets
from antishortcut.data.corruptions.constants import SEVERITIES
from antishortcut.data.corruptions.copies import Copies
from antishortcut.data.corruptions.noise import Bytes
from antishortcut.data.image_io import fit, read
from antishortcut.data.loader import MARGIN
from antishortcut.types import ImageSet


def striking(images: Bytes) -> int:
    """Which of the images (B, S, S, 3) to show: one of much contrast, neither dark nor pale nor of one colour."""
    flat = images.reshape(len(images), -1, 3).astype(np.float32)
    spread, tint = flat.std(axis=(1, 2)), abs(flat.mean(axis=1) - 127).mean(axis=1)  # (B,)
    return int((spread - tint).argmax())


def contact_sheet(copies: Copies, clean: Bytes, at: int = 0) -> Image.Image:
    """Rows are corruptions, columns the clean image (S, S, 3) and severities 1 to 5 of image number `at`."""
    columns = ["clean", *(f"severity {severity}" for severity in SEVERITIES)]
    rows = [
        (name, [Image.fromarray(clean), *(_picture(copies, name, severity, at) for severity in SEVERITIES)])
        for name in copies.names
    ]
    return sheets.contact_sheet(columns, rows)


def _picture(copies: Copies, name: str, severity: int, at: int) -> Image.Image:
    images = copies.part(name, severity)
    if isinstance(images, ImageSet):
        return Image.fromarray(images.image[at].permute(1, 2, 0).numpy())
    return fit(read(images.paths[at]), copies.side, MARGIN)
