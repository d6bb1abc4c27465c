"""The published constants, and what corrupted bytes depend on."""
# S side

from __future__ import annotations

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
from antishortcut.data.cues import make_cues
from antishortcut.errors import UserError
from tests.data.corruption_twins import pictures

UNDRAWN = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}
UNDRAWN |= {"gaussian_blur", "saturate"}


def test_constants_as_published() -> None:
    """Typed out from the scripts once more, in their order of severity."""
    at_32, at_64, at_224 = TABLES[32], TABLES[64], TABLES[224]
    assert [at_32[name] for name in ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise")] == [
        (0.04, 0.06, 0.08, 0.09, 0.10), (500, 250, 100, 75, 50), (0.01, 0.02, 0.03, 0.05, 0.07),
        (0.06, 0.1, 0.12, 0.16, 0.2),
    ]  # fmt: skip
    assert [at_64[name] for name in ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise")] == [
        (0.04, 0.08, 0.12, 0.15, 0.18), (250, 100, 50, 30, 15), (0.01, 0.02, 0.05, 0.08, 0.14),
        (0.15, 0.2, 0.25, 0.3, 0.35),
    ]  # fmt: skip
    assert [at_224[name] for name in ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise")] == [
        (0.08, 0.12, 0.18, 0.26, 0.38), (60, 25, 12, 5, 3), (0.03, 0.06, 0.09, 0.17, 0.27), (0.15, 0.2, 0.35, 0.45, 0.6)
    ]  # fmt: skip
    assert at_32["defocus_blur"] == ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))
    assert at_64["defocus_blur"] == ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1))
    assert at_224["defocus_blur"] == ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))
    assert at_32["glass_blur"] == ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))
    assert at_64["glass_blur"] == ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2))
    assert at_224["glass_blur"] == ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))
    assert at_32["motion_blur"] == ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))
    assert at_64["motion_blur"] == ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3))
    assert at_224["motion_blur"] == ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))
    for table in (at_32, at_64):
        assert table["zoom_blur"] == tuple((end, 0.01) for end in (1.06, 1.11, 1.16, 1.21, 1.26))
    assert at_224["zoom_blur"] == ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))
    assert [row[6] for row in at_32["snow"]] == [0.95, 0.9, 0.9, 0.85, 0.8]
    assert [row[6] for row in at_64["snow"]] == [0.8, 0.8, 0.7, 0.65, 0.6]
    falling = [(0.1, 0.2, 1, 0.6, 8, 3), (0.1, 0.2, 1, 0.5, 10, 4), (0.15, 0.3, 1.75, 0.55, 10, 4)]
    falling += [(0.25, 0.3, 2.25, 0.6, 12, 6), (0.3, 0.3, 1.25, 0.65, 14, 12)]
    assert [row[:6] for row in at_32["snow"]] == [row[:6] for row in at_64["snow"]] == falling
    assert at_224["snow"] == (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8), (0.2, 0.3, 2, 0.5, 12, 4, 0.7), (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65), (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    )  # fmt: skip


def test_further_constants_as_published() -> None:
    at_32, at_64, at_224 = TABLES[32], TABLES[64], TABLES[224]
    assert at_32["frost"] == ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
    assert at_64["frost"] == ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55))
    assert at_224["frost"] == ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))
    assert at_32["fog"] == ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))
    assert at_64["fog"] == ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75))
    assert at_224["fog"] == ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))
    assert (at_32["brightness"], at_32["contrast"]) == ((0.05, 0.1, 0.15, 0.2, 0.3), (0.75, 0.5, 0.4, 0.3, 0.15))
    for table in (at_64, at_224):
        assert (table["brightness"], table["contrast"]) == ((0.1, 0.2, 0.3, 0.4, 0.5), (0.4, 0.3, 0.2, 0.1, 0.05))
    shares = {
        32: [0, 0, 8, 5, 20, 7, 8, 6, 6, 10, 4, 5, 10, 3, 3],
        64: [0, 0, 8, 5, 30, 6, 10, 8, 6, 10, 3, 3, 16, 3, 2],
    }
    shares[224] = [200, 70, 10, 200, 8, 20, 5, 1, 2, 7, 1, 2, 12, 1, 2]
    for side, unit in ((32, 32), (64, 64), (224, 244)):  # 244 is the script's
        assert np.ravel(TABLES[side]["elastic_transform"]) == pytest.approx(np.array(shares[side]) / 100 * unit)
    assert [table["pixelate"] for table in (at_32, at_64, at_224)] == [
        (0.95, 0.9, 0.85, 0.75, 0.65), (0.9, 0.8, 0.7, 0.6, 0.5), (0.6, 0.5, 0.4, 0.3, 0.25)
    ]  # fmt: skip
    assert [table["jpeg_compression"] for table in (at_32, at_64, at_224)] == [
        (80, 65, 58, 50, 40), (65, 58, 50, 40, 25), (25, 18, 15, 10, 7)
    ]  # fmt: skip
    assert [table["gaussian_blur"] for table in (at_32, at_64, at_224)] == [
        (0.4, 0.6, 0.7, 0.8, 1), (0.5, 0.75, 1, 1.25, 1.5), (1, 2, 3, 4, 6)
    ]  # fmt: skip
    assert at_32["saturate"] == ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))
    assert at_64["saturate"] == ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2))
    assert at_224["saturate"] == ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))
    assert at_32["spatter"] == (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0), (0.65, 0.1, 0.8, 0.7, 0.5, 0), (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1), (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    )  # fmt: skip
    assert at_64["spatter"] == (
        (0.62, 0.1, 0.7, 0.7, 0.6, 0), (0.65, 0.1, 0.8, 0.7, 0.6, 0), (0.65, 0.3, 1, 0.69, 0.6, 0),
        (0.65, 0.1, 0.7, 0.68, 0.6, 1), (0.65, 0.1, 0.5, 0.67, 0.6, 1),
    )  # fmt: skip
    assert at_224["spatter"] == (
        (0.65, 0.3, 4, 0.69, 0.6, 0), (0.65, 0.3, 3, 0.68, 0.6, 0), (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1), (0.67, 0.4, 1, 0.65, 1.5, 1),
    )  # fmt: skip


