"""The maps before the last ReLU of each stage: of our networks, of libraries, and of small ones solved by hand."""
# B batch, C channels, H × W pixels

import copy

import pytest
import torch
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.methods import build_method
from antishortcut.models import build, feature_shapes, tapped_features
from antishortcut.models.feature_extractor import FeatureExtractor
from antishortcut.tasks import Classification
from antishortcut.teachers.frozen import FrozenModel, InferenceForm
from antishortcut.training.step import DistillationStep
from antishortcut.types import Batch, Features, Sizes

PREACT = ("preact",)
RELU = ["relu"]
OWN = {  # what each stage is of its pre-activation: the ReLU of it, batch norm and ReLU away from it, or the same
    "resnet8x4": RELU * 4,
    "resnet50": RELU * 5,
    "vgg8": RELU * 5,
    "shufflenet-v1": RELU * 4,
    "shufflenet-v2-x0.5": RELU * 4,
    "cnn-8-16": RELU * 4,
    "dense-4-8": RELU * 4,
    "wrn-16-1": ["norm"] * 4,
    "mobilenet-v2": [*RELU, *["same"] * 4],
    "mobilenet-v2-x1.0": [*RELU, *["same"] * 3, *RELU],
}
LIBRARIES = {
    "timm:resnet18": RELU * 5,
    "timm:mobilenetv2_100": ["same"] * 5,
    "timm:resnetv2_50": ["same", *["norm"] * 4],
    "timm:deit_tiny_patch16_224": ["same"] * 4,
    "torchvision:resnet18": RELU * 5,
}


def relation(stage: Tensor, preact: Tensor) -> str:
    if preact is stage:
        return "same"
    if torch.equal(stage, torch.relu(preact)):
        return "relu"
    means = preact.transpose(0, 1).flatten(1).mean(dim=1)
    assert torch.allclose(means, torch.zeros_like(means), atol=1e-4)  # a fresh norm in training mode
    return "norm"


@pytest.mark.parametrize("name", [*OWN, *LIBRARIES])
def test_every_stage_has_its_pre_activation(name: str) -> None:
    torch.manual_seed(0)
    side = 64 if name in LIBRARIES and "deit" not in name else 224 if name in LIBRARIES else 32
    network = build(name, 5, image_size=side)
    image = torch.rand(3, 3, side, side)
    assert all(feature_shapes(network, side).preact)
    buffers = copy.deepcopy(network.state_dict())
    outputs = tapped_features(network.train(), image, PREACT)
    pairs = zip(outputs.stages, outputs.preact, strict=True)
    assert [relation(*pair) for pair in pairs] == (OWN | LIBRARIES)[name]
    assert all(maps.shape == stage.shape for stage, maps in zip(outputs.stages, outputs.preact, strict=True))
    network.load_state_dict(buffers)
    plain: Features = network(image)
    assert torch.equal(plain.logits, outputs.logits)  # reading changes nothing
    assert plain.preact == tapped_features(network, image, ("stages",)).preact == ()
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in network.modules())
    assert network.training


def test_gradients_flow_through_pre_activations() -> None:
    torch.manual_seed(0)
    for name in ("vgg8", "wrn-16-1", "shufflenet-v2-x0.5"):  # their ReLUs are in place
        network = build(name, 5)
        preact = tapped_features(network, torch.rand(2, 3, 32, 32), PREACT).preact[-1]
        torch.autograd.backward(preact.square().sum())
        assert all(p.grad is not None and p.grad.isfinite().all() for p in next(network.body.children()).parameters())


def test_frozen_teachers_give_the_same() -> None:
    """With batch norm fused into convolutions, and whether a form is called compiled or not."""
    torch.manual_seed(0)
    image = torch.rand(4, 3, 32, 32)
    for name in ("resnet8x4", "wrn-16-1", "mobilenet-v2"):
        network = build(name, 5).eval()
        expected = tapped_features(network, image, PREACT)
        for form in (InferenceForm("float32"), InferenceForm("float32", compiled=True)):
            outputs = tapped_features(FrozenModel(network, form, 32, image.shape), image, PREACT)
            assert len(outputs.preact) == len(expected.preact)
            for one, two in zip(outputs.preact, expected.preact, strict=True):
                torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-3)


class Plain(nn.Module):
    """Two blocks around one ReLU module that all share; the last map may hide its ReLU."""

    def __init__(self, hidden: bool = False, skips: bool = False) -> None:
        super().__init__()
        self.hidden, self.skips = hidden, skips
        self.first, self.second = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Features:
        one = self.relu(self.first(x))
        if self.skips and self.training:
            two = torch.relu(self.second(one))
        else:
            two = self.second(one)
            two = torch.relu(two) if self.hidden else self.relu(two)
        embedding = two.mean(dim=(2, 3))
        return Features(self.head(embedding), embedding, (one, two))


def test_a_shared_relu() -> None:
    torch.manual_seed(0)
    network = Plain()
    image = torch.rand(2, 3, 8, 8)
    outputs = tapped_features(network, image, PREACT)
    before = network.first(image)
    assert torch.equal(outputs.preact[0], before)
    assert torch.equal(outputs.preact[1], network.second(torch.relu(before)))
    wrapped = FeatureExtractor(Plain())  # its first call is two passes
    wrapped.module.load_state_dict(network.state_dict())
    for one, two in zip(tapped_features(wrapped, image, PREACT).preact, outputs.preact, strict=True):
        assert torch.equal(one, two)


def sizes_of(network: nn.Module) -> Sizes:
    shape = feature_shapes(network, 8)
    return Sizes(5, 20, shape, {"final": shape})


def test_a_hidden_relu_is_one_clear_line() -> None:
    """A stage that is never negative has lost what these methods need."""
    torch.manual_seed(0)
    assert feature_shapes(Plain(hidden=True), 8).preact == (True, False)
    for method in ("ab", "ofd"):
        build_method(method, sizes_of(Plain()), {})
        with pytest.raises(UserError, match=r"stage 1 of the student is never negative.*\(student\.stages = …\)") as e:
            build_method(method, sizes_of(Plain(hidden=True)), {})
        assert "\n" not in str(e.value)


def test_a_student_that_skips_a_relu_in_training_is_an_error() -> None:
    student = Plain(skips=True)
    step = DistillationStep(student, build_method("ofd", sizes_of(student), {}), Classification())
    batch = Batch(torch.rand(2, 3, 8, 8), torch.tensor([0, 1]), torch.arange(2))
    teacher = tapped_features(Plain(), batch.image, PREACT)
    with pytest.raises(UserError, match="the student returned no feature maps in this step: a stage was skipped"):
        step(batch, {"final": teacher}, 0.0)


def test_a_copy_reads_its_own_relus() -> None:
    torch.manual_seed(0)
    network = build("cnn-4", 5)
    image = torch.rand(2, 3, 32, 32)
    first = tapped_features(network, image, PREACT).preact[-1]
    copied = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(1)
    assert not torch.equal(tapped_features(copied, image, PREACT).preact[-1], first)


def test_compiled_students_are_read() -> None:
    torch.manual_seed(0)
    network = build("cnn-4", 5).eval()
    image = torch.rand(2, 3, 32, 32)
    expected = tapped_features(network, image, PREACT).preact
    network.compile(backend="eager", dynamic=False)
    network(image)
    for one, two in zip(tapped_features(network, image, PREACT).preact, expected, strict=True):
        assert torch.equal(one, two)
    torch.compiler.reset()
