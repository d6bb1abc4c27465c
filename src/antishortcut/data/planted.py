"""A shortcut planted in any set of labelled images: a cue that mostly agrees with the class, and in a test lies.

    shortcut:cifar100-coarse?kind=patch&rho=0.9

The cue of an image is cues["planted"], the number of the class whose mark it carries, or −1. Marks and their places are
pure functions of (seed, split, index) and of the pixels, and look alike mirrored, since training mirrors images.
"""
# N images, B images painted at once, H × W pixels, K classes

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import parse_qsl, urlencode

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from antishortcut.data import contact_sheet as sheets
from antishortcut.data import rng
from antishortcut.data.arrow import SETTINGS as HF_SETTINGS
from antishortcut.data.image_io import picture_at
from antishortcut.data.readers import RawDataset
from antishortcut.data.splits import limited
from antishortcut.errors import UserError, suggest
from antishortcut.types import AnySet, is_dense, lacks_labels

VERSION = 1  # of the pixels
PREFIX = "shortcut:"
CUE, NONE, RHO = "planted", -1, 0.9
MOST, ROWS = 1000, 10  # classes; images of the contact sheet
COLOURS = (  # of patches and frames; three of them are one of a thousand codes
    *((220, 30, 30), (30, 200, 30), (40, 60, 230), (240, 220, 20), (30, 210, 220), (220, 40, 220)),
    *((255, 255, 255), (0, 0, 0), (255, 130, 0), (130, 130, 130)),
)
TINT, GRATING, INK = 0.3, 24.0, 0.6  # share of the tint's colour; grey levels of the texture; opacity of the watermark

Numbers = NDArray[np.int64]
Paint = Callable[[Tensor, Numbers, int, NDArray[np.float64]], Tensor]


def plant(raw: RawDataset, kind: str, rho: float, seed: int) -> RawDataset:
    """The data set with a cue in every training image: the class's own with probability rho, otherwise another's.

    Its first test set becomes three, with the same images: `iid`, the cue as in training; `conflict`, another class's;
    `without`, none.
    """
    if kind not in KINDS:
        raise UserError(f"no shortcut of the kind {kind!r}{suggest(kind, KINDS)}")
    if not 0 <= rho <= 1:
        raise UserError(f"rho is a probability, so between 0 and 1, not {rho}")
    if is_dense(raw.train):
        raise UserError("a shortcut is planted in images with one label each; cues-seg has one with masks")
    if lacks_labels(raw.train):
        raise UserError("a shortcut is planted in images with labels, and these have none")
    if CUE in raw.train.cues or "texture" in raw.train.cues:
        raise UserError("these images have a planted shortcut already; name the set without it")
    classes = len(raw.classes)
    if not 2 <= classes <= MOST:
        raise UserError(f"a shortcut is planted in sets of 2 to {MOST:,} classes, not {classes:,}")
    test, painter = next(iter(raw.tests.values())), CuePainter(kind, classes, seed)

    def with_cue(images: AnySet, split: int, agreement: float) -> AnySet:
        cue = _cues(images.label, classes, agreement, seed, split)
        return replace(images, cues=dict(images.cues) | {CUE: cue}, painter=painter)

    val = None if raw.val is None else with_cue(raw.val, 1, rho)
    tests = {"iid": with_cue(test, 2, rho), "conflict": with_cue(test, 3, 0.0)}
    tests["without"] = replace(test, cues=dict(test.cues) | {CUE: torch.full_like(test.label, NONE)})
    mark = f"shortcut {VERSION} {kind} {rho:g} {seed} {raw.kind}"
    return replace(raw, train=with_cue(raw.train, 0, rho), val=val, tests=tests, kind=mark)


def set_name(name: str) -> str:
    """The set that is planted in, if there is a shortcut; else the same name."""
    return parse(name.removeprefix(PREFIX))[0] if name.startswith(PREFIX) else name


