"""Altered copies of images on disk, as CIFAR-C has them: <name>.npy of (N, H, W, 3) bytes, labels.npy beside it."""
# N images, S side of the square images

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antishortcut.errors import UserError, first_line
from antishortcut.fileio import atomic_path, plain
from antishortcut.types import ImageSet

Bytes = NDArray[np.uint8]


@contextmanager
def growing(path: Path, shape: tuple[int, int, int, int]) -> Iterator[Path]:
    """A file beside `path` holding an array of this shape, to be filled through `rows`; named `path` once whole."""
    with atomic_path(path) as name:
        np.lib.format.open_memmap(name, mode="w+", dtype=np.uint8, shape=shape).flush()
        yield name


def fill(path: Path, start: int, images: Bytes) -> None:
    """Put images (n, H, W, 3) at row `start` of a growing file; processes may fill different rows at once."""
    array = np.load(path, mmap_mode="r+", allow_pickle=False)
    array[start : start + len(images)] = images


def read_images(path: Path) -> Bytes:
    """The images of a .npy file, (N, S, S, 3), mapped into memory and checked; bad files get one line."""
    try:
        array: Bytes = _mapped(path)
    except FileNotFoundError:
        raise UserError(f"no file {path}") from None
    except Exception as error:  # numpy reads the head as Python, which can raise anything
        raise UserError(f"{path} is damaged or cut short ({first_line(error)}); fetch or make it again") from None
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3 or 0 in array.shape:
        raise UserError(f"{path} holds {array.dtype} of shape {array.shape}, not bytes of shape (N, H, W, 3)")
    if array.shape[1] != array.shape[2]:
        raise UserError(f"{path} holds images of {array.shape[1]} × {array.shape[2]}; they must be square")
    return array


def _mapped(path: Path) -> NDArray[Any]:
    """The array of a .npy file, which must be as long as its head says: mapped, no room is taken for what is not there.

    Copy on write: torch warns of others.
    """
    plain(path)
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("an archive of arrays, not one array")
    return array


def read_labels(path: Path, classes: int) -> Tensor:
    """The labels of a .npy file, (N,) int64, all of them classes the student knows."""
    try:
        label = _mapped(path)
    except FileNotFoundError:
        raise UserError(f"no file {path}; labels lie beside the images") from None
    except Exception as error:
        raise UserError(f"{path} is damaged or cut short ({first_line(error)}); fetch or make it again") from None
    if label.ndim != 1 or not np.issubdtype(label.dtype, np.integer) or len(label) == 0:
        raise UserError(f"{path} holds {label.dtype} of shape {label.shape}, not whole numbers of shape (N,)")
    if label.min() < 0 or label.max() >= classes:
        raise UserError(f"{path} has labels from {label.min()} to {label.max()}, the student has {classes} classes")
    return torch.from_numpy(label.astype(np.int64))


def as_set(images: Bytes, label: Tensor) -> ImageSet:
    """Images (N, S, S, 3) and labels (N,) as a set; nothing is copied."""
    return ImageSet(torch.from_numpy(images).permute(0, 3, 1, 2), label)
