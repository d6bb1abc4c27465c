"""The embedded images: repeatable, balanced, the shortcut as strong as promised, and in the texture alone."""
# N images, F features

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from antishortcut.data.synthetic import CLASSES, FAMILIES, SPLITS, make_cues
from antishortcut.errors import UserError
from antishortcut.types import ImageSet


@pytest.fixture(scope="module")
def train() -> ImageSet:
    return make_cues("train", 3000, seed=3)


@pytest.fixture(scope="module")
def free() -> ImageSet:
    """Class and texture independent, so that what predicts one says nothing of the other."""
    return make_cues("uncorrelated", 3000, seed=3)


def nearest_mean(feature: Tensor, label: Tensor) -> float:
    """Accuracy of the nearest class mean, fitted on the first half and measured on the second. (N, F), (N,)."""
    half = len(label) // 2
    feature = (feature - feature[:half].mean(0)) / feature[:half].std(0).clamp_min(1e-6)  # (N, F)
    means = torch.stack([feature[:half][label[:half] == c].mean(0) for c in range(len(CLASSES))])  # (C, F)
    guess = torch.cdist(feature[half:], means).argmin(1)  # (N - half,)
    return (guess == label[half:]).double().mean().item()


def agreement(images: ImageSet) -> float:
    return (images.cues["texture"] == images.label).double().mean().item()


@pytest.mark.parametrize("split", SPLITS)
def test_what_comes_out(split: str) -> None:
    images = make_cues(split, 37, seed=0, size=24)
    assert images.image.shape == (37, 3, 24, 24)
    assert images.image.dtype == torch.uint8
    assert images.label.shape == images.cues["texture"].shape == (37,)
    assert images.label.dtype == images.cues["texture"].dtype == torch.int64
    assert len(CLASSES) == len(FAMILIES) == 10


@pytest.mark.parametrize("split", SPLITS)
def test_an_image_depends_on_split_seed_and_place_alone(split: str) -> None:
    few, many = make_cues(split, 100, seed=1), make_cues(split, 600, seed=1)
    assert torch.equal(few.image, many.image[:100])
    assert torch.equal(few.label, many.label[:100])
    assert torch.equal(few.cues["texture"], many.cues["texture"][:100])
    again = make_cues(split, 600, seed=1)
    assert torch.equal(many.image, again.image)


def test_seeds_splits_and_places_differ() -> None:
    sets = [make_cues(split, 500, seed=seed).image for split in SPLITS for seed in (0, 1)]
    every = torch.cat(sets).flatten(1)  # (4000, 3 · 32 · 32)
    assert len(torch.unique(every, dim=0)) == len(every)


def test_classes_are_balanced(train: ImageSet) -> None:
    assert train.label.bincount().tolist() == [300] * 10
    odd = make_cues("conflict", 37, seed=0).label.bincount(minlength=10)
    assert set(odd.tolist()) == {3, 4}


def test_rho_is_kept(train: ImageSet) -> None:
    spread = 4 * (0.9 * 0.1 / len(train)) ** 0.5  # four standard deviations of a binomial share
    assert abs(agreement(train) - 0.9) < spread
    assert agreement(make_cues("iid", 500, seed=0, rho=1.0)) == 1
    assert agreement(make_cues("iid", 500, seed=0, rho=0.0)) == 0


def test_conflict_and_uncorrelated(free: ImageSet) -> None:
    conflict = make_cues("conflict", 3000, seed=3)
    assert agreement(conflict) == 0
    step = (conflict.cues["texture"] - conflict.label) % 10  # (N,), 1 … 9, all alike
    assert step.bincount(minlength=10)[1:].min() > 3000 / 9 - 5 * (3000 / 9) ** 0.5
    assert abs(agreement(free) - 0.1) < 4 * (0.1 * 0.9 / len(free)) ** 0.5
    pairs = (10 * free.label + free.cues["texture"]).bincount(minlength=100)
    assert pairs.min() > 0  # every glyph on every texture


def test_colour_says_nothing_of_the_class(train: ImageSet) -> None:
    colour = train.image.float().mean((2, 3))  # (N, 3)
    assert abs(nearest_mean(colour, train.label) - 0.1) < 0.04  # five standard deviations at chance
    brightest = train.image.float().flatten(2).amax(2)  # (N, 3)
    assert abs(nearest_mean(brightest, train.label) - 0.1) < 0.04


def test_the_class_is_the_glyph(free: ImageSet) -> None:
    """Where texture says nothing, ridge regression on |pixel − mean| still finds some of the class."""
    grey = free.image.float().mean(1)  # (N, H, W)
    light = (grey - grey.mean((1, 2), keepdim=True)).abs()
    inner = torch.nn.functional.avg_pool2d(light[:, None], 3, 2).flatten(1)  # (N, F)
    inner = (inner - inner.mean(0)) / inner.std(0)
    target = torch.eye(10)[free.label]  # (N, 10)
    half = len(target) // 2
    fit, test = inner[:half], inner[half:]
    weight = torch.linalg.solve(fit.T @ fit + 300 * torch.eye(fit.shape[1]), fit.T @ target[:half])  # (F, 10)
    accuracy = ((test @ weight).argmax(1) == free.label[half:]).double().mean()
    assert accuracy > 0.15


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"split": "conflct"}, "did you mean 'conflict'"),
        ({"rho": 1.2}, "rho"),
        ({"rho": float("nan")}, "rho"),
        ({"count": 0}, "count"),
        ({"seed": -1}, "seed"),
        ({"size": 15}, "size"),
    ],
)
def test_errors_speak(settings: dict[str, str | float], said: str) -> None:
    wish = {"split": "train", "count": 10, "seed": 0} | settings
    with pytest.raises(UserError, match=said) as error:
        make_cues(**wish)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
