"""Run folders: written whole or not at all, guarded, readable after a kill."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antishortcut.board import Board
from antishortcut.errors import UserError
from antishortcut.folder import Folder, read_json, replacing, twin_of, write_json
from antishortcut.run import Run, load_recipe, teach_run


@pytest.fixture
def run() -> Run:
    return teach_run(load_recipe("cues"), "fingerprint")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    with replacing(path) as file:
        file.write(b"old")
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"ne" * (1 // 0))
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]  # nothing half-written is left


def test_the_same_run_keeps_its_first_execution_settings(tmp_path: Path, run: Run) -> None:
    folder = Folder(tmp_path / "r")
    assert folder.begin(run, {"threads": 2}, {}) == {"threads": 2}
    assert folder.begin(run, {"threads": 7}, {}) == {"threads": 2}
    assert folder.read() == (run, {"threads": 2})


def test_another_run_of_the_same_name_is_refused_with_the_difference(tmp_path: Path, run: Run) -> None:
    folder = Folder(tmp_path / "r")
    folder.begin(run, {}, {})
    other = run.model_copy(update={"epochs": 99})
    with pytest.raises(UserError, match=r"epochs: \d+ there, 99 here"):
        folder.begin(other, {}, {})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', '{"schema": 999, "run": {}, "execution": {}}'])
def test_a_damaged_run_json_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UserError) as caught:
        Folder(tmp_path).read()
    assert "run.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_run_here(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        Folder(tmp_path).read()


def test_the_run_that_was_meant_is_named(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "pets" / "asd-s1"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    for wrong, meant in ((run.parent, run), (run.with_name("asd-s2"), run), (run.parent.with_name("pet"), run.parent)):
        with pytest.raises(UserError, match=f"did you mean {meant}\\?"):
            Folder(wrong).read()


def test_metrics_are_cut_back_to_the_resumed_step(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert folder.history() == []
    for step in (1, 2, 3):
        folder.log({"step": step})
    with folder.metrics.open("a") as file:
        file.write('{"step": 4, "los')  # killed while writing
    assert [row["step"] for row in folder.history()] == [1, 2, 3]
    folder.cut(2)
    assert folder.metrics.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_scores_by_name(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert folder.score("iid") is None
    write_json(tmp_path / "scores" / "iid.json", {"values": {"accuracy": 0.5}})
    assert folder.scores() == {"iid": {"values": {"accuracy": 0.5}}}
    assert json.loads((tmp_path / "scores" / "iid.json").read_text()) == folder.score("iid")


def test_two_processes_cannot_work_in_one_folder(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from antishortcut.folder import Folder; from antishortcut.errors import UserError\n"
        f"try:\n with Folder(pathlib.Path({str(tmp_path)!r})).locked(): print('free')\n"
        "except UserError as error: print(error)"
    )

    def other() -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    with Folder(tmp_path).locked():
        assert "in use by process" in other()
    assert other() == "free\n"


@pytest.mark.parametrize("lines", [0, 1, 2, 3, 100, 3000])
def test_a_log_is_cut_after_any_of_its_steps(tmp_path: Path, lines: int) -> None:
    rows = [json.dumps({"step": step // 2, "text": "x" * (step % 97)}) + "\n" for step in range(2, 2 + lines)]
    for step in {-1, 0, 1, 2, lines // 4, lines // 2, lines}:
        folder = Folder(tmp_path)
        folder.metrics.write_text("".join(rows) + '{"step": 1, "half')
        folder.cut(step)
        kept = [row for row in rows if json.loads(row)["step"] <= step]
        assert folder.metrics.read_text() == "".join(kept)


def test_a_line_that_the_disk_did_not_take_comes_with_the_next(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    folder.log({"step": 1})  # there is no folder yet
    folder.path.mkdir()
    folder.log({"step": 2})
    assert [row["step"] for row in folder.history()] == [1, 2]


def test_curves_are_what_tensorboard_reads(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start, values in ((0, (1.0, 2.0, 3.0)), (1, (5.0, 6.0))):  # the second begins after step 1
        board = Board(tmp_path, start)
        for number, value in enumerate(values, start=start + 1):
            board.add({"loss": value, "rate": 0.5}, number)
        board.close()
        time.sleep(1.1)  # files are told apart, and put in order, by the second they were begun in
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [(1, 1.0), (2, 5.0), (3, 6.0)]


def test_half_a_copy_goes_with_the_next_one(tmp_path: Path, run: Run) -> None:
    """What a process that was killed has left goes; what another is making stays."""
    twin, copy = Folder(tmp_path / "a" / "r"), Folder(tmp_path / "b" / "r")
    twin.begin(run, {}, {})
    write_json(twin.path / "result.json", {"last": 1.0})
    left, busy = (tmp_path / "b" / f".r.copy-{name}" for name in ("left", "busy"))
    for half in (left, busy):
        (half / "r").mkdir(parents=True)
    maker = os.open(busy, os.O_RDONLY)
    try:
        fcntl.flock(maker, fcntl.LOCK_EX)
        copy.copy_of(twin, run)
        assert sorted(path.name for path in copy.path.parent.iterdir()) == [".r.copy-busy", "r"]
        copy.copy_of(twin, run)  # a process that was slower finds it there
        assert copy.result() == {"last": 1.0, "copy_of": "a/r"}
    finally:
        os.close(maker)


def test_weights_that_are_not_what_was_saved_are_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.student.write_bytes(b"weights")
    folder.finish({"last": 1.0})
    assert folder.weights() == folder.student
    folder.student.write_bytes(b"weighty")
    with pytest.raises(UserError, match=r"student.safetensors: damaged \(not what was saved\)"):
        folder.weights()
    write_json(tmp_path / "result.json", {"last": 1.0})  # of an older version
    assert folder.weights() == folder.student


def test_a_run_that_only_says_it_has_the_same_hash_is_no_twin(tmp_path: Path, run: Run) -> None:
    """Who edits a run.json leaves the old hash in it; its result is not what another run would have."""
    run = run.model_copy(update={"keep": ()})
    edited = Folder(tmp_path / "a" / f"r-s{run.seed}")
    edited.begin(run, {}, {})
    edited.finish({})
    assert twin_of(run, tmp_path) is not None
    value = read_json(edited.path / "run.json")
    del value["sum"]
    value["run"]["epochs"] += 1
    write_json(edited.path / "run.json", value)
    assert twin_of(run, tmp_path) is None


def test_weights_of_a_method_that_are_not_those_saved_are_refused(tmp_path: Path, run: Run) -> None:
    folder = Folder(tmp_path / "r")
    folder.begin(run, {}, {})
    folder.method.write_bytes(b"saved")
    folder.finish({})
    assert folder.weights(folder.method) == folder.method
    folder.method.write_bytes(b"other")
    with pytest.raises(UserError, match=r"method\.safetensors: damaged \(not what was saved\)"):
        folder.weights(folder.method)
