"""A contact sheet: training images as they are, and beside each what training makes of it in three epochs."""
# n images on the sheet, H × W pixels

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ...errors import UserError
from ...lettering import cut, laid, legible
from ...types import VOID, AnySet, FileSet, ImageSet, is_dense
from ..loading import Loader
from ..masks import NO_CLASS, one_small_size, read_pair
from ..parts import limited, take
from ..pictures import read
from ..sources import held
from .finding import Finding
from .looking import Seen

TEXT = 13  # pixels
TILE, GAP, LINE, HEAD, MARGIN = 128, 6, 18, 22, 12  # of a picture, between, of a caption, of the titles, around
MOST, EPOCHS, ACROSS = 12, 3, 2  # rows, views of each, rows beside each other
INK, QUIET, EMPTY = "#1c2126", "#5b6670", "#eceff2"  # Pillow's own font has no ×
Bytes = NDArray[np.uint8]


class Row(NamedTuple):
    caption: str
    note: str
    pictures: list[Image.Image]


def contact_sheet(
    finding: Finding, seen: Sequence[Seen], augment: str, seed: int = 0, colours: Sequence[str] = ()
) -> Image.Image:
    """Images of the training set that can be read, spread over the classes; masks in these colours, void black."""
    train = finding.parts["train"]
    good = [at for at, one in enumerate(seen) if one.readable and _labelled(train, one)]
    if not good:
        raise UserError("no training image can be read, so there is nothing to draw")
    whole = take(train, torch.tensor(good))
    chosen = limited(whole, MOST, seed)
    paint = _paint(colours)
    rows = _rows(finding, chosen, _views(finding, whole, chosen, augment, seed), paint)
    titles = ["as it is", *(["its mask"] if finding.dense else []), *(f"epoch {n + 1}" for n in range(EPOCHS))]
    side = finding.image_size
    title = f"{finding.name}: training images, and what networks see after {augment}, {side} x {side}"
    shown = sorted({int(value) for row in _labels(chosen) for value in np.unique(row)} - {VOID}) if colours else []
    return _page(title, titles, rows, [(finding.classes[at], colours[at]) for at in shown if at < len(finding.classes)])


def _labelled(images: AnySet, one: Seen) -> bool:
    """Whether all that its mask holds has a meaning; training stops at others."""
    if one.values is None or isinstance(images, ImageSet) or images.lookup is None:
        return True
    return not (images.lookup.numpy()[one.values > 0] == NO_CLASS).any()


def _views(
    finding: Finding, whole: AnySet, chosen: AnySet, augment: str, seed: int
) -> list[list[tuple[Bytes, Bytes | None]]]:
    """Of every epoch, each image (H, W, 3) with its labels (H, W) if it has any: made by the loader of training."""
    loose = isinstance(whole, FileSet) and is_dense(whole) and one_small_size(whole) is None  # not moved into memory
    images = chosen if loose else held(chosen, finding.image_size, None)
    loader = Loader(
        images, batch=len(images), seed=seed, image_size=finding.image_size, augment=augment, shuffle=False, workers=0
    )
    epochs = []
    for epoch in range(EPOCHS):
        views: list[tuple[Bytes, Bytes | None]] = []
        for batch in loader.epoch(epoch):
            pixels = (batch.image * 255).round().byte().permute(0, 2, 3, 1).numpy()  # (n, H, W, 3)
            labels = batch.label.byte().numpy() if is_dense(chosen) else [None] * len(pixels)
            views += list(zip(pixels, labels, strict=True))
        epochs.append(views)
    return epochs


