"""Teachers trained elsewhere: two files, one file and a rewound state, or the states that Snapshots saved."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from antishortcut import Snapshots
from antishortcut.config.recipe import Recipe, teach_run, with_settings
from antishortcut.errors import UserError
from antishortcut.models import build
from antishortcut.run_dir import RunDir
from antishortcut.teachers.imported import imported_states
from antishortcut.teachers.trajectory import Trajectory, build_model
from antishortcut.training.pipeline import Session, distill, feasible, make_early, teach
from tests.conftest import CPU, same_weights, tiny_session

Files = tuple[Path, Path]
GOOD = ["teacher.epochs=8", "teacher.lr=0.1", "teacher.batch=16"]  # better than guessing


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A teacher in a folder of its own."""
    recipe, session = tiny_session(tmp_path_factory.mktemp("elsewhere"), *GOOD)
    return RunDir(teach(recipe, session).folder(session.runs))


@pytest.fixture
def files(elsewhere: RunDir, tmp_path: Path) -> Files:
    """Final and early weights as people save them: a bare state_dict, and one wrapped by Lightning and DDP."""
    trajectory = Trajectory(elsewhere)
    bare = {key.removeprefix("body."): value for key, value in trajectory.weights("final").items()}
    torch.save(bare, tmp_path / "last.pt")
    wrapped = {f"module.{key.removeprefix('body.')}": value for key, value in trajectory.weights("15%").items()}
    torch.save({"epoch": 1, "state_dict": wrapped}, tmp_path / "first.pth")
    return tmp_path / "last.pt", tmp_path / "first.pth"


def imported(recipe: Recipe, final: object, early: object = None, *settings: str) -> Recipe:
    more = [] if early is None else [f"teacher.early={early}"]
    return with_settings(recipe, [f"teacher.final={final}", *more, *settings])


def student(recipe: Recipe, session: Session, method: str = "asd", seed: int = 1) -> Any:
    return distill(recipe, session, method=method, seed=seed, suite="own")


