"""Small plain convolutional networks for a CPU and small images: `cnn-W`, or `cnn-W-D` with an embedding of width D.

Four blocks of convolution, batch norm and ReLU with W, 2W, 4W, 4W channels. The first already has stride 2: most of the
cost of a small network lies in its full-resolution layers. Stage maps are taken after the ReLU. `-D` adds a 1 × 1
convolution, so that a narrow student and a wide teacher can have embeddings of one width.
"""
# B batch, S side of the image, W base width, D embedding

from torch import Tensor, nn

from antishortcut.models.layers import classify, conv_bn, init_convs, init_head, widths
from antishortcut.types import Features


class SimpleCNN(nn.Module):
    def __init__(self, classes: int, width: int, embedding: int | None = None) -> None:
        super().__init__()
        channels = (3, width, 2 * width, 4 * width, 4 * width)
        strides = (2, 2, 2, 1)
        self.stages = nn.ModuleList(conv_bn(channels[i], channels[i + 1], stride=strides[i]) for i in range(4))
        self.last: nn.Module = nn.Identity() if embedding is None else conv_bn(channels[-1], embedding, 1)
        self.head = nn.Linear(embedding or channels[-1], classes)
        init_convs(self)
        init_head(self.head)

    def forward(self, x: Tensor) -> Features:
        maps: list[Tensor] = []
        for stage in self.stages:
            x = stage(x)  # (B, W, S/2, S/2), (B, 2W, S/4, S/4), (B, 4W, S/8, S/8), (B, 4W, S/8, S/8)
            maps.append(x)
        return classify(self.last(x), self.head, maps)


def from_name(name: str, classes: int) -> SimpleCNN | None:
    """The network of that name, or None when it is no plain one."""
    sizes = widths(name, "cnn")
    return None if sizes is None else SimpleCNN(classes, *sizes)
