"""Stripes: a data set of two classes, from arrays below the data root."""

from zipfile import BadZipFile

import numpy as np
import torch

from antishortcut.data.readers import RawDataset, Request
from antishortcut.errors import UserError
from antishortcut.types import ImageSet


def open_stripes(request: Request) -> RawDataset:
    """Each file has `image` (N, 3, 32, 32), uint8, and `label` (N,), int64."""

    def read(split: str) -> ImageSet:
        path = request.path / "stripes" / f"{split}.npz"
        try:
            with np.load(path) as arrays:
                return ImageSet(torch.from_numpy(arrays["image"]), torch.from_numpy(arrays["label"]))
        except (OSError, EOFError, KeyError, ValueError, BadZipFile) as error:
            raise UserError(f"cannot read {path} ({error}); it needs the arrays image and label") from None

    return RawDataset(("along", "across"), read("train"), {"test": read("test")}, image_size=32)
