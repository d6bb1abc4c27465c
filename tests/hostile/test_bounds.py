"""Settings and files far outside any sensible range: one line, before memory is allocated."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from torch import nn

from antishortcut.config import recipe
from antishortcut.config.recipe import TeacherSettings, load_recipe
from antishortcut.config.schema import Execution
from antishortcut.data import datasets
from antishortcut.errors import UserError
from antishortcut.fileio import expanded
from antishortcut.methods import METHODS, method_options
from antishortcut.models import weights
from antishortcut.teachers import imported, snapshots

NOBODY = "~nobody-of-that-name"


@contextmanager
def memory_limit(extra: int) -> Iterator[None]:
    """So many bytes of address space besides what the process has; asking for more is an error at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = has + extra if hard == resource.RLIM_INFINITY else min(has + extra, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize(
    "override",
    [
        "data.image_size=1000000000", "student.size=1000000", "optim.lr=1e39", "teacher.lr=1e39",
        "teacher.rewind_lr=1e39", "optim.weight_decay=1e39", "optim.clip=1e300", "optim.batch=1000000000000",
        "optim.warmup=1e300", "optim.mixup=1e300", "teacher.epochs=1000000000000", "data.train_limit=1000000000000",
        "data.augmentation_cycle=1000000000000", "task.samples=1000000000000", "task.aux=1e39",
        "student.mean=[1e39, 0, 0]", "student.std=[1e39, 1, 1]",
    ],
)  # fmt: skip
def test_settings_are_bounded(override: str) -> None:
    with pytest.raises(UserError, match=r"should be less than or equal to"):
        load_recipe("cues", [override])


@pytest.mark.parametrize(
    "override", ["epochs=true", "optim.batch=true", "optim.lr=false", "teacher.epochs=true", "data.options.rho=true"]
)
def test_true_is_no_number(override: str) -> None:
    key, _, value = override.partition("=")
    with pytest.raises(UserError, match=rf"{key}: wants a number, not {value}$"):
        load_recipe("cues", [override])
    load_recipe("cues", ["student.pretrained=true", "optim.nesterov=false", "optim.batch=1e2"])


@pytest.mark.parametrize("name", ["threads", "workers", "devices", "nodes", "micro_batches"])
def test_processes_and_threads_are_bounded(name: str) -> None:
    with pytest.raises(ValidationError, match="less than or equal to"):
        Execution.model_validate({name: 10**10})


@pytest.mark.parametrize("options", [{"count": 1e12}, {"test_count": 1e300}])
def test_generated_images_are_bounded(options: dict[str, float]) -> None:
    with memory_limit(2**27), pytest.raises(UserError, match=r"data.options.\w+ is a whole number from 1 to"):
        datasets.find("cues", None, options=options)
    with pytest.raises(UserError, match="at most 4096"):
        datasets.find("cues", None, image_size=10**9)


@pytest.mark.parametrize("name", METHODS)
def test_options_of_methods_are_bounded(name: str) -> None:
    for key, default in method_options(name, {}).items():
        if type(default) is float:
            for value in (1e300, -1e300, 10**400, float("inf"), float("nan")):
                with pytest.raises(UserError, match=f"{key} is "):
                    method_options(name, {key: value})
        if type(default) is int:
            for value in (10**12, -(10**12), 10**5000):
                with pytest.raises(UserError, match=f"{key} is .* must not be beyond"):
                    method_options(name, {key: value})


@pytest.mark.parametrize(
    "changes",
    [{"step": 0}, {"step": 1.5}, {"step": True}, {"fraction": -1}, {"fraction": None}, {"file": "../x"},
     {"labels": []}, {"sha256": 1}],
)  # fmt: skip
def test_a_wrong_manifest_of_snapshots_is_one_line(changes: dict[str, Any], tmp_path: Path) -> None:
    snapshots.Snapshots(tmp_path, total_steps=1)(nn.Linear(2, 2), 1)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["states"][-1] |= changes
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"manifest\.json: not a manifest"):
        imported.imported_states(TeacherSettings(name="cnn-8", final=str(tmp_path)))


def test_paths_that_cannot_exist_are_one_line(tmp_path: Path) -> None:
    final = "A" * 5000
    state = imported.imported_states(TeacherSettings(name="cnn-8", final=final))[-1]
    with pytest.raises(UserError, match="no weights at"):
        weights.read_weights(Path(str(state.file)))
    with pytest.raises(UserError, match="cannot be read"):
        recipe._digest(final)
    assert expanded("~/x") == Path.home() / "x"
    for use in (
        lambda: expanded(f"{NOBODY}/x"),
        lambda: recipe._digest(f"{NOBODY}/x.pt"),
        lambda: imported.imported_states(TeacherSettings(name="cnn-8", final=f"{NOBODY}/x.pt")),
        lambda: datasets.find(f"folder:{NOBODY}/x", tmp_path),
    ):
        with pytest.raises(UserError, match=f"there is no home folder {NOBODY}; write the whole path"):
            use()
