"""Cached teacher outputs: the same run with a cold or a warm cache, close to the uncached one; damage is repaired."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from antishortcut.config.recipe import Recipe, load_recipe, with_settings
from antishortcut.data import Loader
from antishortcut.errors import UserError
from antishortcut.models import Network
from antishortcut.run_dir import RunDir
from antishortcut.teachers.cache import CachedOutputs, Output, TeacherCache
from antishortcut.teachers.trajectory import Teachers
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.types import Features
from tests.conftest import CPU, assert_same_run, stop_after
from tests.processes import asd

CACHED = CPU.model_copy(update={"cache_teachers": True})
ROW = 4 + 2 * (10 + 16)  # bytes: checksum, logits and embedding


@pytest.fixture
def recipe(tiny: Path) -> Recipe:
    """Four steps an epoch, two epochs."""
    return load_recipe(str(tiny), ["data.options.count=128", "data.options.test_count=50"])


@pytest.fixture
def cached(session: Session) -> Session:
    session.execution = CACHED
    return session


def _is_teacher(module: nn.Module, inputs: tuple[Any, ...]) -> bool:
    """A frozen network on a training batch of 32."""
    return isinstance(module, Network) and not module.training and len(inputs[0]) == 32


@pytest.fixture
def forwards() -> Iterator[list[int]]:
    """An entry for every batch that a teacher computes."""
    calls: list[int] = []

    def count(module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        if _is_teacher(module, inputs):
            calls.append(len(inputs[0]))

    with register_module_forward_hook(count):
        yield calls


def student(recipe: Recipe, session: Session, suite: str, method: str = "kd") -> RunDir:
    return RunDir(distill(recipe, session, method=method, seed=1, suite=suite).folder(session.runs))


def folders(session: Session) -> list[Path]:
    return sorted(path.parent for path in session.runs.glob("teachers/*/cache/*/key.json"))


def losses(run: RunDir) -> list[float]:
    return [row["loss"] for row in run.history() if "loss" in row]


def test_cold_and_warm_cache_give_the_same_run_close_to_the_uncached_one(
    recipe: Recipe, session: Session, forwards: list[int]
) -> None:
    plain = student(recipe, session, "plain", "asd")
    session.execution = CACHED
    forwards.clear()
    cold = student(recipe, session, "cold", "asd")
    assert len(forwards) == 16  # eight steps, two teachers
    forwards.clear()
    warm = student(recipe, session, "warm", "asd")
    assert not forwards
    assert_same_run(cold, warm)
    assert cold.read()[0].hash == plain.read()[0].hash
    assert cold.read()[1]["cache_teachers"] is True
    assert losses(plain) != losses(cold)  # rounded to float16
    assert losses(plain) == pytest.approx(losses(cold), rel=2e-3)


def test_methods_and_students_share_what_they_can(recipe: Recipe, cached: Session, forwards: list[int]) -> None:
    student(recipe, cached, "s", "kd")
    assert len(folders(cached)) == 1
    forwards.clear()
    student(recipe, cached, "s", "asd")
    assert len(forwards) == 8  # the early teacher only
    assert len(folders(cached)) == 2
    forwards.clear()
    student(recipe, cached, "s", "rkd")
    student(with_settings(recipe, ["student.name=cnn-3-8"]), cached, "wider", "kd")
    student(with_settings(recipe, ["epochs=1", "teacher.epochs=2"]), cached, "shorter", "kd")
    assert not forwards


@pytest.mark.parametrize(
    ("method", "maps"),
    [
        ("contrast+hint", {"stages 2"}),  # of T_final alone: T_early's are not read
        ("at", {"stages 1", "stages 2", "stages 3"}),  # all but the stem
        ("ab", {"preact 1", "preact 2", "preact 3"}),
        ("simkd", {"last 0"}),
    ],
)
def test_the_maps_that_a_method_reads_are_cached(
    recipe: Recipe, cached: Session, forwards: list[int], method: str, maps: set[str]
) -> None:
    cold = student(recipe, cached, "cold", method)
    forwards.clear()
    warm = student(recipe, cached, "warm", method)
    assert not forwards
    assert_same_run(cold, warm)
    keys = [json.loads((folder / "key.json").read_text()) for folder in folders(cached)]
    assert {key["map"] for key in keys if "map" in key} == maps
    assert len(keys) == len(maps) + (2 if method == "contrast+hint" else 1)


def test_a_run_with_cached_maps_is_close_to_the_uncached_one_and_resumes_to_the_same_bits(
    recipe: Recipe, session: Session, forwards: list[int]
) -> None:
    plain = student(recipe, session, "plain", "contrast+hint")
    session.execution = CACHED
    whole = student(recipe, session, "whole", "contrast+hint")
    assert losses(plain) == pytest.approx(losses(whole), rel=2e-3)
    for folder in folders(session):
        shutil.rmtree(folder)
    with stop_after(6):
        student(recipe, session, "parts", "contrast+hint")
    forwards.clear()
    assert_same_run(whole, student(recipe, session, "parts", "contrast+hint"))
    assert len(forwards) == 2 * 2  # the two steps that are left


class ReadsAll:
    """A method from outside: it does not say which maps it reads."""

    roles: tuple[str, ...] = ("final",)
    taps: tuple[str, ...] = ("stages", "preact", "last")
    task_weight = 1.0

    def terms(self, *features: object) -> dict[str, torch.Tensor]:
        raise NotImplementedError


def test_cached_maps_are_the_computed_ones_rounded_to_float16(
    recipe: Recipe, session: Session, forwards: list[int]
) -> None:
    run = student(recipe, session, "s").read()[0]
    data = session.sets(recipe.data)
    teachers = Teachers(run, session.runs, len(data.classes), data.image_size)
    batch = next(Loader(data.train, batch=32, seed=1, image_size=32, augment="crop").epoch(0))
    whole = teachers.features(["final"], batch.image, ReadsAll.taps)["final"]
    flip = Path("nothing yet")
    for computed in (1, 0, 1):  # cold, warm, with a flipped bit in a row of a map
        cache = TeacherCache(teachers, ReadsAll(), {}, len(data.train))
        cache.begin(lambda text: None)
        forwards.clear()
        (found,) = cache.features(batch, 0).values()
        assert len(forwards) == computed
        for name in ("logits", "embedding", "last", "stages", "preact"):
            one, two = getattr(found, name), getattr(whole, name)
            pairs = zip(one, two, strict=True) if isinstance(one, tuple) else [(one, two)]
            assert all(torch.equal(a, b.half().float()) for a, b in pairs), name
        if not computed:
            (flip,) = cache.stores["final"][Output("stages", 0)].path.glob("*.rows")
            values = bytearray(flip.read_bytes())
            at = values.index(bytes(values).strip(b"\0")[:1]) + 8  # inside a row that was written
            values[at] ^= 4
            flip.write_bytes(values)


DAMAGES: list[tuple[str, Callable[[bytes], bytes], int]] = [  # and how many batches are computed again
    ("view-00001.rows", lambda data: data[:-100], 4),
    ("view-00000.rows", lambda data: data[:3000] + bytes([data[3000] ^ 4]) + data[3001:], 1),
    ("view-00000.rows", lambda data: bytes(len(data)), 4),
    ("key.json", lambda data: data.replace(b'"seed": 1', b'"seed": 2'), 8),
    ("key.json", lambda data: b"\xff{", 8),
]


def test_damage_is_noticed_and_repaired(recipe: Recipe, cached: Session, forwards: list[int]) -> None:
    whole = student(recipe, cached, "whole")
    (path,) = folders(cached)
    intact = {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".lock"}
    for number, (name, damage, batches) in enumerate(DAMAGES):
        (path / name).unlink()
        (path / name).write_bytes(damage(intact[name]))
        forwards.clear()
        assert_same_run(whole, student(recipe, cached, str(number)))
        assert len(forwards) == batches, number
        assert {name: (path / name).read_bytes() for name in intact} == intact, number


def test_fewer_augmentations_are_a_protocol_of_their_own(recipe: Recipe, cached: Session, forwards: list[int]) -> None:
    whole = student(recipe, cached, "s")
    many, few = (with_settings(recipe, [f"data.augmentation_cycle={n}"]) for n in (2, 1))
    assert student(many, cached, "s").path == whole.path  # as many as epochs
    forwards.clear()
    folder = student(few, cached, "s")
    assert not forwards  # the augmentation of epoch 0 is there
    assert folder.path.name == "kd-cycle1-s1"
    run, usual = folder.read()[0], whole.read()[0]
    assert (run.hash != usual.hash, run.teacher == usual.teacher) == (True, True)
    cached.execution = CPU
    assert losses(folder) == pytest.approx(losses(student(few, cached, "plain")), rel=2e-3)


def test_a_cycle_repeats_the_augmentation_and_not_the_order(recipe: Recipe, session: Session) -> None:
    images = session.sets(recipe.data).train
    loader = Loader(images, batch=128, seed=1, image_size=32, augment="crop", augmentation_cycle=2)
    always = Loader(images, batch=128, seed=1, image_size=32, augment="crop")
    first, second, third = (next(loader.epoch(number)) for number in range(3))
    assert not torch.equal(first.index, third.index)
    in_order = [batch.image[batch.index.argsort()] for batch in (first, second, third)]
    assert torch.equal(in_order[0], in_order[2])
    assert not torch.equal(in_order[0], in_order[1])
    assert torch.equal(third.index, next(always.epoch(2)).index)


def test_outputs_beyond_float16_are_not_cached(
    recipe: Recipe, cached: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    def enlarge(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        return Features(output.logits, output.embedding + 1e5, output.stages) if _is_teacher(module, inputs) else None

    teach(recipe, cached)
    cached.quiet = False
    with register_module_forward_hook(enlarge):
        cold = student(recipe, cached, "cold")
        message = " ".join(capsys.readouterr().err.split())
        assert message.count("not fit into float16") == 1
        assert message.count(f"teacher cache: {2 * 128 * ROW / 1e3:.1f} kB") == 1  # its size is printed
        assert_same_run(cold, student(recipe, cached, "warm"))
        cached.execution = CPU
        assert_same_run(cold, student(recipe, cached, "plain"))


def test_auto_takes_at_most_a_quarter_of_the_disk(
    recipe: Recipe, cached: Session, monkeypatch: pytest.MonkeyPatch, forwards: list[int]
) -> None:
    teach(recipe, cached)
    usage, free = shutil.disk_usage(cached.runs), 1000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))
    with pytest.raises(UserError, match=r"--cache-teachers needs .* kB.*1\.0 kB.*data\.augmentation_cycle"):
        student(recipe, cached, "full")
    assert not (cached.runs / "full" / "kd-s1").exists()
    cached.execution = CPU.model_copy(update={"cache_teachers": "auto"})
    need = 2 * 128 * ROW  # two epochs of the final teacher
    for suite, free in (("narrow", 4 * need - 4), ("roomy", 4 * need)):  # noqa: B007, read above
        assert student(recipe, cached, suite).read()[1]["cache_teachers"] is (suite == "roomy")
    forwards.clear()
    student(recipe, cached, "again")
    assert not forwards
    free = 5 * need  # what is cached there already counts as free, and as taken
    longer = with_settings(recipe, ["epochs=3", "teacher.epochs=2"])  # one more view, 1.5 needs in all
    assert student(longer, cached, "longer").read()[1]["cache_teachers"] is True
    assert student(recipe, cached, "other", "asd").read()[1]["cache_teachers"] is False  # another state, 2.5 needs


def test_maps_that_do_not_fit_are_said_once(
    recipe: Recipe, cached: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = student(recipe, cached, "kd")
    usage = shutil.disk_usage(cached.runs)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=8 * 2 * 128 * ROW))
    cached.execution, cached.quiet = CPU.model_copy(update={"cache_teachers": "auto"}), False
    assert student(recipe, cached, "maps", "at").read()[1]["cache_teachers"] is False
    assert " ".join(capsys.readouterr().err.split()).count("teacher cache: off, it would fill much of the disk") == 1
    assert_same_run(plain, student(recipe, cached, "logits"))  # logits and embedding fit


def test_a_disk_that_fails_ends_the_caching_and_not_the_run(
    recipe: Recipe, cached: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = student(recipe, cached, "whole")
    (path,) = folders(cached)
    shutil.rmtree(path)
    path.write_text("a file where the folder should be")
    cached.quiet = False
    assert_same_run(whole, student(recipe, cached, "faulty"))
    assert capsys.readouterr().err.count("each time") == 1


def cache_file(folder: Path, images: int = 50, seed: int = 1) -> CachedOutputs:
    """The rows of some images with five values each."""
    rows = CachedOutputs(folder, {"seed": seed}, images, 5)
    rows.begin()
    return rows


def test_rows_are_read_back_only_from_their_place(tmp_path: Path) -> None:
    here, index = cache_file(tmp_path), np.array([7, 0, 49])
    values = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float16)
    assert here.read(2, index) is None
    here.write(2, index, values)
    again = cache_file(tmp_path)  # another process
    assert np.array_equal(again.read(2, index[::-1]), values[::-1])  # type: ignore[arg-type]
    assert again.read(2, np.array([7, 8])) is None
    assert again.read(1, index) is None
    other = cache_file(tmp_path, seed=2)
    assert other.path != here.path
    other.read(2, index)
    shutil.copy(here.path / "view-00002.rows", other.path)
    assert cache_file(tmp_path, seed=2).read(2, index) is None


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    here, index = cache_file(tmp_path, images=1), np.array([0])
    here.write(0, index, np.ones((1, 5), np.float16))
    file = here.path / "view-00000.rows"
    intact = file.read_bytes()
    for bit in range(8 * len(intact)):
        data = bytearray(intact)
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(bytes(data))
        assert cache_file(tmp_path, images=1).read(0, index) is None, bit


def test_two_writers_share_one_file(tmp_path: Path) -> None:
    one, two = cache_file(tmp_path), cache_file(tmp_path)
    values = np.arange(50 * 5).reshape(50, 5).astype(np.float16)
    for place in range(50):
        writer, reader = (one, two) if place % 2 else (two, one)
        index = np.array([place])
        assert reader.read(0, index) is None
        writer.write(0, index, values[index])
        assert np.array_equal(reader.read(0, index), values[index])  # type: ignore[arg-type]
    assert [path.name for path in one.path.glob("*.rows")] == ["view-00000.rows"]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "files"), [("asd", 4), ("contrast+hint", 6), ("reviewkd", 8)])
def test_two_processes_cache_their_own_rows(tmp_path: Path, tiny: Path, method: str, files: int) -> None:
    words = ["distill", str(tiny), "--method", method, "--cache-teachers", "--set", "data.options.count=265"]
    words += ["--devices", "2", "--suite"]
    texts = [asd(tmp_path, *words, suite) for suite in ("cold", "warm")]
    assert_same_run(*(RunDir(tmp_path / str(json.loads(text)["run"])) for text in texts))
    assert len(list(tmp_path.glob("runs/teachers/*/cache/*/view-*.rows"))) == files
