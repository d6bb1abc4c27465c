"""Multi-level logit distillation against loops, by hand, and that only the marks tell weak rows from strong ones."""
# B weak views, C classes

import math
from statistics import median
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.config.recipe import load_recipe
from antishortcut.methods import METHODS, build_method, method_options
from antishortcut.methods.mlld import MLLD, gram_loss, lower_half, mlld_terms
from antishortcut.types import Batch, Features, Shape, Sizes, StrongView
from tests.methods.test_kd import slow_kd, softened
from tests.methods.test_standardise import slow_standardised
from tests.test_subspace import close, normal, seeds, several

Rows = list[list[float]]


def sizes(classes: int) -> Sizes:
    return Sizes(classes, 100, Shape(8), {"final": Shape(8)}, labels=torch.arange(100) % classes)


def slow_gram(student: Rows, teacher: Rows, keep: list[float]) -> float:
    """Squared differences of inner products, those with row j times keep[j], over the number of rows."""
    total = 0.0
    for s, t in zip(student, teacher, strict=True):
        for j, weight in enumerate(keep):
            theirs = sum(a * b for a, b in zip(t, teacher[j], strict=True))
            total += weight * (theirs - sum(a * b for a, b in zip(s, student[j], strict=True))) ** 2
    return total / len(student)


def turned(rows: Rows) -> Rows:
    return [list(column) for column in zip(*rows, strict=True)]


def slow_mlld(
    weak: tuple[Tensor, Tensor], strong: tuple[Tensor, Tensor], first: float, masks: bool, standardise: bool
) -> tuple[float, float, float]:
    """The sums of the authors' code: five temperatures on weak views, three on strong ones, two on weak ones again."""
    confidence = [max(row) for row in softened(weak[1], 1.0)]
    mass = [sum(column) for column in turned(softened(weak[1], 1.0))]
    sample = [float(v <= median(confidence)) for v in confidence]
    classes = [float(v <= median(mass)) for v in mass]
    if not masks:
        sample = [sum(sample) / len(sample)] * len(sample)
        classes = [sum(classes) / len(classes)] * len(classes)
    kd = class_level = batch_level = 0.0
    views = {"weak": weak, "strong": strong}
    if standardise:
        views = {name: (slow_standardised(s), slow_standardised(t)) for name, (s, t) in views.items()}
    for tau in (first, 3.0, 5.0, 2.0, 6.0):
        p, q = softened(weak[0], tau), softened(weak[1], tau)
        class_level += slow_gram(turned(p), turned(q), classes)
        batch_level += slow_gram(p, q, sample)
        for i, weight in enumerate(sample):
            kd += weight * slow_kd(views["weak"][0][i : i + 1], views["weak"][1][i : i + 1], tau) / len(sample)
    kd += sum(slow_kd(*views["strong"], tau) for tau in (first, 3.0, 5.0))
    kd += sum(slow_kd(*views["weak"], tau) for tau in (2.0, 6.0))
    return kd, class_level, batch_level


