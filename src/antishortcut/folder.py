"""The run folder, the seam between training, evaluation and report: what lies in it, and how it is written. No torch.

run.json        settings, hash, execution, versions; written once
metrics.jsonl   a line per logged step and per evaluation; cut back to the resumed step
result.json     written last; a folder that has it is finished
scores/<set>.json, artifacts/, and the weights
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from antishortcut.errors import UserError
from antishortcut.files import near_folder, sha256, text
from antishortcut.locks import Held, only_one
from antishortcut.log import Log, Mark
from antishortcut.run import SCHEMA, Run

os.umask(UMASK := os.umask(0o022))  # it can only be read by setting it

DEEPEST = 100  # lists in lists of a JSON file; ours have five
LOG = 2**30  # bytes of metrics.jsonl that are read
UNNAMED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}  # errors of a disk while a file is written


@contextmanager
def replacing(path: Path, parents: bool = True) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` at once and whole, or not at all.

    Its folder is made, and where `parents` may be missing, those: not in a run, whose disk may have been unmounted.
    """
    path.parent.mkdir(parents=parents, exist_ok=True)
    swept(path.parent, f".{glob.escape(path.name)}.{'?' * 8}.part")  # no other file: the folder may be anyone's
    handle, name = _part(path)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~UMASK)  # a temporary file is private; what it becomes is not
            os.replace(name, path)  # while it is locked: nobody takes it for one that was left behind
        _durable(path.parent)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in UNNAMED and error.filename is None:
            error.filename = str(path)  # a full disk does not say which file it has no room for
        raise


