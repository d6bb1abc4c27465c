"""OFD against loops over units and by hand; margins from data and from the authors' formula for Gaussian channels."""
# B batch, C channels, H × W pixels

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from antishortcut.config.recipe import Recipe
from antishortcut.methods.ofd import OFD, Margin, partial_distance
from antishortcut.models import tapped_features
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Teachers
from antishortcut.training.pipeline import Session, distill
from antishortcut.types import Features, ImageSet
from tests.methods.test_fitnets import maps_of, numbered, sides, sizes_of, slow_pool
from tests.test_subspace import close, normal, seeds, several


def slow_distance(student: Tensor, teacher: Tensor, margin: list[float]) -> list[float]:
    """Eq. 3 of the paper unit by unit: the partial L2 distance to the margin ReLU of the teacher."""
    rows = []
    for ours, other in zip(student.tolist(), teacher.tolist(), strict=True):
        total = 0.0
        for plane, hint, least in zip(ours, other, margin, strict=True):
            pooled = slow_pool(hint, len(plane), len(plane[0]))
            for line, hint_line in zip(plane, pooled, strict=True):
                for s, t in zip(line, hint_line, strict=True):
                    target = max(t, least)
                    if not s <= target <= 0:
                        total += (s - target) ** 2
        rows.append(total)
    return rows


@several
@given(b=st.integers(1, 3), c=st.integers(1, 3), size=st.tuples(sides, sides), other=st.tuples(sides, sides),
       seed=seeds)  # fmt: skip
def test_agrees_with_the_loop(b: int, c: int, size: tuple[int, int], other: tuple[int, int], seed: int) -> None:
    student, teacher = normal(b, c, *size, seed=seed), normal(b, c, *other, seed=seed + 1)
    margin = -normal(c, seed=seed + 2).abs()
    expected = slow_distance(student, teacher, margin.tolist())
    close(partial_distance(student, teacher, margin), expected)


def test_by_hand() -> None:
    teacher = torch.tensor([[[[2.0, 2.0, -0.5, -0.5, -3.0, -3.0]]]])
    student = torch.tensor([[[[1.0, 3.0, -2.0, 0.0, -2.0, -0.5]]]])
    close(partial_distance(student, teacher, torch.tensor([-1.0])), torch.tensor([1.0 + 1 + 0 + 0.25 + 0 + 0.25]))


@several
@given(seed=seeds)
def test_nothing_where_the_student_is_below_a_negative_target(seed: int) -> None:
    teacher, margin = -normal(2, 3, 4, 4, seed=seed).abs(), -normal(3, seed=seed + 1).abs()
    target = torch.maximum(teacher, margin[:, None, None])
    student = (target - normal(2, 3, 4, 4, seed=seed + 2).abs()).requires_grad_()
    loss = partial_distance(student, teacher, margin).sum()
    assert float(loss.detach()) == 0.0
    assert not torch.autograd.grad(loss, student)[0].any()


def closed_form(mean: float, deviation: float) -> float:
    """E[x | x < 0] of a normal distribution: μ − σ φ(μ/σ) / Φ(−μ/σ)."""
    ratio = mean / deviation
    below = 0.5 * math.erfc(ratio / math.sqrt(2))
    return mean - deviation * math.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi) / below


def test_margins_of_gaussian_channels_are_the_closed_form() -> None:
    """At equally likely places of the distribution, which are exact but for their number."""
    count = 400_000
    places = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    standard = torch.special.ndtri(places)[torch.randperm(count)]
    means, deviations = (-1.0, 0.0, 0.5, 2.0, 4.0), (0.5, 1.0, 2.0, 1.0, 1.0)
    maps = torch.stack([m + s * standard for m, s in zip(means, deviations, strict=True)])  # (C, …)
    margin = Margin()
    batches = maps.reshape(5, 8, 100, 500).transpose(0, 1)
    for batch in (batches[:3], batches[3:7], batches[7:]):
        margin.add(batch)
    result = margin.value().tolist()
    for value, m, s in zip(result[:4], means, deviations, strict=False):
        assert value == pytest.approx(closed_form(m, s), abs=1e-3)
    assert result[4] == pytest.approx(-3.0, abs=1e-3)  # negative less often than once in a thousand: −3σ


