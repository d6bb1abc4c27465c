"""The debiased teacher's transplant: against a loop, by hand, and with equal weights the same as SimKD."""
# B batch, C classes, D embedding

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.methods import method_options
from antishortcut.methods.simkd import SimKD
from antishortcut.methods.transplant import Transplant
from antishortcut.types import Features, Shape, Sizes
from tests.methods.test_fitnets import numbered, slow_errors
from tests.methods.test_reweight import slow_weights
from tests.test_subspace import close, normal, seeds, several

D, SIDE = 3, (2, 3)
SHAPE = Shape(D, side=SIDE)
SIZES = Sizes(4, 100, SHAPE, {"final": SHAPE, "early": SHAPE}, torch.arange(100) % 4)


def features(b: int, c: int, seed: int) -> Features:
    maps = normal(b, D, *SIDE, seed=seed)
    return Features(normal(b, c, seed=seed + 50), maps.mean(dim=(2, 3)), last=maps)


def term_of(method: SimKD, student: Features, final: Features, early: Features, label: Tensor) -> Tensor:
    terms = method.terms(student, {"final": final, "early": early}, numbered(len(label), label), 0.0)
    assert list(terms) == ["map"]
    return terms["map"]


@several
@given(b=st.integers(1, 6), c=st.integers(2, 5), factor=st.sampled_from([0.5, 1.0, 50.0]), seed=seeds)
def test_agrees_with_the_loop(b: int, c: int, factor: float, seed: int) -> None:
    student, final, early = (features(b, c, seed + i) for i in range(3))
    label = normal(b, c, seed=seed + 9).argmax(1)
    loss = term_of(Transplant(SIZES, factor=factor, weight=2.0), student, final, early, label)
    assert student.last is not None
    assert final.last is not None
    errors = slow_errors(student.last, final.last)
    weights = slow_weights(student.logits, early.logits, label, "jtt", factor)  # with mean 1
    close(loss, 2.0 * sum(w * error for w, error in zip(weights, errors, strict=True)) / b)


def test_by_hand() -> None:
    """Errors 1 and 4; the early state is wrong on the second image, which weighs 3: (1 · 1 + 3 · 4) / (1 + 3)."""
    student = Features(torch.zeros(2, 2), torch.zeros(2, 1), last=torch.tensor([1.0, 2.0])[:, None, None, None])
    final = Features(torch.zeros(2, 2), torch.zeros(2, 1), last=torch.zeros(2, 1, 1, 1))
    early = Features(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.zeros(2, 1))
    close(term_of(Transplant(SIZES, factor=3.0), student, final, early, torch.tensor([0, 1])), 13 / 4)


@pytest.mark.parametrize("early_right", [True, False])
def test_equal_weights_are_simkd(early_right: bool) -> None:
    """λ = 1; and any λ where the early state is right, or wrong, on all images of a batch."""
    student, final, early = (features(5, 4, i) for i in range(3))
    label = normal(5, 4, seed=7).argmax(1)
    simkd = term_of(SimKD(SIZES), student, final, early, label)
    assert torch.equal(term_of(Transplant(SIZES, factor=1.0), student, final, early, label), simkd)
    same = early.logits.argmax(1) if early_right else early.logits.argmin(1)
    close(term_of(Transplant(SIZES), student, final, early, same), simkd)


def test_settings() -> None:
    assert method_options("transplant", {}) == {"factor": 50.0, "weight": 1.0, "reduction": 2, "task_weight": 0.0}
