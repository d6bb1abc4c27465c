"""The few pieces that our own networks share."""
# B batch, D embedding, H × W pixels

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.types import Features


def conv_bn(
    c_in: int,
    c_out: int,
    kernel: int = 3,
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    act: bool = True,
    bias: bool = False,
) -> nn.Sequential:
    """Convolution that keeps the size (up to its stride), batch norm, and a ReLU unless told otherwise."""
    form = StridedDepthwiseConv2d if stride > 1 and groups == c_in else nn.Conv2d
    conv = form(c_in, c_out, kernel, stride, kernel // 2 * dilation, dilation, groups, bias)
    norm = nn.BatchNorm2d(c_out)
    return nn.Sequential(conv, norm, nn.ReLU(inplace=True)) if act else nn.Sequential(conv, norm)


class StridedDepthwiseConv2d(nn.Conv2d):
    """Computed in float32 under autocast on a CPU, whose backward pass is 15 to 70 times slower in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                return super().forward(x.to(self.weight.dtype))
        return super().forward(x)


class SingleSampleNorm1d(nn.BatchNorm1d):
    """Batch norm of rows (B, C) that also takes a single row in training."""

    def forward(self, x: Tensor) -> Tensor:
        return _single_sample(self, x) if self.training and x.numel() == x.shape[1] else super().forward(x)


class SingleSampleNorm2d(nn.BatchNorm2d):
    """Batch norm of maps (B, C, H, W) that also takes a single pixel in training."""

    def forward(self, x: Tensor) -> Tensor:
        return _single_sample(self, x) if self.training and x.numel() == x.shape[1] else super().forward(x)

    @classmethod
    def like(cls, norm: nn.Module) -> SingleSampleNorm2d:
        """One with the weights of another batch norm."""
        assert isinstance(norm, nn.BatchNorm2d)
        copied = cls(norm.num_features, norm.eps, norm.momentum)
        copied.load_state_dict(norm.state_dict())
        return copied


def _single_sample(norm: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor) -> Tensor:
    """One value per channel has no variance, so running statistics serve."""
    return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)


def widths(name: str, family: str) -> tuple[int, int | None] | None:
    """`family-W` or `family-W-D` → base width and width of the embedding; None for other names."""
    match = re.fullmatch(family + r"-([1-9]\d{0,3})(?:-([1-9]\d{0,3}))?", name)
    return None if match is None else (int(match[1]), int(match[2]) if match[2] else None)


def init_convs(net: nn.Module) -> None:
    """He's initialisation by fan-out: N(0, 2 / (k² · channels out)), biases zero."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def init_head(head: nn.Linear, std: float | None = None) -> None:
    """Bias zero; weights N(0, std²) when std is given, else torch's own."""
    nn.init.zeros_(head.bias)
    if std is not None:
        nn.init.normal_(head.weight, std=std)


class NoClassifier(nn.Module):
    """In place of a classifier: no logits (B, 0), or maps of none, of an embedding (B, D) or a map."""

    def forward(self, embedding: Tensor) -> Tensor:
        return embedding[:, :0]


def classify(last: Tensor, head: nn.Module, stages: Sequence[Tensor]) -> Features:
    """Global average pool of the last map (B, D, H, W), then the linear classifier."""
    embedding = last.mean(dim=(2, 3))  # (B, D)
    return Features(head(embedding), embedding, tuple(stages), last=last)
