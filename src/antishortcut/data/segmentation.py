"""Readers of the layouts of images with masks: what lies where, what its pixels mean. Files are listed, few read."""
# N images
# N images, H × W pixels
# B batch, H × W pixels, S side of a square crop

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFile
from torch import Tensor

from antishortcut.data import rng as draws
from antishortcut.data import transforms as vary
from antishortcut.data.image_io import cached, in_threads, opened, read, reason, size_of
from antishortcut.data.readers import TRAIN, Found, held_of, home, images_below, lines, part_of, tests_of
from antishortcut.errors import UserError, first_line
from antishortcut.fileio import text
from antishortcut.types import VOID, AnySet, FileSet, ImageSet, is_dense

ADE = "ADEChallengeData2016"
_ADE_CLASSES = 150
_ADE_HINT = (
    f"unpack http://data.csail.mit.edu/places/ADEchallenge/{ADE}.zip below the data root: "
    "images/{training,validation}/*.jpg and annotations/{training,validation}/*.png"
)

CAMVID = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign_symbol", "fence", "car", "pedestrian", "bicyclist",
)  # fmt: skip
_CAMVID_HINT = (
    "put CamVid with SegNet's eleven classes below the data root as camvid/{train,val,test}/{images,masks}, "
    "or as CamVid/{train,trainannot,val,valannot,test,testannot}"
)

_FOLDER_HINT = "expected train/images/<name>.jpg with train/masks/<name>.png, and the same in val"
_LOSSY = {".jpg", ".jpeg", ".jfif", ".webp"}  # whose pixels are nearly what was saved: no masks


def list_ade20k(root: Path) -> Found:
    """The files of root/ADEChallengeData2016; its validation images are the test set, whose labels are not public."""
    folder = home(root, ADE)
    lookup = table({value: value - 1 for value in range(1, _ADE_CLASSES + 1)} | {0: VOID})
    train, val = (
        paired(folder / "images" / part, folder / "annotations" / part, lookup, _ADE_HINT)
        for part in ("training", "validation")
    )
    names = _ade_names(folder / "objectInfo150.txt")
    return Found(names, labelled(train), {"val": val}, base=folder, image_size=512)


def _ade_names(path: Path) -> tuple[str, ...]:
    """The first of every class's names, or all where two share it, in the column Name; without the file, numbers."""
    if not path.exists():
        return tuple(f"class {value}" for value in range(1, _ADE_CLASSES + 1))
    head, *rows = ([field.strip() for field in line.split("\t")] for line in lines(path, _ADE_HINT))
    if "Name" not in head or len(rows) != _ADE_CLASSES or any(len(row) != len(head) for row in rows):
        raise UserError(f"{path} is not a table of {_ADE_CLASSES} classes with a column Name; {_ADE_HINT}")
    whole = [row[head.index("Name")] for row in rows]
    first = [name.split(",")[0].strip() for name in whole]
    return tuple(short if first.count(short) == 1 else name for short, name in zip(first, whole, strict=True))


def list_camvid(root: Path) -> Found:
    """CamVid in eleven classes, 11 = unlabelled; with SegNet's split: train, val, test."""
    for folder in (root / "camvid", root / "CamVid", root):
        for place in ("{part}/images", "{part}/masks"), ("{part}", "{part}annot"):
            images, masks = ([folder / way.format(part=part) for part in ("train", "val", "test")] for way in place)
            if images[0].is_dir() and masks[0].is_dir():
                lookup = table({value: value for value in range(len(CAMVID))} | {len(CAMVID): VOID})
                train, val, test = (paired(*both, lookup, _CAMVID_HINT) for both in zip(images, masks, strict=True))
                names = _camvid_names(folder)
                return Found(names, labelled(train), {"test": test}, val, folder, usual_crop(train))
    raise UserError(f"no CamVid in {root}; {_CAMVID_HINT}")


