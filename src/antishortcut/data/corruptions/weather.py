"""Weather: snow, frost, fog, brightness. Random draws are arguments."""
# B images, S side, M side of the fog's map; H × W pixels of a texture, R curves, K points on curves

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from antishortcut.data.corruptions.effects import Bytes, Floats, as_bytes, motion_blur, zoom_line
from antishortcut.data.image_io import read
from antishortcut.data.readers import SUFFIXES
from antishortcut.errors import UserError

GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def snow(images: Bytes, constants: Sequence[float], normal: Floats, angle: Floats) -> Bytes:
    """Flakes blurred along their fall, twice, the second time turned round, on an image a little whiter.

    Images (B, S, S, 3), standard normal draws (B, S, S), angles (B,) in degrees.
    """
    mean, deviation, zoom, threshold, radius, sigma, share = constants
    line = zoom_line(images.shape[1], zoom)  # (S, S)
    layer = line @ (mean + deviation * normal) @ line.T  # (B, S, S)
    layer[layer < threshold] = 0
    flakes = motion_blur(as_bytes(layer)[..., None], radius, sigma, angle) / np.float32(255)  # (B, S, S, 1)
    values = images / np.float32(255)
    grey = (values @ GREY)[..., None]  # (B, S, S, 1)
    pale = share * values + (1 - share) * np.maximum(values, grey * 1.5 + 0.5)  # (B, S, S, 3)
    return as_bytes(pale + flakes + flakes[:, ::-1, ::-1])


def frost(images: Bytes, weights: Sequence[float], ice: Bytes) -> Bytes:
    """Weighted sum of images and frost, both (B, S, S, 3)."""
    return as_bytes(weights[0] * images + weights[1] * ice, white=255)


def fog(images: Bytes, strength: float, plasma: Floats) -> Bytes:
    """(x + strength · fog) · max x / (max x + strength). Images (B, S, S, 3), fog in [0, 1] (B, S, S)."""
    values = images / np.float32(255)
    brightest = values.max(axis=(1, 2, 3), keepdims=True)  # (B, 1, 1, 1)
    mist = np.float32(strength) * plasma.astype(np.float32)[..., None]  # (B, S, S, 1)
    return as_bytes((values + mist) * (brightest / (brightest + np.float32(strength))))


