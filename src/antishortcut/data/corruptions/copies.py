"""Corrupted copies of a set, as CIFAR-C has them: <name>.npy of (5 · N, S, S, 3), severity after severity.

making.json holds the settings while copies are being written, facts.json once they are complete.
"""
# N images, B images of a chunk, S side

import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from antishortcut.data import contact_sheet as sheets
from antishortcut.data.corruptions import effects, weather
from antishortcut.data.corruptions.constants import CHUNK, CORRUPTIONS, SEVERITIES, SMALLEST, TABLES, VERSION, table_of
from antishortcut.data.corruptions.effects import Bytes, Floats
from antishortcut.data.corruptions.weather import Frost, frost_mark, grown_frost, read_frost
from antishortcut.data.derived import as_set, fill, growing, read_images, read_labels
from antishortcut.data.image_io import content_digests, fit, picture_at, size_of, stat
from antishortcut.data.loader import MARGIN, in_workers, one_thread
from antishortcut.data.readers import SUFFIXES
from antishortcut.data.splits import CONTENT, by_times, set_mark
from antishortcut.errors import UserError, printable, suggest
from antishortcut.fileio import atomic_write
from antishortcut.hardware import cores
from antishortcut.progress import ProgressBar, console
from antishortcut.run_dir import RunDir, read_json, write_json
from antishortcut.types import AnySet, FileSet, is_dense

FACTS, MAKING, LABELS = "facts.json", "making.json", "labels.npy"
FEW = 600_000_000  # bytes that one process corrupts in seconds: more processes pay above


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
) -> bool:
    """Write the missing corruptions of a set, its labels, and last of all facts.json; whether any was missing.

    The bytes depend on images, side, seed and frost, not on `processes` (None: all cores for large sets). A folder
    with copies of other settings is refused.
    """
    for name in names:
        check(name, side)
    if not names or len(images) == 0:
        raise UserError("nothing to corrupt: no " + ("images" if names else "corruption is named"))
    if is_dense(images):
        raise UserError("images with masks cannot be copied: corrupted copies have one label for an image")
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
    with RunDir(out).locked(wait):
        _begin(out, settings)
        missing = [name for name in CORRUPTIONS if name in names and not _is_whole(out / f"{name}.npy", shape)]
        if missing:
            size, free = len(missing) * int(np.prod(shape)), shutil.disk_usage(out).free
            if size > free:  # files are memory-mapped: a full disk would kill the process
                raise UserError(f"the copies need {size / 1e9:.1f} GB, and {out} has {free / 1e9:.1f} GB left")
            if not quiet:
                text = f"writing corrupted copies of {len(images):,} test images, {size / 1e6:,.0f} MB: {out}"
                console().print(printable(text), markup=False)
            with atomic_write(out / LABELS) as file:
                np.save(file, np.tile(images.label.numpy(), len(SEVERITIES)), allow_pickle=False)  # (5 · N,)
            if processes is None:
                processes = cores() if size > FEW and not multiprocessing.current_process().daemon else 1
            ice = read_frost(frost, table_of(side), side) if frost is not None and "frost" in missing else None
            _generate(images, shape, {name: out / f"{name}.npy" for name in missing}, seed, ice, processes, quiet)
        settings["names"] = [name for name in CORRUPTIONS if (out / f"{name}.npy").exists()]
        if read_facts(out / FACTS) != settings:
            write_json(out / FACTS, settings)
        (out / MAKING).unlink(missing_ok=True)
    return bool(missing)


def check(name: str, side: int) -> None:
    """Refuse an unknown corruption and images that are too small."""
    if name not in CORRUPTIONS:
        raise UserError(f"no corruption {name!r}{suggest(name, CORRUPTIONS)}")
    if side < SMALLEST:
        raise UserError(f"images of {side} pixels are too small to corrupt; {SMALLEST} is the least")


