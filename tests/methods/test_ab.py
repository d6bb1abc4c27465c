"""AB against loops over units and by hand; which networks it connects and how."""
# B batch, C channels, H × W pixels

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from antishortcut.methods.ab import AB, boundary_distance, connector
from tests.methods.test_fitnets import maps_of, numbered, sides, sizes_of, slow_pool
from tests.test_subspace import close, normal, seeds, several


def slow_boundary(student: Tensor, teacher: Tensor, margin: float) -> list[float]:
    """Eq. 5 of the paper unit by unit: nothing if both are on the same side and the student by more than the margin."""
    rows = []
    for ours, other in zip(student.tolist(), teacher.tolist(), strict=True):
        total = 0.0
        for plane, hint in zip(ours, other, strict=True):
            pooled = slow_pool(hint, len(plane), len(plane[0]))
            for line, hint_line in zip(plane, pooled, strict=True):
                for s, t in zip(line, hint_line, strict=True):
                    if t > 0 and s < margin:
                        total += (margin - s) ** 2
                    if t <= 0 and s > -margin:
                        total += (margin + s) ** 2
        rows.append(total)
    return rows


@several
@given(
    b=st.integers(1, 3),
    c=st.integers(1, 3),
    size=st.tuples(sides, sides),
    other=st.tuples(sides, sides),
    margin=st.floats(0, 3),
    seed=seeds,
)
def test_agrees_with_the_loop(
    b: int, c: int, size: tuple[int, int], other: tuple[int, int], margin: float, seed: int
) -> None:
    student, teacher = normal(b, c, *size, seed=seed), normal(b, c, *other, seed=seed + 1)
    close(boundary_distance(student, teacher, margin), slow_boundary(student, teacher, margin))


def test_by_hand() -> None:
    student = torch.tensor([[[[-2.0, -1.0, 0.0, 1.0, 2.0, 0.5]]]])
    off, on = torch.zeros(1, 1, 1, 6), torch.full((1, 1, 1, 6), 0.1)
    close(boundary_distance(student, off, 1.0), torch.tensor([1.0 + 4.0 + 9.0 + 2.25]))
    close(boundary_distance(student, on, 1.0), torch.tensor([9.0 + 4.0 + 1.0 + 0.25]))


@several
@given(margin=st.floats(0, 3), seed=seeds)
def test_nothing_where_signs_agree_beyond_the_margin(margin: float, seed: int) -> None:
    teacher = normal(2, 3, 4, 4, seed=seed)
    student = (teacher.sign() * (margin + normal(2, 3, 4, 4, seed=seed + 1).abs())).requires_grad_()
    loss = boundary_distance(student, teacher, margin).sum()
    assert float(loss.detach()) == 0.0
    assert not torch.autograd.grad(loss, student)[0].any()
    assert (boundary_distance(-student.detach() - teacher.sign(), teacher, margin) > 0).all()


def test_maps_of_one_shape_are_not_connected() -> None:
    assert isinstance(connector((4, 8, 8), (4, 8, 8)), nn.Identity)
    for teacher in ((5, 8, 8), (4, 4, 4), (4, 16, 16), (4, 5, 5)):
        module = connector((4, 8, 8), teacher)
        assert module(torch.randn(2, 4, 8, 8)).shape == (2, *teacher)
        assert module(torch.randn(2, 4, 8, 8)).min() < 0  # no ReLU at its end


def test_method_agrees_with_the_loop() -> None:
    torch.manual_seed(0)
    sizes = sizes_of([(2, 4, 4), (3, 4, 4), (3, 2, 3), (4, 2, 2)], [(2, 4, 4), (3, 4, 4), (5, 2, 3), (6, 2, 2)])
    method = AB(sizes, weight=7.0, margin=0.5).double()
    student, teacher = maps_of(sizes.student, 3), maps_of(sizes.teachers["final"], 3, seed=9)
    total = 0.0
    for i, weight in ((1, 1 / 4), (2, 1 / 2), (3, 1.0)):  # not the stem
        maps, module = student.preact[i], method.connectors[3 - i]
        if not isinstance(module, nn.Identity):
            maps = F.batch_norm(module[0](maps), None, None, training=True)  # type: ignore[index]
        total += weight * sum(slow_boundary(maps.detach(), teacher.preact[i], 0.5)) / 3
    terms = method.terms(student, {"final": teacher}, numbered(3), epoch=29.9)
    assert list(terms) == ["ab"]
    close(terms["ab"], 7 * total)


def test_unequal_numbers_of_stages_are_paired_from_the_deep_end() -> None:
    sizes = sizes_of([(2, 4, 4)] * 3, [(2, 4, 4)] * 5)
    assert len(AB(sizes).connectors) == 2
    student, teacher = maps_of(sizes.student, 2), maps_of(sizes.teachers["final"], 2, seed=9)
    rows = sum(boundary_distance(student.preact[-i], teacher.preact[-i], 1.0) / 2 ** (i - 1) for i in (1, 2))
    assert isinstance(rows, Tensor)
    close(AB(sizes).terms(student, {"final": teacher}, numbered(2), 0.0)["ab"], 0.003 * rows.mean())
    single = sizes_of([(2, 4, 4)], [(3, 4, 4)])  # of one stage that one
    assert len(AB(single).connectors) == 1
