"""Images with masks: readers of their layouts, mask files to labels, and batches of images with their labels."""
# N images, B batch, H × W pixels, S side of a square crop

import hashlib
import json
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFile
from torch import Tensor

from antishortcut.data import rng
from antishortcut.data.image_io import Bytes, filled, in_threads, opened, picture_at, size_of
from antishortcut.data.readers import TRAIN, RawDataset, held_of, home, images_below, lines, part_of, read_text
from antishortcut.data.transforms import WHOLE_BATCH
from antishortcut.errors import UserError, first_line
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
_LOSSY = {".jpg", ".jpeg", ".jfif", ".webp"}  # formats that change pixels: no masks
NO_CLASS = 254  # in a lookup: a value that no mask may hold
MOST = NO_CLASS  # classes that fit beside it and VOID
SMALL = 2**16  # a set moves into memory if its images have at most this many pixels …
ROOM = 2**30  # … all have one size, and need no more bytes than this
CROPS = "scale-crop-flip"

_PLAIN = {"1", "L", "P", "I", "I;16", "I;16B", "I;16L"}  # modes with one whole number per pixel
_STRETCHED = {"L;2": 85, "L;4": 17}  # factor by which Pillow scales grey of two and four bits


def list_ade20k(root: Path) -> RawDataset:
    """The files of root/ADEChallengeData2016. Its validation images are the test set: those labels are public."""
    folder = home(root, ADE)
    lookup = table({value: value - 1 for value in range(1, _ADE_CLASSES + 1)} | {0: VOID})
    places = ((folder / "images" / split, folder / "annotations" / split) for split in ("training", "validation"))
    train, val = (paired(*place, lookup, _ADE_HINT) for place in places)
    names = _ade_names(folder / "objectInfo150.txt")
    return RawDataset(names, labelled(train), {"val": val}, base=folder, image_size=512)


def _ade_names(path: Path) -> tuple[str, ...]:
    """The first name of every class, or all where two classes share it; without the file, numbers."""
    if not path.exists():
        return tuple(f"class {value}" for value in range(1, _ADE_CLASSES + 1))
    head, *rows = ([field.strip() for field in line.split("\t")] for line in lines(path, _ADE_HINT))
    if "Name" not in head or len(rows) != _ADE_CLASSES or any(len(row) != len(head) for row in rows):
        raise UserError(f"{path} is not a table of {_ADE_CLASSES} classes with a column Name; {_ADE_HINT}")
    whole = [row[head.index("Name")] for row in rows]
    first = [name.split(",")[0].strip() for name in whole]
    return tuple(short if first.count(short) == 1 else name for short, name in zip(first, whole, strict=True))


def list_camvid(root: Path) -> RawDataset:
    """CamVid in eleven classes, 11 = unlabelled; with SegNet's split: train, val, test."""
    for folder in (root / "camvid", root / "CamVid", root):
        for layout in (("{}/images", "{}/masks"), ("{}", "{}annot")):
            places = [[folder / name.format(split) for name in layout] for split in ("train", "val", "test")]
            if not all(place.is_dir() for place in places[0]):
                continue
            names = names_in(folder) or CAMVID
            if len(names) not in (len(CAMVID), len(CAMVID) + 1):  # the last may be "unlabelled"
                raise UserError(f"{folder} names {len(names)} classes, but CamVid has {len(CAMVID)}; {_CAMVID_HINT}")
            lookup = table({value: value for value in range(len(CAMVID))} | {len(CAMVID): VOID})
            train, val, test = (paired(images, masks, lookup, _CAMVID_HINT) for images, masks in places)
            classes = names[: len(CAMVID)]
            return RawDataset(classes, labelled(train), {"test": test}, val, folder, usual_crop(train))
    raise UserError(f"no CamVid in {root}; {_CAMVID_HINT}")


