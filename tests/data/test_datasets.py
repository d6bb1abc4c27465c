"""Data sets in their official layouts, made small here or real if present; decoding, splits, limits, fingerprints."""

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from antishortcut.data import DATASETS, image_io, open_sets, readers, splits
from antishortcut.data.datasets import Dataset
from antishortcut.data.image_io import CACHE, fit, read
from antishortcut.data.inspect import look
from antishortcut.data.splits import hold_out, limited
from antishortcut.errors import UserError
from antishortcut.types import AnySet, DataSplits, FileSet, ImageSet
from tests.data.official import (
    in_memory,
    make_cifar,
    make_folder,
    make_masked,
    make_tiny,
    paths_of,
    picture,
    real,
    refused,
)
from tests.data.test_groups import make_birds


def test_missing_data_name_the_folder_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_tiny_imagenet_official_layout(tmp_path: Path) -> None:
    sets = open_sets("tiny-imagenet", make_tiny(tmp_path))
    train, test = in_memory(sets.train), in_memory(sets.tests["test"])
    assert (sets.classes, train.image.shape) == (("goldfish", "salamander"), (8, 3, 64, 64))
    assert train.label.tolist() == [0] * 4 + [1] * 4
    assert test.label.tolist() == [1, 0]
    expected = np.asarray(Image.open(tmp_path / readers.TINY / "train/n02/images/n02_3.JPEG")).transpose(2, 0, 1)
    assert np.array_equal(train.image[7].numpy(), expected)
    assert torch.equal(train.image[0], train.image[0, :1].expand(3, 64, 64))  # grey


def test_damaged_tiny_imagenet_names_the_file(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path) / readers.TINY
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


def test_imagenet100_reads_its_hundred_classes(tmp_path: Path) -> None:
    wnids = readers.class_list("imagenet100")
    assert len(set(wnids)) == 100
    picture(tmp_path / "one.JPEG", size=(8, 8))
    for wnid in (*wnids, "n00000000"):
        for part in ("train", "val"):
            folder = tmp_path / "imagenet" / part / wnid
            folder.mkdir(parents=True)
            shutil.copy(tmp_path / "one.JPEG", folder / "x.JPEG")
    sets = open_sets("imagenet100", tmp_path)
    assert isinstance(sets.train, FileSet)
    assert (sets.classes, sets.image_size) == (tuple(sorted(wnids)), 224)
    assert sets.train.label.tolist() == list(range(100))
    assert [path.parent.name for path in paths_of(sets.train)] == list(sets.classes)
    assert in_memory(open_sets("imagenet100", tmp_path, image_size=16).train).image.shape == (100, 3, 16, 16)


@pytest.mark.parametrize("held", ["val", "valid", "test"])
def test_folder(tmp_path: Path, held: str) -> None:
    make_folder(tmp_path, held)
    (tmp_path / "train" / ".hidden").mkdir()
    (tmp_path / "train" / "ape" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "ape" / "._0.png").write_text("no image either")
    sets = open_sets(f"folder:{tmp_path}", None)
    assert isinstance(sets.train, FileSet)
    assert (sets.classes, sets.image_size) == (("ape", "bat"), 224)
    assert sets.train.label.tolist() == [0, 0, 0, 1, 1, 1]
    assert sets.tests["test"].label.tolist() == [0, 1]
    small = in_memory(open_sets(f"folder:{tmp_path}", tmp_path, image_size=20).train)
    assert small.image.shape == (6, 3, 20, 20)
    expected = np.asarray(fit(read(sets.train.paths[2]), 20)).transpose(2, 0, 1)
    assert np.array_equal(small.image[2].numpy(), expected)


def test_folder_without_val_holds_out_a_tenth_of_every_class(tmp_path: Path) -> None:
    name = f"folder:{make_folder(tmp_path, held=None, per_class=10)}"
    sets, again, other = (open_sets(name, None, seed=seed) for seed in (0, 0, 1))
    assert sets.tests["test"].label.tolist() == [0, 1]
    assert len(sets.train) == 18
    assert sets.fingerprint == again.fingerprint != other.fingerprint
    assert isinstance(sets.train, FileSet)
    assert isinstance(test := sets.tests["test"], FileSet)
    assert not set(sets.train.paths) & set(test.paths)


