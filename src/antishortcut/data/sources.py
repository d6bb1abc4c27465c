"""Data sets by name. A source finds images; splits, limits, decoding and the fingerprint are the same for all."""
# N images

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError, near
from ..files import expanded
from ..machine import free_bytes
from ..types import AnySet, ImageSet, Sets, is_dense
from . import layouts, masks, scenes
from .parts import fingerprint, hold_out, limited
from .pictures import decode

WITH_PATH = ("folder", "groups")  # sources that are told where their images lie
IN_MEMORY = 64  # image sides up to this are decoded once and kept in memory
SIDE = 4096  # pixels of the largest images
MOST = 10**7  # images that are drawn for a set


@dataclass(frozen=True)
class Request:
    """What was asked of a source."""

    name: str
    path: str  # what follows the colon of `folder:PATH` and `groups:PATH`
    root: Path
    seed: int
    image_size: int | None
    download: bool
    options: Mapping[str, float]

    def settings(self, defaults: Mapping[str, float]) -> dict[str, float]:
        """The options over their defaults; unknown ones are refused."""
        for key in self.options:
            if key not in defaults:
                hint = near(key, defaults) if defaults else f"; {self.name} takes none"
                raise UserError(f"unknown option {key!r} of the data set {self.name}{hint}")
        return {**defaults, **self.options}

    def found_by_hand(self) -> None:
        """Refuse --download and options, for sources that have neither."""
        self.settings({})
        if self.download:
            raise UserError(f"{self.name} cannot be downloaded for you; put it below {self.root} without --download")


@dataclass(frozen=True)
class Found:
    """What a source found, before splits and limits."""

    kind: str  # names the source in the fingerprint, without anything that differs between machines
    classes: tuple[str, ...]
    image_size: int
    train: AnySet
    tests: Mapping[str, AnySet]
    val: AnySet | None = None  # validation images of the set's own, which are then those of a run
    base: Path = field(default_factory=Path)  # file names count relative to it


class Source(NamedTuple):
    open: Callable[[Request], Found]
    description: str


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
) -> Sets:
    """Open a data set: a name of SOURCES, folder:PATH or groups:PATH.

    `root` None means $ANTISHORTCUT_DATA, or ./data without it. `seed` decides splits and limits (and draws the cues):
    give the same one to runs that shall be compared. Limits are class-balanced and apply after the split. A set with
    validation images of its own gives these as `val`, always; `val_fraction` of any other is held out of training.
    """
    found, place = find(name, root, seed=seed, download=download, image_size=image_size, options=options)
    train, val, tests = divided(found, name, seed, train_limit, test_limit, val_fraction)
    train = held(train, found.image_size, place)
    val = None if val is None else held(val, found.image_size, place)
    tests = {key: held(test, found.image_size, place) for key, test in tests.items()}
    parts = (
        {"train": train} | ({} if val is None else {"val": val}) | {f"test {key}": part for key, part in tests.items()}
    )
    mark = fingerprint(f"{found.kind} {found.image_size}", parts, found.base)
    return Sets(name, found.classes, found.image_size, train, val, tests, mark)


