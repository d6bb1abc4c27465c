"""ImageNet-R and -A, and stimuli in cue conflict: small folders in their official layouts, made here."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.data.imagenet_info import ImageNetInfo

from antishortcut.data import Loader
from antishortcut.data.readers import class_list
from antishortcut.data.shifts import SIXTEEN, open_renditions, open_stimuli, published
from antishortcut.errors import UserError
from tests.data.official import paths_of, picture

HUNDRED = tuple(sorted(class_list("imagenet100")))
CIFAR = ("apple", "bear", "bicycle", "bottle", "chair", "clock", "elephant", "keyboard", "lion", "pickup_truck", "wolf")


def make_renditions(root: Path, wnids: tuple[str, ...], per_class: int = 1) -> Path:
    picture(root / "one.jpg", size=(8, 8))
    for wnid in wnids:
        for at in range(per_class):
            (root / "set" / wnid).mkdir(parents=True, exist_ok=True)
            shutil.copy(root / "one.jpg", root / "set" / wnid / f"art_{at}.jpg")
    return root / "set"


def make_stimuli(folder: Path, *names: str) -> Path:
    for name in names:
        picture(folder / name, size=(8, 8))
    return folder


def refused(match: str, call: Any, *arguments: Any) -> None:
    with pytest.raises(UserError, match=match) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "count"), [("imagenet-r", 19), ("imagenet-a", 15)])
def test_overlap_with_imagenet100_as_in_the_paper(tmp_path: Path, name: str, count: int) -> None:
    official = class_list(name)
    folder = make_renditions(tmp_path, official, per_class=2)
    (folder / "README.txt").write_text("no class")
    (folder / "extra").mkdir()
    shift = open_renditions(name, folder, HUNDRED)
    assert shift.name == name
    assert shift.overlap == tuple(wnid for wnid in HUNDRED if wnid in official)
    assert [HUNDRED[at] for at in shift.images.label.tolist()] == [path.parent.name for path in paths_of(shift.images)]
    assert [HUNDRED[at] for at in shift.allowed.nonzero().flatten().tolist()] == list(shift.overlap)
    assert shift.facts == {
        "overlap": list(shift.overlap), "overlap_count": count, "absent": [], "folder_classes": 200,
        "official_classes": True, "images": 2 * count, "left_out": 2 * (200 - count),
    }  # fmt: skip


def test_labels_are_the_students_classes(tmp_path: Path) -> None:
    folder = make_renditions(tmp_path, ("n01443537", "n01484850", "n01494475"))
    classes = ("n01494475", "n00000001", "n01443537")
    shift = open_renditions("imagenet-r", folder, classes)
    assert shift.overlap == ("n01494475", "n01443537")
    assert shift.images.label.tolist() == [0, 2]
    assert shift.allowed.tolist() == [True, False, True]
    assert (shift.facts["left_out"], shift.facts["official_classes"]) == (1, False)
    assert open_renditions("imagenet-r", folder, (*classes, "n01498041")).facts["absent"] == ["n01498041"]
    batch = next(Loader(shift.images, batch=2, seed=0, image_size=8, augment="none", shuffle=False).epoch(0))
    assert batch.image.shape == (2, 3, 8, 8)


def test_errors_of_renditions(tmp_path: Path) -> None:
    folder = make_renditions(tmp_path, ("n01443537",))
    (folder / "n01484850").mkdir()
    for match, name, place, classes in (
        ("none of the student's classes .'apple', 'bear'.*imagenet100", "imagenet-r", folder, CIFAR),
        ("none of the student's classes .'n02119022'", "imagenet-r", folder, ("n02119022",)),
        ("no class folders .*imagenet-r/<wnid>", "imagenet-r", tmp_path / "nowhere", HUNDRED),
        ("no class folders", "imagenet-r", tmp_path / "one.jpg", HUNDRED),
        ("no images in .*n01484850", "imagenet-r", folder, ("n01484850",)),
    ):
        refused(match, open_renditions, name, place, classes)


def test_the_sixteen_are_the_published_imagenet_classes() -> None:
    """As indices of the 1,000 classes, the other form in which texture-vs-shape's human_categories.py has them."""
    names: list[str] = ImageNetInfo().label_names()  # type: ignore[no-untyped-call]
    indices: dict[str, set[int]] = {category: set() for category in SIXTEEN}
    for name, category in published().items():
        if name in names:
            indices[category].add(names.index(name))
    assert indices == {
        "airplane": {404},
        "bear": {294, 295, 296, 297},
        "bicycle": {444, 671},
        "bird": {*range(8, 25), *range(80, 101), *range(127, 146)} - {9, 17, 21, 84, 85, 86, 97, 134},
        "boat": {472, 554, 625, 814, 914},
        "bottle": {440, 720, 737, 898, 899, 901, 907},
        "car": {436, 511, 817},
        "cat": {281, 282, 283, 284, 285, 286},
        "chair": {423, 559, 765, 857},
        "clock": {409, 530, 892},
        "dog": {*range(152, 269)} - {192, 204, 227, 242, 251, 258, 260, 264},
        "elephant": {385, 386},
        "keyboard": {508, 878},
        "knife": {499},
        "oven": {766},
        "truck": {555, 569, 656, 675, 717, 734, 864, 867},
    }
    assert set(published()) - set(names) == {*SIXTEEN, "pickup_truck"}


