"""The run folder, the seam between training, evaluation and report: what is in it, and how it is written. No torch.

run.json        settings, hash, execution, versions, checksums of your own networks' code, how a student leads to its
                teacher's classifier (of methods that reuse it); written once
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from antishortcut.config.recipe import SCHEMA, Run, Settings
from antishortcut.errors import UserError, of_disk
from antishortcut.fileio import atomic_write, content, near_folder, refuse_links, remove_leftovers, sha256, text


def write_json(path: Path, value: Any, parents: bool = True) -> None:
    with atomic_write(path, parents) as file:  # a file's name, like a class's, may be no UTF-8
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode(errors="backslashreplace"))


def read_json(path: Path) -> Any:
    try:
        return json.loads(text(path))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: cannot be read as JSON ({reason}); restore it or remove its folder") from None


def damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path}: damaged ({what}); restore it or remove its folder")


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

    def begin(
        self,
        run: Run,
        execution: dict[str, Any],
        versions: dict[str, str],
        code: Mapping[str, str] | None = None,
        classifier: Mapping[str, Any] | None = None,
    ) -> None:
        """Write run.json, or check that the one there is of the same run."""
        if (self.path / "run.json").exists():
            self.check(run)
            return
        value = {"schema": SCHEMA, "hash": run.hash, "run": run.model_dump(mode="json"), "execution": execution}
        value |= {"classifier": dict(classifier)} if classifier else {}
        value |= {"versions": versions, "code": dict(code or {}), "sum": _sum(value)}
        write_json(self.path / "run.json", value)

    def code(self) -> dict[str, str]:
        """Module → sha256 of its source when the run began; see `models.external.code_of`."""
        return read_json(self.path / "run.json").get("code") or {}

    def classifier(self) -> dict[str, Any] | None:
        """How the network leads to its teacher's classifier, see `models.reused_classifier`; None if it has its own."""
        settings: dict[str, Any] | None = read_json(self.path / "run.json").get("classifier")
        return settings

    def check(self, run: Run) -> None:
        """Raise if another run is here, naming the difference."""
        there, _ = self.read()
        if there.hash != run.hash:
            advice = "give this one another --name, --suite or --runs, or remove that folder"
            raise UserError(f"{self.path} holds another run ({difference(there, run)}); {advice}")

    def read(self) -> tuple[Run, dict[str, Any]]:
        """The run in this folder, and its execution settings."""
        path = self.path / "run.json"
        if not path.exists():
            raise UserError(f"{self.path} is not a run folder: it has no run.json{instead(self.path)}")
        value = read_json(path)
        try:
            schema = value["schema"]
            if schema == SCHEMA:
                run, execution = Run.model_validate(value["run"]), dict(value["execution"])
        except (KeyError, TypeError, ValueError) as error:  # pydantic's among them
            raise damaged(path, type(error).__name__) from None
        if schema != SCHEMA:
            raise UserError(f"{path}: of another version (schema {schema}, not {SCHEMA}); use another --runs folder")
        if value.get("sum", _sum(value)) != _sum(value):
            raise UserError(f'{path}: damaged or edited (wrong checksum); restore it, or if you edited it remove "sum"')
        return run, execution

    def check_place(self) -> None:
        """Raise if the folder cannot be written: a file stands in its place, or something in it is a link."""
        place = next(path for path in (self.path, *self.path.parents) if os.path.lexists(path))
        if not place.is_dir():
            advice = "move it, or use another --name, --suite or --runs"
            raise UserError(f"{place} is no folder, but the run goes there; {advice}")
        if place == self.path:
            refuse_links(place)

    @contextmanager
    def locked(self, wait: bool = False) -> Iterator[None]:
        """One process at a time, by a file lock that ends with its process. wait: for the other one, else InUse."""
        self.path.mkdir(parents=True, exist_ok=True)
        refuse_links(self.path)
        lock = FileLock(self.path / ".lock")
        try:
            held = lock.acquire(timeout=-1 if wait else 0, poll_interval=0.2)
        except Timeout:
            raise InUse(self.path) from None
        with held:
            remove_leftovers(self.path)
            yield

    def entries(self) -> set[Path]:
        """All that is in the folder, besides the lock."""
        return set(self.path.glob("*")) - {self.path / ".lock"}

    def remove_since(self, before: set[Path]) -> None:
        """Remove what was not among these entries; the whole folder, if there were none."""
        for path in set(self.path.glob("*")) - before if before else [self.path]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    @property
    def checkpoints(self) -> list[Path]:
        """Saved states of a running training, oldest first."""
        return sorted(path for path in (self.path / "resume").glob("*.pt") if path.name[:9].isdecimal())

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def result(self) -> dict[str, Any]:
        """What a finished run ended with: the set, and its main score among the last and the best."""
        path = self.path / "result.json"
        result = read_json(path)
        if not isinstance(result, dict):
            raise damaged(path, "not a JSON object")
        name = _primary_metric(result)
        for kind in ("last", "best"):
            try:
                float(result[kind][name])
            except (KeyError, TypeError, ValueError, OverflowError):
                raise damaged(path, f"no {kind} {name}") from None
        if "set" not in result:
            raise damaged(path, "no set")
        return result

    def primary_metric(self) -> tuple[str, float]:
        """The name and last value of a finished run's main score."""
        result = self.result()
        name = _primary_metric(result)
        return name, float(result["last"][name])

    def finish(self, result: dict[str, Any]) -> None:
        """With the checksums of the weights that are there. Scores are of a finished run: older ones are of others."""
        shutil.rmtree(self.path / "scores", ignore_errors=True)
        sums = {path.name: sha256(path) for path in (self.student, self.method) if path.exists()}
        write_json(self.path / "result.json", result | ({"sha256": sums} if sums else {}), parents=False)

    def weights(self, path: Path | None = None) -> Path:
        """A file of weights, the student's or its method's, if it is still the one that was saved."""
        path = path or self.student
        sums = self.result().get("sha256") if self.finished else None
        if isinstance(sums, dict) and sums.get(path.name) != (sha256(path) if path.is_file() else None):
            problem = "damaged (not what was saved)" if path.is_file() else "missing"
            raise UserError(f"{path}: {problem}; restore it or remove {self.path}")
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
        """The logged rows, up to the first that is cut short or damaged."""
        rows = []
        with suppress(FileNotFoundError, ValueError, RecursionError):
            for line in content(self.metrics, None).splitlines(keepends=True):
                row = json.loads(line)
                if not isinstance(row, dict) or not line.endswith(b"\n"):
                    break
                rows.append(row)
        return rows

    def cut(self, step: int) -> None:
        """Drop the rows after `step`: those steps are going to be repeated."""
        rows = [json.dumps(row) + "\n" for row in self.history() if row.get("step", 0) <= step]
        with atomic_write(self.metrics, parents=False) as file:
            file.write("".join(rows).encode())

    def score(self, name: str) -> dict[str, Any] | None:
        """A score; None if there is none or its file is damaged: it is then computed again."""
        with suppress(UserError):
            value = read_json(self.path / "scores" / f"{name}.json")
            if isinstance(value, dict) and isinstance(value.get("values"), dict):
                return value
        return None

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
        aside = ["run.json", "result.json", "resume", "wandb", ".*", *([] if same else ["scores", "artifacts"])]
        with self.locked(wait=True):
            refuse_links(self.path, *(str(path.relative_to(self.path)) for path in self.path.rglob("*")))
            if not (self.path / "run.json").exists():  # else another process was first
                write_json(self.path / "run.json", saved | {"sum": _sum(saved)})
                left = shutil.ignore_patterns(*aside)
                shutil.copytree(twin.path, self.path, ignore=left, copy_function=_copy, dirs_exist_ok=True)
                source = f"{twin.path.parent.name}/{twin.path.name}"
                write_json(self.path / "result.json", twin.result() | {"copy_of": source})


