"""Methods that are KD with other roles: several states at once, or the chosen one; and how it is chosen."""

import math

import pytest
import torch

import antishortcut.teachers.selection as room
from antishortcut.config.recipe import Recipe
from antishortcut.errors import UserError
from antishortcut.methods.ckptkd import CkptKD
from antishortcut.methods.kd import kd_loss
from antishortcut.methods.snapshot import Snapshot
from antishortcut.run_dir import RunDir
from antishortcut.teachers.selection import image_information, label_information, scaled, select_state
from antishortcut.teachers.trajectory import Teachers, Trajectory
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.types import Batch, Features, Shape, Sizes
from tests.methods.test_kd import slow_kd

SIZES = Sizes(3, 10, Shape(4), {}, torch.arange(10) % 3)
ROWS = Batch(torch.zeros(2, 3, 1, 1), torch.tensor([0, 1]), torch.tensor([0, 1]))


def features(*rows: list[float]) -> Features:
    return Features(torch.tensor(rows, dtype=torch.float64), torch.zeros(len(rows), 4))


def test_snapshots_teach_by_their_mean_logits() -> None:
    method = Snapshot(SIZES, states="50%, 75% ,final,50%", weight=2.0, temperature=3.0)
    assert method.roles == ("50%", "75%", "final")
    student = features([0.3, -1, 2], [0, 0, 1])
    teachers = {
        "50%": features([1, 2, 3], [0, 0, 0]),
        "75%": features([3, 0, 0], [6, 0, 0]),
        "final": features([2, 1, 0], [0, 3, 0]),
    }
    by_hand = torch.tensor([[2, 1, 1], [2, 1, 0]], dtype=torch.float64)
    expected = 2 * slow_kd(student.logits, by_hand, 3.0)
    assert float(method.terms(student, teachers, ROWS, 0.0)["kd"]) == pytest.approx(expected, abs=1e-10)


def test_ckptkd_is_kd_from_the_chosen_state_with_its_own_weights() -> None:
    method = CkptKD(SIZES)
    assert (method.roles, method.task_weight) == (("chosen",), 0.5)
    student, teacher = features([0.3, -1, 2], [0, 0, 1]), features([1, 2, 3], [0, 0, 0])
    result = method.terms(student, {"chosen": teacher}, ROWS, 0.0)["kd"]
    assert float(result) == pytest.approx(0.5 * float(kd_loss(student.logits, teacher.logits, 5.0)), abs=1e-10)


def test_scaling_over_the_states() -> None:
    assert scaled([1.0, 3.0, 2.0]) == [0.0, 1.0, 0.5]
    assert scaled([2.0, 2.0]) == [0.0, 0.0]


def test_label_information_is_high_for_labels_and_none_for_noise() -> None:
    torch.manual_seed(0)
    label = torch.arange(800) % 4
    label = label[torch.randperm(800)]
    message = torch.nn.functional.one_hot(label, 4).float() + 0.1 * torch.randn(800, 4)
    noise = torch.randn(800, 4)
    assert label_information(message, label, 4) == pytest.approx(math.log(4), abs=0.1)
    assert abs(label_information(noise, label, 4)) < 0.05


@pytest.mark.slow
def test_image_information_is_higher_where_the_image_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "STEPS", 60)
    torch.manual_seed(0)
    image = torch.nn.functional.interpolate(torch.rand(256, 3, 4, 4), size=(16, 16))
    saved = torch.nn.functional.avg_pool2d(image, 4)  # (N, 3, 4, 4): nothing is lost
    blurred = saved.mean(dim=(2, 3), keepdim=True).expand_as(saved)
    lost = torch.rand_like(saved)
    best, middle, worst = (image_information(maps, image) for maps in (saved, blurred, lost))
    assert best > middle > worst
    assert -0.1 < best < 0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "STEPS", 5)
    monkeypatch.setattr(room, "IMAGES", 128)


