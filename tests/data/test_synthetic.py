"""The embedded images and scenes: repeatable, balanced, the shortcut as strong as promised, and only in the texture."""
# N images, F features

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from antishortcut.data import Loader, open_sets
from antishortcut.data.synthetic import CLASSES, FAMILIES, SPLITS, make_cues
from antishortcut.data.synthetic_segmentation import CLASSES as SCENE_CLASSES
from antishortcut.data.synthetic_segmentation import make_scenes
from antishortcut.errors import UserError
from antishortcut.types import VOID, ImageSet, is_dense
from tests.data.official import in_memory, refused

Make = Callable[..., ImageSet]
both = pytest.mark.parametrize("make", [make_cues, make_scenes])


def agreement(images: ImageSet) -> float:
    """Share of images, or of the tiles' pixels, whose texture is that of their class."""
    if not is_dense(images):
        return (images.cues["texture"] == images.label).double().mean().item()
    tile = images.label > 0
    return (images.label[tile] == images.cues["texture_map"][tile]).double().mean().item()


def same(first: ImageSet, second: ImageSet) -> bool:
    cues = zip(first.cues.values(), second.cues.values(), strict=True)
    pairs = [(first.image, second.image), (first.label, second.label), *cues]
    return all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("split", SPLITS)
def test_shapes_and_types(split: str) -> None:
    images = make_cues(split, 37, seed=0, size=24)
    assert images.image.shape == (37, 3, 24, 24)
    assert images.image.dtype == torch.uint8
    assert images.label.shape == images.cues["texture"].shape == (37,)
    assert images.label.dtype == images.cues["texture"].dtype == torch.int64
    assert len(CLASSES) == len(FAMILIES) == 10
    scenes = make_scenes(split, 7, seed=0, size=65)
    assert is_dense(scenes)
    assert scenes.image.shape == (7, 3, 65, 65)
    assert scenes.label.shape == scenes.cues["texture_map"].shape == (7, 65, 65)
    assert scenes.image.dtype == scenes.label.dtype == scenes.cues["texture_map"].dtype == torch.uint8


