"""Copies opened: ours, the released arrays of CIFAR-C, the released folders of ImageNet-C, and what can be wrong."""
# N images

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from antishortcut.data.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    clean_chunk,
    find_copies,
    open_copies,
)
from antishortcut.data.synthetic import CLASSES, make_cues
from antishortcut.errors import UserError
from antishortcut.types import FileSet, ImageSet

N = 12


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return make_cues("iid", N, seed=0)


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory, images: ImageSet) -> Path:
    """A folder as CIFAR-100-C is released: fifteen arrays, labels of one byte, no facts."""
    folder = tmp_path_factory.mktemp("released") / "CIFAR-100-C"
    folder.mkdir()
    for name in CORRUPTIONS:
        np.save(folder / f"{name}.npy", np.concatenate([clean_chunk(images, 32, 0)] * 5))
    np.save(folder / "labels.npy", np.tile(images.label.numpy(), 5).astype(np.uint8))
    return folder


def test_released_arrays_open(official: Path, images: ImageSet) -> None:
    copies = find_copies(official, CLASSES)
    assert (copies.source, copies.count, copies.side, copies.names) == ("official", N, 32, CORRUPTIONS)
    assert torch.equal(copies.label, images.label)
    part = copies.part("fog", 5)
    assert isinstance(part, ImageSet)
    assert torch.equal(part.image, images.image)
    assert torch.equal(part.label, images.label)
    assert len(copies.fingerprint) == 16
    with pytest.raises(UserError, match="no corruption 'speckle_noise'"):
        copies.part("speckle_noise", 1)


def test_the_fingerprint_follows_the_files(official: Path, tmp_path: Path) -> None:
    before = open_copies(official, 10).fingerprint
    copy = tmp_path / "copy"
    shutil.copytree(official, copy)
    assert open_copies(copy, 10).fingerprint == before
    array = np.load(copy / "fog.npy")
    array[-1] += 1
    np.save(copy / "fog.npy", array)
    assert open_copies(copy, 10).fingerprint != before


def _drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _save(name: str, make: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / name, make(np.load(folder / name)))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_drop("labels.npy"), "labels lie beside the images"),
        (_drop("fog.npy"), "lacks fog; fetch or make them"),
        (lambda folder: [(folder / f"{name}.npy").unlink() for name in CORRUPTIONS], "none of the corruptions"),
        (_save("fog.npy", lambda array: array[:-1]), r"fog\.npy has shape \(59, 32, 32, 3\), expected \(60"),
        (_save("fog.npy", lambda array: array[:, :16, :16]), r"\(60, 16, 16, 3\)"),
        (_save("fog.npy", lambda array: array[:, :16]), "square"),
        (_save("fog.npy", lambda array: array.astype(float)), "float64"),
        (_save("labels.npy", lambda label: label[:-1]), "59 labels, not 5 times"),
        (_save("labels.npy", lambda label: label + 1), "labels from 1 to 10, the student has 10 classes"),
        (_save("labels.npy", np.sort), "does not repeat the same labels"),
        (lambda folder: (folder / "fog.npy").write_bytes(b"\x93NUMPY half"), "damaged or cut short"),
        (lambda folder: (folder / "facts.json").write_text("{"), "cannot be read as JSON"),
        (lambda folder: (folder / "facts.json").write_text('{"kind": "stylized"}'), "does not speak of corruptions"),
        (
            lambda folder: (folder / "facts.json").write_text('{"kind": "corruptions", "count": 9}'),
            "12 labels, facts.json says 9",
        ),
    ],
)
def test_what_is_wrong_is_one_line(official: Path, tmp_path: Path, harm: Callable[[Path], Any], said: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(official, folder)
    harm(folder)
    with pytest.raises(UserError, match=said) as error:
        find_copies(folder, CLASSES)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("grouped", [False, True], ids=["tiny-imagenet-c", "imagenet-c"])
def test_released_folders_open(tmp_path: Path, grouped: bool) -> None:
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            for wnid in ("n01", "n02", "n03"):
                home = tmp_path / ("noise" if grouped else "") / name / str(severity) / wnid
                home.mkdir(parents=True)
                Image.new("RGB", (64, 64), (severity, 0, 0)).save(home / f"{wnid}_1.JPEG")
    classes = ("n03", "n09", "n01")
    copies = find_copies(tmp_path, classes)
    assert (copies.source, copies.count, copies.side, copies.names) == ("official", 2, 64, CORRUPTIONS)
    assert copies.label.tolist() == [0, 2]  # n02 is none of ours
    part = copies.part("fog", 3)
    assert isinstance(part, FileSet)
    assert [path.relative_to(tmp_path).parts[-4:] for path in part.paths] == [
        ("fog", "3", "n03", "n03_1.JPEG"), ("fog", "3", "n01", "n01_1.JPEG"),
    ]  # fmt: skip
    assert part.label.tolist() == [0, 2]
    (part.paths[0]).rename(part.paths[0].with_name("other.JPEG"))
    with pytest.raises(UserError, match="has other images than gaussian_noise"):
        copies.part("fog", 3)
    with pytest.raises(UserError, match="no images in folders named as the classes"):
        find_copies(tmp_path, ("cat",))
    shutil.rmtree(part.paths[0].parent.parent)
    with pytest.raises(UserError, match="expected one for each severity"):
        find_copies(tmp_path, classes)
    with pytest.raises(UserError, match="no folder"):
        find_copies(tmp_path / "nowhere", classes)
