"""Facts about a data set from its inspected images, problems that would stop training, and advice. Reads nothing."""
# N images

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from antishortcut.data.inspect.scan import SIDES, Finding, ImageFacts
from antishortcut.errors import plural
from antishortcut.types import VOID, FileSet, ImageSet

SHOWN = 20  # files and classes that are listed
UNEVEN = 10.0  # ratio of the largest to the smallest class that gets advice
LARGE = 4  # times the training size from which decoding is most of the work

Scans = Mapping[str, Sequence[ImageFacts]]  # by part


def summarise(finding: Finding, scans: Scans) -> dict[str, Any]:
    """All facts, ready for JSON."""
    images = [image for part in scans.values() for image in part]
    counts: dict[str, list[int]] = {}  # images of every class, by part
    if not finding.dense:
        classes = len(finding.classes)
        counts = {
            part: np.bincount(files.label.numpy(), minlength=classes).tolist() for part, files in finding.parts.items()
        }
    facts = {
        "data": finding.name,
        "classes": len(finding.classes),
        "image_size": finding.image_size,
        "parts": [_part(part, len(scans[part]), counts.get(part)) for part in finding.parts],
        "sizes": _sizes([image.size for image in images if not image.wrong], finding.image_size),
        "turned": sum(image.turned for image in images),
        "unreadable": [image.wrong for image in images if image.wrong],
        "duplicates": _duplicates(finding, scans),
        "empty": list(finding.empty),
        "unused": dict(finding.unused),
        "unknown": dict(finding.unknown),
        "missing": _missing(finding, counts),
        "held": finding.held,
    }
    if finding.dense:
        return facts | {"masks": _masks(finding, scans)}
    rows = zip(finding.classes, *counts.values(), strict=True)
    return facts | {"balance": [dict(zip(("class", *counts), row, strict=True)) for row in rows]}


def _part(part: str, images: int, counts: list[int] | None) -> dict[str, Any]:
    row = {"part": part, "images": images}
    if counts is None:
        return row
    present = [count for count in counts if count] or [0]
    smallest, largest = min(present), max(present)
    sizes = {"smallest": smallest, "largest": largest, "ratio": round(largest / max(smallest, 1), 2)}
    return row | {"classes": sum(map(bool, counts))} | sizes


def _missing(finding: Finding, counts: Mapping[str, list[int]]) -> dict[str, list[str]]:
    """Classes of the training images that another part has none of."""
    missing = {
        part: [
            name for name, train, here in zip(finding.classes, counts["train"], row, strict=True) if train > 0 == here
        ]
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


def _duplicates(finding: Finding, scans: Scans) -> dict[str, Any]:
    """Exact copies: training images in other parts (how many), images in two parts, images in two classes."""
    places: dict[bytes, list[tuple[str, int]]] = {}
    for part, facts in scans.items():
        for at, image in enumerate(facts):
            if not image.wrong:
                places.setdefault(image.digest, []).append((part, at))
    leaked = Counter(dict.fromkeys([part for part in finding.parts if part != "train"], 0))
    across, two_classes = [], []
    for copies in places.values():
        parts = [part for part, _ in copies]
        if "train" in parts:
            leaked.update(part for part in parts if part != "train")
        names = [_name(finding, part, at) for part, at in copies] if len(copies) > 1 else []
        if len(set(parts)) > 1:
            across.append(names)
        if not finding.dense and len({int(finding.parts[part].label[at]) for part, at in copies}) > 1:
            two_classes.append(names)
    return {"leaked": dict(leaked), "across": across, "two_classes": two_classes}


def _name(finding: Finding, part: str, at: int) -> str:
    """A file's path in the folder, or the number of an image in memory."""
    images = finding.parts[part]
    if isinstance(images, ImageSet):
        return f"{part} {at}"
    return str(images.paths[at].relative_to(finding.base) if finding.base is not None else images.paths[at])


def _masks(finding: Finding, scans: Scans) -> dict[str, Any]:
    """Share of void, and of every class among the labelled pixels, with the number of images that show it."""
    frequency: list[dict[str, Any]] = [{"class": name} for name in finding.classes]
    void = {}
    for part, facts in scans.items():
        rows = [image.pixels for image in facts if image.pixels is not None]
        pixels = np.vstack([np.zeros((0, VOID + 1), np.int64), *rows])  # (N, 256)
        total = pixels.sum(axis=0)
        labelled = total[:VOID].sum()
        void[part] = round(float(total[VOID] / max(total.sum(), 1)), 5)
        for number, row in enumerate(frequency):
            row[part] = round(float(total[number] / max(labelled, 1)), 5)
            row[f"{part} images"] = int(np.count_nonzero(pixels[:, number]))
    return {"void": void, "frequency": frequency}


def problems(facts: dict[str, Any]) -> list[str]:
    """Why training would stop."""
    lines = []
    if count := len(facts["unreadable"]):
        lines.append(f"{plural(count, 'file')} cannot be used; replace or remove {'it' if count == 1 else 'them'}")
    if bare := [row["class"] for row in facts.get("balance", ()) if not row["train"]]:
        lines.append(f"there is no image of {_some(bare)} to train on; add some, or remove the folder")
    return lines


def advice(finding: Finding, facts: dict[str, Any], val_fraction: float) -> list[str]:
    """What to consider before training."""
    lines = [*_advice_on_images(finding, facts), *_advice_on_classes(facts)]
    if finding.name.startswith("folder:") and not finding.held:
        lines.append("there is no val/: a tenth of the images is held out and scored; put images there to choose them")
    if finding.base is not None and not val_fraction and len(finding.parts) == 2:
        lines.append("to choose settings without the test images, hold some out: --set data.val_fraction=0.1")
    return lines


def _advice_on_images(finding: Finding, facts: dict[str, Any]) -> Iterator[str]:
    images = {row["part"]: row["images"] for row in facts["parts"]}
    remedy = "remove them there" if finding.base is not None else "as the set was released"
    for part, count in facts["duplicates"]["leaked"].items():
        if count:
            share = f"{count / images[part]:.1%}"
            yield f"{share} of {part} are training images too, so scores there are too good: {remedy}"
    if count := len(facts["duplicates"]["two_classes"]):
        yield f"in two classes: {plural(count, 'image')}; one of the two labels is wrong"
    size, side = facts["image_size"], facts["sizes"].get("shorter_side", facts["image_size"])
    on_disk = isinstance(finding.parts["train"], FileSet)
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
        yield f"of a kind that is not read ({_some(list(unknown))}): {plural(count, 'file')}; save as PNG or JPEG"
    if unused := facts["unused"]:
        yield f"in no split: {plural(sum(unused.values()), 'image')} in {_some(list(unused))}"


def _advice_on_classes(facts: dict[str, Any]) -> Iterator[str]:
    for name in facts["empty"]:
        yield f"{name} has no images: fill or remove the folder"
    for part, names in facts["missing"].items():
        yield f"{part} has no images of {_some(names)}: those classes are trained but not scored"
    ratio = facts["parts"][0].get("ratio", 1)
    if ratio >= UNEVEN:
        yield f"the largest class has {ratio:g} times the images of the smallest: check the scores of every class"
    if absent := [row["class"] for row in facts.get("masks", {}).get("frequency", ()) if not row["train images"]]:
        yield f"no training mask has {_some(absent)}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
