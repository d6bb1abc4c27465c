"""SimKD against loops over pixels and by hand: the loss, and the student that ends in its teacher's classifier."""
# B batch, C classes, D teacher's embedding, H × W pixels

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.methods import build_method
from antishortcut.methods.simkd import SimKD, map_errors
from antishortcut.models import Network, build, feature_shapes, reuse_classifier
from antishortcut.models.reused_classifier import ClassifierSettings, ReusedClassifier, projector
from antishortcut.training.trainer import deployed
from antishortcut.types import Features, Shape, Sizes
from tests.methods.test_fitnets import numbered, slow_errors
from tests.test_subspace import close, normal, seeds, several

Maps = list[list[list[list[float]]]]  # B × C × H × W
sides = st.integers(1, 5)


def slow_conv(maps: Maps, weight: Maps) -> Maps:
    """Zeros around the map, no bias: y[o][i][j] = Σ over channels and offsets of w · x."""
    reach = len(weight[0][0]) // 2
    height, width = len(maps[0][0]), len(maps[0][0][0])
    offsets = range(-reach, reach + 1)

    def pixel(image: list[list[list[float]]], kernel: list[list[list[float]]], i: int, j: int) -> float:
        return sum(
            kernel[c][di + reach][dj + reach] * plane[i + di][j + dj]
            for c, plane in enumerate(image)
            for di in offsets
            for dj in offsets
            if 0 <= i + di < height and 0 <= j + dj < width
        )

    return [
        [[[pixel(image, kernel, i, j) for j in range(width)] for i in range(height)] for kernel in weight]
        for image in maps
    ]


def slow_norm(maps: Maps, scale: list[float], shift: list[float], eps: float) -> Maps:
    """Batch norm by the statistics of this batch."""
    result: Maps = [[] for _ in maps]
    for c in range(len(scale)):
        values = [x for image in maps for line in image[c] for x in line]
        mean = sum(values) / len(values)
        spread = math.sqrt(sum((x - mean) ** 2 for x in values) / len(values) + eps)
        for image, out in zip(maps, result, strict=True):
            out.append([[scale[c] * (x - mean) / spread + shift[c] for x in line] for line in image[c]])
    return result


def slow_projector(layers: nn.Sequential, maps: Tensor) -> Maps:
    """Convolution, norm, ReLU, layer by layer, whatever the sequence ends in."""
    current: Maps = maps.tolist()
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            current = slow_conv(current, layer.weight.tolist())
        elif isinstance(layer, nn.BatchNorm2d):
            current = slow_norm(current, layer.weight.tolist(), layer.bias.tolist(), layer.eps)
        else:
            current = [[[[max(x, 0.0) for x in line] for line in plane] for plane in image] for image in current]
    return current


