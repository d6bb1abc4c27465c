"""Corrupted copies of a set, written as CIFAR-C has them: <name>.npy of (5 · N, S, S, 3), severity after severity.

facts.json says how the copies were made once they are whole, making.json until then.
"""
# N images, B images of a chunk, S side

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from antishortcut.data.corruptions.chunks import check, corrupt
from antishortcut.data.corruptions.constants import ALL, CHUNK, CORRUPTIONS, SEVERITIES, VERSION, table_of
from antishortcut.data.corruptions.frost import Frost, frost_mark, read_frost
from antishortcut.data.corruptions.noise import Bytes
from antishortcut.data.derived import fill, growing, read_images
from antishortcut.data.image_io import fit, read
from antishortcut.data.loader import MARGIN, in_workers
from antishortcut.data.splits import set_mark
from antishortcut.errors import UserError
from antishortcut.hardware import cores
from antishortcut.progress import Watch
from antishortcut.run_dir import Folder, read_json, replacing, write_json
from antishortcut.types import AnySet, FileSet, is_dense

FACTS, MAKING, LABELS = "facts.json", "making.json", "labels.npy"
FEW = 200_000_000  # pixels that one process corrupts in seconds: more processes pay above


@dataclass(frozen=True)
class CleanImages:
    """The images to be corrupted, in chunks that share a seed."""

    images: Bytes | tuple[Path, ...]  # (N, S, S, 3), or files
    side: int

    @classmethod
    def of(cls, images: AnySet, side: int) -> CleanImages:
        if isinstance(images, FileSet):
            return cls(images.paths, side)
        pixels = images.image.permute(0, 2, 3, 1).contiguous().numpy()
        if pixels.shape[1:3] != (side, side):
            pixels = np.stack([np.asarray(fit(Image.fromarray(image), side)) for image in pixels])
        return cls(pixels, side)

    @property
    def chunks(self) -> int:
        return -(-len(self.images) // CHUNK[table_of(self.side)])

    def chunk(self, number: int) -> Bytes:
        """(B, S, S, 3); files are cut as they are for evaluation."""
        size = CHUNK[table_of(self.side)]
        part = self.images[number * size : (number + 1) * size]
        if isinstance(part, tuple):
            part = np.stack([np.asarray(fit(read(path), self.side, MARGIN)) for path in part])
        return part


def clean_chunk(images: AnySet, side: int, chunk: int) -> Bytes:
    """The images of a chunk before they are corrupted, (B, S, S, 3)."""
    return CleanImages.of(images, side).chunk(chunk)


def write_copies(
    images: AnySet,
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
    settings = {
        "kind": "corruptions",
        "source": "generated",
        "version": VERSION,
        "seed": seed,
        "frost": frost_mark(frost),
        "side": side,
        "constants": table_of(side),
        "count": len(images),
        "fingerprint": set_mark(images),
        **(facts or {}),
    }
    shape = (len(SEVERITIES) * len(images), side, side, 3)
    with Folder(out).locked(wait):
        _begin(out, settings)
        missing = [name for name in ALL if name in names and not _is_whole(out / f"{name}.npy", shape)]
        if missing:
            size, free = len(missing) * int(np.prod(shape)), shutil.disk_usage(out).free
            if size > free:  # rows are filled in through memory, where a full disk would kill the process
                raise UserError(f"the copies need {size / 1e9:.1f} GB, and {out} has {free / 1e9:.1f} GB left")
            ice = read_frost(frost, table_of(side), side) if frost is not None and "frost" in missing else None
            with replacing(out / LABELS) as file:
                np.save(file, np.tile(images.label.numpy(), len(SEVERITIES)), allow_pickle=False)  # (5 · N,)
            _generate(CleanImages.of(images, side), missing, out, seed, ice, processes, quiet)
        made = [name for name in ALL if (out / f"{name}.npy").exists()]
        if read_facts(out / FACTS) != json.loads(json.dumps(settings | {"names": made})):
            write_json(out / FACTS, settings | {"names": made})
        (out / MAKING).unlink(missing_ok=True)


def _check(images: AnySet, side: int, names: Sequence[str], seed: int, processes: int | None) -> None:
    for name in names:
        check(name, side)
    if not names or len(images) == 0:
        raise UserError("nothing to corrupt: no " + ("images" if names else "corruption is named"))
    if is_dense(images):
        raise UserError("corrupted copies keep one label for an image, so images with masks cannot be copied")
    if seed < 0:
        raise UserError(f"the seed of corruptions is at least 0, not {seed}")
    if processes is not None and processes < 1:
        raise UserError(f"processes must be at least 1, not {processes}")


def _begin(out: Path, settings: Mapping[str, Any]) -> None:
    """Make sure that the folder is free, or holds copies of the same settings, and note them in it."""
    there = read_facts(out / FACTS) or read_facts(out / MAKING)
    if there is None:
        foreign = [name for name in (*(f"{name}.npy" for name in ALL), LABELS) if (out / name).exists()]
        if foreign:
            raise UserError(f"{out} holds {foreign[0]} that was not made here; give another folder")
        write_json(out / MAKING, dict(settings))
    elif changed := differences(there, settings):
        raise UserError(f"{out} holds copies made with other settings ({changed}); give another folder or remove it")


def read_facts(path: Path) -> dict[str, Any] | None:
    """The facts of corrupted copies; None when there are none, an error when they are of something else."""
    if not path.exists():
        return None
    facts = read_json(path)
    if not isinstance(facts, dict) or facts.get("kind") != "corruptions" or not isinstance(facts.get("count"), int):
        raise UserError(f"{path} does not speak of corruptions; give another folder")
    return facts


def differences(there: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """In what settings differ, as a message; which corruptions are there does not count."""
    here = json.loads(json.dumps(settings))  # as they would be read back
    keys = [key for key in (*here, *there) if key != "names" and there.get(key) != here.get(key)]
    return ", ".join(f"{key} {there.get(key)} there, {here.get(key)} here" for key in dict.fromkeys(keys))


def _is_whole(path: Path, shape: tuple[int, ...]) -> bool:
    """Files get their name when they are whole, but may have been cut since."""
    try:
        return read_images(path).shape == shape
    except UserError:
        return False


def _generate(
    clean: CleanImages,
    names: Sequence[str],
    out: Path,
    seed: int,
    ice: Frost | None,
    processes: int | None,
    quiet: bool,
) -> None:
    """File after file, so that what is done stays done; the chunks of a file in all processes at once."""
    count = len(clean.images)
    if processes is None:
        large = len(names) * len(SEVERITIES) * count * clean.side**2 > FEW
        processes = cores() if large and not multiprocessing.current_process().daemon else 1
    processes = min(processes, clean.chunks)
    with Watch("corruptions", len(names) * clean.chunks, quiet) as watch:
        watch.begin(0)
        for number, name in enumerate(names):
            with growing(out / f"{name}.npy", (len(SEVERITIES) * count, clean.side, clean.side, 3)) as path:
                call = partial(_fill_chunk, clean, name, seed, ice, path)
                done = in_workers(call, range(clean.chunks), processes if processes > 1 else 0)
                for chunk, _ in enumerate(done, start=1):
                    watch.update(number * clean.chunks + chunk, {})


def _fill_chunk(clean: CleanImages, name: str, seed: int, ice: Frost | None, path: Path, chunk: int) -> None:
    """Fill in the rows of one chunk at all severities."""
    images, start = clean.chunk(chunk), chunk * CHUNK[table_of(clean.side)]
    for severity in SEVERITIES:
        corrupted = corrupt(images, name, severity, seed=seed, chunk=chunk, frost=ice)
        fill(path, (severity - 1) * len(clean.images) + start, corrupted)
