"""Batches against per-image transforms: CIFAR's size in memory, ImageNet's from JPEGs, and decoders beside each other.

`python benchmarks/batches.py [FOLDER of JPEGs]`; without one, pictures of about 500 × 375 are made up. All take turns,
so that whatever else the machine does falls on each; medians. Ratios are told by the clock and, since they hold on a
busy machine too, by the processor's time, helpers included. Prints JSON.
"""

import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image, features
from torch import Tensor
from torchvision import transforms
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms.v2 import functional

from antishortcut.data import Loader
from antishortcut.data.image_io import read
from antishortcut.hardware import cores, processor
from antishortcut.types import FileSet, ImageSet

BATCH, SIDE = 64, 224
Spent = tuple[float, float]  # seconds by the clock, and of the processor


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as built:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(built)
        if len(sys.argv) < 2:
            make_up(folder, 128)
        paths = tuple(sorted(folder.glob("*.jp*g"), key=str))
        result = {"cifar": cifar(rounds=9), "imagenet": imagenet(paths, rounds=3), "decoders": decoders(paths[:64], 3)}
    print(json.dumps({"machine": machine(), "batch": BATCH, **result}, indent=1))


def make_up(folder: Path, count: int) -> None:
    """Noise of all scales, about as hard to decode as photographs."""
    rng = np.random.default_rng(0)
    for at in range(count):
        width, height = int(rng.integers(480, 521)), int(rng.integers(350, 401))
        layers = [rng.normal(0, 110 / 2**k, (6 * 2**k, 8 * 2**k, 3)).astype(np.float32) for k in range(6)]
        whole = 128 + sum(_resized(layer, width, height) for layer in layers)
        Image.fromarray(np.clip(whole, 0, 255).astype(np.uint8)).save(folder / f"{at:03}.jpg", quality=90)


def _resized(layer: Any, width: int, height: int) -> Any:
    bands = [Image.fromarray(layer[..., c]).resize((width, height), Image.Resampling.BICUBIC) for c in range(3)]
    return np.stack([np.asarray(band) for band in bands], axis=2)


def cifar(rounds: int) -> dict[str, Any]:
    """The same crop, flip and conversion of images of 32 × 32 in memory."""
    count = 8 * BATCH
    raw = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    images = ImageSet(torch.from_numpy(raw), torch.zeros(count, dtype=torch.int64))
    pictures = [Image.fromarray(image.transpose(1, 2, 0)) for image in raw]
    vary = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
    of_pil = transforms.Compose([*vary, transforms.ToTensor()])
    of_tensors = transforms.Compose([*vary, transforms.ConvertImageDtype(torch.float32)])
    ways = {
        "ours": lambda: used(Loader(images, batch=BATCH, seed=0, image_size=32).epoch(0)),
        "pil": lambda: used(stacked(lambda at: of_pil(pictures[at]), count)),
        "torchvision": lambda: used(stacked(lambda at: of_tensors(images.image[at]), count)),
    }
    return compared(in_turns(ways, rounds), count, against=("pil", "torchvision"))


def imagenet(paths: tuple[Path, ...], rounds: int) -> dict[str, Any]:
    """Random resized crops with flips and jitter of JPEGs on disk, without helpers and with two."""
    files = FileSet(paths, torch.zeros(len(paths), dtype=torch.int64))
    jitter = transforms.ColorJitter(0.4, 0.4, 0.4)
    vary = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), jitter, transforms.ToTensor()]
    one = transforms.Compose(vary)

    def loaded(augment: str, workers: int) -> Callable[[], None]:
        loader = Loader(files, batch=BATCH, seed=0, image_size=SIDE, augment=augment, workers=workers)
        return lambda: used(loader.epoch(0))

    ways = {
        "ours": loaded("imagenet", 0),
        "ours_two_workers": loaded("imagenet", 2),
        "ours_plain": loaded("none", 0),
        "ours_plain_two_workers": loaded("none", 2),
        "pil": lambda: used(
            stacked(lambda at: one(Image.open(paths[at], formats=["JPEG"]).convert("RGB")), len(paths))
        ),
    }
    return compared(in_turns(ways, rounds), len(paths), against=("pil",))


