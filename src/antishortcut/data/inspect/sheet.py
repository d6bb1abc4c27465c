"""A contact sheet: training images as they are, and beside each what training makes of it in three epochs."""
# n images on the sheet, H × W pixels

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageColor

from antishortcut.data import contact_sheet as sheets
from antishortcut.data.datasets import held
from antishortcut.data.image_io import picture_at
from antishortcut.data.inspect.scan import Finding, ImageFacts
from antishortcut.data.loader import Loader
from antishortcut.data.segmentation import read_pair
from antishortcut.data.splits import limited, take
from antishortcut.errors import UserError
from antishortcut.types import VOID, AnySet, FileSet, is_dense

MOST, EPOCHS = 12, 3  # images, views of each
Bytes = NDArray[np.uint8]


def contact_sheet(
    finding: Finding, facts: Sequence[ImageFacts], augment: str, seed: int = 0, colours: Sequence[str] = ()
) -> Image.Image:
    """Training images that can be read, spread over the classes; masks in these colours, void black."""
    good = [at for at, image in enumerate(facts) if not image.wrong]
    if not good:
        raise UserError("no training image can be read, so there is nothing to draw")
    chosen = limited(take(finding.parts["train"], torch.tensor(good)), MOST, seed)
    paint = np.zeros((VOID + 1, 3), dtype=np.uint8)
    for number, colour in enumerate(colours):
        paint[number] = ImageColor.getrgb(colour)[:3]
    side = finding.image_size
    views = _views(held(chosen, side, None), side, augment, seed, paint)
    rows, present = [], set[int]()
    for at in range(len(chosen)):
        if finding.dense:
            picture, label = read_pair(chosen, at)
            name = chosen.paths[at].name if isinstance(chosen, FileSet) else f"image {at}"
            row = [picture, Image.fromarray(paint[label]), *views[at]]
            present |= set(np.unique(label).tolist())
        else:
            picture, name = picture_at(chosen, at), finding.classes[int(chosen.label[at])]
            row = [picture, *views[at]]
        rows.append((f"{name}, {picture.width} x {picture.height}", row))
    mask = ["its mask"] if finding.dense else []
    columns = ["as it is", *mask, *(f"epoch {number + 1}" for number in range(EPOCHS))]
    legend = {finding.classes[at]: colours[at] for at in sorted(present) if at < len(colours)}
    title = f"{finding.name}: training images, and what networks see after {augment}, {side} x {side}"
    return sheets.contact_sheet(columns, rows, title=title, across=2, legend=legend)


def _views(images: AnySet, side: int, augment: str, seed: int, paint: Bytes) -> list[list[Image.Image]]:
    """Every image in every epoch as the training loader makes it, its mask laid over it."""
    loader = Loader(images, batch=len(images), seed=seed, image_size=side, augment=augment, shuffle=False, workers=0)
    views: list[list[Image.Image]] = [[] for _ in range(len(images))]
    for batch in (batch for epoch in range(EPOCHS) for batch in loader.epoch(epoch)):
        pixels = (batch.image * 255).round().byte().permute(0, 2, 3, 1).numpy()  # (n, H, W, 3)
        if is_dense(images):
            pixels = ((pixels.astype(np.uint16) + paint[batch.label.byte().numpy()]) // 2).astype(np.uint8)
        for at, view in zip(batch.index.tolist(), np.ascontiguousarray(pixels), strict=True):
            views[at].append(Image.fromarray(view))
    return views
