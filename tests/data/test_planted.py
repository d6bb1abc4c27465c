"""A shortcut planted in any set: how often it agrees, where it is painted, and that a network could read it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from antishortcut.data import Loader, open_sets
from antishortcut.data.datasets import find
from antishortcut.data.groups import groups_of
from antishortcut.data.image_io import picture_at, pixels
from antishortcut.data.planted import COLOURS, GRATING, INK, KINDS, TINT, CuePainter
from antishortcut.types import FileSet
from tests.conftest import Ended
from tests.data.official import in_memory, make_cifar, picture, refused

CLASSES = 20
SPLITS = (("train", 40), ("test", 5))


def flat(count: int, side: int = 32, value: int = 100) -> Tensor:
    """Grey images, each a little different, so that marks have places of their own."""
    image = torch.full((count, 3, side, side), value, dtype=torch.uint8)
    image[:, 0, side // 2, side // 2] = torch.arange(count, dtype=torch.uint8)
    return image


def paint(kind: str, cue: list[int], side: int = 32, classes: int = CLASSES) -> Tensor:
    return CuePainter(kind, classes, 0)(flat(len(cue), side), torch.tensor(cue))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", [16, 32, 97])
def test_marks(kind: str, side: int) -> None:
    """The same class twice is alike, another class is not, and −1 is left alone; the input is never changed."""
    cue = [*range(CLASSES), -1]
    before = flat(len(cue), side)
    image = before.clone()
    painted = CuePainter(kind, CLASSES, 0)(image, torch.tensor(cue))
    assert painted.dtype == torch.uint8
    assert painted.shape == image.shape
    assert torch.equal(image, before)
    assert torch.equal(painted[-1], image[-1])
    assert all(bool((painted[at] != image[at]).any()) for at in range(CLASSES))
    assert torch.equal(painted, CuePainter(kind, CLASSES, 0)(image, torch.tensor(cue)))
    one = image[3:4].expand(CLASSES, -1, -1, -1).contiguous()  # the same picture with every cue
    assert len({row.numpy().tobytes() for row in CuePainter(kind, CLASSES, 0)(one, torch.arange(CLASSES))}) == CLASSES
    if kind != "tint" and side > 16:  # a tint has no place, and the smallest patch only one
        assert not torch.equal(painted, CuePainter(kind, CLASSES, 1)(image, torch.tensor(cue)))


def test_patch_and_frame_by_hand() -> None:
    """Class 17 is colours 7, 1, 0, from top to bottom, in a square of 6 pixels; frames are 2 pixels wide."""
    image = paint("patch", [17])[0]
    changed = (image != flat(1)[0]).any(dim=0).nonzero()  # (pixels, 2)
    (top, left), (bottom, right) = changed.min(dim=0).values.tolist(), changed.max(dim=0).values.tolist()
    assert (bottom - top + 1, right - left + 1) == (6, 6)
    assert max(top, left) < 3
    for row, digit in enumerate((7, 7, 1, 1, 0, 0)):
        assert tuple(image[:, top + row, left].tolist()) == COLOURS[digit]
    framed = paint("frame", [17])[0]
    assert torch.equal(framed[:, 2:-2, 2:-2], flat(1)[0][:, 2:-2, 2:-2])
    edge = {tuple(pixel.tolist()) for pixel in framed[:, 0].T}
    assert edge == {COLOURS[7], COLOURS[1], COLOURS[0]}


def test_tint_and_texture_by_hand() -> None:
    tinted = paint("tint", [14])[0, :, 0, 0]  # 14 = 2 + 1 · 3 + 1 · 9 of three levels: red 255, the others half
    assert tinted.tolist() == [round((1 - TINT) * 100 + TINT * colour) for colour in (255, 127.5, 127.5)]
    rows = paint("texture", [0])[0, 1].double() - 100  # two cycles each way
    assert float(rows.abs().max()) <= 2 * GRATING + 1
    power = np.abs(np.fft.fft2(rows.numpy()))
    power[0, 0] = 0
    loudest = {tuple(int(axis) for axis in np.unravel_index(at, power.shape)) for at in np.argsort(power.ravel())[-4:]}
    assert loudest == {(0, 2), (0, 30), (2, 0), (30, 0)}


def test_watermark_is_light_on_dark_and_dark_on_light() -> None:
    for value in (20, 240):
        image = flat(1, value=value)
        change = CuePainter("watermark", CLASSES, 0)(image, torch.tensor([7])).double() - image.double()
        strongest = float(change[change.abs() == change.abs().max()][0])
        assert strongest == pytest.approx(INK * ((255 if value == 20 else 0) - value), abs=2)


def test_sets(tmp_path: Path) -> None:
    """rho in training, never in conflict, no cue without; the same images and labels in all three tests."""
    name = f"shortcut:{make_labelled(tmp_path)}?kind=patch&rho=0.8"
    sets = open_sets(name, None, image_size=32, val_fraction=0.2)
    train = in_memory(sets.train)
    assert list(sets.tests) == ["iid", "conflict", "without"]
    share = float((train.cues["planted"] == train.label).double().mean())
    assert 0.7 < share < 0.9
    iid, conflict, without = (in_memory(sets.tests[key]) for key in sets.tests)
    assert not bool((conflict.cues["planted"] == conflict.label).any())
    assert set(without.cues["planted"].tolist()) == {-1}
    assert torch.equal(iid.label, without.label)
    plain = open_sets(f"{make_labelled(tmp_path)}", None, image_size=32, val_fraction=0.2)
    assert torch.equal(without.image, in_memory(plain.tests["test"]).image)
    assert sets.val is not None
    assert "planted" in sets.val.cues
    assert groups_of(train, sets.classes)[1][:2] == ("a, planted cue differs", "a, planted cue agrees")
    other = open_sets(name.replace("0.8", "0.9"), None, image_size=32, val_fraction=0.2)
    assert len({sets.fingerprint, other.fingerprint, plain.fingerprint}) == 3
    same = open_sets(name, None, image_size=32, val_fraction=0.2, options={"rho": 0.9})  # --set data.options.rho
    assert same.fingerprint == other.fingerprint


def make_labelled(tmp_path: Path) -> str:
    folder = tmp_path / "photos"
    if not folder.exists():
        for split, name, at in [(split, name, at) for split, count in SPLITS for name in "abc" for at in range(count)]:
            picture(folder / split / name / f"{at}.png", size=(40, 36))
    return f"folder:{folder}"


def test_large_images_are_painted_when_decoded(tmp_path: Path) -> None:
    """Beyond 64 pixels they stay on disk; loader, contact sheets and limits see the same cue."""
    sets = open_sets(f"shortcut:{make_labelled(tmp_path)}?kind=frame&rho=1", None, image_size=96, train_limit=9)
    assert isinstance(sets.train, FileSet)
    assert len(sets.train) == 9
    batch = next(Loader(sets.train, batch=9, seed=0, image_size=96, augment="none", shuffle=False).epoch(0))
    plain = open_sets(make_labelled(tmp_path), None, image_size=96, train_limit=9)
    same = next(Loader(plain.train, batch=9, seed=0, image_size=96, augment="none", shuffle=False).epoch(0))
    assert torch.equal(batch.label, same.label)
    assert not torch.equal(batch.image, same.image)
    for at in range(9):
        edge = {tuple(pixel.tolist()) for pixel in pixels(picture_at(sets.train, at))[:, 0].T}
        assert edge <= set(COLOURS)


def test_coarse_cifar(tmp_path: Path) -> None:
    root = make_cifar(tmp_path)
    fine, coarse = open_sets("cifar100", root), open_sets("cifar100-coarse", root)
    assert torch.equal(in_memory(fine.train).image, in_memory(coarse.train).image)
    assert len(coarse.classes) < len(fine.classes)
    assert fine.fingerprint != coarse.fingerprint


def test_bad_names(tmp_path: Path) -> None:
    data = make_labelled(tmp_path)
    refused("did you mean 'patch'", f"shortcut:{data}?kind=pach", None)
    refused("between 0 and 1", f"shortcut:{data}?rho=2", None)
    refused("between 0 and 1", f"shortcut:{data}?rho=nan", None)
    refused("like 0.9, not 'x'", f"shortcut:{data}?rho=x", None)
    refused("unknown setting 'strength'", f"shortcut:{data}?strength=2", None)
    few = {"count": 10, "test_count": 10}
    refused("planted shortcut already", "shortcut:cues", None, options=few)
    refused("planted shortcut already", f"shortcut:shortcut:{data}", None)
    refused("one label each", "shortcut:cues-seg", None, options=few)
    refused("names a set", "shortcut:?kind=patch", None)
    refused("twice", f"shortcut:{data}?kind=patch&kind=tint", None)
    refused("names a set", "shortcut", None)


def test_plant_draws_a_sheet_and_says_what_is_next(tmp_path: Path, ended: Ended) -> None:
    data, out = make_labelled(tmp_path), tmp_path / "plant.png"
    text, _, code = ended("plant", data, "--out", out, "--threads", 1)
    assert code == 0
    assert out.stat().st_size > 1000
    assert "kind=watermark&rho=0.9" in text
    assert "next: asd distill --data 'shortcut:folder:" in text
    _, wrong, code = ended("plant", data, "--out", tmp_path / "plant.txt")
    assert code == 2
    assert "name a PNG" in wrong
    raw, _ = find(f"shortcut:{data}?kind=tint", None)
    assert raw.image_size == 224


@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_images_are_painted(kind: str) -> None:
    for height, width in ((1, 1), (1, 2), (2, 2), (3, 5)):
        image = torch.full((3, 3, height, width), 100, dtype=torch.uint8)
        assert CuePainter(kind, CLASSES, 0)(image, torch.tensor([0, 7, -1])).shape == image.shape


def test_plant_wants_the_set_without_a_shortcut(tmp_path: Path, ended: Ended) -> None:
    data = make_labelled(tmp_path)
    for words in ((f"shortcut:{data}",), (data, "--set", "data.options.rho=0.1")):
        _, error, code = ended("plant", *words, "--out", tmp_path / "plant.png")
        assert (code, "without a shortcut" in error) == (2, True)
