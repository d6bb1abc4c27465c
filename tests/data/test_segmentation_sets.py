"""Sources of images with masks: small sets in the official layouts, made here; and the real CamVid where it is."""

import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from antishortcut.data import open_sets, segmentation
from antishortcut.data.image_io import CACHE
from antishortcut.data.segmentation import read_pair, read_values
from antishortcut.types import VOID, DataSplits, FileSet, is_dense
from tests.data.official import (
    ADE_SIZES,
    in_memory,
    make_ade,
    make_camvid,
    make_masked,
    mask,
    paths_of,
    picture,
    real,
    refused,
)


def on_disk(images: Any) -> FileSet:
    assert isinstance(images, FileSet)
    return images


def values(path: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(Image.open(path)).astype(np.int64)


def test_ade20k_official_layout(tmp_path: Path) -> None:
    sets = open_sets("ade20k", make_ade(tmp_path))
    train, val = on_disk(sets.train), on_disk(sets.tests["val"])
    assert (list(sets.tests), sets.val, sets.image_size) == (["val"], None, 512)
    assert sets.classes == tuple(f"thing {at}" for at in range(1, 151))
    assert is_dense(train)
    assert [path.stem for path in paths_of(train)] == [path.stem for path in train.masks]
    assert [path.parent.name for path in paths_of(val)] == ["validation"] * 4
    assert train.label.tolist() == [0] * 4
    for at, size in enumerate(ADE_SIZES):
        shown, label = read_pair(train, at)
        assert (shown.mode, shown.size) == ("RGB", size)
        expected = values(train.masks[at])
        assert np.array_equal(label == VOID, expected == 0)
        assert np.array_equal(label[expected > 0], expected[expected > 0] - 1)
    pointed = open_sets("ade20k", tmp_path / segmentation.ADE)  # right at the release
    assert pointed.fingerprint == sets.fingerprint
    assert open_sets("ade20k", tmp_path, image_size=320).image_size == 320


def test_ade20k_without_names_and_with_bad_ones(tmp_path: Path) -> None:
    sets = open_sets("ade20k", make_ade(tmp_path, names=False))
    assert sets.classes == tuple(f"class {value}" for value in range(1, 151))
    table = tmp_path / segmentation.ADE / "objectInfo150.txt"
    for text in ("Idx\tName\n1\twall\n", "Idx\tRatio\n" + "1\t2\n" * 150, "Idx\tName\n" + "1\n" * 150):
        table.write_text(text)
        refused(f"{table} is not a table of 150 classes", "ade20k", tmp_path)


def check_camvid(sets: DataSplits, folder: Path) -> None:
    assert sets.classes == segmentation.CAMVID
    assert sets.image_size == 16  # of 30 pixels, whole steps of 16
    train, val, test = (in_memory(part) for part in (sets.train, sets.val, sets.tests["test"]))
    assert [len(images) for images in (train, val, test)] == [6, 2, 3]
    assert (train.image.shape, train.label.shape, train.label.dtype) == ((6, 3, 30, 40), (6, 30, 40), torch.uint8)
    expected = values(folder / "train5.png")
    assert np.array_equal(train.label[5].numpy(), np.where(expected == 11, VOID, expected))


def test_camvid_images_and_masks(tmp_path: Path) -> None:
    folder = make_camvid(tmp_path / "camvid")
    sets = open_sets("camvid", tmp_path)
    check_camvid(sets, folder / "train/masks")
    first = in_memory(sets.train).image[0]
    assert np.array_equal(first.permute(1, 2, 0).numpy(), np.asarray(Image.open(folder / "train/images/train0.png")))
    (folder / "classes.json").write_text(json.dumps([*segmentation.CAMVID, "unlabelled"]))
    assert open_sets("camvid", tmp_path).classes == segmentation.CAMVID
    assert open_sets("camvid", folder).fingerprint == sets.fingerprint
    (folder / "classes.json").write_text(json.dumps(["sky", "road"]))
    refused("names 2 classes, but CamVid has 11", "camvid", tmp_path)


def test_cache_of_decoded_pairs(tmp_path: Path) -> None:
    folder = make_camvid(tmp_path / "camvid")
    first = open_sets("camvid", tmp_path)
    assert len(list((tmp_path / CACHE).iterdir())) == 3
    assert open_sets("camvid", tmp_path).fingerprint == first.fingerprint
    mask(folder / "train/masks/train0.png", np.zeros((30, 40)))
    changed = open_sets("camvid", tmp_path)
    assert changed.fingerprint != first.fingerprint
    assert not in_memory(changed.train).label[0].any()
    refused("validation images of its own; leave val_fraction at 0", "camvid", tmp_path, val_fraction=0.1)


def test_camvid_in_segnets_layout(tmp_path: Path) -> None:
    folder = make_camvid(tmp_path / "CamVid", ("{}", "{}annot"))
    check_camvid(open_sets("camvid", tmp_path), folder / "trainannot")


def test_real_camvid(tmp_path: Path) -> None:
    (tmp_path / "camvid").symlink_to(real("camvid") / "camvid")  # so that the cache is left here
    sets = open_sets("camvid", tmp_path, train_limit=20, test_limit=5)
    train = in_memory(sets.train)
    assert sets.classes == segmentation.CAMVID
    assert train.image.shape == (20, 3, 180, 240)
    assert (sets.image_size, len(sets.val or ()), len(sets.tests["test"])) == (176, 101, 5)
    assert np.unique(train.label.numpy()).tolist() == [*range(11), VOID]
    sky, road = (train.label == name for name in (0, 3))
    height = torch.arange(180)[:, None].expand(180, 240)
    assert height.expand_as(sky)[sky].float().mean() < 60 < 120 < height.expand_as(road)[road].float().mean()


def masked(tmp_path: Path, **options: Any) -> str:
    return f"folder:{make_masked(tmp_path, **options)}"


@pytest.mark.parametrize("held", ["val", "valid", "test"])
def test_folder_with_masks(tmp_path: Path, held: str) -> None:
    sets = open_sets(masked(tmp_path / "own", held=held), tmp_path)
    train, test = in_memory(sets.train), in_memory(sets.tests["test"])
    assert sets.classes == ("class 0", "class 1", "class 2")
    assert (sets.image_size, sets.val) == (16, None)
    assert train.label.shape == (4, 30, 40)
    assert np.array_equal(test.label[1].numpy(), values(tmp_path / "own" / held / "masks" / "1.png"))
    assert open_sets(f"folder:{tmp_path / 'own'}", tmp_path, image_size=24).image_size == 24


def test_class_names_of_a_folder(tmp_path: Path) -> None:
    name = masked(tmp_path)
    (tmp_path / "classes.json").write_text('["a", "b", "c", "d"]')
    assert open_sets(name, None).classes == ("a", "b", "c", "d")
    (tmp_path / "classes.txt").write_text("ground\ncat\n\ndog\n")
    assert open_sets(name, None).classes == ("ground", "cat", "dog")
    (tmp_path / "classes.txt").write_text("ground\ncat\n")
    refused(r"the mask .*masks/\d.png has the value 2, which is no class: they are 0 to 1, and 255", name, None)
    (tmp_path / "classes.txt").write_text("cat\ncat\n")
    refused("names the class 'cat' twice", name, None)
    (tmp_path / "classes.txt").unlink()
    for text, message in (("{", "classes.json is not JSON"), ('{"a": 1}', "not a list of"), ("[1]", "not a list")):
        (tmp_path / "classes.json").write_text(text)
        refused(message, name, None)


def test_errors_in_a_folder_of_masks(tmp_path: Path) -> None:
    name, train = masked(tmp_path), tmp_path / "train"
    good = (train / "masks/2.png").read_bytes()
    (train / "masks/2.png").unlink()
    refused("the image .*images/2.jpg has no mask .*masks/2.png", name, None)
    (train / "masks/2.jpg").write_bytes((train / "images/2.jpg").read_bytes())
    refused("the image .*images/2.jpg has no mask .*masks/2.png", name, None)  # a JPEG does not keep its values
    (train / "masks/2.jpg").unlink()
    for content in (good[:60], b"", b"no picture"):
        (train / "masks/2.png").write_bytes(content)
        refused("cannot read the mask .*masks/2.png", name, None)
    picture(train / "masks/2.png", size=(40, 30))
    refused("cannot read the mask .*masks/2.png .*RGB, not one whole number", name, None)
    Image.fromarray(np.full((30, 40), 300, dtype=np.uint16)).save(train / "masks/2.png")
    refused("cannot read the mask .*masks/2.png .*300", name, None)
    mask(train / "masks/2.png", np.zeros((40, 30)))
    refused("the mask .*masks/2.png has 30 × 40 pixels, its image .*images/2.jpg 40 × 30", name, None)
    (train / "masks/2.png").write_bytes(good)
    mask(train / "masks/7.png", np.zeros((30, 40)))
    refused("the mask .*masks/7.png has no image", name, None)
    (train / "masks/7.png").unlink()
    picture(train / "images/2.png")
    refused("images/2.jpg and .*images/2.png have the same name", name, None)
    (train / "images/2.png").unlink()
    mask(tmp_path / "val/masks/1.png", np.full((30, 40), 3))
    refused("val/masks/1.png has the value 3, which is no class: they are 0 to 2, and 255", name, None)
    shutil.rmtree(tmp_path / "val" / "images")
    refused("no images in .*val/images", name, None)
    for path in (train / "masks").iterdir():
        mask(path, np.full((30, 40), 255))
    refused("all pixels of the masks .* are 255", name, None)
    for path in (train / "masks").iterdir():
        mask(path, np.full((30, 40), 254))
    refused("has 255 classes, but a mask of bytes holds at most 254", name, None)


def test_one_class_is_refused(tmp_path: Path) -> None:
    """Masks of 0 and 255 alone, the commonest way to write two classes: with and without names."""
    name = masked(tmp_path)
    for path in (tmp_path / "train/masks").iterdir():
        mask(path, 255 * (values(path) % 2))
    text = "has one class only; 255 means void, so write foreground as 1"
    refused(text, name, None)
    (tmp_path / "classes.txt").write_text("thing\n")
    refused(text, name, None)
    (tmp_path / "classes.txt").write_text("ground\nthing\n")
    refused("show 1 class besides void, two are needed; write foreground as 1", name, None)


def png(depth: int, rows: list[list[int]]) -> bytes:
    """Grey of so many bits, bit by bit as the standard has it."""
    lines = ["".join(f"{value:0{depth}b}" for value in row) for row in rows]
    lines = [line + "0" * (-len(line) % 8) for line in lines]
    raw = b"".join(b"\0" + bytes(int(line[at : at + 8], 2) for at in range(0, len(line), 8)) for line in lines)
    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), depth, 0, 0, 0, 0)
    pieces = ((b"IHDR", head), (b"IDAT", zlib.compress(raw)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in pieces
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_masks_of_few_bits(tmp_path: Path, depth: int) -> None:
    """Pillow makes two and four bits lighter, so that their white is white."""
    most = 2**depth - 1
    rows = [[0, 1, most], [most, 0, most // 2]]
    (tmp_path / "mask.png").write_bytes(png(depth, rows))
    assert read_values(tmp_path / "mask.png").tolist() == rows


def test_masks_of_every_kind(tmp_path: Path) -> None:
    """Palettes mean their places, bits 0 and 1, sixteen bits what they say."""
    label = np.array([[0, 1], [1, 0]])
    kinds = {
        "palette.png": Image.fromarray(label.astype(np.uint8)).convert("P"),
        "bit.png": Image.fromarray(label.astype(bool)),
        "wide.png": Image.fromarray(label.astype(np.uint16)),
        "bitmap.bmp": Image.fromarray(label.astype(np.uint8)),
        "tagged.tif": Image.fromarray(label.astype(np.int32)),
    }
    kinds["palette.png"].putpalette([9, 9, 9, 200, 0, 0] + [0] * 762)
    for name, image in kinds.items():
        image.save(tmp_path / name)
        assert np.array_equal(read_values(tmp_path / name), label), name
