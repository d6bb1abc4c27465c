"""Cached teacher outputs: the same run warm or cold, near the uncached one, and whole again after damage."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

import antishortcut.training.trainer as loop
from antishortcut.cli import app
from antishortcut.config.recipe import Execution, Recipe, Run, distill_run, load_recipe, teach_run
from antishortcut.data import Loader
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir
from antishortcut.teachers.cache import CachedOutputs, TeacherCache
from antishortcut.teachers.trajectory import Teachers
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.training.signals import Stopped
from antishortcut.types import Features

CACHED = Execution(accelerator="cpu", threads=1, save_every=1e9, cache_teachers=True)


@pytest.fixture
def cached(session: Session) -> Session:
    session.execution = CACHED
    return session


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Roles whose network was asked for a batch, one entry each time."""
    calls: list[str] = []
    original = Teachers.features

    def features(self: Teachers, roles: Iterable[str], image: Tensor, stages: bool = False) -> dict[str, Features]:
        calls.extend(roles := list(roles))
        return original(self, roles, image, stages)

    monkeypatch.setattr(Teachers, "features", features)
    return calls


def learn(recipe: Recipe, session: Session, suite: str, method: str = "kd", **more: Any) -> RunDir:
    return RunDir(distill(recipe, session, method=method, seed=1, suite=suite, **more).folder(session.runs))


def equal(one: RunDir, two: RunDir) -> None:
    weights, rest = load_file(one.student), load_file(two.student)
    assert all(torch.equal(weights[key], rest[key]) for key in weights | rest)
    assert one.history() == two.history()


def folders(session: Session) -> list[Path]:
    return sorted(path.parent for path in session.runs.glob("teachers/*/cache/*/key.json"))


def rows(**changes: Any) -> Any:
    """Rows of 50 images and 5 values, and the values to put there."""
    settings: dict[str, Any] = {"made": {"seed": 1}, "images": 50, "width": 5}
    here = CachedOutputs(**(settings | changes))
    here.begin()
    return here


def test_warm_and_cold_are_the_same_run_and_near_the_uncached_one(
    recipe: Recipe, session: Session, asked: list[str]
) -> None:
    plain = learn(recipe, session, "plain", "asd")
    session.execution = CACHED
    asked.clear()
    cold = learn(recipe, session, "cold", "asd")
    assert asked.count("final") == asked.count("early") == 16
    asked.clear()
    warm = learn(recipe, session, "warm", "asd")
    assert not asked
    equal(cold, warm)
    assert cold.read()[0].hash == plain.read()[0].hash
    assert cold.read()[1]["cache_teachers"] is True
    losses = [[row["loss"] for row in folder.history() if "loss" in row] for folder in (plain, cold)]
    assert losses[0] != losses[1]  # float16 shows
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


def test_another_method_reads_what_it_shares_and_asks_for_the_rest(
    recipe: Recipe, cached: Session, asked: list[str]
) -> None:
    learn(recipe, cached, "s", "kd")
    final = folders(cached)
    assert len(final) == 1
    asked.clear()
    learn(recipe, cached, "s", "asd")
    assert set(asked) == {"early"}
    assert len(folders(cached)) == 2
    asked.clear()
    learn(recipe, cached, "s", "rkd")
    wider = recipe.model_copy(update={"student": recipe.student.model_copy(update={"name": "cnn-3-8"})})
    learn(wider, cached, "wider", "kd")
    taught = recipe.teacher.model_copy(update={"epochs": 2})
    learn(recipe.model_copy(update={"epochs": 1, "teacher": taught}), cached, "shorter", "kd")
    assert not asked


