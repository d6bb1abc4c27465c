"""Teachers that were trained elsewhere: two files, one file and a rewound state, or the states Snapshots kept."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from antishortcut import Snapshots
from antishortcut.config.recipe import Recipe, TeacherSettings, teach_run, with_settings
from antishortcut.errors import UserError
from antishortcut.models import build
from antishortcut.run_dir import RunDir
from antishortcut.teachers.imported import _guesses, imported_states
from antishortcut.teachers.trajectory import Trajectory, build_model
from antishortcut.training.pipeline import Session, distill, feasible, teach


@pytest.fixture
def school(recipe: Recipe, session: Session, tmp_path: Path) -> RunDir:
    """A teacher trained here, whose states then come from elsewhere; in a shop of its own."""
    apart = Session(tmp_path / "elsewhere", execution=session.execution, quiet=True)
    return RunDir(teach(with_settings(recipe, ["teacher.epochs=3"]), apart).folder(apart.runs))


@pytest.fixture
def files(school: RunDir, recipe: Recipe, tmp_path: Path) -> tuple[Path, Path]:
    """Final and early weights as people save them: a bare state_dict, and one wrapped by Lightning and DDP."""
    trajectory = Trajectory(school)
    bare = {key.removeprefix("body."): value for key, value in trajectory.weights("final").items()}
    torch.save(bare, tmp_path / "last.pt")
    wrapped = {f"module.{key.removeprefix('body.')}": value for key, value in trajectory.weights("15%").items()}
    torch.save({"epoch": 1, "state_dict": wrapped}, tmp_path / "first.pth")
    return tmp_path / "last.pt", tmp_path / "first.pth"


def given(recipe: Recipe, final: Path, early: object = None) -> Recipe:
    return with_settings(recipe, [f"teacher.final={final}", *([] if early is None else [f"teacher.early={early}"])])


def test_two_files_are_a_teacher(
    recipe: Recipe, session: Session, school: RunDir, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    session.quiet = False
    run = distill(given(recipe, *files), session, method="asd", seed=1, suite="own")
    assert run.roles == {"final": "final", "early": "early"}
    assert run.early == "early"
    folder = RunDir(teach(given(recipe, *files), session).folder(session.runs))
    there, here = Trajectory(school), Trajectory(folder)
    for first, reference in (("final", "final"), ("early", "15%")):
        own, other = here.weights(first), there.weights(reference)
        assert all(torch.equal(own[key], other[key]) for key in own)
        assert own.keys() == other.keys()
    assert here.entry("final")["accuracy"] == pytest.approx(school.result()["last"]["accuracy"])
    assert [(entry["epoch"], entry["fraction"]) for entry in here.entries] == [(None, None)] * 2  # nobody knows
    message = capsys.readouterr().err
    assert "last.pt is final: accuracy" in message
    assert "first.pth is early: accuracy" in message


def test_students_of_a_given_teacher_are_those_of_the_same_taught_here(
    recipe: Recipe, session: Session, school: RunDir, files: tuple[Path, Path]
) -> None:
    """The same weights teach the same, wherever they came from."""
    apart = Session(school.path.parent.parent, execution=session.execution, quiet=True)
    here = distill(given(recipe, *files), session, method="kd", seed=1, suite="own")
    there = distill(with_settings(recipe, ["teacher.epochs=3"]), apart, method="kd", seed=1, suite="own")
    one, two = (load_file(RunDir(run.folder(s.runs)).student) for run, s in ((here, session), (there, apart)))
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert here.hash != there.hash  # told apart all the same: one is known by its training, the other by its weights


def test_content_counts_and_the_path_does_not(recipe: Recipe, files: tuple[Path, Path], tmp_path: Path) -> None:
    moved = shutil.copy(files[0], tmp_path / "moved.pt")
    one, two = (teach_run(given(recipe, Path(file), files[1]), "x") for file in (files[0], moved))
    assert one.hash == two.hash
    assert one.kind == "given"
    rest = (teach_run(given(recipe, files[1], files[1]), "x"), teach_run(given(recipe, files[0]), "x"))
    assert len({one.hash, *(other.hash for other in rest)}) == 3


@pytest.mark.parametrize(
    ("classes", "poor", "fair"), [(2, 0.59, 0.61), (3, 0.43, 0.44), (10, 0.19, 0.2), (100, 0.01, 0.02)]
)
def test_what_hardly_beats_guessing(classes: int, poor: float, fair: float) -> None:
    """Of two classes a good teacher has less than twice the accuracy of chance, as every teacher has."""
    assert _guesses(poor, classes)
    assert not _guesses(fair, classes)
    assert not _guesses(1.0, 1)


def test_one_file_wants_a_second_or_is_rewound(
    recipe: Recipe, session: Session, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"no state '15%'; teacher.early wants a file of weights too, or \"rewind\""):
        distill(given(recipe, files[0]), session, method="asd", seed=1, suite="own")
    assert not session.runs.exists()
    distill(given(recipe, files[0]), session, method="kd", seed=1, suite="own")  # wants no early state
    session.quiet = False
    rewound = with_settings(given(recipe, files[0], "rewind"), ["teacher.rewind_epochs=1"])
    run = distill(rewound, session, method="asd", seed=1, suite="own")
    assert "no better than plain KD (80.18 against 80.22 on P1)" in capsys.readouterr().err
    assert run.roles["early"].endswith("/final")
    assert run.roles["early"] != "final"


def test_states_of_ones_own_loop_keep_their_names(recipe: Recipe, session: Session, tmp_path: Path) -> None:
    """What Snapshots kept in someone's loop: all methods that look along a trajectory can use it."""
    network = build("cnn-4-16", 10)
    snapshots = Snapshots(tmp_path / "states", total_steps=40, keep=(0, 15, 50))
    for step in range(41):
        snapshots(network, step)
        torch.nn.init.normal_(next(network.parameters()), std=0.1)
    own = with_settings(recipe, [f"teacher.final={tmp_path / 'states'}", "teacher.name=cnn-4-16"])
    assert [state.labels for state in imported_states(own.teacher)] == [["0%"], ["15%"], ["50%"], ["100%", "final"]]
    run = distill(own, session, method="asd", seed=1, suite="own")
    assert run.roles == {"final": "final", "early": "15%"}
    entries = Trajectory(RunDir(session.runs / "teachers" / str(run.teacher))).entries
    assert [entry["fraction"] for entry in entries] == [0.0, 0.15, 0.5, 1.0]
    assert {entry["epoch"] for entry in entries} == {None}  # how long that was in epochs nobody said
    with pytest.raises(UserError, match="no state '20%'"):
        distill(with_settings(own, ["teacher.early=20%"]), session, method="asd", seed=2, suite="own")


