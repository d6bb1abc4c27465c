"""Altered copies of images on disk, as in CIFAR-C: <name>.npy of (N, H, W, 3) bytes, labels.npy beside it."""
# N images, S side of the square images

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
    """A temporary file with an array of this shape, to be filled by `fill`; renamed to `path` when complete."""
    with atomic_path(path) as name:
        np.lib.format.open_memmap(name, mode="w+", dtype=np.uint8, shape=shape).flush()
        yield name


def fill(path: Path, start: int, images: Bytes) -> None:
    """Write images (n, H, W, 3) at row `start` of a growing file; processes may fill different rows at once."""
    array = np.load(path, mmap_mode="r+", allow_pickle=False)
    array[start : start + len(images)] = images


def read_images(path: Path) -> Bytes:
    """The images of a .npy file, (N, S, S, 3), mapped into memory and checked."""
    array: Bytes = _mapped(path, f"no file {path}")
    shape = array.shape
    if array.dtype != np.uint8 or len(shape) != 4 or shape[3] != 3 or shape[1] != shape[2] or 0 in shape:
        raise UserError(f"{path} holds {array.dtype} of shape {shape}, not bytes of square images, (N, S, S, 3)")
    return array


def read_labels(path: Path, classes: int) -> Tensor:
    """The labels of a .npy file, (N,) int64, all below `classes`."""
    label = _mapped(path, f"no file {path}; labels lie beside the images")
    if label.ndim != 1 or not np.issubdtype(label.dtype, np.integer) or len(label) == 0:
        raise UserError(f"{path} holds {label.dtype} of shape {label.shape}, not whole numbers of shape (N,)")
    if label.min() < 0 or label.max() >= classes:
        raise UserError(f"{path} has labels from {label.min()} to {label.max()}, the student has {classes} classes")
    return torch.from_numpy(label.astype(np.int64))


def _mapped(path: Path, missing: str) -> NDArray[Any]:
    """The array of a .npy file, mapped: a file that is cut short is an error. Copy on write: torch warns of others."""
    try:
        plain(path)
        array = np.load(path, mmap_mode="c", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("an archive of arrays, not one array")
        return array
    except FileNotFoundError:
        raise UserError(missing) from None
    except Exception as error:  # numpy evaluates the header as Python, which can raise anything
        raise UserError(f"{path} is damaged or cut short ({first_line(error)}); fetch or make it again") from None


def as_set(images: Bytes, label: Tensor) -> ImageSet:
    """Images (N, S, S, 3) and labels (N,) as a set; nothing is copied."""
    return ImageSet(torch.from_numpy(images).permute(0, 3, 1, 2), label)
