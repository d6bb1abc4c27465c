"""Sources against small sets in the official layouts, made here; and against the real ones where they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from antishortcut.data import DATASETS, open_sets
from antishortcut.data import readers as layouts
from antishortcut.data.image_io import fit, read
from antishortcut.types import FileSet
from tests.data.official import in_memory, make_cifar, make_folder, make_tiny, picture, real, refused


def test_missing_data_say_where_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(f"{tmp_path}.*--download", "cifar100", tmp_path)
    refused(f"{tmp_path}.*wnids.txt", "tiny-imagenet", tmp_path)
    refused(f"{tmp_path}.*val/<wnid>", "imagenet100", tmp_path)
    refused(f"{tmp_path}.*val/<class>", f"folder:{tmp_path}", None)
    monkeypatch.setenv("ANTISHORTCUT_DATA", str(tmp_path / "elsewhere"))
    refused("elsewhere", "cifar100", None)
    monkeypatch.delenv("ANTISHORTCUT_DATA")
    monkeypatch.chdir(tmp_path)
    refused("cannot read data/cifar-100-python/meta", "cifar100", None)


def test_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def fails(root: str, download: bool) -> None:
        raise OSError("no network\nat all")

    def works(root: str, download: bool) -> None:
        calls.append(root)
        make_cifar(Path(root))

    monkeypatch.setattr("torchvision.datasets.CIFAR100", fails)
    refused("cannot download cifar100 .*no network", "cifar100", tmp_path, download=True)
    monkeypatch.setattr("torchvision.datasets.CIFAR100", works)
    for _ in range(2):
        assert len(open_sets("cifar100", tmp_path, download=True).train) == 15
    assert calls == [str(tmp_path)]  # what is there is not fetched again
    for name in ("tiny-imagenet", "imagenet100", f"folder:{tmp_path}"):
        refused("cannot be downloaded", name, tmp_path, download=True)


# TinyImageNet


def test_tiny_imagenet_official_layout(tmp_path: Path) -> None:
    sets = open_sets("tiny-imagenet", make_tiny(tmp_path))
    train, test = in_memory(sets.train), in_memory(sets.tests["test"])
    assert sets.classes == ("goldfish", "salamander")
    assert train.image.shape == (8, 3, 64, 64)
    assert train.label.tolist() == [0] * 4 + [1] * 4
    assert test.label.tolist() == [1, 0]
    expected = np.asarray(Image.open(tmp_path / layouts.TINY / "train/n02/images/n02_3.JPEG")).transpose(2, 0, 1)
    assert np.array_equal(train.image[7].numpy(), expected)
    grey = train.image[0]
    assert torch.equal(grey[0], grey[1])
    assert torch.equal(grey[0], grey[2])


def test_damaged_tiny_imagenet_names_the_file(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path) / layouts.TINY
    image = folder / "train/n01/images/n01_2.JPEG"
    whole = image.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"not an image"):
        image.write_bytes(content)
        refused(f"cannot read the image {image}", "tiny-imagenet", tmp_path)
    image.write_bytes(whole)
    notes = folder / "val" / "val_annotations.txt"
    good = notes.read_text()
    for line in ("val_7.JPEG\tn01\n", "val_0.JPEG\tn99\n", "val_0.JPEG\n"):
        notes.write_text(good + line)
        refused("val_7.JPEG" if "val_7" in line else f"{notes}, line 3", "tiny-imagenet", tmp_path)
    notes.write_text("\n")
    refused(f"{notes} is empty", "tiny-imagenet", tmp_path)
    notes.write_bytes(b"\xff\xfe\xff")
    refused(f"cannot read {notes}", "tiny-imagenet", tmp_path)
    notes.write_text(good)
    shutil.rmtree(folder / "train" / "n02")
    refused("no images in .*n02", "tiny-imagenet", tmp_path)


# ImageNet-100 and folders


def test_imagenet100_takes_its_hundred_classes(tmp_path: Path) -> None:
    wnids = layouts.class_list("imagenet100")
    assert len(set(wnids)) == 100
    picture(tmp_path / "one.JPEG", size=(8, 8))
    for wnid in (*wnids, "n00000000"):
        for part in ("train", "val"):
            folder = tmp_path / "imagenet" / part / wnid
            folder.mkdir(parents=True)
            shutil.copy(tmp_path / "one.JPEG", folder / "x.JPEG")
    sets = open_sets("imagenet100", tmp_path)
    assert isinstance(sets.train, FileSet)
    assert sets.classes == tuple(sorted(wnids))
    assert sets.image_size == 224
    assert sets.train.label.tolist() == list(range(100))
    assert [path.parent.name for path in sets.train.paths] == list(sets.classes)
    assert in_memory(open_sets("imagenet100", tmp_path, image_size=16).train).image.shape == (100, 3, 16, 16)


@pytest.mark.parametrize("held", ["val", "valid", "test"])
def test_folder(tmp_path: Path, held: str) -> None:
    make_folder(tmp_path, held)
    (tmp_path / "train" / ".hidden").mkdir()
    (tmp_path / "train" / "ape" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "ape" / "._0.png").write_text("no image either")
    sets = open_sets(f"folder:{tmp_path}", None)
    assert isinstance(sets.train, FileSet)
    assert sets.classes == ("ape", "bat")
    assert sets.image_size == 224
    assert sets.train.label.tolist() == [0, 0, 0, 1, 1, 1]
    assert sets.tests["test"].label.tolist() == [0, 1]
    small = in_memory(open_sets(f"folder:{tmp_path}", tmp_path, image_size=20).train)
    assert small.image.shape == (6, 3, 20, 20)
    expected = np.asarray(fit(read(sets.train.paths[2]), 20)).transpose(2, 0, 1)
    assert np.array_equal(small.image[2].numpy(), expected)


def test_folder_without_an_evaluation_part_gives_a_tenth_of_every_class(tmp_path: Path) -> None:
    name = f"folder:{make_folder(tmp_path, held=None, per_class=10)}"
    sets, again, other = (open_sets(name, None, seed=seed) for seed in (0, 0, 1))
    assert sets.tests["test"].label.tolist() == [0, 1]
    assert len(sets.train) == 18
    assert sets.fingerprint == again.fingerprint != other.fingerprint
    assert isinstance(sets.train, FileSet)
    assert isinstance(test := sets.tests["test"], FileSet)
    assert not set(sets.train.paths) & set(test.paths)


def test_folder_with_val_and_test_chooses_by_one_and_is_tested_on_the_other(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "validation")
    make_folder(tmp_path / "more", "test", per_class=2)
    (tmp_path / "more" / "test").rename(folder / "test")
    sets = open_sets(f"folder:{folder}", None)
    assert isinstance(sets.val, FileSet)
    assert isinstance(test := sets.tests["test"], FileSet)
    assert {path.relative_to(folder).parts[0] for path in sets.val.paths} == {"validation"}
    assert {path.relative_to(folder).parts[0] for path in test.paths} == {"test"}
    refused("leave val_fraction at 0", f"folder:{folder}", None, val_fraction=0.1)


def test_parts_may_be_written_large(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "Test")
    (folder / "train").rename(folder / "Train")
    sets = open_sets(f"folder:{folder}", None)
    assert (sets.classes, len(sets.train), len(sets.tests["test"])) == (("ape", "bat"), 6, 2)


def test_a_class_may_be_called_valid_in_capitals(tmp_path: Path) -> None:
    for name in ("Valid", "Invalid", "Train"):
        for at in range(10):
            picture(tmp_path / name / f"{at}.png")
    assert open_sets(f"folder:{tmp_path}", None).classes == ("Invalid", "Train", "Valid")


def test_images_that_are_not_found_are_explained(tmp_path: Path) -> None:
    for name in ("ape", "bat"):
        (tmp_path / "phone" / name).mkdir(parents=True)
        (tmp_path / "phone" / name / "0.HEIC").write_bytes(b"")
        picture(tmp_path / "loose" / f"{name}.png")
    refused(r"not read \(2 .heic\): save as PNG or JPEG", f"folder:{tmp_path / 'phone'}", None)
    refused("put each into a folder of its class", f"folder:{tmp_path / 'loose'}", None)
    refused(f"did you mean {tmp_path / 'phone'}", f"folder:{tmp_path / 'Phones'}", None)


def test_folder_of_classes_with_nothing_above_them(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "photos", held=None, per_class=10)
    (folder / "notes").mkdir()  # a folder without images is no class
    for name in ("ape", "bat"):
        (folder / "train" / name).rename(folder / name)
    (folder / "train").rmdir()
    sets = open_sets(f"folder:{folder}", None)
    assert sets.classes == ("ape", "bat")
    assert (len(sets.train), len(sets.tests["test"])) == (18, 2)
    refused(f"did you mean {folder}", f"folder:{folder.parent}", None)
    (folder / "test").mkdir()
    refused("has test/ but no train/", f"folder:{folder}", None)


def test_folder_mistakes(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "own")
    (folder / "val" / "cow").mkdir()
    refused("cow", f"folder:{folder}", None)
    (folder / "val" / "cow").rmdir()
    (folder / "train" / "cow").mkdir()
    refused("no images in .*cow", f"folder:{folder}", None)
    (tmp_path / "bare" / "train").mkdir(parents=True)
    refused("no class folders", f"folder:{tmp_path / 'bare'}", None)


# Cues, options, names


def test_names_and_options(tmp_path: Path) -> None:
    refused("did you mean 'cifar100'", "cifar10", tmp_path)
    refused("folder:PATH", "folder", tmp_path)
    refused("folder:PATH", "cifar100:x", tmp_path)
    refused("did you mean 'rho'", "cues", tmp_path, options={"roh": 0.5})
    refused("cifar100 takes none", "cifar100", tmp_path, options={"rho": 0.5})
    refused("32 × 32", "cifar100", tmp_path, image_size=64)
    refused("64 × 64", "tiny-imagenet", tmp_path, image_size=65)
    refused("image_size", "cues", tmp_path, image_size=0)
    for options in ({"rho": 1.5}, {"count": 0}, {"count": 2.5}, {"test_count": -1}, {"count": 1e12}):
        refused(next(iter(options)), "cues", None, options=options)
    for source in DATASETS.values():
        assert source.help
        assert "\n" not in source.help


def test_real_tiny_imagenet(tmp_path: Path) -> None:
    (tmp_path / layouts.TINY).symlink_to(real(layouts.TINY) / layouts.TINY)  # so that the cache is left here
    sets = open_sets("tiny-imagenet", tmp_path, train_limit=400, test_limit=200)
    assert sets.classes[0] == "goldfish"
    assert in_memory(sets.train).label.bincount().tolist() == [2] * 200
    assert in_memory(sets.tests["test"]).label.tolist() != sorted(in_memory(sets.tests["test"]).label.tolist())
