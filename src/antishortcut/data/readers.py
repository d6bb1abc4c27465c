"""Readers of data set layouts: which files there are, and their labels. CIFAR is read, all others are only listed."""
# N images

import hashlib
import io
import os
import pickle
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antishortcut.errors import UserError, first_line
from antishortcut.fileio import content, near_folder
from antishortcut.types import AnySet, FileSet, ImageRef, ImageSet

SUFFIXES = {".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"}
FOREIGN = {".heic", ".heif", ".avif", ".jp2", ".jxl", ".psd", ".raw", ".dng", ".svg"}  # images that are not read

CIFAR = "cifar-100-python"
_CIFAR_FILES = {  # size in bytes and md5 of the official files
    "train": (155249918, "16019d7e3df5f24257cddd939b257f8d"),
    "test": (31049707, "f0ef6b0ae62326f3e7ffdfab6717acfc"),
    "meta": (1473, "7973b15100ade9c7d40fb424638fde48"),
}
_CIFAR_HINT = f"give the folder that holds {CIFAR} as the data root, or add --download"

TINY = "tiny-imagenet-200"
_TINY_HINT = (
    f"unpack {TINY} below the data root: train/<wnid>/images/*.JPEG, val/images/*.JPEG, val/val_annotations.txt, "
    "wnids.txt, words.txt"
)
_FOLDER_HINT = "expected train/<class>/<image> and val/<class>/<image>, or <class>/<image> right in the folder"
_CLASS_HINT = "if {} is a class, give its folder another name"
CLASSES = "classes.txt"
TRAIN, VAL, TEST = ("train", "training"), ("val", "valid", "validation"), ("test", "testing")  # names of folders


@dataclass(frozen=True)
class RawDataset:
    """A data set on disk or in memory, before splits and limits."""

    classes: tuple[str, ...]
    train: AnySet
    tests: Mapping[str, AnySet]  # without any, a tenth of the training images is held out for testing
    val: AnySet | None = None  # the data set's own validation images, beside its test images
    base: Path = field(default_factory=Path)  # fingerprints use file names relative to it
    image_size: int = 224  # side of the square images that networks receive, unless the run sets it
    kind: str = ""  # names the data set in the fingerprint; the same on every machine


@dataclass(frozen=True)
class Request:
    """The arguments of a data set's `open`."""

    path: Path  # the data root, or PATH of folder:PATH and groups:PATH
    seed: int = 0
    image_size: int | None = None
    download: bool = False
    options: Mapping[str, float] = field(default_factory=dict)  # defaults filled in
    text: str = ""  # PATH as it is written: of wds:PATTERN and hf:NAME it may be no path


def package_list(name: str) -> str:
    """A text shipped with the package in data/lists."""
    return (files("antishortcut.data") / "lists" / f"{name}.txt").read_text(encoding="utf-8")


def class_list(name: str) -> tuple[str, ...]:
    """The wnids of imagenet100, imagenet-r or imagenet-a."""
    return tuple(package_list(name).split())


def read_cifar100(root: Path, coarse: bool = False) -> RawDataset:
    """The images of root/cifar-100-python, by their 100 classes or by their 20 superclasses."""
    labels = "coarse_labels" if coarse else "fine_labels"
    key = labels.replace("labels", "label_names")
    folder = home(root, CIFAR)
    names = read_pickle(folder / "meta", *_CIFAR_FILES["meta"], _CIFAR_HINT).get(key)
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise UserError(f"{folder / 'meta'} has no list {key}; {_CIFAR_HINT}")
    classes = tuple(name.decode(errors="replace") if isinstance(name, bytes) else name for name in names)
    train, test = (_cifar_split(folder / split, labels) for split in ("train", "test"))
    return RawDataset(classes, train, {"test": test}, image_size=32)


def _cifar_split(path: Path, labels: str) -> ImageSet:
    loaded = read_pickle(path, *_CIFAR_FILES[path.name], _CIFAR_HINT)
    try:
        data, label = loaded["data"], np.asarray(loaded[labels], dtype=np.int64)
        if data.dtype != np.uint8 or data.shape != (len(label), 3 * 32 * 32) or label.ndim != 1 or len(label) == 0:
            raise ValueError(f"data of shape {data.shape} and type {data.dtype}, labels of shape {label.shape}")
    except (KeyError, AttributeError, ValueError, TypeError, OverflowError) as error:
        raise UserError(f"{path} does not hold CIFAR-100 images ({error}); {_CIFAR_HINT}") from None
    image = np.array(data).reshape(-1, 3, 32, 32)  # (N, 3, 32, 32), a writable copy: torch warns about others
    return ImageSet(torch.from_numpy(image), torch.from_numpy(label))


