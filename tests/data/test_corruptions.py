"""Every corruption against a slow twin written from the official scripts: given the same draws, and in distribution."""
# B images, S side

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from antishortcut.data.corruptions import (
    CHUNK,
    CORRUPTIONS,
    GROUPS,
    SEVERITIES,
    TABLES,
    VERSION,
    corrupt,
    effects,
    grown_frost,
    table_of,
    weather,
)
from antishortcut.data.synthetic import make_cues
from antishortcut.errors import UserError
from tests.data import corruption_twins as twins
from tests.data.corruption_twins import pictures

Array = NDArray[Any]


def near(result: Array, twin: Array, share: float = 0.001) -> None:
    """At most one byte apart, and exactly alike but for a share of the values."""
    assert result.dtype == twin.dtype == np.uint8
    apart = np.abs(result.astype(int) - twin)
    assert apart.max() <= 1
    assert (apart > 0).mean() <= share


def each(severity: int, side: int, name: str) -> Any:
    return TABLES[table_of(side)][name][severity - 1]


PLAIN: dict[str, Callable[..., Array]] = {
    "brightness": twins.brightness,
    "zoom_blur": twins.zoom_blur,
    "defocus_blur": twins.defocus_blur,
}


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", PLAIN)
def test_without_draws(name: str, severity: int) -> None:
    images = pictures(5)
    built = corrupt(images, name, severity)
    constants = each(severity, 32, name)
    for one, image in zip(built, images, strict=True):
        near(one, PLAIN[name](image, *(constants if isinstance(constants, tuple) else (constants,))))


@pytest.mark.parametrize(("side", "severity"), [(64, 4), (128, 1), (128, 4), (128, 5)])
@pytest.mark.parametrize("name", ["defocus_blur", "zoom_blur"])
def test_larger_kernels_without_draws(name: str, side: int, severity: int) -> None:
    image = pictures(1, side)
    near(corrupt(image, name, severity)[0], PLAIN[name](image[0], *each(severity, side, name)))


def test_known_values() -> None:
    black, white = (np.full((1, 32, 32, 3), value, np.uint8) for value in (0, 255))
    assert (corrupt(black, "brightness", 5) == int(0.3 * 255)).all()  # V of black is 0, so it turns grey
    assert (corrupt(white, "brightness", 5) == 255).all()
    assert (corrupt(black, "fog", 5) == 0).all()  # the brightest value of the image scales the fog
    grey = np.full((1, 32, 32, 3), 200, np.uint8)
    assert (corrupt(grey, "contrast", 5) >= 199).all()
    half = np.zeros((1, 32, 32, 3), np.uint8)
    half[:, :, 16:] = 200
    assert np.unique(corrupt(half, "contrast", 4)).tolist() == [70, 130]  # 100 ∓ 0.3 · 100, exactly


def test_noise_of_given_draws() -> None:
    images, rng = pictures(5), np.random.default_rng(1)
    count = rng.poisson(images / 255 * 50)
    near(effects.shot_noise(50, count), twins.clipped(count / 50))
    uniform = rng.random(images.shape)
    hit = effects.impulse_noise(images, 0.3, uniform)
    assert np.array_equal(hit[uniform >= 0.3], images[uniform >= 0.3])
    assert (hit[uniform < 0.15] == 255).all()
    assert (hit[(uniform >= 0.15) & (uniform < 0.3)] == 0).all()


@pytest.mark.parametrize(("side", "severity"), [(32, 1), (32, 3), (32, 5), (64, 4), (64, 5), (128, 4)])
def test_glass_of_given_draws(side: int, severity: int) -> None:
    """Beyond a reach of 1 pixels take colours that were taken already; the twin does so one after another."""
    sigma, reach, repeats = each(severity, side, "glass_blur")
    images = pictures(2 if side < 128 else 1, side)
    delta = np.random.default_rng(2).integers(-reach, reach, (len(images), repeats, 2, side, side))
    built = effects.glass_blur(images, sigma, reach, delta)
    for one, image, moves in zip(built, images, delta, strict=True):
        near(one, twins.glass_blur(image, sigma, reach, moves))


