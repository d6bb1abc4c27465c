"""Name → network. Ours by name, others as `timm:NAME`, `torchvision:NAME`, your own as `package.module:factory`."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from antishortcut.errors import UserError, suggest
from antishortcut.models import mobilenet, resnet, shufflenet, simple_cnn, simple_segmentation, vgg, wrn
from antishortcut.models.deeplab import deeplab
from antishortcut.models.external import ExternalModel, find_source, library_hint
from antishortcut.models.feature_extractor import FeatureExtractor
from antishortcut.models.layers import NoClassifier
from antishortcut.models.user_models import try_out
from antishortcut.models.wrapper import CIFAR_MEAN, CIFAR_STD, Colour, Network

FAMILIES = {
    name: text
    for names, text in (
        ("resnet8x4 resnet32x4", "CIFAR ResNet, four times wider; any resnetNx4 with N = 6n + 2"),
        ("resnet20 resnet32 resnet56 resnet110", "CIFAR ResNet; any resnetN with N = 6n + 2"),
        ("resnet18 resnet34", "four-stage ResNet with a 3 × 3 stem; stem = imagenet for the 7 × 7 one"),
        ("resnet50", "four-stage bottleneck ResNet with a 3 × 3 stem; stem = imagenet for the 7 × 7 one"),
        ("wrn-40-2 wrn-16-2 wrn-40-1 wrn-16-1", "Wide ResNet; any wrn-D-K with depth D = 6n + 4 and width K"),
        ("vgg8 vgg13", "VGG with batch norm and one linear layer"),
        ("shufflenet-v1", "ShuffleNet v1, three groups"),
        ("shufflenet-v2", "ShuffleNet v2"),
        ("shufflenet-v2-x0.5", "ShuffleNet v2, half width"),
        ("mobilenet-v2", "MobileNetV2 for CIFAR, half width"),
        ("mobilenet-v2-x1.0", "MobileNetV2 for TinyImageNet, full width"),
        ("cnn-16 cnn-32 cnn-8-64", "small network for a CPU; any cnn-W, or cnn-W-D with embedding width D"),
        (
            "dense-8 dense-32 dense-8-128",
            "small network for segmentation on a CPU; any dense-W, or dense-W-D with embedding width D",
        ),
    )
    for name in names.split()
}

# name: (parameters at 100 classes, embedding); written down because importing timm takes seconds, checked by a test
DEEPLAB = {
    "deeplabv3-resnet101": (61_036_808, 2048),
    "deeplabv3-resnet50": (42_044_680, 2048),
    "deeplabv3-resnet18": (16_078_472, 512),
    "deeplabv3-mobilenetv2": (5_134_180, 320),
}
IMAGENET = {
    "timm:resnet50": (23_712_932, 2048),
    "timm:resnet18": (11_227_812, 512),
    "timm:mobilenetv2_100": (2_351_972, 1280),
    "timm:deit_tiny_patch16_224": (5_543_716, 192),
}
NAMES: tuple[str, ...] = (*FAMILIES, *DEEPLAB)


def build(
    name: str,
    classes: int,
    *,
    image_size: int = 32,
    stem: str = "cifar",
    mean: Colour | None = None,
    std: Colour | None = None,
    size: int | None = None,
    embedding: str | None = None,
    stages: Sequence[str] | None = None,
    pretrained: bool = False,
) -> Network:
    """The network of that name for raw images. Networks for segmentation take any size and return maps.

    classes: 0 for a network without a classifier, whose logits are empty (B, 0).
    mean, std: by default CIFAR-100's; of your own ImageNet's; of timm, torchvision and DeepLab those of their weights.
    size: side that images are resized to, for networks with a fixed input size; timm and torchvision set their own.
    embedding: path of the module whose output is the embedding; by default the input of the classifier.
    stages: paths of the modules whose outputs are the stages; by default the last map at every resolution.
    """
    if stem not in ("cifar", "imagenet") or (stem == "imagenet" and name not in resnet.BIG):
        raise UserError(f"no stem {stem!r} for {name}; stem = imagenet is for {', '.join(resnet.BIG)}, all else cifar")
    hooked = embedding is not None or stages is not None
    if hooked and name.startswith(("deeplabv3-", "dense-")):
        raise UserError(f"embedding and stages cannot be set for {name}: its embedding is the map its head reads")
    source = find_source(name)
    if classes == 0 and name.startswith(("deeplabv3-", "dense-")):
        raise UserError(f"{name} segments images, so it needs classes; without any, use a network that embeds images")
    if name in DEEPLAB:
        model = deeplab(name, classes, pretrained)
    elif source is not None:
        model = source[0](source[1], classes, pretrained, size)
    elif pretrained:
        raise UserError(f"nobody publishes weights for {name}; train it, or use a timm: or torchvision: network")
    else:
        model = ExternalModel(make(name, classes, stem), CIFAR_MEAN, CIFAR_STD)
    hooked = hooked or source is not None
    body = FeatureExtractor(model.module, embedding, stages, classes) if hooked else model.module
    network = Network(body, mean or model.mean, std or model.std, size or model.size)
    if hooked:  # problems show before training
        try_out(network, name, image_size, own=not name.startswith(("timm:", "torchvision:")))
    return network


def make(name: str, classes: int, stem: str = "cifar") -> nn.Module:
    """One of our own networks, for normalised images."""
    some = classes or 1
    net: Any = resnet.from_name(name, some, stem)
    for family in (wrn, vgg, shufflenet, mobilenet, simple_cnn, simple_segmentation):
        net = net or family.from_name(name, some)
    if net is None:
        raise UserError(f"unknown model {name!r}{library_hint(name) or suggest(name, (*NAMES, *IMAGENET))}")
    if not classes:
        net.head = NoClassifier()
    return cast(nn.Module, net)


def describe() -> list[dict[str, Any]]:
    """Every listed network: name, parameters at 100 classes, width of the embedding, a line on its family."""
    rows: list[tuple[str, int, int, str]] = []
    for name, family in FAMILIES.items():
        with torch.device("meta"):  # shapes without memory or arithmetic
            net = make(name, 100)
        assert isinstance(net.head, nn.Linear | nn.Conv2d)
        rows.append((name, sum(p.numel() for p in net.parameters()), net.head.weight.shape[1], family))
    deeplab_family = "DeepLabv3 for segmentation, output stride 8; the embedding is the backbone's last map"
    rows += [(name, *numbers, deeplab_family) for name, numbers in DEEPLAB.items()]
    rows += [(name, *numbers, "ImageNet size; any timm:NAME") for name, numbers in IMAGENET.items()]
    return [dict(zip(("name", "parameters", "embedding", "family"), row, strict=True)) for row in rows]
