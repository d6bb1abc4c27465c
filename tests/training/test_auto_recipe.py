"""asd distill without a recipe: what is planned for a folder of images, and that it is run."""

import json
import re
import tomllib
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch

from antishortcut.config.recipe import recipe_from
from antishortcut.errors import UserError
from antishortcut.experiments.cost import Cost
from antishortcut.models import build
from antishortcut.training.auto_recipe import EPOCHS, PairRequest, RecipeLine, plan_recipe, to_toml, with_overrides
from tests.conftest import Ended, Refusal
from tests.data.official import make_folder, make_masked, picture

PAIR = ("--teacher", "cnn-8", "--student", "cnn-4-8")


def planned(folder: Path, overrides: dict[str, Any] | None = None, **words: Any) -> dict[str, Any]:
    """The settings of a plan, by name."""
    request = PairRequest(f"folder:{folder}", "cnn-8", "cnn-4", **words)
    return {line.key: line.value for line in plan_recipe(request, None, overrides or {})}


@pytest.mark.parametrize(
    ("side", "sees", "augment"),
    [(500, 224, "imagenet"), (100, 96, "imagenet"), (70, 64, "crop-flip"), (20, 32, "crop-flip")],
)
def test_image_size_follows_from_the_images(tmp_path: Path, side: int, sees: int, augment: str) -> None:
    for name in ("ape", "bat"):
        for at in range(2):
            picture(tmp_path / name / f"{at}.png", size=(side + 30 * at, side))
    result = planned(tmp_path)
    assert (result["data.image_size"], result["data.augment"]) == (sees, augment)


def test_batches_epochs_and_rates_follow_from_the_images(tmp_path: Path) -> None:
    few = planned(make_folder(tmp_path / "few", per_class=4))
    assert (few["optim.batch"], few["epochs"]) == (16, EPOCHS[1])
    many = planned(make_folder(tmp_path / "many", per_class=300))
    assert (many["optim.batch"], many["epochs"]) == (32, EPOCHS[1])
    assert many["optim.lr"] == pytest.approx(few["optim.lr"] * 2**0.5, rel=0.02)
    assert planned(tmp_path / "many", {"data.train_limit": 40})["optim.batch"] == 16  # what is left counts
    short = planned(tmp_path / "few", epochs=12)
    assert (short["epochs"], short["methods.asd.warmup"]) == (12, 1.0)


def test_folders_without_images_are_named_in_one_line(tmp_path: Path) -> None:
    """A name may hold anything, and the plan is a file of settings."""
    for name in ("ape", "bat"):
        for at in range(5):
            picture(tmp_path / name / f"{at}.png")
    (tmp_path / "cow\nepochs = 1").mkdir()
    lines = plan_recipe(PairRequest(f"folder:{tmp_path}", "cnn-8", "cnn-4"), None, {})
    why = next(line.why for line in lines if line.key == "data.name")
    assert why == ("2 classes, 9 images to train on, 1 held out; left out, without images: 1 folder (cow epochs = 1)")
    assert recipe_from(to_toml(lines, ""), tmp_path).epochs == EPOCHS[1]


def test_the_plan_says_how_a_split_was_read(tmp_path: Path) -> None:
    """A folder called train may be meant as a class."""
    for name in ("train/ape", "train/bat", "Valid/ape", "Valid/bat", "cow"):
        for at in range(3):
            picture(tmp_path / name / f"{at}.png")
    lines = plan_recipe(PairRequest(f"folder:{tmp_path}", "cnn-8", "cnn-4"), None, {})
    why = next(line.why for line in lines if line.key == "data.name")
    assert why.endswith("split by its folders train, Valid, which are no classes; 3 images beside them not read")
    for name in ("train", "test"):
        picture(tmp_path / name.upper() / "own" / name / "0.png")
        picture(tmp_path / name.upper() / "own" / "cow" / "0.png")
        with pytest.raises(UserError, match=f"if {name} is a class, give its folder another name"):
            plan_recipe(PairRequest(f"folder:{tmp_path / name.upper() / 'own'}", "cnn-8", "cnn-4"), None, {})


