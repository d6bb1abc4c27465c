"""Numbers nobody hopes for: a defined result or one line, for every method, and never weights that are no numbers."""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import antishortcut.training.trainer as loop
from antishortcut import ASDLoss
from antishortcut.config.recipe import Execution, Recipe, with_settings
from antishortcut.errors import UserError
from antishortcut.methods import METHODS, build_method, method_options, method_roles
from antishortcut.methods.shortcut_basis import Select, Source
from antishortcut.models import build
from antishortcut.run_dir import RunDir
from antishortcut.training.checkpoint import load_checkpoint
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.training.step import LossMeter, check_finite_weights
from antishortcut.types import Batch, Features, Method, Sizes, TrainingView
from tests.training.test_odd_batches import STUDENT, TEACHERS, features

LEARNERS = [name for name in METHODS if method_roles(name, method_options(name, {}))]
BASES: list[tuple[Source, Select]] = [
    ("batch", "displaced"),
    ("running", "displaced"),
    ("running", "abandoned"),
    ("dataset", "displaced"),
    ("dataset", "abandoned"),
]
B, CLASSES, EXAMPLES = 5, 4, 20


class Lesson:
    """One method on random features, with teachers as wide as wanted."""

    def __init__(self, name: str, teacher: str) -> None:
        torch.manual_seed(0)
        labels = torch.arange(EXAMPLES) % CLASSES
        options = method_options(name, {})
        roles = method_roles(name, options)
        shapes = dict.fromkeys(roles, TEACHERS[teacher])
        self.method = build_method(name, Sizes(CLASSES, EXAMPLES, STUDENT, shapes, labels), options).train()
        self.student = features(STUDENT, CLASSES, B, "random", 1.0, grad=True)
        self.teachers = {role: features(TEACHERS[teacher], CLASSES, B, "random", 1.0) for role in roles}
        index = torch.randperm(EXAMPLES)[:B]
        self.batch = Batch(torch.zeros(B, 3, 8, 8), labels[index], index)

    def teach(self, teachers: dict[str, Features]) -> dict[str, Tensor]:
        """Terms as the loop takes them: it looks at them before anything is done with them."""
        method, student = cast(Method, self.method), self.student
        if isinstance(self.method, TrainingView):
            student = self.method.view(student, teachers)
        terms = method.terms(student, teachers, self.batch, 1000.0)
        meter = LossMeter()
        meter.add({name: value.detach() for name, value in terms.items()})
        meter.check(1, lambda: "kept", teachers)
        return terms

    def gradients(self, terms: dict[str, Tensor]) -> list[Tensor]:
        torch.autograd.backward(torch.stack(list(terms.values())).sum())
        leaves = (self.student.logits, self.student.embedding, *self.student.stages, *self.method.parameters())
        return [leaf.grad for leaf in leaves if leaf.grad is not None]


def changed(outputs: Features, factor: float = 1.0, first: float | None = None) -> Features:
    """All that a teacher says, grown, or with one number in its first row exchanged."""
    built = [each * factor for each in (outputs.logits, outputs.embedding, *outputs.stages)]
    if first is not None:
        for each in built:
            each.view(-1)[0] = first
    return replace(outputs, logits=built[0], embedding=built[1], stages=tuple(built[2:]))


def whole(module: nn.Module) -> bool:
    return all(bool(value.isfinite().all()) for value in module.state_dict().values() if value.is_floating_point())


@torch.no_grad()
def spoil(network: nn.Module, value: float) -> None:
    first = next(network.parameters())
    first[(0,) * first.dim()] = value


@pytest.mark.parametrize("teacher", TEACHERS)
@pytest.mark.parametrize("name", LEARNERS)
def test_exploding_teachers_give_finite_terms(name: str, teacher: str) -> None:
    """1e15 is far beyond what networks say; at 1e30 a square is no float32, and those who square may refuse."""
    for factor in (1e15, 1e30):
        lesson = Lesson(name, teacher)
        loud = {role: changed(outputs, factor) for role, outputs in lesson.teachers.items()}
        with suppress(UserError) if factor > 1e15 else nullcontext():
            terms = lesson.teach(loud)
            assert all(gradient.isfinite().all() for gradient in lesson.gradients(terms))
            assert whole(lesson.method)


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("name", LEARNERS)
def test_a_teacher_that_is_no_number_is_one_line(name: str, value: float) -> None:
    """A single such number is enough: none is averaged, clamped or masked away. The line says whose it is."""
    lesson = Lesson(name, "wider")
    lesson.teach(lesson.teachers)
    for role in lesson.teachers:
        broken = {
            key: changed(outputs, first=value if key == role else None) for key, outputs in lesson.teachers.items()
        }
        with pytest.raises(UserError, match=f"answers of '{role}' are not finite|has a teacher diverged") as caught:
            lesson.teach(broken)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("factor", [1e18, 1e30, math.inf, math.nan])
@pytest.mark.parametrize(("source", "select"), BASES)
def test_directions_of_features_beyond_bounds(source: Source, select: Select, factor: float) -> None:
    """Their squares are no numbers: one line from all three places that directions come from."""
    torch.manual_seed(0)
    asd = ASDLoss(6, 9, subspace=source, select=select)
    student, final, early = torch.randn(B, 6), factor * torch.randn(B, 9), factor * torch.randn(B, 9)

    def terms() -> dict[str, Tensor]:
        asd.prepare([(final, early)])
        result: dict[str, Tensor] = asd(student, final, early, epoch=100.0)
        return result

    if factor == 1e18 or (factor == 1e30 and source == "batch"):  # of one batch they are taken in float64
        assert all(value.isfinite() for value in terms().values())
    else:
        with pytest.raises(UserError, match="not finite, or too large to be squared"):
            terms()