def decoders(paths: tuple[Path, ...], rounds: int) -> dict[str, Any]:
    """One JPEG decoded, and one cropped and resized, each in ways whose pixels may differ from Pillow's a little."""
    box = (60, 40, 360, 330)
    crop = (box[1], box[0], box[3] - box[1], box[2] - box[0], [SIDE, SIDE])  # as torchvision counts

    def copied(path: Path) -> Image.Image:
        with Image.open(path, formats=["JPEG"]) as picture:
            return picture.convert("RGB")

    def torch_decoded(path: Path) -> Tensor:
        built: Tensor = decode_jpeg(read_file(str(path)), mode=ImageReadMode.RGB)
        return built

    def drafted(path: Path) -> Image.Image:
        return read(path, at_least=SIDE).resize((SIDE, SIDE), Image.Resampling.BILINEAR)

    ways: dict[str, Callable[[Path], Any]] = {
        "decode_ours": read,
        "decode_pil_copied": copied,
        "decode_torchvision": torch_decoded,
        "crop_ours": lambda path: read(path).crop(box).resize((SIDE, SIDE), Image.Resampling.BILINEAR),
        "crop_torchvision": lambda path: functional.resized_crop(torch_decoded(path), *crop, antialias=True),
        "crop_torchvision_decode_only": lambda path: functional.resized_crop(
            Image.fromarray(torch_decoded(path).permute(1, 2, 0).numpy()), *crop
        ),
        "whole_ours": lambda path: read(path).resize((SIDE, SIDE), Image.Resampling.BILINEAR),
        "whole_drafted": drafted,
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for path in paths:
            for name, way in ways.items():
                begin = time.thread_time()
                way(path)
                spent[name].append(time.thread_time() - begin)
    differ = {name: _differ(way, ways[name.split("_")[0] + "_ours"], paths) for name, way in ways.items()}
    return {
        name: {"cpu_ms": 1000 * statistics.median(spent[name]), "largest_difference": differ[name]} for name in ways
    }


def _differ(way: Callable[[Path], Any], other: Callable[[Path], Any], paths: tuple[Path, ...]) -> int:
    pairs = ((_pixels(way(path)), _pixels(other(path))) for path in paths[:16])
    return max(int(np.abs(here - there).max()) for here, there in pairs)


def _pixels(made: Any) -> Any:
    return np.asarray(made.permute(1, 2, 0) if isinstance(made, Tensor) else made).astype(np.int16)


def stacked(one: Callable[[int], Tensor], count: int) -> Iterator[Tensor]:
    """Batches of what is made of each image by itself."""
    places = torch.split(torch.randperm(count), BATCH)
    return (torch.stack([one(at) for at in part.tolist()]) for part in places)


def used(batches: Iterator[Any]) -> None:
    for _ in batches:
        pass


def in_turns(ways: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, list[Spent]]:
    spent: dict[str, list[Spent]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            clock, processor = time.perf_counter(), processor_seconds()
            way()
            if number:  # the first time warms up
                spent[name].append((time.perf_counter() - clock, processor_seconds() - processor))
    return spent


def processor_seconds() -> float:
    """Of this process and of helpers that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in both)


def compared(spent: Mapping[str, list[Spent]], count: int, against: tuple[str, ...]) -> dict[str, Any]:
    """Milliseconds and images a second; ratios are those of each round, their median."""
    shown: dict[str, Any] = {}
    for name, times in spent.items():
        clock, processor = (statistics.median(each) / count for each in zip(*times, strict=True))
        shown[name] = {"ms_an_image": 1000 * clock, "cpu_ms_an_image": 1000 * processor, "images_a_second": 1 / clock}
    for name in against:
        pairs = list(zip(spent[name], spent["ours"], strict=True))
        shown[f"{name}_by_ours"] = statistics.median(there[0] / here[0] for there, here in pairs)
        shown[f"{name}_by_ours_cpu"] = statistics.median(there[1] / here[1] for there, here in pairs)
    return shown


def machine() -> dict[str, Any]:
    return {
        "processor": processor(),
        "cores": cores(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "pillow": PIL.__version__,
        "libjpeg_turbo": features.version("libjpeg_turbo"),
        "numpy": np.__version__,
    }


if __name__ == "__main__":
    main()