def plasma(size: int, decay: float, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fractal clouds by the diamond-square algorithm on a torus, (B, M, M) from 0 to 1; M is a power of two.

    A new point is the mean of its four neighbours plus w² u; w falls by `decay` from level to level. Draws u in
    [-1, 1), (B, M · M - 1), are used level by level: the middles of squares, then of their upper, then left edges.
    """
    count, used = len(uniform), 0
    field = np.zeros((count, size, size))
    step, wibble = size, 100.0

    def noise() -> NDArray[np.float64]:
        nonlocal used
        points = (size // step) ** 2
        used += points
        return wibble**2 * uniform[:, used - points : used].reshape(count, size // step, -1)

    while step >= 2:
        half = step // 2
        corner = field[:, ::step, ::step]
        square = corner + np.roll(corner, -1, axis=1)
        square = square + np.roll(square, -1, axis=2)
        field[:, half::step, half::step] = square / 4 + noise()
        middle = field[:, half::step, half::step]
        above = middle + np.roll(middle, 1, axis=1) + corner + np.roll(corner, -1, axis=2)
        field[:, ::step, half::step] = above / 4 + noise()
        beside = middle + np.roll(middle, 1, axis=2) + corner + np.roll(corner, -1, axis=1)
        field[:, half::step, ::step] = beside / 4 + noise()
        step, wibble = half, wibble / decay
    field -= field.min(axis=(1, 2), keepdims=True)
    return np.asarray(field / field.max(axis=(1, 2), keepdims=True))


def brightness(images: Bytes, added: float) -> Bytes:
    """V of HSV raised, clipped to 1; hue and saturation stay: every channel keeps its share of V."""
    values = images / 255  # (B, S, S, 3)
    red, green, blue = (values[..., channel, None] for channel in range(3))
    value = np.maximum(np.maximum(red, green), blue)  # (B, S, S, 1)
    missing = (value - values) / np.where(value > 0, value, 1)  # (B, S, S, 3) of V
    return as_bytes((value + added).clip(0, 1) * (1 - missing))


def crops(textures: tuple[Bytes, ...], side: int, uniform: Floats) -> Bytes:
    """A square of a texture for every image, (B, S, S, 3); uniform draws (B, 3) choose texture, row and column."""
    which = (uniform[:, 0] * len(textures)).astype(int)  # (B,)
    cut = np.empty((len(uniform), side, side, 3), dtype=np.uint8)
    for number, texture in enumerate(textures):
        own = np.flatnonzero(which == number)
        room = np.array(texture.shape[:2]) - side  # the last row and column are never drawn, as in the scripts
        row, column = (uniform[own, 1:] * room).astype(int).T
        windows = np.lib.stride_tricks.sliding_window_view(texture, (side, side), axis=(0, 1))  # (…, …, 3, S, S)
        cut[own] = windows[row, column].transpose(0, 2, 3, 1)
    return cut


# --- Frost to lay over images ---

SCALES: dict[int, float] = {32: 0.2, 64: 0.3, 224: 1.0}  # by table: textures are shrunk as much by the official scripts
FROST = "procedural-2"  # the frost grown here, and its version
TEXTURES = 5  # the official scripts have six files and draw from the first five

SEED = 2019
SIDE = 1000  # pixels
STEP = 0.9  # pixels between the points that make up a line

SHADES = ((98, 115, 128), (155, 179, 194), (219, 228, 232))  # the pane, thin ice, thick ice: low in contrast

Reals = NDArray[np.float64]
Frost = tuple[Bytes, ...]  # textures, each (H, W, 3), shrunk to suit the images


@lru_cache(maxsize=3)
def grown_frost(table: int) -> Frost:
    """The textures made here, for the constants of 32, 64 or 224 pixels."""
    return tuple(shrunk(texture(number), SCALES[table]) for number in range(len(HABITS)))


def read_frost(folder: Path, table: int, side: int) -> Frost:
    """The first five pictures of a folder by name, for the constants of 32, 64 or 224 pixels."""
    textures = []
    for path in _pictures(folder):
        picture = shrunk(np.asarray(read(path)), SCALES[table])  # (H, W, 3)
        if min(picture.shape[:2]) <= side:
            least = int((side + 2) / SCALES[table])
            raise UserError(f"{path} is too small to cut frost of {side} pixels from; it needs {least} pixels a side")
        textures.append(picture)
    return tuple(textures)


def frost_mark(folder: Path | None) -> str:
    """FROST, or sixteen hex digits of the pictures that are used."""
    if folder is None:
        return FROST
    digests = (hashlib.sha256(path.read_bytes()).digest() for path in _pictures(folder))
    return hashlib.sha256(b"".join(digests)).hexdigest()[:16]


def _pictures(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"no folder {folder} of frost pictures")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)[:TEXTURES]
    if not paths:
        raise UserError(f"no pictures in {folder}; frost textures are .png or .jpg files")
    return paths


def shrunk(texture: Bytes, scale: float) -> Bytes:
    """A texture (H, W, 3) made smaller as OpenCV's resize does by default: bilinear, without smoothing first."""
    if scale == 1:
        return texture
    values: Floats = texture.astype(np.float64)
    for axis in (0, 1):
        length = values.shape[axis]
        place = ((np.arange(round(length * scale)) + 0.5) / scale - 0.5).clip(0, length - 1)
        low = np.minimum(place.astype(int), length - 2)
        share = np.expand_dims(place - low, (1, 2) if axis == 0 else (0, 2))
        values = values.take(low, axis) * (1 - share) + values.take(low + 1, axis) * share
    return np.rint(values).astype(np.uint8)


class Habit(NamedTuple):
    """How a texture grows."""

    stems: int  # along each side of the texture, about evenly
    length: float  # of a stem in pixels
    angle: float  # of branches, in degrees
    gap: float  # pixels between branches
    clouds: float  # how much of the pane is clouded
    halo: float  # how much ice shines on what is near
    mean: float  # of all pixels; the photographs of the official scripts differ as much


HABITS = (
    Habit(7, 420, 52, 13, 0.45, 0.8, 131),
    Habit(10, 260, 38, 10, 0.5, 0.75, 204),
    Habit(5, 640, 60, 17, 0.4, 0.8, 204),
    Habit(13, 190, 58, 9, 0.4, 0.7, 152),
    Habit(8, 340, 30, 12, 0.6, 0.8, 123),
)


class Curves(NamedTuple):
    """Arcs that start somewhere with a heading and turn evenly by `bend` up to their end."""

    start: Reals  # (R, 2)
    heading: Reals  # (R,)
    length: Reals  # (R,)
    bend: Reals  # (R,), not 0


@lru_cache(maxsize=len(HABITS))
def texture(number: int) -> Bytes:
    """One of the textures, (SIDE, SIDE, 3)."""
    habit = HABITS[number]
    rng = np.random.default_rng([SEED, number])
    ice = _feathers(rng, habit).astype(np.float32)  # (SIDE, SIDE)
    line, blade, halo = (ndimage.gaussian_filter(ice, sigma, mode="wrap", truncate=2) for sigma in (0.9, 3, 14))
    tone = 0.3 * np.tanh(1.2 * line) + 0.6 * np.tanh(1.5 * blade) + habit.halo * (np.tanh(2 * halo) - 0.22)
    tone += habit.clouds * (_clouds(rng) - 0.08) + 0.03 * rng.standard_normal(tone.shape, dtype=np.float32)
    tone = tone.clip(0, 1)
    colour = np.stack([np.interp(tone, (0, 0.5, 1), shades) for shades in zip(*SHADES, strict=True)], axis=-1)
    return np.asarray(np.rint(colour - colour.mean() + habit.mean).clip(0, 255).astype(np.uint8))


def _feathers(rng: np.random.Generator, habit: Habit) -> Reals:
    """How much ice lies where, (SIDE, SIDE)."""
    curves = _stems(rng, habit)
    ice = np.zeros(SIDE * SIDE)
    for weight, gap in ((1.6, habit.gap), (1.0, 0.55 * habit.gap), (0.7, None)):
        row, share = _along(curves, STEP)  # (K,)
        point, _ = _points(curves, row, share)  # (K, 2)
        _lay(ice, point, weight * STEP * (1 - 0.6 * share))  # lines thin out towards their end
        if gap is not None:
            curves = _branches(rng, curves, habit.angle, gap)
    return ice.reshape(SIDE, SIDE)


def _stems(rng: np.random.Generator, habit: Habit) -> Curves:
    """One stem in every square of a lattice, so that there is ice everywhere."""
    lattice = np.stack(np.meshgrid(*[np.arange(habit.stems)] * 2), axis=-1).reshape(-1, 2)  # (R, 2)
    count = len(lattice)
    start = (lattice + rng.uniform(0, 1, (count, 2))) * (SIDE / habit.stems)
    length = habit.length * rng.uniform(0.5, 1.3, count)
    return Curves(start, rng.uniform(0, 2 * np.pi, count), length, rng.normal(0, 0.9, count))


def _branches(rng: np.random.Generator, curves: Curves, angle: float, gap: float) -> Curves:
    """Branches every `gap` pixels, left and right in turn, longest a third of the way along."""
    row, share = _along(curves, gap)  # (K,)
    start, heading = _points(curves, row, share)
    count = len(row)
    side = np.where(np.arange(count) % 2, 1, -1)
    turned = heading + side * np.deg2rad(angle) * rng.uniform(0.85, 1.15, count)
    taper = (1 - share) ** 0.7 * np.minimum(1, 0.3 + 3 * share)
    length = 0.34 * curves.length[row] * taper * rng.uniform(0.5, 1.1, count)
    return Curves(start, turned, length, rng.normal(0, 0.25, count))


def _along(curves: Curves, step: float) -> tuple[NDArray[np.int64], Reals]:
    """Points about `step` pixels apart on all curves: which curve, and how far along it from 0 to 1. Both (K,)."""
    count = np.ceil(curves.length / step).astype(np.int64)  # (R,)
    row = np.repeat(np.arange(len(count)), count)  # (K,)
    place = np.arange(len(row)) - (np.cumsum(count) - count)[row]
    return row, (place + 0.5) / count[row]


def _points(curves: Curves, row: NDArray[np.int64], share: Reals) -> tuple[Reals, Reals]:
    """Where points lie, (K, 2), and the heading there, (K,)."""
    start, heading, bend = curves.start[row], curves.heading[row], curves.bend[row]
    there = heading + bend * share
    arc = np.stack([np.sin(there) - np.sin(heading), np.cos(heading) - np.cos(there)], axis=1)  # (K, 2)
    return start + arc * (curves.length[row] / bend)[:, None], there


def _lay(ice: Reals, point: Reals, weight: Reals) -> None:
    """Add weights (K,) at points (K, 2) to the flat field, shared among the four pixels around each; edges wrap."""
    whole = np.floor(point).astype(np.int64)
    share = point - whole
    for x, y in ((0, 0), (1, 0), (0, 1), (1, 1)):
        part = np.abs(1 - x - share[:, 0]) * np.abs(1 - y - share[:, 1])
        place = (whole[:, 1] + y) % SIDE * SIDE + (whole[:, 0] + x) % SIDE
        ice += np.bincount(place, weight * part, minlength=SIDE * SIDE)


def _clouds(rng: np.random.Generator) -> Reals:
    """Smooth clouds from 0 to 1, the same at opposite edges, (SIDE, SIDE)."""
    waves = np.fft.fftfreq(SIDE)[:, None] ** 2 + np.fft.rfftfreq(SIDE) ** 2
    waves[0, 0] = np.inf
    spectrum = np.fft.rfft2(rng.standard_normal((SIDE, SIDE))) * waves**-0.75
    field = np.fft.irfft2(spectrum, (SIDE, SIDE))
    return np.asarray((field - field.min()) / (field.max() - field.min()))