def find(
    name: str,
    root: Path | None,
    *,
    seed: int = 0,
    download: bool = False,
    image_size: int | None = None,
    options: Mapping[str, float] | None = None,
) -> tuple[Found, Path]:
    """What the source of that name finds, nothing decoded yet, and the data root."""
    kind, _, path = name.partition(":")
    if kind not in SOURCES:
        raise UserError(f"unknown data set {name!r}{near(kind, SOURCES)}")
    if bool(path) != (kind in WITH_PATH):
        plain = ", ".join(source for source in SOURCES if source not in WITH_PATH)
        raise UserError(f"{name!r} is not a data set; write folder:PATH, groups:PATH, or a plain name: {plain}")
    if image_size is not None and not 1 <= image_size <= SIDE:
        raise UserError(f"image_size must be at least 1, at most {SIDE}, not {image_size}")
    place = root if root is not None else Path(os.environ.get("ANTISHORTCUT_DATA") or "data")
    return SOURCES[kind].open(Request(kind, path, place, seed, image_size, download, options or {})), place


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

    Those of a dense set keep their size and shape; they move if all are alike and small.
    """
    if isinstance(images, ImageSet):
        return images
    if is_dense(images):
        alike = masks.one_small_size(images)
        return images if alike is None else masks.decode_pairs(images, alike, root)
    return decode(images, size, root) if size <= IN_MEMORY else images


def _cifar100(request: Request) -> Found:
    request.settings({})
    if request.image_size not in (None, 32):
        raise UserError(f"cifar100 has images of 32 × 32, not {request.image_size}; networks resize by themselves")
    if request.download and not (layouts.home(request.root, layouts.CIFAR) / "train").exists():
        _download_cifar100(request.root)
    classes, train, test = layouts.read_cifar100(request.root)
    return Found("cifar100", classes, 32, train, {"test": test})


def _download_cifar100(root: Path) -> None:
    from torchvision.datasets import CIFAR100

    try:
        CIFAR100(str(root), download=True)
    except (OSError, RuntimeError) as error:  # no network, no space, or a damaged archive
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"cannot download cifar100 to {root} ({reason}); put {layouts.CIFAR} there by hand") from None


def _tiny_imagenet(request: Request) -> Found:
    request.found_by_hand()
    size = request.image_size or 64
    if size > 64:
        raise UserError(f"tiny-imagenet has images of 64 × 64, not {size}; networks resize by themselves")
    return _from_files(request, layouts.list_tiny_imagenet(request.root), size)


def _imagenet100(request: Request) -> Found:
    request.found_by_hand()
    return _from_files(request, layouts.list_imagenet100(request.root), request.image_size or 224)


def _folder(request: Request) -> Found:
    request.found_by_hand()
    folder = expanded(request.path)
    if scenes.has_masks(folder):
        return _from_scenes(request, scenes.list_masked(folder))
    return _from_files(request, layouts.list_folder(folder), request.image_size or 224)


def _groups(request: Request) -> Found:
    from .groups import list_groups

    request.found_by_hand()
    found = list_groups(expanded(request.path))
    return Found(request.name, found.classes, request.image_size or 224, found.train, found.tests, base=found.base)


def _ade20k(request: Request) -> Found:
    request.found_by_hand()
    found = scenes.list_ade20k(request.root)
    assert found.test is not None
    size = request.image_size or 512
    return Found(request.name, found.classes, size, found.train, {"val": found.test}, base=found.base)


def _camvid(request: Request) -> Found:
    request.found_by_hand()
    return _from_scenes(request, scenes.list_camvid(request.root))


def _from_scenes(request: Request, found: scenes.Scenes) -> Found:
    size = request.image_size or scenes.usual_crop(found.train)
    return _from_files(request, layouts.Files(found.classes, found.train, found.test, found.base, found.val), size)


def _from_files(request: Request, found: layouts.Files, size: int) -> Found:
    if found.test is not None:
        return Found(request.name, found.classes, size, found.train, {"test": found.test}, found.val, found.base)
    train, test = hold_out(found.train, 0.1, request.seed)
    assert test is not None
    return Found(f"{request.name} tested on a tenth", found.classes, size, train, {"test": test}, base=found.base)


def _cues(request: Request) -> Found:
    from .cues import CLASSES, VERSION, make_cues

    size = request.image_size or 32
    train, tests = _embedded(request, make_cues, size, {"rho": 0.9, "count": 8000, "test_count": 2000})
    return Found(f"cues {VERSION}", CLASSES, size, train, tests)


def _cues_seg(request: Request) -> Found:
    from .cues_seg import CLASSES, VERSION, make_scenes

    size = request.image_size or 64
    train, tests = _embedded(request, make_scenes, size, {"rho": 0.9, "count": 4000, "test_count": 500})
    return Found(f"cues-seg {VERSION}", CLASSES, size, train, tests)


def _embedded(
    request: Request, make: Callable[..., ImageSet], size: int, defaults: Mapping[str, float]
) -> tuple[ImageSet, dict[str, AnySet]]:
    """Training images, and those of the three test sets."""
    chosen = request.settings(defaults)
    rho = chosen["rho"]
    if not 0 <= rho <= 1:
        raise UserError(f"the option rho of {request.name} is a probability, not {rho}")
    for key in ("count", "test_count"):
        if chosen[key] < 1 or chosen[key] != int(chosen[key]):
            raise UserError(f"the option {key} of {request.name} is a whole number of images, not {chosen[key]}")
        if chosen[key] > MOST:
            raise UserError(f"the option {key} of {request.name} is at most {MOST:,} images, not {chosen[key]:,g}")
    _fit(request.name, chosen["count"] + 3 * chosen["test_count"], size)
    train = make("train", int(chosen["count"]), seed=request.seed, rho=rho, size=size)
    tests: dict[str, AnySet] = {
        split: make(split, int(chosen["test_count"]), seed=request.seed, rho=rho, size=size)
        for split in ("iid", "conflict", "uncorrelated")
    }
    return train, tests


def _fit(name: str, images: float, size: int) -> None:
    """Refuse images that memory cannot hold before they are drawn, one by one, until it is full."""
    from .cues import CHUNK

    there = free_bytes()
    wanted = images * 5 * size**2 + CHUNK * 64 * (2 * size) ** 2  # pixels and masks; what is at work, twice as fine
    if there is not None and wanted > there:
        raise UserError(
            f"{name} would take {wanted / 1e9:,.0f} GB of memory, and {there / 1e9:,.0f} GB are free; "
            "lower data.options.count or data.image_size"
        )


SOURCES: dict[str, Source] = {
    "cues": Source(_cues, "embedded images with a planted shortcut: shape is the class, texture agrees with it mostly"),
    "cues-seg": Source(
        _cues_seg, "embedded scenes of tiles, to be segmented: a tile's glyph is its class, its texture the shortcut"
    ),
    "cifar100": Source(
        _cifar100, "CIFAR-100, 32 × 32, 100 classes; cifar-100-python below the data root, or --download"
    ),
    "tiny-imagenet": Source(
        _tiny_imagenet, "TinyImageNet, 64 × 64, 200 classes; tiny-imagenet-200 below the data root"
    ),
    "imagenet100": Source(_imagenet100, "CMC's 100 classes of ImageNet, 224 × 224; train/<wnid>, val/<wnid>"),
    "ade20k": Source(
        _ade20k, "ADE20K's scene parsing, masks of 150 classes, crops of 512; ADEChallengeData2016 below the data root"
    ),
    "camvid": Source(_camvid, "CamVid street scenes, masks of 11 classes; camvid or CamVid below the data root"),
    "folder": Source(
        _folder, "folder:PATH, your own images: train/<class>/…, val/<class>/…, or train/images with train/masks"
    ),
    "groups": Source(_groups, "groups:PATH, images with a second fact each, as Waterbirds has them: metadata.csv"),
}
