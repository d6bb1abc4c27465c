"""Splits, limits and fingerprints."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antishortcut.data import open_sets
from antishortcut.data import readers as layouts
from antishortcut.data.splits import hold_out, limited
from antishortcut.errors import UserError
from antishortcut.types import AnySet, DataSplits, ImageSet
from tests.data.official import in_memory, make_cifar, make_folder, picture, refused


def labelled(labels: list[int]) -> ImageSet:
    """A set whose images carry their place, so that subsets can be recognised."""
    count = len(labels)
    return ImageSet(torch.arange(count).view(-1, 1, 1, 1), torch.tensor(labels), {"twice": 2 * torch.arange(count)})


def places(images: AnySet | None) -> list[int]:
    out = in_memory(images)
    assert torch.equal(out.cues["twice"], 2 * out.image.flatten())
    return out.image.flatten().tolist()


@given(st.lists(st.integers(0, 5), min_size=2, max_size=60), st.floats(0.02, 0.9), st.integers(0, 2**63))
def test_hold_out_is_a_stratified_partition(labels: list[int], fraction: float, seed: int) -> None:
    images, required = labelled(labels), max(1, round(fraction * len(labels)))
    room = len(labels) - len(set(labels))  # of each class one stays
    if required == len(labels) or not room:
        with pytest.raises(UserError):
            hold_out(images, fraction, seed)
        return
    required = min(required, room)
    saved, held = hold_out(images, fraction, seed)
    assert held is not None
    assert len(held) == required
    assert sorted(places(saved) + places(held)) == list(range(len(labels)))
    assert places(held) == places(hold_out(images, fraction, seed)[1])
    # classes that can give no more; others give in their place
    full = sum((held.label == name).sum().item() == labels.count(name) - 1 for name in set(labels))
    for name in set(labels):
        count = labels.count(name)
        assert (saved.label == name).any()
        most = (held.label == name).sum().item()
        assert most == count - 1 or abs(most - count * required / len(labels)) < 1.5 + full
        assert torch.equal(saved.label, torch.tensor(labels)[places(saved)])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 70), st.integers(0, 2**63))
def test_limits_are_balanced_and_nested(labels: list[int], limit: int, seed: int) -> None:
    images = labelled(labels)
    some, more = (limited(images, count, seed) for count in (limit, limit + 1))
    assert len(some) == min(limit, len(labels))
    assert set(places(some)) <= set(places(more))
    taken = {name: (some.label == name).sum().item() for name in set(labels)}
    most = max(taken.values())
    for name, count in taken.items():
        assert count >= most - 1 or count == labels.count(name)  # fewer only where the class has no more


def test_limits_and_splits_by_hand(tmp_path: Path) -> None:
    make_cifar(tmp_path, per_class=10)

    def opened(**options: Any) -> DataSplits:
        return open_sets("cifar100", tmp_path, **options)

    split = opened(val_fraction=0.2)
    assert split.val is not None
    assert in_memory(split.val).label.bincount().tolist() == [2, 2, 2]
    assert in_memory(split.train).label.bincount().tolist() == [8, 8, 8]
    both = opened(val_fraction=0.2, train_limit=6, test_limit=3)
    assert torch.equal(in_memory(both.val).image, in_memory(split.val).image)  # whatever the limit
    assert in_memory(both.train).label.bincount().tolist() == [2, 2, 2]
    assert in_memory(both.tests["test"]).label.tolist() == [0, 1, 2]
    for options in ({"train_limit": 0}, {"train_limit": -3}, {"test_limit": 0}):
        refused(f"{next(iter(options))} must be at least 1", "cifar100", tmp_path, **options)
    for fraction in (-0.1, 1.0, 1.5, float("nan")):
        refused("val_fraction", "cifar100", tmp_path, val_fraction=fraction)


def test_fingerprints(tmp_path: Path) -> None:
    here, there = make_cifar(tmp_path / "a"), make_cifar(tmp_path / "b", protocol=5, key=str.encode)
    plain = open_sets("cifar100", here).fingerprint
    assert plain == open_sets("cifar100", there).fingerprint == open_sets("cifar100", there, seed=7).fingerprint
    assert plain == open_sets("cifar100", here, train_limit=10**9).fingerprint  # all of it is all of it
    assert len(plain) == 16
    variants: list[dict[str, Any]] = [{}, {"train_limit": 6}, {"train_limit": 6, "seed": 1}, {"test_limit": 6}]
    variants += [{"val_fraction": 0.2}, {"val_fraction": 0.2, "seed": 1}, {"val_fraction": 0.4}]
    marks = {open_sets("cifar100", here, **options).fingerprint for options in variants}
    assert len(marks) == len(variants)
    content = pickle.loads((here / layouts.CIFAR / "test").read_bytes())
    content["fine_labels"][0] = 1
    (here / layouts.CIFAR / "test").write_bytes(pickle.dumps(content, 2))
    assert open_sets("cifar100", here).fingerprint != plain


def test_fingerprint_of_files_does_not_depend_on_where_they_lie(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "one")
    shutil.copytree(folder, tmp_path / "two")
    first, second = (open_sets(f"folder:{tmp_path / name}", None).fingerprint for name in ("one", "two"))
    assert first == second
    picture(tmp_path / "two" / "train" / "ape" / "more.png")
    assert open_sets(f"folder:{tmp_path / 'two'}", None).fingerprint != first
