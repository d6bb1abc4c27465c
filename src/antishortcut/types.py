"""The words every room shares: what a batch, a set of images, a feature and a method are."""
# N images, B batch, C classes, D embedding, H × W pixels

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

VOID = 255  # the label of a pixel that counts for nothing


@dataclass(frozen=True)
class ImageSet:
    """Images held in memory, raw."""

    image: Tensor  # (N, 3, H, W) uint8
    label: Tensor  # (N,) int64; of a dense set (N, H, W) uint8, VOID where a pixel has none
    # further facts: of every image (N,), {"texture": …}, or of every pixel (N, H, W), {"texture_map": …}
    cues: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True)
class FileSet:
    """Images that stay on disk and are decoded when needed."""

    paths: tuple[Path, ...]
    label: Tensor  # (N,) int64; of a dense set zeros: what it is about is in the masks
    cues: Mapping[str, Tensor] = field(default_factory=dict)
    masks: tuple[Path, ...] = ()  # of a dense set: a picture of labels for every image
    lookup: Tensor | None = None  # (256,) uint8: from a value in a mask to a class or VOID; None: as they are

    def __len__(self) -> int:
        return len(self.label)


AnySet = ImageSet | FileSet


def is_dense(images: AnySet) -> bool:
    """Whether every pixel has a label, not every image."""
    return bool(images.masks) if isinstance(images, FileSet) else images.label.ndim == 3


@dataclass(frozen=True)
class DataSplits:
    """A data set as a run sees it."""

    name: str
    classes: tuple[str, ...]
    image_size: int  # side of the square images that networks receive; of a dense set in training only
    train: AnySet
    val: AnySet | None  # held out of training, when asked for
    tests: Mapping[str, AnySet]  # the first one is the headline: {"test": …} or {"iid": …, "conflict": …}
    fingerprint: str  # changes when the images or labels do


@dataclass(frozen=True)
class Batch:
    image: Tensor  # (B, 3, H, W) float in [0, 1]
    label: Tensor  # (B,) int64; of a dense set (B, H, W)
    index: Tensor  # (B,) int64, place in the training set
    index_cpu: Tensor | None = None  # the same in main memory, where it is read without waiting for a device
    mixed_label: Tensor | None = None  # (B,) the label of what was mixed into an image
    mix_ratio: Tensor | None = None  # (B,) how much of it is the image's own, in [0, 1]


@dataclass(frozen=True)
class Features:
    """What a network gives for a batch of raw images: vectors, or maps of which a task samples locations."""

    logits: Tensor  # (B, C), or maps (B, C, h, w)
    embedding: Tensor  # (B, D), the input of the classifier, or maps (B, D, h, w)
    stages: tuple[Tensor, ...] = ()  # maps (B, C_i, H_i, W_i), shallow to deep
    aux: Tensor | None = None  # logits of an auxiliary head, maps (B, C, h, w), for the task's own loss alone


@dataclass(frozen=True)
class Shape:
    """Sizes of one network's features, found by probing."""

    embedding: int  # D
    stages: tuple[tuple[int, int, int], ...] = ()  # (C_i, H_i, W_i)
    maps: bool = False  # whether logits and embedding are maps


@dataclass(frozen=True)
class Sizes:
    """Everything a method may need to know before it sees a batch."""

    classes: int
    examples: int  # training images
    student: Shape
    teachers: Mapping[str, Shape] = field(default_factory=dict)  # by role
    labels: Tensor | None = None  # (examples,) training labels


class Method(Protocol):
    """A distillation method: a plain nn.Module built as X(sizes, *, hyper-parameters with defaults)."""

    roles: tuple[str, ...]  # which teacher states it wants: ("final",), ("final", "early"), …
    taps: tuple[str, ...]  # what it wants besides logits and embedding: () or ("stages",)
    task_weight: float  # weight of the task's own loss beside its terms

    def terms(
        self, student: Features, teachers: Mapping[str, Features], batch: Batch, epoch: float
    ) -> dict[str, Tensor]:
        """Weighted, named, scalar loss terms."""
        ...


@runtime_checkable
class Prepares(Protocol):
    """A method that wants one pass over the teachers' features of the training set before training."""

    def prepare(self, stream: Iterable[Mapping[str, Features]]) -> None: ...


@runtime_checkable
class Projects(Protocol):
    """A method that maps the student's embeddings (B, d) into the teacher's space (B, D) by a head of its own."""

    def project(self, student: Tensor) -> Tensor: ...


@runtime_checkable
class TrainingView(Protocol):
    """A method that has task and terms see the student otherwise than it will be used: a view for training alone."""

    def view(self, student: Features, teachers: Mapping[str, Features]) -> Features: ...


@runtime_checkable
class NoMixup(Protocol):
    """A method that cannot learn from images mixed with others, which have two labels and are no image of the set."""

    no_mixup: str  # why, as the end of a sentence


class Task(Protocol):
    """What is being learned: its own loss, which samples the methods see, and how they are scored."""

    primary_metric: str  # the score by which one state is better than another
    dense: bool  # whether every pixel has a label, and networks return maps
    eval_batch_size: int  # images that are scored at a time

    def loss(self, student: Features, batch: Batch) -> dict[str, Tensor]: ...

    def samples(
        self, student: Features, teachers: Mapping[str, Features], batch: Batch
    ) -> tuple[Features, Mapping[str, Features], Batch]: ...

    def weight(self, batch: Batch) -> Tensor:
        """How much this batch's loss counts beside those of other processes: what it is a mean over. (1,)"""
        ...

    def num_samples(self, images: int) -> int:
        """How many samples that many training images are to a method that remembers some."""
        ...

    def counts(self, outputs: Features, label: Tensor) -> Tensor:
        """Counts of a batch from which scores are made; those of several batches or processes are added up."""
        ...

    def scores(self, counts: Tensor) -> dict[str, float]: ...

    def report(
        self, stream: Iterable[tuple[Features, Batch]], images: AnySet, classes: tuple[str, ...]
    ) -> dict[str, Any]:
        """All there is to say of a network's outputs on a whole set, in its order: {"values": {name: number}, …}."""
        ...
