"""Full or read-only disks, damaged results, too little memory: one line, and nothing is lost."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torture.disk import may_mount, mounted

from antishortcut.api.planning import folder_name
from antishortcut.cli import main
from antishortcut.config.recipe import recipe_template
from antishortcut.errors import UserError, of_disk
from antishortcut.evaluation import _write_score
from antishortcut.evaluation.context import Score
from antishortcut.experiments.worker import guarded
from antishortcut.fileio import atomic_write
from antishortcut.report import build
from antishortcut.run_dir import RunDir
from tests.browser.fake_runs import student
from tests.conftest import Refusal, invoke


def killed(work: Callable[[], None]) -> None:
    """Call `work` in a forked process, which must end by SIGKILL."""
    if (pid := os.fork()) == 0:
        try:
            work()
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


def killing_before(number: int) -> Any:
    """In place of os.replace: kills the process before this rename."""
    replace, done = os.replace, list[Any]()

    def move(source: Any, target: Any) -> None:
        if len(done) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        done.append(source)
        replace(source, target)

    return move


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Of 64 kB."""
    if not may_mount():
        pytest.skip("needs the right to mount")
    place = tmp_path / "disk"
    place.mkdir()
    with mounted(place, "-t", "tmpfs", "-o", "size=64k", "none"):
        yield place


def filled(place: Path) -> None:
    with suppress(OSError), (place / "rest").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))


def test_a_full_disk_is_named(disk: Path) -> None:
    filled(disk)
    named = r"No space left on device: '.*/disk/new.json'"
    with pytest.raises(OSError, match=named), atomic_write(disk / "new.json") as file:
        file.write(bytes(100_000))
    assert [path.name for path in disk.iterdir()] == ["rest"]


def test_a_finished_run_that_is_copied_to_a_full_disk_is_one_line(disk: Path, tmp_path: Path) -> None:
    twin = student(tmp_path / "a" / "kd-s1", "kd", 1, 0.5)
    for path in (twin.student, twin.method):
        path.write_bytes(bytes(100_000))
    with pytest.raises(UserError, match=r"\A.*/disk/kd-s1/\S*: No space left on device; make room [^/]*\Z"):
        RunDir(disk / "kd-s1").copy_of(twin, twin.read()[0])


def test_init_on_a_full_disk_leaves_nothing(disk: Path, refusal: Refusal) -> None:
    filled(disk)
    assert refusal("init", disk / "recipe.toml").startswith(
        f"asd: {disk}/recipe.toml: No space left on device; make room"
    )
    (disk / "rest").unlink()
    invoke("init", disk / "recipe.toml")
    assert (disk / "recipe.toml").read_text() == recipe_template()


def test_a_read_only_folder_is_refused_before_anything_is_computed(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = student(disk / "kd-s1", "kd", 1, 0.5)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    computed: list[str] = []
    score = Score("clean", "f", lambda run: computed.append("score") or {}, hashed="content")  # type: ignore[func-returns-value]
    with pytest.raises(UserError, match=r"cannot write to .*/kd-s1/scores \(Read-only file system\)"):
        _write_score(SimpleNamespace(folder=folder, state="final", suffix=""), score)  # type: ignore[arg-type]
    monkeypatch.setattr("antishortcut.report.charts.draw_all", lambda *_: computed.append("draw"))
    with pytest.raises(OSError, match=r"Read-only file system: .*table\.md"):
        build(disk)
    assert computed == []


def failing(error: BaseException) -> Callable[..., Any]:
    def work(*words: Any, **more: Any) -> Any:
        raise error

    return work


SHORT = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes"),
]


@pytest.mark.parametrize("error", SHORT, ids=lambda error: type(error).__name__)
def test_running_out_of_memory_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, refusal: Refusal, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("antishortcut.cli.train.load_recipe", failing(error))
    assert refusal("teach", "cues").startswith("asd: out of memory (")
    assert guarded(failing(error))["error"].startswith("out of memory (")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("error", [RecursionError("maximum recursion depth exceeded"), RuntimeError("another")])
def test_bugs_keep_their_traceback(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("antishortcut.cli.train.load_recipe", failing(error))
    monkeypatch.setattr(sys, "argv", ["asd", "teach", "cues"])
    with pytest.raises(type(error)):
        main()
    assert guarded(failing(error))["error"] == f"{type(error).__name__}: {error}"
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EACCES, "Permission denied", "a/s.png"), "a/s.png: Permission denied; change who may "),
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), "a/b: No space left on device; make room there"),
        (OSError(errno.EIO, "Input/output error", b"a"), "b'a': Input/output error"),
        (OSError(errno.EIO, "Input/output error"), "[Errno 5] Input/output error"),
        (OSError("unplugged\nby a cat"), "unplugged by a cat"),
    ],
)
def test_errors_of_a_disk_name_the_file_and_a_remedy(error: OSError, message: str) -> None:
    assert of_disk(error).startswith(message)
    assert "\n" not in of_disk(error)


def refused_by_permissions(words: list[str], place: Path) -> str:
    """The error of a command that may not write to the current folder, run without root's capabilities."""
    bound = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner"] if os.geteuid() == 0 else []
    place.chmod(0o555)
    ended = subprocess.run(
        [*bound, sys.executable, "-m", "antishortcut", *words], check=False, capture_output=True, text=True, cwd=place
    )
    place.chmod(0o755)
    assert ended.returncode == 2, ended
    assert not list(place.iterdir())
    return ended.stderr.splitlines()[-1]


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may write everywhere")
def test_a_folder_without_write_permission_is_one_line(tmp_path: Path) -> None:
    remedy = ": Permission denied; change who may read and write it, or name another place"
    assert refused_by_permissions(["init"], tmp_path) == f"asd: recipe.toml{remedy}"


def test_a_worker_on_a_read_only_disk_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    result = guarded(failing(OSError(errno.EROFS, "Read-only file system", "runs/P2")))
    text = "runs/P2: Read-only file system; name another place, or have its disk mounted for writing"
    assert result == {"error": text}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("damaged", "what"),
    [
        ({}, "no last accuracy"),
        ([], "not a JSON object"),
        ({"last": 3}, "no last accuracy"),
        ({"last": {"accuracy": 0.5}}, "no best accuracy"),
        ({"last": {"accuracy": 0.5}, "best": {"accuracy": 0.5}}, "no set"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_damaged_result_is_named(
    damaged: Any, what: str, more: tuple[str, ...], here: Path, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    folder = student(here / "P2" / "kd-s1", "kd", 1, 0.5)
    run, _ = folder.read()
    monkeypatch.setattr("antishortcut.training.pipeline.distill", lambda *words, **named: run)
    few = "data.options={count=64, test_count=20}"
    words = ("distill", "cues", "--method", "kd", "--set", few, "--runs", here, *more)
    invoke(*words)
    (folder.path / "result.json").write_text(json.dumps(damaged))
    line = f"asd: {folder.path}/result.json: damaged ({what}); restore it or remove its folder"
    assert refusal(*words) == line


@pytest.mark.parametrize("name", ["", ".a", "a/b", "a\\b", "a\0", "a\n", "a\udcff", "teachers"])
def test_names_that_are_no_folder_names_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"cannot name a folder|the folder of the teachers"):
        folder_name(name)
    assert folder_name("Ärger-日本") == "Ärger-日本"
