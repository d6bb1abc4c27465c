"""Run folders: written whole or not at all, one process at a time, readable after a kill."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from antishortcut.config.recipe import Execution, Run, load_recipe, teach_run
from antishortcut.errors import UserError
from antishortcut.fileio import atomic_write, remove_leftovers
from antishortcut.run_dir import InUse, RunDir, find_twin, read_json, write_json

RESULT = {"set": "test", "last": {"accuracy": 0.5}, "best": {"accuracy": 0.5}}
HOLD = """
import sys, time, pathlib
from antishortcut.run_dir import RunDir
with RunDir(pathlib.Path(sys.argv[1])).locked():
    print("in", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def run() -> Run:
    return teach_run(load_recipe("cues"), "fingerprint")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    with atomic_write(path) as file:
        file.write(b"old")
    (tmp_path / "plain").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    with pytest.raises(ZeroDivisionError), atomic_write(path) as file:
        file.write(b"ne" * (1 // 0))
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]  # nothing half-written is left


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "deep" / ".old.json.abc.part"
    left.parent.mkdir()
    left.write_text("half")
    os.mkfifo(tmp_path / ".pipe.part")  # would be waited for
    with atomic_write(tmp_path / "new") as file:
        file.write(b"whole")
        remove_leftovers(tmp_path)
    assert not left.exists()
    assert (tmp_path / "new").read_bytes() == b"whole"


def test_a_run_keeps_its_first_execution_settings(tmp_path: Path, run: Run) -> None:
    folder = RunDir(tmp_path / "r")
    folder.begin(run, {"threads": 2}, {})
    folder.begin(run, {"threads": 7}, {})
    assert folder.read() == (run, {"threads": 2})


def test_another_run_in_the_same_folder_is_refused_with_the_difference(tmp_path: Path, run: Run) -> None:
    folder = RunDir(tmp_path / "r")
    folder.begin(run, {}, {})
    with pytest.raises(UserError, match=r"epochs: \d+ there, 99 here"):
        folder.begin(run.model_copy(update={"epochs": 99}), {}, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "as JSON"), ("{", "as JSON"), ("[]", "damaged"), ('{"schema": 2}', "damaged"), ('{"schema": 1}', "schema 1")],
)
def test_a_run_json_that_is_damaged_or_of_another_version_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UserError, match=rf"run\.json: .*{message}") as caught:
        RunDir(tmp_path).read()
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_run_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        RunDir(tmp_path).read()
    run = tmp_path / "runs" / "pets" / "asd-s1"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    for wrong, meant in ((run.parent, run), (run.with_name("asd-s2"), run), (run.parent.with_name("pet"), run.parent)):
        with pytest.raises(UserError, match=f"did you mean {meant}\\?"):
            RunDir(wrong).read()


def test_a_flipped_bit_in_the_settings_is_noticed(tmp_path: Path, run: Run) -> None:
    folder = RunDir(tmp_path)
    folder.begin(run, Execution(threads=1).model_dump(mode="json"), {"torch": "2"})
    path, before, damaged = tmp_path / "run.json", folder.read(), 0
    data = path.read_bytes()
    for at in range(0, 8 * len(data), 41):
        path.write_bytes(data[: at // 8] + bytes([data[at // 8] ^ (1 << at % 8)]) + data[at // 8 + 1 :])
        try:
            assert folder.read() == before
        except UserError:
            damaged += 1
    assert damaged > len(data) / 10


@pytest.mark.parametrize("lines", [0, 1, 3, 100])
def test_metrics_are_cut_back_to_the_resumed_step(tmp_path: Path, lines: int) -> None:
    rows = [json.dumps({"step": step // 2, "text": "x" * (step % 97)}) + "\n" for step in range(2, 2 + lines)]
    for step in {-1, 0, 1, lines // 4, lines // 2, lines}:
        folder = RunDir(tmp_path)
        folder.metrics.write_text("".join(rows) + '{"step": 1, "half')  # killed while writing
        assert len(folder.history()) == lines
        folder.cut(step)
        assert folder.metrics.read_text() == "".join(row for row in rows if json.loads(row)["step"] <= step)


def test_scores_are_read_by_name(tmp_path: Path) -> None:
    folder = RunDir(tmp_path)
    assert folder.score("iid") is None
    write_json(tmp_path / "scores" / "iid.json", {"values": {"accuracy": 0.5}})
    assert folder.scores() == {"iid": {"values": {"accuracy": 0.5}}}


def test_a_folder_is_locked_by_one_process_and_unlocked_when_it_is_killed(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "in\n"
    with pytest.raises(InUse, match="in use by another process"), RunDir(tmp_path).locked():
        pass
    os.kill(other.pid, signal.SIGKILL)
    with RunDir(tmp_path).locked(wait=True):
        pass
    other.wait()


def test_a_finished_run_of_the_same_hash_is_copied(tmp_path: Path, run: Run) -> None:
    twin, copy = RunDir(tmp_path / "a" / "r"), RunDir(tmp_path / "b" / "r")
    twin.begin(run, {}, {})
    twin.student.write_bytes(b"weights")
    twin.finish(RESULT)
    for _ in range(2):  # a process that was slower finds it there
        copy.copy_of(twin, run)
        assert copy.result() == twin.result() | {"copy_of": "a/r"}
    assert copy.weights().read_bytes() == b"weights"
    assert copy.read() == twin.read()


def test_a_run_with_edited_settings_is_not_copied(tmp_path: Path, run: Run) -> None:
    run = run.model_copy(update={"keep": ()})
    edited = RunDir(tmp_path / "a" / f"r-s{run.seed}")
    edited.begin(run, {}, {})
    edited.finish(RESULT)
    assert find_twin(run, tmp_path) is not None
    value = read_json(edited.path / "run.json")
    del value["sum"]
    value["run"]["epochs"] += 1
    write_json(edited.path / "run.json", value)
    assert find_twin(run, tmp_path) is None


@pytest.mark.parametrize("name", ["student", "method"])
def test_changed_or_lost_weights_are_refused(tmp_path: Path, name: str) -> None:
    folder = RunDir(tmp_path)
    path = tmp_path / f"{name}.safetensors"
    path.write_bytes(b"weights")
    folder.finish(RESULT)
    assert folder.weights(path) == path
    path.write_bytes(b"weighty")
    with pytest.raises(UserError, match=rf"{name}.safetensors: damaged"):
        folder.weights(path)
    path.unlink()
    with pytest.raises(UserError, match=rf"{name}.safetensors: missing"):
        folder.weights(path)
