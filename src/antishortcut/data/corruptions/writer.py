"""Corrupted copies of a set, written as CIFAR-C has them: <name>.npy of (5 · N, S, S, 3), severity after severity.

facts.json says how the copies were made once they are whole, making.json until then.
"""
# N images, B images of a chunk, S side

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from antishortcut.data.corruptions import blur, digital, noise, weather
from antishortcut.data.corruptions.constants import (
    ALL,
    CHUNK,
    CORRUPTIONS,
    SEVERITIES,
    SMALLEST,
    TABLES,
    VERSION,
    table_of,
)
from antishortcut.data.corruptions.noise import Bytes, Floats
from antishortcut.data.corruptions.spatter import spatter
from antishortcut.data.corruptions.weather import Frost, frost_mark, grown_frost, read_frost
from antishortcut.data.derived import fill, growing, read_images
from antishortcut.data.image_io import fit, read
from antishortcut.data.loader import MARGIN, in_workers, one_thread
from antishortcut.data.splits import set_mark
from antishortcut.errors import UserError, suggest
from antishortcut.fileio import atomic_write
from antishortcut.hardware import cores
from antishortcut.progress import ProgressBar
from antishortcut.run_dir import RunDir, read_json, write_json
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
    with RunDir(out).locked(wait):
        _begin(out, settings)
        missing = [name for name in ALL if name in names and not _is_whole(out / f"{name}.npy", shape)]
        if missing:
            size, free = len(missing) * int(np.prod(shape)), shutil.disk_usage(out).free
            if size > free:  # rows are filled in through memory, where a full disk would kill the process
                raise UserError(f"the copies need {size / 1e9:.1f} GB, and {out} has {free / 1e9:.1f} GB left")
            ice = read_frost(frost, table_of(side), side) if frost is not None and "frost" in missing else None
            with atomic_write(out / LABELS) as file:
                np.save(file, np.tile(images.label.numpy(), len(SEVERITIES)), allow_pickle=False)  # (5 · N,)
            _generate(CleanImages.of(images, side), missing, out, seed, ice, processes, quiet)
        built = [name for name in ALL if (out / f"{name}.npy").exists()]
        if read_facts(out / FACTS) != json.loads(json.dumps(settings | {"names": built})):
            write_json(out / FACTS, settings | {"names": built})
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
    with ProgressBar("corruptions", len(names) * clean.chunks, quiet) as watch:
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


# --- A chunk of images under one corruption: what is drawn, in which order, and who gets it ---


@dataclass(frozen=True)
class Chunk:
    """Images, and the draws for them. What an image gets depends on its place in the chunk, not on who comes after:
    small draws are made for a full chunk and come first, the large ones fill image by image."""

    images: Bytes  # (B, S, S, 3)
    rng: np.random.Generator
    frost: Frost | None

    @property
    def side(self) -> int:
        return int(self.images.shape[1])

    def each(self, low: float, high: float, *shape: int) -> NDArray[np.float64]:
        """A few uniform draws for every image, (B, …)."""
        full = CHUNK[table_of(self.side)]
        return self.rng.uniform(low, high, (full, *shape))[: len(self.images)]

    def normal(self, *shape: int) -> Floats:
        """Standard normal draws, (B, S, S, …)."""
        return self.rng.standard_normal((*self.images.shape[:3], *shape), dtype=np.float32)


def _shot_noise(chunk: Chunk, photons: float) -> Bytes:
    return noise.shot_noise(photons, chunk.rng.poisson(chunk.images / 255 * photons))


def _impulse_noise(chunk: Chunk, amount: float) -> Bytes:
    return noise.impulse_noise(chunk.images, amount, chunk.rng.random(chunk.images.shape, dtype=np.float32))


def _glass_blur(chunk: Chunk, constants: tuple[float, int, int]) -> Bytes:
    sigma, reach, repeats = constants
    shape = (len(chunk.images), repeats, 2, chunk.side, chunk.side)
    return blur.glass_blur(chunk.images, sigma, reach, chunk.rng.integers(-reach, reach, shape, dtype=np.int8))


def _motion_blur(chunk: Chunk, constants: tuple[float, float]) -> Bytes:
    radius, sigma = constants
    return blur.motion_blur(chunk.images, radius, sigma, chunk.each(-45, 45))