def test_a_plan_is_a_recipe_with_reasons(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "my photos")
    lines = plan_recipe(
        PairRequest(f"folder:{folder}", "cnn-8", "cnn-4"), None, {"data.val_fraction": 0.2, "teacher.seed": 3}
    )
    text = to_toml(lines, "a head")
    recipe = recipe_from(text, tmp_path)
    assert (recipe.data.val_fraction, recipe.teacher.seed, recipe.teacher.early) == (0.2, 3, "15%")
    phases = {name: {"init": 12.5} for name in ("ab", "fsp", "ft")}
    assert recipe.methods == {name: {"warmup": 8.33} for name in ("asd", "contrast+tc", "contrast+hint")} | phases
    assert text.startswith("# a head\n")
    assert "steps an epoch" in text
    assert text.count("# as you said") == 2


def test_overrides_stay_in_their_section() -> None:
    lines = [RecipeLine("epochs", 1), RecipeLine("data.name", "cues"), RecipeLine("optim.lr", 0.1)]
    inputs = {"data.seed": 7, "optim.lr": 0.2, "task.rows": 5}
    tree = tomllib.loads(to_toml(with_overrides(lines, inputs), ""))
    assert tree == {"epochs": 1, "data": {"name": "cues", "seed": 7}, "optim": {"lr": 0.2}, "task": {"rows": 5}}


def test_an_early_state_of_any_share_is_kept(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    assert "teacher.keep" not in planned(folder, early="30%")
    result = planned(folder, early="12.5%")
    assert result["teacher.early"] == "12.5%"
    assert {12.5, 15, 100} <= {*result["teacher.keep"], 100}
    for wrong in ("150%", "-3%", "nan%", "100%"):
        with pytest.raises(UserError, match=r"a share of the teacher's training is wanted"):
            planned(folder, early=wrong)


def test_lengths_in_iterations_and_values_of_any_type(tmp_path: Path) -> None:
    request = PairRequest(f"folder:{make_folder(tmp_path)}", "cnn-8", "cnn-4", early="rewind")
    text = to_toml(plan_recipe(request, None, {"iterations": 120, "title": date(2024, 1, 1)}), "")
    recipe = recipe_from(text, tmp_path)
    assert (recipe.iterations, recipe.epochs, recipe.title) == (120, 0, "2024-01-01")
    assert (recipe.optim.warmup, recipe.methods["asd"]["warmup"]) == (6.0, 10.0)
    assert recipe.teacher.rewind_lr == recipe.optim.lr  # not SGD's
    assert recipe.teacher.rewind_epochs == 5
    short = replace(request, epochs=2)
    assert recipe_from(to_toml(plan_recipe(short, None, {}), ""), tmp_path).teacher.rewind_epochs == 1


def test_masks_get_their_augmentation(tmp_path: Path) -> None:
    result = planned(make_masked(tmp_path))
    assert result["data.augment"] == "scale-crop-flip"


@pytest.mark.parametrize("weights", [True, False])
def test_published_weights_are_fine_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: bool) -> None:
    """What a hub has is asked of it; here the answer is set, not the asking."""
    monkeypatch.setattr("antishortcut.training.auto_recipe.published", lambda name: weights)
    result = planned(make_folder(tmp_path))
    assert result.get("teacher.pretrained", False) is result.get("student.pretrained", False) is (weights is True)
    assert result["teacher.lr"] == pytest.approx(0.0001 if weights else 0.0005)
    assert result.get("teacher.epochs") == (30 if weights else None)


def test_the_pretrained_flag_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antishortcut.training.auto_recipe.published", lambda name: pytest.fail("nobody asked"))
    request = PairRequest(f"folder:{make_folder(tmp_path)}", "timm:resnet18", "cnn-8", pretrained=True)
    result = {line.key: line.value for line in plan_recipe(request, None, {})}
    assert result["teacher.pretrained"] is True
    assert "student.pretrained" not in result  # nobody publishes ours
    assert "teacher.pretrained" not in planned(tmp_path, pretrained=False)


