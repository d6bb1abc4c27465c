"""Weather: snow, frost, fog, brightness. Random draws are arguments."""
# B images, S side, M side of the fog's map

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antishortcut.data.corruptions.blur import motion_blur, zoom_line
from antishortcut.data.corruptions.noise import Bytes, Floats, as_bytes

GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def snow(images: Bytes, constants: tuple[float, ...], normal: Floats, angle: Floats) -> Bytes:
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


def frost(images: Bytes, weights: tuple[float, float], ice: Bytes) -> Bytes:
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
    """V of HSV raised, clipped to 1; hue and saturation stay."""
    value, faded = value_and_fading(images)
    return as_bytes((value + added).clip(0, 1) * (1 - faded))


def value_and_fading(images: Bytes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """V of HSV (B, S, S, 1), and how far each channel falls short of it as a share of V (B, S, S, 3).

    The greatest share is S of HSV. With another V or S every channel is V (1 - share), the shares scaled alike: the
    same as going to HSV and back.
    """
    values = images / 255  # (B, S, S, 3)
    red, green, blue = (values[..., channel, None] for channel in range(3))
    value = np.maximum(np.maximum(red, green), blue)  # (B, S, S, 1)
    return value, (value - values) / np.where(value > 0, value, 1)


def crops(textures: tuple[Bytes, ...], side: int, uniform: Floats) -> Bytes:
    """A square of a texture for every image, (B, S, S, 3); uniform draws (B, 3) choose texture, row and column."""
    which = (uniform[:, 0] * len(textures)).astype(int)  # (B,)
    cut = np.empty((len(uniform), side, side, 3), dtype=np.uint8)
    for number, texture in enumerate(textures):
        mine = np.flatnonzero(which == number)
        room = np.array(texture.shape[:2]) - side  # the last row and column are never drawn, as in the scripts
        row, column = (uniform[mine, 1:] * room).astype(int).T
        windows = np.lib.stride_tricks.sliding_window_view(texture, (side, side), axis=(0, 1))  # (…, …, 3, S, S)
        cut[mine] = windows[row, column].transpose(0, 2, 3, 1)
    return cut
