"""From files to pixels to augmented pictures: the same bits as the plain way, torchvision's or Pillow's, takes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import v2

from antishortcut.data import Loader, rng
from antishortcut.data.image_io import pixels, read
from antishortcut.data.transforms import varied
from antishortcut.errors import UserError
from antishortcut.types import Batch, FileSet, ImageSet
from tests.data.official import paths_of


def scene(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth shapes under a little noise: a JPEG of it is like one of a photograph."""
    numbers = np.random.default_rng(seed)
    coarse = Image.fromarray(numbers.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = smooth + numbers.integers(-12, 13, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def twin_varied(picture: Image.Image, size: int, seed: int, epoch: int, index: int) -> NDArray[np.uint8]:
    """torchvision's own, from the global generator."""
    jitter = v2.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4)
    whole = v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), jitter, v2.PILToTensor()])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.mix(seed, epoch, rng.PIPELINE, index)) >> 1)
        out: NDArray[np.uint8] = whole(picture).numpy()
    return out


@pytest.mark.parametrize(
    "size",
    [(500, 375), (97, 131), (32, 32), (1, 1), (3, 2), (4, 300), (300, 4)],  # the last two have no crop that fits
    ids=str,
)
def test_imagenet_augmentation_equals_torchvisions(size: tuple[int, int]) -> None:
    picture = scene(*size)
    for index in range(40):
        built = varied(picture, 48, 3, 5, index)
        assert np.array_equal(built, twin_varied(picture, 48, 3, 5, index)), index


def test_imagenet_augmentation_leaves_the_global_generator_alone() -> None:
    """The thread that makes the next batch leaves the global generator to the one that trains."""
    rows = torch.stack([pixels(scene(32, 32, seed)) for seed in range(24)])
    images = ImageSet(rows, torch.zeros(24, dtype=torch.int64))
    torch.manual_seed(4)
    single = [float(torch.rand(())) for _ in range(600)]
    torch.manual_seed(4)
    beside, built = [], []
    for batch in Loader(images, batch=4, seed=1, image_size=64, augment="imagenet").epoch(2):
        built.append(batch)
        beside += [float(torch.rand(())) for _ in range(100)]
    assert beside == single
    for batch in built:
        for image, at in zip(batch.image, batch.index.tolist(), strict=True):
            twin = twin_varied(scene(32, 32, at), 64, 1, 2, at)
            assert torch.equal(image, torch.from_numpy(twin) / 255)


ROTATED = Image.Exif()
ROTATED[0x0112] = 6  # to be turned by a quarter, which training ignores
KINDS: dict[str, tuple[str, dict[str, Any]]] = {  # mode and options of saving
    "plain.jpg": ("RGB", {"quality": 90}),
    "progressive.jpg": ("RGB", {"progressive": True}),
    "grey.jpg": ("L", {}),
    "cmyk.jpg": ("CMYK", {}),
    "exif.jpg": ("RGB", {"exif": ROTATED}),
    "rgb.png": ("RGB", {}),
    "rgba.png": ("RGBA", {}),
    "palette.png": ("P", {}),
    "clear.png": ("P", {"transparency": bytes(range(256))}),
    "one-clear.png": ("RGB", {"transparency": (1, 2, 3)}),
    "grey-alpha.png": ("LA", {}),
    "photo.webp": ("RGB", {}),
    "old.gif": ("P", {}),
}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> FileSet:
    folder = tmp_path_factory.mktemp("kinds")
    for name, (mode, options) in KINDS.items():
        scene(41, 29).convert(mode).save(folder / name, **options)
    paths = tuple(folder / name for name in KINDS)
    return FileSet(paths, torch.arange(len(paths)) % 3)


@pytest.mark.parametrize("name", KINDS)
def test_pixels_of_every_format(kinds: FileSet, name: str, tmp_path: Path) -> None:
    source = next(path for path in paths_of(kinds) if path.name == name)
    path = tmp_path / name
    path.write_bytes(source.read_bytes())
    built = read(path)
    path.unlink()  # what was read needs the file no more
    with Image.open(source) as picture:
        plain = picture.convert("RGBA") if "transparency" in picture.info else picture
        assert np.array_equal(np.asarray(built), np.asarray(plain.convert("RGB")))
        assert built.size == picture.size  # as stored: EXIF turns nothing
    assert built.mode == "RGB"


@pytest.mark.parametrize("name", ["plain.jpg", "rgb.png"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_truncated_file_is_one_line(kinds: FileSet, tmp_path: Path, name: str, workers: int) -> None:
    whole = next(path for path in paths_of(kinds) if path.name == name).read_bytes()
    bad = tmp_path / name
    bad.write_bytes(whole[: len(whole) * 2 // 3])
    images = FileSet((*kinds.paths[:8], bad), torch.zeros(9, dtype=torch.int64))
    loader = Loader(images, batch=4, seed=0, image_size=16, augment="imagenet", workers=workers, shuffle=False)
    outputs: list[Batch] = []
    with pytest.raises(UserError, match="replace or remove the file") as caught:
        outputs.extend(loader.epoch(0))
    assert len(outputs) == 2
    assert str(bad) in str(caught.value)
    assert "\n" not in str(caught.value)
