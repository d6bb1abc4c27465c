"""Small sets in the official layouts, and what the tests of this room ask of them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from antishortcut.data import layouts, open_sets
from antishortcut.errors import UserError
from antishortcut.types import AnySet, ImageSet

RNG = np.random.default_rng(0)


def picture(path: Path, mode: str = "RGB", size: tuple[int, int] = (64, 64), **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(path, **options)


def make_cifar(root: Path, protocol: int = 2, key: Callable[[str], Any] = str, per_class: int = 5) -> Path:
    folder = root / layouts.CIFAR
    folder.mkdir(parents=True)
    (folder / "meta").write_bytes(pickle.dumps({key("fine_label_names"): ["ant", "bee", "cat"]}, protocol))
    rng = np.random.default_rng(1)
    for name in ("train", "test"):
        labels = [at % 3 for at in range(3 * per_class)]
        data = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        (folder / name).write_bytes(pickle.dumps({key("data"): data, key("fine_labels"): labels}, protocol))
    return root


def make_tiny(root: Path) -> Path:
    folder = root / layouts.TINY
    for wnid in ("n02", "n01"):
        for at in range(4):
            picture(folder / "train" / wnid / "images" / f"{wnid}_{at}.JPEG", mode="L" if at == 0 else "RGB")
    for at in range(2):
        picture(folder / "val" / "images" / f"val_{at}.JPEG")
    (folder / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn02\t0\t0\t63\t63\nval_1.JPEG\tn01\t0\t0\t63\t63\n"
    )
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\tsalamander, fire\nn03\tnobody\n")
    return root


def make_folder(root: Path, held: str | None = "val", per_class: int = 3) -> Path:
    for name in ("ape", "bat"):
        for at in range(per_class):
            picture(root / "train" / name / f"{at}.png", size=(40, 30))
        if held:
            picture(root / held / name / "deep" / "x.jpg", size=(30, 50))
    return root


def in_memory(images: AnySet | None) -> ImageSet:
    assert isinstance(images, ImageSet)
    return images


def refused(match: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(UserError, match=match) as caught:
        open_sets(*arguments, **options)
    assert "\n" not in str(caught.value)


def real(name: str) -> Path:
    root = os.environ.get("ANTISHORTCUT_DATA")
    if not root or not (Path(root) / name).is_dir():
        pytest.skip(f"needs {name} below $ANTISHORTCUT_DATA")
    return Path(root)
