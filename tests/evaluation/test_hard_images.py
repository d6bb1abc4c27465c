"""Images that the early teacher gets wrong: from which set, and accuracies equal to a loop."""

from __future__ import annotations

import pytest
import torch

from antishortcut.config.recipe import Recipe, Run
from antishortcut.data import Loader
from antishortcut.errors import UserError
from antishortcut.evaluation import EvalContext, EvaluatedRun, evaluate
from antishortcut.models import Network
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Teachers
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.types import AnySet


def guesses(network: Network, images: AnySet) -> list[int]:
    """The predicted class of every image."""
    result: list[int] = []
    for batch in Loader(images, batch=7, seed=0, image_size=32, augment="none", shuffle=False).epoch(0):
        with torch.no_grad():
            result += [row.index(max(row)) for row in network(batch.image).logits.tolist()]
    return result


def by_hand(run: Run, session: Session, images: AnySet, state: str = "15%") -> dict[str, float]:
    """Accuracy of the student where the teacher's early state is wrong and where it is right, counted."""
    student = EvaluatedRun(RunDir(run.folder(session.runs)), EvalContext(session.sets(run.data), session.runs)).network
    early = Teachers(run, session.runs, 10, 32).network(state)
    right: dict[bool, list[bool]] = {True: [], False: []}
    for own, before, y in zip(guesses(student, images), guesses(early, images), images.label.tolist(), strict=True):
        right[before != y].append(own == y)
    hard, easy = (sum(right[part]) / len(right[part]) for part in (True, False))
    share = len(right[True]) / len(images)
    return {"hard_share": share, "hard_accuracy": hard, "easy_accuracy": easy, "balanced_accuracy": (hard + easy) / 2}


@pytest.fixture
def held(recipe: Recipe) -> Recipe:
    """A quarter of the training set is held out."""
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"val_fraction": 0.25})})


def test_hard_images_of_the_validation_split(held: Recipe, session: Session) -> None:
    run = distill(held, session, method="kd", seed=1, suite="s")
    folder, sets = RunDir(run.folder(session.runs)), session.sets(held.data)
    score = evaluate(folder, EvalContext(sets, session.runs), ["hard"])["hard"]
    assert sets.val is not None
    assert (score["of"], score["count"]) == ("val", len(sets.val)) == ("val", 64)
    assert score["fingerprint"] == f"{sets.fingerprint}-val"
    assert score["values"] == pytest.approx(by_hand(run, session, sets.val))
    values = score["values"]
    whole = values["hard_share"] * values["hard_accuracy"] + (1 - values["hard_share"]) * values["easy_accuracy"]
    assert whole == pytest.approx(folder.result()["last"]["accuracy"])  # training scores the same images


def test_every_student_of_a_teacher_is_scored_on_the_same_images(recipe: Recipe, session: Session) -> None:
    """Those of the first test set that the recipe's early state gets wrong, whatever a student learned from."""
    sets = session.sets(recipe.data)
    shares = []
    for method, early in (("contrast", "75%"), ("ce", None)):
        run = distill(recipe, session, method=method, seed=1, suite="s", early=early)
        score = evaluate(RunDir(run.folder(session.runs)), EvalContext(sets, session.runs), ["hard"])["hard"]
        assert (score["of"], score["count"]) == ("iid", 100)
        assert score["values"] == pytest.approx(by_hand(run, session, sets.tests["iid"]))
        shares.append(score["values"]["hard_share"])
    assert len(set(shares)) == 1
    assert shares[0] != by_hand(run, session, sets.tests["iid"], "75%")["hard_share"]  # the other state has its own


def test_a_teacher_is_refused(recipe: Recipe, session: Session) -> None:
    folder = RunDir(teach(recipe, session).folder(session.runs))
    with pytest.raises(UserError, match="is a teacher"):
        evaluate(folder, EvalContext(session.sets(recipe.data), session.runs), ["hard"])
    assert not folder.scores()
