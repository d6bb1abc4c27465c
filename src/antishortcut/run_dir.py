"""The run folder, the seam between training, evaluation and report: what is in it, and how it is written. No torch.

run.json        settings, hash, execution, versions; written once
metrics.jsonl   a line per logged step and per evaluation; cut back to the resumed step
result.json     written last; a folder that has it is finished
scores/<set>.json, artifacts/, and the weights
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from antishortcut.config.recipe import SCHEMA, Run
from antishortcut.errors import UserError
from antishortcut.fileio import atomic_write, near_folder, remove_leftovers, sha256, text

DEEPEST = 100  # lists in lists of a JSON file; ours have five
LOG = 2**30  # bytes of metrics.jsonl that are read


def write_json(path: Path, value: Any, parents: bool = True) -> None:
    data = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    with atomic_write(path, parents) as file:
        file.write(data.encode(errors="backslashreplace"))  # a file's name, like a class's, may be no UTF-8


def read_json(path: Path) -> Any:
    try:
        return shallow(json.loads(text(path)))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: cannot be read as JSON ({reason}); restore it or remove its folder") from None


def shallow(value: Any) -> Any:
    """The same value; a ValueError if it is nested too deep for what is done with it next."""
    level = [value]
    for _ in range(DEEPEST):
        dicts = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [inner for each in dicts for inner in each]
        if not level:
            return value
    raise ValueError(f"nested more than {DEEPEST} deep")


class InUse(UserError):
    """Another process works in this folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is in use by another process; wait or stop it")
        self.path = path


class RunDir:
    """One run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.snapshots = path / "snapshots"
        self.student = path / "student.safetensors"
        self.method = path / "method.safetensors"
        self._unwritten = b""  # rows of the log that the disk did not take yet

    def begin(self, run: Run, execution: dict[str, Any], versions: dict[str, str]) -> dict[str, Any]:
        """Write run.json, or check that the one there is of the same run. Returns the execution settings to use."""
        if (self.path / "run.json").exists():
            return self.check(run)
        value = {"schema": SCHEMA, "hash": run.hash, "run": run.model_dump(mode="json"), "execution": execution}
        write_json(self.path / "run.json", value | {"versions": versions, "sum": _sum(value)})
        return execution

    def check(self, run: Run) -> dict[str, Any]:
        """Raise if another run is here, naming the difference. Returns the execution settings of this one."""
        there, saved = self.read()
        if there.hash != run.hash:
            raise UserError(
                f"{self.path} holds another run ({difference(there, run)}); "
                "give this one another --name, --suite or --runs, or remove that folder"
            )
        return saved

    def read(self) -> tuple[Run, dict[str, Any]]:
        """The run in this folder, and its execution settings."""
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
            raise UserError(
                f"{path}: written by another version (schema {schema}, this one has {SCHEMA}); train it again under "
                "another --runs, or read it with the version that wrote it"
            )
        if value.get("sum", _sum(value)) != _sum(value):
            raise UserError(
                f"{path}: damaged or edited (its checksum is wrong); restore it or remove its folder; if you edited "
                'it on purpose, remove its "sum"'
            )
        return run, execution

    @contextmanager
    def locked(self, wait: bool = False) -> Iterator[None]:
        """One process at a time, by a file lock that ends with its process. wait: for the other one, else InUse."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock")
        try:
            held = lock.acquire(timeout=-1 if wait else 0, poll_interval=0.2)
        except Timeout:
            raise InUse(self.path) from None
        with held:
            remove_leftovers(self.path)
            yield

    @property
    def checkpoints(self) -> list[Path]:
        """Saved states of a running training, oldest first."""
        return sorted(path for path in (self.path / "resume").glob("*.pt") if path.name[:9].isdecimal())

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def result(self) -> dict[str, Any]:
        path = self.path / "result.json"
        result = read_json(path)
        if not isinstance(result, dict):
            raise UserError(f"{path}: damaged (not a JSON object); restore it or remove its folder")
        return result

    def primary_metric(self) -> tuple[str, float]:
        """The name and last value of a finished run's main score."""
        result = self.result()
        name = str(result.get("primary_metric", "accuracy"))
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
        message = self.result().get("sha256") if self.finished else None
        if isinstance(message, dict) and path.is_file() and message.get(path.name) != sha256(path):
            raise UserError(f"{path}: damaged (not what was saved); restore it or remove {self.path}")
        return path

    def log(self, row: dict[str, Any]) -> None:
        """Append a row. If the disk is full it stays in memory and is written later, at the latest by `settle`."""
        self._unwritten += json.dumps(row).encode() + b"\n"
        with suppress(OSError):
            self._append()

    def settle(self) -> None:
        """Write and sync the whole log, or raise OSError. Called before a checkpoint, whose steps are not repeated."""
        self._append()
        if self.metrics.exists():
            with self.metrics.open("rb") as file:
                os.fsync(file.fileno())

    def _append(self) -> None:
        if self._unwritten:
            with self.metrics.open("ab", buffering=0) as file:
                size = file.tell()
                if file.write(self._unwritten) < len(self._unwritten):
                    file.truncate(size)  # no half row in the middle
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.metrics))
            self._unwritten = b""

    def history(self) -> list[dict[str, Any]]:
        """The logged rows."""
        return [row for _, row in self._rows()]

    def cut(self, step: int) -> None:
        """Drop the rows after `step`: those steps are going to be repeated."""
        lines = [line for line, row in self._rows() if row.get("step", 0) <= step]
        with atomic_write(self.metrics, parents=False) as file:
            file.writelines(lines)

    def _rows(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Lines and rows of the log, up to the first that is cut short or damaged."""
        if not self.metrics.exists():
            return
        with self.metrics.open("rb") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    return
                if not isinstance(row, dict) or not line.endswith(b"\n"):
                    return
                yield line, row

    def score(self, name: str) -> dict[str, Any] | None:
        """A score; None if there is none or its file is damaged: it is then computed again."""
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

    def copy_of(self, twin: RunDir, run: Run) -> None:
        """Become a finished run of the same hash, under this run's own name. A copy that is killed is trained instead.

        Its scores come along when they compare it with the same states.
        """
        there, _ = twin.read()
        saved = read_json(twin.path / "run.json") | {"run": run.model_dump(mode="json")}
        same = (there.teacher, there.early) == (run.teacher, run.early)
        aside = ["run.json", "result.json", "resume", ".*", *([] if same else ["scores", "artifacts"])]
        with self.locked(wait=True):
            if not (self.path / "run.json").exists():  # else another process was first
                write_json(self.path / "run.json", saved | {"sum": _sum(saved)})
                shutil.copytree(twin.path, self.path, ignore=shutil.ignore_patterns(*aside), dirs_exist_ok=True)
                source = f"{twin.path.parent.name}/{twin.path.name}"
                write_json(self.path / "result.json", twin.result() | {"copy_of": source})


def _sum(value: dict[str, Any]) -> str:
    """Checksum of the settings in run.json."""
    settings = json.dumps([value["run"], value["execution"]], sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def find_twin(run: Run, runs: Path) -> RunDir | None:
    """A finished run of the same hash in another folder of a suite."""
    own = run.folder(runs)
    for path in sorted(runs.glob(f"*/*-s{run.seed}/result.json")):
        if path.parent == own:
            continue
        try:
            twin = RunDir(path.parent)
            message = read_json(twin.path / "run.json").get("hash")
            if message == run.hash and twin.read()[0].hash == message:  # by its settings too: they may have been edited
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


def difference(a: Run, b: Run) -> str:
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