@pytest.mark.parametrize(("side", "severity"), [(32, 1), (32, 5), (64, 5)])
def test_motion_along_given_angles(side: int, severity: int) -> None:
    angle = np.array([30.0, -44.9, 0.0])[: 3 if side == 32 else 1]
    images = pictures(len(angle), side)
    radius, sigma = each(severity, side, "motion_blur")
    built = effects.motion_blur(images, radius, sigma, angle)
    for one, image, turn in zip(built, images, angle, strict=True):
        near(one, twins.magick_motion(image, radius, sigma, turn))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_snow_of_given_draws(severity: int) -> None:
    images, rng = pictures(3), np.random.default_rng(3)
    normal, angle = rng.standard_normal((3, 32, 32)), np.array([-100.0, -60.0, -90.0])
    constants = each(severity, 32, "snow")
    built = weather.snow(images, constants, normal, angle)
    for at in range(3):
        near(built[at], twins.snow(images[at], constants, normal[at], angle[at]))


@pytest.mark.parametrize("side", [32, 40])
@pytest.mark.parametrize("severity", [1, 5])
def test_fog_of_given_draws(severity: int, side: int) -> None:
    images = pictures(3, side)
    strength, decay = each(severity, side, "fog")
    size = 32 if side == 32 else 64
    uniform = np.random.default_rng(4).uniform(-1, 1, (3, size * size - 1))
    field = weather.plasma(size, decay, uniform)
    for at in range(3):
        slow = twins.plasma_fractal(size, decay, iter(uniform[at]))
        np.testing.assert_allclose(field[at], slow, atol=1e-12)
        near(weather.fog(images, strength, field[:, :side, :side])[at], twins.fog(images[at], strength, slow))


def test_frost_of_given_draws() -> None:
    images = pictures(5)
    textures = tuple(np.random.default_rng(5).integers(0, 256, (50 + n, 40, 3), dtype=np.uint8) for n in range(5))
    uniform = np.random.default_rng(6).random((5, 3))
    ice = weather.crops(textures, 32, uniform)
    for at, (which, y, x) in enumerate(uniform):
        texture = textures[int(which * 5)]
        top, left = int(y * (texture.shape[0] - 32)), int(x * (texture.shape[1] - 32))
        assert np.array_equal(ice[at], texture[top : top + 32, left : left + 32])
    mixed = twins.clipped((0.75 * images + 0.45 * ice) / 255)
    near(weather.frost(images, (0.75, 0.45), ice), mixed, 0)


@pytest.mark.parametrize(("side", "severity"), [(32, 1), (32, 2), (32, 3), (32, 5), (64, 3)])
def test_elastic_of_given_draws(side: int, severity: int) -> None:
    images, rng = pictures(3, side), np.random.default_rng(7)
    alpha, sigma, reach = each(severity, side, "elastic_transform")
    corners, field = rng.uniform(-reach, reach, (3, 3, 2)), rng.uniform(-1, 1, (3, 2, side, side))
    built = effects.elastic_transform(images, alpha, sigma, corners, field)
    for at in range(3):
        near(built[at], twins.elastic_transform(images[at], alpha, sigma, corners[at], field[at]), 0.01)


@pytest.mark.parametrize("severity", [1, 5])
@pytest.mark.parametrize("name", ["gaussian_noise", "shot_noise", "impulse_noise"])
def test_noise_in_distribution(name: str, severity: int) -> None:
    """Mean and deviation of 1.5 million values: a mean is known to sigma / 1240; four of those may be."""
    x, constant = 100 / 255, each(severity, 32, name)
    values = (corrupt(np.full((500, 32, 32, 3), 100, np.uint8), name, severity).astype(np.float64) + 0.5) / 255
    struck = constant * (0.5 * (1 - x) ** 2 + 0.5 * x**2)  # impulse noise: half of the struck values turn white
    mean = x + constant * (0.5 - x) if name == "impulse_noise" else x
    sigma = {
        "gaussian_noise": constant,
        "shot_noise": (x / constant) ** 0.5,
        "impulse_noise": (struck - (mean - x) ** 2) ** 0.5,
    }[name]
    assert abs(values.mean() - mean) < 4 * sigma / 1240 + 0.5 / 255
    assert values.std() == pytest.approx(sigma, rel=0.01)


