"""VGG with batch norm, Simonyan & Zisserman 2015, in the CIFAR form with one linear layer: `vgg8`, `vgg13`.

Stage maps are taken after the ReLU and before the pooling.
"""
# B batch, S side of the image

import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.models.layers import classify, conv_bn, init_convs, init_head
from antishortcut.types import Features

WIDTHS = (64, 128, 256, 512, 512)
CONVS = {"vgg8": 1, "vgg13": 2}  # convolutions a stage


class VGG(nn.Module):
    def __init__(self, classes: int, convs: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        c_in = 3
        for width in WIDTHS:
            stage = nn.Sequential(conv_bn(c_in, width, bias=True))
            for _ in range(convs - 1):
                stage.append(conv_bn(width, width, bias=True))
            self.stages.append(stage)
            c_in = width
        self.head = nn.Linear(c_in, classes)
        init_convs(self)
        init_head(self.head, std=0.01)

    def forward(self, x: Tensor) -> Features:
        pools = 4 if x.shape[-1] == 64 else 3  # the peers' rule: a fourth pooling for TinyImageNet's size alone
        maps: list[Tensor] = []
        for i, stage in enumerate(self.stages):
            x = stage(x)  # (B, 64, S, S), (B, 128, S/2, S/2), (B, 256, S/4, S/4), (B, 512, S/8, S/8), (B, 512, …)
            maps.append(x)
            if i < pools:
                x = F.max_pool2d(x, 2)
        return classify(x, self.head, maps)


def from_name(name: str, classes: int) -> VGG | None:
    """The network of that name, or None when it is no VGG of ours."""
    return VGG(classes, CONVS[name]) if name in CONVS else None
