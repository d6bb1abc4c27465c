"""Wide ResNet, Zagoruyko & Komodakis 2016: `wrn-depth-width`, depth 6n + 4.

Pre-activation: stage maps are raw sums, signed; batch norm and ReLU come only before the pooling.
"""
# B batch, S side of the image, k widening factor

import re

from torch import Tensor, nn

from antishortcut.models.layers import classify, init_convs, init_head
from antishortcut.types import Features


def conv(c_in: int, c_out: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(c_in, c_out, kernel, stride, padding=kernel // 2, bias=False)


class PreActivationBlock(nn.Module):
    """x + conv(relu(bn(conv(relu(bn(x)))))); where the width changes the shortcut reads the activated input."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(c_in)
        self.conv1 = conv(c_in, c_out, stride=stride)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.conv2 = conv(c_out, c_out)
        self.shortcut = conv(c_in, c_out, 1, stride) if c_in != c_out else None
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        active = self.relu(self.bn1(x))
        saved: Tensor = x if self.shortcut is None else self.shortcut(active)
        y: Tensor = self.conv2(self.relu(self.bn2(self.conv1(active))))
        return saved + y


class WideResNet(nn.Module):
    def __init__(self, classes: int, depth: int, width: int) -> None:
        super().__init__()
        count = (depth - 4) // 6
        channels = (16, 16 * width, 32 * width, 64 * width)
        self.stem = conv(3, channels[0])
        self.stages = nn.ModuleList()
        for i in range(3):
            blocks = [PreActivationBlock(channels[i], channels[i + 1], 1 if i == 0 else 2)]
            blocks += [PreActivationBlock(channels[i + 1], channels[i + 1], 1) for _ in range(count - 1)]
            self.stages.append(nn.Sequential(*blocks))
        self.norm = nn.BatchNorm2d(channels[3])
        self.relu = nn.ReLU()
        self.head = nn.Linear(channels[3], classes)
        init_convs(self)
        init_head(self.head)

    def forward(self, x: Tensor) -> Features:
        maps = [self.stem(x)]  # (B, 16, S, S)
        for stage in self.stages:
            maps.append(stage(maps[-1]))  # (B, 16k, S, S), (B, 32k, S/2, S/2), (B, 64k, S/4, S/4)
        return classify(self.relu(self.norm(maps[-1])), self.head, maps)


def from_name(name: str, classes: int) -> WideResNet | None:
    """The network of that name, or None when it is no Wide ResNet."""
    match = re.fullmatch(r"wrn-(\d{1,4})-(\d{1,3})", name)
    if match is None:
        return None
    depth, width = int(match[1]), int(match[2])
    return None if depth < 10 or depth % 6 != 4 or width < 1 else WideResNet(classes, depth, width)
