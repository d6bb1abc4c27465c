"""ShuffleNet v1 (Zhang et al. 2018, three groups) and v2 (Ma et al. 2018) for CIFAR: a 1 × 1 stem, no max pooling.

Stage maps are taken after the last block of a stage; torch's default initialisation, as in the peers.
"""
# B batch, S side of the image

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.models.layers import classify, conv_bn
from antishortcut.types import Features

V2_WIDTHS = {"shufflenet-v2": (116, 232, 464), "shufflenet-v2-x0.5": (48, 96, 192)}


class UnitV1(nn.Module):
    """Grouped 1 × 1, shuffle, depthwise 3 × 3, grouped 1 × 1; a stride-2 unit concatenates its pooled input."""

    def __init__(self, c_in: int, c_out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.stride = stride
        c_path = c_out - c_in if stride == 2 else c_out
        middle = c_path // 4
        first = 1 if c_in == 24 else groups  # the stem's 24 channels are too few to be grouped
        self.squeeze = conv_bn(c_in, middle, 1, groups=first)
        self.shuffle = nn.ChannelShuffle(first)
        self.spatial = conv_bn(middle, middle, stride=stride, groups=middle)
        self.expand = conv_bn(middle, c_path, 1, groups=groups, act=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.expand(self.spatial(self.shuffle(self.squeeze(x))))
        joined = torch.cat([y, F.avg_pool2d(x, 3, 2, padding=1)], dim=1) if self.stride == 2 else y + x
        active: Tensor = self.relu(joined)
        return active


def separable(c_in: int, c_out: int, stride: int) -> nn.Sequential:
    """1 × 1, depthwise 3 × 3 and 1 × 1; no activation but after the first."""
    depthwise = conv_bn(c_out, c_out, stride=stride, groups=c_out, act=False)
    return nn.Sequential(conv_bn(c_in, c_out, 1), depthwise, conv_bn(c_out, c_out, 1, act=False))


class UnitV2(nn.Module):
    """Half of the channels pass, half are transformed, then all are shuffled; a stride-2 unit transforms both.

    The ReLU comes last, so that a stage ends in one: what passes is never negative, and it stays as it is.
    """

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        half = c_out // 2
        self.left = None
        if stride == 2:
            depthwise = conv_bn(c_in, c_in, stride=2, groups=c_in, act=False)
            self.left = nn.Sequential(depthwise, conv_bn(c_in, half, 1, act=False))
        self.right = separable(c_in if stride == 2 else half, half, stride)
        self.shuffle = nn.ChannelShuffle(2)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1) if self.left is None else (self.left(x), x)
        active: Tensor = self.relu(self.shuffle(torch.cat([left, self.right(right)], dim=1)))
        return active


class ShuffleNet(nn.Module):
    """Stem, three stages that each halve the side, and in v2 a last 1 × 1 convolution."""

    def __init__(self, classes: int, stages: list[nn.Sequential], width: int, last: int | None) -> None:
        super().__init__()
        self.stem = conv_bn(3, 24, 1)
        self.stages = nn.ModuleList(stages)
        self.last: nn.Module = nn.Identity() if last is None else conv_bn(width, last, 1)
        self.head = nn.Linear(last or width, classes)

    def forward(self, x: Tensor) -> Features:
        maps = [self.stem(x)]  # (B, 24, S, S)
        for stage in self.stages:
            maps.append(stage(maps[-1]))  # sides S/2, S/4, S/8
        return classify(self.last(maps[-1]), self.head, maps)


def from_name(name: str, classes: int) -> ShuffleNet | None:
    """The network of that name, or None when it is no ShuffleNet of ours."""
    if name != "shufflenet-v1" and name not in V2_WIDTHS:
        return None
    widths = V2_WIDTHS.get(name, (240, 480, 960))
    stages, c_in = [], 24
    for width, count in zip(widths, (4, 8, 4), strict=True):
        units: list[nn.Module] = []
        for i in range(count):
            stride = 2 if i == 0 else 1
            v1 = name == "shufflenet-v1"
            units.append(UnitV1(c_in, width, stride, groups=3) if v1 else UnitV2(c_in, width, stride))
            c_in = width
        stages.append(nn.Sequential(*units))
    return ShuffleNet(classes, stages, c_in, last=1024 if name in V2_WIDTHS else None)
