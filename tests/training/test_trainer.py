"""The training loop: what a run leaves behind, what it refuses, and that seeds are paired across methods."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from antishortcut.cli.options import execution_of
from antishortcut.config.recipe import Execution, Recipe, load_recipe, with_settings
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir, write_json
from antishortcut.training.fabric import build_fabric, resolve_execution
from antishortcut.training.pipeline import Session, distill, teach
from tests.conftest import CPU, same_weights
from tests.data.official import make_folder


def student(recipe: Recipe, session: Session, method: str = "ce", suite: str = "s", seed: int = 1) -> RunDir:
    return RunDir(distill(recipe, session, method=method, seed=seed, suite=suite).folder(session.runs))


def test_a_finished_run_has_all_its_files(recipe: Recipe, session: Session) -> None:
    run = distill(recipe, session, method="asd", seed=1, suite="s")
    folder = RunDir(run.folder(session.runs))
    assert folder.path == session.runs / "s" / "asd-s1"
    assert {path.name for path in folder.path.iterdir()} - {".lock"} == {
        "run.json", "metrics.jsonl", "result.json", "student.safetensors", "method.safetensors", "tensorboard",
    }  # fmt: skip
    result, rows = folder.result(), folder.history()
    assert (result["set"], result["steps"], result["last"]["epoch"]) == ("iid", 16, 2)
    assert result["best"]["accuracy"] >= result["last"]["accuracy"]
    assert [row["step"] for row in rows if "terms" in row] == list(range(1, 17))
    assert [row["epoch"] for row in rows if "scores" in row] == [1.0, 2.0]
    assert set(rows[-2]["terms"]) == {"task", "kd", "tc", "ss"}
    assert rows[-2]["loss"] == pytest.approx(sum(rows[-2]["terms"].values()))
    assert any((folder.path / "tensorboard").iterdir())
    written = json.loads((folder.path / "run.json").read_text())
    assert written["hash"] == run.hash
    assert written["execution"]["accelerator"] == "cpu"
    assert written["run"]["options"]["temperature"] == 0.07  # defaults are written out
    assert "torch" in written["versions"]


def test_a_finished_run_is_not_repeated(recipe: Recipe, session: Session) -> None:
    folder, teacher = student(recipe, session, "kd"), teach(recipe, session).folder(session.runs)
    files = [folder.student, folder.metrics, folder.path / "result.json", teacher / "manifest.json"]
    before = [path.stat().st_mtime_ns for path in files]
    for run in (folder.path, teacher):  # as if it was killed while it ended
        (run / "resume").mkdir()
        (run / "resume" / "000000008-0.pt").write_bytes(b"")
    student(recipe, session, "kd")
    assert [path.stat().st_mtime_ns for path in files] == before
    assert not any((run / "resume").exists() for run in (folder.path, teacher))


def test_students_of_one_seed_start_equal_and_see_the_same_images(tiny: Path, session: Session) -> None:
    """At a learning rate of nearly 0 weights stay, and batch statistics show which images came in which order."""
    still = load_recipe(str(tiny), ["epochs=1", "optim.lr=1e-30", "teacher.lr=0.05"])
    one, two, other = (load_file(student(still, session, method, seed=seed).student) for method, seed in
                       (("ce", 7), ("asd", 7), ("ce", 8)))  # fmt: skip
    assert all(torch.allclose(one[key], two[key], rtol=0, atol=1e-20) for key in one)
    assert any("running_mean" in key for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


def test_accumulation_sees_the_same_batches(recipe: Recipe, session: Session) -> None:
    """Batch statistics of a third of the batch differ a little, but every image is used."""
    whole = student(recipe, session, suite="whole")
    thirds = student(with_settings(recipe, ["optim.accumulate=3"]), session, suite="thirds")
    one, two = (run.history()[0] for run in (whole, thirds))
    assert one["terms"]["task"] == pytest.approx(two["terms"]["task"], rel=0.2)
    assert whole.read()[0].hash != thirds.read()[0].hash


def test_a_loss_that_is_not_finite_ends_the_run_and_the_last_good_state_stays(tiny: Path, session: Session) -> None:
    session.execution = CPU.model_copy(update={"save_every": 0.0})
    with pytest.raises(UserError, match=r"not finite (at|after) step \d+: .*the state after step \d+ is") as caught:
        student(load_recipe(str(tiny), ["optim.lr=1e30"]), session)
    assert "\n" not in str(caught.value)
    for path in (session.runs / "s" / "ce-s1" / "resume").glob("*.pt"):
        assert all(value.isfinite().all() for value in torch.load(path)["model"].values())


def test_bfloat16(recipe: Recipe, session: Session) -> None:
    session.execution = CPU.model_copy(update={"precision": "bf16-mixed"})
    folder = student(recipe, session, "asd")
    assert folder.read()[1]["precision"] == "bf16-mixed"
    assert all(value.dtype != torch.bfloat16 for value in load_file(folder.student).values())
    with pytest.raises(UserError, match="16-mixed needs a GPU"):
        build_fabric(Execution(accelerator="cpu", precision="16-mixed"))


@pytest.mark.parametrize(
    ("setting", "method", "message"),
    [
        ("student.name=nope", "asd", "nope"),
        ("teacher.early=12%", "asd", "has no state '12%'"),
        ("methods.adsd.queue=64", "kd", "unknown method 'adsd'"),
    ],
)
def test_an_impossible_run_is_refused_before_its_teacher_is_trained(
    tiny: Path, session: Session, setting: str, method: str, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        student(load_recipe(str(tiny), [setting]), session, method)
    assert "\n" not in str(caught.value)
    assert not session.runs.exists()


def test_a_failed_start_keeps_what_was_there_before(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(log: object) -> None:
        raise UserError("no start")

    folder = student(recipe, session).path
    for name in ("run.json", "result.json"):  # what is left looks like no run
        (folder / name).unlink()
    (folder / "notes.txt").write_text("mine")
    before = {path for path in folder.rglob("*") if path.name != ".lock"}
    monkeypatch.setattr("antishortcut.training.trainer.check_loggers", fail)
    for seed in (1, 2):
        with pytest.raises(UserError, match="no start"):
            student(recipe, session, seed=seed)
    assert set(folder.rglob("*")) == before
    assert [path.name for path in folder.parent.iterdir()] == ["ce-s1"]  # nothing of seed 2


def test_scores_of_earlier_weights_do_not_stay(recipe: Recipe, session: Session) -> None:
    folder = student(recipe, session)
    write_json(folder.path / "scores" / "iid.json", {"values": {"accuracy": 0.5}})
    for name in ("run.json", "result.json"):  # to train it again under the same name, with another setting
        (folder.path / name).unlink()
    student(with_settings(recipe, ["optim.lr=0.01"]), session)
    assert folder.scores() == {}


def test_a_validation_split_selects_the_best_epoch(recipe: Recipe, session: Session) -> None:
    held_out = with_settings(recipe, ["data.val_fraction=0.25"])
    assert student(held_out, session).result()["set"] == "val"
    assert len(session.sets(held_out.data).train) == 192


def test_directions_of_the_whole_data_set_are_computed_before_training(recipe: Recipe, session: Session) -> None:
    options: dict[str, bool | int | float | str] = {"subspace": "dataset", "select": "abandoned"}
    run = distill(recipe, session, method="asd", seed=1, suite="s", options=options)
    state = load_file(RunDir(run.folder(session.runs)).method)
    (basis,) = (value for key, value in state.items() if "basis" in key and value.shape == (16, 4))
    assert torch.allclose(basis.T @ basis, torch.eye(4), atol=1e-5)


# --- Processes that decode images ---


def test_workers_are_one_for_every_core_or_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antishortcut.hardware.cores", lambda: 6)
    monkeypatch.setattr("sys.platform", "linux")
    assert Execution().workers == "auto"
    for execution, workers in (
        (Execution(), 6),
        (Execution(devices=2), 3),
        (Execution(threads=1), 1),
        (Execution(threads=8), 6),
        (Execution(workers=0), 0),
        (Execution(workers=9, threads=1), 9),
    ):
        assert resolve_execution(execution).workers == workers
    assert (execution_of(workers="auto").workers, execution_of(workers="3").workers) == ("auto", 3)
    for wrong in ("-1", "many", "1.5"):
        with pytest.raises(UserError, match=r"^--workers: Input should be"):
            execution_of(workers=wrong)


def test_a_run_is_the_same_with_any_number_of_workers(recipe: Recipe, tmp_path: Path) -> None:
    """Six images of 72 × 72 on disk, in batches of two."""
    root, students = make_folder(tmp_path / "own"), []
    data = recipe.data.model_copy(update={"name": f"folder:{root}", "image_size": 72, "options": {}})
    data = data.model_copy(update={"augment": "imagenet"})
    recipe = with_settings(recipe.model_copy(update={"data": data}), ["optim.batch=2", "epochs=1"])
    for workers in (0, 2):
        session = Session(tmp_path / str(workers), execution=CPU.model_copy(update={"workers": workers}), quiet=True)
        folder = student(recipe, session)
        assert folder.read()[1]["workers"] == workers
        students.append(folder.student)
    assert same_weights(*students)
