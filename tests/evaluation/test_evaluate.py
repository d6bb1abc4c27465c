"""Evaluation: scores land in the folder, are what a loop gives, and are not computed twice."""

from __future__ import annotations

import pytest
import torch

from antishortcut.config.recipe import Recipe
from antishortcut.data import Loader
from antishortcut.errors import UserError
from antishortcut.evaluation import EVALUATIONS, Bench, Subject, evaluate
from antishortcut.evaluation.context import part
from antishortcut.run_dir import Folder
from antishortcut.training.pipeline import Workshop, distill, teach
from antishortcut.types import ImageSet


def test_scores_are_what_a_loop_gives(recipe: Recipe, shop: Workshop) -> None:
    run = distill(recipe, shop, method="kd", seed=1, suite="s")
    folder, sets = Folder(run.folder(shop.runs)), shop.sets(recipe.data)
    scores = evaluate(folder, Bench(sets, shop.runs), ["clean", "mechanism"])
    network = Subject(folder, Bench(sets, shop.runs)).network
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


def test_a_repeated_evaluation_is_skipped(recipe: Recipe, shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    run = distill(recipe, shop, method="ce", seed=1, suite="s")
    folder, sets = Folder(run.folder(shop.runs)), shop.sets(recipe.data)
    first = evaluate(folder, Bench(sets, shop.runs), ["clean"])
    monkeypatch.setattr(Subject, "network", None)
    monkeypatch.setattr(Subject, "outputs", None)
    assert evaluate(folder, Bench(sets, shop.runs), ["clean"]) == first


def test_a_teacher_can_be_scored_but_has_no_mechanism(recipe: Recipe, shop: Workshop) -> None:
    folder = Folder(teach(recipe, shop).folder(shop.runs))
    sets = shop.sets(recipe.data)
    assert evaluate(folder, Bench(sets, shop.runs), ["clean"])["iid"]["values"]["accuracy"] == pytest.approx(
        folder.result()["last"]["accuracy"]
    )
    with pytest.raises(UserError, match="is a teacher"):
        evaluate(folder, Bench(sets, shop.runs), ["mechanism"])


def test_other_widths_are_compared_through_the_ridge_map_alone(recipe: Recipe, shop: Workshop) -> None:
    narrow = recipe.model_copy(update={"student": recipe.student.model_copy(update={"name": "cnn-2-8"})})
    run = distill(narrow, shop, method="asd", seed=1, suite="s")
    scores = evaluate(Folder(run.folder(shop.runs)), Bench(shop.sets(recipe.data), shop.runs), ["mechanism"])
    assert set(scores["mechanism"]["values"]) == {"aligned", "projector"}


def test_mistakes(recipe: Recipe, shop: Workshop) -> None:
    run = distill(recipe, shop, method="ce", seed=1, suite="s")
    folder, sets = Folder(run.folder(shop.runs)), shop.sets(recipe.data)
    with pytest.raises(UserError, match="did you mean 'clean'"):
        evaluate(folder, Bench(sets, shop.runs), ["cleen"])
    other = shop.sets(recipe.data.model_copy(update={"seed": 5}))
    with pytest.raises(UserError, match="other data"):
        evaluate(folder, Bench(other, shop.runs), ["clean"])
    (folder.path / "result.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        evaluate(folder, Bench(sets, shop.runs), ["clean"])


def test_the_pool_is_fixed_and_keeps_its_facts() -> None:
    images = ImageSet(
        torch.arange(50, dtype=torch.uint8)[:, None, None, None], torch.arange(50), {"texture": torch.arange(50)}
    )
    pool = part(images, 20)
    assert len(pool) == 20
    assert torch.equal(pool.label, pool.cues["texture"])
    assert torch.equal(pool.label, part(images, 20).label)
    assert part(images, 60) is images
