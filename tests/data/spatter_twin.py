"""Spatter spelled out: OpenCV's Canny, distance transform, blur and histogram equalisation, pixel by pixel."""
# S side

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.data.corruption_twins import clipped, gaussian, mirrored

Array = NDArray[Any]


def correlate(values: Array, kernel: Array) -> Array:
    """3 × 3 taps, BORDER_REFLECT_101."""
    side = len(values)
    out = np.zeros((side, side))
    for y, x in np.ndindex(side, side):
        for j, i in np.ndindex(3, 3):
            out[y, x] += kernel[j, i] * values[mirrored(y + j - 1, side), mirrored(x + i - 1, side)]
    return out


def canny(image: Array, low: int, high: int) -> Array:
    side = len(image)
    padded = np.pad(image.astype(int), 1, mode="edge")
    dx, dy, size = (np.zeros((side, side), dtype=int) for _ in range(3))
    for y, x in np.ndindex(side, side):
        a = padded[y : y + 3, x : x + 3]
        dx[y, x] = a[0, 2] + 2 * a[1, 2] + a[2, 2] - a[0, 0] - 2 * a[1, 0] - a[2, 0]
        dy[y, x] = a[2, 0] + 2 * a[2, 1] + a[2, 2] - a[0, 0] - 2 * a[0, 1] - a[0, 2]
        size[y, x] = abs(dx[y, x]) + abs(dy[y, x])
    around = np.pad(size, 1)
    ridge = np.zeros((side, side), dtype=bool)
    for y, x in np.ndindex(side, side):
        m, near = size[y, x], around[y : y + 3, x : x + 3]
        if m <= low:
            continue
        across, down = int(dx[y, x]), int(dy[y, x])
        steep, tangent = abs(down) << 15, abs(across) * 13573
        if steep < tangent:
            ridge[y, x] = m > near[1, 0] and m >= near[1, 2]
        elif steep > tangent + (abs(across) << 16):
            ridge[y, x] = m > near[0, 1] and m >= near[2, 1]
        else:
            s = -1 if (across ^ down) < 0 else 1
            ridge[y, x] = m > near[0, 1 - s] and m > near[2, 1 + s]
    edges = np.zeros((side, side), dtype=bool)
    stack = [(int(y), int(x)) for y, x in np.argwhere(ridge & (size > high))]
    while stack:
        y, x = stack.pop()
        if 0 <= y < side and 0 <= x < side and ridge[y, x] and not edges[y, x]:
            edges[y, x] = True
            stack += [(y + j, x + i) for j in (-1, 0, 1) for i in (-1, 0, 1)]
    return edges


def chamfer(edges: Array) -> Array:
    """DIST_L2 with a 5 × 5 mask: once down, once up."""
    side = len(edges)
    lengths = {1: 1.0, 2: 1.4, 5: 2.1969}
    above = [(j, i) for j in (-2, -1, 0) for i in range(-2, 3) if (j, i) < (0, 0) and j * j + i * i in lengths]
    far = np.where(edges, 0.0, 1e9)
    for sign in (1, -1):
        for y, x in list(np.ndindex(side, side))[::sign]:
            for j, i in above:
                if 0 <= y + sign * j < side and 0 <= x + sign * i < side:
                    far[y, x] = min(far[y, x], far[y + sign * j, x + sign * i] + lengths[j * j + i * i])
    return far


def equalize(image: Array) -> Array:
    counts = np.bincount(image.ravel(), minlength=256)
    first = int(np.flatnonzero(counts)[0])
    if counts[first] == image.size:
        return np.asarray(image)
    table, total = np.zeros(256), 0
    for level in range(first + 1, 256):
        total += counts[level]
        table[level] = round(float(np.float32(total) * (np.float32(255) / np.float32(image.size - counts[first]))))
    return table.astype(np.uint8)[image]


def spatter(image: Array, constants: tuple[float, ...], normal: Array) -> Array:
    mean, deviation, sigma, threshold, strength, mud = constants
    x = image.astype(np.float32) / 255.0
    liquid = gaussian(mean + deviation * normal, sigma)
    liquid[liquid < threshold] = 0
    if mud:
        m = gaussian(np.where(liquid > threshold, 1, 0).astype(np.float32), strength)
        m[m < 0.8] = 0
        return clipped(x * (1 - m[..., np.newaxis]) + np.array([63, 42, 20]) / 255.0 * m[..., np.newaxis])
    drops = (liquid * 255).astype(np.uint8)
    ones = np.ones((3, 3))
    far = np.minimum(chamfer(canny(drops, 50, 150)), 20)
    level = equalize((correlate(far, ones) / 9).astype(np.uint8))
    relief = np.clip(correlate(level, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])), 0, 255)
    light = drops * np.rint(correlate(relief, ones) / 9).astype(np.float32)
    light = light / light.max() * strength
    return clipped(x + light[..., np.newaxis] * (np.array([175, 238, 238]) / 255.0))