def test_methods_that_want_maps_ask_as_before(
    recipe: Recipe, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = learn(recipe, session, "plain", "at")
    session.execution, session.quiet = CACHED, False
    equal(plain, learn(recipe, session, "cached", "at"))
    assert "maps, which are not cached" in capsys.readouterr().err
    assert not folders(session)


def test_students_without_a_teacher_and_teachers_have_nothing_to_cache(recipe: Recipe, cached: Session) -> None:
    teach(recipe, cached)
    learn(recipe, cached, "s", "ce")
    assert not folders(cached)


def _truncate(path: Path) -> None:
    file = path / "view-00001.rows"
    file.write_bytes(file.read_bytes()[:-100])


def _flip(path: Path) -> None:
    file = path / "view-00000.rows"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.unlink()
    file.write_bytes(bytes(data))


def _zero(path: Path) -> None:
    (path / "view-00000.rows").write_bytes(bytes((path / "view-00000.rows").stat().st_size))


def _swap(path: Path) -> None:
    """The right rows of the wrong view."""
    shutil.copy(path / "view-00000.rows", path / "view-00001.rows")


def _header(path: Path) -> None:
    (path / "key.json").write_text((path / "key.json").read_text().replace('"seed": 1', '"seed": 2'))


def _unreadable(path: Path) -> None:
    (path / "key.json").write_bytes(b"\xff{")


DAMAGES = {_truncate: 8, _flip: 1, _zero: 8, _swap: 8, _header: 16, _unreadable: 16}  # batches that are asked for anew


def test_damage_is_found_and_mended(recipe: Recipe, cached: Session, asked: list[str]) -> None:
    whole = learn(recipe, cached, "whole")
    (path,) = folders(cached)
    sound = {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".lock"}
    for damage, batches in DAMAGES.items():
        damage(path)
        asked.clear()
        equal(whole, learn(recipe, cached, damage.__name__))
        assert len(asked) == batches, damage.__name__
        assert {name: (path / name).read_bytes() for name in sound} == sound, damage.__name__


def test_stopped_and_resumed_equals_uninterrupted(
    recipe: Recipe, cached: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    parted = recipe.model_copy(update={"optim": recipe.optim.model_copy(update={"accumulate": 3})})
    teach(parted, cached)
    original = loop.Trainer._step

    def step(self: loop.Trainer, batch: Any) -> float:
        rate = original(self, batch)
        if self.done == 5:
            signal.raise_signal(signal.SIGTERM)
        return rate

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_step", step)
        with pytest.raises(Stopped):
            learn(parted, cached, "parts", "asd")
    cached.execution = cached.execution.model_copy(update={"cache_teachers": False})  # it goes on as it began
    pieces = learn(parted, cached, "parts", "asd")
    cached.execution = CACHED
    equal(pieces, learn(parted, cached, "warm", "asd"))
    for path in folders(cached):
        shutil.rmtree(path)
    equal(pieces, learn(parted, cached, "cold", "asd"))


def test_fewer_views_are_a_protocol_of_their_own(tiny: Path, cached: Session, asked: list[str]) -> None:
    plain, few, many = (load_recipe(str(tiny), [f"data.augmentation_cycle={n}"] if n else []) for n in (0, 1, 2))
    whole = learn(plain, cached, "s")
    assert learn(many, cached, "s").path == whole.path  # as many as epochs: the protocol of always
    asked.clear()
    folder = learn(few, cached, "s")
    assert not asked  # view 0 of the same images
    assert folder.path.name == "kd-views1-s1"
    run, usual = folder.read()[0], whole.read()[0]
    assert run.hash != usual.hash
    assert run.teacher == usual.teacher  # its teacher is taught as ever
    cached.execution = cached.execution.model_copy(update={"cache_teachers": False})
    uncached = learn(few, cached, "plain")
    assert uncached.read()[0].hash == run.hash
    losses = [[row["loss"] for row in one.history() if "loss" in row] for one in (folder, uncached)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


def test_views_repeat_the_augmentation_and_not_the_order(recipe: Recipe, session: Session) -> None:
    images = session.sets(recipe.data).train
    loader = Loader(images, batch=256, seed=1, image_size=32, augment="crop", augmentation_cycle=2)
    always = Loader(images, batch=256, seed=1, image_size=32, augment="crop")
    first, second, third = (next(loader.epoch(number)) for number in range(3))
    assert not torch.equal(first.index, third.index)
    by_place = [batch.image[batch.index.argsort()] for batch in (first, second, third)]
    assert torch.equal(by_place[0], by_place[2])
    assert not torch.equal(by_place[0], by_place[1])
    assert torch.equal(third.index, next(always.epoch(2)).index)
    assert [Loader(images, batch=9, seed=1, image_size=32, augment="none").view(e) for e in range(3)] == [0, 0, 0]


def test_views_beyond_the_epochs_change_nothing() -> None:
    def student(recipe: Recipe) -> Run:
        roles, name = {"final": "final", "early": "15%"}, "t" * 16
        return distill_run(
            recipe, "data", method="asd", options={"tc": 0.8}, seed=1, roles=roles, teacher=name, early="15%", suite="s"
        )

    plain, few, many = (
        load_recipe("P2"),
        load_recipe("P2", ["data.augmentation_cycle=3"]),
        load_recipe("P2", ["data.augmentation_cycle=240"]),
    )
    assert teach_run(plain, "data").hash == teach_run(few, "data").hash
    assert student(plain).hash == student(many).hash
    assert student(few).hash != student(plain).hash
    assert Run.model_validate_json(student(few).model_dump_json()) == student(few)


def test_outputs_beyond_float16_are_not_kept(
    recipe: Recipe, cached: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    teach(recipe, cached)
    cached.quiet = False
    original = Teachers.features

    def features(self: Teachers, *inputs: Any) -> dict[str, Features]:
        outputs = original(self, *inputs)
        return {role: Features(one.logits, one.embedding + 1e5) for role, one in outputs.items()}

    monkeypatch.setattr(Teachers, "features", features)
    cold = learn(recipe, cached, "cold")
    text = capsys.readouterr().err
    assert text.count("does not fit into float16") == 1
    assert text.count("teacher cache: 28.7 kB at") == 1
    equal(cold, learn(recipe, cached, "warm"))
    cached.execution = cached.execution.model_copy(update={"cache_teachers": False})
    equal(cold, learn(recipe, cached, "plain"))


def test_what_it_costs_is_said_and_a_full_disk_refused(
    recipe: Recipe, cached: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    teach(recipe, cached)
    usage = shutil.disk_usage(cached.runs)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
        with pytest.raises(UserError, match=r"--cache-teachers needs .* has 1\.0 kB left; .*data\.views"):
            learn(recipe, cached, "s")
    assert not (cached.runs / "s" / "kd-s1").exists()
    run = distill(recipe, cached, method="asd", seed=1, suite="s")
    cache = TeacherCache(Teachers(run, cached.runs, 10, 32), ("final", "early"), {}, 256)
    cache.reserve(range(3))
    lines: list[str] = []
    cache.begin(lines.append)
    size = 3 * 256 * (4 + 2 * (10 + 16))
    assert [line.split(" at ")[0] for line in lines] == [f"teacher cache: {size / 1e3:.1f} kB"] * 2


def test_unasked_it_takes_no_more_than_a_quarter_of_the_disk(
    recipe: Recipe, cached: Session, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    teach(recipe, cached)
    cached.execution = cached.execution.model_copy(update={"cache_teachers": "auto"})
    usage, need = shutil.disk_usage(cached.runs), 2 * 256 * (4 + 2 * (10 + 16))  # of kd's teacher in two epochs
    for suite, free in (("narrow", 4 * need - 4), ("roomy", 4 * need)):
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda path, free=free: usage._replace(free=free))
            learn(recipe, cached, suite)
        saved = RunDir(cached.runs / suite / "kd-s1").read()[1]["cache_teachers"]
        assert saved is (suite == "roomy")
    asked.clear()
    learn(recipe, cached, "again")
    assert asked == []


def test_a_disk_that_fails_ends_the_keeping_and_not_the_run(
    recipe: Recipe, cached: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = learn(recipe, cached, "whole")
    (path,) = folders(cached)
    shutil.rmtree(path)
    path.write_text("a file where the folder should be")
    cached.quiet = False
    equal(whole, learn(recipe, cached, "faulty"))
    assert capsys.readouterr().err.count("is asked for each time") == 1


def test_rows_come_back_and_belong_to_their_place(tmp_path: Path) -> None:
    here = rows(above=tmp_path)
    values = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float16)
    index = np.array([7, 0, 49])
    assert here.read(2, index) is None
    here.write(2, index, values)
    again = rows(above=tmp_path)  # another process
    again.write(2, index, values)
    assert np.array_equal(again.read(2, index), values)
    assert np.array_equal(again.read(2, index[::-1]), values[::-1])
    assert again.read(2, np.array([7, 8])) is None
    assert again.read(1, index) is None
    other = rows(above=tmp_path, made={"seed": 2})
    assert other.path != here.path
    other.read(2, index)
    shutil.copy(here.path / "view-00002.rows", other.path)
    assert rows(above=tmp_path, made={"seed": 2}).read(2, index) is None


def test_every_flipped_bit_is_seen(tmp_path: Path) -> None:
    here, index = rows(above=tmp_path, images=1), np.array([0])
    here.write(0, index, np.ones((1, 5), np.float16))
    file = here.path / "view-00000.rows"
    sound = file.read_bytes()
    for bit in range(8 * len(sound)):
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(bytes(data))
        assert rows(above=tmp_path, images=1).read(0, index) is None, bit


def test_two_that_write_at_once_share_one_file(tmp_path: Path) -> None:
    one, two = rows(above=tmp_path), rows(above=tmp_path)
    values = np.arange(50 * 5).reshape(50, 5).astype(np.float16)
    for place in range(50):  # both cold at first, either finds what the other wrote
        writer, reader = (one, two) if place % 2 else (two, one)
        index = np.array([place])
        assert reader.read(0, index) is None
        writer.write(0, index, values[index])
        assert np.array_equal(reader.read(0, index), values[index])
    assert [path.name for path in one.path.glob("*.rows")] == ["view-00000.rows"]


def asd(here: Path, *words: str) -> Path:
    runner = [sys.executable, "-m", "antishortcut", "distill", str(here / "tiny.toml"), "--cache-teachers"]
    more = ["--device", "cpu", "--threads", "1", "--set", "data.options.count=265", "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*runner, *more, *words], cwd=here, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return here / str(json.loads(done.stdout)["run"])


def test_the_flag_reaches_the_run(tiny: Path, session: Session) -> None:
    words = ["distill", str(tiny), "--method", "kd", "--runs", str(session.runs), "--threads", "1", "--device", "cpu"]
    assert CliRunner().invoke(app, [*words, "--cache-teachers"], catch_exceptions=False).exit_code == 0
    assert RunDir(session.runs / "tiny" / "kd-s1").read()[1]["cache_teachers"] is True
    assert len(folders(session)) == 1


@pytest.mark.slow
def test_two_processes_each_keep_their_rows(tmp_path: Path, tiny: Path) -> None:
    cold, warm = (RunDir(asd(tmp_path, "--devices", "2", "--suite", suite)) for suite in ("cold", "warm"))
    equal(cold, warm)
    assert len(list(tmp_path.glob("runs/teachers/*/cache/*/view-*.rows"))) == 4