def _rows(finding: Finding, chosen: AnySet, epochs: list[list[tuple[Bytes, Bytes | None]]], paint: Bytes) -> list[Row]:
    rows, labels, font = [], _labels(chosen), ImageFont.load_default(TEXT)
    for at in range(len(chosen)):
        picture = _as_it_is(chosen, at)
        mask = [_tile(Image.fromarray(paint[labels[at]]), smooth=False)] if labels else []
        views = [_tile(Image.fromarray(_mixed(*views[at], paint))) for views in epochs]
        name = "" if isinstance(chosen, ImageSet) else chosen.paths[at].name
        if labels:
            caption = legible(name, font, f"image {at + 1}")
        else:
            number = int(chosen.label[at])
            caption = legible(finding.classes[number], font, f"class {number + 1} of {len(finding.classes)}")
        rows.append(Row(caption, f"{picture.width} x {picture.height}", [_tile(picture), *mask, *views]))
    return rows


def _labels(chosen: AnySet) -> list[Bytes]:
    """Maps of labels (H, W), where there are any."""
    if not is_dense(chosen):
        return []
    if isinstance(chosen, ImageSet):
        return list(chosen.label.numpy())
    return [read_pair(chosen, at)[1] for at in range(len(chosen))]


def _as_it_is(chosen: AnySet, at: int) -> Image.Image:
    if isinstance(chosen, ImageSet):
        return Image.fromarray(np.ascontiguousarray(chosen.image[at].permute(1, 2, 0).numpy()))
    return read(chosen.paths[at])


def _paint(colours: Sequence[str]) -> Bytes:
    """(256, 3): the colour of every label, void and what is no class black."""
    table = np.zeros((VOID + 1, 3), dtype=np.uint8)
    for at, colour in enumerate(colours):
        table[at] = tuple(bytes.fromhex(colour.removeprefix("#")))
    return table


def _mixed(pixels: Bytes, labels: Bytes | None, paint: Bytes) -> Bytes:
    """The image with its labels shining through, (H, W, 3)."""
    if labels is None:
        return np.ascontiguousarray(pixels)
    return ((pixels.astype(np.uint16) + paint[labels]) // 2).astype(np.uint8)


def _tile(picture: Image.Image, smooth: bool = True) -> Image.Image:
    """The whole picture in the middle of its place; small ones a whole number of times, so that pixels stay square."""
    scale = TILE / max(picture.size)
    scale = float(int(scale)) if scale >= 1 else scale
    width, height = (max(1, round(side * scale)) for side in picture.size)
    way = Image.Resampling.LANCZOS if smooth and scale < 1 else Image.Resampling.NEAREST
    place = Image.new("RGB", (TILE, TILE), EMPTY)
    place.paste(picture.resize((width, height), way), ((TILE - width) // 2, (TILE - height) // 2))
    return place


def _page(title: str, titles: Sequence[str], rows: Sequence[Row], key: Sequence[tuple[str, str]]) -> Image.Image:
    across = min(ACROSS, len(rows))
    step = len(titles) * (TILE + GAP) + 2 * MARGIN  # from a row to the one beside it
    down = -(-len(rows) // across)
    top, width = MARGIN + LINE + HEAD, across * step
    font = ImageFont.load_default(TEXT)
    legend = laid(key, width - 2 * MARGIN, font, 17, 16)
    below = top + down * (TILE + LINE + GAP)
    page = Image.new("RGB", (width, below + len(legend) * LINE + MARGIN), "white")
    pen = ImageDraw.Draw(page)
    pen.text((MARGIN, MARGIN), cut(title, width - 2 * MARGIN, font), INK, font)
    for number, row in enumerate(rows):
        left, up = MARGIN + number % across * step, top + number // across * (TILE + LINE + GAP)
        for column, picture in enumerate(row.pictures):
            page.paste(picture, (left + column * (TILE + GAP), up))
            if number < across:
                pen.text((left + column * (TILE + GAP), top - HEAD + 2), titles[column], QUIET, font)
        room = len(titles) * (TILE + GAP) - GAP
        pen.text((left, up + TILE + 1), cut(f"{row.caption}  ·  {row.note}", room, font), INK, font)
    for line, words in enumerate(legend):
        for left, word, colour in words:
            up = below + line * LINE
            pen.rectangle((MARGIN + left, up + 3, MARGIN + left + 11, up + 14), fill=colour)
            pen.text((MARGIN + left + 17, up), word, INK, font)
    return page
