"""Data sets by name: one table, DATASETS. Splits, limits, decoding and the fingerprint are the same for all of them."""
# N images

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from antishortcut.data import arrow, planted, readers, segmentation, shards, synthetic
from antishortcut.data import synthetic_segmentation as scenes
from antishortcut.data.groups import list_groups
from antishortcut.data.image_io import decode, painted
from antishortcut.data.readers import FOREIGN, SUFFIXES, RawDataset, Request, images_below
from antishortcut.data.segmentation import names_in
from antishortcut.data.splits import files_of, fingerprint, hold_out, limited
from antishortcut.errors import UserError, first_line, plural, suggest
from antishortcut.fileio import expanded, near_folder
from antishortcut.types import UNLABELLED, AnySet, DataSplits, FileSet, ImageSet, is_dense, lacks_labels

OWN = ("folder", "groups", "wds", "hf", "unlabelled")  # data sets of your own, whose images may have any size
WITH_PATH = (*OWN, "shortcut")  # data sets that are named with their path: folder:PATH
IN_MEMORY = 64  # images up to this side are decoded once and stay in memory
MAX_SIDE = 4096  # pixels
MAX_IMAGES = 10**6  # images of an embedded set
MOST_CLASSES = 10**6  # of images without labels


class TrainingSize(NamedTuple):
    """The size of a training set."""

    images: int
    classes: int
    side: int  # of the square images, or of the crops
    dense: bool = False  # every pixel has a class


@dataclass(frozen=True)
class Dataset:
    """Everything about a data set. A new one needs a reader, a line in DATASETS, a test and a card in the docs."""

    open: Callable[[Request], RawDataset]
    help: str
    size: TrainingSize | None = None  # None: it depends on the folder
    layout: tuple[str, ...] = ()  # below the data root; the data set is there if any of these is
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
    unlabelled: str | None = None,
) -> DataSplits:
    """Open a data set: a name in DATASETS, with its path or name where it has one, as folder:PATH.

    `root` None means $ANTISHORTCUT_DATA, or ./data without it. `seed` decides splits and limits (and the embedded
    images): use the same one for runs that are compared. Limits are class-balanced and apply after the split. `val` is
    the data set's own validation images if it has any, else `val_fraction` of the training images. `unlabelled`: a
    folder whose images are trained on too; limits do not count them. options["classes"] = 0 leaves the classes out.
    """
    raw, place = find(name, root, seed=seed, download=download, image_size=image_size, options=options)
    limits = {"train_limit": train_limit, "test_limit": test_limit}
    listed = divided(raw, seed=seed, **limits, val_fraction=val_fraction)
    splits = {key: held(images, raw.image_size, place) for key, images in listed.items()}
    mark, hashed = fingerprint(f"{raw.kind} {raw.image_size} {json.dumps(raw.classes)}", splits, raw.base)
    labelled, note = mark, readers.links_note(files_of(listed.values()), raw.base)
    if unlabelled is not None:
        files, base = beside(raw, unlabelled), expanded(unlabelled)
        note = "; ".join(filter(None, (note, readers.links_note(files.paths, base))))
        splits["train"] = with_unlabelled(splits["train"], held(files, raw.image_size, place), raw.image_size, place)
        own, times = fingerprint(f"unlabelled {raw.image_size}", {"unlabelled": files}, base)
        mark = hashlib.sha256(f"{mark} {own}".encode()).hexdigest()[:16]
        hashed = hashed if times == "content" else times if hashed == "content" else f"{hashed} and {times}"
    tests = {key: splits[f"test {key}"] for key in raw.tests}
    parts = splits["train"], splits.get("val"), tests
    sets = DataSplits(name, raw.classes, raw.image_size, *parts, mark, hashed, note, labelled)
    return _images_alone(sets) if leaves_classes_out(name, options) else sets


def leaves_classes_out(name: str, options: Mapping[str, float] | None) -> bool:
    """Whether a labelled data set is used without its classes: options["classes"] = 0."""
    return "classes" in (options or {}) and "unlabelled" not in name.split(":")[:2]


def without_labels(images: AnySet) -> AnySet:
    if is_dense(images):
        raise UserError("data.options.classes = 0 leaves out the classes of images; here every pixel has one")
    return replace(images, label=torch.full_like(images.label, UNLABELLED))


def _images_alone(sets: DataSplits) -> DataSplits:
    """The same images for networks without a classifier; evaluations of embeddings read the classes."""
    tests = {name: without_labels(images) for name, images in sets.tests.items()}
    val = None if sets.val is None else without_labels(sets.val)
    whole, part = (
        hashlib.sha256(f"{mark} without classes".encode()).hexdigest()[:16]
        for mark in (sets.fingerprint, sets.labelled)
    )
    images = replace(sets, train=without_labels(sets.train), val=val, tests=tests)
    return replace(images, classes=(), fingerprint=whole, labelled=part, classified=sets)