@both
def test_an_image_depends_only_on_split_seed_and_index(make: Make) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        few = make("iid", 100, seed=1)
        torch.set_num_threads(3)
        many = make("iid", 300, seed=1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    cues = {name: cue[:100] for name, cue in many.cues.items()}
    assert same(few, ImageSet(many.image[:100], many.label[:100], cues))
    others = [make(split, 100, seed=seed).image for split, seed in (("iid", 2), ("train", 1), ("conflict", 1))]
    images = torch.cat([many.image, *others]).flatten(1)
    assert len(torch.unique(images, dim=0)) == len(images)


def test_the_cover_is_where_the_glyph_is() -> None:
    """Inside it an image has one colour, the glyph's; outside it, where the texture is, it has two."""
    images = make_cues("conflict", 300, seed=1)
    assert make_cues("train", 10, seed=1).cover is None  # of the many nobody asks
    assert images.cover is not None
    cover = images.cover
    assert cover.shape == (300, 32, 32)
    assert 0 <= float(cover.min()) <= float(cover.max()) <= 1
    assert 0.05 < float(cover.mean()) < 0.25
    for image, share in zip(images.image.int(), cover, strict=True):
        inside, outside = image[:, share > 0.999], image[:, share == 0]  # (3, n)
        assert inside.shape[1] == 0 or (inside.amax(dim=1) - inside.amin(dim=1)).max() <= 1  # rounding
        assert (outside.amax(dim=1) - outside.amin(dim=1)).max() > 10


@pytest.fixture(scope="module")
def train() -> ImageSet:
    return make_cues("train", 3000, seed=3)


@pytest.fixture(scope="module")
def independent() -> ImageSet:
    """Class and texture independent, so that a feature of one says nothing about the other."""
    return make_cues("uncorrelated", 3000, seed=3)


def test_classes_are_balanced(train: ImageSet) -> None:
    assert train.label.bincount().tolist() == [300] * 10
    assert set(make_cues("conflict", 37, seed=0).label.bincount(minlength=10).tolist()) == {3, 4}


def test_textures_of_the_splits(train: ImageSet, independent: ImageSet) -> None:
    assert abs(agreement(train) - 0.9) < 4 * (0.9 * 0.1 / 3000) ** 0.5  # standard deviations of a binomial share
    assert abs(agreement(independent) - 0.1) < 4 * (0.1 * 0.9 / 3000) ** 0.5
    assert (10 * independent.label + independent.cues["texture"]).bincount(minlength=100).min() > 0
    conflict = make_cues("conflict", 3000, seed=3)
    assert agreement(conflict) == 0
    step = (conflict.cues["texture"] - conflict.label) % 10  # (N,), 1 … 9, equally often
    assert step.bincount(minlength=10)[1:].min() > 3000 / 9 - 5 * (3000 / 9) ** 0.5
    assert [agreement(make_cues("iid", 500, seed=0, rho=rho)) for rho in (0.0, 1.0)] == [0, 1]


def nearest_mean(feature: Tensor, label: Tensor) -> float:
    """Accuracy of the nearest class mean, fitted on the first half and measured on the second. (N, F), (N,)."""
    half = len(label) // 2
    feature = (feature - feature[:half].mean(0)) / feature[:half].std(0).clamp_min(1e-6)  # (N, F)
    means = torch.stack([feature[:half][label[:half] == c].mean(0) for c in range(len(CLASSES))])  # (C, F)
    guess = torch.cdist(feature[half:], means).argmin(1)  # (N - half,)
    return (guess == label[half:]).double().mean().item()


def test_colour_does_not_predict_the_class(train: ImageSet) -> None:
    for colour in (train.image.float().mean((2, 3)), train.image.float().flatten(2).amax(2)):  # (N, 3)
        assert abs(nearest_mean(colour, train.label) - 0.1) < 0.04  # five standard deviations at chance


def test_the_glyph_predicts_the_class(independent: ImageSet) -> None:
    """Without help of the texture, ridge regression on |pixel − mean| finds some of the class."""
    grey = independent.image.float().mean(1)  # (N, H, W)
    light = (grey - grey.mean((1, 2), keepdim=True)).abs()
    inner = torch.nn.functional.avg_pool2d(light[:, None], 3, 2).flatten(1)  # (N, F)
    inner = (inner - inner.mean(0)) / inner.std(0)
    target, half = torch.eye(10)[independent.label], 1500  # (N, 10)
    fit, test = inner[:half], inner[half:]
    weight = torch.linalg.solve(fit.T @ fit + 300 * torch.eye(fit.shape[1]), fit.T @ target[:half])  # (F, 10)
    assert ((test @ weight).argmax(1) == independent.label[half:]).double().mean() > 0.15


@both
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "conflct"}, "did you mean 'conflict'"),
        ({"rho": 1.2}, "rho"),
        ({"rho": float("nan")}, "rho"),
        ({"count": 0}, "count"),
        ({"seed": -1}, "seed"),
        ({"size": 15}, "size"),
    ],
)
def test_bad_arguments_are_one_line(make: Make, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        make(**{"split": "train", "count": 10, "seed": 0} | settings)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def scenes() -> ImageSet:
    return make_scenes("train", 500, seed=3)


def test_textures_of_scenes(scenes: ImageSet) -> None:
    spread = 5 * (0.9 * 0.1 / 1500) ** 0.5  # of some 1500 tiles; five deviations, for tiles differ in size
    assert abs(agreement(scenes) - 0.9) < spread
    assert abs(agreement(make_scenes("uncorrelated", 500, seed=3)) - 0.1) < spread
    cases = (("conflict", 0.9), ("iid", 1.0), ("train", 0.0))
    assert [agreement(make_scenes(split, 125, seed=3, rho=rho)) for split, rho in cases] == [0, 1, 0]


def test_labels_of_scenes_are_the_tiles(scenes: ImageSet) -> None:
    """Outside, colours change evenly; inside, they do not. Two to four tiles, of the ten classes alike."""
    label, texture = scenes.label, scenes.cues["texture_map"]
    assert torch.equal(label == 0, texture == VOID)
    assert np.unique(label.numpy()).tolist() == [*range(11)]
    assert np.unique(texture.numpy()).tolist() == [*range(1, 11), VOID]
    grey = scenes.image.float().mean(1)  # (N, H, W)
    bend = (grey[..., 2:] - 2 * grey[..., 1:-1] + grey[..., :-2]).abs()  # (N, H, W − 2)
    near = torch.nn.functional.max_pool2d((label > 0).float()[:, None], 5, 1, 2)[:, 0, :, 1:-1] > 0
    assert bend[~near].max() < 4  # a ramp, rounded
    assert bend[label[..., 1:-1] > 0].mean() > 20
    tiles = [ndimage.label((one > 0).numpy())[1] for one in label]  # touching ones count once
    assert (min(tiles) >= 1, max(tiles)) == (True, 4)
    classes = torch.tensor([len(one.unique()) - 1 for one in label])
    assert 2.4 < classes.double().mean() < 3  # three tiles, now and then two of a class
    share = label.flatten().long().bincount().double() / label.numel()
    assert 0.4 < share[0] < 0.6
    assert share[1:].max() < 1.3 * share[1:].min()


def test_the_data_set_of_scenes() -> None:
    sets = open_sets("cues-seg", None, options={"count": 30, "test_count": 10, "rho": 1.0}, train_limit=20)
    train = in_memory(sets.train)
    assert sets.classes == SCENE_CLASSES == ("background", *CLASSES)
    assert list(sets.tests) == ["iid", "conflict", "uncorrelated"]
    assert (sets.image_size, len(train), len(sets.tests["conflict"])) == (64, 20, 10)
    assert agreement(train) == 1  # also after the limit
    for augment in ("none", "crop"):
        batch = next(Loader(train, batch=8, seed=0, image_size=64, augment=augment).epoch(0))
        assert (batch.image.shape, batch.label.shape) == ((8, 3, 64, 64), (8, 64, 64))
    refused("rho is a probability", "cues-seg", None, options={"rho": 2})
    refused("did you mean 'cues-seg'", "cues_seg", None)