def test_two_files_are_a_teacher(
    recipe: Recipe, session: Session, elsewhere: RunDir, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    session.quiet = False
    run = student(imported(recipe, *files), session)
    assert (run.roles, run.early) == ({"final": "final", "early": "early"}, "early")
    folder = RunDir(teach(imported(recipe, *files), session).folder(session.runs))
    there, here = Trajectory(elsewhere), Trajectory(folder)
    for state, reference in (("final", "final"), ("early", "15%")):
        own, other = here.weights(state), there.weights(reference)
        assert own.keys() == other.keys()
        assert all(torch.equal(own[key], other[key]) for key in own)
    assert here.entry("final")["accuracy"] == pytest.approx(elsewhere.result()["last"]["accuracy"])
    assert [(entry["epoch"], entry["fraction"]) for entry in here.entries] == [(None, None)] * 2  # unknown
    message = " ".join(capsys.readouterr().err.split())
    assert "last.pt is final: accuracy" in message
    assert "first.pth is early: accuracy" in message
    assert "exchanged" not in message
    before = here.manifest.stat().st_mtime_ns
    assert teach(imported(recipe, *files), session).hash == run.teacher
    assert here.manifest.stat().st_mtime_ns == before  # imported once
    assert build_model(teach(imported(recipe, *files), session).model, 10, 32).training


def test_an_imported_teacher_teaches_as_if_it_was_trained_here(
    recipe: Recipe, session: Session, elsewhere: RunDir, files: Files
) -> None:
    here = student(imported(recipe, *files), session, "kd")
    shutil.copytree(elsewhere.path.parent, session.runs / "trained" / "teachers")
    other = Session(session.runs / "trained", execution=CPU, quiet=True)
    there = student(with_settings(recipe, GOOD), other, "kd")
    assert same_weights(*(RunDir(run.folder(s.runs)).student for run, s in ((here, session), (there, other))))
    assert here.hash != there.hash  # one is known by its training, the other by its weights


def test_the_content_of_the_files_is_hashed_and_not_their_path(recipe: Recipe, files: Files, tmp_path: Path) -> None:
    moved = shutil.copy(files[0], tmp_path / "moved.pt")
    one, two, *others = (
        teach_run(imported(recipe, *pair), "x").hash
        for pair in ((files[0], files[1]), (moved, files[1]), (files[1], files[1]), (files[0], None))
    )
    assert one == two
    assert len({one, *others}) == 3


def test_one_file_has_no_states_but_can_be_rewound(
    recipe: Recipe, session: Session, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"no state '15%'; teacher.early .*\"weak\""):
        student(imported(recipe, files[0], "15%"), session)
    assert not session.runs.exists()
    student(imported(recipe, files[0]), session, "kd")  # needs no early state
    session.quiet = False
    run = student(imported(recipe, files[0], "rewind", "teacher.rewind_epochs=1"), session)
    assert "80.18 against 80.22 on P1" in " ".join(capsys.readouterr().err.split())  # no better than KD in the paper
    assert run.roles["early"].endswith("/final")


def test_states_of_another_loop_keep_their_names(recipe: Recipe, session: Session, tmp_path: Path) -> None:
    network = build("cnn-4-16", 10)
    snapshots = Snapshots(tmp_path / "states", total_steps=40, keep=(0, 15, 50))
    for step in range(41):
        snapshots(network, step)
        torch.nn.init.normal_(next(network.parameters()), std=0.1)
    own = imported(recipe, tmp_path / "states")
    assert [state.labels for state in imported_states(own.teacher)] == [["0%"], ["15%"], ["50%"], ["100%", "final"]]
    run = student(own, session)
    assert run.roles == {"final": "final", "early": "15%"}
    entries = Trajectory(RunDir(session.runs / "teachers" / str(run.teacher))).entries
    assert [entry["fraction"] for entry in entries] == [0.0, 0.15, 0.5, 1.0]
    assert {entry["epoch"] for entry in entries} == {None}
    with pytest.raises(UserError, match="no state '20%'"):
        student(with_settings(own, ["teacher.early=20%"]), session, seed=2)


@pytest.mark.parametrize("harm", ["cut", "other network", "manifest", "gone", "unfinished", "empty"])
def test_damaged_states_are_one_line_and_leave_nothing(
    recipe: Recipe, session: Session, tmp_path: Path, harm: str
) -> None:
    folder = tmp_path / "states"
    snapshots = Snapshots(folder, total_steps=9 if harm == "unfinished" else 1, keep=(15,))
    snapshots(build("cnn-2-16" if harm == "other network" else "cnn-4-32", 10), 1)
    file = next((folder / "snapshots").iterdir())
    if harm == "cut":
        file.write_bytes(file.read_bytes()[:-10])
    if harm == "gone":
        file.unlink()
    if harm in ("empty", "manifest"):
        states = [] if harm == "empty" else [{"step": 1}]
        (folder / "manifest.json").write_text(json.dumps({"states": states}))
    with pytest.raises(UserError, match=re.escape(str(folder))) as caught:
        teach(imported(recipe, folder, None, "teacher.name=cnn-4-32"), session)
    assert "\n" not in str(caught.value)
    assert not list(session.runs.glob("teachers/*"))


def test_an_import_that_fails_keeps_what_was_there_before(
    recipe: Recipe, session: Session, files: Files, tmp_path: Path
) -> None:
    own = imported(recipe, files[0], shutil.copy(files[0], tmp_path / "same.pt"))
    folder = teach_run(own, session.sets(own.data).fingerprint).folder(session.runs)
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="hold the same weights"):
        teach(own, session)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_two_files_with_the_same_weights_are_refused(
    recipe: Recipe, session: Session, files: Files, tmp_path: Path
) -> None:
    same = shutil.copy(files[0], tmp_path / "same.pt")
    for check in (lambda own: teach(own, session), lambda own: feasible(own, session, "asd")):
        with pytest.raises(UserError, match="hold the same weights"):
            check(imported(recipe, files[0], same))
    assert not list(session.runs.glob("teachers/*"))
    feasible(imported(recipe, *files), session, "asd")


def test_a_folder_without_states_is_refused_with_a_hint(
    recipe: Recipe, session: Session, elsewhere: RunDir, tmp_path: Path
) -> None:
    for folder in (tmp_path, elsewhere.path / "snapshots"):
        with pytest.raises(UserError, match=r"a folder without manifest\.json.* name one that Snapshots wrote"):
            feasible(imported(recipe, folder), session, "asd")


@pytest.mark.parametrize("which", ["final", "early", "weights"])
def test_weights_with_nan_are_refused(
    recipe: Recipe, session: Session, files: Files, tmp_path: Path, which: str
) -> None:
    content = torch.load(files[which == "early"])
    next(value for value in content.get("state_dict", content).values() if value.ndim == 4).fill_(torch.nan)
    torch.save(content, broken := tmp_path / "broken.pt")
    own = {
        "final": imported(recipe, broken, files[1]),
        "early": imported(recipe, files[0], broken),
        "weights": with_settings(recipe, [f"teacher.weights={broken}"]),
    }[which]
    with pytest.raises(UserError, match=r"broken\.pt holds NaN in '[\w.]+'"):
        teach(own, session)


