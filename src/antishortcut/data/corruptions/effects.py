"""Noise, blur and digital corruptions: pure functions, whose random draws are arguments. Scales are of [0, 1]."""
# B images, S side, P = S · S pixels, C channels, T taps of a kernel

import math
from functools import lru_cache
from io import BytesIO
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage, sparse
from scipy.fft import irfft2, next_fast_len, rfft2
from torch.nn import functional as F

Bytes = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]

HAIR = 1e-4  # of a byte: what would be a whole byte but for rounding errors is one


def as_bytes(values: Floats, white: float = 1.0) -> Bytes:
    """Values from 0 to `white`, clipped, to bytes; what is left of a byte is cut off, as the official scripts do."""
    scaled = values.clip(0, white)
    scaled *= 255 / white
    scaled += HAIR
    return scaled.astype(np.uint8)


def gaussian_noise(images: Bytes, sigma: float, normal: Floats) -> Bytes:
    """x + sigma · n. Images and standard normal draws (B, S, S, 3)."""
    return as_bytes(images / np.float32(255) + np.float32(sigma) * normal)


def shot_noise(photons: float, count: Ints) -> Bytes:
    """k / photons, where count k ~ Poisson(x · photons) has been drawn for every value, (B, S, S, 3)."""
    return as_bytes(count / photons)


def impulse_noise(images: Bytes, amount: float, uniform: Floats) -> Bytes:
    """White for u < amount / 2, black up to amount. Images and uniform draws in [0, 1) (B, S, S, 3)."""
    struck = np.where(uniform < amount / 2, np.uint8(255), np.uint8(0))  # (B, S, S, 3)
    return np.where(uniform < amount, struck, images)


FEW_TAPS = 64  # above this a Fourier transform is quicker
NOTHING = 1e-9  # weights below this cannot change a byte


def smooth(values: Floats, sigma: float) -> Floats:
    """skimage's Gaussian filter: up to four standard deviations, edges repeated. Values (B, S, S, …)."""
    smoothed: Floats = ndimage.gaussian_filter(values, sigma, mode="nearest", truncate=4.0, axes=(1, 2))
    return smoothed


def defocus_blur(images: Bytes, radius: float, alias: float) -> Bytes:
    """Convolution with a disk of this radius, itself smoothed; mirrored at the edge, which is not repeated."""
    kernel = disk(radius, alias)  # (K, K), symmetric
    values = images / 255
    if np.count_nonzero(kernel) <= FEW_TAPS:
        return as_bytes(ndimage.correlate(values, kernel[None, :, :, None], mode="mirror"))
    side, reach = images.shape[1], len(kernel) // 2
    margins = ((0, 0), (reach, reach), (reach, reach), (0, 0))
    padded = np.pad(values, margins, mode="reflect")  # (B, S + 2 reach, S + 2 reach, 3)
    size = [next_fast_len(padded.shape[1], real=True)] * 2
    waves = rfft2(padded, size, axes=(1, 2)) * rfft2(kernel, size)[None, :, :, None]
    inner = slice(2 * reach, 2 * reach + side)  # the transform is periodic: values from the other edge lie before
    return as_bytes(irfft2(waves, size, axes=(1, 2))[:, inner, inner])


@lru_cache(maxsize=32)
def disk(radius: float, alias: float) -> NDArray[np.float64]:
    """A disk of sum 1, smoothed by a Gaussian of 3 × 3 taps, or 5 × 5 beyond radius 8; its empty margin is cut off."""
    half = 8 if radius <= 8 else int(radius)
    across = np.arange(-half, half + 1)
    inside = (across[:, None] ** 2 + across**2 <= radius**2).astype(np.float64)
    taps = np.arange(-1, 2) if radius <= 8 else np.arange(-2, 3)
    bell = np.exp(-(taps**2) / (2 * alias**2))
    bell /= bell.sum()
    kernel = ndimage.correlate(inside / inside.sum(), np.outer(bell, bell), mode="mirror")
    kernel[kernel < NOTHING] = 0
    margin = int(np.flatnonzero(kernel.any(axis=0))[0])
    inner = slice(margin, len(kernel) - margin)
    return np.asarray(kernel[inner, inner])


