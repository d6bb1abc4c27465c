"""Altered copies on disk: whole or not there, and one line for what is wrong with a file."""

from pathlib import Path

import numpy as np
import pytest
import torch

from antishortcut.data.derived import fill, growing, read_images, read_labels
from antishortcut.data.splits import set_mark
from antishortcut.errors import UserError
from antishortcut.types import FileSet, ImageSet


def images(count: int = 6, side: int = 4) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def test_filled_in_pieces_and_read_back(tmp_path: Path) -> None:
    whole = images()
    with growing(tmp_path / "out" / "fog.npy", (6, 4, 4, 3)) as part:
        fill(part, 4, whole[4:])
        assert not (tmp_path / "out" / "fog.npy").exists()
        fill(part, 0, whole[:4])
    assert np.array_equal(read_images(tmp_path / "out" / "fog.npy"), whole)
    assert np.array_equal(np.load(tmp_path / "out" / "fog.npy"), whole)  # other people's code reads it
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["fog.npy"]


def test_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.npy"
    with pytest.raises(UserError, match="labels lie beside"):
        read_labels(path, 10)
    np.save(path, np.array([0, 9, 3], dtype=np.uint8))
    assert read_labels(path, 10).tolist() == [0, 9, 3]
    assert read_labels(path, 10).dtype == torch.int64
    with pytest.raises(UserError, match="labels from 0 to 9, the student has 5 classes"):
        read_labels(path, 5)
    for wrong in (np.zeros(3), np.zeros((3, 1), np.int64), np.zeros(0, np.int64)):
        np.save(path, wrong)
        with pytest.raises(UserError, match="not whole numbers"):
            read_labels(path, 10)


def test_fingerprint_of_one_set(tmp_path: Path) -> None:
    one = ImageSet(torch.from_numpy(images()).permute(0, 3, 1, 2), torch.arange(6))
    again = ImageSet(one.image.clone(), one.label.clone())
    other = ImageSet(one.image, one.label.flip(0))
    assert set_mark(one) == set_mark(again) != set_mark(other)
    marks = []
    for place in ("here", "there"):
        (tmp_path / place / "a").mkdir(parents=True)
        paths = tuple(tmp_path / place / "a" / f"{n}.png" for n in range(2))
        for path in paths:
            path.write_bytes(b"x")
        marks.append(set_mark(FileSet(paths, torch.tensor([0, 0]))))
    assert marks[0] == marks[1]  # wherever the folder lies