def _snow(chunk: Chunk, constants: tuple[float, ...]) -> Bytes:
    angle = chunk.each(-135, -45)  # falling
    return weather.snow(chunk.images, constants, chunk.normal().astype(np.float64), angle)


def _frost(chunk: Chunk, weights: tuple[float, float]) -> Bytes:
    ice = chunk.frost or grown_frost(table_of(chunk.side))
    return weather.frost(chunk.images, weights, weather.crops(ice.textures, chunk.side, chunk.each(0, 1, 3)))


def _fog(chunk: Chunk, constants: tuple[float, float]) -> Bytes:
    strength, decay = constants
    size = 1 << (chunk.side - 1).bit_length()  # the power of two that holds the image: 32, 64, 256
    uniform = chunk.rng.uniform(-1, 1, (len(chunk.images), size * size - 1))
    return weather.fog(chunk.images, strength, weather.plasma(size, decay, uniform)[:, : chunk.side, : chunk.side])


def _elastic_transform(chunk: Chunk, constants: tuple[float, float, float]) -> Bytes:
    alpha, sigma, reach = constants
    corners = chunk.each(-reach, reach, 3, 2)
    field = chunk.rng.uniform(-1, 1, (len(chunk.images), 2, chunk.side, chunk.side))
    return digital.elastic_transform(chunk.images, alpha, sigma, corners, field)


MAKERS: dict[str, Callable[[Chunk, Any], Bytes]] = {
    "gaussian_noise": lambda chunk, sigma: noise.gaussian_noise(chunk.images, sigma, chunk.normal(3)),
    "shot_noise": _shot_noise,
    "impulse_noise": _impulse_noise,
    "defocus_blur": lambda chunk, constants: blur.defocus_blur(chunk.images, *constants),
    "glass_blur": _glass_blur,
    "motion_blur": _motion_blur,
    "zoom_blur": lambda chunk, constants: blur.zoom_blur(chunk.images, *constants),
    "snow": _snow,
    "frost": _frost,
    "fog": _fog,
    "brightness": lambda chunk, added: weather.brightness(chunk.images, added),
    "contrast": lambda chunk, factor: digital.contrast(chunk.images, factor),
    "elastic_transform": _elastic_transform,
    "pixelate": lambda chunk, factor: digital.pixelate(chunk.images, factor),
    "jpeg_compression": lambda chunk, quality: digital.jpeg_compression(chunk.images, quality),
    "speckle_noise": lambda chunk, sigma: noise.speckle_noise(chunk.images, sigma, chunk.normal(3)),
    "gaussian_blur": lambda chunk, sigma: blur.gaussian_blur(chunk.images, sigma),
    "saturate": lambda chunk, constants: digital.saturate(chunk.images, *constants),
    "spatter": lambda chunk, constants: spatter(chunk.images, constants, chunk.normal().astype(np.float64)),
}


def corrupt(
    images: Bytes, name: str, severity: int, *, seed: int = 0, chunk: int = 0, frost: Frost | None = None
) -> Bytes:
    """Corrupt images (N, S, S, 3), the first of which opens chunk number `chunk` of its set; the same bytes every time.

    Draws depend on (VERSION, seed, corruption, severity, chunk) and on the place in the chunk. More images than a chunk
    holds run on into the following chunks. Without `frost` textures, those made by `grown_frost` are taken.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or images.shape[1] != images.shape[2]:
        raise UserError(f"expected bytes of shape (N, S, S, 3), not {images.dtype} of shape {images.shape}")
    if severity not in SEVERITIES:
        raise UserError(f"severities are 1 to 5, not {severity}")
    side = images.shape[1]
    check(name, side)
    table, size = table_of(side), CHUNK[table_of(side)]
    built = np.empty(images.shape, dtype=np.uint8)
    for start in range(0, len(images), size):
        rng = np.random.default_rng([VERSION, seed, ALL.index(name), severity, chunk + start // size])
        part = Chunk(images[start : start + size], rng, frost)
        with one_thread():
            built[start : start + size] = MAKERS[name](part, TABLES[table][name][severity - 1])
    return built


def check(name: str, side: int) -> None:
    if name not in ALL:
        raise UserError(f"no corruption {name!r}{suggest(name, ALL)}")
    if side < SMALLEST:
        raise UserError(f"images of {side} pixels are too small to corrupt; {SMALLEST} is the least")
