"""Corrupted copies of a set, written as CIFAR-C has them: <name>.npy of (5 · N, S, S, 3), severity after severity."""
# N images, S side

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...console import Watch
from ...errors import UserError, near
from ...folder import Folder, replacing, write_json
from ...types import FileSet, ImageSet, is_dense
from ..copies import growing, read_images
from ..parts import set_mark
from .constants import ALL, CORRUPTIONS, SEVERITIES, SMALLEST, VERSION, table_of
from .frost import frost_mark, read_frost
from .places import FACTS, LABELS, MAKING, differences, read_facts
from .workers import Work, pixels, workers


def write_copies(
    images: ImageSet | FileSet,
    side: int,
    out: Path,
    *,
    names: Sequence[str] = CORRUPTIONS,
    seed: int = 0,
    frost: Path | None = None,
    processes: int | None = None,
    facts: Mapping[str, Any] | None = None,
    quiet: bool = False,
    wait: bool = False,
) -> None:
    """Write the corruptions of a set that are not there yet, its labels, and last of all facts.json.

    The bytes depend on images, side, seed and frost alone, not on `processes` (None: all cores, when it is worth it).
    A folder whose copies were made with other settings is refused.
    """
    _check(images, side, names, seed, processes)
    settings = _settings(images, side, seed, frost) | dict(facts or {})
    shape = (len(SEVERITIES) * len(images), side, side, 3)
    with Folder(out).locked(wait):
        begin(out, settings)
        missing = [name for name in ALL if name in names and not _whole(out / f"{name}.npy", shape)]
        if missing:
            _afford(out, len(missing) * int(np.prod(shape)))
            ice = read_frost(frost, table_of(side), side) if frost is not None and "frost" in missing else None
            _write_labels(out / LABELS, images.label.numpy())
            work = Work(pixels(images, side), side, seed, ice)
            _make(work, missing, out, shape, processes, quiet)
        finish(out, settings)


def _settings(images: ImageSet | FileSet, side: int, seed: int, frost: Path | None) -> dict[str, Any]:
    """Everything that decides the bytes."""
    return {
        "kind": "corruptions",
        "source": "generated",
        "version": VERSION,
        "seed": seed,
        "frost": frost_mark(frost),
        "side": side,
        "constants": table_of(side),
        "count": len(images),
        "fingerprint": set_mark(images),
    }


def _check(images: ImageSet | FileSet, side: int, names: Sequence[str], seed: int, processes: int | None) -> None:
    for name in names:
        if name not in ALL:
            raise UserError(f"no corruption {name!r}{near(name, ALL)}")
    if not names or len(images) == 0:
        raise UserError("nothing to corrupt: no " + ("images" if names else "corruption is named"))
    if is_dense(images):
        raise UserError("corrupted copies keep one label for an image, so images with masks cannot be copied")
    if side < SMALLEST:
        raise UserError(f"images of {side} pixels are too small to corrupt; {SMALLEST} is the least")
    if seed < 0:
        raise UserError(f"the seed of corruptions is at least 0, not {seed}")
    if processes is not None and processes < 1:
        raise UserError(f"processes must be at least 1, not {processes}")


def begin(out: Path, settings: Mapping[str, Any]) -> None:
    """See that the folder is free, or holds copies of the same settings, and note them in it."""
    there = read_facts(out / FACTS) or read_facts(out / MAKING)
    if there is None:
        found = [name for name in (*(f"{name}.npy" for name in ALL), LABELS) if (out / name).exists()]
        if found:
            raise UserError(f"{out} holds {found[0]} that was not made here; give another folder")
        write_json(out / MAKING, dict(settings))
    elif changed := differences(there, settings):
        raise UserError(f"{out} holds copies made with other settings ({changed}); give another folder or remove it")


def finish(out: Path, settings: Mapping[str, Any]) -> None:
    """Write facts.json, unless it says the same already."""
    names = [name for name in ALL if (out / f"{name}.npy").exists()]
    facts = dict(settings) | {"names": names}
    if read_facts(out / FACTS) != json.loads(json.dumps(facts)):
        write_json(out / FACTS, facts)
    (out / MAKING).unlink(missing_ok=True)


def _whole(path: Path, shape: tuple[int, ...]) -> bool:
    """Files get their name when they are whole, but a disk or a hand may have cut them since."""
    try:
        return read_images(path).shape == shape
    except UserError:
        return False


def _afford(out: Path, size: int) -> None:
    """Rows are filled in through memory, where a full disk would be the end of the process."""
    free = shutil.disk_usage(out).free
    if size > free:
        raise UserError(f"the copies need {size / 1e9:.1f} GB, and {out} has {free / 1e9:.1f} GB left")


def _write_labels(path: Path, label: NDArray[np.int64]) -> None:
    with replacing(path) as file:
        np.save(file, np.tile(label, len(SEVERITIES)), allow_pickle=False)  # (5 · N,)


def _make(
    work: Work, names: Sequence[str], out: Path, shape: tuple[int, int, int, int], processes: int | None, quiet: bool
) -> None:
    """File after file, so that what is done stays done; the chunks of a file in all processes at once."""
    with Watch("corruptions", len(names) * work.chunks, quiet) as watch, workers(work, len(names), processes) as run:
        watch.begin(0)
        for number, name in enumerate(names):
            with growing(out / f"{name}.npy", shape) as path:
                for done in run([(name, chunk, path) for chunk in range(work.chunks)]):
                    watch.update(number * work.chunks + done, {})
