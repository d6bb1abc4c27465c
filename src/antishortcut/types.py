"""Types that every module shares: images, batches, features, and the Method and Task protocols."""
# N images, B batch, C classes, D embedding, H × W pixels

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

VOID = 255  # the label of a pixel that is ignored
UNLABELLED = -1  # the label of an image that has none


# images (B, 3, H, W) uint8 and cues (B,) → the images with these cues painted over them
Painter = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ImageSet:
    """Images held in memory, raw."""

    image: Tensor  # (N, 3, H, W) uint8
    label: Tensor  # (N,) int64, UNLABELLED without one; dense: (N, H, W) uint8, VOID where a pixel has no label
    # attributes besides the label: {"texture": (N,)} per image, or {"texture_map": (N, H, W)} per pixel
    cues: Mapping[str, Tensor] = field(default_factory=dict)
    painter: Painter | None = None  # of the shortcut that is planted in them, until they are painted
    cover: Tensor | None = None  # (N, H, W) in [0, 1], how much of each pixel is the object, where that is known

    def __len__(self) -> int:
        return len(self.label)


class ImageStore(Protocol):
    """A file with many images in it: a tar shard, or a table."""

    @property
    def name(self) -> str:
        """The same on every machine: it is part of the fingerprint."""

    @property
    def time(self) -> int:
        """When it was modified, in nanoseconds."""

    @property
    def remote(self) -> bool:
        """Whether every read is a request to another machine."""

    def read(self, at: int, size: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class PackedImage:
    """An image file inside a larger file."""

    store: ImageStore
    name: str
    at: int  # its first byte in a shard, or its row in a table
    size: int  # bytes

    def __str__(self) -> str:
        return f"{self.store}/{self.name}"

    def read(self) -> bytes:
        return self.store.read(self.at, self.size)


ImageRef = Path | PackedImage


@dataclass(frozen=True)
class FileSet:
    """Images that stay where they are and are decoded when needed."""

    paths: tuple[ImageRef, ...]
    label: Tensor  # (N,) int64, UNLABELLED without one; dense: zeros, the labels are in the masks
    cues: Mapping[str, Tensor] = field(default_factory=dict)
    masks: tuple[Path, ...] = ()  # dense: one image of labels per image
    lookup: Tensor | None = None  # (256,) uint8: mask value → class or VOID; None: unchanged
    painter: Painter | None = None  # of the shortcut that is planted in them

    def __len__(self) -> int:
        return len(self.label)


AnySet = ImageSet | FileSet


def is_dense(images: AnySet) -> bool:
    """Whether every pixel has a label, instead of every image."""
    return bool(images.masks) if isinstance(images, FileSet) else images.label.ndim == 3


def lacks_labels(images: AnySet) -> bool:
    """Whether some images have no label."""
    return not is_dense(images) and bool((images.label == UNLABELLED).any())


@dataclass(frozen=True)
class DataSplits:
    """A data set as a run sees it."""

    name: str
    classes: tuple[str, ...]  # empty: images alone, and networks without a classifier
    image_size: int  # side of the square images that networks receive (dense: in training only)
    train: AnySet
    val: AnySet | None  # held out of training, if requested
    tests: Mapping[str, AnySet]  # the first one is the main one: {"test": …} or {"iid": …, "conflict": …}
    fingerprint: str  # changes when the images or labels do
    hashed: str = "content"  # how it notices changed images; or "names, sizes, times …" of too many bytes to hash
    note: str = ""  # printed when a run opens the data
    labelled: str = ""  # the fingerprint without images that have no labels: what a teacher is trained on
    classified: DataSplits | None = None  # the same with its classes, if they were left out

    def split(self, name: str) -> AnySet:
        """ "train", "val" if there is one, or a test set by its name."""
        if name == "val" and self.val is not None:
            return self.val
        return self.train if name == "train" else self.tests[name]

    @property
    def eval_split(self) -> str:
        """The split that is scored during training: "val", or the first test set."""
        return "val" if self.val is not None else next(iter(self.tests))


@dataclass(frozen=True)
class Batch:
    image: Tensor  # (B, 3, H, W) float in [0, 1]
    label: Tensor  # (B,) int64, UNLABELLED without one; dense: (B, H, W)
    index: Tensor  # (B,) int64, place in the training set
    index_cpu: Tensor | None = None  # the same on the CPU, readable without waiting for a device
    mixed_label: Tensor | None = None  # (B,) the label of what was mixed into an image
    mix_ratio: Tensor | None = None  # (B,) how much of it is the image's own, in [0, 1]
    strong: Tensor | None = None  # (B,) bool, which images are strong views; half of them, or None if there are none


@dataclass(frozen=True)
class Features:
    """A network's outputs for a batch of raw images: vectors, or maps of which a task samples locations."""

    logits: Tensor  # (B, C), or maps (B, C, h, w); (B, 0) of a network without a classifier
    embedding: Tensor  # (B, D), the input of the classifier, or maps (B, D, h, w)
    stages: tuple[Tensor, ...] = ()  # maps (B, C_i, H_i, W_i), shallow to deep
    aux: Tensor | None = None  # logits of an auxiliary head (B, C, h, w), only for the task's loss
    last: Tensor | None = None  # the map (B, D, H, W) whose mean is the embedding, where there is one
    preact: tuple[Tensor, ...] = ()  # the stages before their last ReLU, if a method taps them

    def float32(self, taps: Collection[str] = ()) -> Features:
        """The same in float32, with those maps that a method taps."""
        stages = tuple(stage.float() for stage in self.stages) if "stages" in taps else ()
        last = self.last.float() if "last" in taps and self.last is not None else None
        aux = None if self.aux is None else self.aux.float()
        preact = tuple(stage.float() for stage in self.preact)
        return Features(self.logits.float(), self.embedding.float(), stages, aux, last, preact)


@dataclass(frozen=True)
class Shape:
    """Sizes of one network's features, found by probing."""

    embedding: int  # D
    stages: tuple[tuple[int, int, int], ...] = ()  # (C_i, H_i, W_i)
    maps: bool = False  # whether logits and embedding are maps
    side: tuple[int, int] = (1, 1)  # of the map whose mean is the embedding; 1 × 1 where there is none
    signed: bool = False  # whether that map, or else the embedding, has negative values
    head: bool = True  # whether the logits are a linear layer of the embedding
    preact: tuple[bool, ...] = ()  # of each stage, whether it has a ReLU that can be read, or negative values
    weak: bool = False  # whether it is another network in T_early's place, whose embedding cannot be compared


@dataclass(frozen=True)
class Sizes:
    """Everything a method may need to know before it sees a batch."""

    classes: int
    examples: int  # training samples: images, or of segmentation at most so many locations an epoch
    student: Shape
    teachers: Mapping[str, Shape] = field(default_factory=dict)  # by role
    labels: Tensor | None = None  # (examples,) training labels
    groups: Tensor | None = None  # (examples,) each training image's group, from 0 without gaps; None: no groups


class Method(Protocol):
    """A distillation method: a plain nn.Module built as X(sizes, *, hyper-parameters with defaults).

    Heads are child modules, queues and banks are buffers that change in training mode only, and teachers get no
    gradient (detach). Inputs are float32 and autocast is off. With several processes logits, embeddings, labels and
    indices are those of all, images, stages and preact those of this one.
    """

    roles: tuple[str, ...]  # the teacher states it needs: ("final",), ("final", "early"), …
    taps: tuple[str, ...]  # what it needs besides logits and embedding: "stages", "preact", "last"
    task_weight: float  # weight of the task's own loss beside its terms

    def terms(
        self, student: Features, teachers: Mapping[str, Features], batch: Batch, epoch: float
    ) -> dict[str, Tensor]:
        """Weighted, named, scalar loss terms. epoch: a fraction; in recipes with `iterations`, the iteration."""


@runtime_checkable
class Prepares(Protocol):
    """A method that needs one pass over the teachers' features of the training set before training."""

    def prepare(self, stream: Iterable[Mapping[str, Features]]) -> None: ...


@runtime_checkable
class ReadsStages(Protocol):
    """A method that reads these stages of T_final alone, tapped as "stages" or "preact": a cache keeps no others.

    Without it every map of every teacher counts as read.
    """

    stages_read: tuple[int, ...]  # 0 is the stem, −1 the deepest


@runtime_checkable
class Projects(Protocol):
    """A method with a head that maps student embeddings (B, d) into the teacher's space (B, D)."""

    def project(self, student: Tensor) -> Tensor: ...


@runtime_checkable
class TrainingView(Protocol):
    """A method that changes the student's outputs for task and terms, in training only."""

    def view(self, student: Features, teachers: Mapping[str, Features]) -> Features: ...


@runtime_checkable
class ReusesClassifier(Protocol):
    """A method whose student ends in its teacher's classifier: that network is trained, evaluated, saved, exported."""

    def deployed(self, student: nn.Module, head: nn.Linear) -> nn.Module:
        """The student (a `models.Network`), before its first step, with a copy of its final teacher's classifier."""


@runtime_checkable
class HasNote(Protocol):
    """A method that has something to say before training, as what it leaves out."""

    note: str


@runtime_checkable
class TaskSchedule(Protocol):
    """A method whose weight of the task's loss changes in training."""

    def task_weight_at(self, epoch: float) -> float: ...


@runtime_checkable
class InitialPhase(Protocol):
    """A method that starts with something else than its actual training, which must be left some time."""

    init: float  # its length in epochs; in recipes with `iterations`, in iterations


@runtime_checkable
class NoMixup(Protocol):
    """A method that cannot learn from mixed images, which have two labels and no index of their own."""

    no_mixup: str  # why, as the end of a sentence


@runtime_checkable
class BalancesGroups(Protocol):
    """A method whose training images are drawn with replacement, every group as often as any other."""

    balanced_groups: Tensor | None  # (examples,) each training image's group; None: every image once an epoch


@runtime_checkable
class Finishes(Protocol):
    """A method that changes the trained network once more, after the last step and before its last evaluation.

    The first process does it alone. If it is killed meanwhile it does it again, so the same input must give the same
    bits.
    """

    def check_finish(self, network: nn.Module, data: DataSplits) -> None:
        """Before training: a ValueError if `finish` could not work."""

    def finish(self, network: nn.Module, data: DataSplits, embed: Callable[[AnySet], Tensor], seed: int) -> str:
        """Change the network in place. embed: the embeddings (N, D) of a set, on the CPU. Returns a line to print."""


@runtime_checkable
class StrongView(Protocol):
    """A method that sees every image twice: as usual, and strongly augmented (`Batch.strong`). Costs twice as much."""

    strong_view: bool  # True


@runtime_checkable
class ScoredByTeacher(Protocol):
    """A task without labels: a student is scored by how well it agrees with its teacher."""

    def agreement(self, student: Features, teacher: Features) -> Tensor:
        """Counts of a batch, as Task.counts; the student's embedding is in the teacher's space."""


Samples = tuple[Features, Mapping[str, Features], Batch]  # of the student, of the teachers by role, and their labels
Stream = Iterable[tuple[Features, Batch]]


class Task(Protocol):
    """What is learned: its own loss, which samples the methods see, and how outputs are scored."""

    primary_metric: str  # the score by which one state is better than another
    dense: bool  # whether every pixel has a label, and networks return maps
    eval_batch_size: int

    def loss(self, student: Features, batch: Batch) -> dict[str, Tensor]: ...

    def samples(self, student: Features, teachers: Mapping[str, Features], batch: Batch) -> Samples:
        """What methods see: the outputs themselves, or those at sampled locations of maps."""

    def weight(self, batch: Batch) -> Tensor:
        """How many labels this batch's loss is a mean over. (1,)"""

    def num_samples(self, images: int) -> int:
        """How many samples so many training images are for a method with a memory."""

    def counts(self, outputs: Features, label: Tensor) -> Tensor:
        """Counts of a batch from which scores are computed; counts of batches and processes are added up."""

    def scores(self, counts: Tensor) -> dict[str, float]: ...

    def report(self, stream: Stream, images: AnySet, classes: tuple[str, ...]) -> dict[str, Any]:
        """Everything about a network's outputs on a whole set: {"values": {name: number}, …}."""