class Fixed(nn.Module):
    """A trunk whose last map is the image itself."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Features:
        embedding = x.mean(dim=(2, 3))
        return Features(self.head(embedding), embedding, (x,), last=x)


def shape(width: int, side: tuple[int, int] = (1, 1), **more: Any) -> Shape:
    return Shape(width, ((width, *side),), side=side, **more)


def method_for(student: Shape, teacher: Shape, **options: Any) -> SimKD:
    return SimKD(Sizes(5, 100, student, {"final": teacher}), **options)


def spread_norms(network: nn.Module) -> None:
    """Norms that do something: neither scale 1 nor shift 0."""
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.weight, 1.0, 0.5)
            nn.init.normal_(layer.bias)


@several
@given(
    b=st.integers(1, 3), c=st.integers(1, 3), size=st.tuples(sides, sides), other=st.tuples(sides, sides), seed=seeds
)
def test_errors_agree_with_the_loop(b: int, c: int, size: tuple[int, int], other: tuple[int, int], seed: int) -> None:
    student, teacher = normal(b, c, *size, seed=seed), normal(b, c, *other, seed=seed + 1)
    errors = map_errors(student, teacher)
    assert (errors.shape, errors.dtype) == ((b,), torch.float64)
    close(errors, slow_errors(student, teacher))
    close(map_errors(student, student.clone()), [0.0] * b, 0.0)


def test_by_hand() -> None:
    ours = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    close(map_errors(ours, torch.zeros(1, 1, 2, 2)), [(1 + 4 + 9 + 16) / 4])
    larger = torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]])  # its mean, 4, is what a student of one pixel learns
    close(map_errors(torch.tensor([[[[1.0]]]]), larger), [9.0])
    with pytest.raises(ValueError, match="student has maps of 1 channels, teacher of 2; train what `deployed`"):
        map_errors(ours, torch.zeros(1, 2, 2, 2))


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(
    ("side", "teacher_side"), [((4, 4), (2, 2)), ((3, 2), (3, 2)), ((2, 2), (4, 4)), ((2, 2), (1, 1))]
)
def test_the_whole_student_agrees_with_the_loop(
    side: tuple[int, int], teacher_side: tuple[int, int], relu: bool
) -> None:
    """L = mean (P(f_S) − f_T)², and logits = the teacher's linear layer of the mean of P(f_S)."""
    torch.manual_seed(0)
    method = method_for(shape(3, side), shape(4, teacher_side, signed=not relu), weight=3.0)
    head = nn.Linear(4, 5).double()
    network = method.deployed(Network(Fixed(), (0.0,) * 3, (1.0,) * 3).double(), head).double()
    body = network.body
    assert isinstance(body, ReusedClassifier)
    spread_norms(network)
    image, target = normal(2, 3, *side), normal(2, 4, *teacher_side, seed=1)
    outputs = network.train()(image)

    source = image if side[0] <= teacher_side[0] else F.adaptive_avg_pool2d(image, teacher_side)
    projected = slow_projector(body.projector, source)
    assert (min(x for rows in projected for plane in rows for line in plane for x in line) >= 0) == relu
    close(outputs.last, projected)
    means = [[sum(map(sum, plane)) / (len(plane) * len(plane[0])) for plane in rows] for rows in projected]
    weight, bias = head.weight.tolist(), head.bias.tolist()
    logits = [
        [sum(w * x for w, x in zip(row, e, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
        for e in means
    ]
    close(outputs.embedding, means)
    close(outputs.logits, logits)
    teacher = Features(torch.zeros(2, 5), target.mean(dim=(2, 3)), last=target)
    terms = method.terms(outputs, {"final": teacher}, numbered(2), 0.0)
    assert list(terms) == ["map"]
    errors = slow_errors(torch.tensor(projected, dtype=torch.float64), target)
    close(terms["map"], 3.0 * sum(errors) / 2)


PAIRS = [
    ("resnet8x4", "resnet8"),
    ("wrn-10-1", "wrn-10-2"),  # pre-activation: what is averaged is a map after batch norm and ReLU
    ("vgg8", "resnet8"),
    ("resnet8", "vgg8"),
    ("mobilenet-v2", "cnn-4-16"),
    ("cnn-4-16", "shufflenet-v2-x0.5"),
]


@pytest.mark.parametrize(("teacher", "student"), PAIRS)
def test_a_student_uses_its_teachers_classifier_at_inference(teacher: str, student: str) -> None:
    torch.manual_seed(0)
    final, own = build(teacher, 5).eval(), build(student, 5)
    shapes = feature_shapes(own, 32), feature_shapes(final, 32)
    assert final.head is not None
    assert own.head is not None
    method = method_for(*shapes)
    before = sum(p.numel() for p in own.parameters()) - sum(p.numel() for p in own.head.parameters())
    network = deployed(method, own, final, 32)
    spread_norms(network)
    body = network.body
    assert isinstance(body, ReusedClassifier)
    d, mid, c = shapes[1].embedding, shapes[1].embedding // 2, shapes[0].embedding
    added = c * mid + 9 * mid * mid + mid * d + 2 * (mid + mid + d) + 5 * d + 5  # convolutions, norms, classifier
    assert sum(p.numel() for p in network.parameters()) == before + added  # its own classifier is gone
    image = torch.rand(3, 3, 32, 32)
    network.eval()
    outputs = network(image)
    trunk = body.trunk((image - network.mean) / network.std)
    assert trunk.last is not None
    maps = F.adaptive_avg_pool2d(trunk.last, min(shapes[0].side, shapes[1].side))
    close(outputs.logits, F.linear(body.projector(maps).mean(dim=(2, 3)), final.head.weight, final.head.bias), 1e-5)
    assert not any(p.requires_grad for p in body.head.parameters())
    assert body.head is not final.head  # a copy, which is saved with the student
    # every other parameter learns
    network.train()
    torch.autograd.backward(method.terms(network(image), {"final": final(image)}, numbered(3), 0.0)["map"])
    assert all(p.grad is not None for p in network.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", ["timm:resnet10t", "torchvision:squeezenet1_1"])
def test_networks_of_others_lose_their_classifier(name: str) -> None:
    torch.manual_seed(0)
    final, own = build("cnn-4-16", 5), build(name, 5, image_size=64)
    heads = [module for path, module in own.named_modules() if path.endswith((".fc", ".classifier.1"))]
    assert len(heads) == 1
    method = method_for(feature_shapes(own, 64), feature_shapes(final, 64))
    network = deployed(method, own, final, 64)
    assert heads[0] not in set(network.modules())
    image = torch.rand(2, 3, 64, 64)
    torch.autograd.backward(method.terms(network(image), {"final": final(image)}, numbered(2), 0.0)["map"])
    assert all(p.grad is not None for p in network.parameters() if p.requires_grad)


def test_the_map_whose_mean_is_the_embedding_is_known() -> None:
    image = torch.rand(2, 3, 64, 64)
    for name in ("timm:resnet10t", "torchvision:mobilenet_v2", "wrn-10-1", "shufflenet-v2"):
        outputs = build(name, 5, image_size=64).eval()(image)
        assert outputs.last is not None
        close(outputs.last.mean(dim=(2, 3)), outputs.embedding, 1e-4)
    assert build("timm:convnext_atto", 5, image_size=64).eval()(image).last is None  # a norm follows the mean


def test_where_there_is_no_such_map_the_embedding_is_one_of_one_pixel() -> None:
    method = method_for(shape(6, (4, 4)), Shape(8, signed=True))
    assert (method.settings.side, method.settings.relu) == ((1, 1), False)
    student, teacher = normal(3, 8), normal(3, 8, seed=1)
    rows = Features(student, student), Features(teacher, teacher)
    close(method.terms(rows[0], {"final": rows[1]}, numbered(3), 0.0)["map"], (student - teacher).square().mean())


@pytest.mark.parametrize(("width", "reduction", "inner"), [(256, 2, 128), (256, 8, 32), (5, 2, 2), (3, 7, 1)])
def test_the_projector_is_as_published(width: int, reduction: int, inner: int) -> None:
    method = method_for(shape(6, (4, 4)), shape(width, (4, 4)), reduction=reduction)
    assert method.settings == ClassifierSettings(source=6, width=inner, target=width, side=(4, 4), relu=True, bias=True)
    layers = projector(6, inner, width, relu=True)
    convs = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels, c.kernel_size) for c in convs] == [
        (6, inner, (1, 1)), (inner, inner, (3, 3)), (inner, width, (1, 1)),
    ]  # fmt: skip
    assert all(conv.bias is None for conv in convs)
    assert isinstance(layers[-1], nn.ReLU)
    assert isinstance(projector(6, inner, width, relu=False)[-1], nn.BatchNorm2d)


def test_a_single_pixel_of_a_single_image_is_finite() -> None:
    layers = projector(4, 2, 4, relu=True).train()
    assert torch.isfinite(layers(torch.rand(1, 4, 1, 1))).all()


def test_a_classifier_without_bias_is_reused() -> None:
    method = method_for(shape(6, (4, 4)), shape(8, (4, 4)))
    network = method.deployed(build("cnn-2-6", 5), nn.Linear(8, 5, bias=False))
    assert isinstance(network.body, ReusedClassifier)
    assert network.body.head.bias is None
    assert network.body.settings.bias is False


@pytest.mark.parametrize(
    ("student", "teacher", "message"),
    [
        (Shape(6, maps=True), Shape(8, maps=True), "needs networks with one embedding for every image"),
        (Shape(6), Shape(8, head=False), "logits must be one linear layer of its embedding, and they are not"),
        (Shape(6), Shape(50_000), r"an embedding is 50,000 wide; its projector takes at most 4,096"),
    ],
)
def test_networks_that_cannot_work_are_one_line(student: Shape, teacher: Shape, message: str) -> None:
    with pytest.raises(UserError, match=f"method 'simkd': .*{message}") as caught:
        build_method("simkd", Sizes(5, 100, student, {"final": teacher}), {})
    assert "\n" not in str(caught.value)


class Scaled(nn.Module):
    """Logits that are no linear layer of the embedding."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU())
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.trunk(x).mean(dim=(2, 3)))
        return logits.tanh()


class Both(Scaled):
    """Returns its embedding itself, so that nobody knows which layer its logits come from."""

    def forward(self, x: Tensor) -> Any:
        embedding = self.trunk(x).mean(dim=(2, 3))
        return {"logits": self.fc(embedding), "embedding": embedding}


def test_whether_logits_are_linear_is_seen() -> None:
    torch.manual_seed(0)
    assert not feature_shapes(build(f"{__name__}:Scaled", 5), 32).head
    assert feature_shapes(build("resnet8", 5), 32).head
    assert not feature_shapes(build("resnet8", 5, embedding="stages.0"), 32).head  # another module's output


def test_a_student_whose_classifier_is_not_known_is_one_line() -> None:
    own, final = build(f"{__name__}:Both", 5), build("resnet8", 5)
    method = method_for(feature_shapes(own, 32), feature_shapes(final, 32))
    with pytest.raises(UserError, match="the layer that computes the student's logits is not known"):
        deployed(method, own, final, 32)
    settings = method.settings
    with pytest.raises(UserError, match="ends in a teacher's classifier already"):
        reuse_classifier(reuse_classifier(build("cnn-2-8", 5), 5, settings), 5, settings)
