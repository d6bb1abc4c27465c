"""A chunk of images under one corruption: what is drawn, in which order, and who gets it."""
# N images, B images of a chunk, S side

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antishortcut.data.corruptions import blur, digital, noise, weather
from antishortcut.data.corruptions.constants import ALL, CHUNK, SEVERITIES, SMALLEST, TABLES, VERSION, table_of
from antishortcut.data.corruptions.frost import Frost, grown_frost
from antishortcut.data.corruptions.noise import Bytes, Floats
from antishortcut.data.corruptions.spatter import spatter
from antishortcut.data.loader import one_thread
from antishortcut.errors import UserError, near


@dataclass(frozen=True)
class Chunk:
    """Images, and the draws for them. What an image gets depends on its place in the chunk, not on who comes after:
    small draws are made for a full chunk and come first, the large ones fill image by image."""

    images: Bytes  # (B, S, S, 3)
    rng: np.random.Generator
    frost: Frost | None

    @property
    def side(self) -> int:
        return int(self.images.shape[1])

    def each(self, low: float, high: float, *shape: int) -> NDArray[np.float64]:
        """A few uniform draws for every image, (B, …)."""
        full = CHUNK[table_of(self.side)]
        return self.rng.uniform(low, high, (full, *shape))[: len(self.images)]

    def normal(self, *shape: int) -> Floats:
        """Standard normal draws, (B, S, S, …)."""
        return self.rng.standard_normal((*self.images.shape[:3], *shape), dtype=np.float32)


def _shot_noise(chunk: Chunk, photons: float) -> Bytes:
    return noise.shot_noise(photons, chunk.rng.poisson(chunk.images / 255 * photons))


def _impulse_noise(chunk: Chunk, amount: float) -> Bytes:
    return noise.impulse_noise(chunk.images, amount, chunk.rng.random(chunk.images.shape, dtype=np.float32))


def _glass_blur(chunk: Chunk, constants: tuple[float, int, int]) -> Bytes:
    sigma, reach, repeats = constants
    shape = (len(chunk.images), repeats, 2, chunk.side, chunk.side)
    return blur.glass_blur(chunk.images, sigma, reach, chunk.rng.integers(-reach, reach, shape, dtype=np.int8))


def _motion_blur(chunk: Chunk, constants: tuple[float, float]) -> Bytes:
    radius, sigma = constants
    return blur.motion_blur(chunk.images, radius, sigma, chunk.each(-45, 45))


def _snow(chunk: Chunk, constants: tuple[float, ...]) -> Bytes:
    angle = chunk.each(-135, -45)  # falling
    return weather.snow(chunk.images, constants, chunk.normal().astype(np.float64), angle)


def _frost(chunk: Chunk, weights: tuple[float, float]) -> Bytes:
    ice = chunk.frost or grown_frost(table_of(chunk.side))
    return weather.frost(chunk.images, weights, weather.crops(ice.textures, chunk.side, chunk.each(0, 1, 3)))


def _fog(chunk: Chunk, constants: tuple[float, float]) -> Bytes:
    strength, decay = constants
    size = 1 << (chunk.side - 1).bit_length()  # the power of two that holds the image: 32, 64, 256
    uniform = chunk.rng.uniform(-1, 1, (len(chunk.images), size * size - 1))
    return weather.fog(chunk.images, strength, weather.plasma(size, decay, uniform)[:, : chunk.side, : chunk.side])


def _elastic_transform(chunk: Chunk, constants: tuple[float, float, float]) -> Bytes:
    alpha, sigma, reach = constants
    corners = chunk.each(-reach, reach, 3, 2)
    field = chunk.rng.uniform(-1, 1, (len(chunk.images), 2, chunk.side, chunk.side))
    return digital.elastic_transform(chunk.images, alpha, sigma, corners, field)


MAKERS: dict[str, Callable[[Chunk, Any], Bytes]] = {
    "gaussian_noise": lambda chunk, sigma: noise.gaussian_noise(chunk.images, sigma, chunk.normal(3)),
    "shot_noise": _shot_noise,
    "impulse_noise": _impulse_noise,
    "defocus_blur": lambda chunk, constants: blur.defocus_blur(chunk.images, *constants),
    "glass_blur": _glass_blur,
    "motion_blur": _motion_blur,
    "zoom_blur": lambda chunk, constants: blur.zoom_blur(chunk.images, *constants),
    "snow": _snow,
    "frost": _frost,
    "fog": _fog,
    "brightness": lambda chunk, added: weather.brightness(chunk.images, added),
    "contrast": lambda chunk, factor: digital.contrast(chunk.images, factor),
    "elastic_transform": _elastic_transform,
    "pixelate": lambda chunk, factor: digital.pixelate(chunk.images, factor),
    "jpeg_compression": lambda chunk, quality: digital.jpeg_compression(chunk.images, quality),
    "speckle_noise": lambda chunk, sigma: noise.speckle_noise(chunk.images, sigma, chunk.normal(3)),
    "gaussian_blur": lambda chunk, sigma: blur.gaussian_blur(chunk.images, sigma),
    "saturate": lambda chunk, constants: digital.saturate(chunk.images, *constants),
    "spatter": lambda chunk, constants: spatter(chunk.images, constants, chunk.normal().astype(np.float64)),
}


def corrupt(
    images: Bytes, name: str, severity: int, *, seed: int = 0, chunk: int = 0, frost: Frost | None = None
) -> Bytes:
    """Corrupt images (N, S, S, 3), the first of which opens chunk number `chunk` of its set; the same bytes every time.

    Draws depend on (VERSION, seed, corruption, severity, chunk) and on the place in the chunk. More images than a chunk
    holds run on into the following chunks. Without `frost` textures, those made by `grown_frost` are taken.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or images.shape[1] != images.shape[2]:
        raise UserError(f"expected bytes of shape (N, S, S, 3), not {images.dtype} of shape {images.shape}")
    if severity not in SEVERITIES:
        raise UserError(f"severities are 1 to 5, not {severity}")
    side = images.shape[1]
    check(name, side)
    table, size = table_of(side), CHUNK[table_of(side)]
    made = np.empty(images.shape, dtype=np.uint8)
    for start in range(0, len(images), size):
        rng = np.random.default_rng([VERSION, seed, ALL.index(name), severity, chunk + start // size])
        part = Chunk(images[start : start + size], rng, frost)
        with one_thread():
            made[start : start + size] = MAKERS[name](part, TABLES[table][name][severity - 1])
    return made


def check(name: str, side: int) -> None:
    if name not in ALL:
        raise UserError(f"no corruption {name!r}{near(name, ALL)}")
    if side < SMALLEST:
        raise UserError(f"images of {side} pixels are too small to corrupt; {SMALLEST} is the least")
