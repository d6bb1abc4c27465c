"""GroupDRO on top of KD: against a loop over steps and groups, by hand, and where it must be KD."""
# B batch, C classes, G groups

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from antishortcut.config.recipe import Recipe, with_settings
from antishortcut.errors import UserError
from antishortcut.methods.groupdro import GroupDRO
from antishortcut.methods.kd import kd_loss
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill
from antishortcut.types import Batch, Shape, Sizes
from tests.conftest import CPU
from tests.data.test_planted import make_labelled
from tests.methods.test_contrast import slow_log_softmax
from tests.methods.test_kd import logits_only, slow_kd
from tests.test_subspace import close, normal, seeds, several

N = 24


def method_of(groups: list[int], **settings: Any) -> GroupDRO:
    """Of training images in these groups, in float64."""
    labels = torch.zeros(len(groups), dtype=torch.int64)
    sizes = Sizes(4, len(groups), Shape(8), {"final": Shape(8)}, labels, torch.tensor(groups))
    return GroupDRO(sizes, **settings).double()


def random_batch(rows: int, seed: int, images: int = N) -> tuple[Tensor, Tensor, Batch]:
    """Logits (B, 4) of student and teacher, and a batch of distinct training images."""
    student, teacher = 3 * normal(rows, 4, seed=seed), 3 * normal(rows, 4, seed=seed + 1)
    index = normal(images, seed=seed + 2).argsort()[:rows]
    return student, teacher, Batch(torch.zeros(rows, 3, 1, 1), normal(rows, 4, seed=seed + 3).argmax(1), index)


def terms_of(method: GroupDRO, student: Tensor, teacher: Tensor, batch: Batch) -> dict[str, Tensor]:
    return method.terms(logits_only(student), {"final": logits_only(teacher)}, batch, 0.0)


@several
@given(
    step_size=st.sampled_from([0.0, 0.01, 1.0]),
    adjustment=st.sampled_from([0.0, 2.0]),
    rows=st.integers(1, 8),
    seed=seeds,
)
def test_agrees_with_the_loop(step_size: float, adjustment: float, rows: int, seed: int) -> None:
    """Three steps; q_g ← q_g exp(η (ℓ_g + K/√n_g)) over its sum, then Σ q_g ℓ_g, for groups of 12, 8 and 4 images."""
    groups, temperature, ce, weight = [0] * 12 + [1] * 8 + [2] * 4, 2.0, 0.7, 0.5
    method = method_of(
        groups, step_size=step_size, adjustment=adjustment, weight=weight, temperature=temperature, ce=ce
    )
    q = [1 / 3, 1 / 3, 1 / 3]
    for step in range(3):
        student, teacher, batch = random_batch(rows, seed + 10 * step)
        sums, counts = [[0.0, 0.0] for _ in q], [0] * 3
        for i, (at, y) in enumerate(zip(batch.index.tolist(), batch.label.tolist(), strict=True)):
            counts[groups[at]] += 1
            sums[groups[at]][0] -= ce * slow_log_softmax(student[i].tolist())[y]
            sums[groups[at]][1] += weight * slow_kd(student[i : i + 1], teacher[i : i + 1], temperature)
        means = [[value / max(count, 1) for value in pair] for pair, count in zip(sums, counts, strict=True)]
        for g in range(3):
            q[g] *= math.exp(step_size * (sum(means[g]) + adjustment / math.sqrt(groups.count(g))))
        q = [value / sum(q) for value in q]
        terms = terms_of(method, student, teacher, batch)
        assert list(terms) == ["ce", "kd"]
        close(terms["ce"], sum(q[g] * means[g][0] for g in range(3)))
        close(terms["kd"], sum(q[g] * means[g][1] for g in range(3)))
        close(method.log_q.exp(), q)


def test_by_hand() -> None:
    """Two groups, losses log 2 and log 4, η = 1: q = (2, 4) / 6, then (4, 16) / 20."""
    method = method_of([0, 0, 1], step_size=1.0, weight=0.0)
    student = torch.tensor([[0.5, 0.5, 1e-9, 1e-9], [0.5, 0.5, 1e-9, 1e-9], [0.25] * 4], dtype=torch.float64).log()
    batch = Batch(torch.zeros(3, 3, 1, 1), torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2]))
    for q in ((1 / 3, 2 / 3), (1 / 5, 4 / 5)):
        terms = terms_of(method, student, student, batch)
        close(method.log_q.exp(), q, 1e-6)
        close(terms["ce"], q[0] * math.log(2) + q[1] * math.log(4), 1e-6)


