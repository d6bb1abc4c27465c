"""Open the network of a finished run, and compare an exported network with it."""
# B batch, H × W pixels

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antishortcut.config.recipe import Run
from antishortcut.data import Loader, order
from antishortcut.data.datasets import DATASETS, IN_MEMORY
from antishortcut.data.loader import MARGIN
from antishortcut.data.splits import take
from antishortcut.errors import UserError, first_line, plural
from antishortcut.models import FeatureExtractor, Network, feature_shapes
from antishortcut.models.weights import load_checked, read_weights
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Trajectory, build_saved
from antishortcut.types import DataSplits, ImageSet

RECORD = "export.json"
TOLERANCE = 1e-4  # of the largest value: float32 sums in another order differ by some 1e-6
BATCHES = (1, 2, 5)  # batch sizes to check; tracing uses 2
COUNT = max(BATCHES)
SMALLEST = 16  # pixels of a side, where images may have any size
ODD = (3, 5)  # pixels that the last batch lacks where images may have any size: not a multiple of a stride
DEFAULT_SIDE = 224  # of images in a folder, unless the recipe says another
Exported = Callable[[Tensor], Sequence[Tensor]]  # a batch of raw images → outputs


class ExportModule(nn.Module):
    """Raw images (B, 3, H, W) in [0, 1] → logits, or logits and embedding; without a classifier the embedding."""

    def __init__(self, network: Network, embedding: bool = False) -> None:
        super().__init__()
        self.network = network
        self.embedding = embedding

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features = self.network(image)
        if features.logits.shape[1] == 0:
            return features.embedding  # type: ignore[no-any-return]
        return (features.logits, features.embedding) if self.embedding else features.logits


@dataclass(frozen=True)
class OpenedRun:
    """The network of a finished run, and images to check it on."""

    folder: RunDir
    run: Run
    state: str  # "final", or a saved state of a teacher
    network: Network  # in evaluation mode
    classes: int
    names: tuple[str, ...]  # of the classes; () if neither the run nor its data tell them
    side: int  # of the square images it was trained on
    maps: bool  # segmentation: outputs are maps, and images may have any size
    margin: float  # how much larger than `side` an image file is made before the centre crop
    images: Tensor  # (COUNT, 3, H, W) in [0, 1]
    source: str  # of the images
    sets: DataSplits | None = None  # the run's data, if they are available

    @property
    def bare(self) -> nn.Module:
        """The network without our wrapper."""
        return bare(self.network)

    @property
    def shorter_side(self) -> int:
        """Of an image file, before the square is cut from its centre."""
        return round(self.margin * self.side)

    def batches(self) -> list[Tensor]:
        """Batches to check with; of scenes the last one has an odd size."""
        batches = [self.images[:size] for size in BATCHES]
        if self.maps:
            height, width = (max(side - odd, SMALLEST) for side, odd in zip(self.images.shape[2:], ODD, strict=True))
            batches[-1] = batches[-1][:, :, :height, :width].contiguous()
        return batches


def open_run(folder: RunDir, sets: DataSplits | None, state: str = "final") -> OpenedRun:
    """Open a finished student, or a state of a teacher. `sets`: its data; None if they are not available."""
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
        raise UserError(f"{folder.path} is a student, which has its final state only; --state is for teachers")
    known = DATASETS[run.data.name].size if run.data.name in DATASETS else None
    side = sets.image_size if sets else run.data.image_size or (known.side if known else DEFAULT_SIDE)
    names = sets.classes if sets else tuple(map(str, folder.result().get("classes") or ()))
    classes = len(names) or _count_classes(folder, weights, side)
    network = build_saved(folder, classes, side)
    load_checked(network, weights, path)
    network.requires_grad_(False).eval()
    maps = feature_shapes(network, side).maps
    in_memory = isinstance(next(iter(sets.tests.values())), ImageSet) if sets else side <= IN_MEMORY
    images, source = _test_images(sets, maps) if sets else _noise(side, maps)
    margin = 1.0 if in_memory else MARGIN
    return OpenedRun(folder, run, state, network, classes, names, side, maps, margin, images, source, sets)


