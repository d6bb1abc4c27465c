"""The embedded scenes: two to four tiles on a plain ground, each with a glyph, which is the class of all its pixels, on
a texture, which is the shortcut, known for every pixel.

Made of the glyphs, textures and colours of synthetic.py, and pure in the same way: a chunk of images is a function of
(VERSION, split, seed, number of the chunk). A tile's place, outline and colours are drawn without a look at its class.
"""
# N images, B images of a chunk, O tiles of a chunk, T pixels a side of the patch a tile is painted on

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from antishortcut.data import synthetic as cues
from antishortcut.data.loader import one_thread
from antishortcut.errors import UserError
from antishortcut.types import VOID, ImageSet

Ints = NDArray[np.int64]

CLASSES: tuple[str, ...] = ("background", *cues.CLASSES)
VERSION: int = 1  # of the pixels

CHUNK = 125  # B
CELLS = 4  # the quarters of an image; two to four of them hold a tile
GLYPH_SCALE = (0.66, 0.86)  # side of the glyph's mask in sides of the patch, which is half the image's
GLYPH_SHIFT = 0.03
REACH = (0.78, 0.97)  # sides of a tile in sides of the patch
JITTER = 0.12  # of a tile's place, in sides of the patch, either way: neighbours may overlap a little
GROUND_TONE = (0.1, 0.9)
RAMP = 0.2  # how much the ground's colour changes from edge to edge, at most