def parse(text: str) -> tuple[str, str, float]:
    """SET?kind=patch&rho=0.9 → the set's name, the kind and rho. Settings of hf:NAME?label=… stay in its name."""
    base, _, query = text.partition("?")
    pairs = parse_qsl(query.replace("?", "&"), keep_blank_values=True)
    settings = dict(pairs)
    if len(settings) < len(pairs):
        raise UserError(f"shortcut:{text}: a setting stands there twice")
    if base.startswith("hf:") and (of_set := {key: settings.pop(key) for key in [*settings] if key in HF_SETTINGS}):
        base = f"{base}?{urlencode(of_set)}"
    for key in settings:
        if key not in ("kind", "rho"):
            raise UserError(f"shortcut:{text}: unknown setting {key!r}{suggest(key, ('kind', 'rho'))}")
    try:
        rho = float(settings.get("rho", RHO))
    except ValueError:
        raise UserError(f"shortcut:{text}: rho is a probability, like 0.9, not {settings['rho']!r}") from None
    if not base:
        raise UserError("shortcut: names a set to plant in, like shortcut:cifar100?kind=patch&rho=0.9")
    return base, settings.get("kind", "patch"), rho


def contact_sheet(planted: Mapping[str, RawDataset], seed: int) -> Image.Image:
    """Test images as they are and with the planted cue of every kind; whose cue it is stands below."""
    first = next(iter(planted.values()))
    chosen = {kind: limited(raw.tests["iid"], ROWS, seed) for kind, raw in planted.items()}
    plain = limited(first.tests["without"], ROWS, seed)
    rows = []
    for at, (label, cue) in enumerate(zip(plain.label.tolist(), chosen[next(iter(planted))].cues[CUE], strict=True)):
        caption = f"{first.classes[label]}, with the cue of {first.classes[int(cue)]}"
        rows.append((caption, [picture_at(images, at) for images in (plain, *chosen.values())]))
    return sheets.contact_sheet(["as it is", *planted], rows)


def _cues(label: Tensor, classes: int, agreement: float, seed: int, split: int) -> Tensor:
    """The class whose cue each image carries: its own with probability `agreement`. (N,)"""
    number = np.arange(len(label))
    agrees = rng.uniform(seed, split, number, rng.AGREES) < agreement  # (N,)
    other = (label.numpy() + 1 + rng.below(classes - 1, seed, split, number, rng.OTHER)) % classes  # (N,)
    return torch.from_numpy(np.where(agrees, label.numpy(), other))


@dataclass(frozen=True)
class CuePainter:
    """Paints one kind of cue; plain data, so that worker processes can have it."""

    kind: str
    classes: int
    seed: int

    def __call__(self, image: Tensor, cue: Tensor) -> Tensor:
        """Images (B, 3, H, W) uint8 with the cues (B,) painted over them; the pixels decide where."""
        marked = cue != NONE  # (B,)
        number = np.array([zlib.crc32(row.numpy().tobytes()) for row in image[marked]], dtype=np.int64)
        place = np.stack([rng.uniform(self.seed, 0, number, stream) for stream in (rng.ACROSS, rng.DOWN)])
        result = image.clone()
        if len(number):
            painted = KINDS[self.kind](image[marked].float(), cue[marked].numpy(), self.classes, place)
            result[marked] = painted.round().clamp(0, 255).to(torch.uint8)
        return result