def test_angles_of_motion_use_all_of_their_range() -> None:
    points = np.zeros((500, 33, 33, 3), np.uint8)
    points[:, 16, 16] = 255
    trail = corrupt(points, "motion_blur", 5)[..., 0].astype(np.float64)  # (500, 33, 33)
    down, right = (trail.sum(axis=axis) @ (np.arange(33) - 16.0) / trail.sum(axis=(1, 2)) for axis in (2, 1))
    turn = np.rad2deg(np.arctan2(-down, -right))  # light trails behind
    assert abs(turn.mean()) < 5 * 26 / 500**0.5  # a uniform angle of ±45° deviates by 26°
    assert turn.std() == pytest.approx(26, abs=2)


UNDRAWN = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}


def test_constants_as_published() -> None:
    """The digest is of numbers that were typed from the three scripts twice and compared."""
    for table in TABLES.values():
        assert tuple(table) == CORRUPTIONS
        assert {len(row) for row in table.values()} == {5}
    assert TABLES[32]["frost"] == ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
    assert TABLES[224]["motion_blur"] == ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))
    assert hashlib.sha256(json.dumps(TABLES, sort_keys=True).encode()).hexdigest()[:16] == "23c830d98fdd1404"
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(CORRUPTIONS)
    assert [table_of(side) for side in (16, 45, 46, 119, 120, 512)] == [32, 32, 64, 64, 224, 224]


@pytest.mark.parametrize("name", CORRUPTIONS)
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
def test_more_images_than_a_chunk(name: str) -> None:
    size = CHUNK[32]
    images = make_cues("iid", size + 20, seed=0).image.permute(0, 2, 3, 1).numpy()
    built = corrupt(images, name, 2, chunk=4)
    assert np.array_equal(built[:size], corrupt(images[:size], name, 2, chunk=4))
    assert np.array_equal(built[size:], corrupt(images[size:], name, 2, chunk=5))


@pytest.mark.parametrize("side", [16, 130])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_any_side(name: str, side: int) -> None:
    images = pictures(2, side)
    built = corrupt(images, name, 5)
    assert built.shape == images.shape
    assert not np.array_equal(built, images)


MEANS = (
    90.593, 88.268, 89.939, 89.290, 87.674, 87.634, 89.066, 115.810, 144.060, 103.631, 119.398, 116.975, 90.325, 90.872,
    88.752,
)  # fmt: skip


@pytest.mark.parametrize(("name", "mean"), list(zip(CORRUPTIONS, MEANS, strict=True)))
def test_draws_are_frozen(name: str, mean: float) -> None:
    """Mean byte of the upper left quarter. When draws or their order change, so must VERSION, and all copies."""
    built = corrupt(pictures(4), name, 3)[:, :16, :16]
    assert VERSION == 1
    assert built.mean() == pytest.approx(mean, abs=0.02)


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
    ("options", "message"),
    [
        ({"name": "gausian_noise"}, "did you mean 'gaussian_noise'"),
        ({"severity": 6}, "severities are 1 to 5, not 6"),
        ({"images": np.zeros((1, 32, 30, 3), np.uint8)}, r"not uint8 of shape \(1, 32, 30, 3\)"),
        ({"images": np.zeros((1, 32, 32, 3))}, "not float64"),
        ({"images": np.zeros((1, 12, 12, 3), np.uint8)}, "too small"),
    ],
)
def test_errors_are_one_line(options: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"images": pictures(1), "name": "fog", "severity": 1} | options
    with pytest.raises(UserError, match=message) as error:
        corrupt(**settings)
    assert "\n" not in str(error.value)
