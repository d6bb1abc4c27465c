"""Which style an image gets: a stateless draw, so that every method and every machine sees the same pairs."""
# N images to stylise, M training images

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antishortcut.data.draws import uniform
from antishortcut.errors import UserError

VERSION = 1  # of the draws and the pixels; raise it when either changes
STREAM = 0x57_59_4C_45  # apart from the streams of data/draws.py

Ints = NDArray[np.int64]


def another_class(label: Ints, place: Ints, train_label: Ints, seed: int) -> Ints:
    """For every image (N,), a training image of another class, all of them equally likely. Places in (M,), as (N,).

    `place` is the image's number in its whole set: a part of the set gets the same styles as the whole.
    """
    by_class = np.argsort(train_label, kind="stable")  # (M,)
    sizes = np.bincount(train_label, minlength=int(label.max()) + 1)  # (classes,)
    first = np.cumsum(sizes) - sizes  # (classes,) where a class begins in by_class
    others = len(train_label) - sizes[label]  # (N,)
    if (others == 0).any():
        raise UserError("the training images are all of one class, so none can give its style to another; use --styles")
    draw = (uniform(seed, VERSION, place, STREAM) * others).astype(np.int64)  # (N,)
    skip = np.where(draw >= first[label], sizes[label], 0)  # (N,) the image's own class is left out
    return np.asarray(by_class[draw + skip])


def any_style(place: Ints, count: int, seed: int) -> Ints:
    """For every image (N,), one of `count` styles, all equally likely. (N,)."""
    return np.asarray(uniform(seed, VERSION, place, STREAM) * count).astype(np.int64)