def test_folder_with_val_and_test(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "validation")
    make_folder(tmp_path / "more", "test", per_class=2)
    (tmp_path / "more" / "test").rename(folder / "test")
    sets = open_sets(f"folder:{folder}", None)
    assert isinstance(sets.val, FileSet)
    assert isinstance(test := sets.tests["test"], FileSet)
    assert {path.relative_to(folder).parts[0] for path in paths_of(sets.val)} == {"validation"}
    assert {path.relative_to(folder).parts[0] for path in paths_of(test)} == {"test"}
    refused("leave val_fraction at 0", f"folder:{folder}", None, val_fraction=0.1)


def test_capitalised_folders(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "parts", "Test")
    (folder / "train").rename(folder / "Train")
    sets = open_sets(f"folder:{folder}", None)
    assert (sets.classes, len(sets.train), len(sets.tests["test"])) == (("ape", "bat"), 6, 2)
    for name in ("Valid", "Invalid", "Train"):  # classes
        for at in range(10):
            picture(tmp_path / "classes" / name / f"{at}.png")
    assert open_sets(f"folder:{tmp_path / 'classes'}", None).classes == ("Invalid", "Train", "Valid")


def test_misplaced_images_get_a_hint(tmp_path: Path) -> None:
    for name in ("ape", "bat"):
        (tmp_path / "phone" / name).mkdir(parents=True)
        (tmp_path / "phone" / name / "0.HEIC").write_bytes(b"")
        picture(tmp_path / "loose" / f"{name}.png")
    (tmp_path / "bare" / "train").mkdir(parents=True)
    refused("no class folders", f"folder:{tmp_path / 'bare'}", None)
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


def test_names_and_options(tmp_path: Path) -> None:
    refused("did you mean 'cifar100'", "cifar10", tmp_path)
    refused("folder:PATH", "folder", tmp_path)
    refused("folder:PATH", "cifar100:x", tmp_path)
    refused("did you mean 'rho'", "cues", tmp_path, options={"roh": 0.5})
    refused("cifar100 takes none", "cifar100", tmp_path, options={"rho": 0.5})
    make_cifar(tmp_path)
    refused("32 × 32, not 64; networks resize by themselves", "cifar100", tmp_path, image_size=64)
    refused("64 × 64", "tiny-imagenet", tmp_path, image_size=65)
    refused("image_size", "cues", tmp_path, image_size=0)
    for options in ({"rho": 1.5}, {"count": 0}, {"count": 2.5}, {"test_count": -1}, {"count": 1e12}):
        refused(next(iter(options)), "cues", None, options=options)
    for source in DATASETS.values():
        assert source.help
        assert "\n" not in source.help


def test_real_tiny_imagenet(tmp_path: Path) -> None:
    (tmp_path / readers.TINY).symlink_to(real(readers.TINY) / readers.TINY)  # so that the cache is left here
    sets = open_sets("tiny-imagenet", tmp_path, train_limit=400, test_limit=200)
    assert sets.classes[0] == "goldfish"
    assert in_memory(sets.train).label.bincount().tolist() == [2] * 200
    assert in_memory(sets.tests["test"]).label.tolist() != sorted(in_memory(sets.tests["test"]).label.tolist())


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("key", [str, str.encode])
def test_cifar100_official_layout(tmp_path: Path, protocol: int, key: Callable[[str], Any]) -> None:
    sets = open_sets("cifar100", make_cifar(tmp_path, protocol, key))
    train = in_memory(sets.train)
    assert (sets.classes, sets.image_size, sets.val) == (("ant", "bee", "cat"), 32, None)
    assert list(sets.tests) == ["test"]
    assert train.image.dtype == torch.uint8
    data = np.random.default_rng(1).integers(0, 256, (15, 3072), dtype=np.uint8)
    assert torch.equal(train.image, torch.from_numpy(data).view(15, 3, 32, 32))
    assert train.label.tolist() == [0, 1, 2] * 5


def test_damaged_cifar100_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_cifar(tmp_path) / readers.CIFAR / "train"
    whole = path.read_bytes()
    for keep in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        refused(str(path), "cifar100", tmp_path)
    path.write_bytes(whole)
    monkeypatch.setitem(readers._CIFAR_FILES, "train", (len(whole), "0" * 32))
    refused("train is damaged .its md5", "cifar100", tmp_path)


