"""The embedded images: a glyph, which is the class, on a texture, which is the shortcut, known for every image.

A chunk of images is a pure function of (VERSION, split, seed, number of the chunk), so an image does not depend on
`count`. Colours have the same distribution for every class and texture.
"""
# N images, B images of a chunk, S = 2 · size samples a side, M mask side

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional as F

from antishortcut.data.loader import one_thread
from antishortcut.errors import UserError, suggest
from antishortcut.types import ImageSet

CLASSES: tuple[str, ...] = ("A", "E", "H", "J", "K", "O", "P", "S", "T", "X")  # distinct within ±25° of upright
STYLES: tuple[str, ...] = ("regular", "bold", "outline", "slanted", "condensed", "wide", "bitmap")
SPLITS: tuple[str, ...] = ("train", "iid", "conflict", "uncorrelated")
VERSION: int = 1  # of the pixels

CHUNK = 250  # B; a multiple of the number of classes, so that every chunk is balanced
MASK = 64  # M
LATTICE = 32  # G, cells after which a texture's noise repeats; more than any image shows
TALL = 44  # height of a glyph in its mask

TURN = 25.0  # degrees either way
SCALE = (0.64, 0.92)  # side of the mask in sides of the image
SHIFT = 0.16  # in sides of the image, either way
TEXTURE_TURN = 7.0
TEXTURE_SCALE = 0.1
GLYPH_TONE = (0.0, 0.25)  # brightness before tint and inversion; the glyph keeps clear of both texture tones
DARK_TONE = (0.4, 0.6)
LIGHT_TONE = (0.75, 1.0)
TINT = 0.25


def make_cues(split: str, count: int, *, seed: int, rho: float = 0.9, size: int = 32) -> ImageSet:
    """Make `count` images of a split; the texture is cues["texture"], the same for the same arguments. Of test images
    `cover` is how much of each pixel the glyph covers.

    train, iid     the texture is the class's own with probability rho, otherwise any other
    conflict       the texture is always another class's
    uncorrelated   any texture, whatever the class
    """
    chunks = zip(*_chunks(split, count, seed, rho, size), strict=True)
    image, cover, label, texture = (torch.cat(tensors)[:count] for tensors in chunks)
    known = None if split == "train" else cover
    return ImageSet(image, label, {"texture": texture}, cover=known)  # (N, 3, size, size), (N,), (N,), (N, size, size)


