"""An export comes to its place whole, whatever happens meanwhile."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from antishortcut.errors import UserError
from antishortcut.export import destination, export
from antishortcut.export.whole import placing
from antishortcut.folder import Folder
from tests.export.subjects import everything
from tests.hostile.test_disks import disk as disk
from tests.hostile.test_disks import filled, killed, killing_before


def test_only_exports_are_replaced_and_only_when_told(student: Folder, tmp_path: Path) -> None:
    place = tmp_path / "s"
    export(student, "safetensors", None, out=place)
    first = (place / "export.json").stat().st_ino
    with pytest.raises(UserError, match="--force"):
        export(student, "safetensors", None, out=place)
    export(student, "safetensors", None, out=place, force=True)
    assert (place / "export.json").stat().st_ino != first
    (place / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="other things"):
        export(student, "safetensors", None, out=place, force=True)
    assert (place / "mine.txt").read_text() == "mine"
    with pytest.raises(UserError, match="is a file"):
        export(student, "safetensors", None, out=_file(tmp_path), force=True)
    assert {path.name for path in tmp_path.iterdir()} == {"s", "file"}


def test_a_folder_that_is_there_stays_there(student: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the shell stands, another disk, a link to it: its files change, all or none."""
    place = tmp_path / "here"
    place.mkdir()
    (tmp_path / "link").symlink_to(place)
    inode = place.stat().st_ino
    monkeypatch.chdir(place)
    export(student, "safetensors", None, out=Path())
    made = {path.name: path.read_bytes() for path in place.iterdir()}
    assert set(made) == {"README.md", "export.json", "model.safetensors"}
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if target == place / "model.safetensors" and source.parent.name == "new":
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match=r"cannot write .*here \(No space left on device\); name another folder"):
        export(student, "safetensors", None, out=tmp_path / "link", force=True)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == made
    monkeypatch.undo()
    export(student, "torch", None, out=tmp_path / "link", force=True)
    assert {path.name for path in place.iterdir()} == {"README.md", "export.json", "model.pt2"}
    assert (place.stat().st_ino, (tmp_path / "link").is_symlink()) == (inode, True)


FORM = "safetensors"


MOVES = 7  # of an exchange: three files go, the old ones are let go of, three come


def written(work: Path, content: str) -> None:
    for name in ("model.safetensors", "README.md"):
        (work / name).write_text(content)
    (work / "export.json").write_text(json.dumps({"files": {"model.safetensors": 3}, "made": content}))


def kill_inside(place: Path, moves: int | None) -> None:
    """An export killed before so many of its moves, or, None, while it writes."""

    def work() -> None:
        os.replace = killing_before(moves or 0)
        with placing(place, "export") as work:
            written(work, "new")
            if moves is None:
                os.kill(os.getpid(), signal.SIGKILL)

    killed(work)


@pytest.mark.parametrize("moves", [None, *range(MOVES)])
def test_a_killed_export_leaves_the_old_or_the_new_whole(student: Folder, tmp_path: Path, moves: int | None) -> None:
    place = tmp_path / "s"
    with placing(place, "export") as work:
        written(work, "old")
    kill_inside(place, moves)
    assert any(path.name.startswith(".s.export-") for path in place.iterdir())
    with pytest.raises(UserError, match="is there already; --force"):
        destination(student, FORM, "final", place, force=False)
    assert {path.name for path in place.iterdir()} == {"model.safetensors", "README.md", "export.json"}
    new = moves is not None and moves > 3
    assert [(place / name).read_text() for name in ("model.safetensors", "README.md")] == ["new" if new else "old"] * 2
    assert json.loads((place / "export.json").read_text())["made"] == ("new" if new else "old")
    export(student, FORM, None, out=place, force=True)
    assert {path.name for path in place.iterdir()} == {"model.safetensors", "README.md", "export.json"}


@pytest.mark.parametrize("there", [False, True])
def test_what_a_killed_first_export_left_is_swept(student: Folder, tmp_path: Path, there: bool) -> None:
    place = tmp_path / "s"
    if there:
        place.mkdir()
    mine = tmp_path / ".s.mine"
    mine.mkdir()
    kill_inside(place, None)
    left = [path for path in everything(tmp_path) if path.name.startswith(".s.export-")]
    assert len(left) == 1
    export(student, FORM, None, out=place)
    assert {path.name for path in place.iterdir()} == {"model.safetensors", "README.md", "export.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"s", ".s.mine"}


@pytest.mark.parametrize("there", [False, True])
def test_an_export_at_work_is_left_alone(student: Folder, tmp_path: Path, there: bool) -> None:
    place = tmp_path / "s"
    if there:
        place.mkdir()
    with placing(place, "export") as work:
        written(work, "first")
        if there:
            with pytest.raises(UserError, match=r"s: another export is being written there; wait"):
                export(student, FORM, None, out=place)
        else:
            assert destination(student, FORM, "final", place, force=False) == place
        assert (work / "README.md").read_text() == "first"
    assert (place / "README.md").read_text() == "first"


def test_where_nothing_can_be_written(student: Folder, tmp_path: Path) -> None:
    """A run folder that is read alone, as a file in the way is to one that may write everywhere."""
    copy = tmp_path / "s" / "kd-s3"
    shutil.copytree(student.path, copy)
    (copy / "export").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*export/safetensors \(.*\); name another folder as --out"):
        export(Folder(copy), "safetensors", None)
    assert export(Folder(copy), "safetensors", None, out=tmp_path / "o").place.is_dir()


def _file(place: Path) -> Path:
    (place / "file").write_text("x")
    return place / "file"


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_a_full_disk_is_said_to_be_one(student: Folder, disk: Path, form: str) -> None:
    """Where torch itself cannot write the last of an archive, it aborts the process."""
    filled(disk)
    with pytest.raises(UserError) as caught:
        export(student, form, None, out=disk / "new")
    assert str(caught.value) == f"cannot write {disk / 'new'} (No space left on device); name another folder as --out"
    assert [path.name for path in disk.iterdir()] == ["rest"]