def tiny_wnids(root: Path) -> tuple[str, ...]:
    """The wnids of TinyImageNet in the order of its labels: sorted, as in every folder-based loader."""
    return tuple(sorted(lines(home(root, TINY) / "wnids.txt", _TINY_HINT)))


def list_tiny_imagenet(root: Path) -> RawDataset:
    """The files of root/tiny-imagenet-200. Its validation images are the test set: those labels are public."""
    folder, wnids = home(root, TINY), tiny_wnids(root)
    words = dict(line.split("\t", 1) for line in lines(folder / "words.txt", _TINY_HINT) if "\t" in line)
    train = listed([folder / "train" / wnid / "images" for wnid in wnids], _TINY_HINT)
    number = {wnid: label for label, wnid in enumerate(wnids)}
    notes = folder / "val" / "val_annotations.txt"
    paths, labels = [], []
    for at, line in enumerate(lines(notes, _TINY_HINT), start=1):
        name, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in number:
            raise UserError(f"{notes}, line {at}: expected a file, a tab and a wnid of wnids.txt, not {line[:60]!r}")
        paths.append(folder / "val" / "images" / name)
        labels.append(number[wnid])
    names = tuple(words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids)
    test = FileSet(tuple(paths), torch.tensor(labels))
    return RawDataset(names, train, {"test": test}, base=folder, image_size=64)


def list_imagenet100(root: Path) -> RawDataset:
    """CMC's hundred classes of an ImageNet folder: root itself, root/imagenet100, root/imagenet or root/ILSVRC2012."""
    wnids = tuple(sorted(class_list("imagenet100")))  # the labels of folder-based loaders
    places = [root, *(root / name for name in ("imagenet100", "imagenet", "ILSVRC2012"))]
    folder = next((place for place in places if (place / "train" / wnids[0]).is_dir()), None)
    hint = "unpack ImageNet there as train/<wnid>/*.JPEG and val/<wnid>/*.JPEG"
    if folder is None:
        raise UserError(f"no train/{wnids[0]} in {root} nor in its imagenet100, imagenet, ILSVRC2012; {hint}")
    train, val = (listed([folder / split / wnid for wnid in wnids], hint) for split in ("train", "val"))
    return RawDataset(wnids, train, {"test": val}, base=folder)


def list_folder(folder: Path) -> RawDataset:
    """Class folders below train/, and below val/ or test/; or directly in the folder. Classes in alphabetical order.

    If only one of val/ and test/ exists, it is the test set; if both do, val/ is for choosing settings.
    """
    train = part_of(folder, TRAIN)
    if train is None:
        return _undivided(folder)
    classes = folders(train)
    if not classes:
        raise UserError(f"no class folders in {train}; {_FOLDER_HINT}; {_CLASS_HINT.format(train.name)}")
    val, test = (None if held is None else _held(held, train, classes) for held in held_of(folder))
    images = listed([train / name for name in classes], _FOLDER_HINT)
    return RawDataset(classes, images, {} if test is None else {"test": test}, val, folder)


def part_of(folder: Path, names: Sequence[str]) -> Path | None:
    """The first existing folder of these names; capitalised ones count too, unless they are a class."""
    exact = next((folder / name for name in names if (folder / name).is_dir()), None)
    if exact is not None or not folder.is_dir():
        return exact
    there = {name.lower(): folder / name for name in folders(folder) if folders(folder / name)}
    return next((there[name] for name in names if name in there), None)


def held_of(folder: Path) -> tuple[Path | None, Path | None]:
    """The validation and the test folder; if only one exists, it is the test folder."""
    val, test = part_of(folder, VAL), part_of(folder, TEST)
    return (None, val) if test is None else (val, test)


def _held(held: Path, train: Path, classes: tuple[str, ...]) -> FileSet:
    """Validation or test images, with the labels of the training classes."""
    present = folders(held)
    if not present or set(present) - set(classes):
        extra = ", ".join(sorted(set(present) - set(classes))[:3]) or "no class folder"
        raise UserError(f"{held} has {extra}, but its class folders must be among those of {train}")
    images = listed([held / name for name in present], _FOLDER_HINT)
    number = torch.tensor([classes.index(name) for name in present])
    return FileSet(images.paths, number[images.label])


