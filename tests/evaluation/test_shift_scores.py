"""Scores on shifted images equal a loop, name their source, are not repeated, and errors are one line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from antishortcut.config.recipe import Recipe, Run
from antishortcut.data import Loader
from antishortcut.data import corruptions as made
from antishortcut.data.splits import limited
from antishortcut.errors import UserError
from antishortcut.evaluation import EVALUATIONS, evaluate
from antishortcut.evaluation.context import EvalContext, EvaluatedRun
from antishortcut.evaluation.shift_scores import relate
from antishortcut.models import Network
from antishortcut.run_dir import RunDir, write_json
from antishortcut.teachers.trajectory import Teachers
from antishortcut.training.pipeline import Session, distill
from antishortcut.types import AnySet, ImageSet
from tests.conftest import asd, invoke


def first_test(context: EvalContext) -> ImageSet:
    images = context.first_test[1]
    assert isinstance(images, ImageSet)
    return images


def released(folder: Path, images: ImageSet, change: int = 0) -> Path:
    """A folder as CIFAR-100-C is released: severity s of every corruption is darker by s."""
    folder.mkdir(parents=True)
    plain = images.image.permute(0, 2, 3, 1).numpy().astype(int)  # (N, S, S, 3)
    for number, name in enumerate(made.CORRUPTIONS):
        rows = [(plain - 10 * severity - number - change).clip(0, 255) for severity in made.SEVERITIES]
        np.save(folder / f"{name}.npy", np.concatenate(rows).astype(np.uint8))
    np.save(folder / "labels.npy", np.tile(images.label.numpy(), 5))
    return folder


def test_corruption_errors_equal_a_loop(folder: RunDir, context: EvalContext, tmp_path: Path) -> None:
    images = first_test(context)
    place = released(tmp_path / "CIFAR-100-C", images)
    context = EvalContext(context.sets, context.runs, at={"corruptions": place})
    score = evaluate(folder, context, ["corruptions"])["corruptions"]
    assert (score["source"], score["count"]) == ("official", 100)
    network = EvaluatedRun(folder, context).network
    for number, name in enumerate(made.CORRUPTIONS):
        for severity in made.SEVERITIES:
            dark = (images.image.int() - 10 * severity - number).clamp(0, 255).float() / 255
            with torch.no_grad():
                wrong = network(dark).logits.argmax(1) != images.label
            assert score["errors"][name][severity - 1] == pytest.approx(float(wrong.float().mean()))
    values = score["values"]
    assert values["mce"] == pytest.approx(np.mean([errors[4] for errors in score["errors"].values()]))
    shown = " ".join(invoke("evaluate", folder.path, "--on", "corruptions").stdout.replace("│", " ").split())
    assert "error" in shown
    assert all(word in shown for word in ("severity", "(mCE)", "severities"))
    assert values["mce_all"] == pytest.approx(np.mean(list(score["errors"].values())))
    assert values["noise"] == pytest.approx(np.mean([score["errors"][name][4] for name in made.GROUPS["noise"]]))
    assert values["clean_error"] == pytest.approx(1 - folder.result()["last"]["accuracy"])


def test_missing_copies_are_generated_once(
    folder: RunDir, context: EvalContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = evaluate(folder, context, ["corruptions"])["corruptions"]
    assert first["source"] == "generated"
    (home,) = (context.runs / "shifted").iterdir()
    assert np.load(home / "fog.npy").shape == (500, 32, 32, 3)
    before = (home / "fog.npy").stat().st_mtime_ns
    (folder.path / "scores" / "corruptions.json").unlink()
    assert evaluate(folder, context, ["corruptions"])["corruptions"] == first
    assert (home / "fog.npy").stat().st_mtime_ns == before
    monkeypatch.setattr(EvaluatedRun, "outputs", None)
    assert evaluate(folder, context, ["corruptions"])["corruptions"] == first


def test_released_files_are_preferred(
    folder: RunDir, context: EvalContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import antishortcut.evaluation.shift_scores as room

    monkeypatch.setitem(room.RELEASED, "cues", ("CUES-C",))
    images = first_test(context)
    released(context.root / "CUES-C", images)
    assert evaluate(folder, context, ["corruptions"])["corruptions"]["source"] == "official"
    assert not (context.runs / "shifted").exists()


def test_a_clean_score_of_other_images_is_computed_again(folder: RunDir, context: EvalContext) -> None:
    name, images = context.first_test
    right = EvaluatedRun(folder, context).clean_accuracy(images)
    score = evaluate(folder, context, ["clean"])[name]
    assert score["values"]["accuracy"] == pytest.approx(right)
    for change, expected in (({}, 2.0), ({"fingerprint": "other"}, pytest.approx(right))):
        write_json(folder.path / "scores" / f"{name}.json", score | {"values": {"accuracy": 2.0}} | change)
        assert EvaluatedRun(folder, context).clean_accuracy(images) == expected


def test_errors_relative_to_a_reference(
    folder: RunDir, context: EvalContext, recipe: Recipe, session: Session, tmp_path: Path
) -> None:
    images = first_test(context)
    at = {"corruptions": released(tmp_path / "c", images)}
    context = EvalContext(context.sets, context.runs, at=at)
    other = RunDir(distill(recipe, session, method="ce", seed=1, suite="s").folder(session.runs))
    with pytest.raises(UserError, match="no corruption score yet"):
        relate(folder, other)
    ours, reference = (evaluate(each, context, ["corruptions"])["corruptions"] for each in (folder, other))
    relate(folder, other)
    score = folder.score("corruptions")
    assert score is not None
    shares = [sum(ours["errors"][name]) / sum(reference["errors"][name]) for name in made.CORRUPTIONS]
    assert score["values"]["mce_relative"] == pytest.approx(np.mean(shares))
    assert score["reference"]["hash"] == other.read()[0].hash
    relate(other, other)
    assert (other.score("corruptions") or {})["values"]["mce_relative_5"] == pytest.approx(1.0)
    changed = EvalContext(context.sets, context.runs, at={"corruptions": released(tmp_path / "d", images, change=1)})
    evaluate(other, changed, ["corruptions"])
    with pytest.raises(UserError, match="different corrupted images"):
        relate(folder, other)


def test_stylised_copies_equal_a_loop(folder: RunDir, context: EvalContext, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="asd stylize cues FOLDER --stylizer"):
        evaluate(folder, context, ["stylized"])
    images = first_test(context)
    place = tmp_path / "styled"
    place.mkdir()
    dark = (images.image // 2).permute(0, 2, 3, 1).numpy()
    style = (images.label + 1) % 10
    np.save(place / "stylized.npy", dark)
    np.save(place / "labels.npy", images.label.numpy())
    np.save(place / "style.npy", np.arange(100))
    np.save(place / "style_label.npy", style.numpy())
    facts = {"kind": "stylized", "source": "generated", "count": 100, "side": 32, "set": "cues", "styles": "train"}
    (place / "facts.json").write_text(json.dumps(facts))
    context = EvalContext(context.sets, context.runs, at={"stylized": place})
    score = evaluate(folder, context, ["stylized"])["stylized"]
    with torch.no_grad():
        guess = EvaluatedRun(folder, context).network((images.image // 2).float() / 255).logits.argmax(1)
    assert score["values"]["accuracy"] == pytest.approx(float((guess == images.label).float().mean()))
    assert score["values"]["by_style"] == pytest.approx(float((guess == style).float().mean()))
    assert score["values"]["gap"] == pytest.approx(folder.result()["last"]["accuracy"] - score["values"]["accuracy"])
    assert score["source"] == "generated"
    (place / "facts.json").write_text(json.dumps(facts | {"set": "cifar100"}))
    with pytest.raises(UserError, match="copies of cifar100, not of cues"):
        evaluate(folder, context, ["stylized"])


def test_groups_and_attack(folder: RunDir, context: EvalContext) -> None:
    scores = evaluate(folder, context, ["groups", "attack"])
    groups = scores["groups"]["groups"]
    assert sum(each["count"] for each in groups.values()) == scores["groups"]["count"] == 100
    assert scores["groups"]["values"]["worst_group"] == min(each["accuracy"] for each in groups.values())
    attack = scores["attack"]["values"]
    assert attack["clean"] == pytest.approx(folder.result()["last"]["accuracy"])
    assert list(attack.values()) == sorted(attack.values(), reverse=True)


def test_cue_conflict_stimuli(folder: RunDir, context: EvalContext, tmp_path: Path) -> None:
    place = tmp_path / "cue-conflict"
    (place / "cat").mkdir(parents=True)
    for n in range(4):
        noise = np.random.default_rng(n).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(noise).save(place / "cat" / f"cat{n}-dog{n}.png")
    (place / "mapping.toml").write_text('cat = ["A", "E"]\ndog = ["H", "J"]\n')
    context = EvalContext(context.sets, context.runs, at={"cue-conflict": place})
    score = evaluate(folder, context, ["cue-conflict"])["cue-conflict"]
    assert score["count"] == 4
    assert score["values"]["by_shape"] + score["values"]["by_texture"] == pytest.approx(1.0)  # only two categories
    shown = invoke("evaluate", folder.path, "--on", "cue-conflict", "--at", f"cue-conflict={place}").stdout
    assert "cue-conflict (given, 4 images)" in shown
    assert "cue-conflict: cat = A, E; dog = H, J\n" in shown
    assert "4 stimuli scored, left out: 0 of categories without a class, 0 not in conflict" in shown


def test_a_folder_that_is_not_there_is_an_error(folder: RunDir, context: EvalContext, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        evaluate(folder, EvalContext(context.sets, context.runs, at={"imagenet-r": tmp_path / "none"}), ["imagenet-r"])
    assert [path.name for path in (folder.path / "scores").glob("*")] == []


def test_the_command(folder: RunDir, tmp_path: Path) -> None:
    result = asd("evaluate", folder.path, "--on", "groups,corruptions", "--reference", folder.path)
    scores = result["runs"][0]["scores"]
    assert scores["corruptions"]["values"]["mce_relative"] == pytest.approx(1.0)
    for wrong, complaint in (
        (["--at", "corruptions"], "write NAME=FOLDER"),
        (["--at", "corruption=x"], "did you mean 'corruptions'"),
        (["--on", ","], "names nothing to measure"),
        (["--reference", str(folder.path)], "--reference is for --on corruptions"),
    ):
        with pytest.raises(UserError, match=complaint):
            invoke("evaluate", folder.path, *wrong)


def test_copies_of_other_images_are_refused(folder: RunDir, context: EvalContext, tmp_path: Path) -> None:
    conflict, iid = context.sets.tests["conflict"], first_test(context)
    assert isinstance(conflict, ImageSet)
    other = EvalContext(context.sets, context.runs, at={"corruptions": released(tmp_path / "other", conflict)})
    with pytest.raises(UserError, match="copies of other images than cues's iid set"):
        evaluate(folder, other, ["corruptions"])
    small = ImageSet(iid.image[:, :, ::2, ::2], iid.label)
    at = {"corruptions": released(tmp_path / "s", small)}
    with pytest.raises(UserError, match="images of 16 pixels; this student was trained on 32"):
        evaluate(folder, EvalContext(context.sets, context.runs, at=at), ["corruptions"])
    part = limited(iid, 40, 0)  # as asd corrupt --limit 40 takes them
    assert isinstance(part, ImageSet)
    some = EvalContext(context.sets, context.runs, at={"corruptions": released(tmp_path / "part", part)})
    score = evaluate(folder, some, ["corruptions"])["corruptions"]
    with torch.no_grad():
        guess = EvaluatedRun(folder, some).network(part.image.float() / 255).logits.argmax(1)
    assert score["values"]["clean_error"] == pytest.approx(float((guess != part.label).float().mean()))


def test_changed_copies_are_scored_again(folder: RunDir, context: EvalContext, tmp_path: Path) -> None:
    images = first_test(context)
    place = released(tmp_path / "c", images)
    context = EvalContext(context.sets, context.runs, at={"corruptions": place})
    (before,) = EVALUATIONS["corruptions"].run(context)
    array = np.load(place / "fog.npy")
    array[200] = 255 - array[200]  # one image in the middle
    np.save(place / "fog.npy", array)
    (after,) = EVALUATIONS["corruptions"].run(context)
    assert after.fingerprint != before.fingerprint


def test_lost_artifacts_and_damaged_scores_are_computed_again(folder: RunDir, context: EvalContext) -> None:
    first = evaluate(folder, context, ["mechanism"])["mechanism"]
    paths = [
        folder.path / "artifacts" / "mechanism.json",
        *context.runs.glob("teachers/*/artifacts/directions-15.json"),
    ]
    assert len(paths) == 2
    paths[0].unlink()
    paths[1].write_text("[]")
    (folder.path / "scores" / "groups.json").write_text("{}")
    again = evaluate(folder, context, ["mechanism"])
    assert again["mechanism"] == first
    assert "groups" not in again
    assert all(json.loads(path.read_text()) for path in paths)


def test_a_run_copied_away_finds_its_teacher(folder: RunDir, context: EvalContext, tmp_path: Path) -> None:
    away = tmp_path / "elsewhere" / "lone"
    shutil.copytree(folder.path, away)
    with pytest.raises(UserError, match="as --runs"):
        invoke("evaluate", away, "--on", "mechanism")
    invoke("evaluate", away, "--on", "mechanism", "--runs", context.runs)


# --- Images that the early teacher gets wrong ---


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