def _camvid_names(folder: Path) -> tuple[str, ...]:
    names = names_in(folder) or CAMVID
    if len(names) not in (len(CAMVID), len(CAMVID) + 1):  # the last may be that of the unlabelled
        raise UserError(f"{folder} names {len(names)} classes, but CamVid has {len(CAMVID)}; {_CAMVID_HINT}")
    return names[: len(CAMVID)]


def has_masks(folder: Path) -> bool:
    """Whether a folder of the person's own holds images with masks rather than folders of classes."""
    train = part_of(folder, TRAIN)
    return train is not None and (train / "images").is_dir() and (train / "masks").is_dir()


def list_masked(folder: Path) -> Found:
    """train/images with train/masks, and val and test alike, named as by `list_folder`; 255 in a mask is void.

    Classes are named in classes.txt or classes.json; without one, the training masks are read to count them.
    """
    names, place = names_in(folder), part_of(folder, TRAIN)
    assert place is not None
    train = _pairs(place, None)
    classes = names or tuple(f"class {value}" for value in range(1 + _largest(train.masks)))
    if len(classes) < 2:
        raise UserError(f"{folder} has one class only; {VOID} means void, so write foreground as 1")
    if len(classes) > MOST:
        raise UserError(f"{folder} has {len(classes)} classes, but a mask of bytes holds at most {MOST}")
    lookup = table({value: value for value in range(len(classes))})
    train = FileSet(train.paths, train.label, masks=train.masks, lookup=lookup)
    val, test = (None if held is None else _pairs(held, lookup) for held in held_of(folder))
    train = labelled(train) if names else train
    return Found(classes, train, tests_of(test), val, folder, usual_crop(train))


def _pairs(part: Path, lookup: Tensor | None) -> FileSet:
    return paired(part / "images", part / "masks", lookup, _FOLDER_HINT)


def names_in(folder: Path) -> tuple[str, ...]:
    """Class names, in the order of their values, from classes.txt or classes.json; empty without either."""
    path = folder / "classes.txt"
    if path.exists():
        names = lines(path, "expected the name of a class on every line, in the order of their values")
    elif (path := folder / "classes.json").exists():
        try:
            names = json.loads(text(path))
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else first_line(error)
            raise UserError(f"cannot read {path} ({reason}); expected a list of names") from None
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise UserError(f"{path} is not a list of names of classes")
    else:
        return ()
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise UserError(f"{path} names the class {twice!r} twice")
    return tuple(names)


def paired(images: Path, masks: Path, lookup: Tensor | None, hint: str) -> FileSet:
    """All images below a folder with the masks of the same name below another, sorted by name."""
    pictures, labels = _by_name(images, images_below(images)), _by_name(masks, lossless(masks))
    if not pictures:
        raise UserError(f"no images in {images}; {hint}")
    for name, path in pictures.items():
        if name not in labels:
            raise UserError(f"the image {path} has no mask {masks / name}.png; {hint}")
    for name, path in labels.items():
        if name not in pictures:
            raise UserError(f"the mask {path} has no image of that name below {images}; {hint}")
    zeros = torch.zeros(len(pictures), dtype=torch.int64)  # (N,)
    return FileSet(tuple(pictures.values()), zeros, masks=tuple(labels[name] for name in pictures), lookup=lookup)


def lossless(folder: Path) -> list[Path]:
    """Files that may be masks."""
    return [path for path in images_below(folder) if path.suffix.lower() not in _LOSSY]


def _by_name(folder: Path, paths: Sequence[Path]) -> dict[str, Path]:
    """Files by their name below the folder, without what follows the last dot."""
    result: dict[str, Path] = {}
    for path in paths:
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in result:
            raise UserError(f"{result[name]} and {path} have the same name: which one is meant? Remove the other")
        result[name] = path
    return result