def beside(raw: RawDataset, unlabelled: str) -> FileSet:
    """The images of a folder without labels that a labelled data set does not have itself, in any of its splits."""
    if is_dense(raw.train) or raw.train.cues or lacks_labels(raw.train):
        what = "a class for every pixel" if is_dense(raw.train) else "groups" if raw.train.cues else "no labels itself"
        raise UserError(f"data.unlabelled goes with a data set of one label for every image; this one has {what}")
    sets = (raw.train, *raw.tests.values(), *([] if raw.val is None else [raw.val]))
    return list_unlabelled(expanded(unlabelled), [path for path in files_of(sets) if isinstance(path, Path)])


def find(
    name: str,
    root: Path | None,
    *,
    seed: int = 0,
    download: bool = False,
    image_size: int | None = None,
    options: Mapping[str, float] | None = None,
) -> tuple[RawDataset, Path]:
    """The data set of that name, nothing decoded yet, and the data root."""
    kind, _, path = name.partition(":")
    if leaves_classes_out(name, options):
        options = dict(options or {})
        if (count := options.pop("classes")) != 0:
            raise UserError(f"{name} has classes of its own; data.options.classes is 0, without them, not {count:,g}")
    if kind == "shortcut":
        return _planted(path, root, seed, download, image_size, dict(options or {}))
    if kind not in DATASETS:
        raise UserError(f"unknown data set {name!r}{suggest(kind, DATASETS)}")
    if bool(path) != (kind in WITH_PATH):
        plain = ", ".join(other for other in DATASETS if other not in WITH_PATH)
        raise UserError(
            f"{name!r} is not a data set; write folder:PATH, groups:PATH, wds:PATTERN, hf:NAME, unlabelled:PATH, "
            f"shortcut:SET, or a plain name: {plain}"
        )
    if image_size is not None and not 1 <= image_size <= MAX_SIDE:
        raise UserError(f"image_size must be at least 1, at most {MAX_SIDE}, not {image_size}")
    place = root if root is not None else Path(os.environ.get("ANTISHORTCUT_DATA") or "data")
    if download and kind not in ("cifar100", "cifar100-coarse", "cues", "cues-seg", "hf"):
        raise UserError(f"{kind} cannot be downloaded for you; put it below {place} without --download")
    dataset = DATASETS[kind]
    for key in options or {}:
        if key not in dataset.options:
            hint = suggest(key, dataset.options) if dataset.options else f"; {kind} takes none"
            raise UserError(f"unknown option {key!r} of the data set {kind}{hint}")
    settings = {**dataset.options, **(options or {})}
    raw = dataset.open(Request(expanded(path) if path else place, seed, image_size, download, settings, path))
    for images in (raw.train, *raw.tests.values()):
        _check_images(images, kind, len(raw.classes), image_size)
    raw = replace(raw, kind=raw.kind or kind, image_size=image_size or raw.image_size)
    if not raw.tests:
        train, test = hold_out(raw.train, 0.1, seed)
        assert test is not None
        raw = replace(raw, kind=f"{kind} tested on a tenth", train=train, tests={"test": test})
    return raw, place


def divided(
    raw: RawDataset,
    *,
    seed: int = 0,
    train_limit: int | None = None,
    test_limit: int | None = None,
    val_fraction: float = 0.0,
) -> dict[str, AnySet]:
    """After splits and limits: "train", "val" if there is one, and "test <name>" for every test set."""
    if raw.val is not None and val_fraction:
        raise UserError("the data set has validation images of its own; leave val_fraction at 0")
    train, val = hold_out(raw.train, val_fraction, seed) if raw.val is None else (raw.train, raw.val)
    splits = {"train": limited(train, train_limit, seed)} | ({} if val is None else {"val": val})
    return splits | {f"test {key}": limited(test, test_limit, seed, "test_limit") for key, test in raw.tests.items()}


def held(images: AnySet, size: int, root: Path | None) -> AnySet:
    """Small images are decoded into memory and painted, large ones stay on disk.

    Images with masks keep their size; they are decoded if all have the same small size.
    """
    if isinstance(images, ImageSet):
        return painted(images)
    if is_dense(images):
        shape = segmentation.one_small_size(images)
        return images if shape is None else segmentation.decode_pairs(images, shape, root)
    return decode(images, size, root) if size <= IN_MEMORY else images


