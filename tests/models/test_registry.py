"""The zoo against the published tables: parameters, shapes, initialisation; and the doors to other networks."""

import math
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.models import NAMES, Network, build, describe, feature_shapes
from antishortcut.models.registry import DEEPLAB, IMAGENET
from tests.models import one_thread as one_thread

Maps = list[tuple[int, int]]  # (channels, side)
CLASSIFIERS = [name for name in NAMES if not name.startswith(("deeplabv3-", "dense-"))]  # for those: test_segmentation


def three(stem: int, width: int) -> Maps:
    return [(stem, 32), (width, 32), (2 * width, 16), (4 * width, 8)]


VGG: Maps = [(64, 32), (128, 16), (256, 8), (512, 4), (512, 4)]
BIG: Maps = [(64, 32), (64, 32), (128, 16), (256, 8), (512, 4)]
# name: parameters at 100 classes, maps of a 32-pixel image, embedding; RepDistiller's and mdistiller's
TABLE: dict[str, tuple[int, Maps, int]] = {
    "resnet8x4": (1_233_540, three(32, 64), 256),
    "resnet32x4": (7_433_860, three(32, 64), 256),
    "resnet20": (278_324, three(16, 16), 64),
    "resnet32": (472_756, three(16, 16), 64),
    "resnet56": (861_620, three(16, 16), 64),
    "resnet110": (1_736_564, three(16, 16), 64),
    "wrn-40-2": (2_255_156, three(16, 32), 128),
    "wrn-16-2": (703_284, three(16, 32), 128),
    "wrn-40-1": (569_780, three(16, 16), 64),
    "wrn-16-1": (180_916, three(16, 16), 64),
    "vgg8": (3_965_028, VGG, 512),
    "vgg13": (9_462_180, VGG, 512),
    "mobilenet-v2": (812_836, [(16, 16), (12, 16), (16, 8), (48, 4), (160, 2)], 1280),
    "shufflenet-v1": (949_258, [(24, 32), (240, 16), (480, 8), (960, 4)], 960),
    "shufflenet-v2": (1_355_528, [(24, 32), (116, 16), (232, 8), (464, 4)], 1024),
    "resnet18": (11_220_132, BIG, 512),
    "resnet34": (21_328_292, BIG, 512),
    "resnet50": (23_705_252, [(64, 32), (256, 32), (512, 16), (1024, 8), (2048, 4)], 2048),
}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def on_meta(name: str, classes: int = 100) -> Network:
    with torch.device("meta"):
        return build(name, classes)


@pytest.mark.parametrize("name", TABLE)
def test_parameters_and_shapes_are_the_published_ones(name: str) -> None:
    parameters, maps, embedding = TABLE[name]
    network = on_meta(name)
    assert count(network) == parameters
    shape = feature_shapes(network, 32)
    assert shape.embedding == embedding
    assert shape.stages == tuple((c, side, side) for c, side in maps)


def test_tiny_imagenet_counts() -> None:
    assert count(on_meta("resnet18", 200)) == 11_271_432
    assert count(on_meta("mobilenet-v2-x1.0", 200)) == 2_497_480
    assert feature_shapes(on_meta("mobilenet-v2-x1.0", 200), 64).stages[0] == (32, 66, 66)
    assert feature_shapes(on_meta("vgg8", 200), 64).stages == (
        (64, 64, 64),
        (128, 32, 32),
        (256, 16, 16),
        (512, 8, 8),
        (512, 4, 4),
    )
    assert feature_shapes(on_meta("vgg8"), 48).stages[-2:] == ((512, 6, 6), (512, 6, 6))


def test_plain_networks() -> None:
    convs = 9 * (3 * 16 + 16 * 32 + 32 * 64 + 64 * 64)
    assert count(on_meta("cnn-16")) == convs + 2 * (16 + 32 + 64 + 64) + 64 * 100 + 100  # norms, head
    assert feature_shapes(on_meta("cnn-16"), 32).stages == ((16, 16, 16), (32, 8, 8), (64, 4, 4), (64, 4, 4))
    assert feature_shapes(on_meta("cnn-8-64"), 32).embedding == feature_shapes(on_meta("cnn-32-64"), 32).embedding == 64


