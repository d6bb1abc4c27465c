"""Segmentation as rows: the same losses as for vectors, without void pixels."""
# B batch, C classes, D embedding, h × w locations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from antishortcut.methods import build_method
from antishortcut.metrics import class_iou
from antishortcut.tasks import Classification, Segmentation, build_task
from antishortcut.training.step import DistillationStep
from antishortcut.types import VOID, Batch, DataSplits, Features, ImageSet, Shape, Sizes

CLASSES = 5


def maps(seed: int, width: int = 8, size: tuple[int, int] = (4, 6), batch: int = 3) -> Features:
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, CLASSES, *size, generator=draw)
    return Features(logits, torch.randn(batch, width, *size, generator=draw))


def batch_of(seed: int = 0, size: tuple[int, int] = (16, 24), count: int = 3, void: float = 0.2) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    label = torch.randint(0, CLASSES, (count, *size), generator=draw)
    label[torch.rand(label.shape, generator=draw) < void] = VOID
    return Batch(torch.rand(count, 3, *size, generator=draw), label, torch.arange(count) + 10)


def slow_entropy(logits: Tensor, label: Tensor, smoothing: float) -> float:
    """−Σ q log p over labelled pixels, pixel by pixel; q is smoothed."""
    whole = nn.functional.interpolate(logits.double(), size=label.shape[1:], mode="bilinear", align_corners=False)
    losses = []
    for z, y in zip(whole.movedim(1, -1).reshape(-1, CLASSES).numpy(), label.flatten().tolist(), strict=True):
        if y != VOID:
            q = np.full(CLASSES, smoothing / CLASSES)
            q[y] += 1 - smoothing
            losses.append(-float(q @ (z - np.log(np.exp(z).sum()))))
    return float(np.mean(losses))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_a_mean_over_labelled_pixels(smoothing: float) -> None:
    batch, outputs = batch_of(), replace(maps(1), aux=maps(2).logits)
    terms = Segmentation(CLASSES, aux=0.4, label_smoothing=smoothing).loss(outputs, batch)
    assert outputs.aux is not None
    assert float(terms["task"]) == pytest.approx(slow_entropy(outputs.logits, batch.label, smoothing), rel=1e-5)
    assert float(terms["aux"]) == pytest.approx(0.4 * slow_entropy(outputs.aux, batch.label, smoothing), rel=1e-5)
    assert float(Segmentation(CLASSES, aux=0.0).loss(outputs, batch)["aux"]) == 0
    assert set(Segmentation(CLASSES).loss(maps(1), batch)) == {"task"}


def test_samples_have_the_label_and_index_of_their_location() -> None:
    """Every embedding is the address of its location."""
    grid = torch.stack(torch.meshgrid(torch.arange(3.0), torch.arange(4.0), torch.arange(6.0), indexing="ij"))
    address = grid.permute(1, 0, 2, 3)  # (B, 3, h, w): image, row, column
    student = Features(address[:, :1].expand(-1, CLASSES, -1, -1), address)
    final = Features(2 * address[:, :1].expand(-1, CLASSES, -1, -1), 2 * address)
    batch = batch_of(void=0.4)
    torch.manual_seed(3)
    rows, teachers, joint = Segmentation(CLASSES, samples=30).samples(student, {"final": final}, batch)
    assert len(rows.embedding) == len(joint.label) == 30
    assert torch.equal(teachers["final"].embedding, 2 * rows.embedding)
    assert torch.equal(joint.index, batch.index[rows.embedding[:, 0].long()])
    for (image, row, column), label in zip(rows.embedding.long().tolist(), joint.label, strict=True):
        assert label == batch.label[image, 4 * row + 2, 4 * column + 2] != VOID  # in the middle of a 4 × 4 block
    assert len({tuple(place) for place in rows.embedding.tolist()}) == 30  # none twice
    torch.manual_seed(3)
    again = Segmentation(CLASSES, samples=30).samples(student, {"final": final}, batch)[0]
    assert torch.equal(again.embedding, rows.embedding)
    torch.manual_seed(4)
    other = Segmentation(CLASSES, samples=30).samples(student, {"final": final}, batch)[0]
    assert not torch.equal(other.embedding, rows.embedding)


def test_all_labelled_locations_if_there_are_fewer_than_samples() -> None:
    batch = batch_of(void=0.5)
    rows, _, joint = Segmentation(CLASSES, samples=10_000).samples(maps(1), {}, batch)
    assert len(rows.logits) == len(joint.label) == int((batch.label[:, 2::4, 2::4] != VOID).sum())


def test_teacher_maps_are_resized_to_the_students() -> None:
    coarse, fine = maps(5, size=(2, 3)), maps(1)
    torch.manual_seed(0)
    rows, teachers, _ = Segmentation(CLASSES).samples(fine, {"final": coarse, "early": fine}, batch_of())
    assert teachers["final"].embedding.shape == rows.embedding.shape
    assert torch.equal(teachers["early"].embedding, rows.embedding)
    constant = Features(torch.ones(3, CLASSES, 2, 3), torch.ones(3, 8, 2, 3))
    assert torch.allclose(
        Segmentation(CLASSES).samples(fine, {"final": constant}, batch_of())[1]["final"].embedding, torch.tensor(1.0)
    )


class Fixed(nn.Module):
    """A student with given outputs and one weight."""

    def __init__(self, outputs: Features) -> None:
        super().__init__()
        self.outputs, self.scale = outputs, nn.Parameter(torch.ones(()))

    def forward(self, image: Tensor) -> Features:
        logits, embedding = self.scale * self.outputs.logits, self.scale * self.outputs.embedding
        return replace(self.outputs, logits=logits, embedding=embedding)


