"""Slow twins of the corruptions: one image at a time, straight from the official definitions.

Libraries of theirs that are not installed (OpenCV, scikit-image, ImageMagick) are spelled out pixel by pixel.
"""
# S side

import colorsys
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from antishortcut.data.synthetic import make_cues

Array = NDArray[Any]


@lru_cache
def pictures(count: int, side: int = 32) -> Array:
    """Glyphs on textures, one of pure noise with all its bytes, one black and white in halves, one grey ramp."""
    small = make_cues("iid", count, seed=5).image.permute(0, 2, 3, 1).numpy()
    drawn = np.stack([np.asarray(Image.fromarray(image).resize((side, side))) for image in small])
    drawn[0] = np.random.default_rng(0).integers(0, 256, drawn[0].shape)
    if count > 2:
        drawn[1] = np.where(np.arange(side) < side // 2, 0, 255)[:, None, None]
        drawn[2] = np.linspace(0, 255, side * side).reshape(side, side, 1)
    drawn.flags.writeable = False
    return np.asarray(drawn)


def clipped(values: Array) -> Array:
    """np.uint8 of np.clip(x, 0, 1) * 255, as all scripts end; a hair more, so that rounding errors cost no byte."""
    return np.asarray(np.clip(values, 0, 1) * 255.0 + 1e-4).astype(np.uint8)


def gaussian(
    image: Array, sigma: float, mode: Literal["nearest", "reflect"] = "nearest", truncate: float = 4.0
) -> Array:
    """skimage.filters.gaussian with channels last."""
    sigmas = [sigma, sigma, 0][: image.ndim]
    return np.asarray(ndimage.gaussian_filter(image, sigmas, mode=mode, truncate=truncate))


def mirrored(at: int, side: int) -> int:
    """OpenCV's BORDER_REFLECT_101: … 2 1 | 0 1 2 … S-1 | S-2 …"""
    period = 2 * side - 2
    at %= period
    return at if at < side else period - at


def brightness(image: Array, added: float) -> Array:
    out = np.empty(image.shape)
    for place in np.ndindex(image.shape[:2]):
        hue, saturation, value = colorsys.rgb_to_hsv(*(image[place] / 255.0))
        out[place] = colorsys.hsv_to_rgb(hue, saturation, min(value + added, 1))
    return clipped(out)


def clipped_zoom(image: Array, factor: float) -> Array:
    side = image.shape[0]
    crop = int(np.ceil(side / factor))
    top = (side - crop) // 2
    grown = ndimage.zoom(image[top : top + crop, top : top + crop], (factor, factor, 1), order=1)
    trim = (grown.shape[0] - side) // 2
    return np.asarray(grown[trim : trim + side, trim : trim + side])


def zoom_blur(image: Array, end: float, step: float) -> Array:
    x = (image / 255.0).astype(np.float32)
    factors = np.arange(1, end, step)
    out = np.zeros_like(x)
    for factor in factors:
        out += clipped_zoom(x, factor)
    return clipped((x + out) / (len(factors) + 1))


def disk(radius: float, alias: float) -> Array:
    reach, taps = (8, 1) if radius <= 8 else (int(radius), 2)
    side = 2 * reach + 1
    flat = np.array([[x * x + y * y <= radius**2 for x in range(-reach, reach + 1)] for y in range(-reach, reach + 1)])
    flat = flat / flat.sum()
    bell = np.array([math.exp(-(i**2) / (2 * alias**2)) for i in range(-taps, taps + 1)])
    bell /= bell.sum()
    out = np.zeros_like(flat)
    for y, x in np.ndindex(out.shape):
        for j, i in np.ndindex(len(bell), len(bell)):
            out[y, x] += bell[j] * bell[i] * flat[mirrored(y + j - taps, side), mirrored(x + i - taps, side)]
    return np.asarray(out)


def defocus_blur(image: Array, radius: float, alias: float) -> Array:
    """Correlation with the disk, tap by tap."""
    kernel = disk(radius, alias)
    side, reach = len(image), len(kernel) // 2
    rows = np.array([[mirrored(y + j, side) for y in range(side)] for j in range(-reach, reach + 1)])
    x, out = image / 255.0, np.zeros(image.shape)
    for j, i in np.argwhere(kernel > 0):
        out += kernel[j, i] * x[rows[j]][:, rows[i]]
    return clipped(out)


def glass_blur(image: Array, sigma: float, reach: int, delta: Array) -> Array:
    """The script's loop, its swap of views and all. delta (repeats, 2, S, S): dx and dy."""
    side = len(image)
    x = clipped(gaussian(image / 255.0, sigma))
    for turn in range(len(delta)):
        for h in range(side - reach, reach, -1):
            for w in range(side - reach, reach, -1):
                dx, dy = delta[turn, :, h, w]
                h_prime, w_prime = h + dy, w + dx
                x[h, w], x[h_prime, w_prime] = x[h_prime, w_prime], x[h, w]
    return clipped(gaussian(x / 255.0, sigma))


def magick_motion(image: Array, radius: float, sigma: float, angle: float) -> Array:
    """ImageMagick's MotionBlurImage on bytes, (S, S, C): a one-sided Gaussian, the edge repeated."""
    side = len(image)
    width = 2 * math.ceil(radius) + 1
    kernel = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(width)]
    turn = math.radians(angle)
    out = np.zeros(image.shape)
    for i, weight in enumerate(kernel):
        dx, dy = math.ceil(i * math.cos(turn) - 0.5), math.ceil(i * math.sin(turn) - 0.5)
        for y, x in np.ndindex(side, side):
            out[y, x] += weight * image[min(max(y + dy, 0), side - 1), min(max(x + dx, 0), side - 1)]
    return np.floor(out / sum(kernel) + 0.5).astype(np.uint8)