@pytest.mark.parametrize(
    ("data", "labels", "message"),
    [
        (np.zeros((2, 3072), np.uint8), [0], "does not hold CIFAR-100 images"),
        (np.zeros((2, 3072), np.float32), [0, 1], "does not hold CIFAR-100 images"),
        (np.zeros((2, 3072), np.uint8), None, "does not hold CIFAR-100 images"),
        (np.zeros((2, 3072), np.uint8), ["a", "b"], "does not hold CIFAR-100 images"),
        (np.array(["a"]), [0], "not allowed"),
        (np.array([None]), [0], "not allowed"),
    ],
)
def test_cifar100_with_wrong_content(tmp_path: Path, data: Any, labels: Any, message: str) -> None:
    content = {"data": data} if labels is None else {"data": data, "fine_labels": labels}
    (make_cifar(tmp_path) / readers.CIFAR / "train").write_bytes(pickle.dumps(content, 2))
    refused(f"train .*{message}", "cifar100", tmp_path)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_arrays_in_columns_are_read_from_pickles(tmp_path: Path, protocol: int) -> None:
    data = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "p").write_bytes(pickle.dumps({b"data": np.asfortranarray(data), "raw": b"\xff"}, protocol))
    assert np.array_equal(readers.read_pickle(tmp_path / "p", 0, "", "hint")["data"], data)


def test_real_cifar100_agrees_with_torchvision() -> None:
    from torchvision.datasets import CIFAR100

    root = real(readers.CIFAR)
    sets, reference = open_sets("cifar100", root), CIFAR100(str(root), train=False)
    test = in_memory(sets.tests["test"])
    assert list(sets.classes) == reference.classes
    assert test.label.tolist() == reference.targets
    assert np.array_equal(test.image.permute(0, 2, 3, 1).numpy(), reference.data)
    assert in_memory(sets.train).label.bincount().tolist() == [500] * 100
    assert sets.fingerprint == "c37c625f25dbbb4c"  # the official release, on any machine


def test_sixteen_bit_images(tmp_path: Path) -> None:
    wide = np.arange(0, 65536, 256, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(wide).save(tmp_path / "x.png")
    (tmp_path / "x.pgm").write_bytes(b"P5 16 16 65535\n" + wide.byteswap().tobytes())
    Image.fromarray(wide).save(tmp_path / "x.tif")
    for name in ("x.png", "x.pgm", "x.tif"):
        assert np.array_equal(np.asarray(read(tmp_path / name))[..., 0], wide >> 8)


@pytest.mark.parametrize("values", [(np.float32, 0, 0.5, 1), (np.int32, 0, 100, 255), (np.int32, 0, 10**6, -1)])
def test_grey_values_without_a_fixed_range_are_refused_and_listed(tmp_path: Path, values: tuple[Any, ...]) -> None:
    """As 16 bits they would be black, or white."""
    folder = make_folder(tmp_path)
    path = folder / "train" / "ape" / "x.tif"
    Image.fromarray(np.tile(np.array(values[1:], values[0]), (8, 3))).save(path)
    refused(
        rf"image {path} \(grey values of 32 bits .* convert it to 8 or 16 bits\)",
        f"folder:{folder}",
        None,
        image_size=16,
    )
    (facts,) = look(FileSet((path,), torch.zeros(1)))  # what asd check lists
    assert "convert it to 8 or 16 bits" in facts.wrong


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 24), st.sampled_from([1.0, 256 / 224]))
def test_fit_gives_the_square(width: int, height: int, size: int, margin: float) -> None:
    assert fit(Image.new("RGB", (width, height)), size, margin).size == (size, size)


def test_cache_of_decoded_images(tmp_path: Path) -> None:
    first = open_sets("tiny-imagenet", make_tiny(tmp_path))
    files = sorted((tmp_path / CACHE).iterdir())
    assert [path.suffix for path in files] == [".npy", ".npy"]  # training and test, and no half-written file
    written = [path.stat().st_mtime_ns for path in files]
    assert open_sets("tiny-imagenet", tmp_path).fingerprint == first.fingerprint
    assert [path.stat().st_mtime_ns for path in files] == written
    for path in files:
        path.write_bytes(path.read_bytes()[:500])  # truncated: decoded and written again
    assert open_sets("tiny-imagenet", tmp_path).fingerprint == first.fingerprint
    assert all(path.stat().st_size > 500 for path in files)
    picture(tmp_path / readers.TINY / "train/n01/images/n01_1.JPEG")
    assert open_sets("tiny-imagenet", tmp_path).fingerprint != first.fingerprint


