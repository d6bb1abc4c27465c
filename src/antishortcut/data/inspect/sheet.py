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
from antishortcut.data.inspect.scan import Finding, Seen
from antishortcut.data.loader import Loader
from antishortcut.data.segmentation import NO_CLASS, one_small_size, read_pair
from antishortcut.data.splits import limited, take
from antishortcut.errors import UserError
from antishortcut.types import VOID, AnySet, FileSet, ImageSet, is_dense

MOST, EPOCHS = 12, 3  # images, views of each
Bytes = NDArray[np.uint8]


def contact_sheet(
    finding: Finding, outputs: Sequence[Seen], augment: str, seed: int = 0, colours: Sequence[str] = ()
) -> Image.Image:
    """Training images that can be read, spread over the classes; masks in these colours, void black."""
    train, side = finding.parts["train"], finding.image_size
    good = [at for at, image in enumerate(outputs) if image.readable and _has_classes(train, image)]
    if not good:
        raise UserError("no training image can be read, so there is nothing to draw")
    whole = take(train, torch.tensor(good))
    chosen = limited(whole, MOST, seed)
    paint = np.zeros((VOID + 1, 3), dtype=np.uint8)
    paint[: len(colours)] = [ImageColor.getrgb(colour) for colour in colours] if colours else paint[:0]
    labels = _labels(chosen)
    views = _views(whole, chosen, side, augment, seed, paint)
    rows = []
    for at in range(len(chosen)):
        picture = _picture(chosen, at)
        mask = [Image.fromarray(paint[labels[at]])] if labels else []
        name = str(chosen.paths[at].name) if isinstance(chosen, FileSet) else f"image {at}"
        caption = name if labels else finding.classes[int(chosen.label[at])]
        row = [picture, *mask, *(epoch[at] for epoch in views)]
        rows.append((f"{caption}, {picture.width} x {picture.height}", row))
    columns = ["as it is", *(["its mask"] if labels else []), *(f"epoch {number + 1}" for number in range(EPOCHS))]
    present = sorted({int(value) for label in labels for value in np.unique(label)} - {VOID})
    legend = {finding.classes[at]: colours[at] for at in present if at < min(len(finding.classes), len(colours))}
    title = f"{finding.name}: training images, and what networks see after {augment}, {side} x {side}"
    return sheets.contact_sheet(columns, rows, title=title, across=2, legend=legend)


def _has_classes(images: AnySet, outputs: Seen) -> bool:
    """Whether all values of its mask have a meaning; training stops at others."""
    if outputs.values is None or isinstance(images, ImageSet) or images.lookup is None:
        return True
    return not (images.lookup.numpy()[outputs.values > 0] == NO_CLASS).any()


def _views(whole: AnySet, chosen: AnySet, side: int, augment: str, seed: int, paint: Bytes) -> list[list[Image.Image]]:
    """The images of every epoch as the loader of training makes them, with their labels shining through."""
    on_disk = isinstance(whole, FileSet) and is_dense(whole) and one_small_size(whole) is None
    images = chosen if on_disk else held(chosen, side, None)
    loader = Loader(
        images, batch=len(images), seed=seed, image_size=side, augment=augment, shuffle=False, workers=0
    )  # fmt: skip
    epochs = []
    for epoch in range(EPOCHS):
        views: list[Image.Image] = []
        for batch in loader.epoch(epoch):
            pixels = (batch.image * 255).round().byte().permute(0, 2, 3, 1).numpy()  # (n, H, W, 3)
            if is_dense(chosen):
                pixels = ((pixels.astype(np.uint16) + paint[batch.label.byte().numpy()]) // 2).astype(np.uint8)
            views += map(Image.fromarray, np.ascontiguousarray(pixels))
        epochs.append(views)
    return epochs


def _labels(chosen: AnySet) -> list[Bytes]:
    """Maps of labels (H, W), if there are any."""
    if not is_dense(chosen):
        return []
    if isinstance(chosen, ImageSet):
        return list(chosen.label.numpy())
    return [read_pair(chosen, at)[1] for at in range(len(chosen))]


def _picture(chosen: AnySet, at: int) -> Image.Image:
    if isinstance(chosen, ImageSet):
        return Image.fromarray(np.ascontiguousarray(chosen.image[at].permute(1, 2, 0).numpy()))
    return read(chosen.paths[at])
