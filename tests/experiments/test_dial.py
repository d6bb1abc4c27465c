"""The dial: what it may choose by, what it writes down, and a whole choice on a few images."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from antishortcut.config.recipe import DIALS, LEVELS, load_recipe, recipe_from
from antishortcut.data.planted import KINDS
from antishortcut.errors import UserError
from antishortcut.experiments import dial
from antishortcut.experiments.dial import (
    METHOD,
    DialChoice,
    LevelTrial,
    best,
    choose,
    compared,
    earliest,
    trial,
    written,
)
from antishortcut.experiments.jobs import Job
from antishortcut.experiments.launcher import state
from antishortcut.experiments.suites import open_suite
from antishortcut.experiments.worker import run_item
from antishortcut.methods import method_options
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill
from tests.conftest import Ended
from tests.data.official import picture

FEW = ["data.options.count=150", "data.options.test_count=20", "data.val_fraction=0.2", "epochs=2", "teacher.epochs=2"]
FEW += ["methods.contrast+hint.reference=15%", "teacher.name=cnn-2-8", "student.name=cnn-2-8"]
FEW += ["optim.batch=32", "teacher.keep=[15]"]


def test_levels_are_settings_of_the_method_and_the_first_is_kd() -> None:
    for options in LEVELS.values():
        assert tuple(options) == DIALS[METHOD]
        assert method_options(METHOD, options)["strength"] == options["strength"]
    first = next(iter(LEVELS.values()))
    assert not any(first.values())


def test_losses_are_counted_image_by_image() -> None:
    """100 images, the reference wrong on the last ten. Plain is right on 90; another loses two and gains eight."""
    plain = torch.tensor([1] * 90 + [0] * 10).bool()
    right = torch.tensor([0] * 2 + [1] * 88 + [1] * 8 + [0] * 2).bool()
    costly = torch.tensor([0] * 30 + [1] * 60 + [1] * 10).bool()
    first, gains, costs = (
        trial(name, each, plain, ~plain, 0.0) for name, each in zip("abc", (plain, right, costly), strict=True)
    )
    assert first == LevelTrial("a", 0.9, 0.0, 0.0, 0.0, allowed=True)
    assert gains.loss == pytest.approx(-0.06)
    assert gains.hard == pytest.approx(0.8)
    spread = torch.tensor([1.0] * 2 + [0.0] * 90 + [-1.0] * 8, dtype=torch.float64)
    assert gains.error == pytest.approx(float(spread.std(correction=0)) / 10)
    assert not costs.allowed
    assert best([first, gains, costs]) == "b"
    paid = trial("c", costly, plain, ~plain, budget=0.2)
    assert paid.allowed
    assert best([first, gains, paid]) == "c"


def test_the_budget_is_counted_from_the_most_accurate_level() -> None:
    """1,000 images, half of them hard. mild is right on 60 more than plain KD, medium on 30 more: with a budget of 0 it
    costs too much, although it is above KD, and with a budget of 0.05 it may be had. KD itself may always be."""
    at, hard = torch.arange(1000), torch.arange(1000) >= 500
    rights = {"none": at < 800, "mild": at < 860, "medium": (at >= 170)}
    free, paid = compared(rights, hard, 0.0), compared(rights, hard, 0.05)
    assert [one.loss for one in free] == pytest.approx([0.06, 0.0, 0.03])
    assert [one.allowed for one in free] == [True, True, False]
    assert [one.allowed for one in paid] == [True, True, True]
    assert (best(free), best(paid)) == ("mild", "medium")
    assert [one.allowed for one in compared({"none": at < 800, "mild": at < 790}, hard, 0.0)] == [True, False]
    easier = compared({"none": at >= 200, "mild": at < 860}, hard, 0.0)  # gains on ordinary images alone
    assert best(easier) == "none"


def test_the_reference_is_the_earliest_state_that_knows_the_easy_answers() -> None:
    assert earliest({"5%": 0.4, "15%": 0.91, "30%": 0.99}) == "15%"
    assert earliest({"5%": 0.1, "15%": 0.3, "50%": 0.8}) is None


def test_of_equals_the_mildest_and_without_hard_images_the_first() -> None:
    same = [LevelTrial(level, 0.9, 0.5, 0.0, 0.0, True) for level in "abc"]
    assert best(same) == "a"
    assert best([LevelTrial(level, 0.9, None, 0.0, 0.0, True) for level in "abc"]) == "a"


def test_a_choice_is_written_into_the_recipe() -> None:
    choice = DialChoice("mild", LEVELS["mild"], "because")
    for source in ("cues", "P1"):
        text = Path(dial.__file__).parents[1].joinpath("config/recipes", f"{source}.toml").read_text()
        recipe = recipe_from(written(text, choice), Path("recipe.toml"))
        assert recipe == dial.applied(load_recipe(source), choice)
        assert dial.is_open(load_recipe(source), METHOD)
        assert not dial.is_open(recipe, METHOD)
        assert not dial.is_open(load_recipe(source), "kd")


CHOICE = DialChoice("mild", LEVELS["mild"], "level mild for a budget of 0.01: because")


@pytest.mark.parametrize(
    "section",
    [
        '# [methods."contrast+hint"]\n# warmup = 0.3\n',
        "[methods.'contrast+hint']\nwarmup = 0.3\n",
        '[ methods . "contrast+hint" ]\nwarmup = 0.3\n',
        '[methods]\n"contrast+hint" = {warmup = 0.3}\n',
        '[methods."contrast+hint"]\nwarmup = 0.3\n',
        "",
    ],
)
def test_a_recipe_stays_one_however_it_is_spelt(tmp_path: Path, section: str) -> None:
    """The choice is written into its own section or not at all; the rest keeps its meaning, and comments stay."""
    path = tmp_path / "recipe.toml"
    title = 'title = "a [methods.\\"contrast+hint\\"] in words"\n'
    text = title + 'epochs = 4\n[teacher]\nname = "cnn-2-8"\n[student]\nname = "cnn-2-8"\n'
    text += '[methods."contrast+tc"]\nwarmup = 0.2  # mine\n' if "[methods]" not in section else ""
    path.write_text(text + section)
    before = recipe_from(text + section, path)
    said = dial.record(path, CHOICE)
    after = load_recipe(str(path))
    assert after == (dial.applied(before, CHOICE) if said.startswith("this choice") else before)
    assert said.startswith(("this choice is now in", "not written"))
    assert said.startswith("this choice") or "strength = 0.25" in said
    assert after.methods.get("contrast+tc") == before.methods.get("contrast+tc")
    assert all(line in path.read_text().splitlines() for line in (text + section).splitlines())


def test_what_somebody_set_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    text = 'epochs = 4\n[teacher]\nname = "cnn-2-8"\n[student]\nname = "cnn-2-8"\n'
    path.write_text(text + '[methods."contrast+hint"]\nstrength = 0.25  # mine\n')
    assert "they stay" in dial.record(path, CHOICE)
    assert "strength = 0.25  # mine" in path.read_text()
    path.write_text(text)
    assert dial.record(path, CHOICE).startswith("this choice is now in")
    once = path.read_text()
    assert "they stay" in dial.record(path, CHOICE)  # another seed, at the same time
    assert path.read_text() == once
    recipe = load_recipe(str(path))
    for budget in (0.01, None):
        dial.check_recorded(recipe, path, budget)
    with pytest.raises(UserError, match="for another, use another --suite"):
        dial.check_recorded(recipe, path, 0.02)
    with pytest.raises(UserError, match="set by hand"):
        dial.check_recorded(load_recipe(str(path), ["methods.contrast+hint.strength=0.7"]), path, 0.01)


def test_a_planned_pair_is_dialled_again_and_again(tmp_path: Path, ended: Ended) -> None:
    """The same command, finished or not, gives the same run; an unusable folder is refused before any training."""
    for split, count in (("train", 12), ("val", 6), ("test", 4)):
        for name, at in [(name, at) for name in "ab" for at in range(count)]:
            picture(tmp_path / "photos" / split / name / f"{at}.png", size=(32, 32))
    pair = ("--data", f"folder:{tmp_path / 'photos'}", "--teacher", "cnn-2-8", "--student", "cnn-2-8", "--epochs", 2)
    words: list[object] = ["distill", *pair, "--method", METHOD, "--runs", tmp_path / "runs", "--suite", "s"]
    words += ["--budget", 0.5, "--json"]
    (tmp_path / "runs" / "s").mkdir(parents=True)
    blocked = tmp_path / "runs" / "s" / f"{METHOD}-s1"
    blocked.write_text("")
    _, error, code = ended(*words)
    assert (code, "is no folder" in error) == (2, True)
    assert not (tmp_path / "runs" / "teachers").exists()
    blocked.unlink()
    first, _, code = ended(*words)
    assert code == 0
    recipe = (tmp_path / "runs" / "s" / "recipe.toml").read_text()
    again, _, code = ended(*words)
    assert (code, again) == (0, first)
    assert (tmp_path / "runs" / "s" / "recipe.toml").read_text() == recipe


def test_a_choice_on_few_images(session: Session) -> None:
    """Trials are ordinary runs of the same teacher; a second choice trains nothing."""
    recipe = load_recipe("cues", [*FEW, "epochs=4"])
    choice = choose(recipe, session, seed=1, suite="s", budget=0.5)
    assert choice.options == LEVELS[choice.level] | {"reference": "15%"}
    tried = [one.level for one in choice.trials]
    assert tried == ["none", *list(LEVELS)[2:]][: len(tried)]
    assert [one.allowed for one in choice.trials[:-1]] == [True] * (len(tried) - 1)
    runs = [RunDir(session.runs / "s-trials" / f"{level}-s1") for level in tried]
    assert [run.read()[0].title for run in runs] == [f"trial {level} s1" for level in tried]
    assert len(list((session.runs / "teachers").iterdir())) == 1
    times = [run.path.stat().st_mtime_ns for run in runs]
    assert choose(recipe, session, seed=1, suite="s", budget=0.5) == choice
    assert [run.path.stat().st_mtime_ns for run in runs] == times


def test_where_no_early_state_knows_the_easy_answers_there_is_nothing_to_divide_out(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only states of the first half count: the one at 80 % does not. Then it is KD to the last bit, without a trial."""
    recipe = load_recipe("cues", [text for text in FEW if "reference" not in text] + ["teacher.keep=[15, 40, 80]"])
    asked: list[str] = []
    monkeypatch.setattr(dial, "earliest", lambda share: asked.extend(share))
    choice = choose(recipe, session, seed=1, suite="s", budget=0.05)
    assert asked == ["15%", "40%"]
    assert (choice.level, choice.options, choice.trials) == ("none", LEVELS["none"], ())
    assert "no easy cue was learned early" in choice.why
    run = distill(dial.applied(recipe, choice), session, method=METHOD, seed=1, suite="s")
    plain = distill(recipe, session, method="kd", seed=1, suite="s")
    one, other = (load_file(each.folder(session.runs) / "student.safetensors") for each in (run, plain))
    assert all(torch.equal(one[key], other[key]) for key in other)
    assert choose(recipe, session, seed=1, suite="s", budget=0.05) == choice


