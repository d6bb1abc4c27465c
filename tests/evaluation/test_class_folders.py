"""Scores on any folder of class folders equal a loop, are not repeated, and are a column of tables and cards."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from antishortcut.config.recipe import Recipe
from antishortcut.config.schema import DataSettings
from antishortcut.deployment import export
from antishortcut.errors import UserError
from antishortcut.evaluation import FOLDER, check_folder_name, evaluate, folder_score
from antishortcut.evaluation.context import EvalContext, EvaluatedRun
from antishortcut.experiments.jobs import Job
from antishortcut.experiments.launcher import scored
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session
from antishortcut.types import ImageSet
from tests.conftest import Refusal, asd, invoke


def make(place: Path, images: ImageSet, names: dict[int, str]) -> list[int]:
    """Class folders of these names by class; which images they hold."""
    chosen = [at for at in range(len(images)) if int(images.label[at]) in names]
    for at in chosen:
        path = place / names[int(images.label[at])] / f"{at}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.image[at].permute(1, 2, 0).numpy()).save(path)
    return chosen


def conflict(context: EvalContext) -> ImageSet:
    images = context.sets.tests["conflict"]
    assert isinstance(images, ImageSet)
    return images


def score_folders(folder: RunDir, context: EvalContext, state: str = "final") -> dict[str, dict[str, Any]]:
    """Scores on the folders of a context, by name."""
    scores = evaluate(folder, context, [FOLDER], state)
    suffix = "" if state == "final" else f"@{state}"
    return {name: scores[folder_score(name) + suffix] for name in context.folders}


@pytest.fixture
def sketch(context: EvalContext, tmp_path: Path) -> Path:
    """Three of ten classes under another order, one in small letters, and a folder that is no class."""
    make(tmp_path / "sketch", conflict(context), {4: "K", 1: "e", 9: "X"})
    (tmp_path / "sketch" / "zebra").mkdir()
    return tmp_path / "sketch"


def test_scores_equal_a_loop_and_follow_the_pixels(
    folder: RunDir, context: EvalContext, sketch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = conflict(context)
    opened = context.with_folders({"sketch": sketch})
    (score,) = score_folders(folder, opened).values()
    with torch.no_grad():
        logits = EvaluatedRun(folder, context).network(images.image.float() / 255).logits.tolist()
    rows = [(logits[at], int(images.label[at])) for at in range(len(images)) if int(images.label[at]) in (1, 4, 9)]
    among_all = [max(range(10), key=lambda c: row[c]) == label for row, label in rows]
    among_three = [max((1, 4, 9), key=lambda c: row[c]) == label for row, label in rows]
    assert score["values"] == pytest.approx(
        {"accuracy": sum(among_all) / len(rows), "accuracy_overlap": sum(among_three) / len(rows)}
        | {"chance": 0.1, "chance_overlap": 1 / 3}
    )
    assert (score["count"], score["source"], score["hashed"]) == (len(rows), "given", "content")
    assert (score["facts"]["overlap"], score["facts"]["unknown"]) == (["E", "K", "X"], ["zebra"])
    assert folder.score("folder sketch") == score
    with monkeypatch.context() as patch:
        patch.setattr(EvaluatedRun, "network", None)  # the same images are not scored again, wherever they lie
        moved = shutil.copytree(sketch, sketch.parent / "elsewhere")
        assert score_folders(folder, context.with_folders({"sketch": moved})) == {"sketch": score}
    first = next((sketch / "K").iterdir())
    Image.new("RGB", (32, 32), "red").save(first)
    changed = score_folders(folder, context.with_folders({"sketch": sketch}))["sketch"]
    assert changed["fingerprint"] != score["fingerprint"]


def test_all_classes_score_like_the_test_set_and_clean_is_still_missing(
    folder: RunDir, context: EvalContext, recipe: Recipe, tmp_path: Path
) -> None:
    make(tmp_path / "same" / "val", conflict(context), dict(enumerate(context.sets.classes)))
    score = score_folders(folder, context.with_folders({"same": tmp_path / "same"}))["same"]
    job = Job(suite="s", name="kd", seed=1, recipe=recipe, method="kd")
    assert not scored(job, context.runs)
    own = evaluate(folder, context, ["clean"])["conflict"]["values"]["accuracy"]
    assert scored(job, context.runs)
    assert [score["values"][key] for key in ("accuracy", "accuracy_overlap")] == pytest.approx([own, own])
    assert "overlap" not in invoke("evaluate", folder.path, "--on", f"same={tmp_path / 'same'}").stdout  # is the same
    (row,) = asd("report", folder.path.parent)["rows"]
    assert next(name for name in row if name.startswith("folder same")) == "folder same accuracy"
    assert not any("overlap" in name for name in row)


def test_a_teacher_that_knows_nothing_of_a_folder_is_said(folder: RunDir, context: EvalContext, sketch: Path) -> None:
    def said(final: float, early: float) -> str:
        for state, value in (("", final), ("@15%", early)):
            path = next(context.runs.glob(f"teachers/*/scores/folder sketch{state}.json"))
            score = json.loads(path.read_text())
            score["values"]["accuracy"] = value
            path.write_text(json.dumps(score))
        return invoke(*words).stderr

    words = ["evaluate", folder.path, "--on", f"sketch={sketch}"]
    invoke(*words)
    assert "Its teacher is hardly better than chance on sketch (10 %): nothing can be handed down." in said(0.12, 0.5)
    assert "T_early and T_final score the same: there is nothing early to keep away from." in said(0.5, 0.5)
    assert "handed down" not in (other := said(0.5, 0.3))
    assert "nothing early" not in other


def test_states_of_a_teacher(folder: RunDir, context: EvalContext, sketch: Path) -> None:
    teacher = RunDir(next((context.runs / "teachers").iterdir()))
    opened = context.with_folders({"sketch": sketch})
    final, early = (score_folders(teacher, opened, state)["sketch"] for state in ("final", "15%"))
    assert final["fingerprint"] == early["fingerprint"]
    assert (teacher.score("folder sketch"), teacher.score("folder sketch@15%")) == (final, early)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a\\b", "a b", "a@15%", "a,b", "a\n", "-x", "x" * 41, "\u202e"])
def test_names_that_no_file_and_no_column_can_have(name: str) -> None:
    with pytest.raises(UserError, match="cannot name a folder of images"):
        check_folder_name(name)


def test_names_that_are_taken_and_masks(folder: RunDir, context: EvalContext, sketch: Path, session: Session) -> None:
    check_folder_name("Übung_2.b+c-d")
    for name, match in (
        ("iid", "iid is a test set of cues"),
        ("clean", "clean is an evaluation, so a folder needs another name$"),
        ("imagenet-r", "its images are named by --at imagenet-r=FOLDER"),
    ):
        with pytest.raises(UserError, match=match):
            context.with_folders({name: sketch})
    with pytest.raises(UserError, match="folder wants NAME=PATH in its place"):
        evaluate(folder, context, ["folder"])
    scenes = session.sets(DataSettings(name="cues-seg", options={"count": 4, "test_count": 2}))
    with pytest.raises(UserError, match="a folder of class folders needs one label for every image"):
        EvalContext(scenes, context.runs).with_folders({"sketch": sketch})


def test_the_command_the_report_and_the_card(
    folder: RunDir, context: EvalContext, sketch: Path, tmp_path: Path
) -> None:
    comma = shutil.copytree(sketch, tmp_path / "heavy, rain")
    words = ["evaluate", folder.path, "--on", f"clean,sketch={sketch}", "--on", f"rain={comma}"]
    result = invoke(*words)
    notes = [line for line in result.stderr.splitlines() if "not scored" in line]
    assert [note.partition(":")[0] for note in notes] == ["sketch", "rain"]
    scores = asd(*words)["runs"][0]["scores"]
    assert {"iid", "conflict", "folder sketch", "folder rain"} <= scores.keys()
    assert scores["folder rain"]["values"] == scores["folder sketch"]["values"]
    count = scores["folder sketch"]["count"]
    (row,) = asd("report", folder.path.parent)["rows"]
    for score in ("accuracy", "accuracy_overlap"):
        assert row[f"folder sketch {score}"] == pytest.approx(scores["folder sketch"]["values"][score])
    (row,) = asd("report", folder.path.parent, "--columns", "sketch accuracy")["rows"]
    assert "folder sketch accuracy" in row
    page = (folder.path.parent / "report.html").read_text()
    assert "folder sketch" in page
    assert "folder sketch accuracy ↑" in (folder.path.parent / "table.md").read_text()
    card = (export(folder, "safetensors", context.sets, out=tmp_path / "out").place / "README.md").read_text()
    value = scores["folder sketch"]["values"]["accuracy"]
    assert f"| folder sketch | accuracy | {value:.4f} | {count} | given |" in card
    assert "`folder`" not in card


@pytest.mark.parametrize(
    ("on", "message"),
    [
        (["sketch="], "--on sketch=: write NAME=PATH"),
        (["sketch"], "unknown evaluation 'sketch'; a folder has a name: NAME=sketch"),
        (["sketch=nowhere"], "--on sketch=nowhere: no such folder"),
        (["clean,sketch=sketch,sketch=runs"], "sketch is sketch already"),
        (["clean=sketch"], "clean is an evaluation"),
        (["a/b=sketch"], "'a/b' cannot name a folder"),
        (["conflict=sketch"], "conflict is a test set of cues"),
        (["clean,other=runs/s"], "other: runs/s has kd-s1, but the student's classes are A, E, H and 7 more"),
        (["flat=sketch/K"], "flat: no class folders in sketch/K; its images lie right in it"),
    ],
)  # fmt: skip
def test_bad_folders_are_one_line_before_a_network_is_loaded(
    folder: RunDir, sketch: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch, on: list[str], message: str
) -> None:
    monkeypatch.setattr(EvaluatedRun, "network", None)
    assert message in refusal("evaluate", folder.path, *(word for each in on for word in ("--on", each)))


def test_progress_says_which_set_of_which_run(
    folder: RunDir, here: Path, sketch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antishortcut.progress.EVERY", 0.0)
    said = invoke("evaluate", folder.path, "--on", f"line={sketch}").stderr
    assert f"folder line, {folder.read()[0].title}: step 1/1" in said


def test_distill_also(folder: RunDir, tiny: Path, sketch: Path, here: Path) -> None:
    result = asd("distill", tiny, "--method", "ce", "--suite", "s", "--also", f"sketch={sketch}", "--threads", 1)
    row, chance = result["also"]  # it has no teacher
    assert (row["network"], row["classes"]) == ("student", 3)
    assert (chance["network"], chance["accuracy"], chance["accuracy_overlap"]) == ("chance", 0.1, 1 / 3)
    words = ["distill", tiny, "--method", "kd", "--suite", "s", "--also", f"sketch={sketch}", "--threads", 1]
    rows = {row["network"]: row for row in asd(*words)["also"]}
    assert list(rows) == ["student", "teacher", "early teacher", "chance"]
    teacher = RunDir(next(Path("runs/teachers").iterdir()))
    for network, saved in (
        ("student", folder.score("folder sketch")),
        ("teacher", teacher.score("folder sketch")),
        ("early teacher", teacher.score("folder sketch@15%")),
    ):
        assert saved is not None
        assert rows[network]["accuracy"] == saved["values"]["accuracy"]
        assert (rows[network]["folder"], rows[network]["images"]) == ("sketch", saved["count"])
    shown = invoke(*words)
    assert "also scored on" in shown.stdout
    assert "early teacher" in shown.stdout


def test_distill_also_is_checked_before_anything_is_trained_or_written(
    tiny: Path, sketch: Path, here: Path, refusal: Refusal
) -> None:
    (here / "other" / "zebra").mkdir(parents=True)
    assert "no such folder; did you mean sketch?" in refusal("distill", tiny, "--also", "sketch=sketc")
    assert "iid is a test set" in refusal("distill", tiny, "--also", "iid=sketch")
    assert "the student's classes are A, E, H" in refusal("distill", tiny, "--also", "other=other")
    for at in range(12):
        path = here / "photos" / ("ape", "bee")[at % 2] / f"{at}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (20 * at, 0, 0)).save(path)
    plan: list[object] = ["distill", "--data", "photos", "--teacher", "cnn-4-16", "--student", "cnn-2-16"]
    plan += ["--epochs", 1, "--method", "kd"]
    assert "the student's classes are ape, bee" in refusal(*plan, "--also", "other=other")
    assert not (here / "runs").exists()
    result = asd(*plan, "--threads", 1, "--also", "same=photos")
    student = result["also"][0]
    assert (student["network"], student["images"]) == ("student", 12)
    saved = json.loads((Path(result["run"]) / "scores" / "folder same.json").read_text())
    assert saved["values"]["accuracy"] == student["accuracy"]
