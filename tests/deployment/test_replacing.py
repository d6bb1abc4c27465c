"""An export is written whole or not at all, whatever happens meanwhile."""

import errno
import os
import shutil
import signal
import socket
from pathlib import Path

import pytest

from antishortcut.deployment import destination, export
from antishortcut.errors import UserError
from antishortcut.fileio import atomic_dir, recover_dir
from antishortcut.run_dir import RunDir
from tests.hostile.test_disks import disk as disk
from tests.hostile.test_disks import filled, killed, killing_before

FORM = "safetensors"
FILES = {"README.md", "export.json", "model.safetensors"}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_only_exports_are_replaced_and_only_with_force(
    student: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "s"
    export(student, FORM, None, out=place)
    first = (place / "export.json").stat().st_ino
    with pytest.raises(UserError, match="--force"):
        export(student, FORM, None, out=place)
    (tmp_path / "link").symlink_to(place)
    export(student, FORM, None, out=tmp_path / "link", force=True)
    assert (place / "export.json").stat().st_ino != first
    (place / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="other things"):
        export(student, FORM, None, out=place, force=True)
    assert names(place) == FILES | {"mine.txt"}
    monkeypatch.chdir(tmp_path / "s")
    with pytest.raises(UserError, match="is no folder, the current one"):
        export(student, FORM, None, out=Path())


def test_what_is_no_folder_is_never_replaced(student: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket stands for all that is neither file nor folder: with the right to do so, --out /dev/null replaced it."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind("other")  # a relative name: long ones are refused
    with pytest.raises(UserError, match="other is no folder, the current one, or holds other things"):
        export(student, FORM, None, out=Path("other"), force=True)
    with pytest.raises(UserError, match="other is no folder; name another one"), atomic_dir(Path("other")):
        pass
    assert Path("other").is_socket()
    assert names(tmp_path) == {"other"}


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("renames", [None, 0, 1])
def test_a_killed_export_leaves_the_old_one_or_none(
    student: RunDir, tmp_path: Path, exists: bool, renames: int | None
) -> None:
    """Killed while it writes (None) or before a rename; the next export cleans up and succeeds."""
    place = tmp_path / "s"
    if exists:
        export(student, "torch", None, out=place)

    def write() -> None:
        os.replace = killing_before(renames or 0)
        with atomic_dir(place) as work:
            (work / "model.safetensors").write_text("half")
            if renames is None:
                os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)  # a new folder comes with the first rename

    killed(write)
    if not exists and renames == 1:
        assert names(tmp_path) == {"s"}
        shutil.rmtree(place)
    else:
        assert not (place / "model.safetensors").exists()
    recover_dir(place)
    assert names(tmp_path) == ({"s"} if exists else set())
    assert not exists or names(place) == {"README.md", "export.json", "model.pt2"}
    export(student, FORM, None, out=place, force=True)
    assert (names(place), names(tmp_path)) == (FILES, {"s"})


def test_a_rename_that_fails_brings_the_old_export_back(
    student: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "s"
    export(student, "torch", None, out=place)
    replace = os.replace

    def fail(source: Path, target: Path) -> None:
        if Path(source).name == ".s.antishortcut-new":
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match=r"cannot write .*/s \(Input/output error\); name another folder as --out"):
        export(student, FORM, None, out=place, force=True)
    assert names(place) == {"README.md", "export.json", "model.pt2"}
    assert names(tmp_path) == {"s"}


def test_folders_that_look_like_leftovers_are_not_touched(student: RunDir, tmp_path: Path) -> None:
    mine = [tmp_path / name / "notes.txt" for name in (".s.old", ".s.new")]
    for path in mine:
        path.parent.mkdir()
        path.write_text("mine")
    export(student, FORM, None, out=tmp_path / "s")
    export(student, FORM, None, out=tmp_path / "s", force=True)
    assert names(tmp_path) == {"s", ".s.old", ".s.new"}
    assert all(path.exists() for path in mine)


def test_an_export_that_is_refused_recovers_nothing(student: RunDir, tmp_path: Path) -> None:
    (tmp_path / "s").write_text("mine")
    (tmp_path / ".s.antishortcut-new").mkdir()
    with pytest.raises(UserError, match="is no folder"):
        export(student, FORM, None, out=tmp_path / "s")
    assert names(tmp_path) == {"s", ".s.antishortcut-new"}


def test_a_file_in_place_of_the_folder_is_one_line(student: RunDir, tmp_path: Path) -> None:
    copy = RunDir(shutil.copytree(student.path, tmp_path / "s" / "kd-s3"))
    (copy.path / "export").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*export/safetensors \(.*\); name another folder as --out"):
        export(copy, FORM, None)
    assert destination(copy, FORM, "final", tmp_path / "o", force=False) == tmp_path / "o"


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_a_full_disk_is_one_line(student: RunDir, disk: Path, form: str) -> None:
    """Where torch itself cannot write the last of an archive, it aborts the process."""
    filled(disk)
    with pytest.raises(UserError) as caught:
        export(student, form, None, out=disk / "new")
    assert str(caught.value) == f"cannot write {disk / 'new'} (No space left on device); name another folder as --out"
    assert names(disk) == {"rest"}
