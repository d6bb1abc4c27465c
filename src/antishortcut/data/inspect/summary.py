"""Facts about a data set from its inspected images, problems that would stop training, and advice. Reads nothing."""
# N images

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from antishortcut.data.inspect.scan import HELD, SIDES, Counts, Finding, ImageFacts
from antishortcut.data.readers import FOREIGN
from antishortcut.data.segmentation import NO_CLASS
from antishortcut.types import VOID, FileSet, ImageSet

SHOWN = 20  # files and classes that are listed
UNEVEN = 10.0  # ratio of the largest to the smallest class that gets advice
LARGE = 4  # times the training size from which decoding is most of the work

Looked = Mapping[str, Sequence[ImageFacts]]  # by part

KINDS = {  # how pixels are stored
    "RGB": "colour", "YCbCr": "colour", "L": "grey", "1": "black and white", "P": "palette", "F": "grey of floats",
    "RGBA": "colour with alpha", "RGBX": "colour with alpha", "LA": "grey with alpha", "PA": "palette with alpha",
}  # fmt: skip


def summarise(finding: Finding, looked: Looked) -> dict[str, Any]:
    """All facts, ready for JSON."""
    images = [image for part in looked.values() for image in part]
    counts: dict[str, list[int]] = {}  # images of every class, by part
    if not finding.dense:
        classes = len(finding.classes)
        counts = {
            part: np.bincount(files.label.numpy(), minlength=classes).tolist() for part, files in finding.parts.items()
        }
    unreadable = [
        {"file": _name(finding, part, at, mask), "why": why}
        for part, facts in looked.items()
        for at, image in enumerate(facts)
        for mask, why in ((False, image.wrong), (True, image.mask_wrong))
        if why
    ]
    facts = {
        "data": finding.name,
        "classes": len(finding.classes),
        "image_size": finding.image_size,
        "parts": [_part(part, len(looked[part]), counts) for part in finding.parts],
        "sizes": _sizes([image.size for image in images if not image.wrong], finding.image_size),
        "modes": dict(Counter(_mode(image.mode) for image in images if image.mode).most_common()),
        "turned": sum(image.turned for image in images),
        "unreadable": unreadable,
        "duplicates": _duplicates(finding, looked),
        "empty": list(finding.empty),
        "unpaired": list(finding.unpaired),
        "not_images": dict(Counter(path.suffix.lower() or path.name for path in finding.not_images).most_common()),
        "unused": dict(finding.unused),
        "missing": _missing(finding, counts),
        "held": finding.held,
        "refusal": finding.refusal,
    }
    if finding.dense:
        return facts | {"masks": _masks(finding, looked)}
    rows = zip(finding.classes, *counts.values(), strict=True)
    return facts | {"balance": [dict(zip(("class", *counts), row, strict=True)) for row in rows]}


def _name(finding: Finding, part: str, at: int, mask: bool = False) -> str:
    """A file's path in the folder, or the number of an image in memory."""
    images = finding.parts[part]
    if isinstance(images, ImageSet):
        return f"{part} {at}"
    path = images.masks[at] if mask else images.paths[at]
    return str(path.relative_to(finding.base) if finding.base is not None else path)


def _part(part: str, images: int, counts: Mapping[str, list[int]]) -> dict[str, Any]:
    row = {"part": part, "images": images}
    if not counts:
        return row
    present = [count for count in counts[part] if count] or [0]
    smallest, largest = min(present), max(present)
    sizes = {"smallest": smallest, "largest": largest, "ratio": round(largest / max(smallest, 1), 2)}
    return row | {"classes": sum(map(bool, counts[part]))} | sizes


def _missing(finding: Finding, counts: Mapping[str, list[int]]) -> dict[str, list[str]]:
    """Classes of the training images that another part has none of."""
    trained = counts.get("train", [])
    missing = {
        part: [name for name, train, here in zip(finding.classes, trained, row, strict=True) if train and not here]
        for part, row in counts.items()
    }
    return {part: names for part, names in missing.items() if names}


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


def _mode(mode: str) -> str:
    stored, _, transparent = mode.partition(", ")
    word = "grey of 16 bits" if stored.startswith("I") else KINDS.get(stored, stored)
    return f"{word} with alpha" if transparent and "alpha" not in word else word


