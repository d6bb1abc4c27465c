"""A network that only answers: folding changes nothing, less precision is compared first, runs write the form down."""
# B batch, C classes, D embedding

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from antishortcut.config.recipe import Execution, Recipe
from antishortcut.errors import UserError
from antishortcut.models import Network, build
from antishortcut.run_dir import RunDir
from antishortcut.teachers import frozen
from antishortcut.teachers.frozen import (
    Agreement,
    FrozenModel,
    InferenceForm,
    agreement,
    compile_all,
    compile_if_faster,
    fastest_precision,
    fold,
    freeze_all,
)
from antishortcut.training import trainer as loop
from antishortcut.training.pipeline import Session, distill
from antishortcut.training.signals import Stopped
from antishortcut.types import Features

# norms left after folding: those that stand before their convolution, or behind one that others read too
LEFT = {
    "resnet20": 0,
    "resnet8x4": 0,
    "wrn-16-1": 7,
    "vgg8": 0,
    "mobilenet-v2": 0,
    "shufflenet-v2-x0.5": 0,
    "cnn-4-16": 0,
}


def trained(name: str, side: int = 32) -> Network:
    """With batch statistics that are not those of a new network, or folding would be trivial."""
    torch.manual_seed(0)
    network = build(name, 10, image_size=side)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    return network.eval()


def norms(network: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())


@pytest.mark.parametrize("name", [*LEFT, "dense-4", "timm:resnet18", "torchvision:mobilenet_v2"])
@torch.no_grad()
def test_folded_is_unfolded(name: str) -> None:
    network = trained(name)
    other = fold(network)
    assert norms(other) == LEFT.get(name, 0)
    image = torch.rand(3, 3, 32, 32)
    outputs, truth = other(image), network(image)
    for a, b in (
        (outputs.logits, truth.logits),
        (outputs.embedding, truth.embedding),
        *zip(outputs.stages, truth.stages, strict=True),
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.std() + 1))


class Forked(nn.Module):
    """The first convolution is read by its norm and by another layer; the second by its norm alone."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.first = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.two, self.second = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Features:
        raw = self.one(x)
        x = self.second(self.two(self.first(raw).relu())).relu() + raw[:, :, 1:-1, 1:-1]
        embedding = x.mean(dim=(2, 3))
        return Features(self.head(embedding), embedding)


def test_what_others_read_is_not_folded() -> None:
    torch.manual_seed(0)
    network = Network(Forked())
    network.train()
    for _ in range(5):
        network(torch.rand(8, 3, 32, 32))
    other = fold(network.eval())
    assert isinstance(other.body, Forked)
    assert isinstance(other.body.first, nn.BatchNorm2d)
    assert isinstance(other.body.second, nn.Identity)
    assert norms(network) == 2  # the network itself stays as it was


def test_a_reduced_precision_answers_alike() -> None:
    network = trained("resnet20")
    built = freeze_all({"final": network}, "bfloat16", [torch.rand(64, 3, 32, 32) for _ in range(4)], pytest.fail)
    image = torch.rand(8, 3, 32, 32)
    outputs, truth = built["final"](image), network(image)
    assert outputs.logits.dtype == outputs.embedding.dtype == torch.float32
    assert not torch.equal(outputs.embedding, truth.embedding)  # it was computed otherwise
    assert torch.nn.functional.cosine_similarity(outputs.embedding, truth.embedding).min() > 0.999
    assert not outputs.logits.requires_grad


class Delicate(nn.Module):
    """What it says hangs on digits that bfloat16 has not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 16, 3, stride=4), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Features:
        embedding = (self.conv(x) + 100.0).mean(dim=(2, 3)) - 100.0
        return Features(self.head(embedding * 10), embedding)


def test_other_answers_are_refused_or_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    networks = {"final": trained("cnn-4-16"), "early": Network(Delicate()).eval()}
    images = [torch.rand(64, 3, 32, 32)]
    with pytest.raises(UserError, match="bfloat16: the early teacher gives other answers than in float32: cosine"):
        freeze_all(networks, "bfloat16", images, pytest.fail)
    monkeypatch.setenv("ANTISHORTCUT_NATIVE", "bfloat16")
    message: list[str] = []
    built = freeze_all(networks, "auto", images, message.append)
    assert {one.form for one in built.values()} == {InferenceForm("float32")}
    assert len(message) == 1
    assert "stay in float32" in message[0]
    monkeypatch.setenv("ANTISHORTCUT_NATIVE", "int4")
    with pytest.raises(UserError, match="one of float32, bfloat16, float16"):
        fastest_precision(torch.device("cpu"))


def test_what_counts_as_alike() -> None:
    assert Agreement(0.999, 0.995).enough
    assert not Agreement(0.9989, 1.0).enough
    assert not Agreement(1.0, 0.994).enough
    network = trained("dense-4")
    result = agreement(
        network, FrozenModel(network, InferenceForm("float32")), [torch.rand(2, 3, 32, 32)]
    )  # rows of maps
    assert result.cosine == pytest.approx(1, abs=1e-4)
    assert result.argmax == 1


def test_short_runs_are_not_compiled() -> None:
    network = trained("cnn-4-16")
    built = freeze_all({"final": network}, "float32", [], pytest.fail)
    assert compile_if_faster(built, torch.rand(4, 3, 32, 32), {}, 100, pytest.fail) is built


