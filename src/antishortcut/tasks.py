"""What is learned: the task's own loss, which samples the methods see, and how they are scored."""
# B batch, C classes, D embedding, H × W pixels, h × w locations of a map, R samples

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antishortcut.data.groups import groups_of
from antishortcut.distributed import world
from antishortcut.errors import UserError
from antishortcut.metrics import (
    accuracy,
    accuracy_of,
    class_answers,
    class_iou,
    confusion,
    hits,
    segmentation,
    shape_bias,
    taken_for,
)
from antishortcut.types import (
    UNLABELLED,
    VOID,
    AnySet,
    Batch,
    DataSplits,
    Features,
    Samples,
    Shape,
    Sizes,
    Stream,
    Task,
    is_dense,
    lacks_labels,
)

SEGMENT = ", like dense-8 or deeplabv3-resnet18"


def build_task(sets: DataSplits, *, label_smoothing: float = 0.0, samples: int = 1024, aux: float = 0.4) -> Task:
    """The task a data set poses."""
    if is_dense(sets.train):
        return Segmentation(len(sets.classes), samples=samples, aux=aux, label_smoothing=label_smoothing)
    if not lacks_labels(sets.train):
        return Classification(label_smoothing=label_smoothing)
    if not lacks_labels(sets.split(sets.eval_split)):
        return PartlyLabelled(label_smoothing=label_smoothing)
    return TeacherAgreement() if sets.classes else EmbeddingAgreement()


def method_sizes(task: Task, sets: DataSplits, student: Shape, teachers: Mapping[str, Shape]) -> Sizes:
    """What a method may know beforehand of the data and the networks; pixels' labels are no labels of samples."""
    label = groups = None
    if not task.dense:
        label, groups = sets.train.label, groups_of(sets.train, sets.classes)[0] if sets.train.cues else None
    return Sizes(len(sets.classes), task.num_samples(len(sets.train)), student, teachers, label, groups)


def check_networks(task: Task, sets: DataSplits, sizes: Sizes) -> None:
    """Refuse networks that give vectors where the data have maps, or the other way round."""
    for who, shape in (("student", sizes.student), *sizes.teachers.items()):
        if shape.maps is not task.dense:
            has, gives = ("pixel", "one vector an image") if task.dense else ("image", "maps")
            raise UserError(
                f"{sets.name} has a class for every {has}, but the {who} network gives {gives}; "
                f"choose another{SEGMENT * task.dense} (asd list models)"
            )


class Classification:
    """Cross-entropy on class labels; every image is one sample."""

    primary_metric = "accuracy"
    dense = False
    eval_batch_size = 256

    def __init__(self, *, label_smoothing: float = 0.0) -> None:
        self.label_smoothing = label_smoothing

    def loss(self, student: Features, batch: Batch) -> dict[str, Tensor]:
        target = batch.label if batch.mixed_label is None else soft_labels(batch, student.logits)
        return {"task": F.cross_entropy(student.logits, target, label_smoothing=self.label_smoothing)}

    def samples(self, student: Features, teachers: Mapping[str, Features], batch: Batch) -> Samples:
        return student, teachers, batch

    def weight(self, batch: Batch) -> Tensor:
        return torch.tensor([len(batch.label)], device=batch.label.device)

    def num_samples(self, images: int) -> int:
        return images

    def counts(self, outputs: Features, label: Tensor) -> Tensor:
        return hits(outputs.logits, label)

    def scores(self, counts: Tensor) -> dict[str, float]:
        return dict(accuracy_of(counts))

    def report(self, stream: Stream, images: AnySet, classes: tuple[str, ...]) -> dict[str, Any]:
        """Accuracy, classes, mistakes; where textures or planted cues are all another class's, how many follow them."""
        logits = torch.cat([outputs.logits for outputs, _ in stream])  # (N, C)
        values = dict(accuracy(logits, images.label))
        if "texture" in images.cues and bool((images.cues["texture"] != images.label).all()):
            values |= dict(shape_bias(logits, images.label, images.cues))
        planted = images.cues.get("planted")
        if planted is not None and bool(((planted != images.label) & (planted >= 0)).all()):
            values["by_cue"] = float((logits.argmax(dim=1) == planted).double().mean())
        return {"values": values} | class_answers(logits, images.label, classes)


