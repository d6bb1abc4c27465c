"""The embedded scenes: repeatable, labelled by tiles, the shortcut as strong as promised, and in the texture alone."""
# N images

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage

from antishortcut.data import Loader, open_sets
from antishortcut.data.synthetic import SPLITS
from antishortcut.data.synthetic_segmentation import CLASSES, make_scenes
from antishortcut.errors import UserError
from antishortcut.types import VOID, ImageSet, is_dense
from tests.data.official import in_memory, refused


@pytest.fixture(scope="module")
def train() -> ImageSet:
    return make_scenes("train", 500, seed=3)


@pytest.fixture(scope="module")
def free() -> ImageSet:
    """Class and texture independent."""
    return make_scenes("uncorrelated", 500, seed=3)


def agreement(images: ImageSet) -> float:
    """Share of the tiles' pixels whose texture is that of their class."""
    tile = images.label > 0
    return (images.label[tile] == images.cues["texture_map"][tile]).double().mean().item()


@pytest.mark.parametrize("split", SPLITS)
def test_what_comes_out(split: str) -> None:
    images = make_scenes(split, 7, seed=0, size=48)
    assert is_dense(images)
    assert images.image.shape == (7, 3, 48, 48)
    assert images.label.shape == images.cues["texture_map"].shape == (7, 48, 48)
    assert images.image.dtype == images.label.dtype == images.cues["texture_map"].dtype == torch.uint8
    assert make_scenes(split, 2, seed=0, size=65).label.shape == (2, 65, 65)


def test_an_image_depends_on_split_seed_and_place_alone() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        few = make_scenes("iid", 100, seed=1)
        torch.set_num_threads(3)
        many = make_scenes("iid", 200, seed=1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert torch.equal(few.image, many.image[:100])
    assert torch.equal(few.label, many.label[:100])
    assert torch.equal(few.cues["texture_map"], many.cues["texture_map"][:100])
    rest = [make_scenes(split, 100, seed=seed).image for split, seed in (("iid", 2), ("train", 1), ("conflict", 1))]
    every = torch.cat([many.image, *rest]).flatten(1)
    assert len(torch.unique(every, dim=0)) == len(every)


def test_texture_predicts_the_class_as_promised(train: ImageSet, free: ImageSet) -> None:
    spread = 5 * (0.9 * 0.1 / 1500) ** 0.5  # of some 1500 tiles; five deviations, for tiles differ in size
    assert abs(agreement(train) - 0.9) < spread
    assert abs(agreement(free) - 0.1) < spread
    assert agreement(make_scenes("conflict", 125, seed=3)) == 0
    assert agreement(make_scenes("iid", 125, seed=3, rho=1.0)) == 1
    assert agreement(make_scenes("train", 125, seed=3, rho=0.0)) == 0


def test_labels_are_the_tiles(train: ImageSet) -> None:
    """Outside, colours change evenly; inside, they do not. Two to four tiles, of the ten classes alike."""
    label, shown = train.label, train.cues["texture_map"]
    assert torch.equal(label == 0, shown == VOID)
    assert np.unique(label.numpy()).tolist() == [*range(11)]
    assert np.unique(shown.numpy()).tolist() == [*range(1, 11), VOID]
    grey = train.image.float().mean(1)  # (N, H, W)
    bend = (grey[..., 2:] - 2 * grey[..., 1:-1] + grey[..., :-2]).abs()  # (N, H, W − 2)
    near = torch.nn.functional.max_pool2d((label > 0).float()[:, None], 5, 1, 2)[:, 0, :, 1:-1] > 0
    assert bend[~near].max() < 4  # a ramp, rounded
    assert bend[label[..., 1:-1] > 0].mean() > 20
    tiles = torch.tensor([ndimage.label((one > 0).numpy())[1] for one in label])  # touching ones count once
    assert tiles.min() >= 1
    assert tiles.max() == 4
    kinds = torch.tensor([len(one.unique()) - 1 for one in label])
    assert 2.4 < kinds.double().mean() < 3  # three tiles, now and then two of a class
    share = label.flatten().long().bincount().double() / label.numel()
    assert 0.4 < share[0] < 0.6
    assert share[1:].max() < 1.3 * share[1:].min()


def test_the_source() -> None:
    sets = open_sets("cues-seg", None, options={"count": 30, "test_count": 10, "rho": 1.0}, train_limit=20)
    train = in_memory(sets.train)
    assert sets.classes == CLASSES == ("background", "A", "E", "H", "J", "K", "O", "P", "S", "T", "X")
    assert list(sets.tests) == ["iid", "conflict", "uncorrelated"]
    assert (sets.image_size, len(train), len(sets.tests["conflict"])) == (64, 20, 10)
    assert agreement(train) == 1  # also after the limit
    for augment in ("none", "crop"):
        batch = next(Loader(train, batch=8, seed=0, image_size=64, augment=augment).epoch(0))
        assert batch.image.shape == (8, 3, 64, 64)
        assert batch.label.shape == (8, 64, 64)
    refused("rho is a probability", "cues-seg", None, options={"rho": 2})
    refused("did you mean 'cues-seg'", "cues_seg", None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"split": "conflct"}, "conflict"), ({"rho": 1.2}, "rho"), ({"count": 0}, "count"), ({"size": 31}, "size is 31")],
)
def test_errors_speak(settings: dict[str, str | float], said: str) -> None:
    wish = {"split": "train", "count": 10, "seed": 0} | settings
    with pytest.raises(UserError, match=said):
        make_scenes(**wish)  # type: ignore[arg-type]