def _undivided(folder: Path) -> RawDataset:
    """Class folders directly in the folder."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder}{near_folder(folder) or f'; {_FOLDER_HINT}'}")
    if held := next((name for name in (*VAL, *TEST) if (folder / name).is_dir()), None):  # Valid may be a class
        raise UserError(f"{folder} has {held}/ but no train/; {_FOLDER_HINT}; {_CLASS_HINT.format(held)}")
    classes = tuple(name for name in folders(folder) if images_below(folder / name))
    if len(classes) < 2:
        below = [name for name in folders(folder) if part_of(folder / name, TRAIN) or len(folders(folder / name)) > 1]
        if classes and not below:
            raise UserError(f"{folder} has one folder of images only, {classes[0]}; two classes are needed")
        hint = f"; did you mean {folder / below[0]}?" if below else misplaced(folder)
        raise UserError(f"no train/ and no folders of classes in {folder}{hint or f'; {_FOLDER_HINT}'}")
    return RawDataset(classes, listed([folder / name for name in classes], _FOLDER_HINT), {}, base=folder)


def misplaced(folder: Path) -> str:
    """A hint if the folder does hold images: of a kind that is not read, or outside class folders."""
    kinds = Counter(os.path.splitext(name)[1].lower() for _, _, names in walked(folder) for name in names)
    for kind, other in ((".tar", "wds"), (".parquet", "hf"), (".arrow", "hf")):
        if kind in kinds:
            return f"; it has {kind} files: write {other}:{folder}"
    if not SUFFIXES & kinds.keys():
        foreign = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(3) if kind in FOREIGN)
        return f"; its images are of a kind that is not read ({foreign}): save as PNG or JPEG" if foreign else ""
    return "; its images lie right in it: put each into a folder of its class, or name the folder above"


def home(root: Path, name: str) -> Path:
    """The folder of a release: below the data root, or the root itself if it has that name."""
    return root if root.name == name else root / name


def folders(parent: Path) -> tuple[str, ...]:
    """Names of the folders in a folder, sorted; hidden ones do not count."""
    return tuple(sorted(entry.name for entry in parent.iterdir() if entry.is_dir() and not entry.name.startswith(".")))


def images_below(folder: Path) -> list[Path]:
    """All image files below a folder, sorted; hidden ones do not count."""
    paths = sorted(
        os.path.join(where, name)
        for where, _, names in walked(folder)
        for name in names
        if os.path.splitext(name)[1].lower() in SUFFIXES and not name.startswith(".")
    )
    return [Path(path) for path in paths]


def walked(folder: Path, refuse: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """os.walk by name, following links; each folder once, since a link may lead back to it.

    A link to a folder above `folder` would make all of that a class: an error, or without `refuse` not followed.
    """
    visited: set[str] = set()
    parent = os.path.realpath(os.path.dirname(os.path.abspath(folder)))
    for where, below, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(where)
        upward = os.path.islink(where) and os.path.commonpath([parent, real]) == real
        if upward and refuse:
            raise UserError(f"{where} is a link to {real}, above it: all of that would be a class; remove the link")
        if upward or real in visited:
            below.clear()
            continue
        visited.add(real)
        below.sort()
        yield where, below, names


def links_note(files: Iterable[ImageRef], base: Path) -> str:
    """How many of these files, and of the folders above them, are links out of `base`; empty if none is."""
    paths, home = {path for path in files if isinstance(path, Path)}, os.path.realpath(base)
    folders = {folder for parent in {path.parent for path in paths} for folder in (parent, *parent.parents)}
    links = sorted(path for path in paths | folders if os.path.islink(path) and base in path.parents)
    outward = [link for link in links if os.path.commonpath([home, os.path.realpath(link)]) != home]
    if not outward:
        return ""
    first = f"{outward[0].relative_to(base)} → {os.path.realpath(outward[0])}"
    return f"links that lead out of the data folder: {len(outward):,}, such as {first}"


def listed(places: Sequence[Path], hint: str) -> FileSet:
    """All images below the folders, sorted; an image's label is the position of its folder."""
    paths: list[Path] = []
    labels: list[int] = []
    for label, folder in enumerate(places):
        images = images_below(folder)
        if not images:
            raise UserError(f"no images in {folder}; {hint}")
        paths += images
        labels += [label] * len(images)
    return FileSet(tuple(paths), torch.tensor(labels))


