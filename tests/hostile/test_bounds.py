"""Numbers and files beyond all reason: one line that says so, before memory is asked for."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from antishortcut.config import recipe as run
from antishortcut.config.recipe import TeacherSettings, load_recipe
from antishortcut.config.schema import Execution
from antishortcut.data import datasets as sources
from antishortcut.errors import UserError
from antishortcut.fileio import expanded
from antishortcut.methods import METHODS, build_method, method_options
from antishortcut.models import weights as checkpoints
from antishortcut.models.registry import build
from antishortcut.models.weights import load_weights
from antishortcut.teachers import imported as given
from antishortcut.teachers import snapshots
from antishortcut.types import Shape, Sizes

NOBODY = "~nobody-of-that-name"
SHAPE = Shape(8, ((4, 4, 4),) * 4)
SIZES = Sizes(classes=4, examples=16, student=SHAPE, teachers={"final": SHAPE, "early": SHAPE}, labels=torch.arange(4))


@contextmanager
def room(extra: int) -> Iterator[None]:
    """So many bytes of address space besides what the process has: what asks for more gets an error at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = has + extra if hard == resource.RLIM_INFINITY else min(has + extra, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def sparse(path: Path, size: int, start: bytes = b"") -> Path:
    """A file that says it is large and takes no room."""
    path.write_bytes(start)
    try:
        os.truncate(path, size)
    except OSError:
        pytest.skip("files of this disk cannot be so large")
    return path


# settings


@pytest.mark.parametrize(
    "override",
    [
        "data.image_size=1000000000", "student.size=1000000", "teacher.size=1000000", "optim.lr=1e39",
        "teacher.lr=1e39", "teacher.rewind_lr=1e39", "optim.weight_decay=1e39", "optim.clip=1e300",
        "optim.batch=1000000000000", "teacher.batch=1000000000000", "optim.warmup=1e300", "optim.mixup=1e300",
        "optim.cutmix=1e300", "teacher.epochs=1000000000000", "teacher.rewind_epochs=1000000000000",
        "data.train_limit=1000000000000", "data.test_limit=1000000000000", "data.augmentation_cycle=1000000000000",
        "task.samples=1000000000000", "task.aux=1e39", "student.mean=[1e39, 0, 0]", "student.std=[1e39, 1, 1]",
    ],
)  # fmt: skip
def test_a_setting_beyond_reason_is_one_line(override: str) -> None:
    with pytest.raises(UserError, match=r"should be less than or equal to"):
        load_recipe("cues", [override])


@pytest.mark.parametrize("name", ["threads", "workers", "devices", "nodes", "parts"])
@pytest.mark.parametrize("value", [10**10, 99_999_999_999])
def test_no_machine_has_so_many_threads_or_processes(name: str, value: int) -> None:
    with pytest.raises(ValidationError, match="less than or equal to"):
        Execution.model_validate({name: value})
    with pytest.raises(ValidationError, match="less than or equal to"):
        Execution(threads=1_000_000)


def test_larger_images_than_anybody_draws_are_refused() -> None:
    with pytest.raises(UserError, match="at most 4096"):
        sources.find("cues", None, image_size=10**9)


@pytest.mark.parametrize("key", ["count", "test_count"])
@pytest.mark.parametrize("value", [1e12, 1e300])
def test_more_images_than_anybody_draws_are_refused(key: str, value: float) -> None:
    with room(2**27), pytest.raises(UserError, match=f"data.options.{key} is a whole number from 1 to"):
        sources.find("cues", None, options={key: value})


@pytest.mark.parametrize(
    "name",
    [
        "wrn-40-1000000", "wrn-1204-64", "wrn-2000000002-1", "cnn-4-10000000", "cnn-1000000-100000", "cnn-1000000",
        "dense-1000000", "dense-4-10000000", "resnet20000000", "resnet2000000x4", f"cnn-{'9' * 5000}",
        f"wrn-{'9' * 5000}-1", f"resnet{'9' * 5000}",
    ],
)  # fmt: skip
def test_a_network_that_no_memory_holds_is_one_line(name: str) -> None:
    with room(2**30), pytest.raises(UserError, match=r"no network|are the most"):
        build(name, 10)


# settings of methods


@pytest.mark.parametrize("name", METHODS)
def test_numbers_of_methods_are_bounded(name: str) -> None:
    for key, default in method_options(name, {}).items():
        if type(default) is float:
            for value in (1e300, -1e300, 10**400, float("inf"), float("nan")):
                with pytest.raises(UserError, match=f"{key} is "):
                    method_options(name, {key: value})
        if type(default) is int:
            for value in (10**12, -(10**12), 10**30, 10**5000):
                with pytest.raises(UserError, match=f"{key} is .* must not be beyond"):
                    method_options(name, {key: value})


def test_a_width_of_nothing_is_one_line() -> None:
    with pytest.raises(UserError, match="width is 0; it must be at least 1"):
        build_method("crd", SIZES, {"width": 0})


@pytest.mark.parametrize("options", [{"nosuch": 1}, {"temperature": "x"}, {"temperature": 1e300}])
def test_settings_out_of_a_file_are_looked_at_as_well(options: dict[str, Any]) -> None:
    """`asd evaluate` makes a method of what run.json says."""
    with pytest.raises(UserError, match="method 'kd'"):
        build_method("kd", SIZES, options)
    with pytest.raises(UserError, match="unknown method"):
        build_method("nosuch", SIZES, {})


# files of weights


def test_a_checkpoint_inside_itself_is_one_line(tmp_path: Path) -> None:
    own: dict[str, Any] = {}
    own["state_dict"] = own
    torch.save(own, tmp_path / "own.pt")
    with pytest.raises(UserError, match="holds no state_dict"):
        checkpoints.read_weights(tmp_path / "own.pt")


def test_a_checkpoint_in_thousands_of_dicts_is_one_line() -> None:
    tree: dict[str, Any] = {"w": torch.ones(1)}
    for _ in range(100_000):
        tree = {"model": tree}
    with pytest.raises(UserError, match="holds no state_dict"):
        checkpoints.unpacked(tree, Path("x.pt"))
    few: dict[str, Any] = {"model": {"state_dict": {"module": {"w": torch.ones(1)}}}}
    assert list(checkpoints.unpacked(few, Path("x.pt"))) == ["w"]


def test_a_header_that_begins_like_a_page_is_one_of_safetensors(tmp_path: Path) -> None:
    """Its first byte is the lowest of a length: 0x3c is '<'."""
    path = tmp_path / "x.bin"
    named = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, separators=(",", ":")).encode()
    data = (0x3C).to_bytes(8, "little") + named.ljust(0x3C) + bytes(4)
    assert data[:1] == b"<"
    path.write_bytes(data)
    assert [tuple(value.shape) for value in checkpoints.read_weights(path).values()] == [(1,)]
    path.write_bytes(b"<script>{'a': 1}</script>")
    with pytest.raises(UserError, match="holds no plain tensors"):
        checkpoints.read_weights(path)


