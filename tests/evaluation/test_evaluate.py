"""Evaluation: scores land in the folder, are what a loop gives, and are not computed twice."""

from __future__ import annotations

import pytest
import torch

from antishortcut.config.recipe import Recipe
from antishortcut.data import Loader
from antishortcut.errors import UserError
from antishortcut.evaluation import EVALUATIONS, EvalContext, EvaluatedRun, evaluate
from antishortcut.evaluation.context import part
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.types import ImageSet


def test_scores_are_what_a_loop_gives(recipe: Recipe, session: Session) -> None:
    run = distill(recipe, session, method="kd", seed=1, suite="s")
    folder, sets = RunDir(run.folder(session.runs)), session.sets(recipe.data)
    scores = evaluate(folder, EvalContext(sets, session.runs), ["clean", "mechanism"])
    network = EvaluatedRun(folder, EvalContext(sets, session.runs)).network
    for name, images in sets.tests.items():
        hits = 0
        for batch in Loader(images, batch=7, seed=0, image_size=32, augment="none", shuffle=False).epoch(0):
            with torch.no_grad():
                hits += int((network(batch.image).logits.argmax(1) == batch.label).sum())
        assert scores[name]["values"]["accuracy"] == pytest.approx(hits / len(images))
        assert scores[name]["fingerprint"] == sets.fingerprint
        assert scores[name]["count"] == 100
    assert set(scores["conflict"]["values"]) <= EVALUATIONS["clean"].metrics.keys()
    baselines = {"projection_random", "robust_random", "head_random"}
    assert set(scores["mechanism"]["values"]["raw"]) - baselines <= EVALUATIONS["mechanism"].metrics.keys()
    assert folder.result()["last"]["accuracy"] == pytest.approx(scores["iid"]["values"]["accuracy"])
    values = scores["mechanism"]["values"]
    assert values["raw"]["projection_random"] == pytest.approx(0.5)  # √(4/16)
    assert values["aligned"]["cos_final"] > values["raw"]["cos_final"]  # the ridge map was fitted to do just that


def test_a_repeated_evaluation_is_skipped(recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    run = distill(recipe, session, method="ce", seed=1, suite="s")
    folder, sets = RunDir(run.folder(session.runs)), session.sets(recipe.data)
    first = evaluate(folder, EvalContext(sets, session.runs), ["clean"])
    monkeypatch.setattr(EvaluatedRun, "network", None)
    monkeypatch.setattr(EvaluatedRun, "outputs", None)
    assert evaluate(folder, EvalContext(sets, session.runs), ["clean"]) == first


def test_a_teacher_can_be_scored_but_has_no_mechanism(recipe: Recipe, session: Session) -> None:
    folder = RunDir(teach(recipe, session).folder(session.runs))
    sets = session.sets(recipe.data)
    assert evaluate(folder, EvalContext(sets, session.runs), ["clean"])["iid"]["values"]["accuracy"] == pytest.approx(
        folder.result()["last"]["accuracy"]
    )
    with pytest.raises(UserError, match="is a teacher"):
        evaluate(folder, EvalContext(sets, session.runs), ["mechanism"])


def test_other_widths_are_compared_through_the_ridge_map_alone(recipe: Recipe, session: Session) -> None:
    narrow = recipe.model_copy(update={"student": recipe.student.model_copy(update={"name": "cnn-2-8"})})
    run = distill(narrow, session, method="asd", seed=1, suite="s")
    scores = evaluate(
        RunDir(run.folder(session.runs)), EvalContext(session.sets(recipe.data), session.runs), ["mechanism"]
    )
    assert set(scores["mechanism"]["values"]) == {"aligned", "projector"}


def test_mistakes(recipe: Recipe, session: Session) -> None:
    run = distill(recipe, session, method="ce", seed=1, suite="s")
    folder, sets = RunDir(run.folder(session.runs)), session.sets(recipe.data)
    with pytest.raises(UserError, match="did you mean 'clean'"):
        evaluate(folder, EvalContext(sets, session.runs), ["cleen"])
    other = session.sets(recipe.data.model_copy(update={"seed": 5}))
    with pytest.raises(UserError, match="other data"):
        evaluate(folder, EvalContext(other, session.runs), ["clean"])
    (folder.path / "result.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        evaluate(folder, EvalContext(sets, session.runs), ["clean"])


def test_the_pool_is_fixed_and_keeps_its_facts() -> None:
    images = ImageSet(
        torch.arange(50, dtype=torch.uint8)[:, None, None, None], torch.arange(50), {"texture": torch.arange(50)}
    )
    pool = part(images, 20)
    assert len(pool) == 20
    assert torch.equal(pool.label, pool.cues["texture"])
    assert torch.equal(pool.label, part(images, 20).label)
    assert part(images, 60) is images
