"""What a step takes, in how many parts it fits, and what is said when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import antishortcut.train as loop
from antishortcut import machine
from antishortcut.errors import UserError
from antishortcut.folder import Folder
from antishortcut.memory import WIDER, is_shortage, parts_for, reckoned, saved_bytes, tried
from antishortcut.report.settings import ROUNDING
from antishortcut.run import Execution, Recipe
from antishortcut.workflow import Workshop, distill


def test_saved_tensors_are_counted_once() -> None:
    x = torch.randn(10, dtype=torch.float64, requires_grad=True)  # 80 bytes
    assert saved_bytes(lambda: x.exp().exp(), []) == (160, 80)  # the result of each
    assert saved_bytes(lambda: (y := x.exp(), y * y), []) == (80, 80)  # the same tensor for both
    assert saved_bytes(lambda: x * x, []) == (80, 80)
    assert saved_bytes(lambda: x * x, [x]) == (0, 0)


def test_the_need_of_a_linear_layer_by_hand() -> None:
    network = nn.Linear(100, 10, bias=False)
    image = torch.randn(64, 100)

    def loss(step: nn.Module, images: int) -> Tensor:
        return step(image[:images].clone()).sum()  # type: ignore[no-any-return]

    need = reckoned(network, loss, 64, 8)
    # an image: its 400 bytes, kept for the weights' gradient, and two more of the largest kept; a parameter: 8 bytes
    assert need.image == pytest.approx(400 + 2 * 400)
    assert need.of(64) == pytest.approx(WIDER * (1000 * 8 + 64 * 1200))


def test_parts_double_until_it_fits() -> None:
    assert parts_for(16, lambda parts: 64 / parts <= 20) == 4
    assert parts_for(16, lambda parts: True) == 1
    assert parts_for(6, lambda parts: parts == 6) == 6
    assert parts_for(16, lambda parts: False) is None


class Narrow(nn.Module):
    """A network on a device with room for so many images."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.layer, self.norm = room, nn.Linear(4, 2), nn.BatchNorm1d(2)

    def forward(self, image: Tensor) -> Tensor:
        if len(image) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.norm(self.layer(image))  # type: ignore[no-any-return]


def test_a_trial_leaves_no_trace_and_takes_nothing_but_a_shortage_for_one() -> None:
    network = Narrow(5)
    before = {name: value.clone() for name, value in network.state_dict().items()}

    def loss(step: nn.Module, images: int) -> Tensor:
        return step(torch.ones(images, 4)).square().sum()  # type: ignore[no-any-return]

    def fits(parts: int) -> bool:
        return tried(network, loss, -(-32 // parts), 12, torch.device("cpu"))

    assert parts_for(16, fits) == 8  # 32 images by 4
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        tried(network, lambda step, n: step(torch.ones(n, 3)).sum(), 2, 12, torch.device("cpu"))
    assert is_shortage(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"))
    assert not is_shortage(ValueError("out of memory"))


def outcome(run: Any, shop: Workshop) -> tuple[dict[str, Tensor], list[dict[str, Any]], dict[str, Any]]:
    folder = Folder(run.folder(shop.runs))
    return load_file(folder.student), folder.history(), folder.read()[1]


def test_what_does_not_fit_is_computed_in_parts_and_says_so(
    recipe: Recipe, shop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    how = {"accelerator": "cpu", "threads": 1}
    found = []
    for name, more in (
        ("auto", {"parts": "auto", "memory": 0.0006}),
        ("four", {"parts": 4}),
        ("roomy", {"parts": "auto"}),
    ):
        shop.execution, shop.quiet = Execution.model_validate(how | more), name != "auto"
        found.append(outcome(distill(recipe, shop, method="ce", seed=1, suite=name), shop))
    (weights, rows, kept), (others, other_rows, other), (_, _, plenty) = found
    assert (kept["parts"], other["parts"], plenty["parts"]) == (4, 4, 1)
    assert all(torch.equal(weights[key], others[key]) for key in weights)  # reckoning touches nothing
    assert rows == other_rows
    told = " ".join(capsys.readouterr().err.split())
    assert "a batch of 32 takes about 0.00" in told
    assert "and there are 0.0006 GB: each is computed in 4 parts" in told
    assert "parts" in ROUNDING  # a report says where runs differ in it


def test_parts_multiply_those_of_the_recipe(recipe: Recipe, shop: Workshop) -> None:
    split = recipe.model_copy(update={"optim": recipe.optim.model_copy(update={"accumulate": 2}), "epochs": 1})
    whole = recipe.model_copy(update={"epochs": 1})
    found = []
    for name, each, parts in (("a", split, 2), ("b", whole, 4)):
        shop.execution = Execution(accelerator="cpu", threads=1, parts=parts)
        found.append(outcome(distill(each, shop, method="ce", seed=1, suite=name), shop)[1])
    assert found[0] == found[1]


def test_when_nothing_fits_that_is_said_and_nothing_left(recipe: Recipe, shop: Workshop) -> None:
    shop.execution = Execution(accelerator="cpu", threads=1, parts="auto", memory=1e-6)
    with pytest.raises(UserError, match="not even 2 images at a time fit"):
        distill(recipe, shop, method="ce", seed=1, suite="s")
    assert not (shop.runs / "s" / "ce-s1").exists()


@pytest.mark.parametrize("save_every", [0.0, 1e9])
def test_running_out_of_memory_is_one_line(
    recipe: Recipe, shop: Workshop, monkeypatch: pytest.MonkeyPatch, save_every: float
) -> None:
    shop.execution = Execution(accelerator="cpu", threads=1, save_every=save_every)
    original = loop.Training._step

    def step(self: loop.Training, batch: Any) -> float:
        if self.done == 4:
            torch.empty(2**60, dtype=torch.uint8)  # the allocator's own words
        return original(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Training, "_step", step)
        with pytest.raises(UserError) as caught:
            distill(recipe, shop, method="ce", seed=1, suite="s")
    told, folder = str(caught.value), shop.runs / "s" / "ce-s1"
    assert told.startswith("out of memory in step 5; ")
    assert "--parts auto" in told
    assert "\n" not in told
    if save_every:  # nothing is lost, so it may begin with other settings
        assert not folder.exists()
        return
    assert "the state after step 4 is kept" in told
    parts = outcome(distill(recipe, shop, method="ce", seed=1, suite="s"), shop)
    whole = outcome(distill(recipe, shop, method="ce", seed=1, suite="whole"), shop)
    assert all(torch.equal(parts[0][key], whole[0][key]) for key in whole[0])
    assert parts[1] == whole[1]


def test_free_memory_is_the_least_of_machine_and_container(tmp_path: Path) -> None:
    assert machine.free_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   50 kB\n")
    assert machine.free_bytes(tmp_path) == 50 * 1024
    group = tmp_path / "sys/fs/cgroup"
    (group / "memory").mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("30000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 2000\n")
    assert machine.free_bytes(tmp_path) == 50 * 1024
    (group / "memory.max").write_text("40000\n")
    assert machine.free_bytes(tmp_path) == 12_000
    for name, text in (("limit_in_bytes", "9000"), ("usage_in_bytes", "5000"), ("stat", "total_inactive_file 7")):
        (group / "memory" / f"memory.{name}").write_text(text)
    assert machine.free_bytes(tmp_path) == 4_007