@pytest.mark.parametrize("kind", [torch.complex64, torch.bool, torch.int8, torch.int64])
def test_weights_that_are_no_floats_are_refused(kind: torch.dtype, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
    state = net.state_dict()
    path = tmp_path / "x.pt"
    torch.save(state | {"0.weight": state["0.weight"].to(kind)}, path)
    with pytest.raises(UserError, match=rf"1 of another type \(0\.weight {str(kind)[6:]} for float32\)"):
        load_weights(net, path)
    torch.save({key: value.half() if value.is_floating_point() else value for key, value in state.items()}, path)
    load_weights(net, path)


# states of a teacher from elsewhere


def states(folder: Path, **changes: Any) -> TeacherSettings:
    """A folder of one state, with what its manifest says changed."""
    saved = snapshots.Snapshots(folder, total_steps=1)
    saved(nn.Linear(2, 2), 1)
    manifest = folder / "manifest.json"
    result = json.loads(manifest.read_text())
    result["states"][-1] |= changes
    manifest.write_text(json.dumps(result))
    return TeacherSettings(name="cnn-8", final=str(folder))


@pytest.mark.parametrize(
    "changes",
    [
        {"step": float("inf")}, {"step": 0}, {"step": -1}, {"step": 1.5}, {"step": True}, {"step": 10**400},
        {"fraction": 10**400}, {"fraction": -1}, {"fraction": float("nan")}, {"fraction": None}, {"file": "../x"},
        {"labels": []}, {"sha256": 1},
    ],
)  # fmt: skip
def test_states_that_say_what_cannot_be_are_one_line(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"manifest\.json: not a list of states"):
        given.imported_states(states(tmp_path, **changes))


def test_a_name_that_is_no_name_is_one_line() -> None:
    final = "A" * 5000
    state = given.imported_states(TeacherSettings(name="cnn-8", final=final))[-1]
    assert given._digest(state.file) == ""
    with pytest.raises(UserError, match="no weights at"):
        checkpoints.read_weights(state.file)
    with pytest.raises(UserError, match="cannot be read"):
        run._digest(final)


# homes


def test_the_home_of_nobody_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"there is no home folder {NOBODY}; write the whole path"):
        expanded(f"{NOBODY}/x")
    assert expanded("~/x") == Path.home() / "x"
    with pytest.raises(UserError, match="no home folder"):
        run._digest(f"{NOBODY}/x.pt")
    with pytest.raises(UserError, match="no home folder"):
        given.imported_states(TeacherSettings(name="cnn-8", final=f"{NOBODY}/x.pt"))
    for kind in ("folder", "groups"):
        with pytest.raises(UserError, match="no home folder"):
            sources.find(f"{kind}:{NOBODY}/x", tmp_path)