def list_masked(folder: Path) -> RawDataset:
    """train/images with train/masks, and val and test alike, named as in `list_folder`; 255 in a mask is void.

    Classes are named in classes.txt or classes.json; without one, the training masks are read to count them.
    """
    names, place = names_in(folder), part_of(folder, TRAIN)
    assert place is not None
    train = paired(place / "images", place / "masks", None, _FOLDER_HINT)
    classes = names or tuple(f"class {value}" for value in range(1 + _largest(train.masks)))
    if len(classes) < 2:
        raise UserError(f"{folder} has one class only; {VOID} means void, so write foreground as 1")
    if len(classes) > MOST:
        raise UserError(f"{folder} has {len(classes)} classes, but a mask of bytes holds at most {MOST}")
    lookup = table({value: value for value in range(len(classes))})
    train = replace(train, lookup=lookup)
    val, test = (
        None if held is None else paired(held / "images", held / "masks", lookup, _FOLDER_HINT)
        for held in held_of(folder)
    )
    train = labelled(train) if names else train
    return RawDataset(classes, train, {} if test is None else {"test": test}, val, folder, usual_crop(train))


def names_in(folder: Path) -> tuple[str, ...]:
    """Class names, in the order of their values, from classes.txt or classes.json; empty without either."""
    path = folder / "classes.txt"
    if path.exists():
        names = lines(path, "expected the name of a class on every line, in the order of their values")
    elif (path := folder / "classes.json").exists():
        try:
            names = json.loads(read_text(path, "expected a list of names"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is not JSON ({first_line(error)}); expected a list of names") from None
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise UserError(f"{path} is not a list of names of classes")
    else:
        return ()
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise UserError(f"{path} names the class {twice!r} twice")
    return tuple(names)


def paired(images: Path, masks: Path, lookup: Tensor | None, hint: str) -> FileSet:
    """All images below a folder with the masks of the same name below another, sorted by name."""
    pictures, labels = _by_name(images), _by_name(masks, exclude=_LOSSY)
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


def _by_name(folder: Path, exclude: Set[str] = frozenset()) -> dict[str, Path]:
    """Image files by their name below the folder, without the suffix; some suffixes may be left out."""
    by_name: dict[str, Path] = {}
    for path in images_below(folder):
        if path.suffix.lower() in exclude:
            continue
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in by_name:
            raise UserError(f"{by_name[name]} and {path} have the same name: which one is meant? Remove the other")
        by_name[name] = path
    return by_name


def labelled(files: FileSet) -> FileSet:
    """The same set, or an error if its masks hold fewer than two classes; most sets have two in their first mask."""
    assert files.lookup is not None
    classes: set[int] = set()
    for path in files.masks:
        classes |= set(np.unique(files.lookup.numpy()[read_values(path)]).tolist()) - {VOID}
        if len(classes) > 1:
            return files
    place, shown = files.masks[0].parent, f"{len(classes)} class besides void"
    raise UserError(f"the masks in {place} show {shown}, two are needed; write foreground as 1, not {VOID}")


def table(meaning: dict[int, int]) -> Tensor:
    """A lookup, (256,) uint8: the class of every value; 255 is void, all others NO_CLASS."""
    lookup = torch.full((VOID + 1,), NO_CLASS, dtype=torch.uint8)
    for value, label in ({VOID: VOID} | meaning).items():
        lookup[value] = label
    return lookup


def _largest(masks: Sequence[Path]) -> int:
    """The largest value in the masks except 255."""
    largest = [-1] * len(masks)

    def look(at: int) -> None:
        counts = np.bincount(read_values(masks[at]).ravel(), minlength=VOID)[:VOID]
        largest[at] = int(np.flatnonzero(counts).max(initial=-1))

    in_threads(look, len(masks))
    if max(largest) < 0:
        raise UserError(f"all pixels of the masks in {masks[0].parent} are 255, which is void")
    return max(largest)


def usual_crop(files: FileSet) -> int:
    """The default side of training crops: what fits the first image, in steps of 16, at most 512."""
    return max(16, min(512, min(size_of(files.paths[0])) // 16 * 16))


def read_values(path: Path) -> Bytes:
    """The numbers in a mask file, (H, W)."""
    with opened(path, "mask") as picture:
        factor = _factor(picture)
        picture.load()  # before its mode is read, which a decoder may still change
        if picture.mode not in _PLAIN:
            raise ValueError(f"its pixels are {picture.mode}, not one whole number each")
        values = np.asarray(picture) // factor if factor > 1 else np.asarray(picture)  # (H, W)
        if values.dtype.itemsize > 1 and (values.min() < 0 or values.max() > VOID):
            raise ValueError(f"values from {values.min()} to {values.max()}, but a class is below {MOST}")
        return values.astype(np.uint8)


def _factor(picture: ImageFile.ImageFile) -> int:
    """The factor by which Pillow will multiply the numbers: right for grey values, wrong for classes."""
    if not picture.tile:
        return 1
    form = picture.tile[0][3]  # a plain tuple before Pillow 11
    kind, *more = (form,) if isinstance(form, str) else form or ("",)
    if picture.format == "PPM" and more and more[0] not in (2**8 - 1, 2**16 - 1):
        raise ValueError(f"its maximum is {more[0]}, by which values would be scaled; save it with 255 as maximum")
    if picture.format in ("PNG", "TIFF") and picture.mode == "L" and kind not in ("L", *_STRETCHED):
        raise ValueError(f"its grey is stored as {kind}, not as plain numbers; save it with 8 bits")
    return _STRETCHED.get(str(kind), 1)


def read_pair(images: AnySet, at: int) -> tuple[Image.Image, Bytes]:
    """An image as RGB and its labels (H, W), VOID where it has none."""
    picture = picture_at(images, at)
    if isinstance(images, ImageSet):
        return picture, images.label[at].numpy()
    path = images.masks[at]
    values = read_values(path)  # (H, W)
    if values.shape != picture.size[::-1]:
        (height, width), (wide, high) = values.shape, picture.size
        raise UserError(f"the mask {path} has {width} × {height} pixels, its image {images.paths[at]} {wide} × {high}")
    if images.lookup is None:
        return picture, values
    lookup = images.lookup.numpy()  # (256,)
    label: Bytes = lookup[values]  # (H, W)
    if (label == NO_CLASS).any():
        known, void = np.flatnonzero(lookup < NO_CLASS), np.flatnonzero(lookup == VOID)
        raise UserError(
            f"the mask {path} has the value {values[label == NO_CLASS][0]}, which is no class: "
            f"they are {known[0]} to {known[-1]}, and {' or '.join(map(str, void))} where a pixel has none"
        )
    return picture, label


def one_small_size(files: FileSet) -> tuple[int, int] | None:
    """(H, W) of all images if they are alike and small enough to move into memory."""
    width, height = size_of(files.paths[0])
    if height * width > SMALL or 4 * height * width * len(files) > ROOM:
        return None
    return (height, width) if all(size_of(path) == (width, height) for path in files.paths) else None


def decode_pairs(files: FileSet, size: tuple[int, int], root: Path | None) -> ImageSet:
    """Decode a dense set of one size (H, W) into memory, through the cache of `image_io.filled`."""

    def fill(out: Bytes, at: int) -> None:  # (4, H, W): colours, then the label
        picture, label = read_pair(files, at)
        out[:3] = np.asarray(picture).transpose(2, 0, 1)
        out[3] = label

    lookup = b"" if files.lookup is None else files.lookup.numpy().tobytes()
    mark = f"pairs 2 {size} {hashlib.sha256(lookup).hexdigest()}"
    pixels = torch.from_numpy(filled(root, (*files.paths, *files.masks), mark, (len(files), 4, *size), fill))
    return ImageSet(pixels[:, :3], pixels[:, 3], files.cues)


# --- Batches ---


def check(images: AnySet, augment: str) -> None:
    """Refuse an augmentation that does not suit the set."""
    if not is_dense(images):
        if augment == CROPS:
            raise UserError(f"the augmentation {augment} is for images with masks, which these are not; try crop-flip")
    elif augment not in ("none", CROPS, *WHOLE_BATCH):
        raise UserError(f"the augmentation {augment} cannot move masks with their images; use {CROPS}")
    elif isinstance(images, FileSet) and augment in WHOLE_BATCH:
        raise UserError(f"the augmentation {augment} keeps sizes, but those on disk may differ; use {CROPS}")


def wants_labels(what: str, images: AnySet, *, of: Literal["image", "pixel"]) -> None:
    """Refuse a dense set where one label per image is needed, or the other way round."""
    actual = "pixel" if is_dense(images) else "image"
    if actual != of:
        raise UserError(f"{what} needs one label for every {of}; here there is one for every {actual}")


def pairs(images: AnySet, size: int, augment: str, seed: int, epoch: int, index: Tensor) -> tuple[Tensor, Tensor]:
    """The images at these places (B, 3, H, W) and their labels (B, H, W), both uint8.

    Crops are S × S; all other augmentations keep the size of images, so on disk B is at most 1.
    """
    if augment == CROPS:
        image, label = _crops(images, size, seed, epoch, index)
    elif isinstance(images, ImageSet):
        image, label = (pixels.numpy()[index.numpy()] for pixels in (images.image, images.label))
        if (move := WHOLE_BATCH.get(augment)) is not None:
            both = np.concatenate([image, ~label[:, None]], axis=1)  # (B, 4, H, W), 255 − label: padding is VOID
            both = move(torch.from_numpy(both), seed, epoch, index).numpy()
            image, label = both[:, :3], ~both[:, 3]
    elif len(index) == 0:
        image, label = np.empty((0, 3, size, size), dtype=np.uint8), np.empty((0, size, size), dtype=np.uint8)
    else:
        picture, mask = read_pair(images, int(index))
        image, label = np.array(picture).transpose(2, 0, 1)[None], mask[None]
    return torch.from_numpy(image), torch.from_numpy(label)


def _crops(images: AnySet, size: int, seed: int, epoch: int, index: Tensor) -> tuple[Bytes, Bytes]:
    """(B, 3, S, S) and (B, S, S); the rest of a square that a small image does not fill is black and VOID."""
    place = index.numpy()  # (B,)
    scale = (5 + rng.below(16, seed, epoch, place, rng.SCALE)) / 10  # (B,) CIRKD's 0.5, 0.6, … 2.0
    row, column, side = (rng.uniform(seed, epoch, place, key) for key in (rng.ROW, rng.COLUMN, rng.FLIP))
    image = np.zeros((len(place), 3, size, size), dtype=np.uint8)
    label = np.full((len(place), size, size), VOID, dtype=np.uint8)
    for at, number in enumerate(place.tolist()):
        picture, mask = read_pair(images, number)
        left, right, x = _window(picture.width, size, scale[at], column[at])
        top, bottom, y = _window(picture.height, size, scale[at], row[at])
        cut = picture.resize((len(x), len(y)), Image.Resampling.BILINEAR, (left, top, right, bottom))
        image[at, :, : len(y), : len(x)] = np.asarray(cut).transpose(2, 0, 1)
        label[at, : len(y), : len(x)] = mask[y[:, None], x]
    mirrored = side < 0.5  # (B,)
    image[mirrored], label[mirrored] = image[mirrored][..., ::-1], label[mirrored][..., ::-1]
    return image, label


def _window(side: int, size: int, scale: float, draw: float) -> tuple[float, float, NDArray[np.int64]]:
    """Where a random crop of at most `size` begins and ends on a side of `side` pixels that is scaled.

    In pixels of the image; and the image's nearest pixel for each of the crop.
    """
    scaled = max(1, round(side * scale))
    length = min(scaled, size)
    first = int(draw * (scaled - length + 1))
    low, high = (place * side / scaled for place in (first, first + length))
    nearest = (2 * np.arange(first, first + length) + 1) * side // (2 * scaled)  # exact, also where a middle is an edge
    return low, min(high, side), nearest