class PartlyLabelled(Classification):
    """Cross-entropy on those images that have a label; methods see all images, and labelled ones are scored."""

    def loss(self, student: Features, batch: Batch) -> dict[str, Tensor]:
        """Mean over the labelled images of a batch; 0 where there are none."""
        settings = {"ignore_index": UNLABELLED, "label_smoothing": self.label_smoothing}
        total = F.cross_entropy(student.logits, batch.label, reduction="sum", **settings)  # type: ignore[arg-type]
        return {"task": total / self.weight(batch).sum().clamp(min=1)}

    def weight(self, batch: Batch) -> Tensor:
        return (batch.label != UNLABELLED).sum()[None]


class TeacherAgreement(Classification):
    """No labels, so no loss of its own: a student is scored by the share of images it puts in its teacher's class."""

    primary_metric = "agreement"

    def __init__(self) -> None:
        super().__init__()

    def loss(self, student: Features, batch: Batch) -> dict[str, Tensor]:
        return {}

    def agreement(self, student: Features, teacher: Features) -> Tensor:
        """Images, those in the same class, and the sum of KL(teacher ‖ student). (3,)"""
        same = student.logits.argmax(dim=1) == teacher.logits.argmax(dim=1)  # (B,)
        log_p, log_q = (outputs.logits.float().log_softmax(dim=1) for outputs in (student, teacher))  # (B, C)
        return torch.stack([log_p.new_tensor(len(same)), same.float().sum(), (log_q.exp() * (log_q - log_p)).sum()])

    def scores(self, counts: Tensor) -> dict[str, float]:
        images, same, divergence = counts.tolist()
        return {"agreement": same / images, "kl": divergence / images}


class EmbeddingAgreement(TeacherAgreement):
    """No classes either: scored by the cosine of the student's embedding, in the teacher's space, to the teacher's."""

    primary_metric = "cosine"

    def agreement(self, student: Features, teacher: Features) -> Tensor:
        """Images, and the sum of cosines. (2,)"""
        cosine = F.cosine_similarity(student.embedding.float(), teacher.embedding.float(), dim=1)  # (B,)
        return torch.stack([cosine.new_tensor(len(cosine)), cosine.sum()])

    def scores(self, counts: Tensor) -> dict[str, float]:
        images, total = counts.tolist()
        return {"cosine": total / images}


def soft_labels(batch: Batch, logits: Tensor) -> Tensor:
    """Class probabilities of mixed images: ratio · own + (1 − ratio) · mixed in. (B, C)"""
    assert batch.mixed_label is not None
    assert batch.mix_ratio is not None
    own, other = (F.one_hot(label, logits.shape[1]).to(logits) for label in (batch.label, batch.mixed_label))  # (B, C)
    ratio = batch.mix_ratio.to(logits)[:, None]  # (B, 1)
    return ratio * own + (1 - ratio) * other


