"""Of images with masks: how much is void, how often every class is, and which masks have values that are neither."""
# N images

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...types import VOID, FileSet
from ..masks import NO_CLASS
from .finding import Finding
from .looking import Counts, Seen
from .naming import name_of


class Tally(NamedTuple):
    """Pixels of one part."""

    part: str
    values: Counts  # (N, 256) pixels of every value, an image a row
    meaning: NDArray[np.int64]  # (256,) the class of every value, VOID, or NO_CLASS
    at: list[int]  # (N,) which images these are: those whose masks can be read


def masks(finding: Finding, looked: Mapping[str, Sequence[Seen]]) -> dict[str, Any]:
    """All facts, as JSON takes them."""
    tallies = [_tally(finding, part, seen) for part, seen in looked.items()]
    return {
        "void": {t.part: _share(t.values[:, t.meaning == VOID], t.values) for t in tallies},  # of all pixels
        "strange": [entry for t in tallies for entry in _strange(finding, t)],
        "frequency": _frequency(finding, tallies),
    }


def _tally(finding: Finding, part: str, seen: Sequence[Seen]) -> Tally:
    images = finding.parts[part]
    lookup = images.lookup if isinstance(images, FileSet) else None
    meaning = np.arange(VOID + 1) if lookup is None else lookup.numpy().astype(np.int64)  # (256,)
    meaning = np.where((meaning >= (len(finding.classes) or NO_CLASS)) & (meaning != VOID), NO_CLASS, meaning)
    at = [place for place, one in enumerate(seen) if one.values is not None]
    rows = [np.zeros((0, VOID + 1), np.int64), *(seen[place].values for place in at)]
    return Tally(part, np.vstack([row for row in rows if row is not None]), meaning, at)


def _strange(finding: Finding, tally: Tally) -> list[dict[str, Any]]:
    odd = (tally.values > 0) & (tally.meaning == NO_CLASS)  # (N, 256)
    return [
        {"file": name_of(finding, tally.part, at, mask=True), "values": np.flatnonzero(row).tolist()}
        for at, row in zip(tally.at, odd, strict=True)
        if row.any()
    ]


def _frequency(finding: Finding, tallies: Sequence[Tally]) -> list[dict[str, Any]]:
    """Of every class: its share of the pixels that have one, and in how many images it is, by part."""
    rows = []
    for label, name in enumerate(finding.classes or _unnamed(tallies)):
        row: dict[str, Any] = {"class": name}
        for tally in tallies:
            here = tally.values[:, tally.meaning == label]  # (N, values that mean it)
            row[tally.part] = _share(here, tally.values[:, tally.meaning < NO_CLASS])
            row[f"{tally.part} images"] = int(here.any(axis=1).sum())
        rows.append(row)
    return rows


def _unnamed(tallies: Sequence[Tally]) -> list[str]:
    """Names for the classes up to the largest there is, where nobody gave any."""
    seen = [t.meaning[t.values.any(axis=0) & (t.meaning < NO_CLASS)] for t in tallies]
    return [f"class {label}" for label in range(1 + max((int(found.max(initial=-1)) for found in seen), default=-1))]


def _share(part: Counts, whole: Counts) -> float:
    return round(float(part.sum()) / max(float(whole.sum()), 1.0), 5)
