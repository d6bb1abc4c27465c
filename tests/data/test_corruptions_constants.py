"""The published constants, and what corrupted bytes depend on."""
# S side

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from antishortcut.data.corruptions import (
    ALL,
    CHUNK,
    CORRUPTIONS,
    EXTRA,
    GROUPS,
    SEVERITIES,
    TABLES,
    VERSION,
    corrupt,
    grown_frost,
    table_of,
    weather,
)
from antishortcut.data.synthetic import make_cues
from antishortcut.errors import UserError
from tests.data.corruption_twins import pictures

UNDRAWN = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}
UNDRAWN |= {"gaussian_blur", "saturate"}


def test_constants_as_published() -> None:
    """The digest is of numbers that were typed from the three scripts twice and compared."""
    for table in TABLES.values():
        assert set(table) == {*CORRUPTIONS, *EXTRA} == set(ALL)
        assert {len(row) for row in table.values()} == {5}
    assert TABLES[32]["frost"] == ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
    assert TABLES[224]["motion_blur"] == ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))
    assert hashlib.sha256(json.dumps(TABLES, sort_keys=True).encode()).hexdigest()[:16] == "ee1d4dccfcaa9d02"
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(CORRUPTIONS)
    assert [table_of(side) for side in (16, 45, 46, 119, 120, 512)] == [32, 32, 64, 64, 224, 224]


# What it depends on ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_bytes_depend_on_seed_severity_chunk_and_place_alone(name: str) -> None:
    images = pictures(12)
    built = corrupt(images, name, 3, seed=1, chunk=2)
    assert built.shape == images.shape
    assert built.dtype == np.uint8
    assert np.array_equal(built, corrupt(images, name, 3, seed=1, chunk=2))
    assert np.array_equal(built[:5], corrupt(images[:5], name, 3, seed=1, chunk=2))  # not on who comes after
    rest = images.copy()
    rest[5:] = 255 - rest[5:]
    if name != "shot_noise":  # draws as much as the images before it make it draw
        assert np.array_equal(built[:5], corrupt(rest, name, 3, seed=1, chunk=2)[:5])
    drawn = name not in UNDRAWN
    for seed, chunk in ((2, 2), (1, 3)):
        assert np.array_equal(built, corrupt(images, name, 3, seed=seed, chunk=chunk)) != drawn
    assert not np.array_equal(built, corrupt(images, name, 4, seed=1, chunk=2))


@pytest.mark.parametrize("name", ["shot_noise", "motion_blur", "frost", "elastic_transform"])
def test_more_than_a_chunk_runs_on(name: str) -> None:
    size = CHUNK[32]
    images = make_cues("iid", size + 20, seed=0).image.permute(0, 2, 3, 1).numpy()
    built = corrupt(images, name, 2, chunk=4)
    assert np.array_equal(built[:size], corrupt(images[:size], name, 2, chunk=4))
    assert np.array_equal(built[size:], corrupt(images[size:], name, 2, chunk=5))


@pytest.mark.parametrize("side", [16, 130])
@pytest.mark.parametrize("name", ALL)
def test_any_side_will_do(name: str, side: int) -> None:
    images = pictures(2, side)
    built = corrupt(images, name, 5)
    assert built.shape == images.shape
    assert not np.array_equal(built, images)


UNORDERED = {  # as published: constants trade one thing for another, or bring another kind of change
    32: {"glass_blur", "motion_blur", "frost", "elastic_transform", "saturate", "spatter"},
    64: {"glass_blur", "frost", "elastic_transform", "saturate", "spatter"},
}
ORDERED = [(side, name) for side, odd in UNORDERED.items() for name in ALL if name not in odd]


@pytest.mark.parametrize(("side", "name"), ORDERED)
def test_severer_changes_more(side: int, name: str) -> None:
    images = cues(side)
    change = [np.abs(corrupt(images, name, severity).astype(int) - images).mean() for severity in SEVERITIES]
    assert change == sorted(change)
    assert change[0] > 0


@lru_cache
def cues(side: int) -> Any:
    return make_cues("iid", 60, seed=5, size=side).image.permute(0, 2, 3, 1).numpy()


MEANS = {
    "gaussian_noise": 90.593,
    "shot_noise": 88.268,
    "impulse_noise": 89.939,
    "defocus_blur": 89.290,
    "glass_blur": 87.674,
    "motion_blur": 87.634,
    "zoom_blur": 89.066,
    "snow": 115.810,
    "frost": 144.060,
    "fog": 103.631,
    "brightness": 119.398,
    "contrast": 116.975,
    "elastic_transform": 90.325,
    "pixelate": 90.872,
    "jpeg_compression": 88.752,
    "speckle_noise": 87.963,
    "gaussian_blur": 89.338,
    "saturate": 82.299,
    "spatter": 95.068,
}


@pytest.mark.parametrize("name", ALL)
def test_draws_are_frozen(name: str) -> None:
    """Mean byte of the upper left quarter. When draws or their order change, so must VERSION, and all copies."""
    built = corrupt(pictures(4), name, 3)[:, :16, :16]
    assert VERSION == 1
    assert built.mean() == pytest.approx(MEANS[name], abs=0.02)


@pytest.mark.parametrize("side", TABLES)
def test_grown_frost_is_as_light_and_as_even_as_the_photographs_of_cifar_c(side: int) -> None:
    """Crops of their five photographs have a mean of 161, 161, 156 and a deviation of 29, 28, 31 at 32, 64, 224."""
    uniform = np.random.default_rng(0).random((200, 3))
    crops = weather.crops(grown_frost(side), side, uniform).astype(np.float64)  # (200, S, S, 3)
    assert crops.mean() == pytest.approx(162, abs=6)
    assert crops.std(axis=(1, 2, 3)).mean() == pytest.approx(29, abs=2)
    assert crops.mean(axis=(1, 2, 3)).std() == pytest.approx(39, abs=4)  # between crops
    red, green, blue = crops.mean(axis=(0, 1, 2))
    assert red < green < blue


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"name": "gausian_noise"}, "did you mean 'gaussian_noise'"),
        ({"severity": 6}, "severities are 1 to 5, not 6"),
        ({"images": np.zeros((1, 32, 30, 3), np.uint8)}, r"not uint8 of shape \(1, 32, 30, 3\)"),
        ({"images": np.zeros((1, 32, 32, 3))}, "not float64"),
        ({"images": np.zeros((1, 12, 12, 3), np.uint8)}, "too small"),
    ],
)
def test_errors_speak(wish: dict[str, Any], said: str) -> None:
    settings: dict[str, Any] = {"images": pictures(1), "name": "fog", "severity": 1} | wish
    with pytest.raises(UserError, match=said) as error:
        corrupt(**settings)
    assert "\n" not in str(error.value)