def test_the_cache_notices_images_that_changed_places(tmp_path: Path) -> None:
    """Of the same size and time, as files of one archive are; the next command is another process."""
    one, two = (tmp_path / "own" / name / "0.bmp" for name in "ab")
    for path, colour in ((one, "red"), (two, "blue")):
        path.parent.mkdir(parents=True)
        Image.new("RGB", (32, 32), colour).save(path)
        Image.new("RGB", (32, 32), "green").save(path.with_name("1.bmp"))
        os.utime(path, (1, 1))
    before = open_sets(f"folder:{tmp_path / 'own'}", tmp_path).fingerprint
    for source, target in ((one, tmp_path / "x"), (two, one), (tmp_path / "x", two)):
        source.rename(target)
    image_io._content_digest.cache_clear()
    assert open_sets(f"folder:{tmp_path / 'own'}", tmp_path).fingerprint != before


def test_a_strip_is_not_enlarged_whole() -> None:
    """Its middle is what a network sees; 32 × 32 million pixels would take a hundred gigabytes."""
    strip = Image.new("RGB", (1, 1_000_001), "red")
    strip.putpixel((0, 500_000), (0, 0, 255))
    square = np.asarray(fit(strip, 32))
    assert square.shape == (32, 32, 3)
    assert square[16, 16, 2] > square[16, 16, 0]


def test_no_cache_in_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    (tmp_path / CACHE).write_text("in the way")
    assert len(open_sets("tiny-imagenet", tmp_path).train) == 8
    folder = make_folder(tmp_path / "own")
    open_sets(f"folder:{folder}", tmp_path / "absent", image_size=16)
    assert not (tmp_path / "absent").exists()


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


def test_limits_and_splits_of_a_data_set(tmp_path: Path) -> None:
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
    content = pickle.loads((here / readers.CIFAR / "test").read_bytes())
    content["fine_labels"][0] = 1
    (here / readers.CIFAR / "test").write_bytes(pickle.dumps(content, 2))
    assert open_sets("cifar100", here).fingerprint != plain


def test_fingerprints_notice_exchanged_class_names(tmp_path: Path) -> None:
    make_cifar(tmp_path)
    masked, birds = make_masked(tmp_path / "masked"), make_birds(tmp_path / "birds")
    meta = tmp_path / readers.CIFAR / "meta"
    content = pickle.loads(meta.read_bytes())
    marks = []
    for order in (1, -1):
        (masked / "classes.txt").write_text("\n".join(["ground", "cat", "dog"][::order]))
        (birds / "classes.txt").write_text("\n".join(["land", "water"][::order]))
        meta.write_bytes(pickle.dumps({"fine_label_names": content["fine_label_names"][::order]}, 2))
        names = ("cifar100", f"folder:{masked}", f"groups:{birds}")
        marks += [open_sets(name, tmp_path).fingerprint for name in names]
    assert len(set(marks)) == 6


def test_fingerprint_of_files_notices_changed_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same size and time: by content, as long as that is affordable; else a copy keeps its fingerprint."""
    name, path = f"folder:{make_folder(tmp_path)}", tmp_path / "train" / "ape" / "0.png"

    def change() -> None:
        path.write_bytes(path.read_bytes()[::-1])

    def opened() -> tuple[str, str]:
        image_io._content_digest.cache_clear()  # another process
        sets = open_sets(name, None)
        return sets.fingerprint, sets.hashed

    (before, how), facts = opened(), path.stat()
    assert how == "content"
    change()
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert opened()[0] != before
    monkeypatch.setattr(splits, "CONTENT", 0)
    large, first = opened()
    assert first.startswith("names, sizes, times ")
    change()
    os.utime(path, ns=(0, 0))
    again, second = opened()
    assert large == again != before
    assert first != second


@pytest.mark.parametrize(
    ("image", "label", "message"),
    [
        (torch.zeros(2, 3, 8, 8), [0, 1], "not torch.uint8"),
        (torch.zeros(2, 8, 8, 3, dtype=torch.uint8), [0, 1], r"\(2, 8, 8, 3\)"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), [0], "1 labels for another number of images"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), [0, 5], "labels 0 to 5, but 2 classes"),
    ],
)
def test_what_a_reader_must_not_return_is_refused(
    image: torch.Tensor, label: list[int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = ImageSet(image, torch.tensor(label))
    raw = readers.RawDataset(("a", "b"), images, {"test": images}, image_size=8)
    monkeypatch.setitem(DATASETS, "toy", Dataset(lambda request: raw, "two classes"))
    refused(message, "toy", None)