class Segmentation:
    """A class for every pixel: cross-entropy on maps brought to the labels' size; void pixels count for nothing.

    Methods see `samples` locations of a step, drawn from those of the student's map that have a label (the loop
    seeds the draw with the step), with the teachers' maps brought to that map's size. A sample's index is its image's.
    """

    primary_metric = "miou"
    dense = True
    eval_batch_size = 16

    def __init__(self, classes: int, *, samples: int = 1024, aux: float = 0.4, label_smoothing: float = 0.0) -> None:
        self.classes, self.num_locations, self.aux, self.label_smoothing = classes, samples, aux, label_smoothing

    def loss(self, student: Features, batch: Batch) -> dict[str, Tensor]:
        terms = {"task": self._cross_entropy(student.logits, batch.label)}
        if student.aux is not None:  # a weight of 0 must still reach the head: DDP waits for every parameter
            own = self._cross_entropy(student.aux, batch.label) if self.aux != 0 else student.aux.sum()
            terms["aux"] = self.aux * own
        return terms

    def _cross_entropy(self, logits: Tensor, label: Tensor) -> Tensor:
        """Mean over labelled pixels; 0 where there are none."""
        whole = resized(logits, label.shape[1:])  # (B, C, H, W)
        total = F.cross_entropy(whole, label, ignore_index=VOID, reduction="sum", label_smoothing=self.label_smoothing)
        return total / (label != VOID).sum().clamp(min=1)

    def samples(self, student: Features, teachers: Mapping[str, Features], batch: Batch) -> Samples:
        grid = student.embedding.shape[2:]  # (h, w)
        # the label at the centre of each cell, where `resized` reads the maps
        centre = F.interpolate(batch.label[:, None].float(), size=grid, mode="nearest-exact")  # (B, 1, h, w)
        label = centre.flatten().long()  # (B·h·w,)
        known = (label != VOID).nonzero().flatten()
        order = torch.randperm(len(known), device="cpu").to(known.device)  # the same draw on every device
        chosen = known[order[: math.ceil(self.num_locations / world())]]  # (R,)
        at = torch.unravel_index(chosen, (len(batch.label), *grid))  # image, row and column, each (R,)
        outputs = {role: _picked(features, grid, at) for role, features in teachers.items()}
        return _picked(student, grid, at), outputs, replace(batch, label=label[chosen], index=batch.index[at[0]])

    def weight(self, batch: Batch) -> Tensor:
        return (batch.label != VOID).sum()[None]

    def num_samples(self, images: int) -> int:
        """An upper bound on the distinct samples of an epoch."""
        return images * self.num_locations

    def counts(self, outputs: Features, label: Tensor) -> Tensor:
        if len(label) == 0:  # a process without a share of the last batch
            return torch.zeros(self.classes, self.classes, dtype=torch.int64, device=label.device)
        return confusion(resized(outputs.logits.float(), label.shape[1:]), label)

    def scores(self, counts: Tensor) -> dict[str, float]:
        return dict(segmentation(counts))

    def report(self, stream: Stream, images: AnySet, classes: tuple[str, ...]) -> dict[str, Any]:
        """Pixel accuracy and mIoU, by class too; where pixels have a texture of their own, what they are taken for."""
        counts = torch.zeros(self.classes, self.classes, dtype=torch.int64)
        texture = images.cues.get("texture_map")  # (N, H, W)
        by_shape = by_texture = conflicts = 0  # pixels taken for their shape's class, for their texture's; in conflict
        for outputs, batch in stream:
            counts += self.counts(outputs, batch.label)
            if texture is not None:
                guess = resized(outputs.logits.float(), batch.label.shape[1:]).argmax(dim=1)  # (B, H, W)
                other = texture[batch.index].long()  # (B, H, W)
                conflict = (other != VOID) & (batch.label != VOID) & (other != batch.label)
                by_shape += int(((guess == batch.label) & conflict).sum())
                by_texture += int(((guess == other) & conflict).sum())
                conflicts += int(conflict.sum())
        values = self.scores(counts)
        if conflicts:
            values |= dict(taken_for(by_shape, by_texture, conflicts))
        return {"values": values, "classes": class_iou(counts, classes)}


def resized(maps: Tensor, size: torch.Size) -> Tensor:
    """Maps (B, C, h, w) at another size, bilinear."""
    return maps if maps.shape[2:] == size else F.interpolate(maps, size=size, mode="bilinear", align_corners=False)


def _picked(outputs: Features, grid: torch.Size, at: tuple[Tensor, ...]) -> Features:
    """Logits (R, C) and embeddings (R, D) at these locations of a grid; stages stay whole maps."""
    image, row, column = at
    logits, embedding = (resized(maps, grid)[image, :, row, column] for maps in (outputs.logits, outputs.embedding))
    return replace(outputs, logits=logits, embedding=embedding)