def pairs(b: int, c: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Weak and strong views, each of student and teacher."""
    four = [2 * normal(b, c, seed=seed + i) for i in range(4)]
    return [(four[0], four[1]), (four[2], four[3])]


def terms_of(method: MLLD, pair: list[tuple[Tensor, Tensor]], strong: Tensor | None) -> dict[str, Tensor]:
    rows, targets = (torch.cat([views[who] for views in pair]) for who in range(2))
    student, teacher = (Features(logits, torch.zeros(len(logits), 8)) for logits in (rows, targets))
    label = torch.zeros(len(rows), dtype=torch.int64)
    batch = Batch(torch.zeros(len(rows), 3, 1, 1), label, torch.arange(len(rows)), strong=strong)
    return method.terms(student, {"final": teacher}, batch, 0.0)


@several
@given(
    b=st.integers(1, 5),
    c=st.integers(2, 5),
    first=st.sampled_from([4.0, 1.0]),
    masks=st.booleans(),
    standardise=st.booleans(),
    seed=seeds,
)
def test_agrees_with_the_loop(b: int, c: int, first: float, masks: bool, standardise: bool, seed: int) -> None:
    weak, strong = pairs(b, c, seed)
    if standardise and c == 2:
        return  # two equal logits would not be standardised
    expected = slow_mlld(weak, strong, first, masks, standardise)
    close(torch.stack(mlld_terms(weak, strong, first, masks=masks, standardise=standardise)), expected, 1e-6)
    more: dict[str, Any] = {"masks": masks, "standardise": standardise}
    method = MLLD(sizes(c), weight=0.5, class_weight=3.0, batch_weight=0.2, temperature=first, **more)
    terms = terms_of(method, [weak, strong], torch.arange(2 * b) >= b)
    assert list(terms) == ["kd", "class", "batch"]
    close(torch.stack(list(terms.values())), [0.5 * expected[0], 1.5 * expected[1], 0.1 * expected[2]], 1e-6)


def test_two_samples_of_two_classes_by_hand() -> None:
    teacher = torch.tensor([[0.75, 0.25], [0.5, 0.5]], dtype=torch.float64)
    student = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64)
    one = torch.tensor(1.0)
    # batch: inner products 5/8, 1/2, 1/2, 1/2 and four times 1/2
    close(gram_loss(student, teacher, one), 1 / 64 / 2, 1e-12)
    close(gram_loss(student, teacher, torch.tensor([0.0, 1.0])), 0.0, 1e-12)  # the surer sample is left out
    # classes: 13/16, 7/16, 7/16, 5/16 and four times 1/2
    close(gram_loss(student.T, teacher.T, one), (25 + 1 + 1 + 9) / 256 / 2, 1e-12)
    assert lower_half(teacher.amax(dim=1)).tolist() == [0.0, 1.0]
    assert lower_half(teacher.sum(dim=0)).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("values", "kept"), [([3, 1, 2], 2), ([4, 1, 3, 2], 2), ([1, 1, 1], 3), ([1, 1, 1, 2], 3), ([7], 1)]
)
def test_the_median_belongs_to_the_lower_half(values: list[float], kept: int) -> None:
    assert lower_half(torch.tensor(values).float()).sum() == kept
    assert lower_half(torch.tensor([1.0, math.nan])).isnan().any()


def test_rows_may_stand_in_any_order() -> None:
    """Two processes: weak, strong, weak, strong."""
    weak, strong = pairs(6, 4, 0)
    method = MLLD(sizes(4))
    expected = terms_of(method, [weak, strong], torch.arange(12) >= 6)
    halves = [(view[0][part], view[1][part]) for part in (slice(0, 3), slice(3, 6)) for view in (weak, strong)]
    result = terms_of(method, halves, torch.tensor([False, True, False, True]).repeat_interleave(3))
    close(torch.stack(list(result.values())), torch.stack(list(expected.values())))
    mixed = terms_of(method, halves, torch.arange(12) >= 6)
    assert abs(float(mixed["class"] - expected["class"])) > 1e-6  # the marks do matter


def test_without_marks_all_rows_are_weak() -> None:
    weak, _ = pairs(6, 4, 0)
    terms = terms_of(MLLD(sizes(4)), [weak], None)
    close(torch.stack(list(terms.values())), 0.9 * torch.stack(mlld_terms(weak, None, 4.0)))


def test_settings_are_the_published_ones() -> None:
    published = {"class_weight": 1.0, "batch_weight": 1.0, "masks": False, "task_weight": 0.2}
    assert method_options("mlld", {}) == published | {"weight": 0.9, "temperature": 4.0, "standardise": False}
    assert method_options("mlld+ls", {}) == published | {"weight": 9.0, "temperature": 2.0, "standardise": True}
    asking = {name for name in METHODS if isinstance(build(name), StrongView)}
    assert asking == {"mlld", "mlld+ls"}


def build(name: str) -> Any:
    shape = Shape(8, ((4, 8, 8),) * 4)
    roles = dict.fromkeys(("final", "early", "chosen", "50%", "75%"), shape)
    return build_method(
        name, Sizes(4, 100, shape, roles, labels=torch.arange(100) % 4, groups=torch.arange(100) % 8), {}
    )


def test_recipes_keep_the_published_balance() -> None:
    """CC grows with (B / C)², BC with B / C; the weights are for 64 images and 100 classes."""
    recipe = load_recipe("cues")
    share = 0.64 * 10 / recipe.optim.batch  # of ten classes
    for name in ("mlld", "mlld+ls"):
        assert recipe.methods[name] == {"class_weight": pytest.approx(share**2), "batch_weight": pytest.approx(share)}
    for number in range(1, 11):
        assert not {"mlld", "mlld+ls"} & load_recipe(f"P{number}").methods.keys()