def _cifar100(request: Request, coarse: bool = False) -> RawDataset:
    if request.download and not (readers.home(request.path, readers.CIFAR) / "train").exists():
        from torchvision.datasets import CIFAR100

        try:
            CIFAR100(str(request.path), download=True)
        except (OSError, RuntimeError) as error:  # no network, no space, or a damaged archive
            raise UserError(
                f"cannot download cifar100 to {request.path} ({first_line(error)}); put {readers.CIFAR} there by hand"
            ) from None
    return readers.read_cifar100(request.path, coarse)


def _planted(
    text: str, root: Path | None, seed: int, download: bool, image_size: int | None, options: dict[str, float]
) -> tuple[RawDataset, Path]:
    base, kind, rho = planted.parse(text)
    rho = options.pop("rho", rho)  # data.options.rho stands above the one in the name
    raw, place = find(base, root, seed=seed, download=download, image_size=image_size, options=options)
    return planted.plant(raw, kind, rho, seed), place


def _tiny_imagenet(request: Request) -> RawDataset:
    if (request.image_size or 64) > 64:
        raise UserError(f"tiny-imagenet has images of 64 × 64, not {request.image_size}; networks resize by themselves")
    return readers.list_tiny_imagenet(request.path)


def _folder(request: Request) -> RawDataset:
    train = readers.part_of(request.path, readers.TRAIN)
    dense = train is not None and (train / "images").is_dir() and (train / "masks").is_dir()
    return segmentation.list_masked(request.path) if dense else readers.list_folder(request.path)


def open_unlabelled(request: Request) -> RawDataset:
    """The images below a folder. The classes are the teacher's: as many as data.options.classes, 0 for none.

    classes.txt or classes.json in the folder names them.
    """
    count, images = request.options["classes"], list_unlabelled(request.path)
    if len(images) < 3:
        raise UserError(f"{request.path} has {plural(len(images), 'image')}; at least three are needed")
    if count != int(count) or not 0 <= count <= MOST_CLASSES:
        raise UserError(f"data.options.classes is a whole number from 0 to {MOST_CLASSES:,}, not {count:,g}")
    classes = names_in(request.path) if count else ()
    if classes and len(classes) != count:
        raise UserError(f"{request.path} names {len(classes)} classes, but data.options.classes is {count:,g}")
    classes = classes or tuple(f"class {number}" for number in range(int(count)))
    return RawDataset(classes, images, {}, base=request.path)