def _chunks(
    split: str, count: int, seed: int, rho: float, size: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Images (B, 3, size, size), their glyphs' cover (B, size, size), labels and textures (B,)."""
    check(split, count, seed, rho)
    if size < 16:
        raise UserError(f"glyphs cannot be read below 16 pixels: size is {size}")
    for chunk in range(-(-count // CHUNK)):
        rng = np.random.default_rng([VERSION, SPLITS.index(split), seed, chunk])
        label, texture = draw_classes(rng, split, rho, CHUNK)
        with one_thread():
            yield *_render(rng, label, texture, size), label, texture


def check(split: str, count: int, seed: int, rho: float) -> None:
    """Refuse what no embedded images can be made of."""
    if split not in SPLITS:
        raise UserError(f"the embedded images have no split {split!r}{suggest(split, SPLITS)}")
    if not 0 <= rho <= 1:
        raise UserError(f"rho is a probability, so between 0 and 1, not {rho}")
    if count < 1 or seed < 0:
        raise UserError(f"the embedded images need count ≥ 1 and seed ≥ 0, not count {count} and seed {seed}")


def draw_classes(rng: np.random.Generator, split: str, rho: float, count: int) -> tuple[Tensor, Tensor]:
    """Balanced classes in random order, and a texture for each. Both (B,); `count`, a multiple of ten, is B."""
    n = len(CLASSES)
    label = rng.random((count // n, n)).argsort(axis=1).ravel()  # (B,), each ten in a row hold every class once
    other = (label + rng.integers(1, n, count)) % n  # (B,)
    anything = rng.integers(0, n, count)  # (B,)
    agrees = rng.random(count) < rho  # (B,)
    texture = {"conflict": other, "uncorrelated": anything}.get(split, np.where(agrees, label, other))
    return torch.from_numpy(label), torch.from_numpy(texture)


def _render(rng: np.random.Generator, label: Tensor, texture: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Glyphs on textures, sampled twice as finely as the pixels and averaged; and how much of a pixel is glyph.

    (B,), (B,) → (B, 3, size, size) uint8, (B, size, size) in [0, 1]
    """
    field = texture_field(rng, texture, 2 * size)  # (B, 1, S, S)
    mask = glyph_field(rng, label, 2 * size)  # (B, 1, S, S)
    first, second, ink = draw_colours(rng, len(label))  # each (B, 3, 1, 1)
    ground = second + (first - second) * field  # (B, 3, S, S)
    image = F.avg_pool2d(ground + (ink - ground) * mask, 2)  # (B, 3, size, size)
    return (image * 255).round().to(torch.uint8), F.avg_pool2d(mask, 2)[:, 0]


def texture_field(rng: np.random.Generator, texture: Tensor, side: int) -> Tensor:
    """Each image's texture with its own phase, frequency and orientation. (B,) → (B, 1, S, S) of 0 and 1."""
    count = len(texture)
    turn = np.deg2rad(rng.uniform(-TEXTURE_TURN, TEXTURE_TURN, count))
    scale = np.exp(rng.uniform(-TEXTURE_SCALE, TEXTURE_SCALE, count))
    shift = _column(rng.uniform(-10, 10, (2, count)))  # (2, B, 1, 1) pixels
    noise = torch.from_numpy(rng.random((count, LATTICE, LATTICE), dtype=np.float32))
    cos, sin = _column(np.stack([np.cos(turn), np.sin(turn)]) * scale)  # each (B, 1, 1)
    pixel = (torch.arange(side) + 0.5) * (32 / side) - 16  # (S,) from the middle, in pixels of a 32-pixel image
    down, right = pixel[:, None], pixel
    x = cos * right - sin * down + shift[0]  # (B, S, S)
    y = sin * right + cos * down + shift[1]  # (B, S, S)
    field = torch.empty_like(x)
    for family in range(len(FAMILIES)):
        rows = (texture == family).nonzero().flatten()
        _, period, rule = FAMILIES[family]
        field[rows] = rule(x[rows] / period, y[rows] / period, noise[rows]).to(x.dtype)
    return field[:, None]


def glyph_field(
    rng: np.random.Generator, label: Tensor, side: int, *, scale: tuple[float, float] = SCALE, shift: float = SHIFT
) -> Tensor:
    """Each image's glyph in a random style, turned, scaled and shifted. (B,) → (B, 1, S, S) in [0, 1]."""
    count = len(label)
    style = torch.from_numpy(rng.integers(0, len(STYLES), count))
    turn = np.deg2rad(rng.uniform(-TURN, TURN, count))
    large = rng.uniform(*scale, count)
    across, down = rng.uniform(-2 * shift, 2 * shift, (2, count))  # grid_sample's image is two units wide
    cos, sin = np.cos(turn) / large, np.sin(turn) / large
    rows = [[cos, -sin, -cos * across + sin * down], [sin, cos, -sin * across - cos * down]]
    affine = torch.from_numpy(np.array(rows, dtype=np.float32)).permute(2, 0, 1)  # (B, 2, 3) image → mask
    grid = F.affine_grid(affine, [count, 1, side, side], align_corners=False)  # (B, S, S, 2)
    return F.grid_sample(glyph_masks()[label, style][:, None], grid, align_corners=False)


def draw_colours(rng: np.random.Generator, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two texture colours and the glyph's, drawn without a look at class or texture. Each (B, 3, 1, 1) in [0, 1]."""
    tones = np.stack([rng.uniform(*tone, count) for tone in (DARK_TONE, LIGHT_TONE, GLYPH_TONE)])  # (3, B)
    swap = rng.random(count) < 0.5  # either texture colour may be the lighter
    tones[:2] = np.where(swap, tones[1::-1], tones[:2])
    tint = rng.uniform(-TINT, TINT, (3, count, 3))
    colours = np.clip(tones[..., None] + tint - tint.mean(axis=2, keepdims=True), 0, 1)  # (3, B, 3)
    inverted = rng.random((count, 1)) < 0.5  # light glyphs as often as dark ones
    colours = np.where(inverted, 1 - colours, colours)
    first, second, ink = torch.from_numpy(colours.astype(np.float32))[..., None, None]
    return first, second, ink


def _column(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Tensor:
    """(2, B) → (2, B, 1, 1) float, to meet (B, S, S)."""
    return torch.from_numpy(values.astype(np.float32))[..., None, None]


@lru_cache(maxsize=1)
def glyph_masks() -> Tensor:
    """Every class in every style, upright and centred. (classes, styles, M, M) in [0, 1]."""
    drawn = [[np.asarray(_draw(name, style)) for style in STYLES] for name in CLASSES]
    return torch.from_numpy(np.array(drawn, dtype=np.float32) / 255)


def _draw(name: str, style: str) -> Image.Image:
    """One glyph, M × M, 8 bits. Pillow brings one outline font and one bitmap font; the rest is made of them."""
    page = Image.new("L", (4 * MASK, 4 * MASK))
    pen = ImageDraw.Draw(page)
    if style == "bitmap":
        pen.text((MASK, MASK), name, fill=255, font=ImageFont.load_default_imagefont())
    else:
        font = ImageFont.load_default(2 * MASK)
        stroke = {"bold": 7, "outline": 8}.get(style, 1)
        pen.text((MASK, MASK), name, fill=255, font=font, stroke_width=stroke)
        if style == "outline":
            pen.text((MASK, MASK), name, fill=0, font=font)
    if style == "slanted":
        page = page.transform(page.size, Image.Transform.AFFINE, (1, 0.4, -0.4 * 2 * MASK, 0, 1, 0))
    glyph = page.crop(page.getbbox())
    stretch: Mapping[str, float] = {"condensed": 0.62, "wide": 1.4, "bitmap": 1.1}
    width = min(MASK, round(stretch.get(style, 1.0) * glyph.width * TALL / glyph.height))
    sampling = Image.Resampling.NEAREST if style == "bitmap" else Image.Resampling.LANCZOS
    glyph = glyph.resize((width, TALL), sampling)
    mask = Image.new("L", (MASK, MASK))
    mask.paste(glyph, ((MASK - width) // 2, (MASK - TALL) // 2))
    return mask


# The textures: ten rules on the plane, each true where the first colour goes. x and y (n, S, S) are counted in periods;
# phase, frequency and orientation are the caller's. Only additions, products and floors, so that bits are the same
# everywhere. Noise is (n, G, G) in [0, 1).


def _half(t: Tensor) -> Tensor:
    return t - t.floor() < 0.5


def _dots(x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    dx, dy = x - x.floor() - 0.5, y - y.floor() - 0.5
    return dx * dx + dy * dy < 0.1


def _bricks(x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    row = y.floor()
    along = 0.5 * x + 0.5 * (row - 2 * (0.5 * row).floor())  # bricks twice as long as high, every other row moved
    return (y - row < 0.22) | (along - along.floor() < 0.11)


def _zigzag(x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    sawtooth = (2 * (0.5 * x - (0.5 * x).floor()) - 1).abs()
    return _half(y + 1.6 * sawtooth)


def _cell(noise: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Noise of lattice cells, repeating. (n, G, G) and whole-numbered (n, S, S) → (n, S, S)."""
    place = row.long() % LATTICE * LATTICE + column.long() % LATTICE  # (n, S, S)
    return noise.flatten(1).gather(1, place.flatten(1)).view_as(place)


def _clouds(x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    column, row = x.floor(), y.floor()
    dx, dy = x - column, y - row
    above = (1 - dx) * _cell(noise, row, column) + dx * _cell(noise, row, column + 1)
    below = (1 - dx) * _cell(noise, row + 1, column) + dx * _cell(noise, row + 1, column + 1)
    return (1 - dy) * above + dy * below < 0.5


FAMILIES: tuple[tuple[str, float, Callable[[Tensor, Tensor, Tensor], Tensor]], ...] = (
    ("horizontal", 6.0, lambda x, y, noise: _half(y)),  # name, period in pixels of a 32-pixel image, rule
    ("vertical", 6.0, lambda x, y, noise: _half(x)),
    ("diagonal", 6.0, lambda x, y, noise: _half((x + y) * 0.7071)),
    ("checkers", 8.0, lambda x, y, noise: _half(x) ^ _half(y)),
    ("dots", 6.0, _dots),
    ("rings", 6.0, lambda x, y, noise: _half((x * x + y * y).sqrt())),
    ("bricks", 5.0, _bricks),
    ("zigzag", 6.0, _zigzag),
    ("grain", 1.8, lambda x, y, noise: _cell(noise, y.floor(), x.floor()) < 0.5),
    ("clouds", 5.0, _clouds),
)
