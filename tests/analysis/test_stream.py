"""Streams: any chunking gives the same rows, splits are equal and seeded, mistakes are told."""
# N samples, D features

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.analysis import Chunks, Found, Moments, Stream, parts, pick, plain, project
from antishortcut.analysis.stream import BINS, Tally, blocks
from antishortcut.errors import UserError
from tests.test_subspace import close, normal, orthonormal, seeds, several


def three(count: int, width: int, seed: int = 0) -> dict[str, Tensor]:
    """Features of student, final and early state that have to do with each other."""
    student, final, early = (normal(count, width, seed=seed + i) for i in range(3))
    return {"student": student + final, "final": final + 0.5, "early": early + 0.3 * final - 0.2}


def cut(features: dict[str, Tensor], places: list[int]) -> list[dict[str, Tensor]]:
    """The same rows in chunks that end at the places, some of them empty."""
    count = len(next(iter(features.values())))
    edges = [0, *sorted(place % (count + 1) for place in places), count]
    return [{role: rows[begin:end] for role, rows in features.items()} for begin, end in itertools.pairwise(edges)]


places = st.lists(st.integers(0, 10_000), max_size=5)


@several
@given(count=st.integers(1, 30), at=places, size=st.integers(1, 9), seed=seeds)
def test_blocks_are_the_rows_however_they_were_cut(count: int, at: list[int], size: int, seed: int) -> None:
    features = three(count, 3, seed)
    result = list(blocks(cut(features, at), "final", "student", size=size))
    assert all(len(final) == len(student) <= size for final, student in result)
    assert torch.equal(torch.cat([final for final, _ in result]), features["final"])
    assert torch.equal(torch.cat([student for _, student in result]), features["student"])


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        ([], "no rows"),
        ([{"a": torch.ones(0, 2), "b": torch.ones(0, 2)}], "no rows"),
        ([{"a": torch.ones(3, 2)}], "'b' are needed"),
        ([{"a": torch.ones(3, 2), "b": torch.ones(3)}], "'b' are needed"),
        ([{"a": torch.ones(3, 2), "b": torch.ones(2, 2)}], "same samples"),
        ([{"a": torch.ones(3, 2), "b": torch.ones(3, 1)}], "one width"),
    ],
)
def test_mistakes_are_told(stream: Stream, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        list(blocks(stream, "a", "b"))


def test_features_that_are_not_finite_are_the_users_affair() -> None:
    with pytest.raises(UserError, match="'early' are not finite"):
        Moments.of([{"final": torch.ones(3, 2), "early": torch.tensor([[1.0, math.nan]] * 3)}])


def test_a_generator_that_was_read_says_so() -> None:
    stream = (chunk for chunk in [three(5, 3)])
    Moments.of(stream)
    with pytest.raises(ValueError, match="only once"):
        Moments.of(stream)


def test_chunks_can_be_read_again_in_a_seeded_order() -> None:
    features = {"a": torch.arange(10.0)[:, None], "b": torch.arange(10.0)[:, None] + 100}
    plainly, mixed = Chunks(features, size=4), Chunks(features, size=4, seed=3)
    assert [len(chunk["a"]) for chunk in plainly] == [4, 4, 2]
    assert torch.equal(torch.cat([chunk["b"] for chunk in plainly]), features["b"])
    first, again = ([chunk["a"] for chunk in mixed] for _ in range(2))
    assert torch.equal(torch.cat(first), torch.cat(again))
    assert not torch.equal(torch.cat(first), features["a"])
    assert torch.equal(torch.cat(first).sort(dim=0).values, features["a"])
    assert all(torch.equal(chunk["b"], chunk["a"] + 100) for chunk in mixed)


@several
@given(count=st.integers(1, 60), number=st.integers(1, 12), seed=seeds)
def test_parts_are_disjoint_equal_and_seeded(count: int, number: int, seed: int) -> None:
    number = min(number, count)
    result = parts(count, number, seed)
    assert torch.equal(result, parts(count, number, seed))
    sizes = torch.bincount(result + 1, minlength=number + 1).tolist()
    assert sizes == [count % number, *[count // number] * number]


@several
@given(count=st.integers(1, 20), at=places, seed=seeds)
def test_picked_rows_come_in_the_order_asked_for(count: int, at: list[int], seed: int) -> None:
    features = three(count, 2, seed)
    index = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[: count // 2]
    assert torch.equal(pick(cut(features, at), "early", index), features["early"][index])


def test_rows_that_are_not_there_cannot_be_picked() -> None:
    with pytest.raises(ValueError, match="stream of 3 rows"):
        pick([three(3, 2)], "final", torch.tensor([3]))
    with pytest.raises(ValueError, match="twice"):
        pick([three(3, 2)], "final", torch.tensor([1, 1]))


def test_projections_are_in_the_order_of_the_stream() -> None:
    features, basis = three(9, 4), orthonormal(4, 2)
    close(project(cut(features, [2, 5]), basis.float(), "final"), features["final"] @ basis.float().double(), 1e-12)
    with pytest.raises(ValueError, match="not one for rows of 4"):
        project([features], orthonormal(5, 2), "final")


@dataclass(frozen=True)
class Example(Found):
    number: float
    several: tuple[float, ...]
    inner: Found | None = None


def test_undefined_numbers_become_null() -> None:
    result = Example(math.nan, (1.0, math.inf), Example(0.5, ()))
    expected: dict[str, object] = {
        "number": None,
        "several": [1.0, None],
        "inner": {"number": 0.5, "several": [], "inner": None},
    }
    assert result.values() == expected
    assert plain({"a": torch.tensor([[1.0, math.nan]])}) == {"a": [[1.0, None]]}
    json.dumps(result.values(), allow_nan=False)


@several
@given(count=st.integers(0, 40), at=places, seed=seeds)
def test_a_tally_is_the_spread_of_all_values(count: int, at: list[int], seed: int) -> None:
    values = normal(count, seed=seed).tanh()
    defined = torch.rand(count, generator=torch.Generator().manual_seed(seed)) < 0.8
    tally = Tally(-1, 1)
    for chunk in cut({"value": values, "defined": defined}, at):
        tally.update(chunk["value"], chunk["defined"])
    result, known = tally.spread(), values[defined].tolist()
    assert (result.count, result.undefined, sum(result.histogram)) == (len(known), count - len(known), len(known))
    if known:
        mean = math.fsum(known) / len(known)
        assert result.mean == pytest.approx(mean, abs=1e-12)
        bins = [0] * BINS
        for value in known:
            bins[min(int((value + 1) / 2 * BINS), BINS - 1)] += 1
        assert list(result.histogram) == bins
    if len(known) > 1:
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1))
        assert result.std == pytest.approx(spread, abs=1e-12)
    else:
        assert math.isnan(result.std)