def labelled(files: FileSet) -> FileSet:
    """The same set, or an error if its masks hold fewer than two classes; most sets have two in their first mask."""
    assert files.lookup is not None
    classes: set[int] = set()
    for path in files.masks:
        classes |= set(np.unique(files.lookup.numpy()[read_values(path)]).tolist()) - {VOID}
        if len(classes) > 1:
            return files
    void = " and ".join(str(value) for value in range(VOID + 1) if files.lookup[value] == VOID)
    raise UserError(
        f"the masks in {files.masks[0].parent} show {len(classes)} class and void ({void}): there is nothing to tell "
        "apart; a foreground is written as 1"
    )


def table(meaning: dict[int, int]) -> Tensor:
    """A lookup, (256,) uint8: values with a meaning, 255 void, and no others."""
    lookup = torch.full((VOID + 1,), NO_CLASS, dtype=torch.uint8)
    lookup[VOID] = VOID
    for value, label in meaning.items():
        lookup[value] = label
    return lookup


def _largest(masks: Sequence[Path]) -> int:
    """The largest value in masks, but for 255."""
    outputs = np.zeros((len(masks), VOID + 1), dtype=bool)

    def look(at: int) -> None:
        outputs[at] = np.bincount(read_values(masks[at]).ravel(), minlength=VOID + 1) > 0

    in_threads(look, len(masks))
    values = np.flatnonzero(outputs[:, :VOID].any(axis=0))
    if len(values) == 0:
        raise UserError(f"all pixels of the masks in {masks[0].parent} are 255, which is void")
    return int(values[-1])


