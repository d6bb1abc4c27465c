"""Image files to pixels. Only Pillow: its fixed-point resampling gives the same bytes on every machine."""
# N images, S side of the square output

import hashlib
import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError
from torch import Tensor

from antishortcut.errors import UserError, first_line
from antishortcut.fileio import IMAGE_FORMATS, atomic_write, plain
from antishortcut.hardware import cores
from antishortcut.types import AnySet, FileSet, ImageRef, ImageSet, PackedImage

warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # refused below

Bytes = NDArray[np.uint8]

STRIP = 16  # times its shorter side: the most of the longer side that is resized
CACHE = ".antishortcut-cache"
LARGEST = Image.MAX_IMAGE_PIXELS or 2**26  # pixels of an image; Pillow itself only warns
REPLACE = "; replace or remove the file (asd check lists all such)"  # the end of an error
WHOLE = 2**28  # files up to this many bytes are hashed whole; of larger ones BLOCKS of BLOCK bytes
BLOCKS, BLOCK = 1024, 2**16
DECODER = 2  # of the pixels in the cache; raise it when those of a file change
_CHUNK = 64  # images a thread takes at once
PAINTED = 1024  # images painted at once
REQUESTS = 16  # to a server at once


def read(path: ImageRef, at_least: int | None = None) -> Image.Image:
    """An image file as RGB: grey, palette, RGBA, CMYK and 16-bit alike. `at_least` lets big JPEGs decode smaller."""
    with opened(path) as picture:
        if at_least is not None:
            picture.draft(None, (at_least, at_least))
        return as_rgb(picture)


def size_of(path: ImageRef) -> tuple[int, int]:
    """Width and height, from a file's first bytes."""
    with opened(path) as picture:
        return picture.size


@contextmanager
def opened(path: ImageRef, what: str = "image") -> Iterator[ImageFile.ImageFile]:
    """Open an image file and read its header; whatever goes wrong with it inside the block is a UserError."""
    with _one_line(path, what):
        if isinstance(path, Path):
            plain(path)
        source = path if isinstance(path, Path) else io.BytesIO(path.read())
        with Image.open(source, formats=IMAGE_FORMATS) as picture:
            width, height = picture.size
            if width * height > LARGEST:
                raise ValueError(f"{width} × {height} pixels, more than the {LARGEST:,} that are decoded")
            yield picture


@contextmanager
def _one_line(path: ImageRef, what: str = "image") -> Iterator[None]:
    """Whatever goes wrong with a file is a UserError."""
    try:
        yield
    except UserError:  # a server that does not answer
        raise
    except Exception as error:  # a damaged file can make a decoder raise anything
        if isinstance(error, UnidentifiedImageError):  # its message has the path
            reason = f"none of {', '.join(IMAGE_FORMATS)}"
        else:
            reason = (error.strerror if isinstance(error, OSError) else None) or first_line(error)
        raise UserError(f"cannot read the {what} {path} ({reason}){REPLACE}") from None


class FileFacts(NamedTuple):
    """What is known of a file without reading it."""

    size: int  # bytes
    time: int  # when it was modified, in nanoseconds; of a packed image, the file around it


def stat(path: ImageRef) -> FileFacts:
    """Size and time of an image file."""
    if isinstance(path, PackedImage):
        return FileFacts(path.size, path.store.time)
    with _one_line(path):
        facts = os.stat(path)
        return FileFacts(facts.st_size, facts.st_mtime_ns)


def is_remote(path: ImageRef) -> bool:
    """Whether reading it is a request to another machine."""
    return isinstance(path, PackedImage) and path.store.remote


def content_digests(paths: Sequence[ImageRef]) -> list[str]:
    """Digest of the bytes of every file; of a remote one, which is not read for this, of its size and time."""
    digests = [""] * len(paths)

    def fill(at: int) -> None:
        facts = stat(paths[at])
        if is_remote(paths[at]):
            digests[at] = f"{facts.size} {facts.time}"
            return
        with _one_line(paths[at]):
            digests[at] = _content_digest(paths[at], *facts)

    in_threads(fill, len(paths))
    return digests