def snow(image: Array, constants: tuple[float, ...], normal: Array, angle: float) -> Array:
    mean, deviation, zoom, threshold, radius, sigma, share = constants
    x = image.astype(np.float32) / 255.0
    layer = clipped_zoom((mean + deviation * normal)[..., np.newaxis], zoom)
    layer[layer < threshold] = 0
    blown = magick_motion(clipped(layer), radius, sigma, angle) / 255.0
    grey = (0.299 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2])[..., np.newaxis]
    x = share * x + (1 - share) * np.maximum(x, grey * 1.5 + 0.5)
    return clipped(x + blown + np.rot90(blown, k=2))


def plasma_fractal(size: int, decay: float, draws: Iterator[float]) -> Array:
    """The diamond-square algorithm, point by point on a torus."""
    field = np.zeros((size, size))
    step, wibble = size, 100.0
    while step >= 2:
        half = step // 2
        for y0, x0 in ((half, half), (0, half), (half, 0)):
            new = {}
            for y, x in ((y, x) for y in range(y0, size, step) for x in range(x0, size, step)):
                if (y0, x0) == (half, half):
                    around = [(y - half, x - half), (y - half, x + half), (y + half, x - half), (y + half, x + half)]
                else:
                    around = [(y - half, x), (y + half, x), (y, x - half), (y, x + half)]
                mean = sum(field[j % size, i % size] for j, i in around) / 4
                new[y, x] = mean + wibble * (wibble * next(draws))
            for place, value in new.items():
                field[place] = value
        step, wibble = half, wibble / decay
    field -= field.min()
    return np.asarray(field / field.max())


def fog(image: Array, strength: float, field: Array) -> Array:
    x = image / 255.0
    brightest = x.max()
    side = len(image)
    return clipped((x + strength * field[:side, :side, np.newaxis]) * brightest / (brightest + strength))


def warp_affine(image: Array, matrix: Array) -> Array:
    """cv2.warpAffine, bilinear, BORDER_REFLECT_101: fixed-point coordinates with five bits after the point."""
    side = len(image)
    inverse = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))
    out = np.empty_like(image)
    for y, x in np.ndindex(side, side):
        fixed = [round(row[0] * x * 1024) + round((row[1] * y + row[2]) * 1024) + 16 >> 5 for row in inverse[:2]]
        (left, a), (top, b) = (divmod(place, 32) for place in fixed)
        near = [[image[mirrored(top + j, side), mirrored(left + i, side)] for i in (0, 1)] for j in (0, 1)]
        a, b = a / 32, b / 32
        out[y, x] = (1 - b) * ((1 - a) * near[0][0] + a * near[0][1]) + b * ((1 - a) * near[1][0] + a * near[1][1])
    return out


def elastic_transform(image: Array, alpha: float, sigma: float, corners: Array, field: Array) -> Array:
    x = image.astype(np.float32) / 255.0
    side = len(image)
    centre, square = side // 2, side // 3
    before = np.array([[centre + square] * 2, [centre + square, centre - square], [centre - square] * 2], np.float32)
    after = before + corners.astype(np.float32)
    matrix = np.linalg.solve(np.c_[before, np.ones(3)].astype(np.float64), after.astype(np.float64)).T  # (2, 3)
    x = warp_affine(x, matrix)
    dx, dy = ((gaussian(noise, sigma, "reflect", 3) * alpha).astype(np.float32) for noise in field)
    rows, columns, channels = np.meshgrid(np.arange(side), np.arange(side), np.arange(3), indexing="ij")
    places = np.stack([rows + dy[..., np.newaxis], columns + dx[..., np.newaxis], channels])
    return clipped(ndimage.map_coordinates(x, places, order=1, mode="reflect"))
