"""asd check on real files: whole ones and damaged ones, copies, odd pixels, odd folders, masks, and what is drawn."""

import json
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from antishortcut.data import Loader, open_sets
from antishortcut.data.contact_sheet import GAP, LINE, TILE
from antishortcut.data.inspect import Finding, contact_sheet, look, open_finding, summarise
from antishortcut.errors import UserError
from antishortcut.types import ImageSet
from tests.conftest import Ended, Refusal
from tests.data.official import make_folder, make_masked, mask, picture, real
from tests.data.test_groups import make_birds


class Check(Protocol):
    def __call__(self, *words: object, text: bool = False) -> tuple[Any, int, str]: ...


@pytest.fixture
def check(ended: Ended) -> Check:
    """The JSON (or text) of asd check, its exit code, and its last line on standard error."""

    def run(*words: object, text: bool = False) -> tuple[Any, int, str]:
        out, error, code = ended("check", *words, *([] if text else ["--json"]))
        return out if text else json.loads(out), code, error.strip().rpartition("\n")[2]

    return run


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two classes, and everything that can be wrong with their files."""
    folder = tmp_path / "pets"
    for at in range(4):
        picture(folder / "train" / "cat" / f"{at}.jpg", size=(48, 40))
    for at in range(2):
        picture(folder / "train" / "dog" / f"{at}.jpg", size=(20, 24))
        picture(folder / "val" / "cat" / f"{at}.jpg")
    whole = (folder / "train" / "cat" / "0.jpg").read_bytes()
    (folder / "train" / "cat" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "train" / "dog" / "nothing.png").write_bytes(b"")
    for name, mode in (("grey.png", "L"), ("ink.jpg", "CMYK"), ("glass.png", "RGBA")):
        picture(folder / "train" / "dog" / name, mode)
    note = Image.Exif()
    note[0x0112] = 6
    picture(folder / "train" / "dog" / "lying.jpg", exif=note)
    (folder / "train" / "dog" / "phone.heic").write_bytes(b"ftypheic")
    (folder / "train" / "dog" / "notes.txt").write_text("a good dog")
    Image.open(folder / "train" / "cat" / "1.jpg").save(folder / "val" / "cat" / "copy.png")  # another format
    shutil.copy(folder / "train" / "cat" / "2.jpg", folder / "train" / "dog" / "same.jpg")
    picture(folder / "valid" / "cat" / "late.jpg")
    return folder


def test_a_damaged_folder_and_its_repair(check: Check, pets: Path) -> None:
    assert check(pets)[0]["image_size"] == 32  # as asd distill would take them: half are no larger than 48
    result, code, line = check(pets, "--set", "data.image_size=224")
    assert code == 2
    assert line == f"asd: folder:{pets}: training would stop: 2 files cannot be used; replace or remove them"
    assert result["splits"] == [
        {"split": "train", "images": 13, "classes": 2, "smallest": 5, "largest": 8, "ratio": 1.6},
        {"split": "test", "images": 3, "classes": 1, "smallest": 3, "largest": 3, "ratio": 1.0},
    ]
    assert result["balance"] == [{"class": "cat", "train": 5, "test": 3}, {"class": "dog", "train": 8, "test": 0}]
    cut, nothing = result["unreadable"]
    assert cut.startswith(f"cannot read the image {pets / 'train' / 'cat' / 'cut.jpg'} (image file is truncated")
    assert nothing.startswith(f"cannot read the image {pets / 'train' / 'dog' / 'nothing.png'} (none of JPEG, PNG, ")
    assert result["turned"] == 1
    assert result["hashed"] == "content"
    assert (result["sizes"]["smallest"], result["sizes"]["largest"]) == ([20, 24], [64, 64])
    assert result["sizes"]["smaller"] == 14
    assert result["held"] == "val"
    assert result["unknown"] == {".heic": 1}
    assert result["unused"] == {"valid/cat": 1}
    assert result["duplicates"] == {
        "leaked": {"test": 1},
        "across": [["train/cat/1.jpg", "val/cat/copy.png"]],
        "two_classes": [["train/cat/2.jpg", "train/dog/same.jpg"]],
    }
    advice = "\n".join(result["advice"])
    for words in (
        "33.3% of test are training images too", "in two classes: 1 image", "test has no images of dog",
        "in no split: 1 image in valid/cat", "--set data.image_size=", "EXIF", "(.heic): 1 file", "data.val_fraction",
    ):  # fmt: skip
        assert words in advice, words
    for name in ("train/cat/cut.jpg", "train/dog/nothing.png", "val/cat/copy.png", "train/dog/same.jpg"):
        (pets / name).unlink()
    shutil.rmtree(pets / "valid")
    result, code, line = check(pets, "--set", "data.image_size=16")
    assert (code, line) == (0, "")
    assert result["problems"] == result["unreadable"] == result["duplicates"]["across"] == []
    assert result["sizes"]["smaller"] == 0
    advice = "\n".join(result["advice"])
    assert not any(words in advice for words in ("training images too", "two classes", "image_size", "no split"))
    assert result["next"].startswith("asd distill --data ")


def test_a_folder_that_training_refuses_is_one_line(check: Check, tmp_path: Path) -> None:
    """The same line as of opening it; what training accepts is accepted here."""

    def refused(folder: str, message: str) -> None:
        with pytest.raises(UserError, match=message) as error:
            open_sets(f"folder:{tmp_path / folder}", None)
        assert check(tmp_path / folder, text=True) == ("", 2, f"asd: {error.value}")

    picture(tmp_path / "flat" / "ape" / "0.png")
    picture(tmp_path / "flat" / "bat" / "0.png")
    refused("flat", "one of each class: none can be held out")
    picture(tmp_path / "flat" / "bat" / "1.png")
    assert open_sets(f"folder:{tmp_path / 'flat'}", None).train.label.tolist() == [0, 1]
    assert check(tmp_path / "flat")[1] == 0
    (tmp_path / "flat" / "val").mkdir()
    refused("flat", "has val/ but no train/")
    make_folder(tmp_path / "good")
    assert check(tmp_path / "good")[1] == 0
    picture(tmp_path / "good" / "val" / "new" / "0.png")
    refused("good", "val has new, but its class folders must be among")
    (tmp_path / "good" / "train" / "new").mkdir()
    refused("good", "no images in .*train/new")
    shutil.rmtree(tmp_path / "good" / "train" / "new")
    shutil.rmtree(tmp_path / "good" / "val" / "new")
    _, code, line = check(tmp_path / "good", "--set", "data.train_limit=1", text=True)
    assert code == 2
    assert "there is no image of " in line


def test_without_val_a_tenth_is_held_out(check: Check, tmp_path: Path) -> None:
    make_folder(tmp_path, held=None, per_class=10)
    result, code, _ = check(tmp_path)
    assert code == 0
    assert [(row["split"], row["images"]) for row in result["splits"]] == [("train", 18), ("test", 2)]
    assert any(line.startswith("there is no val/ or test/: a tenth of the images") for line in result["advice"])
    (tmp_path / "train" / "cow").mkdir()
    result, _, _ = check(tmp_path / "train")
    assert (result["classes"], result["empty"]) == (2, ["cow"])
    (tmp_path / "train" / "cow").rmdir()
    result, _, _ = check(f"folder:{tmp_path}", "--set", "data.val_fraction=0.5", "--set", "data.train_limit=4")
    assert [(row["split"], row["images"]) for row in result["splits"]] == [("train", 4), ("val", 9), ("test", 2)]


def test_long_lists_are_cut_after_twenty(check: Check, tmp_path: Path) -> None:
    make_folder(tmp_path)
    for at in range(25):
        (tmp_path / "train" / "ape" / f"bad{at:02}.png").write_bytes(b"no picture")
        picture(tmp_path / "train" / f"class{at:02}" / "0.png", size=(8, 8))
    text, code, _ = check(tmp_path, text=True)
    assert code == 2
    assert "bad19.png" in text
    assert "bad20.png" not in text
    assert "and 5 more" in text
    assert "the 10 largest and the 10 smallest" in text
    assert text.count("█") > 30
    assert "class24" in text


def test_groups_and_recipes(check: Check, tmp_path: Path) -> None:
    make_birds(tmp_path / "birds")
    picture(tmp_path / "birds" / "000.Some_Bird" / "unlisted.jpg")
    result, code, _ = check(tmp_path / "birds")
    assert code == 0
    assert result["data"] == f"groups:{tmp_path / 'birds'}"
    assert [(row["split"], row["images"]) for row in result["splits"]] == [("train", 6), ("test", 5), ("validation", 2)]
    assert result["unused"] == {"000.Some_Bird": 1}
    recipe = tmp_path / "mine.toml"
    recipe.write_text('epochs = 1\n[data]\nname = "cues"\noptions = {count = 40, test_count = 20}\naugment = "flip"\n'
                      '[teacher]\nname = "cnn-4-16"\n[student]\nname = "cnn-2-16"\n')  # fmt: skip
    result, code, _ = check(recipe, "--set", "method.tc=1", "--set", "data.augment=crop")
    assert code == 0
    assert (result["augment"], result["next"]) == ("crop", f"asd distill {recipe}")
    assert [row["images"] for row in result["splits"]] == [40, 20, 20, 20]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cifr100"], "did you mean 'cifar100'"),
        (["no/such/folder"], "'no/such/folder' is no folder"),
        (["my fotos"], "'my fotos' is no folder, data set or recipe; did you mean my photos?"),
        (["my photos/train/ape/0.png"], "0.png: not a TOML file"),
        (["cues", "--set", "data.augmnt=none"], "did you mean 'augment'"),
        (["my photos", "--set", "data.augment=scale-crop-flip"], "for images with masks"),
        (["my photos", "--out", "sheet.jpg"], "name a PNG file"),
        (["groups:nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line(here: Path, refusal: Refusal, words: list[str], message: str) -> None:
    make_folder(here / "my photos")
    assert message in refusal("check", *words)


def test_masks(check: Check, tmp_path: Path) -> None:
    """Shares that can be counted by hand: 12 pixels, of which a mask makes three void."""
    folder = tmp_path / "scenes"
    for part in ("train", "val"):
        for at in range(2):
            picture(folder / part / "images" / f"{at}.png", size=(4, 3))
            values = np.array([[0, 0, 1, 1], [0, 0, 1, 1], [0, 255, 255, 255]], dtype=np.uint8)
            mask(folder / part / "masks" / f"{at}.png", values)
    (folder / "classes.txt").write_text("sky\nsea\nsand\n")
    result, code, _ = check(folder, "--set", "data.image_size=8")
    assert code == 0
    assert result["augment"] == "scale-crop-flip"
    assert result["masks"]["void"] == {"train": 0.25, "test": 0.25}
    first, second, third = result["masks"]["frequency"]
    assert first == {"class": "sky", "train": 0.55556, "train images": 2, "test": 0.55556, "test images": 2}
    assert (second["train"], third["train"], third["train images"]) == (0.44444, 0.0, 0)
    assert "no training mask has sand" in result["advice"]
    values[0, 0] = 7
    mask(folder / "train" / "masks" / "0.png", values)
    mask(folder / "val" / "masks" / "1.png", np.zeros((5, 5), dtype=np.uint8))
    result, code, line = check(folder, "--set", "data.image_size=8", "--out", tmp_path / "sheet.png")
    assert code == 2
    value, size = result["unreadable"]
    assert value.startswith(f"the mask {folder / 'train' / 'masks' / '0.png'} has the value 7, which is no class")
    assert "has 5 × 5 pixels, its image" in size
    assert "2 files cannot be used" in line
    assert Image.open(tmp_path / "sheet.png").width > 4 * TILE
    assert result["unused"] == {}
    (folder / "train" / "masks" / "1.png").unlink()
    _, code, line = check(folder, text=True)
    assert (code, "has no mask" in line) == (2, True)


def test_masks_without_class_names(check: Check, tmp_path: Path) -> None:
    make_masked(tmp_path)
    assert check(tmp_path)[0]["classes"] == 3
    (tmp_path / "train" / "masks" / "0.png").write_bytes(b"")
    _, code, line = check(tmp_path, text=True)  # a run could not count the classes
    assert (code, "cannot read the mask" in line) == (2, True)


def test_small_masks_move_into_memory_and_may_keep_their_size(check: Check, tmp_path: Path) -> None:
    make_masked(tmp_path)
    result, code, _ = check(tmp_path, "--set", "data.augment=crop-flip", "--out", tmp_path / "sheet.png")
    assert (code, result["augment"]) == (0, "crop-flip")
    width, height = Image.open(tmp_path / "sheet.png").size
    assert (width, height) == (2 * (5 * (TILE + GAP) + GAP), 3 * LINE + 2 * (TILE + LINE))  # title, heads, legend
    picture(tmp_path / "train" / "images" / "wide.jpg", size=(50, 30))
    mask(tmp_path / "train" / "masks" / "wide.png", np.ones((30, 50), dtype=np.uint8))
    _, code, line = check(tmp_path, "--set", "data.augment=crop-flip", text=True)
    assert code == 2
    assert "use scale-crop-flip" in line
    assert check(tmp_path, "--set", "data.augment=none", "--out", tmp_path / "sheet.png")[1] == 0


def test_sets_in_memory(check: Check, tmp_path: Path) -> None:
    small = ["--set", "data.options.count=24", "--set", "data.options.test_count=8"]
    result, code, _ = check("cues", *small)
    assert code == 0
    assert (result["augment"], result["sizes"]["median"]) == ("crop", [32, 32])  # the recipe's
    assert sum(row["train"] for row in result["balance"]) == 24
    result, code, _ = check("cues-seg", *small, "--out", tmp_path / "sheet.png")
    assert code == 0
    assert sum(row["train"] for row in result["masks"]["frequency"]) == pytest.approx(1, abs=1e-3)
    assert Image.open(tmp_path / "sheet.png").size[0] > 8 * TILE


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.booleans()), min_size=1, max_size=14))
def test_copies_equal_those_of_comparing_all_pairs(drawn: list[tuple[int, int, bool]]) -> None:
    """Images of one of four colours, with a class, in one part or the other."""
    pieces: dict[str, ImageSet] = {}
    for part, here in (("train", True), ("test", False)):
        rows = [(colour, label) for colour, label, where in drawn if where is here]
        image = torch.tensor([colour for colour, _ in rows], dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2)
        pieces[part] = ImageSet(image.clone(), torch.tensor([label for _, label in rows], dtype=torch.int64))
    finding = Finding("drawn", ("a", "b"), 2, pieces)
    result = summarise(finding, {part: look(images) for part, images in pieces.items()})["duplicates"]
    every = [(part, at) for part, images in pieces.items() for at in range(len(images))]
    same = [
        (one, other)
        for one, other in combinations(every, 2)
        if bool((pieces[one[0]].image[one[1]] == pieces[other[0]].image[other[1]]).all())
    ]
    leaked = {other for one, other in same if one[0] == "train" and other[0] == "test"}
    assert result["leaked"] == {"test": len(leaked)}
    two = {frozenset((one, other)) for one, other in same
           if pieces[one[0]].label[one[1]] != pieces[other[0]].label[other[1]]}  # fmt: skip
    named = {frozenset(f"{part} {at}" for part, at in pair) for pair in two}
    assert all(any(pair <= set(group) for group in result["two_classes"]) for pair in named)
    assert bool(named) == bool(result["two_classes"])


def tiles(sheet: Image.Image, number: int, columns: int = 4) -> list[np.ndarray[Any, Any]]:
    """The pictures of a row of the sheet, two rows of which are beside each other."""
    step = columns * (TILE + GAP) + GAP
    left, top = GAP + number % 2 * step, 2 * LINE + number // 2 * (TILE + LINE)
    pixels = np.asarray(sheet)
    return [
        pixels[top : top + TILE, left + at * (TILE + GAP) : left + at * (TILE + GAP) + TILE] for at in range(columns)
    ]


def enlarged(image: torch.Tensor) -> np.ndarray[Any, Any]:
    """(3, S, S) in [0, 1] or bytes, every pixel as many times as fill a tile."""
    pixels = image if image.dtype == torch.uint8 else (image * 255).round().byte()
    times = TILE // image.shape[-1]
    return pixels.permute(1, 2, 0).numpy().repeat(times, 0).repeat(times, 1)


def test_the_sheet_shows_what_training_sees() -> None:
    options = {"count": 5, "test_count": 2}
    finding = open_finding("cues", None, image_size=32, options=options)
    train = open_sets("cues", None, image_size=32, options=options).train
    assert isinstance(train, ImageSet)
    for augment in ("none", "crop", "crop-flip", "imagenet"):
        sheet = contact_sheet(finding, look(finding.splits["train"]), augment, seed=3)
        loader = Loader(train, batch=2, seed=3, image_size=32, augment=augment, shuffle=False)
        for epoch in range(3):
            outputs = torch.cat([batch.image for batch in loader.epoch(epoch)])
            for at in range(5):
                shown = tiles(sheet, at)
                assert (shown[0] == enlarged(train.image[at])).all()
                assert (shown[1 + epoch] == enlarged(outputs[at])).all()
                assert (augment == "none") == bool((shown[1] == shown[0]).all())


def test_a_sheet_leaves_out_unreadable_files(check: Check, pets: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "sheet.png"
    result, code, _ = check(pets, "--out", out)
    assert code == 2
    assert result["sheet"] == str(out)
    assert Image.open(out).height == 2 * LINE + 6 * (TILE + LINE)  # of 13, 11 can be read
    broken = tmp_path / "broken"
    for name in ("a", "b"):
        (broken / "train" / name).mkdir(parents=True)
        (broken / "train" / name / "0.png").write_bytes(b"no")
        (broken / "train" / name / "1.png").write_bytes(b"no")
    text, code, line = check(broken, text=True)
    assert code == 2
    assert "4 files cannot be used" in line
    assert "sizes" not in text


def test_cifar100_has_ten_test_images_in_training(check: Check) -> None:
    result, code, _ = check("cifar100", "--data-root", real("cifar-100-python"))
    assert (code, result["duplicates"]["leaked"]) == (0, {"test": 10})
