"""Spatter: drops of water, or mud. The water's shading is made of OpenCV's operations, which are rebuilt here."""
# B images, S side

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from antishortcut.data.corruptions.blur import smooth
from antishortcut.data.corruptions.noise import Bytes, Floats, Ints, as_bytes

WATER = np.array([175, 238, 238], dtype=np.float32) / 255  # pale turquoise
MUD = np.array([63, 42, 20], dtype=np.float32) / 255  # brown
EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
WEAK, STRONG = 50, 150  # Canny's thresholds
FARTHEST = 20.0  # pixels from an edge
TANGENT = 13573  # of 22.5°, in units of 2^-15
EIGHT = np.stack([np.zeros((3, 3)), np.ones((3, 3)), np.zeros((3, 3))])  # neighbours within one image of a batch


def spatter(images: Bytes, constants: tuple[float, ...], normal: Floats) -> Bytes:
    """Images (B, S, S, 3), standard normal draws (B, S, S)."""
    mean, deviation, sigma, threshold, strength, mud = constants
    liquid = smooth(mean + deviation * normal, sigma)  # (B, S, S)
    liquid[liquid < threshold] = 0
    values = images / np.float32(255)
    if mud:
        cover = smooth((liquid > threshold).astype(np.float32), strength)[..., None]  # (B, S, S, 1)
        cover[cover < 0.8] = 0
        return as_bytes(values * (1 - cover) + MUD * cover)
    drops = (liquid * 255).astype(np.uint8)
    light = drops * shading(drops)  # (B, S, S)
    brightest = light.max(axis=(1, 2), keepdims=True)
    light = light / np.where(brightest > 0, brightest, 1) * np.float32(strength)
    return as_bytes(values + light[..., None] * WATER)


def shading(drops: Bytes) -> NDArray[np.float32]:
    """How light drops are: distance from their edge, equalised and embossed. (B, S, S)."""
    distance = np.minimum(edge_distance(canny(drops)), FARTHEST)
    levels = equalized(_mean_of_nine(distance).astype(np.uint8))
    relief = ndimage.correlate(levels.astype(np.int32), EMBOSS[None], mode="mirror").clip(0, 255)
    return np.rint(_mean_of_nine(relief.astype(np.float64))).astype(np.float32)


def _mean_of_nine(values: Floats) -> Floats:
    total: Floats = ndimage.correlate(values, np.ones((1, 3, 3)), mode="mirror")
    return total * (1 / 9)  # once, at the end: nine twenties make twenty


def canny(images: Bytes) -> NDArray[np.bool_]:
    """Edges: ridges of |Sobel x| + |Sobel y| above WEAK that hang together with one above STRONG. (B, S, S)."""
    values = images.astype(np.int32)
    across, down = (_sobel(values, axis) for axis in (2, 1))
    size = abs(across) + abs(down)
    padded = np.pad(size, ((0, 0), (1, 1), (1, 1)))  # no edges outside

    def beside(y: int, x: int) -> Ints:
        rows, columns = (slice(1 + by, by + padded.shape[1] - 1) for by in (y, x))
        return padded[:, rows, columns]

    steep, flat = abs(down) << 15, abs(across) * TANGENT
    level = (size > beside(0, -1)) & (size >= beside(0, 1))
    upright = (size > beside(-1, 0)) & (size >= beside(1, 0))
    falling = (size > beside(-1, -1)) & (size > beside(1, 1))
    rising = (size > beside(-1, 1)) & (size > beside(1, -1))
    slanted = np.where((across ^ down) < 0, rising, falling)
    ridge = np.where(steep < flat, level, np.where(steep > flat + (abs(across) << 16), upright, slanted))
    groups, count = ndimage.label(ridge & (size > WEAK), structure=EIGHT)
    strong = np.zeros(count + 1, dtype=bool)
    strong[groups[ridge & (size > STRONG)]] = True
    strong[0] = False
    return strong[groups]


def _sobel(values: Ints, axis: int) -> Ints:
    slope = ndimage.correlate1d(values, [-1, 0, 1], axis=axis, mode="nearest")
    sobel: Ints = ndimage.correlate1d(slope, [1, 2, 1], axis=3 - axis, mode="nearest")
    return sobel


def edge_distance(edges: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Length of the shortest way to an edge by steps of 1 (straight), 1.4 (diagonal) and 2.1969 (knight), (B, S, S).

    OpenCV's DIST_L2 with a mask of 5 × 5. Ways longer than FARTHEST count as that long.
    """
    lengths = {1: 1.0, 2: 1.4, 5: 2.1969}
    steps = {(y, x): lengths[y * y + x * x] for y, x in product(range(-2, 3), repeat=2) if y * y + x * x in lengths}
    side = edges.shape[1]
    padded = np.full((len(edges), side + 4, side + 4), FARTHEST)
    inner = padded[:, 2:-2, 2:-2]
    inner[edges] = 0
    while True:
        before = inner.copy()
        for (y, x), length in steps.items():
            np.minimum(inner, padded[:, 2 + y : 2 + y + side, 2 + x : 2 + x + side] + length, out=inner)
        if np.array_equal(before, inner):
            return before


def equalized(images: Bytes) -> Bytes:
    """Histograms flattened image by image as OpenCV does: the darkest level becomes 0, the brightest 255."""
    count = len(images)
    levels = images.reshape(count, -1).astype(np.int64) + 256 * np.arange(count)[:, None]
    histogram = np.bincount(levels.ravel(), minlength=256 * count).reshape(count, 256)
    pixels = images[0].size
    first = (histogram > 0).argmax(axis=1)  # (B,)
    darkest = histogram[np.arange(count), first]  # (B,)
    scale = np.float32(255) / np.maximum(pixels - darkest, 1).astype(np.float32)
    above = np.maximum(histogram.cumsum(axis=1) - darkest[:, None], 0)  # (B, 256)
    table = np.rint(above.astype(np.float32) * scale[:, None]).clip(0, 255)
    table = np.where((darkest == pixels)[:, None], np.arange(256), table).astype(np.uint8)
    return np.asarray(table.ravel()[levels].reshape(images.shape))