@several
@given(rows=st.integers(1, 6), seed=seeds)
def test_one_group_is_cross_entropy_and_kd(rows: int, seed: int) -> None:
    student, teacher, batch = random_batch(rows, seed)
    student.requires_grad_()
    terms = terms_of(method_of([0] * N, temperature=2.0), student, teacher, batch)
    plain = {"ce": F.cross_entropy(student, batch.label), "kd": kd_loss(student, teacher, 2.0)}
    for name, value in plain.items():
        close(terms[name], value, 1e-12)
    ours, expected = (torch.autograd.grad(each["ce"] + each["kd"], student)[0] for each in (terms, plain))
    close(ours, expected, 1e-12)


def test_weight_moves_to_the_worst_group_and_comes_back() -> None:
    """Group 1 is the worst for 3,000 steps, where e^(−η ℓ t) is below the smallest float32, then group 0 is."""
    method = method_of([0, 1], step_size=0.01, weight=0.0).float()
    good, bad = torch.tensor([[20.0, 0, 0, 0]]), torch.tensor([[-20.0, 0, 0, 0]])
    batch = Batch(torch.zeros(2, 3, 1, 1), torch.tensor([0, 0]), torch.tensor([0, 1]))
    history = []
    for step in range(6100):
        student = torch.cat([good, bad] if step < 3000 else [bad, good])
        terms_of(method, student, student, batch)
        history.append(float(method.log_q[1].exp()))
    assert 0.5 < history[0] < history[5] < history[2999] == 1.0
    assert float(method.log_q.exp().sum()) == pytest.approx(1)
    assert history[-1] < 0.01


def test_no_gradient_flows_through_the_weights_of_groups() -> None:
    groups = [0] * 12 + [1] * 12
    student, teacher, batch = random_batch(6, 3)
    student.requires_grad_()
    method = method_of(groups, step_size=1.0, weight=0.0)
    (gradient,) = torch.autograd.grad(terms_of(method, student, teacher, batch)["ce"], student)
    group = torch.tensor(groups)[batch.index]
    row = method.log_q.exp()[group] / group.bincount()[group]  # q_g over the group's rows. (B,)
    close(gradient, row[:, None] * (student.softmax(1) - F.one_hot(batch.label, 4)))


# --- Runs ---


def student(recipe: Recipe, session: Session, method: str, suite: str = "s", **options: Any) -> RunDir:
    return RunDir(distill(recipe, session, method=method, seed=7, suite=suite, options=options).folder(session.runs))


def test_images_are_drawn_by_group_unless_switched_off(recipe: Recipe, session: Session) -> None:
    """At a learning rate of nearly 0 batch statistics show which images came in which order."""
    still = with_settings(recipe, ["epochs=1", "optim.lr=1e-30", "teacher.lr=0.05"])
    kd, shuffled, drawn = (
        load_file(student(still, session, method, suite, **options).student)
        for method, suite, options in (
            ("kd", "a", {}), ("groupdro+kd", "a", {"balanced": False}), ("groupdro+kd", "b", {}),
        )
    )  # fmt: skip
    assert all(torch.allclose(kd[key], shuffled[key], rtol=0, atol=1e-20) for key in kd)
    assert any(not torch.allclose(kd[key], drawn[key]) for key in kd if "running_mean" in key)


def test_weights_of_groups_are_kept_and_outputs_of_drawn_images_are_not_cached(
    recipe: Recipe, session: Session, capfd: pytest.CaptureFixture[str]
) -> None:
    session.quiet, session.execution = False, CPU.model_copy(update={"cache_teachers": True})
    folder = student(recipe, session, "groupdro+kd")
    assert "teacher cache: off, because images are drawn with replacement" in " ".join(capfd.readouterr().err.split())
    log_q = load_file(folder.method)["log_q"]
    assert float(log_q.exp().sum()) == pytest.approx(1)
    assert log_q.max() > log_q.min()


def test_mixed_images_are_refused(recipe: Recipe, session: Session) -> None:
    with pytest.raises(UserError, match=r"optim\.mixup: groupdro\+kd cannot .* by the loss of its group"):
        student(with_settings(recipe, ["optim.mixup=0.2"]), session, "groupdro+kd")


@pytest.mark.parametrize("method", ["groupdro+kd", "dfr+kd"])
def test_planted_shortcuts_have_groups(recipe: Recipe, session: Session, tmp_path: Path, method: str) -> None:
    data = {"name": f"shortcut:{make_labelled(tmp_path)}?kind=patch&rho=0.5", "options": {}, "image_size": 32}
    planted = recipe.model_copy(update={"data": recipe.data.model_copy(update=data)})
    assert student(with_settings(planted, ["epochs=1", "optim.batch=4"]), session, method).finished
