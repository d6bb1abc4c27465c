"""One process at a time in a folder: told who, and not kept out by one that is gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from antishortcut import locks
from antishortcut.folder import Folder, InUse, replacing, swept
from antishortcut.locks import Held, Holder, carries, me, only_one

HOLD = """
import sys, time, pathlib
from antishortcut.locks import only_one
with only_one(pathlib.Path(sys.argv[1]), everywhere=sys.argv[2] == "True"):
    print("in", flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=[True, False], ids=["flock", "without flock"])
def everywhere(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def held(folder: Path, everywhere: bool) -> subprocess.Popen[str]:
    """Another process that holds the folder."""
    words = [sys.executable, "-c", HOLD, str(folder), str(everywhere)]
    other = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "in\n"
    return other


def test_the_other_process_is_named(tmp_path: Path) -> None:
    other = held(tmp_path, True)
    try:
        with pytest.raises(InUse) as caught, Folder(tmp_path).locked():
            pass
    finally:
        other.kill()
        other.wait()
    year = time.strftime("%Y-")
    assert f"in use by process {other.pid} on {socket.gethostname()} since {year}" in str(caught.value)


def test_a_killed_holder_leaves_nothing_behind(tmp_path: Path, everywhere: bool) -> None:
    other = held(tmp_path, everywhere)
    with pytest.raises(Held) as caught, only_one(tmp_path, everywhere=everywhere):
        pass
    assert caught.value.holder.pid == other.pid
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    with only_one(tmp_path, everywhere=everywhere):
        pass
    assert not (tmp_path / ".held").exists()


def written(folder: Path, holder: Holder, age: float = 0.0) -> None:
    path = folder / ".held"
    path.write_text(json.dumps(asdict(holder)))
    os.utime(path, (time.time() - age, time.time() - age))


def test_without_flock_a_holder_is_known_by_more_than_its_number(tmp_path: Path) -> None:
    mine = me()
    assert mine.born > 0
    written(tmp_path, replace(mine, pid=os.getppid(), born=locks.born(os.getppid())))
    with pytest.raises(Held), only_one(tmp_path, everywhere=False):  # a living one
        pass
    written(tmp_path, replace(mine, pid=os.getppid(), born=1))  # its number was given to another
    with only_one(tmp_path, everywhere=False):
        assert json.loads((tmp_path / ".held").read_text())["pid"] == os.getpid()


def test_without_flock_another_machine_is_known_by_its_silence(tmp_path: Path) -> None:
    there = Holder(1, "elsewhere", "yesterday", 5)
    written(tmp_path, there, age=locks.STALE / 2)
    with pytest.raises(Held) as caught, only_one(tmp_path, everywhere=False):
        pass
    assert str(caught.value) == "1 on elsewhere since yesterday"
    written(tmp_path, there, age=locks.STALE + 5)
    with only_one(tmp_path, everywhere=False):
        pass


def test_without_flock_a_holder_shows_that_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT", 0.05)
    with only_one(tmp_path, everywhere=False):
        written(tmp_path, replace(me()), age=1000)
        time.sleep(0.5)
        assert time.time() - (tmp_path / ".held").stat().st_mtime < 100


def said(pid: str, host: str = "x") -> bytes:
    return b'{"pid": %s, "host": "%s", "since": "", "born": 0}' % (pid.encode(), host.encode())


HERE = socket.gethostname()
ODD = [b"", b"{}", b"[1]", b'{"pid": "x"}', bytes(40), b"[" * 5000, b'{"a":' * 5000, b"\xff\xfe", b"1e999", b"-3", b"0"]
ODD += [said(pid, HERE) for pid in ("1e999", "-1", "0", "NaN", "9" * 30, "9" * 5000, "null", "[1]")]


@pytest.mark.parametrize("text", [*ODD, b"4711"])
def test_a_lock_of_another_version_or_a_damaged_one_locks_nobody_out(tmp_path: Path, text: bytes) -> None:
    (tmp_path / ".lock").write_bytes(text)
    with Folder(tmp_path).locked():
        pass


@pytest.mark.parametrize("text", ODD)
def test_a_damaged_holder_is_somebody_unknown(tmp_path: Path, text: bytes) -> None:
    with only_one(tmp_path):
        (tmp_path / ".lock").write_bytes(text)
        with pytest.raises(InUse, match=r"is in use by process \?;"), Folder(tmp_path).locked():
            pass
    held = tmp_path / ".held"
    held.write_bytes(text)
    with pytest.raises(Held) as caught, only_one(tmp_path, everywhere=False):
        pass
    assert caught.value.holder == Holder()
    os.utime(held, (time.time() - locks.STALE - 5,) * 2)  # and is gone after a while, as one of another machine
    with only_one(tmp_path, everywhere=False):
        pass


def test_file_systems_that_keep_locks_to_one_machine_are_known() -> None:
    mounts = (
        "/dev/sda / ext4 rw 0 0\nhead:/a /a nfs4 rw,local_lock=none 0 0\nhead:/b /b\\040b nfs rw,nolock 0 0\n"
        "head:/c /c nfs rw,local_lock=flock 0 0\nme@head:/ /a/s fuse.sshfs rw 0 0\nx /l lustre rw,flock 0 0\n"
        "x /m lustre rw,localflock 0 0\nhead:/c /c/d nfs rw,local_lock=none 0 0\n"
    )
    found = {place: carries(Path(place), mounts) for place in ("/home/x", "/a/x", "/b b/x", "/c", "/a/s/x", "/l", "/m")}
    assert found == {
        "/home/x": True, "/a/x": True, "/b b/x": False, "/c": False, "/a/s/x": False, "/l": True, "/m": False,
    }  # fmt: skip
    assert carries(Path("/c/d/e"), mounts)


def test_who_writes_a_file_sweeps_its_halves_and_nobody_elses(tmp_path: Path) -> None:
    """Names with letters that mean something in a pattern too."""
    left = [tmp_path / name for name in (".a[1].png.abcd_123.part", ".a1.png.abcd_123.part", ".a[1].png.mine.part")]
    for path in left:
        path.write_text("half")
    with replacing(tmp_path / "a[1].png") as file, replacing(tmp_path / "a[1].png") as other:
        file.write(b"one")
        other.write(b"two")
    assert [path.exists() for path in left] == [False, True, True]
    assert (tmp_path / "a[1].png").read_bytes() == b"one"
    assert len(list(tmp_path.iterdir())) == 3


def test_what_is_being_written_is_not_swept_away(tmp_path: Path) -> None:
    left = tmp_path / "deep" / ".old.json.abc.part"
    left.parent.mkdir()
    left.write_text("half")
    with replacing(tmp_path / "new") as file:
        file.write(b"whole")
        swept(tmp_path)
    assert not left.exists()
    assert (tmp_path / "new").read_bytes() == b"whole"
