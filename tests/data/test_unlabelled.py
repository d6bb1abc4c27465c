"""Images without labels: any layout, alone or beside labelled ones, and what is refused."""

import os
from pathlib import Path

import pytest
import torch

from antishortcut.data.datasets import open_sets
from antishortcut.data.inspect import contact_sheet, look, open_finding, problems, summarise
from antishortcut.data.splits import hold_out, limited
from antishortcut.types import UNLABELLED, FileSet, ImageSet, lacks_labels
from tests.data.official import in_memory, make_cifar, make_folder, make_masked, picture, refused


def make_loose(root: Path, count: int = 20) -> Path:
    """Images in the folder itself, in others, and in others' others; and what is none."""
    for at in range(count):
        picture(root / ("", "a", "a/b", "train/x")[at % 4] / f"{at}.png", size=(40, 30))
    (root / "notes.txt").write_text("no image")
    picture(root / ".hidden.png")
    return root


def test_all_images_in_any_layout_and_a_tenth_held_out(tmp_path: Path) -> None:
    sets = open_sets(f"unlabelled:{make_loose(tmp_path)}", None)
    assert isinstance(sets.train, FileSet)
    assert isinstance(sets.tests["test"], FileSet)
    assert (len(sets.train), len(sets.tests["test"]), sets.val, sets.classes) == (18, 2, None, ())
    names = [path.name for path in (*sets.train.paths, *sets.tests["test"].paths)]
    assert sorted(names) == sorted(f"{at}.png" for at in range(20))
    assert set(torch.cat([sets.train.label, sets.tests["test"].label]).tolist()) == {UNLABELLED}
    assert lacks_labels(sets.train)
    again, other = (open_sets(f"unlabelled:{tmp_path}", None, seed=seed) for seed in (0, 1))
    assert (again.fingerprint == sets.fingerprint, other.fingerprint == sets.fingerprint) == (True, False)
    small = open_sets(f"unlabelled:{tmp_path}", None, image_size=32, train_limit=5, val_fraction=0.5)
    assert (len(in_memory(small.train)), len(in_memory(small.val))) == (5, 9)


def test_the_classes_are_the_teachers(tmp_path: Path) -> None:
    name = f"unlabelled:{make_loose(tmp_path)}"
    three = open_sets(name, None, options={"classes": 3})
    assert three.classes == ("class 0", "class 1", "class 2")
    assert three.fingerprint != open_sets(name, None, options={"classes": 4}).fingerprint
    (tmp_path / "classes.txt").write_text("ape\nbat\ncow\n")
    assert open_sets(name, None, options={"classes": 3}).classes == ("ape", "bat", "cow")
    refused("names 3 classes, but data.options.classes is 2", name, None, options={"classes": 2})
    refused("whole number from 0", name, None, options={"classes": 1.5})


def test_links_are_followed_as_elsewhere(tmp_path: Path) -> None:
    make_loose(tmp_path / "images", 4)
    picture(tmp_path / "elsewhere" / "one.png")
    os.symlink(tmp_path / "elsewhere", tmp_path / "images" / "more")
    sets = open_sets(f"unlabelled:{tmp_path / 'images'}", None)
    assert len(sets.train) + len(sets.tests["test"]) == 5
    assert "links that lead out of the data folder: 1" in sets.note
    os.symlink(tmp_path, tmp_path / "images" / "above")
    refused("is a link to", f"unlabelled:{tmp_path / 'images'}", None)


@pytest.mark.parametrize("side", [32, 96])
def test_beside_labelled_images(tmp_path: Path, side: int) -> None:
    """They come behind the labelled ones, in memory or on disk, are not scored, and limits do not count them."""
    photos, more = make_folder(tmp_path / "photos", per_class=4), make_loose(tmp_path / "more")
    plain = open_sets(f"folder:{photos}", None, image_size=side)
    both = open_sets(f"folder:{photos}", None, image_size=side, unlabelled=str(more))
    assert isinstance(both.train, ImageSet if side == 32 else FileSet)
    assert both.train.label.tolist() == [0] * 4 + [1] * 4 + [UNLABELLED] * 20
    assert (both.classes, len(both.tests["test"])) == (plain.classes, 2)
    assert not lacks_labels(both.tests["test"])
    if isinstance(both.train, ImageSet):
        assert torch.equal(both.train.image[:8], in_memory(plain.train).image)
        assert len(both.train.image) == 28
    limited_sets = open_sets(f"folder:{photos}", None, image_size=side, unlabelled=str(more), train_limit=2)
    assert limited_sets.train.label.tolist() == [0, 1] + [UNLABELLED] * 20
    assert plain.fingerprint != both.fingerprint
    picture(more / "new.png")
    changed = open_sets(f"folder:{photos}", None, image_size=side, unlabelled=str(more))
    assert changed.fingerprint != both.fingerprint


