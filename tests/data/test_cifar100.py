"""CIFAR-100: the official pickles, and pickles that only pretend to be."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antishortcut.data import open_sets
from antishortcut.data import readers as layouts
from tests.data.official import in_memory, make_cifar, real, refused


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("key", [str, str.encode])
def test_cifar100_official_layout(tmp_path: Path, protocol: int, key: Callable[[str], Any]) -> None:
    sets = open_sets("cifar100", make_cifar(tmp_path, protocol, key))
    train = in_memory(sets.train)
    assert sets.classes == ("ant", "bee", "cat")
    assert sets.image_size == 32
    assert sets.val is None
    assert list(sets.tests) == ["test"]
    assert train.image.shape == (15, 3, 32, 32)
    assert train.image.dtype == torch.uint8
    data = np.random.default_rng(1).integers(0, 256, (15, 3072), dtype=np.uint8)
    assert torch.equal(train.image.flatten(1), torch.from_numpy(data))
    assert train.label.tolist() == [0, 1, 2] * 5


def test_damaged_cifar_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_cifar(tmp_path) / layouts.CIFAR / "train"
    whole = path.read_bytes()
    for keep in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        refused(str(path), "cifar100", tmp_path)
    path.write_bytes(whole)
    monkeypatch.setitem(layouts._CIFAR_FILES, "train", (len(whole), "0" * 32))
    refused("train is damaged .its md5", "cifar100", tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        {"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, 3]},  # three classes only
        {"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0]},
        {"data": np.zeros((2, 3072), np.float32), "fine_labels": [0, 1]},
        {"data": np.zeros((2, 3072), np.uint8)},
        {"data": np.zeros((2, 3072), np.uint8), "fine_labels": ["a", "b"]},
    ],
)
def test_cifar_with_the_wrong_content(tmp_path: Path, content: dict[str, Any]) -> None:
    (make_cifar(tmp_path) / layouts.CIFAR / "train").write_bytes(pickle.dumps(content, 2))
    refused("train does not hold CIFAR-100 images", "cifar100", tmp_path)


def test_real_cifar100_agrees_with_torchvision() -> None:
    from torchvision.datasets import CIFAR100

    root = real(layouts.CIFAR)
    sets, reference = open_sets("cifar100", root), CIFAR100(str(root), train=False)
    test = in_memory(sets.tests["test"])
    assert list(sets.classes) == reference.classes
    assert test.label.tolist() == reference.targets
    assert np.array_equal(test.image.permute(0, 2, 3, 1).numpy(), reference.data)
    assert in_memory(sets.train).label.bincount().tolist() == [500] * 100
    assert sets.fingerprint == "4c093b7dfd7a68a0"  # the official release, on any machine
