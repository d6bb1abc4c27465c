"""The run folder, the seam between training, evaluation and report: what lies in it, and how it is written. No torch.

run.json        settings, hash, execution, versions; written once
metrics.jsonl   a line per logged step and per evaluation; cut back to the resumed step
result.json     written last; a folder that has it is finished
scores/<set>.json, artifacts/, and the weights
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from antishortcut.errors import UserError
from antishortcut.run import SCHEMA, Run

os.umask(UMASK := os.umask(0o022))  # it can only be read by setting it


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` at once and whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~UMASK)  # a temporary file is private; what it becomes is not
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    with replacing(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error}); restore it or remove its folder") from None


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

    def begin(self, run: Run, execution: dict[str, Any], versions: dict[str, str]) -> dict[str, Any]:
        """Write run.json, or check that the one there is of the same run. Returns the execution settings to use."""
        if (self.path / "run.json").exists():
            return self.check(run)
        value = {"schema": SCHEMA, "hash": run.hash, "run": run.model_dump(mode="json")}
        write_json(self.path / "run.json", value | {"execution": execution, "versions": versions})
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
            raise UserError(f"{self.path} is not a run folder: it has no run.json")
        value = read_json(path)
        try:
            if value["schema"] != SCHEMA:
                raise UserError(f"{path}: written by another version (schema {value['schema']}, this one has {SCHEMA})")
            return Run.model_validate(value["run"]), dict(value["execution"])
        except (KeyError, TypeError, ValidationError) as error:
            raise UserError(f"{path}: damaged ({type(error).__name__}); restore it or remove its folder") from None

    @contextmanager
    def locked(self, wait: bool = False) -> Iterator[None]:
        """Only one process at a time may work here. The lock goes with its process, however that ends.

        `wait` for the other to end instead of refusing, where both make the same.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError:
                file.seek(0)
                raise InUse(self.path, file.read().strip()) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            for part in self.path.rglob(".*.part"):  # left by a process killed while writing
                part.unlink()
            yield

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def result(self) -> dict[str, Any]:
        return dict(read_json(self.path / "result.json"))

    def headline(self) -> tuple[str, float]:
        """The score a finished run is judged by, and its last value."""
        result = self.result()
        name = str(result.get("headline", "accuracy"))  # older ones are all classification
        return name, float(result["last"][name])

    def finish(self, result: dict[str, Any]) -> None:
        write_json(self.path / "result.json", result)

    def log(self, row: dict[str, Any]) -> None:
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def history(self) -> list[dict[str, Any]]:
        """The logged rows; a last line cut short by a kill is left out."""
        if not self.metrics.exists():
            return []
        rows = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows

    def cut(self, step: int) -> None:
        """Forget what was logged after `step`: those steps are going to be repeated."""
        rows = [row for row in self.history() if row["step"] <= step]
        with replacing(self.metrics) as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows).encode())

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
        aside = [] if (there.teacher, there.early) == (run.teacher, run.early) else ["scores", "artifacts"]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=f".{self.path.name}.") as place:
            copy = Path(place) / self.path.name
            shutil.copytree(twin.path, copy, ignore=shutil.ignore_patterns(".*", "resume", *aside))
            write_json(copy / "run.json", kept)
            write_json(copy / "result.json", twin.result() | {"copy_of": f"{twin.path.parent.name}/{twin.path.name}"})
            if self.path.is_dir() and all(path.name == ".lock" for path in self.path.iterdir()):
                shutil.rmtree(self.path)
            copy.rename(self.path)


def twin_of(run: Run, runs: Path) -> Folder | None:
    """A finished run of the same hash in another folder of a suite."""
    own = run.folder(runs)
    for path in sorted(runs.glob(f"*/*-s{run.seed}/result.json")):
        if path.parent == own:
            continue
        try:
            if read_json(path.parent / "run.json").get("hash") == run.hash:
                return Folder(path.parent)
        except (UserError, AttributeError):
            continue
    return None


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