def _part(path: Path) -> tuple[int, str]:
    """A file that will become `path`, locked for as long as its writer lives."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with suppress(OSError):  # where there are no locks, nothing is swept either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, name
        os.close(handle)  # swept before it was locked


def swept(folder: Path, pattern: str = "**/.*.part") -> None:
    """Remove what processes that were killed while writing have left; what is being written is locked."""
    for part in folder.glob(pattern):
        with suppress(OSError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """A folder that no other process is at, or an OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _durable(folder: Path) -> None:
    """Have the names in a folder on the disk, where it can be asked for that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: Path, value: Any, parents: bool = True) -> None:
    try:
        data = json.dumps(value, indent=1, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a file's name that is no UTF-8 may be the name of a class
        data = json.dumps(value, indent=1).encode()
    with replacing(path, parents) as file:
        file.write(data + b"\n")


def read_json(path: Path) -> Any:
    try:
        return shallow(json.loads(text(path)))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: cannot be read as JSON ({reason}); restore it or remove its folder") from None


def shallow(value: Any) -> Any:
    """The same value, unless its lists lie too deep in each other for what is done with it next: a ValueError."""
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for each in level if isinstance(each, dict | list) for inner in _inside(each)]
        if not level:
            return value
    raise ValueError(f"nested more than {DEEPEST} deep")


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


class InUse(UserError):
    """Another process works in this folder."""

    def __init__(self, path: Path, process: str) -> None:
        super().__init__(f"{path} is in use by process {process or '?'}; wait or stop it")
        self.path = path


class Folder:
    """One run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.snapshots = path / "snapshots"
        self.student = path / "student.safetensors"
        self.method = path / "method.safetensors"
        self._lock: int | None = None  # the inode of .lock while this process holds it
        self._log = Log(self.metrics)

    def begin(self, run: Run, execution: dict[str, Any], versions: dict[str, str]) -> dict[str, Any]:
        """Write run.json, or check that the one there is of the same run. Returns the execution settings to use."""
        if (self.path / "run.json").exists():
            return self.check(run)
        value = {"schema": SCHEMA, "hash": run.hash, "run": run.model_dump(mode="json"), "execution": execution}
        write_json(self.path / "run.json", value | {"versions": versions, "sum": _sum(value)})
        return execution

    def check(self, run: Run) -> dict[str, Any]:
        """The same run lives here, or an error says in what they differ. Returns its execution settings."""
        there, kept = self.read()
        if there.hash != run.hash:
            raise UserError(
                f"{self.path} holds another run ({_difference(there, run)}); "
                "give this one another --name, --suite or --runs, or remove that folder"
            )
        return kept

    def read(self) -> tuple[Run, dict[str, Any]]:
        """The run that lives here and its execution settings."""
        path = self.path / "run.json"
        if not path.exists():
            raise UserError(f"{self.path} is not a run folder: it has no run.json{_instead(self.path)}")
        value = read_json(path)
        try:
            schema = value["schema"]
            if schema == SCHEMA:
                run, execution = Run.model_validate(value["run"]), dict(value["execution"])
        except (KeyError, TypeError, ValueError) as error:  # pydantic's among them
            raise UserError(f"{path}: damaged ({type(error).__name__}); restore it or remove its folder") from None
        if schema != SCHEMA:
            raise UserError(f"{path}: written by another version (schema {schema}, this one has {SCHEMA})")
        if value.get("sum", _sum(value)) != _sum(value):  # older ones have none
            raise UserError(
                f"{path}: damaged (its settings are not those that were written); restore it or remove its folder; "
                'if you have edited it, take its "sum" out'
            )
        return run, execution

    @contextmanager
    def locked(self, wait: bool = False) -> Iterator[None]:
        """Only one process at a time may work here. The lock goes with its process, however that ends.

        `wait` for the other to end instead of refusing, where both make the same.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with only_one(self.path, wait) as self._lock:
                swept(self.path)
                yield
        except Held as held:
            raise InUse(self.path, str(held)) from None
        finally:
            self._lock = None

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def result(self) -> dict[str, Any]:
        path = self.path / "result.json"
        result = read_json(path)
        if not isinstance(result, dict):
            raise UserError(f"{path}: damaged (not a JSON object); restore it or remove its folder")
        return result

    def headline(self) -> tuple[str, float]:
        """The score a finished run is judged by, and its last value."""
        result = self.result()
        name = str(result.get("headline", "accuracy"))  # older ones are all classification
        try:
            return name, float(result["last"][name])
        except (KeyError, TypeError, ValueError, OverflowError):
            path = self.path / "result.json"
            raise UserError(f"{path}: damaged (no last {name}); restore it or remove its folder") from None

    def finish(self, result: dict[str, Any]) -> None:
        """With the checksums of the weights that are there."""
        sums = {path.name: sha256(path) for path in (self.student, self.method) if path.exists()}
        write_json(self.path / "result.json", result | ({"sha256": sums} if sums else {}), parents=False)

    def weights(self, path: Path | None = None) -> Path:
        """The file of a student's weights, if it is still the one that was saved; older results do not say.

        Or another file of weights, its method's.
        """
        path = path or self.student
        said = self.result().get("sha256") if self.finished else None
        if isinstance(said, dict) and path.is_file() and said.get(path.name) != sha256(path):
            raise UserError(f"{path}: damaged (not what was saved); restore it or remove {self.path}")
        return path

    def log(self, row: dict[str, Any]) -> None:
        """Add a line. One that the disk does not take is kept in mind, and written with a later one or by `settle`."""
        self._log.add(row)
        with suppress(OSError):
            self._append()

    def settle(self) -> None:
        """Have the whole log on the disk, or an OSError. Comes before anything that lets its steps not be repeated."""
        self._append()
        self._log.sync()

    def _append(self) -> None:
        """Unless the path leads elsewhere than to the folder that was locked: to where a disk was mounted before."""
        if self._lock is not None and _inode(self.path / ".lock") != self._lock:
            raise OSError(errno.ENOENT, "the folder is not there any more: unmounted, moved or removed", str(self.path))
        self._log.write()

    def history(self) -> list[dict[str, Any]]:
        """The logged rows; a last line cut short by a kill is left out."""
        return list(self._log.rows())

    def cut(self, step: int, mark: Mark | None = None) -> None:
        """Forget what was logged after `step`, or after a mark: those steps are going to be repeated."""
        self._log.cut(step, mark)

    @property
    def mark(self) -> Mark:
        """How far the log has come, with what it holds by then; for `logged`."""
        return self._log.mark

    def logged(self, mark: Mark | None) -> bool:
        """Whether the log still begins with what it held at a mark; states saved by older versions have none."""
        return mark is None or self._log.begins(mark)

    def score(self, name: str) -> dict[str, Any] | None:
        """A score; None when there is none or its file is damaged: it is made again when asked for."""
        path = self.path / "scores" / f"{name}.json"
        try:
            value = read_json(path) if path.exists() else None
        except UserError:
            return None
        return value if isinstance(value, dict) and isinstance(value.get("values"), dict) else None

    def scores(self) -> dict[str, dict[str, Any]]:
        """All scores that can be read, by name."""
        names = [path.stem for path in sorted((self.path / "scores").glob("*.json"))]
        return {name: score for name in names if (score := self.score(name)) is not None}

    def copy_of(self, twin: Folder, run: Run) -> None:
        """Become a finished run of the same hash, under this run's own name, whole or not at all.

        Its scores come along when they compare it with the same states.
        """
        there, _ = twin.read()
        kept = read_json(twin.path / "run.json") | {"run": run.model_dump(mode="json")}
        kept |= {"sum": _sum(kept)}
        aside = [] if (there.teacher, there.early) == (run.teacher, run.early) else ["scores", "artifacts"]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        halves = f".{self.path.name}.copy-"
        for half in self.path.parent.glob(f"{glob.escape(halves)}*"):  # of processes that were killed while they copied
            with suppress(OSError), alone(half):
                shutil.rmtree(half)
        with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=halves) as place, alone(Path(place)):
            copy = Path(place) / self.path.name
            shutil.copytree(twin.path, copy, ignore=shutil.ignore_patterns(".*", "resume", *aside))
            write_json(copy / "run.json", kept)
            write_json(copy / "result.json", twin.result() | {"copy_of": f"{twin.path.parent.name}/{twin.path.name}"})
            if self.path.is_dir() and all(path.name == ".lock" for path in self.path.iterdir()):
                shutil.rmtree(self.path)
            try:
                copy.rename(self.path)
            except OSError:
                if not self.finished:  # else another process was at it too, and first
                    raise


def _sum(value: dict[str, Any]) -> str:
    """By which damage to the settings in run.json is known."""
    settings = json.dumps([value["run"], value["execution"]], sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def twin_of(run: Run, runs: Path) -> Folder | None:
    """A finished run of the same hash in another folder of a suite."""
    own = run.folder(runs)
    for path in sorted(runs.glob(f"*/*-s{run.seed}/result.json")):
        if path.parent == own:
            continue
        try:
            twin = Folder(path.parent)
            said = read_json(twin.path / "run.json").get("hash")
            if said == run.hash and twin.read()[0].hash == said:  # by its settings too: they may have been edited
                return twin
        except (UserError, AttributeError):
            continue
    return None


def _instead(folder: Path) -> str:
    """A hint at the runs in a folder that is none, or at folders of nearly that name."""
    below = sorted(path.parent for path in folder.glob("*/run.json"))
    if below:
        return f"; did you mean {' or '.join(map(str, below[:3]))}?"
    return "" if folder.is_dir() else near_folder(folder)


def _difference(a: Run, b: Run) -> str:
    """The first settings in which two runs differ, for a person."""
    one, two = a.model_dump(mode="json"), b.model_dump(mode="json")
    pairs = [(key, one[key], two[key]) for key in one if one[key] != two[key]]
    flat: list[str] = []
    for key, old, new in pairs:
        if isinstance(old, dict) and isinstance(new, dict):
            inner = [k for k in old | new if old.get(k) != new.get(k)]
            flat += [f"{key}.{k}: {old.get(k)!r} there, {new.get(k)!r} here" for k in inner]
        else:
            flat.append(f"{key}: {old!r} there, {new!r} here")
    return "; ".join(flat[:3]) + ("; …" if len(flat) > 3 else "")