def glass_blur(images: Bytes, sigma: float, reach: int, delta: Ints) -> Bytes:
    """Smooth, let pixels take the colour of neighbours, smooth again. delta (B, repeats, 2, S, S): see `taken`."""
    smoothed = as_bytes(smooth(images / 255, sigma))  # (B, S, S, 3)
    place = np.arange(smoothed.size // 3)  # (B · P,)
    for turn in range(delta.shape[1]):
        place = place[taken(delta[:, turn], reach)]
    return as_bytes(smooth(smoothed.reshape(-1, 3)[place].reshape(images.shape) / 255, sigma))


def taken(delta: Ints, reach: int) -> NDArray[np.int64]:
    """Where every pixel's colour comes from, as places in the flattened batch, (B · P,).

    Row by row from the bottom right, pixel (h, w) takes the present colour of (h + dy, w + dx), with (dx, dy) =
    delta[:, :, h, w] in [-reach, reach). The official scripts mean to swap the two pixels, but both sides of their
    assignment are views, so the second half does nothing. A neighbour further on still has its own colour; one that
    had its turn has another's already, which is looked up in its stead, until all colours are original ones.
    """
    count, _, side, _ = delta.shape
    moves = np.zeros((side, side), dtype=bool)
    moves[reach + 1 : side - reach + 1, reach + 1 : side - reach + 1] = True
    here = np.arange(side * side)
    step = delta[:, 1].astype(np.int64) * side + delta[:, 0]  # (B, S, S)
    source = here + np.where(moves, step, 0).reshape(count, -1)  # (B, P)
    again = moves.ravel()[source] & (source > here)  # (B, P) the neighbour has had its turn
    source += side * side * np.arange(count)[:, None]
    place, follow = source.ravel(), again.ravel()  # (B · P,)
    result = place.copy()
    open_ = np.flatnonzero(follow)
    while len(open_):
        at = result[open_]
        result[open_] = place[at]
        open_ = open_[follow[at]]
    return result


def motion_blur(images: Bytes, radius: float, sigma: float, angle: Floats) -> Bytes:
    """Images (B, S, S, C) blurred along their angles (B,) in degrees, to the nearest byte.

    After ImageMagick: out(p) = Σ_i w_i in(p + o_i), with the edge repeated outside.

    w_i ∝ exp(-i² / 2 sigma²) for i = 0 … 2 ⌈radius⌉, one-sided, and o_i = ⌈i (cos, sin)(angle) - ½⌉. Images are sorted
    by angle, so that those which look up the same neighbour lie together and share one addition.
    """
    weight = np.exp(-(np.arange(2 * math.ceil(radius) + 1) ** 2) / (2 * sigma**2))  # (T,)
    weight = (weight / weight.sum())[weight > NOTHING * weight.sum()].astype(np.float32)
    count, side = images.shape[:2]
    order = np.argsort(angle, kind="stable")  # (B,)
    turn, tap = np.deg2rad(angle[order]), np.arange(len(weight))[:, None]
    down, right = (np.ceil(tap * part(turn) - 0.5).astype(int) for part in (np.sin, np.cos))  # (T, B)
    top, left = -min(0, down.min()), -min(0, right.min())
    margins = ((0, 0), (top, max(0, down.max())), (left, max(0, right.max())), (0, 0))
    padded = np.pad(images[order].astype(np.float32), margins, mode="edge")
    total = np.zeros(images.shape, dtype=np.float32)
    for share, y, x in zip(weight, down + top, right + left, strict=True):
        changes = np.flatnonzero((np.diff(y) != 0) | (np.diff(x) != 0)) + 1
        for low, high in pairwise((0, *changes.tolist(), count)):
            total[low:high] += share * padded[low:high, y[low] : y[low] + side, x[low] : x[low] + side]
    blurred = np.empty_like(total)
    blurred[order] = total
    return np.asarray(np.floor(blurred + 0.5)).clip(0, 255).astype(np.uint8)


def zoom_blur(images: Bytes, end: float, step: float) -> Bytes:
    """Mean of the image and of its centre enlarged by np.arange(1, end, step), which ends where rounding lets it."""
    matrix = zoom_mean(images.shape[1], end, step)  # (P, P)
    pixels = np.ascontiguousarray(images.transpose(1, 2, 0, 3)).reshape(matrix.shape[0], -1)  # (P, B · 3)
    mean = matrix @ (pixels / np.float32(255))  # (P, B · 3)
    side, count = images.shape[1], len(images)
    return np.ascontiguousarray(as_bytes(mean).reshape(side, side, count, 3).transpose(2, 0, 1, 3))


@lru_cache(maxsize=8)
def zoom_mean(side: int, end: float, step: float) -> sparse.csr_array:
    """All enlargements of a zoom blur and the image itself as one matrix, (P, P)."""
    factors = np.arange(1, end, step)
    total = sparse.eye_array(side * side, format="csr")
    for factor in factors:
        line = sparse.csr_array(zoom_line(side, float(factor)))
        total = total + sparse.kron(line, line, format="csr")
    return sparse.csr_array((total / (len(factors) + 1)).astype(np.float32))


@lru_cache(maxsize=64)
def zoom_line(side: int, factor: float) -> NDArray[np.float64]:
    """The middle of a line enlarged linearly and cut to its old length, as a matrix (S, S)."""
    crop = math.ceil(side / factor)
    start = (side - crop) // 2
    grown = ndimage.zoom(np.eye(side)[start : start + crop], (factor, 1), order=1)  # (about S, S)
    trim = (len(grown) - side) // 2
    return np.asarray(grown[trim : trim + side])


FINE = 1024  # OpenCV's warp adds coordinates in steps of 1/1024 pixel …
COARSE = 32  # … and reads them off in steps of 1/32


def contrast(images: Bytes, factor: float) -> Bytes:
    """Every channel drawn towards its mean over the image."""
    values = images / 255
    mean = values.mean(axis=(1, 2), keepdims=True)  # (B, 1, 1, 3)
    return as_bytes((values - mean) * factor + mean)


def pixelate(images: Bytes, factor: float) -> Bytes:
    """Shrunk to ⌊factor · S⌋ pixels by averaging boxes, and back."""
    side = images.shape[1]
    small, box = (int(side * factor),) * 2, Image.Resampling.BOX
    pictures = (Image.fromarray(image).resize(small, box).resize((side, side), box) for image in images)
    return np.stack([np.asarray(picture) for picture in pictures])


def jpeg_compression(images: Bytes, quality: int) -> Bytes:
    """Through JPEG, with Pillow's tables and its halved chroma."""
    return np.stack([_through_jpeg(image, quality) for image in images])


def _through_jpeg(image: Bytes, quality: int) -> Bytes:
    stored = BytesIO()
    Image.fromarray(image).save(stored, "JPEG", quality=quality)
    return np.asarray(Image.open(stored, formats=["JPEG"]))


def elastic_transform(images: Bytes, alpha: float, sigma: float, corners: Floats, field: Floats) -> Bytes:
    """A random affine map, then displacement by alpha times smoothed noise.

    Images (B, S, S, 3); corners (B, 3, 2), by how many pixels three points move; field (B, 2, S, S) in [-1, 1), the
    noise along x and y. Edges: mirrored without repetition by the map, with repetition by the displacement.
    """
    side = images.shape[1]
    values = torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32) / 255)  # (B, 3, S, S)
    warped = _sample(values, affine_places(side, corners), repeated=False)
    if alpha:
        lines = smoothing(side, sigma)  # (S, S)
        shift = (lines @ field @ lines.T * alpha).astype(np.float32)  # (B, 2, S, S)
        warped = _sample(warped, np.stack(np.meshgrid(np.arange(side), np.arange(side))) + shift, repeated=True)
    return np.ascontiguousarray(as_bytes(warped.numpy()).transpose(0, 2, 3, 1))