def list_unlabelled(folder: Path, used: Iterable[Path] = ()) -> FileSet:
    """All images below a folder but those that are already used."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder}{near_folder(folder) or ''}")
    taken = {os.path.realpath(path) for path in used}
    paths = [path for path in images_below(folder) if not taken or os.path.realpath(path) not in taken]
    if not paths:
        more = " that the labelled data do not have already" if taken else ""
        kinds = f"read are {', '.join(sorted(SUFFIXES))}, not {', '.join(sorted(FOREIGN)[:3])} and the like"
        raise UserError(f"no images in {folder}{more}; {kinds}")
    return FileSet(tuple(paths), torch.full((len(paths),), UNLABELLED))


def with_unlabelled(train: AnySet, images: AnySet, size: int, root: Path | None) -> AnySet:
    """A training set and, behind it, images without labels; held as the training set is."""
    label = torch.cat([train.label, images.label])
    if isinstance(train, ImageSet):
        if isinstance(images, FileSet):
            images = decode(images, size, root)
        return ImageSet(torch.cat([train.image, images.image]), label)
    assert isinstance(images, FileSet)
    return FileSet(train.paths + images.paths, label)


def _embedded(
    make: Callable[..., ImageSet], classes: tuple[str, ...], kind: str, size: int, request: Request
) -> RawDataset:
    """Synthetic training images, and three test sets."""
    for key in ("count", "test_count"):
        count = request.options[key]
        if count != int(count) or not 1 <= count <= MAX_IMAGES:
            raise UserError(f"data.options.{key} is a whole number from 1 to {MAX_IMAGES:,}, not {count:,g}")
    size = request.image_size or size
    counts = dict.fromkeys(synthetic.SPLITS, int(request.options["test_count"]))
    counts["train"] = int(request.options["count"])
    rho = request.options["rho"]
    sets = {split: make(split, count, seed=request.seed, rho=rho, size=size) for split, count in counts.items()}
    return RawDataset(classes, sets.pop("train"), sets, image_size=size, kind=kind)


DATASETS: dict[str, Dataset] = {
    "cues": Dataset(
        lambda request: _embedded(synthetic.make_cues, synthetic.CLASSES, f"cues {synthetic.VERSION}", 32, request),
        "embedded images with a planted shortcut: shape is the class, texture agrees with it mostly",
        TrainingSize(8_000, 10, 32),
        options={"rho": 0.9, "count": 8000, "test_count": 2000},
    ),
    "cues-seg": Dataset(
        lambda request: _embedded(scenes.make_scenes, scenes.CLASSES, f"cues-seg {scenes.VERSION}", 64, request),
        "embedded scenes of tiles, to be segmented: a tile's glyph is its class, its texture the shortcut",
        TrainingSize(4_000, 11, 64, dense=True),
        options={"rho": 0.9, "count": 4000, "test_count": 500},
    ),
    "cifar100": Dataset(
        _cifar100,
        "CIFAR-100, 32 × 32, 100 classes; cifar-100-python below the data root, or --download",
        TrainingSize(50_000, 100, 32),
        ("cifar-100-python/train",),
    ),
    "cifar100-coarse": Dataset(
        partial(_cifar100, coarse=True),
        "CIFAR-100 by its 20 superclasses",
        TrainingSize(50_000, 20, 32),
        ("cifar-100-python/train",),
    ),
    "tiny-imagenet": Dataset(
        _tiny_imagenet,
        "TinyImageNet, 64 × 64, 200 classes; tiny-imagenet-200 below the data root",
        TrainingSize(100_000, 200, 64),
        ("tiny-imagenet-200/wnids.txt",),
    ),
    "imagenet100": Dataset(
        lambda request: readers.list_imagenet100(request.path),
        "CMC's 100 classes of ImageNet, 224 × 224; train/<wnid>, val/<wnid>",
        TrainingSize(126_689, 100, 224),
        tuple(f"{place}train/n01558993" for place in ("", "imagenet100/", "imagenet/", "ILSVRC2012/")),
    ),
    "ade20k": Dataset(
        lambda request: segmentation.list_ade20k(request.path),
        "ADE20K's scene parsing, masks of 150 classes, crops of 512; ADEChallengeData2016 below the data root",
        TrainingSize(20_210, 150, 512, dense=True),
        ("ADEChallengeData2016/images/training",),
    ),
    "camvid": Dataset(
        lambda request: segmentation.list_camvid(request.path),
        "CamVid street scenes, masks of 11 classes; camvid or CamVid below the data root",
        TrainingSize(367, 11, 352, dense=True),  # the usual crop of its 480 × 360
        ("camvid/train", "CamVid/train"),
    ),
    "folder": Dataset(
        _folder, "folder:PATH, your own images: train/<class>/…, val/<class>/…, or train/images with train/masks"
    ),
    "groups": Dataset(
        lambda request: list_groups(request.path),
        "groups:PATH, images with a second attribute each, as in Waterbirds: metadata.csv",
    ),
    "wds": Dataset(
        lambda request: shards.list_shards(request.text),
        "wds:shards-{000..127}.tar, tar shards as webdataset writes them: KEY.jpg and KEY.cls; on disk or https://",
    ),
    "hf": Dataset(
        lambda request: arrow.open_hf(request.text),
        "hf:NAME_OR_PATH, a data set of the Hugging Face hub, or saved by datasets: Arrow, Parquet, an image folder",
    ),
    "unlabelled": Dataset(
        open_unlabelled,
        "unlabelled:PATH, images without labels in any layout; options.classes is the number of the teacher's classes",
        options={"classes": 0},
    ),
    "shortcut": Dataset(
        lambda request: find(f"shortcut:{request.path}", None)[0],
        "shortcut:SET?kind=patch&rho=0.9, any set with a planted cue: patch, frame, tint, texture or watermark",
        options={"rho": planted.RHO},
    ),
}


def _check_images(images: AnySet, kind: str, classes: int, side: int | None) -> None:
    """Raise for what a reader must not return; networks would train on it silently."""
    label = images.label
    if isinstance(images, ImageSet) and (images.image.dtype != torch.uint8 or images.image.shape[1:2] != (3,)):
        shape = tuple(images.image.shape)
        raise UserError(f"data set {kind}: images are {images.image.dtype} {shape}, not torch.uint8 (N, 3, H, W)")
    if side is not None and isinstance(images, ImageSet) and not is_dense(images) and images.image.shape[2] != side:
        own = " × ".join(map(str, images.image.shape[2:]))
        raise UserError(f"{kind} has images of {own}, not {side}; networks resize by themselves")
    if len(images.image if isinstance(images, ImageSet) else images.paths) != len(label):
        raise UserError(f"data set {kind}: {len(label)} labels for another number of images")
    labelled = not is_dense(images) and kind != "unlabelled"
    if labelled and len(label) and not 0 <= int(label.min()) <= int(label.max()) < classes:
        raise UserError(f"data set {kind}: labels {int(label.min())} to {int(label.max())}, but {classes} classes")