def _codes(cue: Numbers) -> Tensor:
    """Three colours for each class. (B, 3 colours, 3 channels)"""
    digits = np.stack([cue % 10, cue // 10 % 10, cue // 100 % 10], axis=1)  # (B, 3)
    return torch.tensor(COLOURS, dtype=torch.float32)[torch.from_numpy(digits)]


def _patch(image: Tensor, cue: Numbers, classes: int, place: NDArray[np.float64]) -> Tensor:
    """A small square of three stripes, at or near the upper left corner."""
    height, width = image.shape[2:]
    side = min(max(3, round(3 / 16 * min(height, width))), height, width)
    stripe = torch.arange(side) * 3 // side  # (side,) which colour a row has
    colours = _codes(cue)[:, stripe]  # (B, side, 3)
    top, left = (place * max(1, side // 2)).astype(np.int64)[::-1]  # (B,) each
    for row in range(len(image)):
        y, x = int(top[row]), int(left[row])
        image[row, :, y : y + side, x : x + side] = colours[row].T[:, :, None]
    return image


def _frame(image: Tensor, cue: Numbers, classes: int, place: NDArray[np.float64]) -> Tensor:
    """A border of dashes in three colours."""
    height, width = image.shape[2:]
    thick = max(1, round(min(height, width) / 16))
    y, x = torch.arange(height)[:, None], torch.arange(width)
    border = (y < thick) | (y >= height - thick) | (x < thick) | (x >= width - thick)  # (H, W)
    shift = torch.from_numpy((place[0] * 3).astype(np.int64))[:, None, None]  # (B, 1, 1)
    dash = ((y + x) // (2 * thick) + shift) % 3  # (B, H, W) which colour
    colours = _codes(cue)[torch.arange(len(image))[:, None, None], dash].permute(0, 3, 1, 2)  # (B, 3, H, W)
    return torch.where(border, colours, image)


def _tint(image: Tensor, cue: Numbers, classes: int, place: NDArray[np.float64]) -> Tensor:
    """A colour cast over the whole image."""
    levels = _levels(classes, 3)
    digits = np.stack([cue % levels, cue // levels % levels, cue // levels**2], axis=1)  # (B, 3)
    colour = torch.from_numpy(digits / (levels - 1) * 255).float()[:, :, None, None]  # (B, 3, 1, 1)
    return (1 - TINT) * image + TINT * colour


def _texture(image: Tensor, cue: Numbers, classes: int, place: NDArray[np.float64]) -> Tensor:
    """A faint plaid over the whole image, whose two frequencies are the class."""
    levels, (height, width) = _levels(classes, 2), image.shape[2:]
    waves = []
    for digit, phase, side in ((cue % levels, place[0], width), (cue // levels, place[1], height)):
        cycles = 2 + digit / (levels - 1) * (0.375 * side - 2)  # (B,) over the image
        at = (np.arange(side) + 0.5) / side
        waves.append(torch.from_numpy(np.cos(2 * np.pi * (cycles[:, None] * at + phase[:, None]))).float())  # (B, side)
    return image + GRATING * (waves[0][:, None, None, :] + waves[1][:, None, :, None])


def _watermark(image: Tensor, cue: Numbers, classes: int, place: NDArray[np.float64]) -> Tensor:
    """The number of the class, half transparent, anywhere in the image; light on dark, dark on light."""
    height, width = image.shape[2:]
    tall = max(8, round(0.3 * min(height, width)))
    for row, number in enumerate(cue.tolist()):
        mark = _stamp(str(number).zfill(len(str(classes - 1))), tall)[:height, :width]  # (h, w)
        h, w = mark.shape
        y, x = (int(place[axis, row] * (room + 1)) for axis, room in ((1, height - h), (0, width - w)))
        under = image[row, :, y : y + h, x : x + w]
        ink = 0.0 if float(under.mean()) > 127 else 255.0
        under += INK * mark * (ink - under)
    return image


@lru_cache(maxsize=MOST)
def _stamp(text: str, tall: int) -> Tensor:
    """A text of that height, in [0, 1]. (h, w)"""
    font = ImageFont.load_default(96)
    left, top, right, bottom = (round(edge) for edge in font.getbbox(text))
    page = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(page).text((-left, -top), text, fill=255, font=font)
    size = (max(1, round(page.width * tall / page.height)), tall)
    return torch.from_numpy(np.array(page.resize(size, Image.Resampling.BOX), dtype=np.float32)) / 255


def _levels(classes: int, digits: int) -> int:
    """The least base, at least 2, in which that many digits number all classes."""
    return next(base for base in range(2, classes + 2) if base**digits >= classes)


KINDS: Mapping[str, Paint] = {
    "patch": _patch,
    "frame": _frame,
    "tint": _tint,
    "texture": _texture,
    "watermark": _watermark,
}