def test_without_a_validation_split_signs_decide(session: Session) -> None:
    choice = choose(load_recipe("cues", [*FEW, "data.val_fraction=0"]), session, seed=1, suite="s")
    assert choice.trials == ()
    assert "to try levels, add a val/ folder" in choice.why
    assert not (session.runs / "s-trials").exists()


def test_budget_and_frontier_on_the_command_line(tmp_path: Path, ended: Ended) -> None:
    settings = [word for text in FEW for word in ("--set", text)]
    words = ("distill", "cues", "--method", METHOD, *settings, "--runs", tmp_path / "runs", "--budget", 0.5)
    out, _, code = ended(*words, "--frontier", "--json")
    assert code == 0
    run = RunDir(Path(json.loads(out)["run"]))
    names = {folder.name for folder in run.path.parent.iterdir()}
    assert names >= {f"{METHOD}-s1", *(f"{METHOD}-{level}-s1" for level in LEVELS)}
    chosen = run.read()[0].options
    assert {key: chosen[key] for key in DIALS[METHOD]} in LEVELS.values()
    for wrong, message in (
        (("--method", "kd", "--budget", "0.1"), "kd has no dial"),
        (("--method", METHOD, "--budget", "0.1", "--set", "method.hint=3"), "are set by hand"),
        (("--method", METHOD, "--budget", "2"), "from 0 to below 1"),
        (("--method", METHOD, "--budget", "0.1", "--generations", "2"), "leave --via and --generations out"),
        (("--method", METHOD, "--set", "teacher.epochs=3"), f"{METHOD}-s1 holds another run (teacher: "),
        (("--method", METHOD, "--set", "teacher.epochs=3", "--name", "x"), "none-s1 holds another run (teacher: "),
    ):
        _, error, code = ended("distill", "cues", *settings, "--runs", tmp_path / "runs", *wrong)
        assert code == 2
        assert message in error
    assert len(list((tmp_path / "runs" / "teachers").iterdir())) == 1  # no teacher was trained for what is refused