def number_labels(
    labels: Mapping[str, Sequence[str]], names: Sequence[str], where: str, remedy: str
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """The classes, and the labels (N,) of every split, one of which is "train". Labels are words: numbers or names.

    `names` are the classes in order, if they are known. Without them numbers must have no gaps (`remedy` ends the
    error), and names are sorted.
    """
    words = {word for split in labels.values() for word in split}
    numbers = all(re.fullmatch(r"-?\d+", word) for word in words)
    trained = set(labels["train"])
    if numbers:
        number = {word: int(word) if len(word) < 19 else -1 for word in words}  # Python reads 4,300 digits at most
        present = {number[word] for word in trained}
        classes = tuple(names) or tuple(map(str, range(len(present))))
        gap = next((at for at in range(len(present)) if at not in present), None)
        if not names and gap is not None:
            raise UserError(f"{where}: labels reach {max(present)}, but no training image has {gap}; {remedy}")
    else:
        classes = tuple(names) or tuple(sorted(trained))
        number = {name: at for at, name in enumerate(classes)}
    if wrong := sorted(word for word in words if not 0 <= number.get(word, -1) < len(classes)):
        split = next(split for split, its in labels.items() if wrong[0] in its)
        some = ", ".join(classes[:5]) + (", …" if len(classes) > 5 else "")
        raise UserError(f"{where}: an image of {split} has the label {wrong[0][:60]!r}, but the classes are {some}")
    return classes, {split: torch.tensor([number[word] for word in its]) for split, its in labels.items()}


def by_split(sets: Mapping[str, AnySet], classes: tuple[str, ...]) -> RawDataset:
    """Sets called train, val and test; if there is only one of the last two, it is the test set."""
    val, test = sets.get("val"), sets.get("test")
    val, test = (None, val) if test is None else (val, test)
    return RawDataset(classes, sets["train"], {} if test is None else {"test": test}, val)


def split_of(words: Iterable[str]) -> str | None:
    """train, val or test if one of these words means that."""
    kinds = {"train": TRAIN, "val": VAL, "test": TEST}
    return next((kind for word in words for kind, known in kinds.items() if word.lower() in known), None)


def read_text(path: Path, hint: str) -> str:
    """A text file of people or other programs; `hint` ends the error."""
    try:
        return content(path).decode("utf-8-sig")  # Windows puts a mark first
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"cannot read {path} ({reason}); {hint}") from None


def lines(path: Path, hint: str) -> list[str]:
    """The non-empty lines of a text file, stripped; at least one."""
    stripped = [line.strip() for line in read_text(path, hint).splitlines() if line.strip()]
    if not stripped:
        raise UserError(f"{path} is empty; {hint}")
    return stripped


# --- CIFAR's pickles, read without running code ---

LARGEST = 4 * 2**30  # bytes of a file


def _number_type(code: str | bytes, *_: object) -> np.dtype[Any]:
    """Replaces numpy.dtype: plain numbers only."""
    name = code.decode() if isinstance(code, bytes) else code
    if not re.fullmatch(r"[|<]?[biuf][1248]", name):
        raise pickle.UnpicklingError(f"arrays of type {name!r} are not allowed")
    return np.dtype(name)


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): "ndarray",  # only ever an argument; the class itself could be made to point to any memory
    ("numpy", "dtype"): _number_type,
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: np.empty(0, np.uint8),  # its content follows
    ("numpy.core.numeric", "_frombuffer"): lambda data, kind, shape, order: np.frombuffer(data, kind).reshape(
        shape, order=order
    ),
    ("_codecs", "encode"): lambda characters, _: characters.encode("latin1"),  # bytes, as Python 3 writes protocol 2
    ("__builtin__", "bytes"): bytes,  # protocol 2 calls it for an empty one
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        allowed = _ALLOWED.get((module.replace("._core", ".core"), name))  # numpy 2 renamed it
        if allowed is None:
            raise pickle.UnpicklingError(f"it wants to load {module}.{name}, which image data never need")
        return allowed


def read_pickle(path: Path, size: int, md5: str, hint: str) -> dict[str, Any]:
    """A pickled dictionary with its keys as text.

    A file of the official size must have the official md5 (else it is damaged); any other is your own data. `hint`
    ends the error of a missing or damaged file.
    """
    try:
        stored = content(path, LARGEST)
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); {hint}") from None
    if len(stored) == size and hashlib.md5(stored, usedforsecurity=False).hexdigest() != md5:
        raise UserError(f"{path} is damaged (its md5 is not {md5}); remove it, then {hint}")
    try:
        # as bytes, because decoding 150 MB of Python 2 strings as text takes ten times as long
        loaded = _ArraysOnly(io.BytesIO(stored), encoding="bytes").load()
        if not isinstance(loaded, dict):
            raise pickle.UnpicklingError("no dictionary")
        return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in loaded.items()}
    except Exception as error:  # a damaged pickle can raise anything
        raise UserError(f"{path} is damaged or another file ({first_line(error)}); remove it, then {hint}") from None
