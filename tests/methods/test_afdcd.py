"""Af-DCD against loops over pixels and groups, by hand, its mask, and maps and channels that do not divide."""
# B batch, C channels, M groups of channels, H × W pixels

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from antishortcut.methods.afdcd import AfDCD, patch_contrast, pixel_mask
from antishortcut.methods.kd import kd_loss
from tests.methods.test_fitnets import Stage, maps_of, numbered, sizes_of
from tests.test_subspace import close, normal, seeds, several

small = st.integers(1, 4)
Maps = list[list[list[list[float]]]]  # (B, C, H, W)


def slow_contrast(student: Maps, teacher: Maps, groups: int, patch: int, tau: float) -> list[float]:
    """−log softmax of −L1 / τ at the own place and group, among it and the other groups of the patch; Σ / HW."""
    result = []
    for ours, reference in zip(student, teacher, strict=True):
        height, width, each = len(ours[0]), len(ours[0][0]), len(ours) // groups
        pixels = [(y, x) for y in range(height) for x in range(width)]

        def vector(planes: list[list[list[float]]], at: tuple[int, int], group: int, each: int = each) -> list[float]:
            return [planes[c][at[0]][at[1]] for c in range(group * each, (group + 1) * each)]

        total = 0.0
        for here in pixels:
            near = [at for at in pixels if all(a // patch == b // patch for a, b in zip(at, here, strict=True))]
            for m in range(groups):
                rest = [(at, g) for at in near for g in range(groups) if g != m]
                scores = []
                for at, g in [(here, m), *rest]:
                    pairs = zip(vector(ours, here, m), vector(reference, at, g), strict=True)
                    scores.append(-sum(abs(a - b) for a, b in pairs) / tau)
                top = max(scores)
                total += top + math.log(sum(math.exp(score - top) for score in scores)) - scores[0]
        result.append(total / len(pixels))
    return result


@several
@given(groups=small, each=small, h=small, w=small, patch=small, tau=st.sampled_from([0.07, 5.0]), seed=seeds)
def test_agrees_with_the_loop(groups: int, each: int, h: int, w: int, patch: int, tau: float, seed: int) -> None:
    b, student, teacher = 2, *(normal(2, groups * each, h + 1, w, seed=seed + i) for i in (0, 1))
    loss = patch_contrast(student, teacher, groups, patch, tau)
    assert loss.dtype == torch.float64
    close(loss, slow_contrast(student.tolist(), teacher.tolist(), groups, patch, tau))
    assert (loss >= 0).all()
    close(patch_contrast(student + 3, teacher + 3, groups, patch, tau), loss, 1e-9)  # only differences count
    if groups == 1:
        close(loss, [0.0] * b, 0.0)  # nothing to be told from


def test_two_pixels_of_two_groups_by_hand() -> None:
    """Pixel A says 0 and 1, pixel B 2 and 4; of the teacher the other group's values are the negatives."""
    maps = torch.tensor([[[[0.0, 2.0]], [[1.0, 4.0]]]], dtype=torch.float64)
    distances = {"A0": (1, 4), "A1": (1, 1), "B0": (1, 2), "B1": (4, 2)}  # to the negatives; 0 to the positive
    expected = sum(math.log(1 + sum(math.exp(-d) for d in pair)) for pair in distances.values()) / 2
    close(patch_contrast(maps, maps, 2, 4, 1.0), [expected])
    apart = [math.log(1 + math.exp(-d)) for d in (1, 1, 2, 2)]  # patches of one pixel: 0 | 1 and 2 | 4
    close(patch_contrast(maps, maps, 2, 1, 1.0), [sum(apart) / 2])
    student = maps.clone()
    student[0, 0, 0, 0] = 2.0  # A0 now says what B0 says, which is neither its positive nor a negative
    changed = -math.log(math.exp(-2) / (math.exp(-2) + math.exp(-1) + math.exp(-2)))
    before = math.log(1 + math.exp(-1) + math.exp(-4))
    close(patch_contrast(student, maps, 2, 4, 1.0), [expected + (changed - before) / 2])


def test_the_mask_is_one_for_all_channels_and_another_for_every_image() -> None:
    torch.manual_seed(0)
    maps = normal(8, 3, 32, 32)
    saved = pixel_mask(maps, 0.75)
    assert saved.shape == (8, 1, 32, 32)
    assert saved.dtype == maps.dtype
    assert not saved.requires_grad
    assert ((saved == 0) | (saved == 1)).all()
    assert saved.mean().item() == pytest.approx(0.25, abs=0.02)  # 8192 pixels: four standard deviations
    assert not torch.equal(saved[0], saved[1])
    assert not torch.equal(saved, pixel_mask(maps, 0.75))  # fresh in every step
    assert pixel_mask(maps, 0.0).min() == 1
    torch.manual_seed(0)
    with torch.no_grad():
        assert torch.equal(saved, pixel_mask(maps.float(), 0.75))  # a function of the seed alone


@pytest.mark.parametrize(("channels", "groups"), [(2048, 16), (512, 16), (320, 16), (24, 12), (9, 9), (34, 2), (2, 2)])
def test_groups_divide_the_channels(channels: int, groups: int) -> None:
    with torch.device("meta"):  # of two convolutions of 2048 × 2048 × 9 only the shapes matter
        assert AfDCD(sizes_of([(2, 1, 1)], [(channels, 1, 1)])).groups == groups


@pytest.mark.parametrize(
    ("student_map", "teacher_map"), [((3, 3, 2), (4, 5, 5)), ((3, 6, 5), (6, 3, 4)), ((3, 1, 1), (4, 1, 1))]
)
def test_method_agrees_with_the_loop(student_map: Stage, teacher_map: Stage) -> None:
    torch.manual_seed(0)
    sizes = sizes_of([(1, 2, 2), student_map], [(1, 2, 2), teacher_map])
    options: dict[str, Any] = {"fd": 2.0, "ctr": 3.0, "kd": 0.5, "groups": 2, "patch": 2, "pool": 2}
    method = AfDCD(sizes, **options, mask_ratio=0.5, temperature=0.3).double()
    student, teacher = maps_of(sizes.student, 2), maps_of(sizes.teachers["final"], 2, seed=9)
    torch.manual_seed(7)
    terms = method.terms(student, {"final": teacher}, numbered(2), epoch=0.0)
    torch.manual_seed(7)
    mask = (torch.rand(2, 1, *teacher_map[1:]) >= 0.5).double()
    resized = F.interpolate(student.stages[1], teacher_map[1:], mode="bilinear")
    restored, target = method.generator(mask * method.align(resized)), teacher.stages[1]
    close(terms["fd"], 2 * (restored - target).square().sum() / 2, relative=1e-10)
    pooled, pooled_target = (F.max_pool2d(maps, 2, ceil_mode=True).tolist() for maps in (restored, target))
    close(terms["ctr"], 3 * sum(slow_contrast(pooled, pooled_target, 2, 2, 0.3)) / 2, relative=1e-10)
    close(terms["kd"], 0.5 * kd_loss(student.logits, teacher.logits, 1.0))
