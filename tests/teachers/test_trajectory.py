"""The trajectory: which states are kept, under which names, and what happens when one is missing or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from antishortcut.config.recipe import ModelSettings, Recipe
from antishortcut.errors import UserError
from antishortcut.models import build as zoo_build
from antishortcut.run_dir import RunDir
from antishortcut.teachers import trajectory as teachers
from antishortcut.teachers.trajectory import Teachers, Trajectory, build_model, save_weights, snapshot_steps
from antishortcut.training.pipeline import Session, distill, rewind, teach


def test_states_are_due_at_their_share_of_training() -> None:
    assert snapshot_steps((2, 15.0, "epoch:36", "50%"), 10, 2400) == {
        48: ["2%"],
        360: ["15%", "epoch:36"],  # the same step, one file
        1200: ["50%"],
        2400: ["100%"],  # the end is always kept
    }
    assert min(snapshot_steps((2,), 1, 5)) == 1  # never the untrained network, unless it is asked for


def test_nothing_trained_is_a_state_as_well() -> None:
    assert snapshot_steps((0, 0.0, "0%", "epoch:0", 50), 10, 100) == {
        0: ["0%", "epoch:0"],
        50: ["50%"],
        100: ["100%"],
    }
    assert snapshot_steps((0.001,), 10, 100) == {1: ["0.001%"], 100: ["100%"]}  # next to nothing is one step


@pytest.mark.parametrize("point", [-1, 101, "epoch:99", "soon", "-5%"])
def test_a_state_outside_training_is_refused(point: float | str) -> None:
    with pytest.raises(UserError, match=r"teacher\.keep"):
        snapshot_steps((point,), 10, 100)


@pytest.fixture
def taught(recipe: Recipe, session: Session) -> Trajectory:
    return Trajectory(RunDir(teach(recipe, session).folder(session.runs)))


def test_teaching_keeps_the_trajectory(taught: Trajectory) -> None:
    labels = [entry["labels"] for entry in taught.entries]
    assert labels == [["2%", "5%"], ["10%", "15%"], ["20%"], ["30%"], ["50%"], ["75%"], ["100%"]]
    assert [entry["step"] for entry in taught.entries] == [1, 2, 3, 5, 8, 12, 16]
    assert taught.entry("final") == taught.entry("100%") == taught.entries[-1]
    for entry in taught.entries:
        assert entry["fraction"] == entry["step"] / 16
        assert entry["epoch"] == entry["step"] / 8
        assert 0 <= entry["accuracy"] <= 1
        assert len(entry["sha256"]) == 64
    early, final = taught.weights("15%"), taught.weights("final")
    assert early.keys() == final.keys()
    assert any(not torch.equal(early[key], final[key]) for key in early)


def test_the_untrained_state_is_kept_and_changes_nothing(recipe: Recipe, session: Session, tmp_path: Path) -> None:
    trajectories = []
    for runs, keep in ((session.runs, (0, 50)), (tmp_path / "without", (50,))):
        chosen = recipe.model_copy(update={"teacher": recipe.teacher.model_copy(update={"keep": keep, "seed": 3})})
        here = Session(runs, execution=session.execution, quiet=True)
        trajectories.append(Trajectory(RunDir(teach(chosen, here).folder(runs))))
    saved, without = trajectories
    assert saved.folder.path.name == without.folder.path.name  # what is kept is no part of the hash
    assert [(entry["labels"], entry["step"]) for entry in saved.entries] == [(["0%"], 0), (["50%"], 8), (["100%"], 16)]
    assert (saved.entry("0%")["fraction"], saved.entry("0%")["epoch"]) == (0, 0)
    torch.manual_seed(3)
    fresh = build_model(recipe.teacher, 10, 32).state_dict()
    untrained = saved.weights("0%")
    assert untrained.keys() == fresh.keys()
    assert all(torch.equal(untrained[key], fresh[key]) for key in fresh)
    for state in ("50%", "final"):
        assert saved.entry(state)["sha256"] == without.entry(state)["sha256"]  # bit for bit
    rows, rest = saved.folder.history(), without.folder.history()
    assert [row for row in rows if row["step"] > 0] == rest
    assert [row["scores"]["accuracy"] for row in rows if row["step"] == 0] == [saved.entry("0%")["accuracy"]]


def test_an_unknown_state_names_the_near_ones(taught: Trajectory) -> None:
    with pytest.raises(UserError, match="'15%'"):
        taught.entry("16%")


def test_tied_weights_and_weights_of_any_rank_are_kept(tmp_path: Path) -> None:
    one, two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    two.weight = one.weight
    save_weights(tmp_path / "tied.safetensors", torch.nn.Sequential(one, two))
    result = load_file(tmp_path / "tied.safetensors")
    assert torch.equal(result["0.weight"], result["1.weight"])
    build_model(ModelSettings(name="tests.teachers.test_trajectory:deep"), 4, 16)


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


def test_a_damaged_snapshot_is_refused(taught: Trajectory) -> None:
    path = taught.folder.snapshots / taught.entry("15%")["file"]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match="missing or damaged"):
        taught.weights("15%")
    path.unlink()
    with pytest.raises(UserError, match="missing or damaged"):
        taught.weights("15%")


def test_roles_find_their_states_and_teach_without_gradient(recipe: Recipe, session: Session) -> None:
    run = distill(recipe, session, method="asd", seed=1, suite="s")
    teachers = Teachers(run, session.runs, 10, 32)
    trajectory = Trajectory(RunDir(session.runs / "teachers" / str(run.teacher)))
    for role, state in (("final", "final"), ("early", "15%"), ("50%", "50%")):
        for key, value in trajectory.weights(state).items():
            assert torch.equal(teachers.network(role).state_dict()[key], value)
    network = teachers.network("early")
    assert not network.training
    assert not any(p.requires_grad for p in network.parameters())
    outputs = teachers.features(("final", "early"), torch.rand(4, 3, 32, 32), stages=True)
    assert outputs["final"].embedding.shape == (4, 16) == (4, teachers.shapes["final"].embedding)
    assert not outputs["early"].logits.requires_grad
    assert teachers.features(("final",), torch.rand(4, 3, 32, 32))["final"].stages == ()


def test_rewinding_gives_an_early_reference(recipe: Recipe, session: Session) -> None:
    teacher = teach(recipe, session)
    rewound = rewind(teacher, 1, 0.05, session)
    trajectory = Trajectory(RunDir(rewound.folder(session.runs)))
    assert [entry["labels"] for entry in trajectory.entries] == [["100%"]]
    student = recipe.model_copy(
        update={"teacher": recipe.teacher.model_copy(update={"early": "rewind", "rewind_epochs": 1})}
    )
    run = distill(student, session, method="asd", seed=1, suite="s")
    assert run.roles == {"final": "final", "early": f"{rewound.hash}/final"}
    early = Teachers(run, session.runs, 10, 32).network("early").state_dict()
    assert all(torch.equal(early[key], value) for key, value in trajectory.weights("final").items())


def test_a_teacher_that_is_not_there(recipe: Recipe, session: Session, tmp_path: Path) -> None:
    run = distill(recipe, session, method="kd", seed=1, suite="s")
    with pytest.raises(UserError, match="no teacher at"):
        Teachers(run, tmp_path / "elsewhere", 10, 32).network("final")


def test_weights_of_ones_own_ask_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[bool] = []
    true = zoo_build

    def build(*words: object, pretrained: bool, **more: object) -> object:
        requested.append(pretrained)
        return true(*words, pretrained=False, **more)  # type: ignore[arg-type]

    own = build_model(ModelSettings(name="cnn-2-8"), 10, 32)
    save_weights(tmp_path / "own.safetensors", own)
    monkeypatch.setattr(teachers, "build", build)
    build_model(ModelSettings(name="cnn-2-8", pretrained=True, weights=str(tmp_path / "own.safetensors")), 10, 32)
    build_model(ModelSettings(name="cnn-2-8", pretrained=True), 10, 32)
    assert requested == [False, True]