@pytest.mark.parametrize("k", [B + 1, 10, 1000])  # above the batch, the width, everything
@pytest.mark.parametrize(("source", "select"), BASES)
def test_more_directions_than_there_are(source: Source, select: Select, k: int) -> None:
    torch.manual_seed(0)
    asd = ASDLoss(9, 9, subspace=source, select=select, directions=k, tc=0.0)
    student, final, early = torch.randn(B, 9, requires_grad=True), torch.randn(B, 9), torch.randn(B, 9)
    asd.prepare([(final, early)])
    with pytest.warns(UserWarning, match=f"spans {B} of {k} directions in {B} rows"):
        asd(student, final, early, epoch=100.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was said
        terms = asd(student, final, early, epoch=100.0)
    assert asd.basis is not None
    basis = asd.basis(early, final)  # (D, ≤ K): orthonormal columns, then zeros
    expected = torch.diag((torch.arange(basis.shape[1]) < B).float())
    torch.testing.assert_close(basis.T @ basis, expected, atol=1e-5, rtol=0)
    torch.autograd.backward(terms["ss"])
    assert student.grad is not None
    assert student.grad.isfinite().all()


def test_the_early_state_may_be_the_final_one(recipe: Recipe, session: Session) -> None:
    """Nothing was left behind, so nothing is suppressed, and a line says so; extrapolating from it changes nothing."""
    same = with_settings(recipe, ["teacher.early=100%"])
    with pytest.warns(UserWarning, match="nothing to suppress: are the two checkpoints the same"):
        run = distill(same, session, method="asd", seed=1, suite="same")
    folder = RunDir(run.folder(session.runs))
    rows = [row["terms"] for row in folder.history() if "terms" in row]
    assert all(row["ss"] == 0 for row in rows)
    assert any(row["tc"] > 0 for row in rows)
    assert all(value.isfinite().all() for value in load_file(folder.student).values())


def test_a_run_taught_by_no_numbers_saves_nothing(recipe: Recipe, session: Session, tmp_path: Path) -> None:
    """A teacher from elsewhere that diverged: its file holds an infinity. One with NaN is refused as it is read."""
    network = build("cnn-4-16", 10)
    state = {key.removeprefix("body."): value for key, value in network.state_dict().items()}
    torch.save(state, tmp_path / "early.pt")
    spoil(network, math.inf)
    torch.save(state, tmp_path / "final.pt")
    session.execution = Execution(accelerator="cpu", threads=1, save_every=0)
    inputs = with_settings(recipe, [f"teacher.final={tmp_path / 'final.pt'}", f"teacher.early={tmp_path / 'early.pt'}"])
    for method, text in (("kd", "answers of 'final' are not finite"), ("asd", "has a teacher diverged")):
        with pytest.raises(UserError, match=text):
            distill(inputs, session, method=method, seed=1, suite="s")
        folder = RunDir(session.runs / "s" / f"{method}-s1")
        assert not folder.student.exists()
        assert load_checkpoint(folder.path / "resume") is None


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("at", [3, 8, 16])  # inside an epoch, at its end, at the end of all
def test_weights_that_are_no_numbers_are_not_saved(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch, at: int, value: float
) -> None:
    """The loss of a step is finite, what the step made of the weights is not: known before they are written."""
    session.execution = Execution(accelerator="cpu", threads=1, save_every=0)
    original = loop.Trainer._step

    def step(self: loop.Trainer, batch: Any) -> float:
        rate = original(self, batch)
        if self.done == at:
            spoil(self.student, value)
        return rate

    monkeypatch.setattr(loop.Trainer, "_step", step)
    text = f"weights are not finite after step {at}: .*; the state after step {at - 1} is kept; lower optim.lr"
    with pytest.raises(UserError, match=text):
        distill(recipe, session, method="ce", seed=1, suite="s")
    folder = RunDir(session.runs / "s" / "ce-s1")
    assert not folder.student.exists()
    result = load_checkpoint(folder.path / "resume")
    assert result is not None
    assert result[0] == at - 1
    assert all(saved.isfinite().all() for saved in result[1]["model"].values())
    monkeypatch.undo()
    distill(recipe, session, method="ce", seed=1, suite="s")  # goes on from there
    assert all(saved.isfinite().all() for saved in load_file(folder.student).values())


def test_a_state_of_a_teacher_is_looked_at_before_it_is_kept(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = loop.Trainer._step

    def step(self: loop.Trainer, batch: Any) -> float:
        rate = original(self, batch)
        if self.done in self.due:
            spoil(self.student, math.nan)
        return rate

    monkeypatch.setattr(loop.Trainer, "_step", step)
    with pytest.raises(UserError, match="weights are not finite after step 1"):
        teach(recipe, session)
    saved = [load_file(path) for path in session.runs.rglob("*.safetensors")]
    assert all(value.isfinite().all() for state in saved for value in state.values())


def test_infinities_on_purpose_may_stay_and_running_statistics_may_not() -> None:
    norm, mask = nn.BatchNorm1d(2), torch.tensor([0.0, -math.inf])
    network = nn.Sequential(nn.Linear(2, 2), norm)
    network.register_buffer("mask", mask)
    check_finite_weights(network, 1, str)
    mask[0] = math.nan
    with pytest.raises(UserError, match="mask"):
        check_finite_weights(network, 1, str)
    mask[0] = 0.0
    assert norm.running_var is not None
    norm.running_var[0] = math.inf  # never leaves an average again
    with pytest.raises(UserError, match=r"1\.running_var"):
        check_finite_weights(network, 1, str)
