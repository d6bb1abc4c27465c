"""Image files of every kind, decoded, cut and cached."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from antishortcut.data import layouts, open_sets
from antishortcut.data.pictures import CACHE, fit, read
from tests.data.official import make_folder, make_tiny, picture


@pytest.mark.parametrize(
    ("mode", "suffix", "options"),
    [
        ("RGB", "webp", {"lossless": True}),
        ("L", "png", {}),
        ("P", "png", {}),
        ("P", "png", {"transparency": bytes(range(256))}),
        ("RGBA", "png", {}),
        ("LA", "png", {}),
        ("1", "bmp", {}),
        ("CMYK", "jpg", {}),
        ("P", "gif", {}),
    ],
)
def test_every_kind_of_picture_becomes_rgb(tmp_path: Path, mode: str, suffix: str, options: dict[str, Any]) -> None:
    path = tmp_path / f"x.{suffix}"
    picture(path, mode, (9, 7), **options)
    out = read(path)
    assert (out.mode, out.size) == ("RGB", (9, 7))


def test_sixteen_bits_keep_their_greys(tmp_path: Path) -> None:
    wide = np.arange(0, 65536, 256, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(wide).save(tmp_path / "x.png")
    assert np.array_equal(np.asarray(read(tmp_path / "x.png"))[..., 0], wide >> 8)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 24), st.sampled_from([1.0, 256 / 224]))
def test_fit_gives_the_square(width: int, height: int, size: int, margin: float) -> None:
    assert fit(Image.new("RGB", (width, height)), size, margin).size == (size, size)


def test_decoded_images_are_cached_and_the_cache_is_never_trusted_blindly(tmp_path: Path) -> None:
    first = open_sets("tiny-imagenet", make_tiny(tmp_path))
    kept = sorted((tmp_path / CACHE).iterdir())
    assert [path.suffix for path in kept] == [".npy", ".npy"]  # training and test, and no half-written file
    written = [path.stat().st_mtime_ns for path in kept]
    assert open_sets("tiny-imagenet", tmp_path).fingerprint == first.fingerprint
    assert [path.stat().st_mtime_ns for path in kept] == written
    for path in kept:
        path.write_bytes(path.read_bytes()[:500])  # cut short: decoded again, and mended
    assert open_sets("tiny-imagenet", tmp_path).fingerprint == first.fingerprint
    assert all(path.stat().st_size > 500 for path in kept)
    for path in kept:
        good = path.read_bytes()
        for at in (-1, -5, len(good) // 2, 200):  # a flipped bit: of the checksum, the pixels
            spoiled = bytearray(good)
            spoiled[at] ^= 4
            path.write_bytes(spoiled)
            assert open_sets("tiny-imagenet", tmp_path).fingerprint == first.fingerprint
            assert path.read_bytes() == good
    picture(tmp_path / layouts.TINY / "train/n01/images/n01_1.JPEG")
    assert open_sets("tiny-imagenet", tmp_path).fingerprint != first.fingerprint


def test_what_a_killed_process_was_writing_goes(tmp_path: Path) -> None:
    (make_tiny(tmp_path) / CACHE).mkdir()
    old, new = tmp_path / CACHE / "tmpold.part", tmp_path / CACHE / "tmpnew.part"
    for path in (old, new):
        path.write_bytes(b"")
    os.utime(old, (1, 1))
    open_sets("tiny-imagenet", tmp_path)
    assert [path.name for path in sorted((tmp_path / CACHE).glob("*.part"))] == [new.name]


def test_no_cache_where_it_cannot_be_written(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    (tmp_path / CACHE).write_text("in the way")
    assert len(open_sets("tiny-imagenet", tmp_path).train) == 8
    folder = make_folder(tmp_path / "own")
    open_sets(f"folder:{folder}", tmp_path / "absent", image_size=16)
    assert not (tmp_path / "absent").exists()