def sizes(student: int, teacher: int) -> Sizes:
    shapes = {role: Shape(teacher, ((teacher, 4, 6),)) for role in ("final", "early")}
    return Sizes(CLASSES, 1000, Shape(student, ((student, 4, 6),)), shapes)


@pytest.mark.parametrize("method", ["kd", "asd", "contrast+tc"])
@pytest.mark.parametrize("width", [8, 6])
def test_maps_of_one_location_give_the_losses_of_vectors(method: str, width: int) -> None:
    count = 9
    student = maps(1, width, (1, 1), count)
    teachers = {"final": maps(2, 8, (1, 1), count), "early": maps(3, 8, (1, 1), count)}
    label = torch.arange(count) % CLASSES

    def terms(task: Segmentation | Classification, flat: bool) -> dict[str, Tensor]:
        def cut(outputs: Features) -> Features:
            return Features(outputs.logits.flatten(1), outputs.embedding.flatten(1)) if flat else outputs

        torch.manual_seed(0)
        own = build_method(method, sizes(width, 8), {"warmup": 0.0} if method != "kd" else {})
        there = label if flat else label[:, None, None]
        batch = Batch(torch.rand(count, 3, 1, 1), there, torch.arange(count))
        step = DistillationStep(Fixed(cut(student)), own, task)
        outputs: dict[str, Tensor] = step(batch, {role: cut(f) for role, f in teachers.items()}, 1.0)
        return outputs

    dense, plain = terms(Segmentation(CLASSES), False), terms(Classification(), True)
    assert dense.keys() == plain.keys()
    for name, value in plain.items():
        assert float(dense[name]) == pytest.approx(float(value), rel=1e-5), name


@pytest.mark.parametrize("method", ["ce", "kd", "asd", "contrast+tc", "rkd", "pkt", "cc"])
def test_a_batch_without_a_labelled_pixel_gives_no_gradient(method: str) -> None:
    own = build_method(method, sizes(6, 8), {})
    before = {key: value.clone() for key, value in own.state_dict().items()}
    student = Fixed(replace(maps(1, 6), aux=maps(2).logits))
    batch = replace(batch_of(), label=torch.full((3, 16, 24), VOID))
    teachers: Mapping[str, Features] = {"final": maps(3), "early": maps(4)}
    terms = DistillationStep(student, own, Segmentation(CLASSES))(batch, teachers, 1.0)
    loss = torch.stack(list(terms.values())).sum()
    assert float(loss) == 0
    loss.backward()  # type: ignore[no-untyped-call]
    for part in (*student.parameters(), *own.parameters()):
        assert part.grad is None or not part.grad.any()
    assert all(torch.equal(value, before[key]) for key, value in own.state_dict().items())


def test_scores_equal_torchmetrics() -> None:
    task, total = Segmentation(CLASSES), torch.zeros(CLASSES, CLASSES, dtype=torch.int64)
    iou = MulticlassJaccardIndex(CLASSES, ignore_index=VOID)
    by_class = MulticlassJaccardIndex(CLASSES, ignore_index=VOID, average=None)
    right = MulticlassAccuracy(CLASSES, ignore_index=VOID, average="micro")
    for seed in range(4):
        batch, outputs = batch_of(seed), maps(seed + 10)
        total += task.counts(outputs, batch.label)
        whole = nn.functional.interpolate(outputs.logits, size=(16, 24), mode="bilinear", align_corners=False)
        for metric in (iou, by_class, right):
            metric.update(whole, batch.label)
    scores = task.scores(total)
    assert scores["miou"] == pytest.approx(float(iou.compute()), rel=1e-5)
    assert scores["accuracy"] == pytest.approx(float(right.compute()), rel=1e-5)
    named = class_iou(total, tuple("abcde"))
    assert [named[name] for name in "abcde"] == pytest.approx(by_class.compute().tolist(), rel=1e-5)


def test_an_absent_class_does_not_count() -> None:
    tally = torch.tensor([[3, 1, 0], [0, 4, 0], [0, 0, 0]])
    scores = Segmentation(3).scores(tally)
    assert scores["miou"] == pytest.approx((3 / 4 + 4 / 5) / 2)
    assert class_iou(tally, ("a", "b", "c"))["c"] is None
    assert Segmentation(3).scores(torch.zeros(3, 3, dtype=torch.int64))["miou"] == 0.0


def test_pixels_with_conflicting_cues_are_counted_for_shape_and_texture() -> None:
    label = torch.tensor([[[0, 0, 1, 1, VOID]]], dtype=torch.uint8)
    texture = torch.tensor([[[2, 0, 2, 2, 1]]], dtype=torch.uint8)  # conflict at places 0, 2 and 3
    guess = torch.tensor([0, 0, 2, 0, 0])
    logits = nn.functional.one_hot(guess, 3).float().T[None, :, None, :]
    images = ImageSet(torch.zeros(1, 3, 1, 5, dtype=torch.uint8), label, {"texture_map": texture})
    batch = Batch(torch.zeros(1, 3, 1, 5), label.long(), torch.tensor([0]))
    report = Segmentation(3).report([(Features(logits, logits), batch)], images, ("a", "b", "c"))
    assert report["values"]["by_shape"] == pytest.approx(1 / 3)
    assert report["values"]["by_texture"] == pytest.approx(1 / 3)
    assert report["values"]["shape_bias"] == pytest.approx(1 / 2)
    assert report["classes"]["b"] == 0.0


def test_the_task_follows_from_the_data() -> None:
    image = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    for label, kind in ((torch.zeros(2, dtype=torch.int64), Classification), (image[:, 0], Segmentation)):
        images = ImageSet(image, label)
        assert isinstance(build_task(DataSplits("x", ("a", "b"), 4, images, None, {"test": images}, "f")), kind)
