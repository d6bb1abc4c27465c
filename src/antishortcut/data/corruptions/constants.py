"""The published constants of CIFAR-C, Tiny-ImageNet-C and ImageNet-C (Hendrycks & Dietterich 2019), by severity.

Numbers as in the scripts make_cifar_c.py, make_tinyimagenet_c.py and make_imagenet_c.py of hendrycks/robustness, which
made the released files for images of 32, 64 and 224 pixels. Images of another side take the nearest of the three.
"""

import math
from typing import Any

VERSION: int = 1  # of the pixels: another one makes other bytes

CORRUPTIONS: tuple[str, ...] = (  # the place here seeds the draws, so the order never changes
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip

GROUPS: dict[str, tuple[str, ...]] = {
    "texture": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
}
SEVERITIES: tuple[int, ...] = (1, 2, 3, 4, 5)

SMALLEST = 16  # pixels a side; the constants mean nothing below
CHUNK: dict[int, int] = {32: 250, 64: 100, 224: 16}  # images that share a seed, by table: a few megabytes either way

# Single numbers are: of noise the standard deviation, shot_noise photons at full brightness, impulse_noise share of
# values, brightness added to V of HSV, contrast factor about the mean, pixelate factor of the side, jpeg_compression
# quality.

# fmt: off
_CONSTANTS: dict[str, tuple[tuple[Any, ...], ...]] = {  # for images of 32, 64 and 224 pixels, five severities each
    "gaussian_noise": ((0.04, 0.06, 0.08, 0.09, 0.1), (0.04, 0.08, 0.12, 0.15, 0.18), (0.08, 0.12, 0.18, 0.26, 0.38)),
    "shot_noise": ((500, 250, 100, 75, 50), (250, 100, 50, 30, 15), (60, 25, 12, 5, 3)),
    "impulse_noise": ((0.01, 0.02, 0.03, 0.05, 0.07), (0.01, 0.02, 0.05, 0.08, 0.14), (0.03, 0.06, 0.09, 0.17, 0.27)),
    "defocus_blur": (  # radius of the disk, standard deviation of its smoothing
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    "glass_blur": (  # standard deviation, reach of the shuffling, times it is repeated
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    "motion_blur": (  # radius and standard deviation of the one-sided kernel
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    ),
    "zoom_blur": (  # end and step of np.arange(1, end, step)
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    ),
    "snow": (  # mean, standard deviation, zoom, threshold, blur radius and deviation, share of the image
        ((0.1, 0.2, 1, 0.6, 8, 3, 0.95), (0.1, 0.2, 1, 0.5, 10, 4, 0.9), (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
         (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85), (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8)),
        ((0.1, 0.2, 1, 0.6, 8, 3, 0.8), (0.1, 0.2, 1, 0.5, 10, 4, 0.8), (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
         (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65), (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6)),
        ((0.1, 0.3, 3, 0.5, 10, 4, 0.8), (0.2, 0.3, 2, 0.5, 12, 4, 0.7), (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
         (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65), (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55)),
    ),
    "frost": (  # weights of image and frost
        ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
        ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    ),
    "fog": (  # strength, decay of the wibble
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    ),
    "brightness": ((0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5), (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": ((0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05), (0.4, 0.3, 0.2, 0.1, 0.05)),
    "elastic_transform": (  # alpha, sigma and reach of the corners, in shares of the side
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        ((0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)),
        ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
    ),
    "pixelate": ((0.95, 0.9, 0.85, 0.75, 0.65), (0.9, 0.8, 0.7, 0.6, 0.5), (0.6, 0.5, 0.4, 0.3, 0.25)),
    "jpeg_compression": ((80, 65, 58, 50, 40), (65, 58, 50, 40, 25), (25, 18, 15, 10, 7)),
}
# fmt: on

_CONSTANTS["elastic_transform"] = tuple(  # in pixels; 244, not 224, as in the official script
    tuple(tuple(side * share for share in row) for row in rows)
    for side, rows in zip((32, 64, 244), _CONSTANTS["elastic_transform"], strict=True)
)
TABLES: dict[int, dict[str, tuple[Any, ...]]] = {
    side: {name: rows[at] for name, rows in _CONSTANTS.items()} for at, side in enumerate((32, 64, 224))
}


def table_of(side: int) -> int:
    """32, 64 or 224, whichever is nearest by ratio: up to 45 pixels, up to 119, and above."""
    return min(TABLES, key=lambda size: abs(math.log(side / size)))