@pytest.mark.parametrize("harm", ["cut", "other", "manifest", "gone", "unended", "empty"])
def test_damage_is_one_line_and_leaves_nothing(recipe: Recipe, session: Session, tmp_path: Path, harm: str) -> None:
    snapshots = Snapshots(tmp_path / "states", total_steps=1 if harm != "unended" else 9, keep=(15,))
    snapshots(build("cnn-2-16" if harm == "other" else "cnn-4-32", 10), 1)
    saved = next((tmp_path / "states" / "snapshots").iterdir())
    if harm == "empty":
        (tmp_path / "states" / "manifest.json").write_text(json.dumps({"states": []}))
    if harm == "cut":
        saved.write_bytes(saved.read_bytes()[:-10])
    if harm == "gone":
        saved.unlink()
    if harm == "manifest":
        (tmp_path / "states" / "manifest.json").write_text(json.dumps({"states": [{"step": 1}]}))
    own = with_settings(recipe, [f"teacher.final={tmp_path / 'states'}", "teacher.name=cnn-4-32"])
    with pytest.raises(UserError) as caught:
        teach(own, session)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "states") in str(caught.value)
    assert not list(session.runs.glob("teachers/*"))


def test_states_that_are_one_are_refused(
    recipe: Recipe, session: Session, files: tuple[Path, Path], tmp_path: Path
) -> None:
    same = shutil.copy(files[0], tmp_path / "same.pt")
    with pytest.raises(UserError, match="hold the same weights: nothing to push away from"):
        teach(given(recipe, files[0], same), session)
    assert not list(session.runs.glob("teachers/*"))


def test_states_that_are_one_are_noticed_before_anything_is_planned(
    recipe: Recipe, session: Session, files: tuple[Path, Path], tmp_path: Path
) -> None:
    same = shutil.copy(files[0], tmp_path / "same.pt")
    with pytest.raises(UserError, match="hold the same weights: nothing to push away from"):
        feasible(given(recipe, files[0], same), session, "asd")
    feasible(given(recipe, *files), session, "asd")


