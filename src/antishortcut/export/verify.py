"""Compare an exported network with the original."""
# B batch
# B batch, H × W pixels

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from antishortcut.config.recipe import ModelSettings, Run
from antishortcut.data import Loader, order
from antishortcut.data.datasets import IN_MEMORY
from antishortcut.data.loader import MARGIN
from antishortcut.data.splits import take
from antishortcut.errors import UserError, plural
from antishortcut.experiments.cost import size_of
from antishortcut.models import Network, feature_shapes
from antishortcut.models.weights import load_checked, read_weights
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Trajectory, build_model
from antishortcut.types import DataSplits, ImageSet

TOLERANCE = 1e-4  # of the largest value: float32 sums in another order differ by some 1e-6
Exported = Callable[[Tensor], Sequence[Tensor]]  # a batch of raw images → outputs


class Outputs(nn.Module):
    """Raw images (B, 3, H, W) in [0, 1] → logits, or logits and embedding."""

    def __init__(self, network: Network, embedding: bool = False) -> None:
        super().__init__()
        self.network = network
        self.embedding = embedding

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features = self.network(image)
        return (features.logits, features.embedding) if self.embedding else features.logits


@dataclass(frozen=True)
class Check:
    images: str  # their source
    batches: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]  # height and width, each once
    largest: float  # difference, relative to the largest value
    allowed: float


def check(opened: Opened, embedding: bool, exported: Exported, any_size: bool) -> Check:
    """Compare the exported network with the original, or raise. `any_size`: it takes images of any size."""
    original, largest = Outputs(opened.network, embedding), 0.0
    batches = opened.tried(any_size)
    for image in batches:
        count = f"{len(image)} of {opened.source}"
        with torch.no_grad():
            expected = as_tuple(original(image))
            if not all(bool(torch.isfinite(output).all()) for output in expected):
                raise UserError(f"{opened.folder.path} gives numbers that are not finite on {opened.source}")
            with reworded(f"what was exported does not run on {count}", "nothing was written"):
                actual = tuple(exported(image))
        result = max(difference(*pair) for pair in zip(expected, actual, strict=True))
        if not result <= TOLERANCE:
            raise UserError(
                f"what was exported differs from the original by {result:.2g} of its largest value on {count}, "
                f"where {TOLERANCE:g} is allowed; nothing was written"
            )
        largest = max(largest, result)
    sizes = dict.fromkeys((int(image.shape[2]), int(image.shape[3])) for image in batches)
    return Check(opened.source, tuple(map(len, batches)), tuple(sizes), largest, TOLERANCE)


def difference(expected: Tensor, actual: Tensor) -> float:
    """The largest difference relative to the largest value; infinite if shape or dtype differ or it is not a number."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype or bool(actual.isnan().any()):
        return float("inf")
    scale = expected.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
    return float((actual - expected).abs().max() / scale)


def as_tuple(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (output,) if isinstance(output, Tensor) else output


@contextmanager
def reworded(what: str, then: str) -> Iterator[None]:
    """Turn whatever another library raises into one line with its reason."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError(f"{what} ({lines[0] if lines else type(error).__name__}); {then}") from error


# --- The network of a finished run ---

BATCHES = (1, 2, 5)  # sizes of the batches that are checked; it is traced with two
COUNT = max(BATCHES)
SMALLEST = 16  # pixels of a side, where images may have any size
ODD = (3, 5)  # pixels that the last batch lacks where images may have any size: not a multiple of a stride
USUAL = 224  # the side of images in a folder, unless a recipe says another


