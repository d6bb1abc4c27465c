"""Frozen networks for inference: fusing changes nothing; a lower precision and compiling are compared first."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from antishortcut.config.recipe import Recipe
from antishortcut.errors import UserError
from antishortcut.models import Network, build
from antishortcut.run_dir import RunDir
from antishortcut.teachers import frozen, inference
from antishortcut.teachers.frozen import (
    Agreement,
    FrozenModel,
    InferenceForm,
    agreement,
    compile_all,
    compile_if_faster,
    fastest_precision,
    freeze_all,
)
from antishortcut.training.pipeline import Session, distill
from antishortcut.types import Features
from tests.conftest import CPU, stop_after

NAMES = ["resnet20", "resnet8x4", "wrn-16-1", "vgg8", "mobilenet-v2", "shufflenet-v2-x0.5", "cnn-4-16", "dense-4"]
LEFT = {"wrn-16-1": 7}  # norms that stay: they come before their convolution, or others read its output too
FLOAT32 = InferenceForm("float32")


def trained(name: str) -> Network:
    """With batch statistics unlike those of a new network, or fusing would be trivial."""
    torch.manual_seed(0)
    network = build(name, 10, image_size=32)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    return network.eval()


def judged(networks: dict[str, Network], images: list[Tensor]) -> Callable[[str, FrozenModel], Agreement]:
    return lambda role, model: agreement(networks[role], model, images)


def norms(network: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())


@pytest.mark.parametrize("name", [*NAMES, "timm:resnet18", "torchvision:mobilenet_v2"])
@torch.no_grad()
def test_fusing_batch_norm_changes_nothing(name: str) -> None:
    network = trained(name)
    fused, image = FrozenModel(network, FLOAT32).network, torch.rand(3, 3, 32, 32)
    assert norms(fused) == LEFT.get(name, 0)
    one, two = fused(image), network(image)
    pairs = zip((one.logits, one.embedding, *one.stages), (two.logits, two.embedding, *two.stages), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.std() + 1))


class Forked(nn.Module):
    """The first convolution is read by its norm and by another layer, the second by its norm only."""

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


def test_a_convolution_that_others_read_is_not_fused() -> None:
    torch.manual_seed(0)
    network = Network(Forked())
    network.train()
    for _ in range(5):
        network(torch.rand(8, 3, 32, 32))
    body = FrozenModel(network.eval(), FLOAT32).network.body
    assert isinstance(body, Forked)
    assert isinstance(body.first, nn.BatchNorm2d)
    assert isinstance(body.second, nn.Identity)
    assert norms(network) == 2  # the network itself is not changed


class Unusual(nn.Module):
    """Calls its norm by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Features:
        embedding = self.norm(input=self.conv(x)).mean(dim=(2, 3))
        return Features(self.head(embedding), embedding)


def test_networks_that_need_large_images_or_unusual_calls_are_frozen_too() -> None:
    large = build("torchvision:alexnet", 10, image_size=64).eval()
    assert FrozenModel(large, FLOAT32, side=64)(torch.rand(2, 3, 64, 64)).logits.shape == (2, 10)
    network, image = Network(Unusual()).eval(), torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(FrozenModel(network, FLOAT32)(image).logits, network(image).logits)


def test_a_lower_precision_gives_similar_outputs() -> None:
    network = trained("resnet20")
    judge = judged({"final": network}, [torch.rand(64, 3, 32, 32) for _ in range(4)])
    models = freeze_all({"final": network}, "bfloat16", judge, pytest.fail)
    image = torch.rand(8, 3, 32, 32)
    outputs, reference = models["final"](image), network(image)
    assert outputs.logits.dtype == outputs.embedding.dtype == torch.float32
    assert not torch.equal(outputs.embedding, reference.embedding)
    assert torch.nn.functional.cosine_similarity(outputs.embedding, reference.embedding).min() > 0.999
    assert not outputs.logits.requires_grad


