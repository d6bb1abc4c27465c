"""Shared by all tests: a recipe small enough to train in a second, a way to stop a run at a step, and the command."""

import copy
import functools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("ANTISHORTCUT_NATIVE", "float32")  # the same precision, so the same bits, on every machine
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # before torch: threads that spin while they wait ruin shared cores

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from antishortcut.cli import app, main
from antishortcut.config.recipe import Execution, OptimSettings, Recipe, Run, load_recipe
from antishortcut.data import synthetic
from antishortcut.evaluation import latency
from antishortcut.experiments import benchmark
from antishortcut.run_dir import RunDir
from antishortcut.training import trainer
from antishortcut.training.optim import lr_at
from antishortcut.training.pipeline import Session
from antishortcut.training.signals import Stopped

Ended = Callable[..., tuple[str, str, int]]
Refusal = Callable[..., str]
CPU = Execution(accelerator="cpu", threads=1, save_every=1e9)
ALWAYS = (lr_at, trainer.Trainer._train_step)  # unless a test stops or spoils a training
TINY = """
epochs = 2
[data]
name = "cues"
augment = "crop"
options = {count = 256, test_count = 100}
[teacher]
name = "cnn-4-16"
[student]
name = "cnn-2-16"
[optim]
batch = 32
[methods.asd]
warmup = 1.0
queue = 64
[methods.ab]
init = 1.0
[methods.fsp]
init = 1.0
[methods.ft]
init = 1.0
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A recipe file: 256 images, 8 steps an epoch, two epochs."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="session", autouse=True)
def _once() -> Iterator[None]:
    """Embedded images, which take longer to draw than a tiny network to train, are drawn once; times are measured
    briefly, for no test looks at them; and nothing waits for a disk: what `fsync` is for, a power cut, no test has.
    """
    drawn = functools.lru_cache(maxsize=64)(synthetic.make_cues)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "make_cues", lambda *words, **more: copy.deepcopy(drawn(*words, **more)))
        patch.setattr(latency, "interleaved", functools.partial(latency.interleaved, rounds=2, warm=1))
        patch.setattr(benchmark, "STEPS", 2)
        patch.setattr(os, "fsync", lambda file: None)
        yield


class SharedTeachers(Session):
    """A session that trains a teacher unless a test of this process has: then it is copied."""

    taught: dict[str, Path] = {}  # noqa: RUF012, shared on purpose
    folder: Path

    def _fit(self, run: Run) -> dict[str, Any]:
        place = run.folder(self.runs)
        key = json.dumps([run.model_dump(mode="json"), self.execution.model_dump(mode="json")])
        as_always = (vars(trainer)["lr_at"], trainer.Trainer._train_step) == ALWAYS
        if run.kind != "teach" or run.data.name != "cues" or place.exists() or not as_always:
            return super()._fit(run)
        if key in self.taught:
            shutil.copytree(self.taught[key], place)
        result = super()._fit(run)
        if key not in self.taught:
            self.taught[key] = Path(shutil.copytree(place, self.folder / str(len(self.taught))))
        return result


@pytest.fixture
def session(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Session:
    torch.set_num_threads(1)
    SharedTeachers.folder = tmp_path_factory.getbasetemp() / "taught"
    return SharedTeachers(tmp_path / "runs", execution=CPU, quiet=True)


@pytest.fixture
def recipe(tiny: Path) -> Recipe:
    return load_recipe(str(tiny))


def tiny_session(folder: Path, *settings: str) -> tuple[Recipe, Session]:
    """The same recipe and session, for fixtures of a module."""
    (folder / "tiny.toml").write_text(TINY)
    return load_recipe(str(folder / "tiny.toml"), settings), Session(folder / "runs", execution=CPU, quiet=True)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*words: object) -> Result:
    """A command that must succeed."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def asd(*words: object) -> Any:
    """Standard output of a command that must succeed, as JSON."""
    return json.loads(invoke(*words, "--json").stdout)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    """A command as a shell starts it: standard output, standard error without a traceback, exit code."""

    def run(*words: object) -> tuple[str, str, int]:
        monkeypatch.setattr(sys, "argv", ["asd", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return captured.out, captured.err, int(caught.value.code or 0)

    return run


@pytest.fixture
def refusal(here: Path, ended: Ended) -> Refusal:
    """The one line of a command that is refused: exit code 2, and no file more or less in the current folder."""

    def files() -> list[Path]:
        return sorted(path for path in here.rglob("*") if not path.is_dir())

    def run(*words: object) -> str:
        before = files()
        out, error, code = ended(*words)
        assert (code, out) == (2, "")
        (line,) = [each for each in error.splitlines() if each.startswith("asd: ")]
        assert error.endswith(f"{line}\n")
        assert files() == before
        return line

    return run


@contextmanager
def stop_after(step: int, number: int = signal.SIGTERM) -> Iterator[None]:
    """Whatever trains here gets a real signal during this step: it must save, and end with Stopped."""

    def signalling(optim: OptimSettings, done: int, steps_per_epoch: int, total: int) -> float:
        if done == step - 1:
            signal.raise_signal(number)
        return lr_at(optim, done, steps_per_epoch, total)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("antishortcut.training.trainer.lr_at", signalling)
        with pytest.raises(Stopped) as caught:
            yield
    assert caught.value.code == 128 + number


def same_weights(one: Path, two: Path) -> bool:
    """Whether two safetensors files hold the same tensors, bit for bit."""
    first, second = load_file(one), load_file(two)
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def assert_same_run(one: RunDir, two: RunDir) -> None:
    """Weights, log and scores are equal, bit for bit."""
    assert same_weights(one.student, two.student)
    assert one.method.exists() == two.method.exists()
    assert not one.method.exists() or same_weights(one.method, two.method)
    assert one.history() == two.history()
    first, second = (run.result() | {"seconds": 0, "sha256": ""} for run in (one, two))
    assert first == second
