"""Digital: contrast, elastic transform, pixelate, JPEG. Random draws are arguments."""
# B images, S side

from functools import lru_cache
from io import BytesIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from torch.nn import functional as F

from antishortcut.data.corruptions.noise import Bytes, Floats, as_bytes

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
