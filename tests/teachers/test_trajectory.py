"""A teacher's trajectory: which states are saved, under which names, and how students refer to them."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from antishortcut.config.recipe import ModelSettings, Recipe, teach_run, with_settings
from antishortcut.errors import UserError
from antishortcut.evaluation import evaluate
from antishortcut.evaluation.context import EvalContext
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import (
    Teachers,
    Trajectory,
    build_model,
    find_trajectory,
    save_weights,
    snapshot_steps,
)
from antishortcut.training.pipeline import Session, distill, teach
from tests.conftest import CPU, Refusal, same_weights, tiny_session

Taught = tuple[Recipe, Session, Trajectory]


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Taught:
    """A teacher of 16 steps, shared by all tests that do not harm it."""
    recipe, session = tiny_session(tmp_path_factory.mktemp("taught"))
    return recipe, session, Trajectory(RunDir(teach(recipe, session).folder(session.runs)))


def test_steps_of_snapshots() -> None:
    assert snapshot_steps((2, 15.0, "epoch:36", "50%"), 10, 2400) == {
        48: ["2%"],
        360: ["15%", "epoch:36"],  # the same step, one file
        1200: ["50%"],
        2400: ["100%"],  # the end is always saved
    }
    assert snapshot_steps((0, 0.0, "0%", "epoch:0", 50), 10, 100) == {0: ["0%", "epoch:0"], 50: ["50%"], 100: ["100%"]}
    assert snapshot_steps((0.001,), 10, 100) == {1: ["0.001%"], 100: ["100%"]}  # untrained only for 0


@pytest.mark.parametrize("point", [-1, 101, "epoch:99", "soon", "-5%"])
def test_a_snapshot_outside_training_is_refused(point: float | str) -> None:
    with pytest.raises(UserError, match=r"teacher\.keep"):
        snapshot_steps((point,), 10, 100)


def test_teaching_saves_the_trajectory(taught: Taught) -> None:
    trajectory = taught[2]
    labels = [entry["labels"] for entry in trajectory.entries]
    assert labels == [["2%", "5%"], ["10%", "15%"], ["20%"], ["30%"], ["50%"], ["75%"], ["100%"]]
    assert [entry["step"] for entry in trajectory.entries] == [1, 2, 3, 5, 8, 12, 16]
    assert trajectory.entry("final") == trajectory.entry("100%") == trajectory.entries[-1]
    for entry in trajectory.entries:
        assert (entry["fraction"], entry["epoch"]) == (entry["step"] / 16, entry["step"] / 8)
        assert 0 <= entry["accuracy"] <= 1
        assert len(entry["sha256"]) == 64
    early, final = trajectory.weights("15%"), trajectory.weights("final")
    assert early.keys() == final.keys()
    assert any(not torch.equal(early[key], final[key]) for key in early)
    with pytest.raises(UserError, match="'15%'"):  # the nearest name
        trajectory.entry("16%")


def test_saving_the_untrained_state_changes_nothing(recipe: Recipe, tmp_path: Path) -> None:
    trajectories = []
    for keep in ("[0, 50]", "[50]"):
        session = Session(tmp_path / keep, execution=CPU, quiet=True)
        run = teach(with_settings(recipe, [f"teacher.keep={keep}", "teacher.seed=3"]), session)
        trajectories.append(Trajectory(RunDir(run.folder(session.runs))))
    saved, without = trajectories
    assert saved.folder.path.name == without.folder.path.name  # the hash does not cover what is saved
    assert [(entry["labels"], entry["step"]) for entry in saved.entries] == [(["0%"], 0), (["50%"], 8), (["100%"], 16)]
    torch.manual_seed(3)
    fresh, untrained = build_model(recipe.teacher, 10, 32).state_dict(), saved.weights("0%")
    assert untrained.keys() == fresh.keys()
    assert all(torch.equal(untrained[key], fresh[key]) for key in fresh)
    for state in ("50%", "final"):
        assert saved.entry(state)["sha256"] == without.entry(state)["sha256"]
    rows = saved.folder.history()
    assert [row for row in rows if row["step"] > 0] == without.folder.history()
    assert [row["scores"]["accuracy"] for row in rows if row["step"] == 0] == [saved.entry("0%")["accuracy"]]


def deep(num_classes: int) -> torch.nn.Module:
    """A network with weights of five dimensions, which have no channels-last form."""

    class Deep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = torch.nn.Conv3d(1, 4, 3), torch.nn.Linear(4, num_classes)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.body(image[:, None]).mean(dim=(2, 3, 4)))
            return out

    return Deep()


def test_tied_weights_and_weights_of_any_rank_are_saved(tmp_path: Path) -> None:
    one, two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    two.weight = one.weight
    save_weights(tmp_path / "tied.safetensors", torch.nn.Sequential(one, two))
    result = load_file(tmp_path / "tied.safetensors")
    assert torch.equal(result["0.weight"], result["1.weight"])
    build_model(ModelSettings(name="tests.teachers.test_trajectory:deep"), 4, 16)


def test_pretrained_weights_are_not_downloaded_if_a_file_is_named(tmp_path: Path) -> None:
    save_weights(tmp_path / "own.safetensors", build_model(ModelSettings(name="cnn-2-8"), 10, 32))
    settings = ModelSettings(name="cnn-2-8", pretrained=True)
    build_model(settings.model_copy(update={"weights": str(tmp_path / "own.safetensors")}), 10, 32)
    with pytest.raises(UserError, match="cnn-2-8"):  # there are none
        build_model(settings, 10, 32)


def test_a_damaged_snapshot_is_refused(recipe: Recipe, session: Session) -> None:
    trajectory = Trajectory(RunDir(teach(recipe, session).folder(session.runs)))
    path = trajectory.folder.snapshots / trajectory.entry("15%")["file"]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    for _ in ("damaged", "missing"):
        with pytest.raises(UserError, match="missing or damaged"):
            trajectory.weights("15%")
        path.unlink(missing_ok=True)


def test_roles_resolve_to_frozen_networks(taught: Taught, tmp_path: Path) -> None:
    recipe, session, trajectory = taught
    run = distill(recipe, session, method="asd", seed=1, suite="roles")
    teachers = Teachers(run, session.runs, 10, 32)
    for role, state in (("final", "final"), ("early", "15%"), ("50%", "50%")):
        network = teachers.network(role)
        assert all(torch.equal(network.state_dict()[key], value) for key, value in trajectory.weights(state).items())
        assert not network.training
        assert not any(parameter.requires_grad for parameter in network.parameters())
    outputs = teachers.features(("final", "early"), torch.rand(4, 3, 32, 32), ("stages",))
    assert outputs["final"].embedding.shape == (4, 16) == (4, teachers.shapes["final"].embedding)
    assert not outputs["early"].logits.requires_grad
    assert teachers.features(("final",), torch.rand(4, 3, 32, 32))["final"].stages == ()
    with pytest.raises(UserError, match="no teacher at"):
        Teachers(run, tmp_path / "elsewhere", 10, 32).network("final")


def test_another_teacher_under_its_name_is_refused(taught: Taught, tmp_path: Path) -> None:
    recipe, session, trajectory = taught
    own = Session(tmp_path, execution=CPU, quiet=True)
    other = with_settings(recipe, ["teacher.seed=5"])
    place = teach_run(other, session.sets(recipe.data).fingerprint).folder(tmp_path)
    shutil.copytree(trajectory.folder.path, place)
    with pytest.raises(UserError, match=f"{place.name} holds another run .seed: 0 there, 5 here"):
        distill(other, own, method="kd", seed=1, suite="s")
    assert not (tmp_path / "s" / "kd-s1" / "run.json").exists()
    with pytest.raises(UserError, match=f"{place.name} holds another teacher than its name says"):  # as asd evaluate
        find_trajectory(tmp_path, place.name, "final")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_lost_manifest_is_named(
    taught: Taught, here: Path, tiny: Path, refusal: Refusal, more: tuple[str, ...]
) -> None:
    place = shutil.copytree(taught[1].runs / "teachers", here / "runs" / "teachers") / taught[2].folder.path.name
    (place / "manifest.json").unlink()
    line = refusal("teach", tiny, *more)
    assert line.endswith(
        f"{place.name} holds no teacher states; restore manifest.json, or remove that folder and run asd teach again"
    )


# --- Another early state than the recipe's ---


def test_a_student_learns_from_another_early_state_and_is_compared_with_the_recipes(taught: Taught) -> None:
    recipe, session, _ = taught
    plain, later, same = (
        distill(recipe, session, method="contrast", seed=1, suite="other", name=f"early-{early}", early=early)
        for early in (None, "50%", "15%")
    )
    assert (plain.roles["early"], plain.early) == ("15%", "15%")
    assert (later.roles, later.early) == ({"final": "final", "early": "50%"}, "15%")
    assert plain.hash == same.hash != later.hash
    assert not same_weights(*(RunDir(run.folder(session.runs)).student for run in (plain, later)))
    assert RunDir(later.folder(session.runs)).read()[0] == later
    kd, same = (distill(recipe, session, method="kd", seed=1, suite="s", early=early) for early in (None, "50%"))
    assert kd == same  # it uses none
    assert kd.roles == {"final": "final"}


def test_an_unknown_early_state_is_refused(recipe: Recipe, session: Session) -> None:
    with pytest.raises(UserError, match="no state '12%'"):
        distill(recipe, session, method="contrast", seed=1, suite="s", early="12%")
    assert not session.runs.exists()
    teach(recipe, session)
    for early, message in (("12%", "no state '12%'"), ("0123456789abcdef/15%", "no teacher at")):
        with pytest.raises(UserError, match=message):
            distill(recipe, session, method="contrast", seed=1, suite="s", early=early)
    assert not (session.runs / "s" / "contrast-s1").exists()


@pytest.mark.parametrize("network", ["cnn-3-24", pytest.param("resnet8", marks=pytest.mark.slow)])
def test_contrast_takes_an_early_state_of_another_network(taught: Taught, network: str) -> None:
    recipe, session, _ = taught
    source = teach(with_settings(recipe, [f"teacher.name={network}"]), session)
    early = f"{source.hash}/15%"
    run = distill(recipe, session, method="contrast", seed=1, suite=network, early=early)
    assert (run.roles["early"], run.early, run.teacher) == (early, "15%", teach(recipe, session).hash)
    context = EvalContext(session.sets(recipe.data), session.runs)
    scores = evaluate(RunDir(run.folder(session.runs)), context, ["hard", "mechanism"])
    assert {"raw", "aligned"} <= set(scores["mechanism"]["values"])  # compared with its own teacher's early state


@pytest.mark.parametrize("method", ["contrast+tc", "asd"])
def test_early_features_of_another_width_are_refused(taught: Taught, method: str) -> None:
    recipe, session, _ = taught
    wider, alike = (teach(with_settings(recipe, [f"teacher.name=cnn-3-{n}"]), session) for n in (24, 16))
    with pytest.raises(UserError, match=rf"method '{method.replace('+', '.')}'.* 16 wide, the early state's 24"):
        distill(recipe, session, method=method, seed=1, suite="width", early=f"{wider.hash}/15%")
    assert not (session.runs / "width" / f"{method}-s1").exists()  # nothing half-written
    run = distill(recipe, session, method=method, seed=1, suite="width", early=f"{alike.hash}/15%")
    assert RunDir(run.folder(session.runs)).finished