@pytest.mark.usefixtures("quick")
def test_the_choice_is_in_the_manifest_and_in_the_run(recipe: Recipe, session: Session) -> None:
    teacher = teach(recipe, session)
    trajectory = Trajectory(RunDir(teacher.folder(session.runs)))
    with pytest.raises(UserError, match="no state was selected"):
        trajectory.entry("chosen")
    text: list[str] = []
    chosen = select_state(trajectory, session.sets(recipe.data), text.append)
    assert len(text) == len(trajectory.entries) + 2  # a table, and what follows from it
    again = Trajectory(trajectory.folder)
    totals = [entry["information"]["total"] for entry in again.entries]
    assert again.entry("chosen")["labels"][0] == chosen
    assert again.entry("chosen")["information"]["total"] == max(totals)
    assert 0 <= min(totals) <= max(totals) <= 2
    run = distill(recipe, session, method="ckptkd", seed=1, suite="s")
    assert run.roles == {"chosen": chosen}  # the state itself, so that the hash covers it
    network = Teachers(run, session.runs, 10, 32).network("chosen")
    assert all(torch.equal(value, network.state_dict()[key]) for key, value in trajectory.weights(chosen).items())


@pytest.mark.usefixtures("quick")
def test_an_untrained_state_or_an_epoch_is_not_chosen_and_does_not_count(recipe: Recipe, session: Session) -> None:
    """An untrained one keeps more of the image and less of the label than any other, and would stretch both scales.

    Epochs are kept of some teachers only, to be looked at: the choice is among the same states of every teacher.
    """

    def totals(*keep: float | str) -> dict[str, float]:
        taught = recipe.model_copy(update={"teacher": recipe.teacher.model_copy(update={"keep": keep, "seed": 3})})
        runs = session.runs / str(len(list(session.runs.glob("*"))))
        here = Session(runs, quiet=True)
        trajectory = Trajectory(RunDir(teach(taught, here).folder(runs)))
        select_state(trajectory, here.sets(recipe.data), lambda text: None)
        again = Trajectory(trajectory.folder)
        assert again.entry("chosen")["step"] > 0
        assert again.entry("chosen") in again.candidates
        return {e["labels"][0]: e["information"]["total"] for e in again.entries if "information" in e}

    plain = totals(25, 50)
    assert list(plain) == ["25%", "50%", "100%"]
    assert totals(0, 25, 50) == plain
    assert totals(25, "epoch:0.75", 50) == plain
    assert list(totals("epoch:0.5")) == ["epoch:0.5", "100%"]  # where nothing else was kept


def test_teacher_assistant(recipe: Recipe, session: Session) -> None:
    run = distill(recipe, session, method="kd", seed=1, suite="s", via=["cnn-3-12"])
    assert run.name == "kd-via-cnn-3-12"
    assistant, _ = RunDir(session.runs / "teachers" / str(run.teacher)).read()
    assert (assistant.model.name, assistant.kind, assistant.method) == ("cnn-3-12", "distill", "kd")
    assert assistant.teacher == teach(recipe, session).hash
    assert Trajectory(RunDir(session.runs / "teachers" / assistant.hash)).entry("15%")  # it keeps its own trajectory
    direct = distill(recipe, session, method="kd", seed=1, suite="s")
    assert direct.hash != run.hash
    asd = distill(recipe, session, method="asd", seed=1, suite="s", via=["cnn-3-12"])
    assert asd.roles["early"] == "15%"  # of the assistant


def test_born_again_generations(recipe: Recipe, session: Session) -> None:
    run = distill(recipe, session, method="kd", seed=1, suite="s", generations=3)
    assert run.name == "kd-gen3"
    second, _ = RunDir(session.runs / "teachers" / str(run.teacher)).read()
    first, _ = RunDir(session.runs / "teachers" / str(second.teacher)).read()
    assert [link.model.name for link in (first, second, run)] == ["cnn-2-16"] * 3
    assert len({first.seed, second.seed, run.seed}) == 3  # no two start from the same weights
    assert first.teacher == teach(recipe, session).hash


def test_assistant_needs_a_teacher(recipe: Recipe, session: Session) -> None:
    with pytest.raises(UserError, match="has no teacher"):
        distill(recipe, session, method="ce", seed=1, suite="s", via=["cnn-3-12"])
    with pytest.raises(UserError, match="has no state"):
        distill(recipe, session, method="snapshot", seed=1, suite="s", options={"states": "33%"})
