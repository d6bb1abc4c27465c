"""Randomness without state: every draw is a hash of its keys, so nothing has to be stored, forked or replayed."""
# N images

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
AGREES, OTHER, ACROSS, DOWN = range(8, 12)  # of planted shortcuts


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


def _word(key: ArrayLike) -> Words:
    if isinstance(key, int):
        return np.asarray(key & _WORD, dtype=np.uint64)  # Python integers are signed and unbounded
    return np.asarray(key).astype(np.uint64)