class Delicate(nn.Module):
    """Its outputs depend on digits that bfloat16 does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 16, 3, stride=4), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Features:
        embedding = (self.conv(x) + 100.0).mean(dim=(2, 3)) - 100.0
        return Features(self.head(embedding * 10), embedding)


def test_a_precision_that_changes_the_outputs_is_refused_or_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    networks = {"final": trained("cnn-4-16"), "early": Network(Delicate()).eval()}
    judge, lines = judged(networks, [torch.rand(64, 3, 32, 32)]), list[str]()
    with pytest.raises(UserError, match=r"bfloat16: the early teacher.*float32: cosine"):
        freeze_all(networks, "bfloat16", judge, pytest.fail)
    monkeypatch.setenv("ANTISHORTCUT_NATIVE", "bfloat16")
    assert {model.form for model in freeze_all(networks, "auto", judge, lines.append).values()} == {FLOAT32}
    assert len(lines) == 1
    assert "stay in float32" in lines[0]
    monkeypatch.setenv("ANTISHORTCUT_NATIVE", "int4")
    with pytest.raises(UserError, match="one of float32, bfloat16, float16"):
        fastest_precision(torch.device("cpu"))


class NearTies(nn.Module):
    """Two classes of every row are as likely but for the last digits; which pair it is, is clear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 16, 3, stride=4), nn.Linear(16, 10)
        with torch.no_grad():
            self.head.weight[1::2] = self.head.weight[::2] + 1e-3 * torch.randn(5, 16)
            self.head.bias[1::2] = self.head.bias[::2]

    def forward(self, x: Tensor) -> Features:
        embedding = self.conv(x - x.mean(dim=(2, 3), keepdim=True)).amax(dim=(2, 3))
        return Features(self.head(5 * embedding), embedding)


def test_near_ties_may_fall_either_way_but_confident_answers_may_not() -> None:
    torch.manual_seed(0)
    network, image = Network(NearTies()).eval(), torch.rand(512, 3, 32, 32)
    model = FrozenModel(network, InferenceForm("bfloat16"))
    result = agreement(network, model, [image])
    with torch.no_grad():
        same = (network(image).logits.argmax(1) == model(image).logits.argmax(1)).double().mean()
        assert same < 0.995  # of all rows: what refused such a teacher before
    assert result.enough, result
    with torch.no_grad():
        model.head.weight.copy_(model.head.weight.roll(2, dims=0))  # type: ignore[union-attr]
    assert not agreement(network, model, [image]).enough  # the same embeddings, and other classes


def test_agreement_by_hand() -> None:
    """Three rows; the form takes 1 off the first logit of the last row, whose two classes were level."""
    logits = torch.tensor([[4.0, 0.0], [0.0, 4.0], [0.0, 0.0]])
    wrong = logits - torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])

    def fixed(values: Tensor) -> Any:
        return lambda image: Features(values, torch.ones(3, 2))

    result = agreement(fixed(logits), fixed(wrong), [torch.empty(0)])

    def kl(p: float, q: float) -> float:
        return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))

    def share(logit: float) -> float:
        return 1 / (1 + math.exp(-logit / 4))

    tells = (kl(share(4), 0.5) + kl(share(-4), 0.5)) / 3  # from the mean prediction, which is even
    assert result.kl == pytest.approx(kl(0.5, share(-1)) / 3 / tells)
    assert result.same_class == 1.0  # the last row is not confident
    assert result.cosine == pytest.approx(1)
    assert agreement(fixed(logits), fixed(-logits), [torch.empty(0)]).same_class == 0.0


def test_thresholds_of_agreement() -> None:
    for values, enough in (
        ((0.999, 0.01, 0.995), True),
        ((0.9989, 0.0, 1.0), False),
        ((1.0, 0.011, 1.0), False),
        ((1.0, 0.0, 0.994), False),
        ((float("nan"), 0.0, 1.0), False),
    ):
        assert Agreement(*values).enough is enough
    network = trained("dense-4")
    result = agreement(network, FrozenModel(network, FLOAT32), [torch.rand(2, 3, 32, 32)])  # of maps
    assert result.cosine == pytest.approx(1, abs=1e-4)
    assert result.kl == pytest.approx(0, abs=1e-6)
    assert "if confident 100.00%" in str(result)


def test_a_compiled_model_is_for_one_shape_and_its_outputs_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_batches: list[int] = []
    sign = 1

    def compile(network: nn.Module, **options: object) -> Callable[[Tensor], Features]:
        def forward(image: Tensor) -> Features:
            compiled_batches.append(len(image))
            outputs: Features = network(image)
            return Features(sign * outputs.logits, outputs.embedding)

        return forward

    monkeypatch.setattr(torch, "compile", compile)
    network, image, lines = trained("cnn-4-16"), torch.rand(4, 3, 32, 32), list[str]()
    models = freeze_all({"final": network}, "float32", judged({}, []), pytest.fail)
    compiled = compile_all(models, image, {"final": network})["final"]
    assert compiled.form == InferenceForm("float32", compiled=True)
    compiled_batches.clear()
    for count in (2, 4, 3, 4):  # other shapes are not compiled, whichever comes first
        compiled(torch.rand(count, 3, 32, 32))
    assert compiled_batches == [4, 4]
    assert compile_if_faster(models, image, {}, 100, pytest.fail) is models  # a short run
    sign = -1
    with pytest.raises(UserError, match="--teacher-compile on: compiled, the final teacher"):
        compile_all(models, image, {"final": network})
    monkeypatch.setattr(frozen, "has_compiler", lambda device: True)
    assert compile_if_faster(models, image, {"final": network}, 10**9, lines.append) is models
    assert "not compiled" in lines[-1]
    monkeypatch.setattr(torch, "compile", lambda *words, **options: 1 / 0)
    with pytest.raises(UserError, match=r"cannot compile the final teacher.*\(ZeroDivisionError"):
        compile_all(models, image, {})


