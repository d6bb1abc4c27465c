"""ResNet, He et al. 2016, as the CIFAR tables of distillation papers use it.

Two groups of names: `resnet20`, `resnet110`, … and `resnet8x4`, `resnet32x4`, … (three stages, depth 6n + 2), and
`resnet18/34/50` (four stages, a 3 × 3 stem without pooling). Stage maps are taken after the ReLU.
"""
# B batch, S side of the image

import re
from collections.abc import Sequence

from torch import Tensor, nn

from antishortcut.models.layers import classify, conv_bn, init_convs
from antishortcut.types import Features


class ResidualBlock(nn.Module):
    """relu(path(x) + shortcut(x)); the shortcut is a 1 × 1 convolution where the shape changes."""

    def __init__(self, path: nn.Sequential, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.path = path
        same = stride == 1 and c_in == c_out
        self.shortcut: nn.Module = nn.Identity() if same else conv_bn(c_in, c_out, 1, stride=stride, act=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.path(x) + self.shortcut(x))
        return y


def basic(c_in: int, width: int, stride: int) -> ResidualBlock:
    path = nn.Sequential(conv_bn(c_in, width, stride=stride), conv_bn(width, width, act=False))
    return ResidualBlock(path, c_in, width, stride)


def bottleneck(c_in: int, width: int, stride: int) -> ResidualBlock:
    c_out = 4 * width
    path = nn.Sequential(
        conv_bn(c_in, width, 1), conv_bn(width, width, stride=stride), conv_bn(width, c_out, 1, act=False)
    )
    return ResidualBlock(path, c_in, c_out, stride)


class ResNet(nn.Module):
    """Stem, then stages of residual blocks; every stage but the first halves the side."""

    def __init__(
        self,
        classes: int,
        stem_width: int,
        widths: Sequence[int],
        blocks: Sequence[int],
        *,
        deep: bool = False,
        stem: str = "cifar",
    ) -> None:
        super().__init__()
        self.stem = conv_bn(3, stem_width, 3 if stem == "cifar" else 7, stride=1 if stem == "cifar" else 2)
        if stem == "imagenet":
            self.stem.append(nn.MaxPool2d(3, 2, padding=1))
        make, expansion = (bottleneck, 4) if deep else (basic, 1)
        self.stages = nn.ModuleList()
        c_in = stem_width
        for i, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            stage = nn.Sequential()
            for j in range(count):
                stage.append(make(c_in, width, 2 if i > 0 and j == 0 else 1))
                c_in = width * expansion
            self.stages.append(stage)
        self.head = nn.Linear(c_in, classes)
        init_convs(self)

    def forward(self, x: Tensor) -> Features:
        maps = [self.stem(x)]  # (B, stem, S, S); with the ImageNet stem S/4
        for stage in self.stages:
            maps.append(stage(maps[-1]))  # the side halves from the second stage on
        return classify(maps[-1], self.head, maps)


BIG = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}


def from_name(name: str, classes: int, stem: str = "cifar") -> ResNet | None:
    """The network of that name, or None when it is no ResNet of ours."""
    if name in BIG:
        return ResNet(classes, 64, (64, 128, 256, 512), BIG[name], deep=name == "resnet50", stem=stem)
    match = re.fullmatch(r"resnet(\d{1,4})(x4)?", name)
    if match is None:
        return None
    depth = int(match[1])
    if depth < 8 or depth % 6 != 2:
        return None
    count = (depth - 2) // 6
    # the ×4 nets widen their stem only twice, so their first block has a shortcut convolution
    stem_width, widths = (32, (64, 128, 256)) if match[2] else (16, (16, 32, 64))
    return ResNet(classes, stem_width, widths, (count,) * 3)