def make_scenes(split: str, count: int, *, seed: int, rho: float = 0.9, size: int = 64) -> ImageSet:
    """Make `count` scenes of a split; labels and cues["texture_map"] are (N, size, size) uint8.

    A tile's pixels are labelled with its glyph's class; the map says which class has the texture they show, and VOID
    on the background. For every tile by itself, as for the images of synthetic.py:

    train, iid     the texture is the class's own with probability rho, otherwise any other
    conflict       the texture is always another class's
    uncorrelated   any texture, whatever the class
    """
    cues.check(split, count, seed, rho)
    if size < 32:
        raise UserError(f"four glyphs cannot be read below 32 pixels: size is {size}")
    chunks = []
    for chunk in range(-(-count // CHUNK)):
        rng = np.random.default_rng([VERSION, cues.SPLITS.index(split), seed, chunk, 1])  # 1: other draws than cues
        with one_thread():
            chunks.append(_render(rng, split, rho, size))
    image, label, texture = (torch.cat(tensors)[:count] for tensors in zip(*chunks, strict=True))
    return ImageSet(image, label, {"texture_map": texture})  # (N, 3, size, size), twice (N, size, size)


def _render(rng: np.random.Generator, split: str, rho: float, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """A chunk: images (B, 3, size, size), classes and textures (B, size, size), all uint8."""
    label, texture = (one.numpy() for one in cues.draw_classes(rng, split, rho, CHUNK * CELLS))
    mixed = rng.permutation(CHUNK * CELLS)  # which classes meet in an image is chance
    tiles = rng.integers(2, CELLS + 1, CHUNK)  # (B,)
    held, turn = np.nonzero(np.arange(CELLS) < tiles[:, None])  # each (O,): a tile's image, and its number there
    own = mixed[held * CELLS + turn]  # (O,)
    label, texture = label[own], texture[own]  # (O,)
    patch = size // 2
    colour, cover = _tiles(rng, torch.from_numpy(label), torch.from_numpy(texture), patch)  # (O, 3 | 1, T, T)
    down, right = _places(rng, held, turn, size)  # each (O,)

    scene = _ground(rng, size).numpy()  # (B, size, size, 3)
    classes = np.zeros((CHUNK, size, size), dtype=np.uint8)
    shown = np.full_like(classes, VOID)
    colours, covers = colour.permute(0, 2, 3, 1).numpy(), cover[:, 0].numpy()  # (O, T, T, 3), (O, T, T)
    for at in range(len(held)):  # later tiles cover earlier ones
        top, left = max(down[at], 0), max(right[at], 0)
        here = np.s_[held[at], top : down[at] + patch, left : right[at] + patch]
        part = np.s_[top - down[at] : size - down[at], left - right[at] : size - right[at]]
        alpha = covers[at][part]  # what an edge leaves of the patch
        scene[here] += colours[at][part] - scene[here] * alpha[..., None]
        classes[here][alpha >= 0.5] = 1 + label[at]
        shown[here][alpha >= 0.5] = 1 + texture[at]
    image = torch.from_numpy(scene).permute(0, 3, 1, 2)
    return (image * 255).round().to(torch.uint8).contiguous(), torch.from_numpy(classes), torch.from_numpy(shown)


def _tiles(rng: np.random.Generator, label: Tensor, texture: Tensor, patch: int) -> tuple[Tensor, Tensor]:
    """Glyphs on textured tiles: colour times coverage (O, 3, T, T), and coverage (O, 1, T, T) in [0, 1]."""
    side = 2 * patch  # sampled twice as finely as the pixels and averaged
    field = cues.texture_field(rng, texture, side)  # (O, 1, 2T, 2T)
    glyph = cues.glyph_field(rng, label, side, scale=GLYPH_SCALE, shift=GLYPH_SHIFT)  # (O, 1, 2T, 2T)
    first, second, ink = cues.draw_colours(rng, len(label))  # each (O, 3, 1, 1)
    outline = _outline(rng, len(label), side)  # (O, 1, 2T, 2T)
    ground = second + (first - second) * field  # (O, 3, 2T, 2T)
    return F.avg_pool2d((ground + (ink - ground) * glyph) * outline, 2), F.avg_pool2d(outline, 2)


def _outline(rng: np.random.Generator, count: int, side: int) -> Tensor:
    """Discs, rounded and plain rectangles about the middle of the patch. (O, 1, 2T, 2T) of 0 and 1."""
    reach = torch.from_numpy(rng.uniform(*REACH, (2, count)).astype(np.float32))[..., None, None]  # (2, O, 1, 1)
    kind = torch.from_numpy(rng.integers(0, 3, count))[:, None, None]  # (O, 1, 1)
    place = (torch.arange(side) + 0.5) * (2 / side) - 1  # (2T,) from −1 to 1
    x, y = (place / reach[0]).square(), (place[:, None] / reach[1]).square()  # (O, 1, 2T), (O, 2T, 1)
    inside = torch.where(kind == 0, x + y < 1, torch.where(kind == 1, x * x + y * y < 1, torch.maximum(x, y) < 1))
    return inside.float()[:, None]


def _places(rng: np.random.Generator, held: Ints, turn: Ints, size: int) -> tuple[Ints, Ints]:
    """Upper left corners of the patches, each about a quarter of its image. (O,), (O,)."""
    quarter = rng.random((CHUNK, CELLS)).argsort(axis=1)[held, turn]  # (O,)
    jitter = rng.uniform(-JITTER, JITTER, (2, len(held)))  # (2, O)
    at = np.stack([quarter // 2, quarter % 2]) + jitter
    down, right = np.rint(at * (size / 2)).astype(np.int64)
    return down, right


def _ground(rng: np.random.Generator, size: int) -> Tensor:
    """One colour that changes a little across the image. (B, size, size, 3) in [0, 1]."""
    tone = rng.uniform(*GROUND_TONE, (CHUNK, 1)) + rng.uniform(-cues.TINT, cues.TINT, (CHUNK, 3))  # (B, 3)
    slope = rng.uniform(-RAMP / 2, RAMP / 2, (2, CHUNK, 1, 1, 3))
    place = np.linspace(-1, 1, size)
    ground = tone[:, None, None] + slope[0] * place[:, None, None] + slope[1] * place[:, None]  # (B, size, size, 3)
    return torch.from_numpy(np.clip(ground, 0, 1).astype(np.float32))
