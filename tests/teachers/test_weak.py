"""A weak network in T_early's place: trained once, its state chosen by the signs of contrast targets."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from antishortcut.api.scoring import score_also
from antishortcut.config.recipe import WEAK_KEEP, Recipe, early_state, load_recipe, teach_run, weak_run, with_settings
from antishortcut.errors import UserError
from antishortcut.evaluation import evaluate
from antishortcut.evaluation.context import EvalContext
from antishortcut.experiments.cost import trainings
from antishortcut.experiments.dial import choose
from antishortcut.experiments.jobs import SuiteRow, make_jobs
from antishortcut.experiments.launcher import state
from antishortcut.experiments.suites import open_suite
from antishortcut.experiments.worker import run_item
from antishortcut.models import build
from antishortcut.run_dir import RunDir
from antishortcut.teachers import selection as weak_module
from antishortcut.teachers.selection import best_reference, target_statistics
from antishortcut.teachers.trajectory import Trajectory, build_saved
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.types import ImageSet
from tests.conftest import CPU, Ended, same_weights, stop_after, tiny_session
from tests.data.official import in_memory, make_folder
from tests.training.test_segmentation_runs import SMALL

OWN = ("teacher.early=weak", "teacher.weak_epochs=1", "data.val_fraction=0.2")
Taught = tuple[Recipe, Session]


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Taught:
    """A student of a weak reference, and what was trained for it."""
    torch.set_num_threads(1)
    recipe, session = tiny_session(tmp_path_factory.mktemp("weak"), *OWN)
    distill(recipe, session, method="contrast", seed=1, suite="s")
    return recipe, session


def teachers(session: Session) -> set[str]:
    return {path.name for path in (session.runs / "teachers").iterdir()}


# --- The rule ---


def row(moved: float, target: float, agreement: float = 0.9, final: float = 1.0) -> dict[str, float]:
    return {"moved": moved, "target_accuracy": target, "agreement": agreement, "final_accuracy": final}


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        # diagnostics.md: 2, 5, 15, 30, 50 and 75 % of the teacher itself, which loses 2.6, 5.1, 2.8, 1.8, … points
        ([row(0.048, 0.974), row(0.083, 0.949), row(0.07, 0.972), row(0.054, 0.982), row(0.036, 0.992)], 2),
        ([row(0.02, 0.99), row(0.5, 0.5)], 0),  # one that is merely bad moves many
        ([row(0.2, 0.8), row(0.4, 0.6), row(0.3, 0.9)], 2),  # all lose too much: the least
        ([row(0.0, 1.0, 0.1), row(0.0, 1.0, 0.6)], 1),  # nothing moves: the one that knows something
        ([row(0.05, 0.98), row(0.05, 0.98)], 0),  # of equals the earlier
        ([row(0.05, 0.49, final=0.5), row(0.06, 0.48, final=0.5)], 0),  # 2 % and 4 % of T_final's accuracy
        ([row(0.1, 0.0, final=0.0)], 0),
    ],
)
def test_the_state_that_moves_most_at_a_bearable_loss_is_taken(rows: list[dict[str, float]], best: int) -> None:
    assert best_reference(rows) == best


def test_the_label_is_on_the_state_that_the_rule_takes(taught: Taught) -> None:
    """Signs computed anew, from the saved states and all validation images at once."""
    recipe, session = taught
    sets, teacher = session.sets(recipe.data), teach(recipe, session)
    folder = RunDir(weak_run(recipe, sets.fingerprint).folder(session.runs))
    trajectory, final = Trajectory(folder), Trajectory(RunDir(teacher.folder(session.runs)))
    held = in_memory(sets.val)
    late, names = outputs(final, "final", held), [entry["labels"][0] for entry in trajectory.entries]
    rows = [target_statistics(late, outputs(trajectory, name, held), held.label, 1.0) for name in names]
    labelled = [at for at, entry in enumerate(trajectory.entries) if f"weak-{teacher.hash}" in entry["labels"]]
    assert labelled == [best_reference(rows)]
    assert [e["signs"][teacher.hash] for e in trajectory.entries] == [pytest.approx(row, rel=1e-4) for row in rows]


@torch.no_grad()
def outputs(trajectory: Trajectory, name: str, images: ImageSet) -> Tensor:
    network = build_saved(trajectory.folder, 10, 32).eval()
    trajectory.fill(network, name)
    logits: Tensor = network(images.image.float() / 255).logits
    return logits


# --- The network ---


def test_it_is_the_students_architecture_trained_briefly() -> None:
    recipe = load_recipe("cues", ["epochs=30", "student.weights=start.pt", "optim.warmup=5", "teacher.seed=3"])
    run = weak_run(recipe, "x")
    assert (run.kind, run.model.name, run.model.weights, run.epochs) == ("teach", recipe.student.name, None, 9)
    assert (run.optim.warmup, run.optim.lr, run.seed, run.keep) == (1.5, recipe.optim.lr, 2003, WEAK_KEEP)
    own = with_settings(recipe, ["teacher.weak=cnn-4", "teacher.weak_epochs=2", "teacher.weak_lr=0.3"])
    run = weak_run(own, "x")
    assert (run.model.name, run.epochs, run.optim.lr) == ("cnn-4", 2, 0.3)
    assert weak_run(with_settings(recipe, ["iterations=7"]), "x").iterations == 3
    teacher = teach_run(recipe, "x")
    assert early_state(recipe, teacher, "weak") == f"{weak_run(recipe, 'x').hash}/weak-{teacher.hash}"


def test_it_is_trained_once_and_shared_by_seeds_and_methods(taught: Taught, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, session = taught
    before = teachers(session)
    assert len(before) == 2
    files = [*session.runs.glob("teachers/*/manifest.json"), *session.runs.glob("teachers/*/snapshots/*")]
    times = [path.stat().st_mtime_ns for path in files]
    monkeypatch.setattr(weak_module, "_signs", lambda *_: pytest.fail("chosen twice"))
    first = distill(recipe, session, method="contrast", seed=1, suite="s")
    second = distill(recipe, session, method="contrast+tc", seed=2, suite="s")
    assert first.roles == second.roles == {"final": "final", "early": first.early}
    assert teachers(session) == before
    assert [path.stat().st_mtime_ns for path in files] == times


def test_another_network_under_its_name_is_refused(taught: Taught, tmp_path: Path) -> None:
    recipe, session = taught
    mark, other = session.sets(recipe.data).fingerprint, with_settings(recipe, ["teacher.weak_lr=0.3"])
    shutil.copytree(session.runs / "teachers", tmp_path / "teachers")
    weak_run(recipe, mark).folder(tmp_path).rename(weak_run(other, mark).folder(tmp_path))
    with pytest.raises(UserError, match=r"holds another run .optim.lr: .* there, 0.3 here"):
        distill(other, Session(tmp_path, execution=CPU, quiet=True), method="contrast", seed=1, suite="s")


def test_its_scores_are_not_called_an_early_teachers(taught: Taught, tmp_path: Path) -> None:
    recipe, session = taught
    run = distill(recipe, session, method="contrast", seed=1, suite="s")
    Image.new("RGB", (32, 32)).save(tmp_path / "0.png")
    (tmp_path / "black" / session.sets(recipe.data).classes[0]).mkdir(parents=True)
    (tmp_path / "0.png").rename(next((tmp_path / "black").iterdir()) / "0.png")
    rows = score_also(run, session, {"black": tmp_path / "black"}, "cpu")
    assert [row["network"] for row in rows] == ["student", "teacher", "weak reference", "chance"]


def test_a_killed_run_resumes_bit_identically(taught: Taught, tmp_path: Path) -> None:
    """In the weak network's training, and in the student's."""
    recipe, session = taught
    other = Session(tmp_path / "runs", execution=CPU, quiet=True)
    run = weak_run(recipe, session.sets(recipe.data).fingerprint)
    teach(recipe, other)
    for step in (3, 10):  # its one epoch has seven steps
        with stop_after(step):
            distill(recipe, other, method="contrast", seed=1, suite="s")
    student = distill(recipe, other, method="contrast", seed=1, suite="s")
    assert same_weights(*(RunDir(student.folder(each.runs)).student for each in (session, other)))
    assert Trajectory(RunDir(run.folder(session.runs))).entries == Trajectory(RunDir(run.folder(other.runs))).entries


def test_methods_that_need_no_predictions_of_it_train_none(recipe: Recipe, session: Session) -> None:
    """KD has no T_early, ASD compares embeddings alone."""
    own = with_settings(recipe, OWN)
    for method in ("kd", "asd"):
        run = distill(own, session, method=method, seed=1, suite="s")
        assert run.roles == {"final": "final"}
    assert len(teachers(session)) == 1
    folder = RunDir(run.folder(session.runs))
    assert set(folder.history()[0]["terms"]) == {"task", "kd", "tc"}
    context = EvalContext(session.sets(own.data), session.runs)
    with pytest.raises(UserError, match="no weak reference yet; --method contrast"):
        evaluate(folder, context, ["hard"])


def test_it_is_compared_by_logits_alone(taught: Taught) -> None:
    recipe, session = taught
    context = EvalContext(session.sets(recipe.data), session.runs)
    for method in ("contrast", "kd"):  # KD is scored on the same images
        folder = RunDir(distill(recipe, session, method=method, seed=1, suite="s").folder(session.runs))
        assert "balanced_accuracy" in evaluate(folder, context, ["clean", "hard", "cost"])["hard"]["values"]
        with pytest.raises(UserError, match="embeddings, and those of a weak reference are not in the teacher's space"):
            evaluate(folder, context, ["mechanism"])


def test_what_cannot_work_is_refused_before_anything_is_trained(recipe: Recipe, session: Session) -> None:
    for settings, message in (("teacher.weak=cnn-x", "unknown model 'cnn-x'"), ("teacher.weak=dense-2", "maps")):
        with pytest.raises(UserError, match=message):
            distill(with_settings(recipe, [*OWN, settings]), session, method="contrast", seed=1, suite="s")
    assert not session.runs.exists()


# --- What is said ---


def signs(**change: float) -> Callable[..., list[dict[str, Any]]]:
    usual = {"early_accuracy": 0.5, "final_accuracy": 0.9, "target_accuracy": 0.89, "moved": 0.07, "agreement": 0.8}
    return lambda weak, *_: [usual | change for _ in weak.entries]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "moves most targets and costs at most 3% of T_final's accuracy"),
        ({}, "agrees with T_final on 80% of the validation images; targets moved: 7.0%, their accuracy 0.900 → 0.890"),
        ({"target_accuracy": 0.5}, "states the one that costs least"),
        ({"moved": 0.0}, "No target moves: expect no more than from plain KD."),
        ({"early_accuracy": 0.95}, "is better than T_final on the validation images (0.950 against 0.900)"),
    ],
)
def test_the_choice_and_its_signs_are_said(
    taught: Taught, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, float], message: str
) -> None:
    recipe, session = taught
    sets = session.sets(recipe.data)
    monkeypatch.setattr(weak_module, "_signs", signs(**change))
    trajectory = Trajectory(RunDir(weak_run(recipe, sets.fingerprint).folder(session.runs)))
    trajectory.write = lambda: None  # type: ignore[method-assign]
    messages: list[str] = []
    another = Trajectory(RunDir(tmp_path / "another"))
    weak_module.choose_weak_state(trajectory, another, sets, torch.device("cpu"), messages.append)
    assert message in " ".join(messages)


# --- Only the final checkpoint ---


def test_final_alone_takes_a_weak_reference(here: Path, ended: Ended) -> None:
    make_folder(here / "photos")
    torch.save(build("cnn-8", 2).state_dict(), "last.pt")
    words = ["distill", "--data", "photos", "--teacher", "cnn-8", "--student", "cnn-4-8", "--final", "last.pt"]
    words += ["--epochs", "2", "--device", "cpu", "--threads", "1"]
    out, err, code = ended(*words, "--dry-run", "--method", "contrast")
    assert code == 0, err
    assert 'early = "weak"' in out
    assert "2. train cnn-4-8 for 1 epoch as a weak reference, in place of an early checkpoint" in err
    out, err, code = ended(*words, "--method", "contrast")
    assert code == 0, err
    text = " ".join(err.split())
    assert "weak reference: cnn-4-8 after" in text
    assert "not measured" not in text  # mechanism compares embeddings, so it is not tried
    run = next((here / "runs").glob("photos*/contrast-s1"))
    assert {path.stem for path in (run / "scores").glob("*.json")} >= {"test", "hard", "cost"}
    before = sorted((here / "runs" / "teachers").iterdir())
    out, err, code = ended(*words, "--method", "asd")
    assert code == 0, err
    assert "L_TC goes without its temporal negative, and L_SS is left out" in " ".join(err.split())
    assert sorted((here / "runs" / "teachers").iterdir()) == before


def test_the_default_is_of_a_file_without_an_early_state(recipe: Recipe) -> None:
    def early(*settings: str) -> str:
        return with_settings(recipe, settings).teacher.early

    assert early("teacher.final=last.pt") == "weak"
    assert early("teacher.final=last.pt", "teacher.early=first.pt") == "first.pt"
    assert early("teacher.final=snapshots") == "15%"  # a folder of states
    assert early() == "15%"


# --- Suites, the dial, scenes, assistants ---


def test_a_row_of_a_suite_learns_from_it_and_is_compared_with_t_early(recipe: Recipe, session: Session) -> None:
    own = with_settings(recipe, ["teacher.weak_epochs=1", "epochs=1"])
    rows = [SuiteRow("kd", "kd"), SuiteRow("ours", "contrast", early="weak"), SuiteRow("asd", "asd", early="weak")]
    jobs = make_jobs("s", own, rows, [1, 2], ("clean", "hard"))
    titles = [training.title for training in trainings(jobs, session.runs)]
    assert len([title for title in titles if title.startswith("weak reference")]) == 1
    assert len(titles) == 6 + 2
    for job in jobs[:2]:
        run_item(job, session, {})
        assert state(job, session.runs) == "finished"
    run = RunDir(session.runs / "s" / "ours-s1").read()[0]
    assert (run.roles["early"], run.early) == (early_state(own, teach(own, session), "weak"), "15%")
    assert not any(title.startswith("weak") for title in (each.title for each in trainings(jobs, session.runs)))
    longer = jobs[1].model_copy(update={"recipe": with_settings(own, ["teacher.weak_epochs=2"])})
    assert state(longer, session.runs) == "another"


def test_the_suite_compares_it_with_t_early_over_five_seeds() -> None:
    jobs = open_suite("weak").jobs
    assert {job.name: job.recipe.teacher.early for job in jobs} == {
        "kd": "15%",
        "contrast+hint": "15%",
        "contrast+hint-weak": "weak",
        "contrast+hint-rewind": "rewind",
    }
    assert len(jobs) == 4 * 5
    with pytest.raises(UserError, match="has its own data"):
        open_suite("weak", ["data.options.rho=0.5"])


@pytest.mark.parametrize("held", [0.0, 0.2])
def test_the_dial_uses_the_same_one_in_its_trials(recipe: Recipe, session: Session, held: float) -> None:
    own = with_settings(recipe, [*OWN[:1], f"data.val_fraction={held}", "optim.warmup=1"])
    choice = choose(own, session, seed=1, suite="s")
    assert ("trials on" in choice.why) == bool(held)
    run = weak_run(own, session.sets(own.data).fingerprint)
    assert teachers(session) == {run.hash, teach(own, session).hash}


def test_scenes_have_one_too(tmp_path: Path) -> None:
    recipe = load_recipe("cues-seg", [*SMALL, "teacher.early=weak"])
    session = Session(tmp_path / "runs", execution=CPU, quiet=True)
    run = distill(recipe, session, method="contrast", seed=1, suite="s")
    entries = Trajectory(RunDir(weak_run(recipe, run.fingerprint).folder(session.runs))).entries
    assert sum(f"weak-{run.teacher}" in entry["labels"] for entry in entries) == 1


def test_an_assistant_has_a_choice_of_its_own(taught: Taught) -> None:
    recipe, session = taught
    run = distill(recipe, session, method="contrast", seed=1, suite="via", via=["cnn-3-12"])
    assert run.roles["early"].endswith(f"/weak-{run.teacher}")
    assert run.teacher != teach(recipe, session).hash
    assert teachers(session) == {weak_run(recipe, run.fingerprint).hash, teach(recipe, session).hash, run.teacher}