def affine_places(side: int, corners: Floats) -> NDArray[np.float32]:
    """Where every pixel of the result lies in the image, x and y, (B, 2, S, S), rounded as OpenCV's warp does.

    The map takes (c + s, c + s), (c + s, c - s) and (c - s, c - s) to the same points moved by `corners` (B, 3, 2);
    c = ⌊S / 2⌋, s = ⌊S / 3⌋.
    """
    high, low = side // 2 + side // 3, side // 2 - side // 3
    points = np.array([[high, high], [high, low], [low, low]], dtype=np.float32)
    there = (points + corners.astype(np.float32)).astype(np.float64)  # (B, 3, 2)
    flat = np.concatenate([there, np.ones_like(there[..., :1])], axis=2)  # (B, 3, 3), rows (x, y, 1)
    back = np.linalg.solve(flat, np.broadcast_to(points.astype(np.float64), there.shape))  # (B, 3, 2)
    along, across, start = (back[:, row, :, None, None] for row in range(3))  # each (B, 2, 1, 1)
    pixel = np.arange(side)
    right = np.rint(along * pixel * FINE)  # (B, 2, 1, S)
    down = np.rint((across * pixel[:, None] + start) * FINE)  # (B, 2, S, 1)
    return np.asarray(np.floor((right + down + FINE / COARSE / 2) / (FINE / COARSE)) / COARSE).astype(np.float32)


@lru_cache(maxsize=8)
def smoothing(side: int, sigma: float) -> NDArray[np.float64]:
    """A Gaussian filter of a line as a matrix, (S, S): up to three standard deviations, mirrored with the edge."""
    return np.asarray(ndimage.gaussian_filter1d(np.eye(side), sigma, axis=0, mode="reflect", truncate=3.0))


def _sample(values: torch.Tensor, places: NDArray[np.float32], repeated: bool) -> torch.Tensor:
    """Values (B, 3, S, S) at places (B, 2, S, S), x before y, bilinearly; outside they are mirrored."""
    side = values.shape[-1]
    unit = (2 * places + 1) / side - 1 if repeated else 2 * places / (side - 1) - 1  # -1 … 1, as grid_sample wants it
    grid = torch.from_numpy(unit.astype(np.float32).transpose(0, 2, 3, 1))  # (B, S, S, 2)
    return F.grid_sample(values, grid, mode="bilinear", padding_mode="reflection", align_corners=not repeated)
