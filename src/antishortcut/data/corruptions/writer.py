"""Corrupted copies of a set, written as CIFAR-C has them: <name>.npy of (5 · N, S, S, 3), severity after severity.

making.json holds the settings while copies are being written, facts.json once they are complete.
"""
# N images, B images of a chunk, S side

import itertools
import multiprocessing
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antishortcut.data.corruptions import blur, digital, noise, weather
from antishortcut.data.corruptions.constants import CHUNK, CORRUPTIONS, SEVERITIES, SMALLEST, TABLES, VERSION, table_of
from antishortcut.data.corruptions.noise import Bytes, Floats
from antishortcut.data.corruptions.weather import Frost, frost_mark, grown_frost, read_frost
from antishortcut.data.derived import fill, growing, read_images
from antishortcut.data.image_io import fit, picture_at
from antishortcut.data.loader import MARGIN, in_workers, one_thread
from antishortcut.data.splits import set_mark
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
    return blur.glass_blur(chunk.images, sigma, reach, chunk.rng.integers(-reach, reach, shape, dtype=np.int8))


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
    return digital.elastic_transform(chunk.images, alpha, sigma, corners, field)


# fmt: off
FUNCTIONS: dict[str, Callable[..., Bytes]] = {  # of a Chunk and the constants
    "gaussian_noise": lambda c, sigma: noise.gaussian_noise(c.images, sigma, c.normal(3)),
    "shot_noise": lambda c, photons: noise.shot_noise(photons, c.rng.poisson(c.images / 255 * photons)),
    "impulse_noise":
        lambda c, amount: noise.impulse_noise(c.images, amount, c.rng.random(c.images.shape, dtype=np.float32)),
    "defocus_blur": lambda c, radius, alias: blur.defocus_blur(c.images, radius, alias),
    "glass_blur": _glass_blur,
    "motion_blur": lambda c, radius, sigma: blur.motion_blur(c.images, radius, sigma, c.each(-45, 45)),
    "zoom_blur": lambda c, end, step: blur.zoom_blur(c.images, end, step),
    "snow": _snow,
    "frost": _frost,
    "fog": _fog,
    "brightness": lambda c, added: weather.brightness(c.images, added),
    "contrast": lambda c, factor: digital.contrast(c.images, factor),
    "elastic_transform": _elastic_transform,
    "pixelate": lambda c, factor: digital.pixelate(c.images, factor),
    "jpeg_compression": lambda c, quality: digital.jpeg_compression(c.images, quality),
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
