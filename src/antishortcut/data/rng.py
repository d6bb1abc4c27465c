"""Randomness without state: every draw is a hash of its keys, so nothing has to be stored, forked or replayed."""
# N images, G groups

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Words = NDArray[np.uint64]

_WORD = 2**64 - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)

# Streams keep the draws of one image apart; the numbers are part of every recorded result, so they never change.
ORDER, ROW, COLUMN, FLIP, PIPELINE, SPLIT, CLASS, SCALE = range(8)
AGREES, OTHER, ACROSS, DOWN = range(20, 24)  # of planted shortcuts; 8 is of mixup
GROUP, MEMBER = 24, 25  # of balanced draws; 9 to 15 are of strong views
PROBE = 26  # of shuffled patches


def mix(*keys: ArrayLike) -> Words:
    """Hash integer keys (broadcast against each other) to 64 bits: splitmix64's finaliser, chained over the keys.

    A bijection of the last key for fixed earlier ones, hence without collisions along an index.
    """
    state: Words = np.zeros((), dtype=np.uint64)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the point
        for key in keys:
            state = (state ^ _word(key)) + _GOLDEN
            state = (state ^ (state >> np.uint64(30))) * _FIRST
            state = (state ^ (state >> np.uint64(27))) * _SECOND
            state = state ^ (state >> np.uint64(31))
    return np.asarray(state)


def uniform(seed: int, epoch: int, index: ArrayLike, stream: int) -> NDArray[np.float64]:
    """Uniform draws in [0, 1), one for every index, in its shape."""
    top = mix(seed, epoch, stream, index) >> np.uint64(11)  # the 53 bits a double holds exactly
    return np.asarray(top * 2.0**-53)


def below(bound: int, seed: int, epoch: int, index: ArrayLike, stream: int) -> NDArray[np.int64]:
    """Uniform integers in [0, bound), one for every index, in its shape."""
    return np.asarray(uniform(seed, epoch, index, stream) * bound).astype(np.int64)


def order(count: int, seed: int, epoch: int) -> Tensor:
    """The order of `count` images in an epoch: a permutation, (N,) int64."""
    return torch.from_numpy(np.argsort(mix(seed, epoch, ORDER, np.arange(count)), kind="stable"))  # (N,)


def balanced_draws(group: Tensor, seed: int, epoch: int) -> Tensor:
    """The images of an epoch, as many as there are, drawn with replacement: any group, then any of its images.

    group: every image's (N,), numbered from 0 without gaps. Returns places (N,) int64.
    """
    number = group.numpy()
    by_group, size = np.argsort(number, kind="stable"), np.bincount(number)  # (N,), (G,)
    first = np.cumsum(size) - size  # (G,)
    place = np.arange(len(number))
    drawn = below(len(size), seed, epoch, place, GROUP)  # (N,)
    member = (uniform(seed, epoch, place, MEMBER) * size[drawn]).astype(np.int64)  # (N,)
    return torch.from_numpy(by_group[first[drawn] + member])


def _word(key: ArrayLike) -> Words:
    if isinstance(key, int):
        return np.asarray(key & _WORD, dtype=np.uint64)  # Python integers are signed and unbounded
    return np.asarray(key).astype(np.uint64)