def _begin(out: Path, settings: Mapping[str, Any]) -> None:
    """Check that the folder is free or holds copies of the same settings, and write them to it."""
    existing = read_facts(out / FACTS) or read_facts(out / MAKING)
    if existing is None:
        foreign = [name for name in (*(f"{name}.npy" for name in CORRUPTIONS), LABELS) if (out / name).exists()]
        if foreign:
            raise UserError(f"{out} holds {foreign[0]} that was not made here; give another folder")
        write_json(out / MAKING, dict(settings))
        return
    for key in (*settings, *existing):
        old, new = existing.get(key), settings.get(key)
        if key != "names" and old != new:
            change = f"{key} {old} there, {new} here"
            raise UserError(f"{out} holds copies made with other settings ({change}); give another folder or remove it")


def read_facts(path: Path) -> dict[str, Any] | None:
    """The settings of corrupted copies, None without the file."""
    if not path.exists():
        return None
    facts = read_json(path)
    if not isinstance(facts, dict) or facts.get("kind") != "corruptions" or not isinstance(facts.get("count"), int):
        raise UserError(f"{path} is not about corruptions; give another folder")
    return facts


def _is_whole(path: Path, shape: tuple[int, ...]) -> bool:
    """A file gets its name once it is complete, but may have been cut since."""
    try:
        return read_images(path).shape == shape
    except UserError:
        return False


def clean_chunk(images: AnySet, side: int, chunk: int) -> Bytes:
    """The images of a chunk before they are corrupted, (B, S, S, 3); files are resized and cropped as in evaluation."""
    size = CHUNK[table_of(side)]
    numbers = range(chunk * size, min((chunk + 1) * size, len(images)))
    margin = MARGIN if isinstance(images, FileSet) else 1.0
    return np.stack([np.asarray(fit(picture_at(images, at), side, margin)) for at in numbers])