def _duplicates(finding: Finding, looked: Looked) -> dict[str, Any]:
    """Exact copies: within a part (surplus images), training images in other parts, across parts, in two classes."""
    places: dict[bytes, list[tuple[str, int]]] = {}
    for part, facts in looked.items():
        for at, image in enumerate(facts):
            if not image.wrong:
                places.setdefault(image.digest, []).append((part, at))
    train, *held_out = finding.parts
    within, leaked = dict.fromkeys(looked, 0), dict.fromkeys(held_out, 0)
    across, two_classes = [], []
    for copies in places.values():
        times = Counter(part for part, _ in copies)
        for part, count in times.items():
            within[part] += count - 1
            if part != train and train in times:
                leaked[part] += count
        names = [_name(finding, part, at) for part, at in copies] if len(copies) > 1 else []
        if len(times) > 1:
            across.append(names)
        if not finding.dense and len({int(finding.parts[part].label[at]) for part, at in copies}) > 1:
            two_classes.append(names)
    return {"within": within, "leaked": leaked, "across": across, "two_classes": two_classes}


def _masks(finding: Finding, looked: Looked) -> dict[str, Any]:
    """Share of void, frequency of every class, and masks with values that are neither."""
    strange: list[dict[str, Any]] = []
    values: dict[str, Counts] = {}  # (N, 256) pixels of every value, an image per row
    meaning: dict[str, Counts] = {}  # (256,) the class of every value, VOID, or NO_CLASS
    for part, facts in looked.items():
        images = finding.parts[part]
        lookup = images.lookup if isinstance(images, FileSet) else None
        label = np.arange(VOID + 1) if lookup is None else lookup.numpy().astype(np.int64)
        unknown = (label >= (len(finding.classes) or NO_CLASS)) & (label != VOID)
        meaning[part] = np.where(unknown, NO_CLASS, label)
        rows = {at: image.values for at, image in enumerate(facts) if image.values is not None}
        values[part] = np.vstack([np.zeros((0, VOID + 1), np.int64), *rows.values()])
        for at, odd in zip(rows, (values[part] > 0) & (meaning[part] == NO_CLASS), strict=True):
            if odd.any():
                strange.append({"file": _name(finding, part, at, mask=True), "values": np.flatnonzero(odd).tolist()})
    names = finding.classes
    if not names:  # no classes.txt: up to the largest value
        used = [meaning[part][values[part].any(axis=0) & (meaning[part] < NO_CLASS)] for part in values]
        names = tuple(f"class {at}" for at in range(1 + max(int(labels.max(initial=-1)) for labels in used)))
    frequency = []
    for number, name in enumerate(names):
        row: dict[str, Any] = {"class": name}
        for part, pixels in values.items():
            here = pixels[:, meaning[part] == number]  # (N, values of this class)
            row[part] = _share(here, pixels[:, meaning[part] < NO_CLASS])  # of the labelled pixels
            row[f"{part} images"] = int(here.any(axis=1).sum())
        frequency.append(row)
    void = {part: _share(pixels[:, meaning[part] == VOID], pixels) for part, pixels in values.items()}
    return {"void": void, "strange": strange, "frequency": frequency}


def _share(some: Counts, whole: Counts) -> float:
    return round(float(some.sum()) / max(float(whole.sum()), 1.0), 5)


def problems(facts: dict[str, Any]) -> list[str]:
    """Why training would stop."""
    lines = [facts["refusal"]] if facts["refusal"] else []
    if count := len(facts["unreadable"]):
        lines.append(f"{_many(count, 'file')} cannot be read; replace or remove {'it' if count == 1 else 'them'}")
    if bare := [row["class"] for row in facts.get("balance", ()) if not row["train"]]:
        lines.append(f"there is no image of {_some(bare)} to train on; add some, or remove the folder")
    if strange := facts.get("masks", {}).get("strange"):
        have = "has" if len(strange) == 1 else "have"
        first = strange[0]["file"]
        lines.append(f"{_many(len(strange), 'mask')} {have} values that are no class, {first} first; 255 is void")
    return lines