def test_beside_images_that_are_in_memory_already(tmp_path: Path) -> None:
    sets = open_sets("cifar100", make_cifar(tmp_path), unlabelled=str(make_loose(tmp_path / "more")))
    assert in_memory(sets.train).image.shape == (35, 3, 32, 32)


def test_images_of_the_labelled_set_are_not_taken_twice(tmp_path: Path) -> None:
    """Above all no test images, where the folder with all images is named."""
    photos = make_folder(tmp_path / "photos")
    refused("no images in .* that the labelled data do not have", f"folder:{photos}", None, unlabelled=str(photos))
    picture(photos / "rest" / "one.png")
    sets = open_sets(f"folder:{photos}", None, unlabelled=str(photos), image_size=96)
    assert isinstance(sets.train, FileSet)
    assert sets.train.paths[6:] == (photos / "rest" / "one.png",)


def test_mistakes(tmp_path: Path) -> None:
    refused("no folder", f"unlabelled:{tmp_path / 'none'}", None)
    (tmp_path / "empty").mkdir()
    refused("no images in", f"unlabelled:{tmp_path / 'empty'}", None)
    refused("write folder:PATH", "unlabelled", None)
    loose, masked = make_loose(tmp_path / "loose"), make_masked(tmp_path / "masked")
    refused("this one has a class for every pixel", f"folder:{masked}", None, unlabelled=str(loose))
    refused("this one has groups", "cues", None, unlabelled=str(loose), options={"count": 20, "test_count": 20})
    refused("has no labels itself", f"unlabelled:{loose}", None, unlabelled=str(loose))
    refused("planted in images with labels", f"shortcut:unlabelled:{loose}", None, options={"classes": 3})
    picture(tmp_path / "one" / "a.png")
    refused("has 1 image; at least three", f"unlabelled:{tmp_path / 'one'}", None)


def test_splits_and_limits_of_a_mixed_set_take_the_unlabelled_for_a_class() -> None:
    label = torch.tensor([0] * 10 + [1] * 10 + [UNLABELLED] * 20)
    images = ImageSet(torch.zeros(40, 3, 2, 2, dtype=torch.uint8), label)
    assert sorted(limited(images, 6, 0).label.tolist()) == [-1, -1, 0, 0, 1, 1]
    _, held = hold_out(images, 0.1, 0)
    assert held is not None
    assert sorted(held.label.tolist()) == [-1, -1, 0, 1]


def test_check_looks_through_them(tmp_path: Path) -> None:
    photos, more = make_folder(tmp_path / "photos"), make_loose(tmp_path / "more", 4)
    (more / "copy.png").write_bytes((photos / "val" / "ape" / "deep" / "x.jpg").read_bytes())
    (more / "same.png").write_bytes((photos / "train" / "ape" / "0.png").read_bytes())
    finding = open_finding(f"folder:{photos}", None, unlabelled=str(more), image_size=32)
    scans = {name: look(images) for name, images in finding.splits.items()}
    facts = summarise(finding, scans)
    assert [row["split"] for row in facts["splits"]] == ["train", "test", "unlabelled"]
    assert facts["duplicates"]["leaked"] == {"test": 1}  # a test image is trained on, without its label
    assert facts["duplicates"]["two_classes"] == []
    assert not problems(facts)
    alone = open_finding(f"unlabelled:{more}", None, image_size=32)
    scans = {name: look(images) for name, images in alone.splits.items()}
    assert "balance" not in summarise(alone, scans)
    assert contact_sheet(alone, scans["train"], "crop-flip").width > 0