def test_families_are_open_but_not_to_everything() -> None:
    assert count(on_meta("resnet14")) < count(on_meta("resnet20"))
    assert feature_shapes(on_meta("wrn-28-10"), 32).embedding == 640
    assert feature_shapes(on_meta("resnet14x4"), 32).embedding == 256
    for wrong in ("resnet21", "resnet2", "wrn-17-2", "wrn-4-1", "wrn-16-0", "vgg9", "cnn-0", "resnet18x4", "timm:", ""):
        with pytest.raises(UserError):
            build(wrong, 10)


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("side", [32, 50, 64])
def test_real_pass(name: str, side: int) -> None:
    """Every size runs; the embedding is the classifier's input; the gradient reaches every weight."""
    torch.manual_seed(0)
    network = build(name, 7)
    features = network(torch.rand(2, 3, side, side))
    assert features.logits.shape == (2, 7)
    assert network.head is not None
    torch.testing.assert_close(features.embedding @ network.head.weight.T + network.head.bias, features.logits)
    assert all(f.shape[2] >= g.shape[2] for f, g in zip(features.stages, features.stages[1:], strict=False))
    if side == 32:
        features.logits.square().sum().backward()
        dead = [key for key, p in network.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        assert dead == []


@pytest.mark.parametrize("name", ["resnet18", "wrn-40-2", "vgg13", "mobilenet-v2", "cnn-32"])
def test_initialisation(name: str) -> None:
    """Convolutions N(0, 2 / (k² · out)); vgg and MobileNet heads N(0, 0.01²)."""
    torch.manual_seed(0)
    network = build(name, 100)
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 4000:
            std = math.sqrt(2 / (module.kernel_size[0] ** 2 * module.out_channels))
            assert module.weight.std().item() == pytest.approx(std, rel=0.08)
    if name in ("vgg13", "mobilenet-v2"):
        assert network.head is not None
        assert network.head.weight.std().item() == pytest.approx(0.01, rel=0.02)
        assert network.head.bias.abs().max() == 0


def test_network_normalises_and_resizes() -> None:
    class Echo(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    image = torch.full((1, 3, 4, 4), 0.75)
    outputs = Network(Echo(), (0.5, 0.25, 0.75), (0.5, 0.25, 1.0), size=8)(image)
    assert outputs.shape == (1, 3, 8, 8)
    torch.testing.assert_close(outputs[0, :, 0, 0], torch.tensor([0.5, 2.0, 0.0]))
    default = Network(Echo())(image)
    torch.testing.assert_close(default[0, 0, 0, 0], torch.tensor((0.75 - 0.5071) / 0.2675))
    assert not Network(Echo()).state_dict()  # mean and std belong to the settings
    with pytest.raises(UserError, match="divide by 255"):
        Network(Echo())(torch.zeros(1, 3, 4, 4, dtype=torch.uint8))


def test_imagenet_stem() -> None:
    with torch.device("meta"):
        network = build("resnet18", 200, image_size=64, stem="imagenet")
    assert [s[1] for s in feature_shapes(network, 64).stages] == [16, 16, 8, 4, 2]
    assert count(network) == 11_271_432 - 3 * 64 * 9 + 3 * 64 * 49
    for name, stem in (("wrn-16-2", "imagenet"), ("resnet20", "imagenet"), ("resnet18", "tiny")):
        with pytest.raises(UserError, match="stem"):
            build(name, 10, stem=stem)


def test_describe_lists_all() -> None:
    rows = describe()
    assert [row["name"] for row in rows] == [*NAMES, *IMAGENET]
    for row in rows:
        if row["name"] in TABLE:
            assert (row["parameters"], row["embedding"]) == (TABLE[row["name"]][0], TABLE[row["name"]][2])
    assert {row["name"]: row["embedding"] for row in rows if row["name"].startswith("dense-")} == {
        "dense-8": 32, "dense-32": 128, "dense-8-128": 128
    }  # fmt: skip
    for name in DEEPLAB:  # what is written down against the networks themselves
        network = on_meta(name)
        assert (count(network), feature_shapes(network, 64).embedding) == DEEPLAB[name]
    for name, (parameters, embedding) in IMAGENET.items():  # … and against timm itself
        with torch.device("meta"):
            net: Any = timm.create_model(name.removeprefix("timm:"), num_classes=100)
        assert (count(net), net.num_features) == (parameters, embedding)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("wrn_40_2", {}, "did you mean 'wrn-40-2'"),
        ("deeplab-resnet18", {}, "did you mean 'deeplabv3-resnet18'"),
        ("dense8", {}, "did you mean 'dense-8'"),
        ("efficientnet_b0", {}, "did you mean 'timm:efficientnet_b0' or 'torchvision:efficientnet_b0'"),
        ("timm:resnet18x", {}, "did you mean .*'resnet18'"),
        ("torchvision:qqqqqqqq", {}, r"see torchvision\.models\.list_models"),
        ("tim:resnet50", {}, "cannot import 'tim' .* write timm:NAME"),
        ("vgg8", {"pretrained": True}, "publishes"),
        ("vgg8", {"stem": "imagenet"}, "no stem 'imagenet' for vgg8"),
        ("dense-8", {"embedding": "head"}, "cannot be set for dense-8: its embedding is the map its head reads"),
        ("dense-8", {"stem": "imagenet"}, "no stem 'imagenet' for dense-8"),
        ("dense-0", {}, "unknown model"),
        ("cnn-10000", {}, "unknown model"),  # of more memory than there is
        *((name + "9" * 5000, {}, "unknown model") for name in ("cnn-", "dense-8-", "wrn-40-", "resnet")),
        ("deeplabv3-vgg8", {}, "unknown model"),
    ],
)
def test_names_and_options_that_do_not_exist(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        build(name, 10, **options)


def test_timm_brings_its_own_normalisation_and_size() -> None:
    network = build("timm:deit_tiny_patch16_224", 5)
    assert network.size == 224
    torch.testing.assert_close(network.mean.flatten(), torch.tensor([0.485, 0.456, 0.406]))
    features = network.eval()(torch.rand(2, 3, 32, 32))
    assert features.embedding.shape == (2, 192)
    assert [tuple(stage.shape[1:]) for stage in features.stages] == [(192, 14, 14)] * 4
    assert network.head is not None
    torch.testing.assert_close(network.head(features.embedding), features.logits)
    flexible = build("timm:resnet10t", 5, image_size=64, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    assert flexible.size is None
    assert flexible.mean.abs().max() == 0
