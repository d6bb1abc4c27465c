"""Self-distillation against a loop and by hand; the branches that reach any stage, and who learns from whom."""
# B batch, C classes, D embedding, S stages taught

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from antishortcut.methods.byot import BYOT, Branch, byot_terms
from antishortcut.types import Batch, Features, Shape, Sizes
from tests.methods.test_kd import slow_kd
from tests.test_subspace import close, normal, seeds, several

MAPS = ((3, 16, 16), (4, 16, 16), (8, 8, 8), (16, 4, 4))


def slow_byot(
    logits: list[Tensor], features: list[Tensor], deepest: Tensor, embedding: Tensor, label: Tensor, temperature: float
) -> tuple[float, float, float]:
    """Branch by branch and sample by sample: −log p_y, τ² Σ q log(q / p), Σ (F_i − F)²."""
    ce = kd = hint = 0.0
    for shallow, feature in zip(logits, features, strict=True):
        for row, y in zip(shallow.tolist(), label.tolist(), strict=True):
            ce -= math.log(math.exp(row[y]) / sum(math.exp(v) for v in row)) / len(label)
        for ours, reference in zip(feature.tolist(), embedding.tolist(), strict=True):
            hint += sum((a - b) ** 2 for a, b in zip(ours, reference, strict=True)) / len(label)
        kd += slow_kd(shallow, deepest, temperature)
    return ce, kd, hint


def sizes(*maps: tuple[int, int, int], embedding: int = 12, classes: int = 5) -> Sizes:
    return Sizes(classes, 100, Shape(embedding, maps), labels=torch.arange(100) % classes)


def student_of(maps: tuple[tuple[int, int, int], ...], rows: int, dtype: torch.dtype = torch.float32) -> Features:
    """Random features, leaves of the graph."""
    stages = tuple(normal(rows, *shape, seed=i, dtype=dtype).requires_grad_() for i, shape in enumerate(maps))
    logits, embedding = normal(rows, 5, seed=8, dtype=dtype), normal(rows, 12, seed=9, dtype=dtype)
    return Features(logits.requires_grad_(), embedding.requires_grad_(), stages)


def a_batch(rows: int) -> Batch:
    return Batch(torch.zeros(rows, 3, 1, 1), torch.arange(rows) % 5, torch.arange(rows))


@several
@given(s=st.integers(0, 3), b=st.integers(1, 5), c=st.integers(1, 6), d=st.integers(1, 6), seed=seeds)
def test_agrees_with_the_loop(s: int, b: int, c: int, d: int, seed: int) -> None:
    logits = [3 * normal(b, c, seed=seed + i) for i in range(s)]
    features = [normal(b, d, seed=seed + 5 + i) for i in range(s)]
    deepest, embedding = 3 * normal(b, c, seed=seed + 10), normal(b, d, seed=seed + 11)
    label = torch.randint(c, (b,), generator=torch.Generator().manual_seed(seed))
    ours = byot_terms(logits, features, deepest, embedding, label, 3.0)
    close(torch.stack(ours), slow_byot(logits, features, deepest, embedding, label, 3.0))
    same = byot_terms([deepest] * s, [embedding] * s, deepest, embedding, label, 3.0)
    close(torch.stack(same[1:]), 0.0, 1e-13)  # who is the deepest has nothing to learn from it


def test_one_branch_by_hand() -> None:
    shallow = torch.tensor([[0.0, 0.0]], dtype=torch.float64)  # p = (1/2, 1/2)
    deepest = torch.tensor([[3 * math.log(3), 0.0]], dtype=torch.float64)  # q = (3/4, 1/4) at τ = 3
    feature, embedding = torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[4.0, -2.0]]).double()
    ce, kd, hint = byot_terms([shallow], [feature], deepest, embedding, torch.tensor([1]), 3.0)
    close(ce, math.log(2), 1e-15)
    close(kd, 9 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5)), 1e-14)
    close(hint, 9 + 16, 1e-15)


@pytest.mark.parametrize(
    ("stage", "deepest", "blocks"),
    [
        ((8, 32, 32), (64, 8, 8), [(8, 16), (16, 20)]),
        ((16, 4, 4), (16, 4, 4), [(16, 20)]),
        ((4, 1, 1), (4, 1, 1), [(4, 20)]),
        ((3, 15, 9), (8, 2, 2), [(3, 6), (6, 12), (12, 20)]),
        ((64, 56, 56), (512, 7, 7), [(64, 20), (20, 20), (20, 20)]),
    ],
)
def test_a_branch_reaches_the_embedding(
    stage: tuple[int, int, int], deepest: tuple[int, int, int], blocks: list[tuple[int, int]]
) -> None:
    branch = Branch(stage, deepest, embedding=20, classes=7)
    built = [m for m in branch.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
    assert [(conv.in_channels, conv.out_channels) for conv in built] == blocks
    feature, logits = branch(torch.randn(2, *stage))
    assert (feature.shape, logits.shape) == ((2, 20), (2, 7))
    assert max(branch.blocks(torch.randn(2, *stage)).shape[2:]) <= max(deepest[1:])


@pytest.mark.parametrize(("count", "taught"), [(2, [0]), (3, [1]), (4, [1, 2])])
def test_stem_and_last_stage_get_no_branch(count: int, taught: list[int]) -> None:
    student = student_of(MAPS[-count:], 4)
    method = BYOT(sizes(*MAPS[-count:]))
    torch.autograd.backward(torch.stack(list(method.terms(student, {}, a_batch(4), 0.0).values())).sum())
    assert [i for i, stage in enumerate(student.stages) if stage.grad is not None] == taught
    assert student.logits.grad is None  # the deepest teaches and does not learn from the shallow
    assert student.embedding.grad is None
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in method.parameters())


def test_method_weighs_its_terms() -> None:
    torch.manual_seed(0)
    method = BYOT(sizes(*MAPS), alpha=0.4, temperature=2.0, hint=0.5).double()
    student, batch = student_of(MAPS, 6, torch.float64), a_batch(6)
    terms = method.terms(student, {}, batch, 0.0)
    outputs = [branch(stage) for branch, stage in zip(method.branches, student.stages[1:3], strict=True)]
    ce, kd, hint = slow_byot(
        [logits for _, logits in outputs], [f for f, _ in outputs], student.logits, student.embedding, batch.label, 2.0
    )
    assert list(terms) == ["ce", "self", "hint"]
    close(torch.stack(list(terms.values())), [0.6 * ce, 0.4 * kd, 0.5 * hint])
    assert (method.roles, method.taps, method.task_weight) == ((), ("stages",), 1.0)
