"""Data sets by name: one table, DATASETS. Splits, limits, decoding and the fingerprint are the same for all of them."""
# N images

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from antishortcut.data import readers as layouts
from antishortcut.data import segmentation as masks
from antishortcut.data import segmentation as scenes
from antishortcut.data.groups import list_groups
from antishortcut.data.image_io import decode
from antishortcut.data.readers import Found as Found
from antishortcut.data.splits import fingerprint, hold_out, limited
from antishortcut.errors import UserError, suggest
from antishortcut.fileio import expanded
from antishortcut.types import AnySet, DataSplits, ImageSet, is_dense

WITH_PATH = ("folder", "groups")  # data sets that are named with their place: folder:PATH
IN_MEMORY = 64  # image sides up to this are decoded once and kept in memory
MAX_SIDE = 4096  # pixels
MAX_IMAGES = 10**6  # images of an embedded set


@dataclass(frozen=True)
class Request:
    """The arguments of a data set's `open`."""

    path: Path  # the data root, or PATH of folder:PATH and groups:PATH
    seed: int = 0
    image_size: int | None = None
    download: bool = False
    options: Mapping[str, float] = field(default_factory=dict)  # defaults filled in


class Size(NamedTuple):
    """Of a training set."""

    images: int
    classes: int
    side: int  # of the square images, or of the crops
    dense: bool = False  # every pixel has a class


@dataclass(frozen=True)
class Dataset:
    """All there is to know about a data set. A new one needs a line in DATASETS, a test and a page in the docs."""

    open: Callable[[Request], Found]
    help: str
    size: Size | None = None  # None: whatever lies there
    layout: tuple[str, ...] = ()  # below the data root; the set is there if any of these is
    options: Mapping[str, float] = field(default_factory=dict)  # data.options, with their defaults


def open_sets(
    name: str,
    root: Path | None,
    *,
    seed: int = 0,
    train_limit: int | None = None,
    test_limit: int | None = None,
    val_fraction: float = 0.0,
    download: bool = False,
    image_size: int | None = None,
    options: Mapping[str, float] | None = None,
) -> DataSplits:
    """Open a data set: a name in DATASETS, folder:PATH or groups:PATH.

    `root` None means $ANTISHORTCUT_DATA, or ./data without it. `seed` decides splits and limits (and draws the cues):
    use the same one for runs that are compared. Limits are class-balanced and apply after the split. A set with
    validation images of its own gives these as `val`, always; `val_fraction` of any other is held out of training.
    """
    result, place = find(name, root, seed=seed, download=download, image_size=image_size, options=options)
    train, val, tests = divided(result, name, seed, train_limit, test_limit, val_fraction)
    train = held(train, result.image_size, place)
    val = None if val is None else held(val, result.image_size, place)
    tests = {key: held(test, result.image_size, place) for key, test in tests.items()}
    splits = {"train": train} | ({} if val is None else {"val": val})
    splits |= {f"test {key}": test for key, test in tests.items()}
    mark = fingerprint(f"{result.kind} {result.image_size}", splits, result.base)
    return DataSplits(name, result.classes, result.image_size, train, val, tests, mark)


def find(
    name: str,
    root: Path | None,
    *,
    seed: int = 0,
    download: bool = False,
    image_size: int | None = None,
    options: Mapping[str, float] | None = None,
) -> tuple[Found, Path]:
    """The data set of that name, nothing decoded yet, and the data root."""
    kind, _, path = name.partition(":")
    if kind not in DATASETS:
        raise UserError(f"unknown data set {name!r}{suggest(kind, DATASETS)}")
    if bool(path) != (kind in WITH_PATH):
        plain = ", ".join(other for other in DATASETS if other not in WITH_PATH)
        raise UserError(f"{name!r} is not a data set; write folder:PATH, groups:PATH, or a plain name: {plain}")
    if image_size is not None and not 1 <= image_size <= MAX_SIDE:
        raise UserError(f"image_size must be at least 1, at most {MAX_SIDE}, not {image_size}")
    place = root if root is not None else Path(os.environ.get("ANTISHORTCUT_DATA") or "data")
    if download and kind not in ("cifar100", "cues", "cues-seg"):
        raise UserError(f"{kind} cannot be downloaded for you; put it below {place} without --download")
    dataset = DATASETS[kind]
    for key in options or {}:
        if key not in dataset.options:
            hint = suggest(key, dataset.options) if dataset.options else f"; {kind} takes none"
            raise UserError(f"unknown option {key!r} of the data set {kind}{hint}")
    settings = {**dataset.options, **(options or {})}
    result = dataset.open(Request(expanded(path) if path else place, seed, image_size, download, settings))
    result = replace(result, kind=result.kind or kind, image_size=image_size or result.image_size)
    if not result.tests:
        train, test = hold_out(result.train, 0.1, seed)
        assert test is not None
        result = replace(result, kind=f"{kind} tested on a tenth", train=train, tests={"test": test})
    return result, place


def divided(
    found: Found, name: str, seed: int, train_limit: int | None, test_limit: int | None, val_fraction: float
) -> tuple[AnySet, AnySet | None, dict[str, AnySet]]:
    """Training, validation and test images after splits and limits."""
    if found.val is not None and val_fraction:
        raise UserError(f"{name} has validation images of its own; leave val_fraction at 0")
    train, val = hold_out(found.train, val_fraction, seed) if found.val is None else (found.train, found.val)
    tests = {key: limited(test, test_limit, seed, "test_limit") for key, test in found.tests.items()}
    return limited(train, train_limit, seed), val, tests


