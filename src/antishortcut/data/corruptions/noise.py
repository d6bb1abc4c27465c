"""Noise. Each takes its draws as an argument, so that it is a pure function; scales are those of values in [0, 1]."""
# B images, S side

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
