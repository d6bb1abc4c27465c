"""MobileNetV2, Sandler et al. 2018, in the two forms of the distillation tables.

`mobilenet-v2` is RepDistiller's CIFAR net: half width, a stride-2 stem. `mobilenet-v2-x1.0` is mdistiller's net for
TinyImageNet: full width, biased convolutions, ReLU6, and a padded 1 × 1 stem (64 pixels make a first map of 66).
Stage maps are linear (signed) block outputs, except the stem's, and the x1.0 net's last.
"""
# B batch, S side of the image

from torch import Tensor, nn

from antishortcut.models.layers import classify, conv_bn, init_convs, init_head
from antishortcut.types import Features

#         expansion, width, blocks
ROWS = ((1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1))


class InvertedResidual(nn.Module):
    """1 × 1 expansion, depthwise 3 × 3, linear 1 × 1 projection; added to the input when shapes agree."""

    def __init__(self, c_in: int, c_out: int, stride: int, expansion: int, bias: bool) -> None:
        super().__init__()
        wide = c_in * expansion
        self.path = nn.Sequential(
            conv_bn(c_in, wide, 1, bias=bias),
            conv_bn(wide, wide, stride=stride, groups=wide, bias=bias),
            conv_bn(wide, c_out, 1, act=False, bias=bias),
        )
        self.adds = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.path(x)
        return x + y if self.adds else y


class MobileNetV2(nn.Module):
    def __init__(self, classes: int, width: float, strides: tuple[int, ...], taps: tuple[int, ...], bias: bool) -> None:
        super().__init__()
        c_in = int(32 * width)
        self.stem = conv_bn(3, c_in, stride=2)
        self.taps = taps  # rows whose output is a stage
        self.rows = nn.ModuleList()
        for (expansion, base, count), stride in zip(ROWS, strides, strict=True):
            row = nn.Sequential()
            for i in range(count):
                row.append(InvertedResidual(c_in, int(base * width), stride if i == 0 else 1, expansion, bias))
                c_in = int(base * width)
            self.rows.append(row)
        self.last = conv_bn(c_in, 1280, 1, bias=bias)
        self.head = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Features:
        x = self.stem(x)  # (B, 32 · width, S/2, S/2)
        maps = [x]
        for i, row in enumerate(self.rows):
            x = row(x)
            if i in self.taps:
                maps.append(x)
        x = self.last(x)  # (B, 1280, …)
        if len(self.rows) in self.taps:
            maps.append(x)
        return classify(x, self.head, maps)


def half(classes: int) -> MobileNetV2:
    net = MobileNetV2(classes, 0.5, strides=(1, 1, 2, 2, 1, 2, 1), taps=(1, 2, 4, 6), bias=False)
    init_convs(net)
    init_head(net.head, std=0.01)
    return net


def full(classes: int) -> MobileNetV2:
    net = MobileNetV2(classes, 1.0, strides=(1, 2, 2, 2, 1, 1, 1), taps=(1, 2, 3, 7), bias=True)
    net.stem[0] = nn.Conv2d(3, 32, 1, padding=1)
    for module in list(net.modules()):
        if isinstance(module, nn.Sequential) and isinstance(module[-1], nn.ReLU):
            module[-1] = nn.ReLU6(inplace=True)
    return net


def from_name(name: str, classes: int) -> MobileNetV2 | None:
    """The network of that name, or None when it is no MobileNet of ours."""
    makers = {"mobilenet-v2": half, "mobilenet-v2-x1.0": full}
    return makers[name](classes) if name in makers else None