def test_channels_without_negative_or_with_equal_values() -> None:
    margin = Margin()
    margin.add(torch.stack([torch.full((2, 2), 1.5), torch.full((2, 2), -1.5), torch.zeros(2, 2)])[None])
    assert margin.value().tolist() == [0.0, -1.5, 0.0]


def prepared(seed: int = 0) -> tuple[OFD, Features, Features]:
    torch.manual_seed(seed)
    sizes = sizes_of([(2, 4, 4), (3, 4, 4), (4, 2, 2)], [(2, 4, 4), (3, 4, 4), (6, 3, 3)])
    return OFD(sizes, weight=7.0).double(), maps_of(sizes.student, 3), maps_of(sizes.teachers["final"], 3, seed=9)


def test_method_agrees_with_the_loop() -> None:
    method, student, teacher = prepared()
    method.prepare([{"final": teacher}, {"final": teacher}])
    total = 0.0
    for i, weight in ((1, 1 / 2), (2, 1.0)):  # not the stem
        margin = []
        for channel in teacher.preact[i].transpose(0, 1).flatten(1).tolist():
            negative = [x for x in channel if x < 0]
            margin.append(sum(negative) / len(negative))
        close(method.get_buffer(f"margin{2 - i}"), margin)
        conv = method.connectors[2 - i][0]  # type: ignore[index]
        maps = F.batch_norm(conv(student.preact[i]), None, None, training=True)
        total += weight * sum(slow_distance(maps.detach(), teacher.preact[i], margin)) / 3
    terms = method.terms(student, {"final": teacher}, numbered(3), epoch=0.0)
    assert list(terms) == ["ofd"]
    close(terms["ofd"], 7 * total)


def test_connectors_are_the_authors() -> None:
    """Also between maps of one shape: 1 × 1 without bias, N(0, 2 / channels out), then batch norm."""
    sizes = sizes_of([(2, 4, 4), (100, 4, 4)], [(2, 4, 4), (400, 4, 4)])
    conv, norm = OFD(sizes).connectors[0].children()
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    assert (conv.kernel_size, conv.bias) == ((1, 1), None)
    assert float(conv.weight.detach().std()) == pytest.approx(math.sqrt(2 / 400), rel=0.02)


def test_margins_are_saved_and_need_features() -> None:
    method, _, teacher = prepared()
    with pytest.raises(ValueError, match="no features to take the margins from"):
        method.prepare([])
    assert not any(value.any() for key, value in method.state_dict().items() if key.startswith("margin"))
    method.prepare([{"final": teacher}])
    again, _, _ = prepared(1)
    again.load_state_dict(method.state_dict())
    assert all((again.get_buffer(f"margin{i}") < 0).all() for i in range(2))


def test_a_run_measures_its_teacher(recipe: Recipe, session: Session) -> None:
    """On all training images as they are, in evaluation mode."""
    run = distill(recipe, session, method="ofd", seed=1, suite="s")
    saved = load_file(RunDir(run.folder(session.runs)).method)
    images = session.sets(run.data).train
    assert isinstance(images, ImageSet)
    teacher = Teachers(run, session.runs, 10, 32).network("final")
    with torch.no_grad():
        maps = tapped_features(teacher, images.image / 255, ("preact",)).preact
    for depth in range(3):
        for channel, value in zip(maps[-1 - depth].transpose(0, 1), saved[f"margin{depth}"], strict=True):
            negative = channel[channel < 0]
            assert len(negative) > 0.001 * channel.numel()
            assert float(value) == pytest.approx(float(negative.double().mean()), abs=1e-5)