@pytest.mark.slow
def test_compiling_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "FASTER", 1e9)
    network, lines = trained("resnet8x4"), list[str]()
    models = {"final": FrozenModel(network, FLOAT32)}
    compiled = compile_if_faster(models, torch.rand(16, 3, 32, 32), {"final": network}, 10**9, lines.append)["final"]
    assert compiled.form.compiled, lines
    for count in (16, 5):  # the last batch of an epoch is smaller and not compiled
        image = torch.rand(count, 3, 32, 32)
        torch.testing.assert_close(compiled(image).logits, network(image).logits, rtol=1e-3, atol=1e-3)


def test_a_run_writes_its_precision_into_run_json(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def student(name: str, **execution: str) -> tuple[RunDir, list[str]]:
        session.execution = CPU.model_copy(update=execution)
        run = distill(recipe, session, method="kd", seed=1, suite="s", name=name)
        folder = RunDir(run.folder(session.runs))
        return folder, [folder.read()[1][key] for key in ("precision", "teacher_precision", "teacher_compile")]

    plain, settings = student("plain")
    assert settings == ["32-true", "float32", "off"]
    half, settings = student("half", teacher_precision="bfloat16")
    assert settings == ["32-true", "bfloat16", "off"]
    assert plain.read()[0].hash == half.read()[0].hash  # execution settings are not hashed
    assert plain.student.read_bytes() != half.student.read_bytes()
    monkeypatch.setenv("ANTISHORTCUT_NATIVE", "bfloat16")
    assert student("auto")[1] == ["bf16-mixed", "bfloat16", "off"]


def test_what_a_run_finds_out_about_a_form_is_kept_for_the_next_and_not_for_a_resumed_one(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def counting(network: Network, model: FrozenModel, images: list[Tensor]) -> Agreement:
        counted.append(len(images))
        return agreement(network, model, images)

    def precision(seed: int) -> str:
        run = distill(recipe, session, method="kd", seed=seed, suite="s")
        return str(RunDir(run.folder(session.runs)).read()[1]["teacher_precision"])

    monkeypatch.setattr(inference, "agreement", counting)
    monkeypatch.setenv("ANTISHORTCUT_NATIVE", "bfloat16")
    assert (precision(1), precision(2), len(counted)) == ("bfloat16", "bfloat16", 1)
    (path,) = session.runs.glob("teachers/*/inference.json")
    (entry,) = json.loads(path.read_text())
    assert entry["key"]["torch"] == torch.__version__
    with stop_after(3):
        precision(3)
    entry["result"]["agreement"]["kl"] = 1.0  # as if it had been refused
    path.write_text(json.dumps([entry]))
    assert (precision(3), precision(4), len(counted)) == ("bfloat16", "float32", 1)
    session.execution = CPU.model_copy(update={"teacher_precision": "bfloat16"})
    with pytest.raises(UserError, match=r"bfloat16: the final teacher's outputs differ.*KL 100.00%"):
        precision(5)
    session.execution = CPU
    for number, damage in enumerate(("[", "{}", "[1]", json.dumps([entry | {"result": {"agreement": []}}]))):
        path.write_text(damage)
        assert (precision(6 + number), len(counted)) == ("bfloat16", 2 + number)  # found out again
    changed = json.loads(path.read_text())
    changed[0]["key"]["torch"] = "another"
    changed[0]["result"]["agreement"]["kl"] = 1.0
    path.write_text(json.dumps(changed))
    assert precision(10) == "bfloat16"


def test_whether_compiling_is_faster_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda network, **options: network)
    monkeypatch.setattr(frozen, "has_compiler", lambda device: True)
    network, image, lines = trained("cnn-4-16"), torch.rand(4, 3, 32, 32), list[str]()
    models = {"final": FrozenModel(network, FLOAT32)}
    known: dict[str, bool] = {}
    compile_if_faster(models, image, {"final": network}, 10**9, lines.append, known)
    assert list(known) == ["4x3x32x32"]
    lines.clear()
    for faster in (True, False):
        known = {"4x3x32x32": faster}
        result = compile_if_faster(models, image, {"final": network}, 10**9, lines.append, known)
        assert result["final"].form.compiled is faster
    assert len(lines) == 1  # that it compiles; nothing is timed