def usual_crop(files: FileSet) -> int:
    """Side of training crops when none is given: what fits the first image, in steps of 16, at most 512."""
    return max(16, min(512, min(size_of(files.paths[0])) // 16 * 16))


# --- From mask files to labels ---

NO_CLASS = 254  # in a lookup: what no mask may hold
MOST = NO_CLASS  # classes that fit beside it and VOID
SMALL = 2**16  # pixels of an image up to which a set may move into memory …
ROOM = 2**30  # … if all its images are of one size and need no more bytes than this

_PLAIN = {"1", "L", "P", "I", "I;16", "I;16B", "I;16L"}  # one whole number a pixel; of a palette, its place there
_STRETCHED = {"L;2": 85, "L;4": 17}  # how many times Pillow makes grey of two and four bits lighter


def read_values(path: Path) -> NDArray[np.uint8]:
    """The numbers in a mask file, (H, W)."""
    try:
        with opened(path) as picture:
            if picture.mode not in _PLAIN:
                raise ValueError(f"its pixels are {picture.mode}, not one whole number each")
            factor = _factor(picture)
            values = np.asarray(picture) // factor if factor > 1 else np.asarray(picture)  # (H, W)
        if values.dtype.itemsize > 1 and (values.min() < 0 or values.max() > VOID):
            raise ValueError(f"values from {values.min()} to {values.max()}, but a class is below {MOST}")
        return values.astype(np.uint8)
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise UserError(f"cannot read the mask {path} ({reason(error)}); replace or remove the file") from None


def _factor(picture: ImageFile.ImageFile) -> int:
    """By how much its numbers will be multiplied when they are read: right for a picture's grey, wrong for classes."""
    if not picture.tile:
        return 1
    form = picture.tile[0][3]  # a plain tuple before Pillow 11
    kind, *more = (form,) if isinstance(form, str) else form or ("",)
    if picture.format == "PPM" and more and more[0] not in (2**8 - 1, 2**16 - 1):
        raise ValueError(f"its maximum is {more[0]}, by which values would be scaled; save it with 255 as maximum")
    if picture.format in ("PNG", "TIFF") and picture.mode == "L" and kind not in ("L", *_STRETCHED):
        raise ValueError(f"its grey is stored as {kind}, not as plain numbers; save it with 8 bits")
    return _STRETCHED.get(str(kind), 1)


def read_pair(files: FileSet, at: int) -> tuple[Image.Image, NDArray[np.uint8]]:
    """An image as RGB and its labels (H, W), VOID where it has none."""
    picture, path = read(files.paths[at]), files.masks[at]
    values = read_values(path)  # (H, W)
    if values.shape != picture.size[::-1]:
        (height, width), (wide, high) = values.shape, picture.size
        raise UserError(f"the mask {path} has {width} × {height} pixels, its image {files.paths[at]} {wide} × {high}")
    if files.lookup is None:
        return picture, values
    table = files.lookup.numpy()  # (256,)
    label: NDArray[np.uint8] = table[values]  # (H, W)
    if (label == NO_CLASS).any():
        known, void = np.flatnonzero(table < NO_CLASS), np.flatnonzero(table == VOID)
        raise UserError(
            f"the mask {path} has the value {values[label == NO_CLASS][0]}, which is no class: "
            f"they are {known[0]} to {known[-1]}, and {' or '.join(map(str, void))} where a pixel has none"
        )
    return picture, label


def one_small_size(files: FileSet) -> tuple[int, int] | None:
    """(H, W) of all images if they are alike and small enough to move into memory. Big ones are not looked through."""
    width, height = size_of(files.paths[0])
    if height * width > SMALL or 4 * height * width * len(files) > ROOM:
        return None
    return (height, width) if all(size_of(path) == (width, height) for path in files.paths) else None


def decode_pairs(files: FileSet, size: tuple[int, int], root: Path | None) -> ImageSet:
    """Bring a dense set of one size (H, W) into memory, through the cache that pictures.decode uses."""
    shape = (len(files), 4, *size)  # colours, then the label
    table = b"" if files.lookup is None else files.lookup.numpy().tobytes()
    mark = f"pairs 2 {size} {hashlib.sha256(table).hexdigest()}"

    def make() -> NDArray[np.uint8]:
        out = np.empty(shape, dtype=np.uint8)  # (N, 4, H, W)

        def fill(at: int) -> None:
            picture, label = read_pair(files, at)
            out[at, :3] = np.asarray(picture).transpose(2, 0, 1)
            out[at, 3] = label

        in_threads(fill, len(files))
        return out

    array = cached(root, (*files.paths, *files.masks), mark, shape, make)
    pixels = torch.from_numpy(array)
    return ImageSet(pixels[:, :3], pixels[:, 3], files.cues)


# --- Images with their masks ---

CROPS = "scale-crop-flip"

Bytes = NDArray[np.uint8]


def check(images: AnySet, augment: str) -> None:
    """Refuse an augmentation that does not suit the set."""
    if not is_dense(images):
        if augment == CROPS:
            raise UserError(f"the augmentation {augment} is for images with masks, which these are not; try crop-flip")
    elif augment not in ("none", CROPS, *vary.WHOLE_BATCH):
        raise UserError(f"the augmentation {augment} cannot move masks with their images; use {CROPS}")
    elif isinstance(images, FileSet) and augment in vary.WHOLE_BATCH:
        raise UserError(
            f"the augmentation {augment} leaves images their size, but those on disk may differ in it and then "
            f"share no batch; use {CROPS}"
        )


def wants_labels(what: str, images: AnySet, *, of: Literal["image", "pixel"]) -> None:
    """Refuse what needs one label an image where every pixel has its own, or the other way round."""
    there = "pixel" if is_dense(images) else "image"
    if there != of:
        raise UserError(f"{what} needs one label for every {of}; here there is one for every {there}")


def alone(images: AnySet, augment: str) -> bool:
    """Whether every image is a batch by itself: whole images on disk, of which no two need have the same size."""
    return isinstance(images, FileSet) and is_dense(images) and augment == "none"


def pairs(images: AnySet, size: int, augment: str, seed: int, epoch: int, index: Tensor) -> tuple[Tensor, Tensor]:
    """The images at these places (B, 3, H, W) and their labels (B, H, W), both uint8.

    Crops are S × S; everything else leaves images their own size, so of those on disk there can be one.
    """
    if augment == CROPS:
        image, label = _crops(images, size, seed, epoch, index)
    elif isinstance(images, ImageSet):
        image, label = _whole(images, augment, seed, epoch, index)
    elif len(index) == 0:
        image, label = np.empty((0, 3, size, size), dtype=np.uint8), np.empty((0, size, size), dtype=np.uint8)
    else:
        picture, mask = read_pair(images, int(index))
        image, label = np.array(picture).transpose(2, 0, 1)[None], mask[None]
    return torch.from_numpy(image), torch.from_numpy(label)


def _whole(images: ImageSet, augment: str, seed: int, epoch: int, index: Tensor) -> tuple[Bytes, Bytes]:
    """(B, 3, H, W) and (B, H, W), varied as images without masks are."""
    image, label = (pixels.numpy()[index.numpy()] for pixels in (images.image, images.label))
    move = vary.WHOLE_BATCH.get(augment)
    if move is None:
        return image, label
    both = np.concatenate([image, ~label[:, None]], axis=1)  # (B, 4, H, W), labels as 255 − label: black is VOID
    both = move(torch.from_numpy(both), seed, epoch, index).numpy()
    return both[:, :3], ~both[:, 3]


def _crops(images: AnySet, size: int, seed: int, epoch: int, index: Tensor) -> tuple[Bytes, Bytes]:
    """(B, 3, S, S) and (B, S, S); what a small image leaves of its square is black and VOID."""
    place = index.numpy()  # (B,)
    scale = (5 + draws.below(16, seed, epoch, place, draws.SCALE)) / 10  # (B,) CIRKD's 0.5, 0.6, … 2.0
    row, column, side = (draws.uniform(seed, epoch, place, key) for key in (draws.ROW, draws.COLUMN, draws.FLIP))
    image = np.zeros((len(place), 3, size, size), dtype=np.uint8)
    label = np.full((len(place), size, size), VOID, dtype=np.uint8)
    for at, number in enumerate(place.tolist()):
        picture, mask = _pair(images, number)
        across = _window(picture.width, size, scale[at], column[at])
        down = _window(picture.height, size, scale[at], row[at])
        box = (across.low, down.low, across.high, down.high)
        cut = picture.resize((across.length, down.length), Image.Resampling.BILINEAR, box)
        image[at, :, : down.length, : across.length] = np.asarray(cut).transpose(2, 0, 1)
        label[at, : down.length, : across.length] = mask[down.nearest[:, None], across.nearest]
    mirrored = side < 0.5  # (B,)
    image[mirrored], label[mirrored] = image[mirrored][..., ::-1], label[mirrored][..., ::-1]
    return image, label


def _pair(images: AnySet, at: int) -> tuple[Image.Image, Bytes]:
    if isinstance(images, ImageSet):
        planes = [Image.fromarray(plane) for plane in images.image[at].numpy()]
        return Image.merge("RGB", planes), images.label[at].numpy()
    return read_pair(images, at)


class Window(NamedTuple):
    """What a crop shows of one side of an image that has been scaled."""

    length: int  # pixels of the crop
    low: float  # where it begins and ends, in pixels of the image
    high: float
    nearest: NDArray[np.int64]  # (length,) the image's pixel in which each pixel of the crop has its middle


def _window(side: int, size: int, scale: float, draw: float) -> Window:
    """A crop of `size`, or of all there is, from anywhere on a side of `side` pixels times `scale`."""
    scaled = max(1, round(side * scale))
    length = min(scaled, size)
    first = int(draw * (scaled - length + 1))
    low, high = (place * side / scaled for place in (first, first + length))
    nearest = (2 * np.arange(first, first + length) + 1) * side // (2 * scaled)  # exact, also where a middle is an edge
    return Window(length, low, min(high, side), nearest)
