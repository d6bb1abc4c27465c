"""Evaluation: scores equal a loop, are written to the run folder, and are not computed twice."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from antishortcut import evaluation
from antishortcut.analysis.features import sample
from antishortcut.config.recipe import Recipe
from antishortcut.data import Loader
from antishortcut.errors import UserError
from antishortcut.evaluation import EVALUATIONS, Evaluation, evaluate
from antishortcut.evaluation.context import EvalContext, EvaluatedRun
from antishortcut.evaluation.maps import ARTIFACT
from antishortcut.evaluation.probes import RELIANCE
from antishortcut.run_dir import RunDir, read_json, write_json
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.types import ImageSet


def test_scores_equal_a_loop(folder: RunDir, context: EvalContext) -> None:
    scores = evaluate(folder, context, ["clean", "mechanism"])
    network = EvaluatedRun(folder, context).network
    for name, images in context.sets.tests.items():
        hits = 0
        for batch in Loader(images, batch=7, seed=0, image_size=32, augment="none", shuffle=False).epoch(0):
            with torch.no_grad():
                hits += int((network(batch.image).logits.argmax(1) == batch.label).sum())
        assert scores[name]["values"]["accuracy"] == pytest.approx(hits / len(images))
        assert (scores[name]["fingerprint"], scores[name]["count"]) == (context.sets.fingerprint, 100)
    assert set(scores["conflict"]["values"]) <= EVALUATIONS["clean"].metrics.keys()
    random = {"projection_random", "robust_random", "head_random"}
    assert set(scores["mechanism"]["values"]["raw"]) - random <= EVALUATIONS["mechanism"].metrics.keys()
    assert folder.result()["last"]["accuracy"] == pytest.approx(scores["iid"]["values"]["accuracy"])
    values = scores["mechanism"]["values"]
    assert values["raw"]["projection_random"] == pytest.approx(0.5)  # √(4/16)
    assert values["aligned"]["cos_final"] > values["raw"]["cos_final"]  # what the ridge map is fitted for


def test_classes_and_mistakes_are_kept_with_the_score(folder: RunDir, context: EvalContext) -> None:
    scores = evaluate(folder, context, ["clean"])
    for name, images in context.sets.tests.items():
        saved = scores[name]
        assert {label: sum(row.values()) for label, row in saved["confusion"].items()} == {
            label: int((images.label == at).sum()) for at, label in enumerate(context.sets.classes)
        }
        right = sum(row.get(label, 0) for label, row in saved["confusion"].items())
        assert right / len(images) == pytest.approx(saved["values"]["accuracy"])
        with Image.open(folder.path / "artifacts" / f"mistakes-{name}.png") as strip:
            assert strip.width == (strip.height + 2) * len(saved["mistakes"]) - 2
        for mistake in saved["mistakes"]:
            assert context.sets.classes[images.label[mistake["image"]]] == mistake["class"] != mistake["answer"]


def test_a_repeated_evaluation_is_skipped(
    folder: RunDir, context: EvalContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = evaluate(folder, context, ["clean"])
    monkeypatch.setattr(EvaluatedRun, "network", None)
    assert evaluate(folder, context, ["clean"]) == first


def test_a_score_of_modified_files_is_repeated(folder: RunDir, context: EvalContext) -> None:
    """Where their content is not hashed, their times say so; the fingerprint, and so the run, remains."""
    score = folder.path / "scores" / "iid.json"
    for hashed in ("content", "names, sizes, times 1", "names, sizes, times 2"):
        context = replace(context, sets=replace(context.sets, hashed=hashed))
        evaluate(folder, context, ["clean"])
        saved = read_json(score)
        assert (saved["hashed"], saved["fingerprint"]) == (hashed, context.sets.fingerprint)
        write_json(score, saved | {"values": {"accuracy": 2.0}})
        assert evaluate(folder, context, ["clean"])["iid"]["values"]["accuracy"] == 2.0  # nothing was modified
        images = context.first_test[1]
        assert EvaluatedRun(folder, context).clean_accuracy(images) == 2.0
        later = replace(context, sets=replace(context.sets, hashed="names, sizes, times 3"))
        assert EvaluatedRun(folder, later).clean_accuracy(images) <= 1


def test_a_teacher_has_scores_maps_and_probes_of_its_own_but_no_mechanism(
    recipe: Recipe, session: Session, context: EvalContext
) -> None:
    folder = RunDir(teach(recipe, session).folder(session.runs))
    scores = evaluate(folder, context, ["clean", "maps", "probes"])
    assert scores["iid"]["values"]["accuracy"] == pytest.approx(folder.result()["last"]["accuracy"])
    assert not [name for name in scores["maps"]["values"] if name.endswith(("_early", "_final"))]
    with np.load(folder.path / ARTIFACT) as arrays:
        assert arrays["network"].tolist() == ["own"]
        assert set(arrays["why"].tolist()) <= {"right", "wrong", "any"}
    assert list(scores["probes"]["networks"]) == ["own"]
    assert set(scores["probes"]["values"]) <= set(RELIANCE)
    for name in ("mechanism", "hard"):
        with pytest.raises(UserError, match="is a teacher"):
            evaluate(folder, context, [name])


def test_other_widths_are_compared_through_maps(recipe: Recipe, session: Session, context: EvalContext) -> None:
    narrow = recipe.model_copy(update={"student": recipe.student.model_copy(update={"name": "cnn-2-8"})})
    folder = RunDir(distill(narrow, session, method="asd", seed=1, suite="s").folder(session.runs))
    scores = evaluate(folder, context, ["mechanism"])
    assert set(scores["mechanism"]["values"]) == {"aligned", "projector"}
    (folder.path / "scores/mechanism.json").unlink()
    folder.method.unlink()  # without it, it could not be compared through the projector
    with pytest.raises(UserError, match=r"method\.safetensors: missing"):
        evaluate(folder, context, ["mechanism"])


def test_errors(folder: RunDir, context: EvalContext, recipe: Recipe, session: Session) -> None:
    with pytest.raises(UserError, match="did you mean 'clean'"):
        evaluate(folder, context, ["cleen"])
    other = session.sets(recipe.data.model_copy(update={"seed": 5}))
    with pytest.raises(UserError, match="other data"):
        evaluate(folder, EvalContext(other, session.runs), ["clean"])
    (folder.path / "result.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        evaluate(folder, context, ["clean"])


def test_a_sample_is_fixed_and_has_its_cues() -> None:
    pixels = torch.arange(50, dtype=torch.uint8)[:, None, None, None]
    images = ImageSet(pixels, torch.arange(50), {"texture": torch.arange(50)})
    chosen, numbers = sample(images, 20)
    assert chosen.label.tolist() == chosen.cues["texture"].tolist() == numbers == sample(images, 20)[1]
    assert len(numbers) == 20
    assert sample(images, 60)[0] is images


def test_the_table_of_evaluations_needs_no_torch() -> None:
    code = "import sys, antishortcut.evaluation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_metric_of_the_documentation(folder: RunDir, context: EvalContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of docs/extend.md, "Add a metric", works with the entry that is printed there."""
    root = Path(__file__).parents[2]
    file = (root / "examples" / "extend" / "metric.py").read_text()
    text = (root / "docs" / "extend.md").read_text().partition("# Add a metric")[2]
    (entry,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    module: dict[str, Any] = {"__name__": "confidence"}
    exec(compile(file, "confidence.py", "exec", dont_inherit=True), module)
    monkeypatch.setitem(sys.modules, "antishortcut.evaluation.confidence", type(sys)("confidence"))
    vars(sys.modules["antishortcut.evaluation.confidence"]).update(module)
    table, names = entry.split("EVALUATIONS = {")[1].rpartition("}")[0], vars(evaluation) | {"Evaluation": Evaluation}
    exec(entry.split("EVALUATIONS = {")[0], names)
    for name, value in eval(f"{{{table}}}", names).items():
        monkeypatch.setitem(EVALUATIONS, name, value)
    score = evaluate(folder, context, ["confidence"])["confidence"]
    images = context.first_test[1]
    assert isinstance(images, ImageSet)
    with torch.no_grad():
        logits = EvaluatedRun(folder, context).network(images.image.float() / 255).logits
    assert score["values"]["confidence"] == pytest.approx(float(logits.softmax(1).amax(1).mean()))
    assert score["values"].keys() == EVALUATIONS["confidence"].metrics.keys()