def test_names_and_tables() -> None:
    assert len(CORRUPTIONS) == 15
    assert len(EXTRA) == 4
    assert [*CORRUPTIONS, *EXTRA] == [*ALL]
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(CORRUPTIONS)
    for table in TABLES.values():
        assert set(table) == set(ALL)
        assert {len(row) for row in table.values()} == {5}
    assert [table_of(side) for side in (16, 32, 45, 46, 64, 96, 119, 120, 224, 512)] == [32] * 3 + [64] * 4 + [224] * 3


# What it depends on ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_bytes_depend_on_seed_severity_chunk_and_place_alone(name: str) -> None:
    images = pictures(12)
    made = corrupt(images, name, 3, seed=1, chunk=2)
    assert made.shape == images.shape
    assert made.dtype == np.uint8
    assert np.array_equal(made, corrupt(images, name, 3, seed=1, chunk=2))
    assert np.array_equal(made[:5], corrupt(images[:5], name, 3, seed=1, chunk=2))  # not on who comes after
    others = images.copy()
    others[5:] = 255 - others[5:]
    if name != "shot_noise":  # draws as much as the images before it make it draw
        assert np.array_equal(made[:5], corrupt(others, name, 3, seed=1, chunk=2)[:5])
    drawn = name not in UNDRAWN
    for seed, chunk in ((2, 2), (1, 3)):
        assert np.array_equal(made, corrupt(images, name, 3, seed=seed, chunk=chunk)) != drawn
    assert not np.array_equal(made, corrupt(images, name, 4, seed=1, chunk=2))


@pytest.mark.parametrize("name", ["shot_noise", "motion_blur", "frost", "elastic_transform"])
def test_more_than_a_chunk_runs_on(name: str) -> None:
    size = CHUNK[32]
    images = make_cues("iid", size + 20, seed=0).image.permute(0, 2, 3, 1).numpy()
    made = corrupt(images, name, 2, chunk=4)
    assert np.array_equal(made[:size], corrupt(images[:size], name, 2, chunk=4))
    assert np.array_equal(made[size:], corrupt(images[size:], name, 2, chunk=5))


@pytest.mark.parametrize("side", [16, 45, 64, 130])
@pytest.mark.parametrize("name", ALL)
def test_any_side_will_do(name: str, side: int) -> None:
    images = pictures(2, side)
    made = corrupt(images, name, 5)
    assert made.shape == images.shape
    assert not np.array_equal(made, images)


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
    made = corrupt(pictures(4), name, 3)[:, :16, :16]
    assert VERSION == 1
    assert made.mean() == pytest.approx(MEANS[name], abs=0.02)


@pytest.mark.parametrize("side", TABLES)
def test_grown_frost_is_as_light_and_as_even_as_the_photographs_of_cifar_c(side: int) -> None:
    """Crops of their five photographs have a mean of 161, 161, 156 and a deviation of 29, 28, 31 at 32, 64, 224."""
    uniform = np.random.default_rng(0).random((200, 3))
    crops = weather.crops(grown_frost(side).textures, side, uniform).astype(np.float64)  # (200, S, S, 3)
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