def _generate(
    images: AnySet,
    shape: tuple[int, int, int, int],
    files: Mapping[str, Path],
    seed: int,
    ice: Frost | None,
    processes: int,
    quiet: bool,
) -> None:
    """File after file, so that finished files stay; the chunks of a file in all processes at once."""
    side, done = shape[1], itertools.count(1)
    chunks = range(-(-len(images) // CHUNK[table_of(side)]))
    workers = min(processes, len(chunks))
    with ProgressBar("corruptions", len(files) * len(chunks), quiet) as bar:
        bar.begin(0)
        for name, file in files.items():
            with growing(file, shape) as path:
                call = partial(_fill_chunk, images, side, name, seed, ice, path)
                for _ in in_workers(call, chunks, workers if workers > 1 else 0):
                    bar.update(next(done), {})


def _fill_chunk(images: AnySet, side: int, name: str, seed: int, ice: Frost | None, path: Path, chunk: int) -> None:
    """Write one chunk at all severities."""
    clean, start = clean_chunk(images, side, chunk), chunk * CHUNK[table_of(side)]
    for severity in SEVERITIES:
        corrupted = corrupt(clean, name, severity, seed=seed, chunk=chunk, frost=ice)
        fill(path, (severity - 1) * len(images) + start, corrupted)


@dataclass(frozen=True)
class Chunk:
    """Images and their random draws. An image's draws depend on its place in the chunk, not on those after it: small
    draws are made for a full chunk and come first, the large ones image by image."""

    images: Bytes  # (B, S, S, 3)
    rng: np.random.Generator
    frost: Frost | None

    @property
    def side(self) -> int:
        return int(self.images.shape[1])

    def each(self, low: float, high: float, *shape: int) -> NDArray[np.float64]:
        """A few uniform draws for every image, (B, …)."""
        return self.rng.uniform(low, high, (CHUNK[table_of(self.side)], *shape))[: len(self.images)]

    def normal(self, *shape: int) -> Floats:
        """Standard normal draws, (B, S, S, …)."""
        return self.rng.standard_normal((*self.images.shape[:3], *shape), dtype=np.float32)


def _glass_blur(chunk: Chunk, sigma: float, reach: int, repeats: int) -> Bytes:
    shape = (len(chunk.images), repeats, 2, chunk.side, chunk.side)
    return effects.glass_blur(chunk.images, sigma, reach, chunk.rng.integers(-reach, reach, shape, dtype=np.int8))


def _snow(chunk: Chunk, *constants: float) -> Bytes:
    angle = chunk.each(-135, -45)  # falling
    return weather.snow(chunk.images, constants, chunk.normal().astype(np.float64), angle)


def _frost(chunk: Chunk, *weights: float) -> Bytes:
    ice = chunk.frost or grown_frost(table_of(chunk.side))
    return weather.frost(chunk.images, weights, weather.crops(ice, chunk.side, chunk.each(0, 1, 3)))


def _fog(chunk: Chunk, strength: float, decay: float) -> Bytes:
    size = 1 << (chunk.side - 1).bit_length()  # the power of two that holds the image: 32, 64, 256
    uniform = chunk.rng.uniform(-1, 1, (len(chunk.images), size * size - 1))
    return weather.fog(chunk.images, strength, weather.plasma(size, decay, uniform)[:, : chunk.side, : chunk.side])


def _elastic_transform(chunk: Chunk, alpha: float, sigma: float, reach: float) -> Bytes:
    corners = chunk.each(-reach, reach, 3, 2)
    field = chunk.rng.uniform(-1, 1, (len(chunk.images), 2, chunk.side, chunk.side))
    return effects.elastic_transform(chunk.images, alpha, sigma, corners, field)


# fmt: off
FUNCTIONS: dict[str, Callable[..., Bytes]] = {  # of a Chunk and the constants
    "gaussian_noise": lambda c, sigma: effects.gaussian_noise(c.images, sigma, c.normal(3)),
    "shot_noise": lambda c, photons: effects.shot_noise(photons, c.rng.poisson(c.images / 255 * photons)),
    "impulse_noise":
        lambda c, amount: effects.impulse_noise(c.images, amount, c.rng.random(c.images.shape, dtype=np.float32)),
    "defocus_blur": lambda c, radius, alias: effects.defocus_blur(c.images, radius, alias),
    "glass_blur": _glass_blur,
    "motion_blur": lambda c, radius, sigma: effects.motion_blur(c.images, radius, sigma, c.each(-45, 45)),
    "zoom_blur": lambda c, end, step: effects.zoom_blur(c.images, end, step),
    "snow": _snow,
    "frost": _frost,
    "fog": _fog,
    "brightness": lambda c, added: weather.brightness(c.images, added),
    "contrast": lambda c, factor: effects.contrast(c.images, factor),
    "elastic_transform": _elastic_transform,
    "pixelate": lambda c, factor: effects.pixelate(c.images, factor),
    "jpeg_compression": lambda c, quality: effects.jpeg_compression(c.images, quality),
}
# fmt: on


def corrupt(
    images: Bytes, name: str, severity: int, *, seed: int = 0, chunk: int = 0, frost: Frost | None = None
) -> Bytes:
    """Corrupt images (N, S, S, 3), the first of which is the first of chunk `chunk`; the same bytes every time.

    Draws depend on (VERSION, seed, corruption, severity, chunk) and on the place in the chunk. More images than a chunk
    holds continue in the next chunks. Without `frost` textures, those of `grown_frost` are used.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or images.shape[1] != images.shape[2]:
        raise UserError(f"expected bytes of shape (N, S, S, 3), not {images.dtype} of shape {images.shape}")
    if severity not in SEVERITIES:
        raise UserError(f"severities are 1 to 5, not {severity}")
    check(name, images.shape[1])
    table = table_of(images.shape[1])
    values = TABLES[table][name][severity - 1]
    constants = values if isinstance(values, tuple) else (values,)
    out = np.empty(images.shape, dtype=np.uint8)
    for start in range(0, len(images), CHUNK[table]):
        rng = np.random.default_rng([VERSION, seed, CORRUPTIONS.index(name), severity, chunk + start // CHUNK[table]])
        batch = Chunk(images[start : start + CHUNK[table]], rng, frost)
        with one_thread():
            out[start : start + CHUNK[table]] = FUNCTIONS[name](batch, *constants)
    return out


# --- Open them: the released files of CIFAR-C, ours, or the image folders of ImageNet-C ---


@dataclass(frozen=True)
class Copies:
    """A clean set under many corruptions, each at five severities."""

    folder: Path
    source: str  # "official" or "generated"
    names: tuple[str, ...]  # the corruptions in the folder
    count: int  # N
    side: int  # S
    label: Tensor  # (N,)
    fingerprint: str  # 16 hex digits
    facts: Mapping[str, Any]
    read: Callable[[str, int], AnySet]
    hashed: str = "content"  # how the fingerprint notices changes, as in DataSplits

    def part(self, name: str, severity: int) -> AnySet:
        """The images of one corruption at one severity; nothing is read before it is used."""
        if name not in self.names:
            raise UserError(f"{self.folder} has no corruption {name!r}{suggest(name, self.names)}")
        return self.read(name, severity)


def find_copies(folder: Path, classes: Sequence[str]) -> Copies:
    """Copies in either layout. `classes` are the class folders; of .npy files only their number matters."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder} of corrupted images")
    files = any((folder / name).exists() for name in (FACTS, MAKING, LABELS, *(f"{name}.npy" for name in CORRUPTIONS)))
    if not files and any(_home(folder, name) is not None for name in CORRUPTIONS):
        return _open_folders(folder, tuple(classes))
    return open_copies(folder, len(classes))


def open_copies(folder: Path, classes: int, *, needed: Sequence[str] = CORRUPTIONS) -> Copies:
    """The .npy files of CIFAR-C's layout; without facts.json they are taken for the released ones."""
    facts = read_facts(folder / FACTS)
    if facts is None and (folder / MAKING).exists():
        raise UserError(f"the copies in {folder} are not finished; run asd corrupt again with the same settings")
    names = _present(folder, [name for name in CORRUPTIONS if (folder / f"{name}.npy").exists()], needed)
    label = _first_of_five(folder / LABELS, classes)
    arrays = {name: read_images(folder / f"{name}.npy") for name in names}  # mapped, not read
    shape = (len(SEVERITIES) * len(label), *arrays[names[0]].shape[1:])
    for name, array in arrays.items():
        if array.shape != shape:
            raise UserError(f"{folder / name}.npy has shape {array.shape}, expected {shape} as labels and others say")
    if facts is not None and facts["count"] != len(label):
        raise UserError(f"{folder} has {len(label)} labels, {FACTS} says {facts['count']}; make the copies again")

    def read_part(name: str, severity: int) -> AnySet:
        return as_set(arrays[name][(severity - 1) * len(label) : severity * len(label)], label)

    # of the labels, the needed images and the settings, whatever other corruptions are in the folder
    settings = {key: value for key, value in (facts or {}).items() if key != "names"}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    paths = [folder / LABELS, *(folder / f"{name}.npy" for name in names if name in needed)]
    for path, content in zip(paths, content_digests(paths), strict=True):
        digest.update(f"\n{path.name} {stat(path).size} {content}".encode())
    source = "official" if facts is None else str(facts.get("source", "generated"))
    mark = digest.hexdigest()[:16]
    return Copies(folder, source, names, len(label), shape[1], label, mark, facts or {}, read_part)


def _present(folder: Path, names: Sequence[str], needed: Sequence[str]) -> tuple[str, ...]:
    """The corruptions in the folder, unless needed ones are missing."""
    missing = [name for name in needed if name not in names]
    if missing and len(missing) == len(needed):
        raise UserError(f"{folder} has none of the corruptions, such as {needed[0]}.npy or {needed[0]}/1/<class>")
    if missing:
        raise UserError(f"{folder} lacks {', '.join(missing)}; fetch or make them")
    return tuple(names)


def _first_of_five(path: Path, classes: int) -> Tensor:
    """Labels of one severity, (N,), of a file that repeats them for all."""
    label = read_labels(path, classes)
    first = label[: len(label) // len(SEVERITIES)]  # (N,)
    if not torch.equal(label, first.repeat(len(SEVERITIES))):
        raise UserError(f"{path} does not repeat the same labels {len(SEVERITIES)} times, once for each severity")
    return first.clone()


def _open_folders(folder: Path, classes: tuple[str, ...]) -> Copies:
    """The folders of ImageNet-C and Tiny-ImageNet-C: <corruption>/<severity>/<class>/<image>, or one level deeper.

    Labels are places in `classes`; images of other classes are left out. Only one corruption is listed now; the others
    must hold the same files, which is checked when they are opened.
    """
    homes = {name: home for name in CORRUPTIONS if (home := _home(folder, name)) is not None}
    names = _present(folder, list(homes), CORRUPTIONS)
    for name, severity in product(names, SEVERITIES):
        if not (homes[name] / str(severity)).is_dir():
            raise UserError(f"no folder {homes[name] / str(severity)}; expected one for each severity")
    first = _listed(homes[names[0]] / "1", classes)
    if not first:
        raise UserError(f"{homes[names[0]] / '1'} has no images in folders named as the classes, such as {classes[0]}")
    label = torch.tensor([place for place, _ in first])

    def read_part(name: str, severity: int) -> AnySet:
        where = homes[name] / str(severity)
        if (listed := _listed(where, classes)) != first:
            place, file = min(set(listed) ^ set(first))
            raise UserError(f"{where} has other images than {names[0]}: {classes[place]}/{file} is in one of them only")
        return FileSet(tuple(where / classes[place] / file for place, file in listed), label)

    sample = homes[names[0]] / "1" / classes[first[0][0]] / first[0][1]
    mark, hashed = _mark(homes, first, classes)
    return Copies(folder, "official", names, len(first), min(size_of(sample)), label, mark, {}, read_part, hashed)


def _home(folder: Path, name: str) -> Path | None:
    """The folder of a corruption, directly below or in a group such as noise/, as ImageNet-C is released."""
    places = [folder / name, *sorted(folder.glob(f"*/{name}"))]
    return next((place for place in places if place.is_dir()), None)


def _listed(folder: Path, classes: Sequence[str]) -> list[tuple[int, str]]:
    """(place of the class, file name) of the images in the class folders, sorted."""
    return [
        (place, file)
        for place, name in enumerate(classes)
        if (folder / name).is_dir()
        for file in sorted(os.listdir(folder / name))
        if Path(file).suffix.lower() in SUFFIXES
    ]


def _mark(homes: Mapping[str, Path], first: Sequence[tuple[int, str]], classes: Sequence[str]) -> tuple[str, str]:
    """Which corruptions, and of every file of every severity: class, name and size, 0 where it is missing; and content.

    As `splits.fingerprint`: of more bytes than CONTENT the content is left out. Both the mark and how it is made.
    """
    digest = hashlib.sha256("\n".join(homes).encode())
    by_class: dict[str, list[str]] = {}
    paths, times, total = list[Path](), list[int](), 0
    for place, file in first:
        by_class.setdefault(classes[place], []).append(file)
    for home, severity in product(homes.values(), SEVERITIES):
        for name, files in by_class.items():
            folder = home / str(severity) / name
            facts = {each.name: each.stat() for each in os.scandir(folder)} if folder.is_dir() else {}
            sizes = {file: facts[file].st_size for file in files if file in facts}
            digest.update(repr([(name, file, sizes.get(file, 0)) for file in files]).encode())
            times += [facts[file].st_mtime_ns for file in sizes]
            total += sum(sizes.values())
            paths += [folder / file for file in sizes] if total <= CONTENT else []
    if total <= CONTENT:
        digest.update("".join(content_digests(paths)).encode())
    return digest.hexdigest()[:16], "content" if total <= CONTENT else by_times(times)


def contact_sheet(copies: Copies, clean: Bytes) -> Image.Image:
    """The first image: a row for every corruption, with the clean image (S, S, 3) and severities 1 to 5."""
    rows = [
        (name, [Image.fromarray(clean), *(picture_at(copies.part(name, level), 0) for level in SEVERITIES)])
        for name in copies.names
    ]
    return sheets.contact_sheet(["clean", *(f"severity {severity}" for severity in SEVERITIES)], rows)