@dataclass(frozen=True)
class Opened:
    folder: RunDir
    run: Run
    state: str  # "final", or one that a teacher kept
    network: Network  # in evaluation mode
    classes: int
    names: tuple[str, ...]  # of the classes; () if the data are not available
    side: int  # of the square images it learned from
    maps: bool  # whether its outputs are maps, of images of any size, or vectors
    margin: float  # how much larger than `side` an image file is made before the centre crop
    images: Tensor  # (B, 3, H, W) in [0, 1]
    source: str  # of the images

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.network.parameters())

    def traced(self) -> Tensor:
        return self.images[:2]

    def tried(self, any_size: bool) -> list[Tensor]:
        """Batches to check with. `any_size`: the last one has an odd size."""
        batches = [self.images[:size] for size in BATCHES]
        if any_size:
            height, width = (max(side - odd, SMALLEST) for side, odd in zip(self.images.shape[2:], ODD, strict=True))
            batches[-1] = batches[-1][:, :, :height, :width].contiguous()
        return batches


def open_run(folder: RunDir, sets: DataSplits | None, state: str = "final") -> Opened:
    """A finished run's student, or a state of a teacher. `sets`: its data; None if they are not available."""
    run, _ = folder.read()
    if sets is not None and sets.fingerprint != run.fingerprint:
        raise UserError(f"{folder.path} was trained on other data than these (fingerprints differ)")
    if run.keep:
        trajectory = Trajectory(folder)
        path, weights = folder.snapshots / trajectory.entry(state)["file"], trajectory.weights(state)
    elif state == "final":
        path = folder.weights()
        weights = read_weights(path)
    else:
        raise UserError(f"{folder.path} is a student, which keeps its final state alone; --state is for teachers")
    known = size_of(run.data, {})
    side = sets.image_size if sets else run.data.image_size or (known.side if known else USUAL)
    blank = run.model.model_copy(update={"weights": None, "pretrained": False})
    classes = len(sets.classes) if sets else _count_classes(blank, weights, side)
    network = build_model(blank, classes, side)
    load_checked(network, weights, path)
    network.requires_grad_(False).eval()
    maps = feature_shapes(network, side).maps
    in_memory = isinstance(next(iter(sets.tests.values())), ImageSet) if sets else side <= IN_MEMORY
    images, source = _images(sets, maps) if sets else _noise(side, maps)
    return Opened(
        folder=folder,
        run=run,
        state=state,
        network=network,
        classes=classes,
        names=sets.classes if sets else (),
        side=side,
        maps=maps,
        margin=1.0 if in_memory else MARGIN,
        images=images,
        source=source,
    )


def _count_classes(model: ModelSettings, weights: dict[str, Tensor], side: int) -> int:
    """From the weights: those whose shape would differ if there were two classes."""
    two = build_model(model, 2, side).state_dict()
    heads = [weights[key] for key in two if key in weights and weights[key].shape != two[key].shape]
    counts = {len(weight) if weight.ndim else 0 for weight in heads}
    if len(counts) > 1 or 0 in counts:
        raise UserError("the weights do not tell how many classes there are; give the data's place as --data-root")
    return counts.pop() if counts else 2


def _images(sets: DataSplits, maps: bool) -> tuple[Tensor, str]:
    """A few of the first test set, the same every time, cropped to their common size; of large scenes a part."""
    name, images = next(iter(sets.tests.items()))
    few = take(images, order(len(images), 0, 0)[:COUNT].sort().values)
    loader = Loader(few, batch=1, seed=0, image_size=sets.image_size, augment="none", shuffle=False, workers=0)
    most = sets.image_size * 3 // 2 if maps else sets.image_size
    loaded = [batch.image[0, :, :most, :most] for batch in loader.epoch(0)]
    height, width = (min(image.shape[side] for image in loaded) for side in (1, 2))
    stacked = torch.stack([loaded[at % len(loaded)][:, :height, :width] for at in range(COUNT)])
    return stacked, f"{plural(len(loaded), 'image')} of the {name} set of {short(sets.name)}"


def _noise(side: int, maps: bool) -> tuple[Tensor, str]:
    generator = torch.Generator().manual_seed(0)
    width = side + side // 2 if maps else side
    return torch.rand(COUNT, 3, side, width, generator=generator), f"{COUNT} images of noise"


def short(data: str) -> str:
    """The name of a data set, without the path of a folder."""
    kind, colon, path = data.partition(":")
    return f"{kind}{colon}{Path(path).name}"
