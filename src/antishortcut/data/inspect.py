"""Inspect a data set before training: what it holds, what is wrong with it, and what training will see of it."""
# N images, n images on the contact sheet, H × W pixels

import hashlib
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageColor

from antishortcut.data import contact_sheet as sheets
from antishortcut.data import readers, segmentation
from antishortcut.data.datasets import IN_MEMORY, OWN, beside, divided, find, held, leaves_classes_out, without_labels
from antishortcut.data.image_io import REPLACE, in_threads, is_remote, picture_at, size_of, stat
from antishortcut.data.loader import Loader
from antishortcut.data.planted import set_name
from antishortcut.data.splits import CONTENT, files_of, limited, take
from antishortcut.data.transforms import WHOLE_BATCH
from antishortcut.errors import UserError, first_names, plural
from antishortcut.fileio import expanded
from antishortcut.types import UNLABELLED, VOID, AnySet, FileSet, ImageSet, is_dense, lacks_labels

SIDES = (32, 48, 64, 96, 128, 160, 192, 224)  # usual input sizes
SAMPLE = 200  # images whose size decides the usual input size
SHOWN = 20  # files and classes that are listed
UNEVEN = 10.0  # ratio of the largest to the smallest class that gets advice
LARGE = 4  # times the training size from which decoding is most of the work
MOST, EPOCHS = 12, 3  # of the contact sheet: images, views of each
TRAINED = ("train", "unlabelled")  # splits that a student learns from
_ORIENTATION = 0x0112  # of EXIF: 1 is upright


@dataclass(frozen=True)
class Finding:
    """A data set before anything is decoded."""

    name: str
    classes: tuple[str, ...]
    image_size: int
    splits: Mapping[str, AnySet]  # train, then val and tests, and training images without labels
    base: Path | None = None  # the folder of folder:PATH and groups:PATH
    held: str = ""  # of a folder: the name of the folder with the test images; empty: they are split from training
    empty: tuple[str, ...] = ()  # class folders without images
    unused: Mapping[str, int] = field(default_factory=dict)  # folder → its images that are in no split
    unknown: Mapping[str, int] = field(default_factory=dict)  # suffix → images of a kind that is not read
    note: str = ""  # on links that lead out of the folder

    @property
    def own(self) -> bool:
        return set_name(self.name).partition(":")[0] in OWN

    @property
    def dense(self) -> bool:
        return is_dense(self.splits["train"])


def open_finding(
    name: str,
    root: Path | None,
    *,
    seed: int = 0,
    image_size: int | None = None,
    options: Mapping[str, float] | None = None,
    unlabelled: str | None = None,
    **limits: Any,
) -> Finding:
    """As `open_sets` would open it, but nothing is decoded. `limits` are those of `datasets.divided`."""
    raw, _ = find(name, root, seed=seed, image_size=image_size, options=options)
    splits = divided(raw, seed=seed, **limits)
    if unlabelled is not None:
        splits["unlabelled"] = beside(raw, unlabelled)
    classes = raw.classes
    if leaves_classes_out(name, options):
        splits, classes = {key: without_labels(images) for key, images in splits.items()}, ()
    named = {key.removeprefix("test "): images for key, images in splits.items()}
    kind, _, path = set_name(name).partition(":")
    note = readers.links_note(files_of(splits.values()), raw.base)
    if kind not in ("folder", "groups"):
        return Finding(name, classes, raw.image_size, named, note=note)
    folder = expanded(path)
    unused, unknown = _beside(folder, [raw.train, *raw.tests.values(), *([] if raw.val is None else [raw.val])])
    held, empty = "", list[str]()
    if kind == "folder":
        _, test = readers.held_of(folder)
        held = "" if test is None else test.name
        if readers.part_of(folder, readers.TRAIN) is None:
            empty = [each for each in readers.folders(folder) if each not in raw.classes]
    return Finding(name, classes, raw.image_size, named, folder, held, tuple(empty), unused, unknown, note)


