"""Small networks for dense prediction on a CPU: `dense-W`, or `dense-W-D` with an embedding of width D.

Four blocks of convolution, batch norm and ReLU with W, 2W, 4W, 4W channels at an output stride of 4: two of one strided
convolution, two of a pair of dilated ones, which see 127 pixels. What lies farther away, the whole scene, comes as the
mean of the third map, added in the last block. Stage maps are taken after the ReLU. `-D` adds a 1 × 1 convolution, so
that a narrow student and a wide teacher can have embeddings of one width.

The scene begins at zero and joins after the last norm: before it and from the start, a network trained on crops was
worse on whole images with it than without (CamVid, crops of 128 pixels, one seed).
"""
# B batch, C classes, H × V pixels, W base width, D embedding

from torch import Tensor, nn

from antishortcut.models.layers import conv_bn, init_convs, widths
from antishortcut.types import Features


class SimpleSegmentation(nn.Module):
    def __init__(self, classes: int, width: int, embedding: int | None = None) -> None:
        super().__init__()
        wide = 4 * width
        self.stages = nn.ModuleList(
            [
                conv_bn(3, width, stride=2),
                conv_bn(width, 2 * width, stride=2),
                nn.Sequential(conv_bn(2 * width, wide), conv_bn(wide, wide, dilation=2)),
                nn.Sequential(conv_bn(wide, wide, dilation=4), conv_bn(wide, wide, dilation=8, act=False)),
            ]
        )
        self.scene = nn.Conv2d(wide, wide, 1, bias=False)  # no batch norm: a lone image has one value a channel
        self.relu = nn.ReLU()
        self.last: nn.Module = nn.Identity() if embedding is None else conv_bn(wide, embedding, 1)
        self.head = nn.Conv2d(embedding or wide, classes, 1)
        init_convs(self)
        nn.init.zeros_(self.scene.weight)

    def forward(self, x: Tensor) -> Features:
        maps: list[Tensor] = []
        for stage in self.stages[:3]:
            x = stage(x)  # (B, W, H/2, V/2), (B, 2W, H/4, V/4), (B, 4W, H/4, V/4)
            maps.append(x)
        scene = self.scene(x.mean(dim=(2, 3), keepdim=True))  # (B, 4W, 1, 1)
        maps.append(self.relu(self.stages[3](x) + scene))  # (B, 4W, H/4, V/4)
        embedding = self.last(maps[-1])  # (B, D, H/4, V/4)
        return Features(self.head(embedding), embedding, tuple(maps))


def from_name(name: str, classes: int) -> SimpleSegmentation | None:
    """The network of that name, or None when it is no small dense one."""
    sizes = widths(name, "dense")
    return None if sizes is None else SimpleSegmentation(classes, *sizes)