def test_stimuli_of_a_cifar_student(tmp_path: Path) -> None:
    folder = make_stimuli(
        tmp_path,
        "bear/bear1-clock2.png",
        "truck/truck10-bear3.png",
        "clock/0001_cue_dnn_00_clock_00_clock4-truck1.png",  # model-vs-human's longer names
        *("bear/bear1-bear2.png", "cat/cat7-elephant2.png", "bear/bear1-cat1.png", "bear/bear1.png"),
        *("bear/bear1_clock2-216_filled.png", "bear/notes.txt.png"),
    )
    stimuli = open_stimuli(folder, CIFAR)
    assert stimuli.categories == ("bear", "bicycle", "bottle", "chair", "clock", "elephant", "keyboard", "truck")
    pairs = zip(stimuli.images.label.tolist(), stimuli.texture.tolist(), strict=True)
    named = {(stimuli.categories[shape], stimuli.categories[texture]) for shape, texture in pairs}
    assert named == {("bear", "clock"), ("truck", "bear"), ("clock", "truck")}
    assert (stimuli.facts["images"], stimuli.facts["no_conflict"], stimuli.facts["without_category"]) == (3, 1, 2)
    assert stimuli.facts["categories"]["truck"] == ["pickup_truck"]
    assert stimuli.matrix.sum(dim=1).tolist() == [1.0] * 8
    assert stimuli.matrix[7].tolist() == [0.0] * 9 + [1.0, 0.0]
    assert stimuli.matrix[:, CIFAR.index("lion")].sum() == 0  # no cat, as published


def test_a_mapping_from_a_file(tmp_path: Path) -> None:
    folder = make_stimuli(tmp_path / "set", "airplane1-oven2.png", "cat1-oven2.png")
    classes = ("jet", "glider", "cat", "stove")
    toml = tmp_path / "mapping.toml"
    toml.write_text('oven = ["stove"]\nairplane = ["glider", "jet"]\ndog = []\n')
    stimuli = open_stimuli(folder, classes, toml)
    assert stimuli.categories == ("airplane", "oven")  # only what the file lists
    assert torch.equal(stimuli.matrix, torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 0, 1]]))
    assert (stimuli.images.label.tolist(), stimuli.texture.tolist()) == ([0], [1])
    assert stimuli.fingerprint == open_stimuli(folder, classes, toml).fingerprint
    toml.write_text('oven = ["stove"]\nairplane = ["glider"]\n')
    assert stimuli.fingerprint != open_stimuli(folder, classes, toml).fingerprint


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('aeroplane = ["jet"]', "'aeroplane' is none .*did you mean 'airplane'"),
        ('airplane = ["jett"]', "no class 'jett' for airplane; did you mean 'jet'"),
        ('airplane = ["zzzzzz"]', "no class 'zzzzzz'.*known: jet, glider, cat, …"),
        ('airplane = "jet"', "airplane wants a list"),
        ('airplane = ["jet"]\noven = ["jet"]', "'jet' is in both airplane and oven"),
        ("airplane = [", "is not TOML"),
        ('airplane = ["jet"]', "has only airplane of them"),
        ("", "has none of them"),
        ('cat = ["cat"]\noven = ["stove"]', "1 stimuli, but none in conflict"),
    ],
)
def test_errors_in_a_mapping(tmp_path: Path, text: str, match: str) -> None:
    folder = make_stimuli(tmp_path / "set", "airplane1-oven2.png")
    (tmp_path / "mapping.toml").write_text(text)
    refused(match, open_stimuli, folder, ("jet", "glider", "cat", "stove"), tmp_path / "mapping.toml")


def test_errors_of_stimuli(tmp_path: Path) -> None:
    folder = make_stimuli(tmp_path / "set", "a/bear1-clock2.png")
    other = make_stimuli(tmp_path / "other", "bear-clock.png", "bear1-sofa2.png")
    refused("none of them .*'jet', 'glider'", open_stimuli, folder, ("jet", "glider"))
    refused("no stimuli below .*cat7-elephant2.png", open_stimuli, tmp_path / "nowhere", CIFAR)
    refused("no stimuli", open_stimuli, other, CIFAR)
    refused("cannot read .*No such file", open_stimuli, folder, CIFAR, tmp_path / "none.toml")
    make_stimuli(folder, "b/bear1-clock2.png")
    refused("bear1-clock2 2 times", open_stimuli, folder, CIFAR)
