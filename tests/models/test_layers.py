"""Pieces that our own networks share."""

import torch
import torch.nn.functional as F

from antishortcut.models import build
from antishortcut.models.layers import StridedDepthwiseConv2d, conv_bn


def test_strided_depthwise_convolutions_stay_in_float32_under_autocast_on_a_cpu() -> None:
    torch.manual_seed(0)
    strided, plain = (conv_bn(6, 6, stride=stride, groups=6)[0] for stride in (2, 1))
    assert isinstance(strided, StridedDepthwiseConv2d)
    image = torch.rand(2, 6, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert plain(image).dtype == torch.bfloat16
        under = strided(image.bfloat16())
    assert torch.equal(under, F.conv2d(image.bfloat16().float(), strided.weight, None, 2, 1, groups=6))
    assert torch.equal(strided(image), F.conv2d(image, strided.weight, None, 2, 1, groups=6))
    assert strided.bfloat16()(image.bfloat16()).dtype == torch.bfloat16  # a teacher in bfloat16 has no autocast
    assert any(isinstance(m, StridedDepthwiseConv2d) for m in build("mobilenet-v2", 3, image_size=32).modules())