def _copy(source: str, target: str) -> None:
    """Of a tree's files the first that fails ends the copying; copytree lists all that do, with both paths."""
    try:
        shutil.copy2(source, target)
    except OSError as error:
        raise UserError(of_disk(OSError(error.errno, error.strerror, target))) from None


def _primary_metric(result: Mapping[str, Any]) -> str:
    return str(result.get("primary_metric", "accuracy"))


def _sum(value: dict[str, Any]) -> str:
    """Checksum of the settings in run.json."""
    settings = [value[key] for key in ("run", "execution", "classifier") if key in value]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def find_twin(run: Run, runs: Path) -> RunDir | None:
    """A finished run of the same hash in another folder of a suite."""
    for path in sorted(runs.glob(f"*/*-s{run.seed}/result.json")):
        twin = RunDir(path.parent)
        with suppress(UserError):  # damaged, or of another version
            if twin.path != run.folder(runs) and twin.read()[0].hash == run.hash:
                return twin
    return None


def instead(folder: Path) -> str:
    """A hint at the runs in a folder that is none, or at folders of nearly that name."""
    below = sorted(path.parent for path in folder.glob("*/run.json"))
    if below:
        return f"; did you mean {' or '.join(map(str, below[:3]))}?"
    return "" if folder.is_dir() else near_folder(folder)


def difference(there: Settings, here: Settings) -> str:
    """The first settings in which two runs or recipes differ, for a person; empty if there are none."""
    lines: list[str] = []
    for key, old in there.model_dump(mode="json").items():
        new = here.model_dump(mode="json")[key]
        nested = isinstance(old, dict)
        inner = {f"{key}.{k}": (old.get(k), new.get(k)) for k in old | new} if nested else {key: (old, new)}
        lines += [f"{name}: {a!r} there, {b!r} here" for name, (a, b) in inner.items() if a != b]
    return "; ".join(lines[:3]) + ("; …" if len(lines) > 3 else "")