def test_a_folder_of_states_is_rewound_but_not_combined_with_a_file(
    recipe: Recipe, session: Session, elsewhere: RunDir, files: Files
) -> None:
    run = student(imported(recipe, elsewhere.path, "rewind", "teacher.rewind_epochs=1"), session)
    assert run.roles["early"].endswith("/final")
    with pytest.raises(UserError, match=r"is a folder of \w+: name one of them"):
        student(imported(recipe, elsewhere.path, files[1]), session, seed=2)


def test_a_tilde_is_the_home_folder(
    recipe: Recipe, session: Session, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = teach(imported(recipe, Path("~") / files[0].name, f"~/{files[1].name}"), session)
    assert run.hash == teach_run(imported(recipe, *files), run.fingerprint).hash
    started = with_settings(recipe, [f"student.weights=~/{files[0].name}", f"student.name={recipe.teacher.name}"])
    build_model(started.student, 10, 32)


def test_exchanged_files_are_noticed(
    recipe: Recipe, session: Session, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    session.quiet = False
    teach(imported(recipe, files[1], files[0]), session)
    message = " ".join(capsys.readouterr().err.split())
    assert "The early state has the better accuracy. Check first teacher.mean and teacher.std (0.5071 0.4867" in message
    assert "last.pt and" in message


def test_a_given_early_state_that_is_the_better_one_stops_until_forced(
    recipe: Recipe, session: Session, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    swapped = imported(recipe, files[1], files[0])
    for _ in range(2):  # also where the teacher is there already
        with pytest.raises(
            UserError, match=r"T_early \(early\) has the better accuracy.*teacher.mean .* first.*--force"
        ):
            student(swapped, session)
    assert not (session.runs / "own").exists()
    student(swapped, session, "kd")  # has no early state
    session.execution = CPU.model_copy(update={"force": True})
    session.quiet = False
    student(swapped, session)
    assert "Note: T_early (early) has the better accuracy" in " ".join(capsys.readouterr().err.split())
    session.execution = CPU
    student(swapped, session)  # finished


def test_a_rewound_state_that_is_the_better_one_is_noticed(
    recipe: Recipe, session: Session, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    session.quiet = False
    recipe = imported(recipe, files[1], "rewind", "teacher.rewind_epochs=6", "optim.batch=16")
    note = r"Note: T_early \(\w+/final\) has the better accuracy, 0\.\d+ against 0\.\d+ of T_final"
    make_early(recipe, teach(recipe, session), session)  # asd rewind says it too
    assert len(re.findall(note, " ".join(capsys.readouterr().err.split()))) == 1
    student(recipe, session)
    assert not re.findall(note, " ".join(capsys.readouterr().err.split()))  # once is enough


def test_classes_in_another_order_are_noticed(
    recipe: Recipe, session: Session, files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = torch.load(files[0], weights_only=True)
    for key in ("head.weight", "head.bias"):
        state[key] = state[key].roll(5, dims=0)
    torch.save(state, tmp_path / "rolled.pt")
    session.quiet = False
    for file, noticed in (("rolled.pt", True), ("last.pt", False)):
        teach(imported(recipe, tmp_path / file), session)
        message = " ".join(capsys.readouterr().err.split())
        suspects = r"does it expect other teacher\.mean and teacher\.std than .* or its classes in another order than"
        assert bool(re.search(suspects, message)) is noticed  # mean and std first


def test_published_weights_of_other_classes_are_no_trained_teacher(
    recipe: Recipe, session: Session, tmp_path: Path
) -> None:
    """timm would give the network a random classifier; a folder stands for the hub."""
    network = timm.create_model("test_resnet", num_classes=7)
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    config = {"architecture": "test_resnet", "num_classes": 7, "pretrained_cfg": {"classifier": "fc", "num_classes": 7}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    hub = with_settings(recipe, [f"teacher.name=timm:local-dir:{tmp_path}", "teacher.final=pretrained"])
    with pytest.raises(UserError, match=r"have 7 outputs, your data 10 classes; leave --final .* to fine-tune it"):
        feasible(hub, session, "kd")
