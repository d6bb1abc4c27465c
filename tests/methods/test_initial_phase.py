"""Methods with an initial phase: the trunk first, then the task, inside one run that resumes across the boundary."""

from typing import cast

import pytest
import torch

from antishortcut.config.recipe import Recipe, with_settings
from antishortcut.errors import UserError
from antishortcut.methods import METHODS, method_options
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill
from antishortcut.types import InitialPhase, Method, TaskSchedule
from tests.conftest import assert_same_run, stop_after
from tests.methods.test_contract import EQUAL_CHANNELS, Setting

TRUNK_FIRST, PHASED = ("ab", "fsp"), ("ab", "fsp", "ft")


def test_which_methods_have_one() -> None:
    built = {name: Setting(name, "same-width").method for name in METHODS}
    assert tuple(name for name, method in built.items() if isinstance(method, TaskSchedule)) == TRUNK_FIRST
    assert tuple(name for name, method in built.items() if isinstance(method, InitialPhase)) == PHASED
    assert all(method_options(name, {})["init"] == 30.0 for name in PHASED)


@pytest.mark.parametrize("name", TRUNK_FIRST)
def test_the_task_counts_for_nothing_and_then_for_all(name: str) -> None:
    setting = Setting(name, "other-width")
    plain = Setting("ce", "other-width")
    plain.student.load_state_dict(setting.student.state_dict())
    plain.batch = setting.batch
    cross_entropy = plain.terms()["task"]
    for epoch, share in ((0.0, 0.0), (29.99, 0.0), (30.0, 1.0), (239.0, 1.0)):
        terms = setting.terms(epoch=epoch)
        assert torch.equal(terms["task"], share * cross_entropy)
        assert (float(terms[name].detach()) > 0) == (share == 0)


@pytest.mark.parametrize("name", TRUNK_FIRST)
def test_only_the_trunk_learns_in_the_initial_phase(name: str) -> None:
    setting = Setting(name, "other-width")
    torch.autograd.backward(setting.loss(epoch=0.0))
    gradients = {key: parameter.grad for key, parameter in setting.step.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())  # DDP waits for each
    moved = {key for key, gradient in gradients.items() if gradient is not None and gradient.any()}
    assert not {key for key in moved if ".head." in key or ".last." in key}
    assert {key for key in moved if key.startswith("student.body.stages.0")}
    setting.step.zero_grad()
    torch.autograd.backward(setting.loss(epoch=30.0))
    assert all(p.grad is not None and not p.grad.any() for p in setting.method.parameters())


@pytest.mark.parametrize("name", PHASED)
def test_ten_steps_lower_the_initial_loss(name: str) -> None:
    setting = Setting(name, "other-width")
    optimizer = torch.optim.SGD(setting.step.parameters(), lr=0.01, momentum=0.9)
    key = "paraphrase" if name == "ft" else name
    first = float(setting.terms(epoch=0.0)[key].detach())
    for _ in range(10):
        optimizer.zero_grad()
        torch.autograd.backward(setting.loss(epoch=0.0))
        optimizer.step()
    assert float(setting.terms(epoch=0.0)[key].detach()) < first


@pytest.mark.parametrize("name", PHASED)
def test_a_run_resumes_across_the_boundary(name: str, recipe: Recipe, session: Session) -> None:
    """Eight steps an epoch; the phase ends after eight of sixteen."""
    if name in EQUAL_CHANNELS:
        recipe = with_settings(recipe, ["student.name=cnn-4-16"])
    folders = []
    for suite, stops in (("whole", ()), ("parts", (7, 8, 9))):
        for stop in stops:
            with stop_after(stop):
                distill(recipe, session, method=name, seed=1, suite=suite)
        run = distill(recipe, session, method=name, seed=1, suite=suite)
        folders.append(RunDir(run.folder(session.runs)))
    assert_same_run(*folders)
    terms = {row["step"]: row["terms"] for row in folders[0].history() if "terms" in row}
    for step, values in terms.items():
        assert (values["task"] == 0) == (name != "ft" and step <= 8), step
        assert (values[name] == 0) == ((step <= 8) == (name == "ft")), step


@pytest.mark.parametrize("name", PHASED)
def test_a_phase_as_long_as_the_training_is_refused(name: str, recipe: Recipe, session: Session) -> None:
    settings = [f"methods.{name}.init=2", "student.name=cnn-4-16"]
    with pytest.raises(
        UserError, match=r"init is 2, which leaves nothing of a training of 2 epochs; .* method\.init=0\.25"
    ):
        distill(with_settings(recipe, settings), session, method=name, seed=1, suite="s")
    assert not session.runs.exists()


def test_without_a_phase_they_train_by_the_task_alone() -> None:
    for name in TRUNK_FIRST:
        method = Setting(name, "same-width").method
        cast(InitialPhase, method).init = 0.0
        assert cast(TaskSchedule, method).task_weight_at(0.0) == cast(Method, method).task_weight == 1.0