def bare(network: Network) -> nn.Module:
    """A network without our wrapper: its weights have the names that its own library gives them."""
    body = network.body
    return body.module if isinstance(body, FeatureExtractor) else body


def _count_classes(folder: RunDir, weights: dict[str, Tensor], side: int) -> int:
    """From the weights whose shape differs from that of a network for two classes."""
    two = build_saved(folder, 2, side).state_dict()
    if two.keys() - weights.keys():
        return 0  # it has no classifier
    heads = [weights[key] for key in two if key in weights and weights[key].shape != two[key].shape]
    counts = {len(weight) if weight.ndim else 0 for weight in heads}
    if len(counts) > 1 or 0 in counts:
        raise UserError("the weights do not tell how many classes there are; give the data's place as --data-root")
    return counts.pop() if counts else 2


def _test_images(sets: DataSplits, maps: bool) -> tuple[Tensor, str]:
    """A few of the first test set, the same every time, cropped to their common size; of large scenes a part."""
    name, images = next(iter(sets.tests.items()))
    few = take(images, order(len(images), 0, 0)[:COUNT].sort().values)
    loader = Loader.in_order(few, 1, sets.image_size, workers=0)
    most = sets.image_size * 3 // 2 if maps else sets.image_size
    loaded = [batch.image[0, :, :most, :most] for batch in loader.epoch(0)]
    height, width = (min(image.shape[side] for image in loaded) for side in (1, 2))
    stacked = torch.stack([loaded[at % len(loaded)][:, :height, :width] for at in range(COUNT)])
    return stacked, f"{plural(len(loaded), 'image')} of the {name} set of {short_name(sets.name)}"


def _noise(side: int, maps: bool) -> tuple[Tensor, str]:
    generator = torch.Generator().manual_seed(0)
    width = side + side // 2 if maps else side
    return torch.rand(COUNT, 3, side, width, generator=generator), f"{COUNT} images of noise"


def check(opened: OpenedRun, embedding: bool, exported: Exported) -> dict[str, Any]:
    """Compare the exported network with the original, or raise."""
    original, largest = ExportModule(opened.network, embedding), 0.0
    batches = opened.batches()
    for image in batches:
        count = f"{len(image)} of {opened.source}"
        with torch.no_grad(), library_errors(f"the network or its export fails on {count}", "nothing was written"):
            expected = as_tuple(original(image))
            if not all(bool(torch.isfinite(output).all()) for output in expected):
                raise UserError(f"{opened.folder.path} gives numbers that are not finite on {opened.source}")
            actual = tuple(exported(image))
        largest = max(largest, *(difference(*pair) for pair in zip(expected, actual, strict=True)))
        if not largest <= TOLERANCE:
            by = f"{largest:.2g} of its largest value on {count}, more than {TOLERANCE:g}"
            raise UserError(f"the exported network differs from the original by {by}; nothing was written")
    return {
        "images": opened.source,
        "batches": tuple(map(len, batches)),
        "sizes": tuple(dict.fromkeys(tuple(image.shape[2:]) for image in batches)),  # height and width, each once
        "largest": largest,  # difference, relative to the largest value
        "allowed": TOLERANCE,
    }


def difference(expected: Tensor, actual: Tensor) -> float:
    """The largest difference relative to the largest value; infinite if shape or dtype differ or it is not a number."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype or bool(actual.isnan().any()):
        return float("inf")
    scale = expected.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
    return float((actual - expected).abs().max() / scale)


def as_tuple(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (output,) if isinstance(output, Tensor) else output


@contextmanager
def library_errors(what: str, remedy: str) -> Iterator[None]:
    """Turn an exception of another library into one line with its reason."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        raise UserError(f"{what} ({first_line(error).strip()}); {remedy}") from error


def short_name(data: str) -> str:
    """The name of a data set, without the path of a folder."""
    kind, colon, path = data.partition(":")
    return f"{kind}{colon}{Path(path).name}"
