"""Where the directions come from: a running average, the whole data, one batch; what is kept and when it changes."""
# B batch, D features, K directions

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from antishortcut.methods.asd import ASD, Select, ShortcutBasis, Source
from antishortcut.types import Features, Shape, Sizes
from tests.test_subspace import close, normal, slow_directions, slow_moment, span

D, K = 6, 2
Pair = tuple[Tensor, Tensor]


def pairs(count: int, rows: int = 9, seed: int = 0) -> list[Pair]:
    """Batches of (early, final) features whose displacement has a mean."""
    return [(normal(rows + i, D, seed=seed + i) + 0.5, normal(rows + i, D, seed=seed + 50 + i)) for i in range(count)]


def slow_basis(displacement: Any, final: Any, select: Select) -> Any:
    """UUᵀ of the directions that two moments (D, D) give, by numpy and scipy."""
    if select == "displaced":
        return span(slow_directions(displacement, K)[0])
    _, vectors = scipy.linalg.eigh(displacement, final + 0.01 * np.trace(final) / D * np.eye(D))
    return span(scipy.linalg.orth(vectors[:, ::-1][:, :K]))


def test_batch_source_has_no_state() -> None:
    basis = ShortcutBasis(D, K)
    for early, final in pairs(3):
        close(span(basis(early, final)), slow_basis(slow_moment(early - final), None, "displaced"))
    assert not basis.state_dict()


@pytest.mark.parametrize("select", ["displaced", "abandoned"])
@pytest.mark.parametrize("refresh", [1, 3])
def test_running_is_an_exponential_average(select: Select, refresh: int) -> None:
    basis = ShortcutBasis(D, K, source="running", select=select, momentum=0.8, refresh=refresh)
    displacement = final_moment = expected = None
    for step, (early, final) in enumerate(pairs(7)):
        new, new_final = slow_moment(early - final), slow_moment(final)
        displacement = new if displacement is None else 0.8 * displacement + 0.2 * new
        final_moment = new_final if final_moment is None else 0.8 * final_moment + 0.2 * new_final
        if step % refresh == 0:  # between refreshes the answer stays
            expected = slow_basis(displacement, final_moment, select)
        close(span(basis(early, final)), expected, 1e-6)  # the answer is kept in single precision
    close(basis.displacement, displacement)
    close(basis.final, final_moment)
    assert int(basis.steps) == 7


@pytest.mark.parametrize("select", ["displaced", "abandoned"])
def test_dataset_takes_the_moment_of_all_rows(select: Select) -> None:
    outputs = pairs(4)  # of unequal sizes: a mean of means would differ
    early, final = torch.cat([e for e, _ in outputs]), torch.cat([f for _, f in outputs])
    basis = ShortcutBasis(D, K, source="dataset", select=select)
    basis.prepare(iter(outputs))
    expected = slow_basis(slow_moment(early - final), slow_moment(final), select)
    for other in pairs(2, seed=99):  # whatever comes later, in training mode
        close(span(basis(*other)), expected, 1e-6)
    close(basis.displacement, slow_moment(early - final), 1e-6)


@pytest.mark.parametrize("source", ["batch", "running"])
def test_too_few_directions_warn_once(source: Source) -> None:
    basis = ShortcutBasis(D, K, source=source, refresh=1)
    final = normal(8, D, dtype=torch.float32).round()
    early = final + torch.arange(8.0)[:, None] * torch.tensor([1.0, 0, 0, -2, 0, 0])  # rank 1, exactly
    with pytest.warns(UserWarning, match=" 1 of 2 directions") as text:
        outputs = [basis(early, final) for _ in range(3)]
    assert len(text) == 1
    expected = torch.tensor([1.0, 0, 0, -2, 0, 0])[:, None] / 5**0.5
    for answer in outputs:
        assert answer.shape == (D, K)
        assert not answer[:, 1:].any()  # the one that is not there
        close(span(answer), span(expected), 1e-6)


def test_preparing_needs_features() -> None:
    with pytest.raises(ValueError, match="no features"):
        ShortcutBasis(D, K, source="dataset").prepare([])


def stream(outputs: list[Pair]) -> Iterator[dict[str, Features]]:
    for early, final in outputs:
        yield {
            "early": Features(torch.zeros(len(early), 3), early),
            "final": Features(torch.zeros(len(final), 3), final),
        }


@pytest.mark.parametrize(
    ("options", "reads"),
    [
        ({"subspace": "dataset"}, True),
        ({"subspace": "dataset", "select": "abandoned"}, True),
        ({"subspace": "running"}, False),
        ({}, False),
        ({"subspace": "dataset", "ss": 0.0}, False),
    ],
)
def test_asd_prepares_only_what_it_needs(options: dict[str, Any], reads: bool) -> None:
    sizes = Sizes(classes=3, examples=50, student=Shape(D), teachers={"final": Shape(D), "early": Shape(D)})
    method = ASD(sizes, directions=K, **options)
    outputs = pairs(3)
    passing = stream(outputs)
    method.prepare(passing)
    left = len(list(passing))
    assert left == (0 if reads else 3)
    if reads:
        assert method.loss.basis is not None
        early, final = torch.cat([e for e, _ in outputs]), torch.cat([f for _, f in outputs])
        expected = slow_basis(slow_moment(early - final), slow_moment(final), options.get("select", "displaced"))
        close(span(method.loss.basis(early, final)), expected, 1e-6)