@lru_cache(maxsize=2**17)
def _content_digest(path: ImageRef, size: int, time: int) -> str:
    """Computed once for each state of a file; of a large one, of blocks spread evenly over it."""
    if isinstance(path, PackedImage):
        return hashlib.blake2b(path.read()).hexdigest()
    plain(path)
    with path.open("rb") as file:
        if size <= WHOLE:
            return hashlib.file_digest(file, "blake2b").hexdigest()
        digest = hashlib.blake2b()
        for block in range(BLOCKS):
            file.seek(block * (size - BLOCK) // (BLOCKS - 1))
            digest.update(file.read(BLOCK))
        return digest.hexdigest()


def as_rgb(picture: Image.Image) -> Image.Image:
    """Grey, palette, RGBA, CMYK and 16-bit pictures in the three channels networks take."""
    picture.load()  # before its mode is read, which a decoder may still change
    if picture.mode == "F" or (picture.mode == "I" and picture.format == "TIFF"):  # which number is white?
        raise ValueError("grey values of 32 bits or with a sign have no fixed range; convert it to 8 or 16 bits")
    if picture.mode.startswith("I"):  # 16 bits a pixel, which convert() would clip to white
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if "transparency" in picture.info:
        return picture.convert("RGBA").convert("RGB")
    if picture.mode == "RGB":
        return picture  # convert() would copy all of it, a fifth of the time a JPEG takes
    return picture.convert("RGB")


def fit(picture: Image.Image, size: int, margin: float = 1.0) -> Image.Image:
    """Resize the shorter side to `margin` × size, then cut the square of `size` from the centre."""
    shorter, (width, height), longest = round(margin * size), picture.size, STRIP * min(picture.size)
    if max(width, height) > longest:  # enlarged whole, a strip of a few kilobytes would fill the memory
        left, top = max(width - longest, 0) // 2, max(height - longest, 0) // 2
        picture = picture.crop((left, top, width - left, height - top))
    scale = shorter / min(picture.size)
    if scale != 1:
        width, height = (max(shorter, round(side * scale)) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    left, top = ((side - size) // 2 for side in picture.size)
    return picture.crop((left, top, left + size, top + size))


def picture_at(images: AnySet, at: int) -> Image.Image:
    """One image of a set as RGB, in its own size."""
    if isinstance(images, FileSet) and images.painter is None:
        return read(images.paths[at])
    image = images.image[at] if isinstance(images, ImageSet) else pixels(read(images.paths[at]))  # (3, H, W)
    if images.painter is not None:
        image = images.painter(image[None], images.cues["planted"][at : at + 1])[0]
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def pictures_at(images: AnySet, places: Sequence[int]) -> Iterator[Image.Image]:
    """Images of a set in this order. Remote ones are read together, so that the wait is that for one of them."""
    if isinstance(images, ImageSet) or not any(is_remote(images.paths[at]) for at in places):
        yield from (picture_at(images, at) for at in places)
        return
    with ThreadPoolExecutor(REQUESTS) as threads:
        yield from threads.map(lambda at: picture_at(images, at), places)


def pixels(picture: Image.Image) -> Tensor:
    """An RGB picture as (3, H, W) uint8."""
    return torch.from_numpy(np.array(picture).transpose(2, 0, 1))


def decode(files: FileSet, size: int, root: Path | None) -> ImageSet:
    """Decode a set into memory at size × size, through the cache under `root`."""

    def fill(out: Bytes, at: int) -> None:
        out[:] = pixels(fit(read(files.paths[at], at_least=2 * size), size)).numpy()

    array = filled(root, files.paths, str(size), (len(files), 3, size, size), fill)
    return painted(ImageSet(torch.from_numpy(array), files.label, files.cues, files.painter))


def painted(images: ImageSet) -> ImageSet:
    """With the planted shortcut, if there is one, painted over the pixels."""
    if images.painter is None:
        return images
    rows = [slice(start, start + PAINTED) for start in range(0, len(images), PAINTED)]
    image = torch.cat([images.painter(images.image[row], images.cues["planted"][row]) for row in rows])
    return replace(images, image=image, painter=None)


def in_threads(fill: Callable[[int], object], count: int) -> None:
    """Call `fill` with every number below `count`; Pillow releases the GIL while it decodes."""

    def chunk(start: int) -> None:
        for at in range(start, min(start + _CHUNK, count)):
            fill(at)

    with ThreadPoolExecutor(cores()) as threads:
        try:
            for _ in threads.map(chunk, range(0, count, _CHUNK)):
                pass
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)  # one bad file is enough
            raise


def filled(
    root: Path | None, paths: Sequence[ImageRef], what: str, shape: tuple[int, ...], fill: Callable[[Bytes, int], None]
) -> Bytes:
    """An array whose rows `fill` computes from these files in threads, cached under `root` if that is writable.

    The key is of names and content of the files; `what` names the computation.
    """

    def make() -> Bytes:
        out = np.empty(shape, dtype=np.uint8)
        in_threads(lambda at: fill(out[at], at), len(out))
        return out

    if root is None:
        return make()
    digest = hashlib.sha256(f"{DECODER} {what} {PIL.__version__}".encode())
    for path, content in zip(paths, content_digests(paths), strict=True):
        digest.update(f"\0{path}\0{content}".encode(errors="surrogateescape"))
    store = root / CACHE / f"{digest.hexdigest()[:16]}.npy"
    with suppress(OSError, ValueError):  # absent or damaged: decode again
        array = np.load(store, mmap_mode="r", allow_pickle=False)  # mapped: a file cut short is an error
        if array.shape == shape and array.dtype == np.uint8:
            return np.array(array)
    array = make()
    with suppress(OSError), atomic_write(store, parents=False) as file:  # a full or read-only disk, no data folder
        np.save(file, array, allow_pickle=False)
    return array
