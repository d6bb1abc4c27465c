"""What is exported: a network of a finished run, what is known of its images, and some of them to check with."""
# B batch, H × W pixels

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from antishortcut.cost import size_of
from antishortcut.data import Loader, order
from antishortcut.data.loading import MARGIN
from antishortcut.data.parts import take
from antishortcut.data.sources import IN_MEMORY
from antishortcut.errors import UserError, counted
from antishortcut.folder import Folder
from antishortcut.models import Network, probe
from antishortcut.models.weights import put
from antishortcut.models.weights import read as read_weights
from antishortcut.run import ModelSettings, Run
from antishortcut.teachers import Trajectory, network_of
from antishortcut.types import ImageSet, Sets

BATCHES = (1, 2, 5)  # that are checked; it is traced with two
SMALLEST = 16  # pixels of a side, where images may have any size
ODD = (3, 5)  # pixels that the last batch lacks where images may have any size: no multiple of a stride
USUAL = 224  # the side of images in a folder, unless a recipe says another


@dataclass(frozen=True)
class Opened:
    folder: Folder
    run: Run
    state: str  # "final", or one that a teacher kept
    weights: Path
    network: Network  # in evaluation mode
    classes: int
    names: tuple[str, ...]  # of the classes; () where the data are not here
    side: int  # of the square images it learned from
    maps: bool  # whether it gives maps, of images of any size, or vectors
    margin: float  # how much larger than `side` an image file is made before its centre is cut out
    images: tuple[Tensor, ...]  # each (3, H, W) in [0, 1]
    source: str  # where they are from

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.network.parameters())

    def batch(self, size: int) -> Tensor:
        """So many images (B, 3, H, W), cut to the size they have in common; of one alone nothing is cut."""
        chosen = [self.images[at % len(self.images)] for at in range(size)]
        height, width = (min(image.shape[side] for image in chosen) for side in (1, 2))
        return torch.stack([image[:, :height, :width] for image in chosen])

    def traced(self) -> Tensor:
        """Two images of the size that all have in common."""
        return self.batch(max(BATCHES))[:2]

    def tried(self, free: bool) -> list[Tensor]:
        """Batches to check with. `free`: images may have any size, so the last is of an odd one."""
        batches = [self.batch(size) for size in BATCHES]
        height, width = batches[-1].shape[2:]
        if free:
            less = (max(side - odd, SMALLEST) for side, odd in zip((height, width), ODD, strict=True))
            return [*batches[:-1], _corner(batches[-1], *less)]
        return [_corner(batch, height, width) for batch in batches]


def _corner(batch: Tensor, height: int, width: int) -> Tensor:
    return batch[:, :, :height, :width].contiguous()


def open_run(folder: Folder, sets: Sets | None, state: str = "final") -> Opened:
    """A finished run's student, or a state of a teacher. `sets`: its data, None where they are not here."""
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
    classes = len(sets.classes) if sets else _classes(blank, weights, side)
    network = network_of(blank, classes, side)
    put(network, weights, path)
    network.requires_grad_(False).eval()
    maps = probe(network, side).maps
    images, source = _images(sets, maps) if sets else _noise(side, maps)
    return Opened(
        folder, run, state, path, network, classes, sets.classes if sets else (), side, maps,
        _margin(sets, side), images, source,
    )  # fmt: skip


def _classes(model: ModelSettings, weights: dict[str, Tensor], side: int) -> int:
    """How many, by the weights alone: what would have another shape if there were two."""
    two = network_of(model, 2, side).state_dict()
    other = [weights[key] for key in two if key in weights and weights[key].shape != two[key].shape]
    found = {len(weight) if weight.ndim else 0 for weight in other}
    if len(found) > 1 or 0 in found:
        raise UserError("the weights do not tell how many classes there are; give the data's place as --data-root")
    return found.pop() if found else 2


def _margin(sets: Sets | None, side: int) -> float:
    """Files are made larger than the centre that is cut out of them; what is kept in memory is not."""
    in_memory = isinstance(next(iter(sets.tests.values())), ImageSet) if sets else side <= IN_MEMORY
    return 1.0 if in_memory else MARGIN


def _images(sets: Sets, maps: bool) -> tuple[tuple[Tensor, ...], str]:
    """A few of the first test set, the same every time; of large scenes a part, which costs no gigabytes."""
    name, images = next(iter(sets.tests.items()))
    few = take(images, order(len(images), 0, 0)[: max(BATCHES)].sort().values)
    loader = Loader(few, batch=1, seed=0, image_size=sets.image_size, augment="none", shuffle=False, workers=0)
    most = sets.image_size * 3 // 2 if maps else sets.image_size
    found = tuple(batch.image[0, :, :most, :most] for batch in loader.epoch(0))
    return found, f"{counted(len(found), 'image')} of the {name} set of {short(sets.name)}"


def _noise(side: int, maps: bool) -> tuple[tuple[Tensor, ...], str]:
    dice = torch.Generator().manual_seed(0)
    wider = side // 2 if maps else 0
    images = tuple(torch.rand(3, side, side + wider, generator=dice) for _ in range(max(BATCHES)))
    return images, f"{len(images)} images of noise"


def short(data: str) -> str:
    """The name of data; of a folder not where it lies."""
    kind, colon, path = data.partition(":")
    return f"{kind}{colon}{Path(path).name}"
