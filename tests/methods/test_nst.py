"""Neuron selectivity transfer against loops over channels and a plain broadcast; what it does not see; its memory."""
# B batch, C channels, H × W pixels, P = H · W

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from antishortcut.methods.nst import NST, nst_distance
from tests.methods.test_fitnets import maps_of, numbered, sides, sizes_of, slow_pool
from tests.test_subspace import close, normal, seeds, several

Side = tuple[int, int]


def slow_distance(student: Tensor, teacher: Tensor) -> list[float]:
    """MMD² = mean k(s, s′) + mean k(t, t′) − 2 mean k(s, t) over channels of length 1, k(a, b) = (aᵀb)²."""
    height, width = (min(a, b) for a, b in zip(student.shape[2:], teacher.shape[2:], strict=True))

    def channels(planes: list[list[list[float]]]) -> list[list[float]]:
        result = []
        for plane in planes:
            flat = [v for line in slow_pool(plane, height, width) for v in line]
            length = math.sqrt(sum(v * v for v in flat))
            result.append([v / length if length > 0 else 0.0 for v in flat])
        return result

    def kernel(one: list[list[float]], two: list[list[float]]) -> float:
        values = [sum(x * y for x, y in zip(a, b, strict=True)) ** 2 for a in one for b in two]
        return sum(values) / len(values)

    rows = []
    for ours, reference in zip(student.tolist(), teacher.tolist(), strict=True):
        s, t = channels(ours), channels(reference)
        rows.append(kernel(s, s) + kernel(t, t) - 2 * kernel(s, t))
    return rows


@several
@given(
    b=st.integers(1, 3), c=st.integers(1, 5), ours=st.tuples(sides, sides), other=st.tuples(sides, sides), seed=seeds
)
def test_agrees_with_the_loop(b: int, c: int, ours: Side, other: Side, seed: int) -> None:
    student, teacher = normal(b, c, *ours, seed=seed), normal(b, 3, *other, seed=seed + 1)
    distance = nst_distance(student, teacher)
    close(distance, slow_distance(student, teacher))
    close(distance, nst_distance(teacher, student), 1e-14)
    assert (distance >= -1e-14).all()
    close(nst_distance(student, student.clone()), [0.0] * b, 1e-14)


def test_by_hand() -> None:
    def channels(*rows: list[float]) -> Tensor:
        return torch.tensor(rows, dtype=torch.float64).view(1, len(rows), 1, -1)

    close(nst_distance(channels([1, 0]), channels([0, 5])), [2.0])  # 1 + 1 − 0
    close(nst_distance(channels([1, 0], [0, 1]), channels([2, 0])), [0.5 + 1 - 2 * 0.5])
    close(nst_distance(channels([1, 0, 0]), channels([1, 1, 0])), [1 + 1 - 2 * 0.5], 1e-15)  # the same for P > C


@several
@given(side=st.sampled_from([1, 2, 5]), scale=st.sampled_from([1e-6, 0.5, 1e6]), seed=seeds)
def test_scale_sign_and_order_of_channels_do_not_matter(side: int, scale: float, seed: int) -> None:
    student, teacher = normal(2, 6, side, side, seed=seed), normal(2, 4, side, side, seed=seed + 1)
    factors = scale * normal(2, 6, 1, 1, seed=seed + 2)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    close(nst_distance((factors * student)[:, order], teacher), nst_distance(student, teacher), 1e-12)
    close(nst_distance(student.repeat(1, 3, 1, 1), teacher), nst_distance(student, teacher), 1e-12)


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The numbers in the largest tensor that an operation makes."""

    numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(each, Tensor):
                self.numbers = max(self.numbers, each.numel())
        return out


@pytest.mark.parametrize(("channels", "side"), [(96, 2), (64, 12)])
def test_no_tensor_of_pairs_of_channels_and_pixels(channels: int, side: int) -> None:
    student, teacher = normal(2, channels, side, side).requires_grad_(), normal(2, channels, side, side, seed=1)
    largest = Largest()  # type: ignore[no-untyped-call]
    with largest:
        torch.autograd.backward(nst_distance(student, teacher).sum())
    pixels = side**2
    assert largest.numbers <= 2 * channels * max(pixels, min(channels, pixels))  # maps, and the smaller of both squares


def test_method_sums_the_stages_after_the_stem() -> None:
    sizes = sizes_of([(2, 4, 4), (3, 4, 4), (4, 2, 2)], [(5, 4, 4), (2, 2, 2), (7, 2, 2)])
    student, teacher = maps_of(sizes.student, 3), maps_of(sizes.teachers["final"], 3, seed=9)
    terms = NST(sizes).terms(student, {"final": teacher}, numbered(3), epoch=0.0)
    assert list(terms) == ["nst"]
    rows = [slow_distance(s, t) for s, t in zip(student.stages[1:], teacher.stages[1:], strict=True)]
    close(terms["nst"], 50 * sum(map(sum, rows)) / 3, relative=1e-10)
