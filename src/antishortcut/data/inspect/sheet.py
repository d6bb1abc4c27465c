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
from antishortcut.data.image_io import read
from antishortcut.data.inspect.scan import Finding, ImageFacts
from antishortcut.data.loader import Loader
from antishortcut.data.segmentation import NO_CLASS, one_small_size, read_pair
from antishortcut.data.splits import limited, take
from antishortcut.errors import UserError
from antishortcut.types import VOID, AnySet, FileSet, ImageSet, is_dense

MOST, EPOCHS = 12, 3  # images, views of each
Bytes = NDArray[np.uint8]


def contact_sheet(
    finding: Finding, facts: Sequence[ImageFacts], augment: str, seed: int = 0, colours: Sequence[str] = ()
) -> Image.Image:
    """Training images that can be read, spread over the classes; masks in these colours, void black."""
    train, side = finding.parts["train"], finding.image_size
    good = [at for at, image in enumerate(facts) if _usable(train, image)]
    if not good:
        raise UserError("no training image can be read, so there is nothing to draw")
    usable = take(train, torch.tensor(good))
    chosen = limited(usable, MOST, seed)
    paint = np.zeros((VOID + 1, 3), dtype=np.uint8)
    for number, colour in enumerate(colours):
        paint[number] = ImageColor.getrgb(colour)[:3]
    on_disk = isinstance(train, FileSet) and is_dense(train) and one_small_size(usable) is None  # type: ignore[arg-type]
    views = _views(chosen if on_disk else held(chosen, side, None), side, augment, seed, paint)
    rows, present = [], set[int]()
    for at in range(len(chosen)):
        if isinstance(chosen, ImageSet):
            picture = Image.fromarray(np.ascontiguousarray(chosen.image[at].permute(1, 2, 0).numpy()))
            name = f"image {at}"
        else:
            picture, name = read(chosen.paths[at]), chosen.paths[at].name
        row = [picture, *(epoch[at] for epoch in views)]
        if is_dense(chosen):
            label = chosen.label[at].numpy() if isinstance(chosen, ImageSet) else read_pair(chosen, at)[1]  # (H, W)
            row.insert(1, Image.fromarray(paint[label]))
            present |= set(np.unique(label).tolist())
        else:
            name = finding.classes[int(chosen.label[at])]
        rows.append((f"{name}, {picture.width} x {picture.height}", row))
    mask = ["its mask"] if is_dense(chosen) else []
    columns = ["as it is", *mask, *(f"epoch {number + 1}" for number in range(EPOCHS))]
    shown = sorted(at for at in present if at < min(len(finding.classes), len(colours)))
    title = f"{finding.name}: training images, and what networks see after {augment}, {side} x {side}"
    legend = {finding.classes[at]: colours[at] for at in shown}
    return sheets.contact_sheet(columns, rows, title=title, across=2, legend=legend)


def _usable(images: AnySet, facts: ImageFacts) -> bool:
    """Whether image and mask can be read and all values of the mask have a meaning; training stops at others."""
    if facts.wrong or facts.mask_wrong:
        return False
    if facts.values is None or isinstance(images, ImageSet) or images.lookup is None:
        return True
    return not (images.lookup.numpy()[facts.values > 0] == NO_CLASS).any()


def _views(images: AnySet, side: int, augment: str, seed: int, paint: Bytes) -> list[list[Image.Image]]:
    """The images of every epoch as the training loader makes them, masks laid over them."""
    loader = Loader(images, batch=len(images), seed=seed, image_size=side, augment=augment, shuffle=False, workers=0)
    epochs = []
    for epoch in range(EPOCHS):
        views: list[Image.Image] = []
        for batch in loader.epoch(epoch):
            pixels = (batch.image * 255).round().byte().permute(0, 2, 3, 1).numpy()  # (n, H, W, 3)
            if is_dense(images):
                pixels = ((pixels.astype(np.uint16) + paint[batch.label.byte().numpy()]) // 2).astype(np.uint8)
            views += map(Image.fromarray, np.ascontiguousarray(pixels))
        epochs.append(views)
    return epochs
