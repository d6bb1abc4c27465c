"""Facts about a set from the images that were looked at. Pure: nothing is read here."""
# N images

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antishortcut.data.inspect.scan import Counts, Finding, Seen
from antishortcut.data.segmentation import NO_CLASS
from antishortcut.types import VOID, FileSet, ImageSet

SHOWN = 20  # files and classes that are named
Looked = Mapping[str, Sequence[Seen]]  # by part

KINDS = {  # how pixels are stored
    "RGB": "colour",
    "L": "grey",
    "1": "black and white",
    "P": "palette",
    "RGBA": "colour with alpha",
    "RGBX": "colour with alpha",
    "LA": "grey with alpha",
    "PA": "palette with alpha",
    "YCbCr": "colour",
    "F": "grey of floats",
}


def summarise(finding: Finding, looked: Looked) -> dict[str, Any]:
    """All facts, ready for JSON."""
    every = [outputs for part in looked.values() for outputs in part]
    counts = {} if finding.dense else {part: _counts(finding, part) for part in finding.parts}
    facts = {
        "data": finding.name,
        "classes": len(finding.classes),
        "image_size": finding.image_size,
        "parts": [_part(part, len(looked[part]), counts) for part in finding.parts],
        "sizes": _sizes([outputs.size for outputs in every if not outputs.wrong], finding.image_size),
        "modes": dict(Counter(_mode(outputs.mode) for outputs in every if outputs.mode).most_common()),
        "turned": sum(outputs.turned for outputs in every),
        "unreadable": _unreadable(finding, looked),
        "duplicates": _duplicates(finding, looked),
        "empty": list(finding.empty),
        "unpaired": list(finding.unpaired),
        "not_images": dict(Counter(path.suffix.lower() or path.name for path in finding.others).most_common()),
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


def _counts(finding: Finding, part: str) -> list[int]:
    """Images of every class."""
    counts: list[int] = np.bincount(finding.parts[part].label.numpy(), minlength=len(finding.classes)).tolist()
    return counts


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
    trained = next(iter(counts.values()), [])
    lacking = {
        part: [name for name, train, here in zip(finding.classes, trained, row, strict=True) if train and not here]
        for part, row in counts.items()
    }
    return {part: names for part, names in lacking.items() if names}


def _sizes(sizes: Sequence[tuple[int, int]], wanted: int) -> dict[str, Any]:
    """Width and height of the smallest, the median and the largest; how many would have to be enlarged."""
    if not sizes:
        return {}
    by_area = sorted(sizes, key=lambda size: (size[0] * size[1], size))
    return {
        "smallest": list(by_area[0]),
        "median": [round(statistics.median(side)) for side in zip(*sizes, strict=True)],
        "largest": list(by_area[-1]),
        "shorter_side": round(statistics.median(min(size) for size in sizes)),
        "smaller": sum(min(size) < wanted for size in sizes),
    }


def _mode(mode: str) -> str:
    stored, _, transparent = mode.partition(", ")
    word = "grey of 16 bits" if stored.startswith("I") else KINDS.get(stored, stored)
    return f"{word} with alpha" if transparent and "alpha" not in word else word


def _unreadable(finding: Finding, looked: Looked) -> list[dict[str, str]]:
    """Files that no run could read, masks among them, with the reason."""
    return [
        {"file": _name(finding, part, at, mask), "why": why}
        for part, outputs in looked.items()
        for at, image in enumerate(outputs)
        for mask, why in ((False, image.wrong), (True, image.mask_wrong))
        if why
    ]


def _duplicates(finding: Finding, looked: Looked) -> dict[str, Any]:
    """Images that are there more than once, pixel by pixel: within a part, across parts, and under two classes."""
    places: dict[bytes, list[tuple[str, int]]] = {}
    for part, outputs in looked.items():
        for at, image in enumerate(outputs):
            if not image.wrong:
                places.setdefault(image.digest, []).append((part, at))
    train, *rest = finding.parts
    within, leaked = dict.fromkeys(looked, 0), dict.fromkeys(rest, 0)
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
    return {
        "within": within,  # surplus images
        "leaked": leaked,  # images of other parts that are training images too
        "across": across,
        "two_classes": two_classes,
    }


class Tally(NamedTuple):
    """Pixels of one part."""

    part: str
    values: Counts  # (N, 256) pixels of every value, an image a row
    meaning: NDArray[np.int64]  # (256,) the class of every value, VOID, or NO_CLASS
    at: list[int]  # (N,) the images whose masks can be read


def _masks(finding: Finding, looked: Looked) -> dict[str, Any]:
    """How much is void, how frequent every class is, and which masks have values that are neither."""
    tallies = [_tally(finding, part, outputs) for part, outputs in looked.items()]
    strange = [
        {"file": _name(finding, tally.part, at, mask=True), "values": np.flatnonzero(odd).tolist()}
        for tally in tallies
        for at, odd in zip(tally.at, (tally.values > 0) & (tally.meaning == NO_CLASS), strict=True)
        if odd.any()
    ]
    frequency = []
    for label, name in enumerate(finding.classes or _unnamed(tallies)):
        row: dict[str, Any] = {"class": name}
        for tally in tallies:
            here = tally.values[:, tally.meaning == label]  # (N, values that mean it)
            row[tally.part] = _share(here, tally.values[:, tally.meaning < NO_CLASS])  # of the labelled pixels
            row[f"{tally.part} images"] = int(here.any(axis=1).sum())
        frequency.append(row)
    void = {tally.part: _share(tally.values[:, tally.meaning == VOID], tally.values) for tally in tallies}
    return {"void": void, "strange": strange, "frequency": frequency}


def _tally(finding: Finding, part: str, outputs: Sequence[Seen]) -> Tally:
    images = finding.parts[part]
    lookup = images.lookup if isinstance(images, FileSet) else None
    meaning = np.arange(VOID + 1) if lookup is None else lookup.numpy().astype(np.int64)  # (256,)
    meaning = np.where((meaning >= (len(finding.classes) or NO_CLASS)) & (meaning != VOID), NO_CLASS, meaning)
    rows = {at: image.values for at, image in enumerate(outputs) if image.values is not None}
    return Tally(part, np.vstack([np.zeros((0, VOID + 1), np.int64), *rows.values()]), meaning, list(rows))


def _unnamed(tallies: Sequence[Tally]) -> list[str]:
    """Names for the classes up to the largest value, where there is no classes.txt."""
    used = [tally.meaning[tally.values.any(axis=0) & (tally.meaning < NO_CLASS)] for tally in tallies]
    return [f"class {label}" for label in range(1 + max((int(labels.max(initial=-1)) for labels in used), default=-1))]


def _share(part: Counts, whole: Counts) -> float:
    return round(float(part.sum()) / max(float(whole.sum()), 1.0), 5)