def held(images: AnySet, size: int, root: Path | None) -> AnySet:
    """Small images move into memory, where whole batches are cut from them; large ones stay on disk.

    Images with masks keep their size and shape; they move if all have the same small size.
    """
    if isinstance(images, ImageSet):
        return images
    if is_dense(images):
        alike = masks.one_small_size(images)
        return images if alike is None else masks.decode_pairs(images, alike, root)
    return decode(images, size, root) if size <= IN_MEMORY else images


def _cifar100(request: Request) -> Found:
    if request.image_size not in (None, 32):
        raise UserError(f"cifar100 has images of 32 × 32, not {request.image_size}; networks resize by themselves")
    if request.download and not (layouts.home(request.path, layouts.CIFAR) / "train").exists():
        _download_cifar100(request.path)
    classes, train, test = layouts.read_cifar100(request.path)
    return Found(classes, train, {"test": test}, image_size=32)


def _download_cifar100(root: Path) -> None:
    from torchvision.datasets import CIFAR100

    try:
        CIFAR100(str(root), download=True)
    except (OSError, RuntimeError) as error:  # no network, no space, or a damaged archive
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"cannot download cifar100 to {root} ({reason}); put {layouts.CIFAR} there by hand") from None


def _tiny_imagenet(request: Request) -> Found:
    if (request.image_size or 64) > 64:
        raise UserError(f"tiny-imagenet has images of 64 × 64, not {request.image_size}; networks resize by themselves")
    return layouts.list_tiny_imagenet(request.path)


def _folder(request: Request) -> Found:
    return scenes.list_masked(request.path) if scenes.has_masks(request.path) else layouts.list_folder(request.path)


def _cues(request: Request) -> Found:
    from antishortcut.data.synthetic import CLASSES, VERSION, make_cues

    size = request.image_size or 32
    train, tests = _embedded(make_cues, request, size)
    return Found(CLASSES, train, tests, image_size=size, kind=f"cues {VERSION}")


def _cues_seg(request: Request) -> Found:
    from antishortcut.data.synthetic_segmentation import CLASSES, VERSION, make_scenes

    size = request.image_size or 64
    train, tests = _embedded(make_scenes, request, size)
    return Found(CLASSES, train, tests, image_size=size, kind=f"cues-seg {VERSION}")


def _embedded(make: Callable[..., ImageSet], request: Request, size: int) -> tuple[ImageSet, dict[str, AnySet]]:
    """Training images, and those of the three test sets."""
    for key in ("count", "test_count"):
        count = request.options[key]
        if count != int(count) or not 1 <= count <= MAX_IMAGES:
            raise UserError(f"data.options.{key} is a whole number from 1 to {MAX_IMAGES:,}, not {count:,g}")
    settings = {"seed": request.seed, "rho": request.options["rho"], "size": size}
    train = make("train", int(request.options["count"]), **settings)
    test_count = int(request.options["test_count"])
    return train, {split: make(split, test_count, **settings) for split in ("iid", "conflict", "uncorrelated")}


DATASETS: dict[str, Dataset] = {
    "cues": Dataset(
        _cues,
        "embedded images with a planted shortcut: shape is the class, texture agrees with it mostly",
        Size(8_000, 10, 32),
        options={"rho": 0.9, "count": 8000, "test_count": 2000},
    ),
    "cues-seg": Dataset(
        _cues_seg,
        "embedded scenes of tiles, to be segmented: a tile's glyph is its class, its texture the shortcut",
        Size(4_000, 11, 64, dense=True),
        options={"rho": 0.9, "count": 4000, "test_count": 500},
    ),
    "cifar100": Dataset(
        _cifar100,
        "CIFAR-100, 32 × 32, 100 classes; cifar-100-python below the data root, or --download",
        Size(50_000, 100, 32),
        ("cifar-100-python/train",),
    ),
    "tiny-imagenet": Dataset(
        _tiny_imagenet,
        "TinyImageNet, 64 × 64, 200 classes; tiny-imagenet-200 below the data root",
        Size(100_000, 200, 64),
        ("tiny-imagenet-200/wnids.txt",),
    ),
    "imagenet100": Dataset(
        lambda request: layouts.list_imagenet100(request.path),
        "CMC's 100 classes of ImageNet, 224 × 224; train/<wnid>, val/<wnid>",
        Size(126_689, 100, 224),
        tuple(f"{place}train/n01558993" for place in ("", "imagenet100/", "imagenet/", "ILSVRC2012/")),
    ),
    "ade20k": Dataset(
        lambda request: scenes.list_ade20k(request.path),
        "ADE20K's scene parsing, masks of 150 classes, crops of 512; ADEChallengeData2016 below the data root",
        Size(20_210, 150, 512, dense=True),
        ("ADEChallengeData2016/images/training",),
    ),
    "camvid": Dataset(
        lambda request: scenes.list_camvid(request.path),
        "CamVid street scenes, masks of 11 classes; camvid or CamVid below the data root",
        Size(367, 11, 352, dense=True),  # the usual crop of its 480 × 360
        ("camvid/train", "CamVid/train"),
    ),
    "folder": Dataset(
        _folder, "folder:PATH, your own images: train/<class>/…, val/<class>/…, or train/images with train/masks"
    ),
    "groups": Dataset(
        lambda request: list_groups(request.path),
        "groups:PATH, images with a second fact each, as Waterbirds has them: metadata.csv",
    ),
}
