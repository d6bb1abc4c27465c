"""ReviewKD against loops over pixels: the context loss, the fusion and the whole review; by hand; and its settings."""
# B batch, C channels, M width of the fusion, H × W pixels

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.methods.reviewkd import Fusion, ReviewKD, context_loss
from antishortcut.types import Features, Shape, Sizes
from tests.methods.test_fitnets import Stage, maps_of, numbered, slow_pool
from tests.test_subspace import close, normal, seeds, several

Maps = list[list[list[list[float]]]]  # (B, C, H, W)


def slow_mse(ours: Maps, teacher_side: Maps) -> float:
    def flat(maps: Maps) -> list[float]:
        return [v for planes in maps for plane in planes for line in plane for v in line]

    differences = [(a - b) ** 2 for a, b in zip(flat(ours), flat(teacher_side), strict=True)]
    return sum(differences) / len(differences)


def slow_context(ours: Maps, teacher_side: Maps) -> float:
    """1, ½, ¼, ⅛ for the maps and those of the averages 4 × 4, 2 × 2, 1 × 1 that are smaller, divided by their sum."""
    losses = [slow_mse(ours, teacher_side)]
    for side in (4, 2, 1):
        if side < min(len(ours[0][0]), len(ours[0][0][0])):
            pooled = [
                [[slow_pool(plane, side, side) for plane in row] for row in maps] for maps in (ours, teacher_side)
            ]
            losses.append(slow_mse(*pooled))
    weights = [0.5**i for i in range(len(losses))]
    return sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights)


@several
@given(b=st.integers(1, 2), c=st.integers(1, 3), h=st.integers(1, 7), w=st.integers(1, 7), seed=seeds)
def test_context_loss_agrees_with_the_loop(b: int, c: int, h: int, w: int, seed: int) -> None:
    student, teacher = normal(b, c, h, w, seed=seed), normal(b, c, h, w, seed=seed + 1)
    loss = context_loss(student, teacher)
    assert loss.dtype == torch.float64
    close(loss, slow_context(student.tolist(), teacher.tolist()))
    close(context_loss(student, student.clone()), 0.0, 0.0)
    close(context_loss(student + 3, student), 9.0)  # a constant difference is the same at every scale
    assert loss <= (student - teacher).square().mean() + 1e-12  # averaging never enlarges a difference


def test_context_loss_by_hand() -> None:
    stripes = torch.tensor([[[[1.0, -1.0], [1.0, -1.0]]]])
    close(context_loss(stripes, torch.zeros(1, 1, 2, 2)), 1 / 1.5, 1e-6)  # 1 at 2 × 2, 0 in the mean of weight ½
    wide = stripes.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)  # 8 × 8: seen at 8, 4 and 2, not at 1
    close(context_loss(wide, torch.zeros(1, 1, 8, 8)), (1 + 0.5 + 0.25) / 1.875, 1e-6)
    close(context_loss(torch.full((1, 2, 1, 1), 3.0), torch.zeros(1, 2, 1, 1)), 9.0)  # a pixel has no coarser scale


STUDENT: list[Stage] = [(2, 4, 4), (2, 4, 4), (3, 3, 2)]
TEACHERS: dict[str, list[Stage]] = {
    "equal": STUDENT,
    "larger maps": [(2, 8, 8), (3, 6, 6), (2, 4, 4)],
    "smaller maps": [(2, 4, 4), (3, 2, 2), (2, 1, 1)],
    "more stages": [(2, 8, 8), (1, 8, 8), (3, 4, 4), (2, 4, 4)],
    "fewer stages": [(2, 8, 8), (3, 4, 4)],
    "one stage": [(2, 4, 4)],
}


def slow_review(method: ReviewKD, maps: list[Tensor], targets: list[Tensor]) -> float:
    """Deepest first: narrow, add the deeper ones by their shares, resize, widen, compare."""
    total, deeper = 0.0, None
    for fusion, x, target in zip(method.fusions, maps, targets, strict=False):
        assert isinstance(fusion, Fusion)
        fused = fusion.narrow(x)
        if deeper is not None:
            assert fusion.attend is not None
            deeper = F.interpolate(deeper, fused.shape[2:])
            own, other = fusion.attend(torch.cat([fused, deeper], 1)).sigmoid().split(1, dim=1)
            fused = own * fused + other * deeper
        deeper = F.interpolate(fused, target.shape[2:])
        total += slow_context(fusion.widen(deeper).tolist(), target.tolist())
    return total


@pytest.mark.parametrize("teacher", TEACHERS)
@pytest.mark.parametrize("dense", [False, True])
def test_the_review_agrees_with_the_loop(teacher: str, dense: bool) -> None:
    """Where the embedding is a map its rows are sampled locations, which must not matter."""
    torch.manual_seed(0)
    student_shape, teacher_shape = (Shape(3, tuple(maps), maps=dense) for maps in (STUDENT, TEACHERS[teacher]))
    method = ReviewKD(Sizes(2, 8, student_shape, {"final": teacher_shape}), width=2, weight=2.0).double().eval()
    student, final = maps_of(student_shape, 2), maps_of(teacher_shape, 2, seed=9)

    def deepest_first(outputs: Features) -> list[Tensor]:
        whole = [] if dense else [outputs.embedding[:, :, None, None]]
        return [*whole, *reversed(outputs.stages[1:] or outputs.stages)]

    assert len(method.fusions) == (not dense) + max(1, min(len(STUDENT), len(TEACHERS[teacher])) - 1)
    total = slow_review(method, deepest_first(student), deepest_first(final))
    if dense:
        student, final = (replace(each, embedding=torch.rand(40, 3).double()) for each in (student, final))
    terms = method.terms(student, {"final": final}, numbered(2), epoch=1000.0)
    assert list(terms) == ["review"]
    close(terms["review"], 2 * total)