def _beside(folder: Path, splits: Iterable[AnySet]) -> tuple[Counter[str], Counter[str]]:
    """Images that are in no split, by folder, and images of a kind that is not read, by suffix; hidden ones aside."""
    used = set(files_of(splits))
    unused, unknown = Counter[str](), Counter[str]()
    for where, _, names in readers.walked(folder, refuse=False):
        for path in (Path(where, name) for name in sorted(names)):
            *above, name = path.relative_to(folder).parts
            kind = path.suffix.lower()
            if path in used or any(word.startswith(".") for word in (*above, name)):
                continue
            if kind in readers.SUFFIXES:
                unused["/".join(above[:2]) or "."] += 1
            elif kind in readers.FOREIGN:
                unknown[kind] += 1
    return unused, unknown


def usual_side(finding: Finding) -> int:
    """The default input size of your own images: at least half of them are that large."""
    train = finding.splits["train"]
    if not finding.own or finding.dense or not isinstance(train, FileSet):
        return finding.image_size
    shorter = []
    for path in train.paths[:: max(len(train) // SAMPLE, 1)]:
        with suppress(UserError):
            shorter.append(min(size_of(path)))
    middle = statistics.median(shorter) if shorter else SIDES[-1]
    return max((side for side in SIDES if side <= middle), default=SIDES[0])


def usual_augment(finding: Finding) -> str:
    """The default augmentation: for images with masks, on disk, or small and in memory."""
    if finding.dense:
        return segmentation.CROPS
    large = isinstance(finding.splits["train"], FileSet) and finding.image_size > IN_MEMORY
    return "imagenet" if large else "crop-flip"


def check_augment(finding: Finding, augment: str) -> None:
    """Refuse an augmentation as a run would; the run may have moved images on disk into memory by then."""
    train = finding.splits["train"]
    if isinstance(train, FileSet) and train.masks and augment in WHOLE_BATCH:
        with suppress(UserError):  # an unreadable image is reported later
            if segmentation.one_small_size(train) is not None:
                return
    segmentation.check(train, augment)


@dataclass(frozen=True)
class ImageFacts:
    """One image, and its mask if it has one."""

    size: tuple[int, int] = (0, 0)  # width, height
    digest: bytes = b""  # of its pixels before they are resized
    turned: bool = False  # EXIF asks for a rotation, which training ignores
    pixels: NDArray[np.int64] | None = None  # (256,) how many pixels every class has in its mask
    wrong: str = ""  # why training could not use it


def look(images: AnySet, tell: Callable[[], None] = lambda: None) -> list[ImageFacts]:
    """Facts of all images of a set, decoded in threads; `tell` is called after each."""
    facts = [ImageFacts()] * len(images)

    def fill(at: int) -> None:
        try:
            facts[at] = _facts(images, at)
        except UserError as error:
            facts[at] = ImageFacts(wrong=str(error).removesuffix(REPLACE))
        tell()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about odd files that it still reads
        in_threads(fill, len(images))
    return facts


def _facts(images: AnySet, at: int) -> ImageFacts:
    counts = None
    if is_dense(images):
        picture, label = segmentation.read_pair(images, at)
        counts = np.bincount(label.ravel(), minlength=VOID + 1)
    else:
        picture = picture_at(images, at)
    person = b"%dx%d" % picture.size  # exact copies are equal, whatever their format
    digest = hashlib.blake2b(picture.tobytes(), digest_size=16, person=person).digest()
    return ImageFacts(picture.size, digest, turned(picture), counts)


def turned(picture: Image.Image) -> bool:
    """Whether viewers show it otherwise than it is stored, by its EXIF."""
    try:
        return picture.getexif().get(_ORIENTATION, 1) not in (0, 1)
    except Exception:  # damaged EXIF can raise anything, and training does not read it
        return False


# --- Facts, problems and advice ---

Scans = Mapping[str, Sequence[ImageFacts]]  # by split


def summarise(finding: Finding, scans: Scans) -> dict[str, Any]:
    """All facts, ready for JSON."""
    images = [image for split in scans.values() for image in split]
    counts: dict[str, list[int]] = {}  # images of every class, by split
    if not finding.dense:
        classes = len(finding.classes)
        counts = {
            split: np.bincount(files.label.numpy(), minlength=classes).tolist()
            for split, files in finding.splits.items()
            if not lacks_labels(files)
        }
    in_memory = finding.image_size <= IN_MEMORY and not finding.dense  # then the pixels are hashed
    files = [path for path in files_of(finding.splits.values()) if not isinstance(path, Path) or path.is_file()]
    by_content = sum(stat(path).size for path in files) <= CONTENT and not any(map(is_remote, files))
    facts = {
        "data": finding.name,
        "classes": len(finding.classes),
        "image_size": finding.image_size,
        "splits": [_split_facts(split, len(scans[split]), counts.get(split)) for split in finding.splits],
        "sizes": _sizes([image.size for image in images if not image.wrong], finding.image_size),
        "turned": sum(image.turned for image in images),
        "unreadable": [image.wrong for image in images if image.wrong],
        "duplicates": _duplicates(finding, scans),
        "empty": list(finding.empty),
        "unused": dict(finding.unused),
        "unknown": dict(finding.unknown),
        "held": finding.held,
        "hashed": "content" if in_memory or by_content else "names, sizes, times",  # as DataSplits.hashed
    }
    if finding.dense:
        return facts | {"masks": _masks(finding, scans)}
    if not counts:
        return facts
    rows = zip(finding.classes, *counts.values(), strict=True)
    return facts | {"balance": [dict(zip(("class", *counts), row, strict=True)) for row in rows]}


def _split_facts(split: str, images: int, counts: list[int] | None) -> dict[str, Any]:
    row = {"split": split, "images": images}
    if counts is None:
        return row
    present = [count for count in counts if count] or [0]
    smallest, largest = min(present), max(present)
    sizes = {"smallest": smallest, "largest": largest, "ratio": round(largest / max(smallest, 1), 2)}
    return row | {"classes": sum(map(bool, counts))} | sizes


def _sizes(sizes: Sequence[tuple[int, int]], image_size: int) -> dict[str, Any]:
    """Width and height of the smallest, the median and the largest; how many would be enlarged."""
    if not sizes:
        return {}
    by_area = sorted(sizes, key=lambda size: (size[0] * size[1], size))
    return {
        "smallest": list(by_area[0]),
        "median": [round(statistics.median(side)) for side in zip(*sizes, strict=True)],
        "largest": list(by_area[-1]),
        "shorter_side": round(statistics.median(min(size) for size in sizes)),
        "smaller": sum(min(size) < image_size for size in sizes),
    }


def _duplicates(finding: Finding, scans: Scans) -> dict[str, Any]:
    """Exact copies: training images in other splits (how many), images in two splits, images in two classes."""
    places: dict[bytes, list[tuple[str, int]]] = {}
    for split, facts in scans.items():
        for at, image in enumerate(facts):
            if not image.wrong:
                places.setdefault(image.digest, []).append((split, at))
    leaked = Counter(dict.fromkeys([split for split in finding.splits if split not in TRAINED], 0))
    across, two_classes = [], []
    for copies in places.values():
        splits = [split for split, _ in copies]
        if any(split in TRAINED for split in splits):
            leaked.update(split for split in splits if split not in TRAINED)
        names = [_name(finding, split, at) for split, at in copies] if len(copies) > 1 else []
        if len(set(splits)) > 1:
            across.append(names)
        labels = set() if finding.dense else {int(finding.splits[split].label[at]) for split, at in copies}
        if len(labels - {UNLABELLED}) > 1:
            two_classes.append(names)
    return {"leaked": dict(leaked), "across": across, "two_classes": two_classes}


def _name(finding: Finding, split: str, at: int) -> str:
    """A file's path in the folder, or the number of an image in memory."""
    images = finding.splits[split]
    if isinstance(images, ImageSet):
        return f"{split} {at}"
    path = images.paths[at]
    if isinstance(path, Path) and finding.base is not None and finding.base in path.parents:
        return str(path.relative_to(finding.base))
    return str(path)


def _masks(finding: Finding, scans: Scans) -> dict[str, Any]:
    """Share of void, and of every class among the labelled pixels, with the number of images that show it."""
    frequency: list[dict[str, Any]] = [{"class": name} for name in finding.classes]
    void = {}
    for split, facts in scans.items():
        rows = [image.pixels for image in facts if image.pixels is not None]
        pixels = np.vstack([np.zeros((0, VOID + 1), np.int64), *rows])  # (N, 256)
        total = pixels.sum(axis=0)
        labelled = total[:VOID].sum()
        void[split] = round(float(total[VOID] / max(total.sum(), 1)), 5)
        for number, row in enumerate(frequency):
            row[split] = round(float(total[number] / max(labelled, 1)), 5)
            row[f"{split} images"] = int(np.count_nonzero(pixels[:, number]))
    return {"void": void, "frequency": frequency}


def problems(facts: dict[str, Any]) -> list[str]:
    """Why training would stop."""
    lines = []
    if count := len(facts["unreadable"]):
        lines.append(f"{plural(count, 'file')} cannot be used; replace or remove {'it' if count == 1 else 'them'}")
    if bare := [row["class"] for row in facts.get("balance", ()) if not row["train"]]:
        lines.append(f"there is no image of {first_names(bare)} to train on; add some, or remove the folder")
    return lines


def advice(finding: Finding, facts: dict[str, Any], val_fraction: float) -> list[str]:
    """What to consider before training."""
    lines = [*_advice_on_images(finding, facts), *_advice_on_classes(facts)]
    if finding.name.startswith("folder:") and not finding.held:
        lines.append(
            "there is no val/ or test/: a tenth of the images is held out and scored; to choose them, make a val/"
        )
    if finding.own and not val_fraction and len(finding.splits) == 2:
        lines.append("to choose settings without the test images, hold some out: --set data.val_fraction=0.1")
    return lines


def _advice_on_images(finding: Finding, facts: dict[str, Any]) -> Iterator[str]:
    images = {row["split"]: row["images"] for row in facts["splits"]}
    remedy = "remove them there" if finding.own else "as the set was released"
    for split, count in facts["duplicates"]["leaked"].items():
        if count:
            share = f"{count / images[split]:.1%}"
            yield f"{share} of {split} are training images too, so scores there are too good: {remedy}"
    if count := len(facts["duplicates"]["two_classes"]):
        yield f"in two classes: {plural(count, 'image')}; one of the two labels is wrong"
    size, side = facts["image_size"], facts["sizes"].get("shorter_side", facts["image_size"])
    on_disk = isinstance(finding.splits["train"], FileSet)
    if on_disk and side < size:
        option = f"--set data.image_size={max((known for known in SIDES if known <= side), default=max(side, 8))}"
        if finding.dense:
            yield f"most images are smaller than the crops of {size}: {option} leaves less black"
        else:
            yield f"most images are smaller than {size} and would be enlarged: {option} is faster and shows as much"
    elif on_disk and side >= LARGE * size:
        yield (
            f"images are much larger than {size}, so reading them is most of the work: copies with a shorter side of "
            f"{2 * size} train faster and look the same"
        )
    if count := facts["turned"]:
        yield (
            f"turned only when shown (EXIF): {plural(count, 'image')}; training does not turn them, "
            "mogrify -auto-orient does for good"
        )
    if unknown := facts["unknown"]:
        count = sum(unknown.values())
        yield f"of a kind that is not read ({first_names(list(unknown))}): {plural(count, 'file')}; save as PNG or JPEG"
    if unused := facts["unused"]:
        yield f"in no split: {plural(sum(unused.values()), 'image')} in {first_names(list(unused))}"
    if finding.note:
        yield finding.note


def _advice_on_classes(facts: dict[str, Any]) -> Iterator[str]:
    for name in facts["empty"]:
        yield f"{name} has no images: fill or remove the folder"
    for split in [row["split"] for row in facts["splits"] if "classes" in row]:
        if absent := [row["class"] for row in facts.get("balance", ()) if row["train"] and not row[split]]:
            yield f"{split} has no images of {first_names(absent)}: those classes are trained but not scored"
    ratio = facts["splits"][0].get("ratio", 1)
    if ratio >= UNEVEN:
        yield f"the largest class has {ratio:g} times the images of the smallest: check the scores of every class"
    if absent := [row["class"] for row in facts.get("masks", {}).get("frequency", ()) if not row["train images"]]:
        yield f"no training mask has {first_names(absent)}"


# --- Contact sheet ---


def contact_sheet(
    finding: Finding, facts: Sequence[ImageFacts], augment: str, seed: int = 0, colours: Sequence[str] = ()
) -> Image.Image:
    """Training images that can be read, spread over the classes; masks in these colours, void black."""
    good = [at for at, image in enumerate(facts) if not image.wrong]
    if not good:
        raise UserError("no training image can be read, so there is nothing to draw")
    chosen = limited(take(finding.splits["train"], torch.tensor(good)), MOST, seed)
    paint = np.zeros((VOID + 1, 3), dtype=np.uint8)
    for number, colour in enumerate(colours):
        paint[number] = ImageColor.getrgb(colour)[:3]
    side = finding.image_size
    views = _views(held(chosen, side, None), side, augment, seed, paint)
    rows, present = [], set[int]()
    for at in range(len(chosen)):
        if finding.dense:
            picture, label = segmentation.read_pair(chosen, at)
            name = chosen.paths[at].name if isinstance(chosen, FileSet) else f"image {at}"
            row = [picture, Image.fromarray(paint[label]), *views[at]]
            present |= set(np.unique(label).tolist())
        else:
            number = int(chosen.label[at])
            picture, name = picture_at(chosen, at), "no label" if number == UNLABELLED else finding.classes[number]
            row = [picture, *views[at]]
        rows.append((f"{name}, {picture.width} x {picture.height}", row))
    mask = ["its mask"] if finding.dense else []
    columns = ["as it is", *mask, *(f"epoch {number + 1}" for number in range(EPOCHS))]
    legend = {finding.classes[at]: colours[at] for at in sorted(present) if at < len(colours)}
    title = f"{finding.name}: training images, and what networks see after {augment}, {side} x {side}"
    return sheets.contact_sheet(columns, rows, title=title, across=2, legend=legend)


def _views(images: AnySet, side: int, augment: str, seed: int, paint: NDArray[np.uint8]) -> list[list[Image.Image]]:
    """Every image in every epoch as the training loader makes it, its mask laid over it."""
    loader = Loader(images, batch=len(images), seed=seed, image_size=side, augment=augment, shuffle=False, workers=0)
    views: list[list[Image.Image]] = [[] for _ in range(len(images))]
    for batch in (batch for epoch in range(EPOCHS) for batch in loader.epoch(epoch)):
        pixels = (batch.image * 255).round().byte().permute(0, 2, 3, 1).numpy()  # (n, H, W, 3)
        if is_dense(images):
            pixels = ((pixels.astype(np.uint16) + paint[batch.label.byte().numpy()]) // 2).astype(np.uint8)
        for at, view in zip(batch.index.tolist(), np.ascontiguousarray(pixels), strict=True):
            views[at].append(Image.fromarray(view))
    return views