def test_no_pretrained_is_shown_in_the_plan(ended: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antishortcut.training.auto_recipe.published", lambda name: False)
    words = ("distill", "--data", make_folder(tmp_path), "--teacher", "timm:test_resnet", "--student", "cnn-8")
    out, err, code = ended(*words, "--dry-run", "--no-pretrained")
    assert code == 0
    assert tomllib.loads(out)["teacher"]["pretrained"] is False
    assert "from scratch, saving" in err
    assert re.search(r"less than a minute here|about \d.* here", err)  # how long it takes
    assert "no published weights" in ended(*words, "--dry-run")[1]


def test_a_dry_run_says_why_it_has_no_estimate(ended: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cost = Cost("here", (), (("kd s1", "out of memory"),))
    monkeypatch.setattr("antishortcut.experiments.cost.measured_cost", lambda *_: cost)
    words = ("distill", "--data", make_folder(tmp_path), *PAIR, "--dry-run")
    assert "no estimate of its time: out of memory\n" in ended(*words)[1]


def test_a_dry_run_downloads_nothing(ended: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    words = ("distill", "--data", make_folder(tmp_path), "--student", "timm:test_resnet", "--method", "kd", "--dry-run")
    out, err, code = ended(*words, "--teacher", "cnn-8", "--epochs", 1)
    assert code == 0, err
    assert tomllib.loads(out)["student"]["pretrained"] is True
    out, err, code = ended(*words, "--teacher", "timm:test_vit", "--final", "pretrained")
    assert (code, out) == (2, "")
    assert "the published weights of timm:test_vit have 1,000 outputs, your data 2 classes" in err.splitlines()[-1]


def test_kd_of_a_final_checkpoint_alone_leaves_out_what_needs_an_early_one(here: Path, ended: Ended) -> None:
    make_folder(here / "photos", held=None, per_class=12)
    torch.save(build("cnn-8", 2, image_size=16).state_dict(), "last.pt")
    words = ("distill", "--data", "photos", *PAIR, "--final", "last.pt", "--epochs", 1, "--set", "data.image_size=16")
    _, err, code = ended(*words, "--method", "kd", "--force", "--also", "same=photos/train")
    assert code == 0, err
    assert err.count("not measured") <= 1, err
    assert "asd predict runs/photos-cnn-8-cnn-4-8/kd-s1 IMAGE" in err


def test_one_command_from_a_folder_of_images(ended: Ended, here: Path) -> None:
    """Student, report: nothing prepared, nothing written by hand; a second student shares teacher and plan."""
    make_folder(here / "photos", held=None, per_class=12)
    words = ("distill", "--data", "photos", *PAIR, "--epochs", 2, "--set", "data.image_size=16")
    assert json.loads(ended(*words, "--dry-run", "--json")[0])["epochs"] == 2
    again = "asd distill 'my runs/photos-cnn-8-cnn-4-8/recipe.toml' --runs 'my runs' --method kd"
    assert again in ended(*words, "--dry-run", "--runs", "my runs")[0]
    out, err, code = ended(*words, "--dry-run")
    assert code == 0
    result = "2 classes, 22 images to train on, 2 held out"
    assert f"folder:photos: {result}; split by its folders train, which are no classes; augmentation crop-flip" in err
    assert result in out
    assert "1. train cnn-8 on these classes for 2 epochs, from scratch, saving checkpoints" in err
    assert "2. take its checkpoint at 15% as T_early, the negative example" in err
    assert tomllib.loads(out)["student"] == {"name": "cnn-4-8"}
    assert not (here / "runs").exists()
    out, err, code = ended(*words)
    assert code == 0, err
    suite = here / "runs" / "photos-cnn-8-cnn-4-8"
    run = suite / "contrast+hint-s1"
    assert str(run.relative_to(here)) in out
    scored = {"test", "hard", "mechanism", "cost", "maps", "probes"}
    assert {path.stem for path in (run / "scores").glob("*.json")} >= scored, err
    prose = " ".join(out.split())
    assert re.search(r"On ordinary images contrast\+hint is right in \d+ %, .*; its teacher in \d+ %", prose)
    assert "One seed: a sign, not a proof." in prose
    assert f"asd export {run.relative_to(here)} --to onnx" in err
    assert f"asd evaluate {run.relative_to(here)} --on NAME=FOLDER" in err
    assert "less than a minute here" in err
    recipe = (suite / "recipe.toml").read_text()
    out, err, code = ended(*words, "--method", "kd", "--json")
    assert code == 0
    assert json.loads(out)["run"] == str((suite / "kd-s1").relative_to(here))
    assert len(list((here / "runs" / "teachers").iterdir())) == 1
    out, err, code = ended("distill", suite / "recipe.toml", "--method", "ce", "--json")
    assert json.loads(out)["run"] == str((suite / "ce-s1").relative_to(here))
    assert "asd report runs/photos-cnn-8-cnn-4-8" in ended("distill", suite / "recipe.toml", "--method", "dkd")[1]
    assert {path.stem for path in (suite / "dkd-s1" / "scores").glob("*.json")} >= scored  # as without a recipe
    assert (suite / "recipe.toml").read_text() == recipe
    other = ("distill", "--data", f"{here}/photos/", *PAIR)  # the same folder, spelt otherwise
    assert ended(*other, "--dry-run")[0] == recipe
    (suite / "recipe.toml").write_text(recipe, encoding="utf-8-sig")  # as an editor on Windows saves it
    assert ended(*other, "--dry-run")[0] == recipe
    (suite / "recipe.toml").write_text(recipe)
    out, err, code = ended(*other, "--method", "nosuch")
    assert (code, (suite / "recipe.toml").read_text()) == (2, recipe)
    out, err, code = ended(*other, "--set", "optim.betas=[0.9, 0.99]")
    assert "(optim.betas: [0.9, 0.999] there, [0.9, 0.99] here)" in err
    out, err, code = ended("distill", "--data", "photos", *PAIR, "--epochs", 3)
    assert (code, out) == (2, "")
    assert "(epochs: 2 there, 3 here)" in err
    assert ended("report", suite)[2] == 0
    page = (suite / "report.html").read_text()
    assert all(f"{name}-s1" in page or f">{name}<" in page for name in ("contrast+hint", "kd", "ce"))


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_here_leaves_no_plan(
    device: str, here: Path, ended: Ended, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    make_folder(here / "photos")
    words = ("distill", "--data", "photos", *PAIR, "--device", device)
    assert ended(*words, "--dry-run")[2] == 0  # a plan for another machine
    assert refusal(*words) == f"asd: --device {device}: there is none here; use cpu or auto (asd doctor tells more)"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "name a recipe (asd list recipes), or --data, --teacher and --student"),
        (("--data", "photos", "--teacher", "cnn-8"), "or --data, --teacher and --student"),
        (("cues", "--data", "photos"), "stand for a recipe"),
        (("photos",), "'photos' is a folder, not a recipe; images go with --data"),
        (("--data", "photos", *PAIR, "--name", "a/b"), "'a/b' cannot name a folder"),
        (("--data", "photos", "--teacher", "resnet10t", "--student", "cnn-8"), "did you mean 'timm:resnet10t'?"),
        (("--data", "a folder", *PAIR), "a folder has one folder of images only"),
        (("--data", "nowhere", *PAIR), "'nowhere' is no folder here and no data set"),
        (("--data", "folder:nowhere", *PAIR), "no folder nowhere"),
        (("--data", "photos", *PAIR, "--set", "optim.batc=1"), "unknown setting 'optim.batc'; did you mean 'batch'"),
        (("--data", "photos", "--teacher", "cnn-x", "--student", "cnn-8"), "unknown model 'cnn-x'"),
        (("--data", "photos", *PAIR, "--early", "old.pt"), "goes with --final"),
        (("--data", "photos", *PAIR, "--final", "gone.pt"), "gone.pt: cannot be read"),
        (("--data", "photos", *PAIR, "--final", "five.pt", "--early", "five.pt"), "five.pt are of another network"),
        (("--data", "photos", "--teacher", "timm:resnt50", "--student", "cnn-8", "--dry-run"), "did you mean"),
        (("--data", "./photo", *PAIR), "did you mean photos?"),
        (("--data", "folder:Photo", *PAIR), "no folder Photo; did you mean photos?"),
        (("--data", "damaged", *PAIR), "TIFF, GIF); replace or remove the file (asd check"),
        (("--data", "photos", *PAIR, "--pretrained"), "nobody publishes weights of cnn-4-8 or cnn-8"),
        (("--data", "single", *PAIR), "one folder of images only"),
        (("--data", "two", *PAIR), "one of each class: none can be held out"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_files(here: Path, ended: Ended, words: tuple[str, ...], says: str) -> None:
    make_folder(here / "photos")
    torch.save(build("cnn-8", 5).state_dict(), "five.pt")
    (make_folder(here / "damaged") / "train" / "ape" / "0.png").write_bytes(b"no image")
    for name in ("single/ape", "a folder/ape", "two/train/ape", "two/train/bat"):
        picture(here / name / "0.png")
    out, err, code = ended("distill", *words)
    assert (code, out) == (2, "")
    assert says in err.splitlines()[-1]
    assert {path.name for path in here.glob("runs/*")} <= {"steps.json"}  # what a step costs here stays true
