"""Scenes as pictures for other documents: figures/scenes-1.png …, four scenes each, with their set and a legend."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import PIL
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from antishortcut.folder import replacing
from antishortcut.lettering import cut, laid
from antishortcut.report.scenes import Column, Gallery
from antishortcut.report.shots import Shot, opened

LOOK = 2  # raise it when drawings change
WIDE = 224  # pixels of a scene, or the next multiple of its own where that is less
TALL = 1.25  # how much higher than wide a scene may be
GAP, MARGIN, LINE, TEXT = 6, 16, 26, 15
INK, QUIET, EMPTY = "#1c2126", "#5b6670", "#eceff2"
MARK = "antishortcut"  # key of the checksum in a picture


def stills(galleries: Sequence[Gallery]) -> Iterator[tuple[str, Gallery, list[int]]]:
    """Name, gallery and scenes of each picture."""
    for number, gallery in enumerate(galleries, start=1):
        for part, scenes in enumerate(gallery.parts, start=1):
            yield f"scenes-{part}" if number == 1 else f"scenes-{number}-{part}", gallery, scenes


def draw_scenes(galleries: Sequence[Gallery], folder: Path) -> None:
    """figures/<name>.png, drawn anew only if something changed."""
    for name, gallery, scenes in stills(galleries):
        path, mark = folder / f"{name}.png", _mark(gallery, scenes)
        if _marked(path) != mark:
            info = PngInfo()
            info.add_text(MARK, mark)
            with replacing(path) as file:
                draw_still(gallery, scenes).save(file, format="PNG", pnginfo=info)


def _mark(gallery: Gallery, scenes: list[int]) -> str:
    content = hashlib.sha256(
        json.dumps([LOOK, PIL.__version__, gallery.title, scenes, gallery.artifact.classes]).encode()
    )
    content.update("".join(gallery.artifact.colours).encode())
    for column in gallery.first:
        content.update(f"\n{column.title}\n".encode(errors="replace"))
        for at in scenes:
            content.update(hashlib.sha256(column.shots[at].data if at in column.shots else b"").digest())
    return content.hexdigest()


def _marked(path: Path) -> str | None:
    try:
        with Image.open(path, formats=["PNG"]) as image:
            return str(image.info.get(MARK))
    except (OSError, ValueError, SyntaxError):
        return None


def draw_still(gallery: Gallery, scenes: Sequence[int]) -> Image.Image:
    """The set, a row per scene, a column per kind of picture, a legend below."""
    font = ImageFont.load_default(TEXT)
    columns = gallery.first
    side = _side(gallery.width)
    heights = [_height(columns, at, side) for at in scenes]
    number = round(font.getlength("00")) + 8  # room for a scene's number
    width = 2 * MARGIN + number + len(columns) * (side + GAP) - GAP
    key = laid(gallery.key(scenes, columns).items(), width - 2 * MARGIN, font, 20, 18)
    below = MARGIN + 2 * LINE + sum(heights) + GAP * len(heights)
    page = Image.new("RGB", (width, below + GAP + LINE * len(key) + MARGIN), "white")
    pen = ImageDraw.Draw(page)
    pen.text((MARGIN, MARGIN), cut(gallery.title, width - 2 * MARGIN, font), INK, font)
    for place, column in enumerate(columns):
        left = MARGIN + number + place * (side + GAP)
        pen.text((left + side / 2, MARGIN + LINE), cut(column.title, side, font), INK, font, anchor="ma")
    top = MARGIN + 2 * LINE
    for at, height in zip(scenes, heights, strict=True):
        pen.text((MARGIN + number - 8, top + height / 2), str(at + 1), QUIET, font, anchor="rm")
        for place, column in enumerate(columns):
            left = MARGIN + number + place * (side + GAP)
            if at in column.shots:
                page.paste(_scaled(column.shots[at], side, height), (left, top))
            else:
                pen.rectangle((left, top, left + side - 1, top + height - 1), fill=EMPTY)
        top += height + GAP
    for line, words in enumerate(key):
        for left, word, paint in words:
            up = below + GAP + line * LINE
            pen.rectangle((MARGIN + left, up + 3, MARGIN + left + 13, up + 16), fill=paint)
            pen.text((MARGIN + left + 20, up), word, INK, font)
    return page


def _side(own: int) -> int:
    """How wide scenes are drawn: small ones a whole number of times, so that pixels stay square."""
    return own * max(1, round(WIDE / own)) if own <= WIDE else WIDE


def _height(columns: Sequence[Column], at: int, side: int) -> int:
    """Of a row: as its pictures are, within limits."""
    shots = [column.shots[at] for column in columns if at in column.shots]
    return min(max((round(shot.height * side / shot.width) for shot in shots), default=side), round(side * TALL))


def _scaled(shot: Shot, side: int, height: int) -> Image.Image:
    """Whole, in the middle of its place."""
    scale = min(side / shot.width, height / shot.height)
    size = max(1, round(shot.width * scale)), max(1, round(shot.height * scale))
    way = Image.Resampling.NEAREST if shot.kind == "PNG" else Image.Resampling.BICUBIC
    picture = opened(shot.data, shot.kind).convert("RGB").resize(size, way)
    place = Image.new("RGB", (side, height), EMPTY)
    place.paste(picture, ((side - size[0]) // 2, (height - size[1]) // 2))
    return place
