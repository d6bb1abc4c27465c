"""Image files of every kind, decoded, cut and cached."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from antishortcut.data import open_sets
from antishortcut.data import readers as layouts
from antishortcut.data.image_io import CACHE, fit, read
from tests.data.official import make_folder, make_tiny, picture


def test_sixteen_bits_keep_their_greys(tmp_path: Path) -> None:
    wide = np.arange(0, 65536, 256, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(wide).save(tmp_path / "x.png")
    assert np.array_equal(np.asarray(read(tmp_path / "x.png"))[..., 0], wide >> 8)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 24), st.sampled_from([1.0, 256 / 224]))
def test_fit_gives_the_square(width: int, height: int, size: int, margin: float) -> None:
    assert fit(Image.new("RGB", (width, height)), size, margin).size == (size, size)


def test_decoded_images_are_cached_as_long_as_their_files_stay(tmp_path: Path) -> None:
    first = open_sets("tiny-imagenet", make_tiny(tmp_path))
    saved = sorted((tmp_path / CACHE).iterdir())
    assert [path.suffix for path in saved] == [".npy", ".npy"]  # training and test, and no half-written file
    written = [path.stat().st_mtime_ns for path in saved]
    assert open_sets("tiny-imagenet", tmp_path).fingerprint == first.fingerprint
    assert [path.stat().st_mtime_ns for path in saved] == written
    for path in saved:
        path.write_bytes(path.read_bytes()[:500])  # cut short: decoded again, and mended
    assert open_sets("tiny-imagenet", tmp_path).fingerprint == first.fingerprint
    assert all(path.stat().st_size > 500 for path in saved)
    picture(tmp_path / layouts.TINY / "train/n01/images/n01_1.JPEG")
    assert open_sets("tiny-imagenet", tmp_path).fingerprint != first.fingerprint


def test_no_cache_where_it_cannot_be_written(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    (tmp_path / CACHE).write_text("in the way")
    assert len(open_sets("tiny-imagenet", tmp_path).train) == 8
    folder = make_folder(tmp_path / "own")
    open_sets(f"folder:{folder}", tmp_path / "absent", image_size=16)
    assert not (tmp_path / "absent").exists()