def test_a_folder_without_states_says_so(recipe: Recipe, session: Session, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a folder without manifest.json, so without states of Snapshots"):
        feasible(with_settings(recipe, [f"teacher.final={tmp_path}"]), session, "asd")


def test_a_folder_without_states_names_what_may_be_meant(
    recipe: Recipe, session: Session, school: RunDir, tmp_path: Path
) -> None:
    """A published folder holds a file of weights; the states of Snapshots lie one folder deeper than their list."""
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text("{}")
    (tmp_path / "hub" / "model.safetensors").touch()
    for folder, says in (
        (tmp_path / "hub", f"name a file of weights, like {tmp_path}/hub/model.safetensors"),
        (school.path / "snapshots", f"name the folder around it, {school.path}"),
    ):
        with pytest.raises(UserError, match=f"{re.escape(says)}$"):
            feasible(with_settings(recipe, [f"teacher.final={folder}"]), session, "asd")


@pytest.mark.parametrize("which", ["final", "early", "weights"])
def test_weights_with_nan_are_refused_before_anything_learns_from_them(
    recipe: Recipe, session: Session, files: tuple[Path, Path], tmp_path: Path, which: str
) -> None:
    content = torch.load(files[which == "early"])
    next(value for value in content.get("state_dict", content).values() if value.ndim == 4).fill_(torch.nan)
    torch.save(content, broken := tmp_path / "broken.pt")
    own = {
        "final": given(recipe, broken, files[1]),
        "early": given(recipe, files[0], broken),
        "weights": with_settings(recipe, [f"teacher.weights={broken}"]),
    }[which]
    with pytest.raises(UserError, match=r"broken\.pt holds NaN in '[\w.]+': that training diverged; take a state"):
        teach(own, session)


def test_states_of_a_loop_can_be_rewound_but_not_mixed_with_files(
    recipe: Recipe, session: Session, school: RunDir, files: tuple[Path, Path]
) -> None:
    folder = with_settings(recipe, [f"teacher.final={school.path}", "teacher.early=rewind", "teacher.rewind_epochs=1"])
    run = distill(folder, session, method="asd", seed=1, suite="own")
    assert run.roles["early"].endswith("/final")
    with pytest.raises(UserError, match="is a folder of states: name one of them"):
        distill(given(recipe, school.path, files[1]), session, method="asd", seed=2, suite="own")


def test_a_tilde_is_the_home(
    recipe: Recipe, session: Session, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = teach(given(recipe, Path("~") / files[0].name, f"~/{files[1].name}"), session)
    assert run.hash == teach_run(given(recipe, *files), run.fingerprint).hash
    started = with_settings(recipe, [f"student.weights=~/{files[0].name}", f"student.name={recipe.teacher.name}"])
    build_model(started.student, 10, 32)


@pytest.mark.parametrize(("early", "final", "noticed"), [(0.6, 0.5, True), (0.5, 0.6, False), (0.5, 0.5, False)])
def test_files_that_are_exchanged_are_noticed(
    recipe: Recipe,
    session: Session,
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    early: float,
    final: float,
    noticed: bool,
) -> None:
    scores = iter([{"accuracy": early}, {"accuracy": final}])
    monkeypatch.setattr("antishortcut.teachers.imported._scores", lambda *_: next(scores))
    session.quiet = False
    teach(given(recipe, *files), session)
    message = capsys.readouterr().err
    assert ("The early state has the better accuracy: are " in message) is noticed
    assert ("first.pth and" in message) is noticed


def test_classes_in_another_order_are_noticed(
    recipe: Recipe, session: Session, files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = torch.load(files[0], weights_only=True)
    for key in ("head.weight", "head.bias"):
        state[key] = state[key].roll(5, dims=0)
    torch.save(state, tmp_path / "rolled.pt")
    session.quiet = False
    teach(given(recipe, tmp_path / "rolled.pt"), session)
    assert "are its classes in the order of yours" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"early": "first.pt"}, "final must be one too"),
        ({"final": "last.pt", "pretrained": True}, "leave pretrained and weights off"),
        ({"final": "last.pt", "weights": "other.pt"}, "leave pretrained and weights off"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TeacherSettings(name="cnn-8", **settings)


def test_a_given_teacher_is_brought_once(
    recipe: Recipe, session: Session, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = given(recipe, *files)
    first = teach(own, session)
    monkeypatch.setattr("antishortcut.training.pipeline.bring", lambda *_: pytest.fail("brought again"))
    assert teach(own, session).hash == first.hash
    assert build_model(first.model, 10, 32).training  # its own file still builds it