def advice(finding: Finding, facts: dict[str, Any], val_fraction: float) -> list[str]:
    """What to consider before training."""
    lines = [*_advice_on_copies(finding, facts), *_advice_on_classes(finding, facts)]
    lines += [*_advice_on_pixels(finding, facts), *_advice_on_files(facts)]
    if finding.base is not None and not val_fraction and len(finding.parts) == 2:
        lines.append("to choose settings without the test images, hold some out: --set data.val_fraction=0.1")
    return lines


def _advice_on_copies(finding: Finding, facts: dict[str, Any]) -> Iterator[str]:
    copies, images = facts["duplicates"], {row["part"]: row["images"] for row in facts["parts"]}
    remedy = "remove them there" if finding.base is not None else "as the set was released"
    for part, count in copies["leaked"].items():
        if count:
            share = f"{count / images[part]:.1%}"
            yield f"{share} of {part} are training images too, so scores there are too good: {remedy}"
    if count := len(copies["two_classes"]):
        yield f"{_many(count, 'image')} {_are(count)} there under two classes, of which one is wrong"
    for part, count in copies["within"].items():
        if count:
            yield f"{part} has {_many(count, 'image')} more than once: harmless if few"


def _advice_on_classes(finding: Finding, facts: dict[str, Any]) -> Iterator[str]:
    for name in facts["empty"]:
        yield f"{name} has no images: fill or remove the folder"
    for part, names in facts["missing"].items():
        yield f"{part} has no images of {_some(names)}: those classes are trained but not scored"
    ratio = facts["parts"][0].get("ratio", 1)
    if ratio >= UNEVEN:
        yield f"the largest class has {ratio:g} times the images of the smallest: check the scores of every class"
    if absent := [row["class"] for row in facts.get("masks", {}).get("frequency", ()) if not row["train images"]]:
        yield f"no training mask has {_some(absent)}"
    if finding.name.startswith("folder:") and not finding.held:
        yield "there is no val/: a tenth of the images is held out and scored; put images there to choose your own"
    if unused := {name: count for name, count in facts["unused"].items() if name.split("/")[0] in HELD}:
        count = _many(sum(unused.values()), "image")
        yield f"{finding.held}/ is scored, so {count} in {_some(list(unused))} would not be used"


def _advice_on_pixels(finding: Finding, facts: dict[str, Any]) -> Iterator[str]:
    modes, size = facts["modes"], facts["image_size"]
    side = facts["sizes"].get("shorter_side", 0) if modes else 0
    if 0 < side < size:
        option = f"--set data.image_size={max((known for known in SIDES if known <= side), default=max(side, 8))}"
        if finding.dense:
            yield f"most images are smaller than the crops of {size}: {option} leaves less black"
        else:
            yield f"most images are smaller than {size} and would be enlarged: {option} is faster and shows as much"
    elif side >= LARGE * size:
        yield (
            f"images are much larger than {size}, so reading them is most of the work: copies with a shorter side of "
            f"{2 * size} train faster and look the same"
        )
    if count := facts["turned"]:
        yield (
            f"{_many(count, 'image')} {_are(count)} to be turned when shown (EXIF), which training does not do: "
            "mogrify -auto-orient turns such files for good"
        )
    if "CMYK" in modes:
        yield "CMYK images are converted without their colour profile, so colours may differ from what you see"
    if any("alpha" in mode for mode in modes):
        yield "transparency is dropped: networks see the colour stored behind it, often black"


def _advice_on_files(facts: dict[str, Any]) -> Iterator[str]:
    kinds = facts["not_images"]
    if pictures := {kind: count for kind, count in kinds.items() if kind in FOREIGN}:
        count = _many(sum(pictures.values()), "file")
        yield f"{count} of a kind that is not read ({_some(list(pictures))}): save as PNG or JPEG"
    elif count := sum(kinds.values()):
        images = "image" if count == 1 else "images"
        yield f"{_many(count, 'file')} beside the images {_are(count)} no {images} and ignored"
    stray = {name: count for name, count in facts["unused"].items() if name.split("/")[0].lower() not in HELD}
    if count := sum(stray.values()):
        yield f"{_many(count, 'image')} in {_some(list(stray))} {_are(count)} in no part of the set"
    if unpaired := facts["unpaired"]:
        yield f"{_many(len(unpaired), 'file')} without image or mask of the same name, {unpaired[0]} first"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _many(count: int, thing: str) -> str:
    return f"one {thing}" if count == 1 else f"{count:,} {thing}s"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
