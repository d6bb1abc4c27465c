"""Students that learn from another early state than the one they are compared with: later, untrained, another's."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from antishortcut.config.recipe import Recipe
from antishortcut.errors import UserError
from antishortcut.evaluation import EvalContext, evaluate
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Teachers, Trajectory
from antishortcut.training.pipeline import Session, distill, teach


def other(recipe: Recipe, network: str) -> Recipe:
    """The same recipe with another teacher."""
    return recipe.model_copy(update={"teacher": recipe.teacher.model_copy(update={"name": network})})


def test_the_given_state_teaches_and_the_recipes_own_is_compared_with(recipe: Recipe, session: Session) -> None:
    plain = distill(recipe, session, method="contrast", seed=1, suite="s")
    later = distill(recipe, session, method="contrast", seed=1, suite="s", name="later", early="50%")
    assert (plain.roles["early"], plain.early) == ("15%", "15%")
    assert (later.roles, later.early) == ({"final": "final", "early": "50%"}, "15%")
    assert later.hash != plain.hash
    trajectory = Trajectory(RunDir(session.runs / "teachers" / str(later.teacher)))
    taught = Teachers(later, session.runs, 10, 32).network("early").state_dict()
    assert all(torch.equal(taught[key], value) for key, value in trajectory.weights("50%").items())
    one, two = (load_file(RunDir(run.folder(session.runs)).student) for run in (plain, later))
    assert any(not torch.equal(one[key], two[key]) for key in one)
    written, _ = RunDir(later.folder(session.runs)).read()
    assert written == later
    same = distill(recipe, session, method="contrast", seed=1, suite="s", name="same", early="15%")
    assert same.hash == plain.hash  # said or meant


def test_a_method_that_does_not_ask_for_it_is_not_given_it(recipe: Recipe, session: Session) -> None:
    plain = distill(recipe, session, method="kd", seed=1, suite="s")
    assert distill(recipe, session, method="kd", seed=1, suite="s", early="50%") == plain
    assert plain.roles == {"final": "final"}


def test_a_state_that_is_not_kept_is_said_before_and_after_the_teacher_is_trained(
    recipe: Recipe, session: Session
) -> None:
    with pytest.raises(UserError, match="has no state '12%'"):
        distill(recipe, session, method="contrast", seed=1, suite="s", early="12%")
    assert not session.runs.exists()
    teach(recipe, session)
    with pytest.raises(UserError, match="kept no state '12%'"):
        distill(recipe, session, method="contrast", seed=1, suite="s", early="12%")
    with pytest.raises(UserError, match="no teacher at"):
        distill(recipe, session, method="contrast", seed=1, suite="s", early="0123456789abcdef/15%")
    assert not (session.runs / "s" / "contrast-s1").exists()


@pytest.mark.parametrize("network", ["cnn-3-24", "resnet8"])
def test_a_network_of_another_kind_can_be_the_early_state_of_contrast(
    recipe: Recipe, session: Session, network: str
) -> None:
    source = teach(other(recipe, network), session)
    run = distill(recipe, session, method="contrast", seed=1, suite="s", early=f"{source.hash}/15%")
    assert run.roles["early"] == f"{source.hash}/15%"
    assert (run.early, run.teacher) == ("15%", teach(recipe, session).hash)
    teachers = Teachers(run, session.runs, 10, 32)
    assert teachers.shapes["early"].embedding != teachers.shapes["final"].embedding
    scores = evaluate(
        RunDir(run.folder(session.runs)), EvalContext(session.sets(recipe.data), session.runs), ["hard", "mechanism"]
    )
    assert {"raw", "aligned"} <= set(scores["mechanism"]["values"])  # compared with its own teacher's early state


@pytest.mark.parametrize("method", ["contrast+tc", "asd"])
def test_features_of_another_width_are_refused_in_a_line(recipe: Recipe, session: Session, method: str) -> None:
    teach(recipe, session)
    source = teach(other(recipe, "cnn-3-24"), session)
    with pytest.raises(UserError, match=rf"method '{method.replace('+', '.')}'.* 16 wide, the early state's 24"):
        distill(recipe, session, method=method, seed=1, suite="s", early=f"{source.hash}/15%")
    assert not (session.runs / "s" / f"{method}-s1").exists()  # nothing half-written
    alike = teach(other(recipe, "cnn-3-16"), session)
    run = distill(recipe, session, method=method, seed=1, suite="s", early=f"{alike.hash}/15%")
    assert RunDir(run.folder(session.runs)).finished