def test_a_compiled_form_is_of_one_shape_and_its_answers_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[int] = []

    def compile(network: nn.Module, **options: object) -> Callable[[Tensor], Features]:
        def answer(image: Tensor) -> Features:
            requested.append(len(image))
            outputs: Features = network(image)
            return Features(wrong * outputs.logits, outputs.embedding)

        return answer

    monkeypatch.setattr(torch, "compile", compile)
    network = trained("cnn-4-16")
    built, image, wrong = freeze_all({"final": network}, "float32", [], pytest.fail), torch.rand(4, 3, 32, 32), 1
    both = compile_all(built, image, {"final": network})["final"]
    assert both.form == InferenceForm("float32", compiled=True)
    requested.clear()
    for count in (2, 4, 3, 4):  # whichever comes first, the others go the other way
        both(torch.rand(count, 3, 32, 32))
    assert requested == [4, 4]
    wrong = -1
    with pytest.raises(UserError, match="--teacher-compile on: compiled, the final teacher gives other answers"):
        compile_all(built, image, {"final": network})
    message: list[str] = []
    monkeypatch.setattr(frozen, "WORTH", 0.0)
    monkeypatch.setattr(frozen, "has_compiler", lambda device: True)
    assert compile_if_faster(built, image, {"final": network}, 1, message.append) is built
    assert "not compiled" in message[-1]
    monkeypatch.setattr(torch, "compile", lambda *words, **options: 1 / 0)
    with pytest.raises(UserError, match=r"cannot compile the final teacher here \(ZeroDivisionError"):
        compile_all(built, image, {})


def test_networks_that_need_large_images_or_odd_calls_are_folded_or_left() -> None:
    whole = build("torchvision:alexnet", 10, image_size=64).eval()
    assert FrozenModel(whole, InferenceForm("float32"), side=64)(torch.rand(2, 3, 64, 64)).logits.shape == (2, 10)

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 10)

        def forward(self, x: Tensor) -> Features:
            embedding = self.norm(input=self.conv(x)).mean(dim=(2, 3))
            return Features(self.head(embedding), embedding)

    network, image = Network(Odd()).eval(), torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(fold(network)(image).logits, network(image).logits)


@pytest.mark.slow
def test_compiled_is_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "WORTH", 0.0)
    monkeypatch.setattr(frozen, "FASTER", 1e9)
    network = trained("resnet8x4")
    message: list[str] = []
    built = freeze_all({"final": network}, "float32", [], pytest.fail)
    both = compile_if_faster(built, torch.rand(16, 3, 32, 32), {"final": network}, 10**6, message.append)
    assert both["final"].form.compiled, message
    for count in (16, 5):  # the last batch of an epoch is smaller and goes the other way
        image = torch.rand(count, 3, 32, 32)
        torch.testing.assert_close(both["final"](image).logits, network(image).logits, rtol=1e-3, atol=1e-3)


def test_a_run_writes_its_form_down_and_keeps_it(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(**asked: str) -> Session:
        execution = Execution.model_validate({"accelerator": "cpu", "threads": 1, "save_every": 1e9} | asked)
        return Session(tmp_path / "runs", execution=execution, quiet=True)

    def saved(run: RunDir) -> dict[str, str]:
        settings = run.read()[1]
        return {key: settings[key] for key in ("precision", "teacher_precision", "teacher_compile")}

    first = distill(recipe, session(), method="kd", seed=1, suite="s", name="plain")
    plain = RunDir(first.folder(tmp_path / "runs"))
    assert saved(plain) == {"precision": "32-true", "teacher_precision": "float32", "teacher_compile": "off"}
    second = distill(recipe, session(teacher_precision="bfloat16"), method="kd", seed=1, suite="s", name="half")
    half = RunDir(second.folder(tmp_path / "runs"))
    assert saved(half)["teacher_precision"] == "bfloat16"
    assert second.hash == first.hash  # how a run is computed is no part of what it is
    assert half.student.read_bytes() != plain.student.read_bytes()
    monkeypatch.setenv("ANTISHORTCUT_NATIVE", "bfloat16")
    third = distill(recipe, session(), method="kd", seed=2, suite="s", name="auto")
    assert saved(RunDir(third.folder(tmp_path / "runs"))) == {
        "precision": "bf16-mixed", "teacher_precision": "bfloat16", "teacher_compile": "off",
    }  # fmt: skip


@pytest.mark.parametrize("native", ["bfloat16", "older"])
def test_stopped_and_resumed_equals_uninterrupted(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: str
) -> None:
    """In the device's own precision; a run from before there was a choice goes on in float32."""
    execution = Execution(accelerator="cpu", threads=1, save_every=1e9)
    session = Session(tmp_path / "runs", execution=execution, quiet=True)
    original = loop.Trainer._step

    def step(self: loop.Trainer, batch: Any) -> float:
        rate = original(self, batch)
        if self.run.method == "asd" and self.done == 5:
            signal.raise_signal(signal.SIGTERM)
        return rate

    if native == "bfloat16":
        monkeypatch.setenv("ANTISHORTCUT_NATIVE", native)
    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_step", step)
        with pytest.raises(Stopped):
            distill(recipe, session, method="asd", seed=1, suite="parts")
    begun = tmp_path / "runs/parts/asd-s1/run.json"
    if native == "older":
        text = json.loads(begun.read_text())
        for field in ("teacher_precision", "teacher_compile", "compile"):
            del text["execution"][field]
        del text["sum"]  # it had none either
        begun.write_text(json.dumps(text))
        monkeypatch.setenv("ANTISHORTCUT_NATIVE", "bfloat16")
    pieces = RunDir(distill(recipe, session, method="asd", seed=1, suite="parts").folder(session.runs))
    if native == "older":
        monkeypatch.setenv("ANTISHORTCUT_NATIVE", "float32")
    whole = RunDir(distill(recipe, session, method="asd", seed=1, suite="whole").folder(session.runs))
    assert pieces.student.read_bytes() == whole.student.read_bytes()
    assert pieces.history() == whole.history()
