"""Small sets in the official layouts, and what the tests of this room ask of them."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from antishortcut.data import open_sets
from antishortcut.data import readers as layouts
from antishortcut.data import segmentation as scenes
from antishortcut.errors import UserError
from antishortcut.types import AnySet, FileSet, ImageSet

RNG = np.random.default_rng(0)


def picture(path: Path, mode: str = "RGB", size: tuple[int, int] = (64, 64), **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(path, **options)


def make_cifar(root: Path, protocol: int = 2, key: Callable[[str], Any] = str, per_class: int = 5) -> Path:
    folder = root / layouts.CIFAR
    folder.mkdir(parents=True)
    names = {key("fine_label_names"): ["ant", "bee", "cat"], key("coarse_label_names"): ["insect", "mammal"]}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol))
    rng = np.random.default_rng(1)
    for name in ("train", "test"):
        labels = [at % 3 for at in range(3 * per_class)]
        data = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        split = {key("data"): data, key("fine_labels"): labels, key("coarse_labels"): [at // 2 for at in labels]}
        (folder / name).write_bytes(pickle.dumps(split, protocol))
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


def paths_of(images: AnySet) -> list[Path]:
    """The files of a set, none of which is inside another."""
    assert isinstance(images, FileSet)
    return [path for path in images.paths if isinstance(path, Path)]


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


def mask(path: Path, values: np.ndarray[Any, Any], **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint8)).save(path, **options)


ADE_SIZES = ((61, 47), (40, 83), (33, 33), (51, 40))  # (W, H)


def make_ade(root: Path, names: bool = True) -> Path:
    """Two parts of four images in odd sizes, grey and CMYK among them; masks hold 0 … 150."""
    folder, rng = root / scenes.ADE, np.random.default_rng(2)
    for part in ("training", "validation"):
        for at, (size, mode) in enumerate(zip(ADE_SIZES, ("RGB", "L", "CMYK", "RGB"), strict=True)):
            name = f"ADE_{part[:5]}_{at:08}"
            picture(folder / "images" / part / f"{name}.jpg", mode, size)
            mask(folder / "annotations" / part / f"{name}.png", rng.integers(0, 151, size[::-1]))
    if names:
        rows = [f"{at} \t0.1\t9\t9\tthing {at}, or so " for at in range(1, 151)]
        (folder / "objectInfo150.txt").write_text("\n".join(["Idx\tRatio\tTrain\tVal\tName", *rows]) + "\n")
    return root


def make_camvid(
    root: Path, places: tuple[str, str] = ("{}/images", "{}/masks"), size: tuple[int, int] = (40, 30)
) -> Path:
    rng = np.random.default_rng(3)
    for part, count in (("train", 6), ("val", 2), ("test", 3)):
        images, masks = (root / place.format(part) for place in places)
        for at in range(count):
            picture(images / f"{part}{at}.png", size=size)
            values = rng.integers(0, 12, size[::-1])
            mask(masks / f"{part}{at}.png", values)
    return root


def make_masked(root: Path, held: str | None = "val", count: int = 4, size: tuple[int, int] = (40, 30)) -> Path:
    """Images with masks of 0, 1, 2 and 255, all of one size."""
    rng = np.random.default_rng(4)
    for part, images in (("train", count), (held, 2)):
        for at in range(images if part else 0):
            picture(root / str(part) / "images" / f"{at}.jpg", size=size)
            mask(root / str(part) / "masks" / f"{at}.png", np.array([0, 1, 2, 255])[rng.integers(0, 4, size[::-1])])
    return root