def test_a_budget_is_a_share(session: Session) -> None:
    with pytest.raises(UserError, match="from 0 to below 1"):
        choose(load_recipe("cues", FEW), session, seed=1, suite="s", budget=1.0)


def test_a_row_of_a_suite_with_a_budget(session: Session) -> None:
    """The worker turns the dial; the run is then the job's, whichever level was chosen."""
    job = Job(suite="s", name="ours", seed=1, recipe=load_recipe("cues", FEW), method=METHOD, budget=0.5)
    run_item(job, session, {})
    run = RunDir(session.runs / "s" / "ours-s1").read()[0]
    assert {key: run.options[key] for key in DIALS[METHOD]} in LEVELS.values()
    assert state(job, session.runs) == "finished"
    other = job.model_copy(update={"recipe": load_recipe("cues", [*FEW, "epochs=3"])})
    assert state(other, session.runs) == "another"


def test_suites_of_planted_shortcuts_and_of_mixing() -> None:
    """Every kind at three ρ, with the budgets; five seeds at 0.9, three elsewhere. Mixing has every combination."""
    jobs = open_suite("shortcuts").jobs
    assert {job.suite.split("-")[1] for job in jobs} == {"cues", *KINDS}
    assert {job.budget for job in jobs if job.method == METHOD} == {0.0, 0.05}
    seeds = {
        name: {job.seed for job in jobs if job.suite == name}
        for name in ("shortcuts-tint-rho90", "shortcuts-tint-rho80")
    }
    assert [len(each) for each in seeds.values()] == [5, 3]
    assert all(job.recipe.teacher.seed == job.seed for job in jobs)
    assert "?kind=tint" in next(job for job in jobs if "tint" in job.suite).recipe.data.name
    mixing = {job.name: job for job in open_suite("mixing", seeds=[1]).jobs}
    assert len(mixing) == 18
    assert mixing["kd-mixup-no-ce"].recipe.optim.mixup == 0.8
    assert mixing["kd-mixup-no-ce"].options == {"task_weight": 0.0}
    assert mixing["contrast+hint-cutmix"].recipe.optim.cutmix == 1.0
    with pytest.raises(UserError, match="has its own data"):
        open_suite("shortcuts", ["data.options.rho=0.5"])
