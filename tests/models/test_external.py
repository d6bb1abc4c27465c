"""Networks of timm and torchvision, many kinds at several sizes, without a download."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.models import FeatureExtractor, build, feature_shapes
from antishortcut.models.external import published
from antishortcut.models.feature_extractor import count_logits
from tests.models import one_thread as one_thread

# name: (side, width of the embedding, channels and side of every stage)
QUICK: dict[str, tuple[int, int, list[tuple[int, int]]]] = {
    "timm:mobilenetv3_small_100": (32, 1024, [(16, 16), (16, 8), (24, 4), (48, 2)]),
    "timm:efficientnet_b0": (32, 1280, [(16, 16), (24, 8), (40, 4), (112, 2)]),
    "timm:convnext_atto": (96, 320, [(40, 24), (80, 12), (160, 6), (320, 3)]),
    "timm:regnetx_002": (32, 368, [(32, 16), (24, 8), (56, 4), (152, 2)]),
    "timm:ghostnet_100": (64, 1280, [(16, 32), (24, 16), (40, 8), (80, 4), (160, 2)]),
    "timm:edgenext_xx_small": (224, 168, [(24, 56), (48, 28), (88, 14), (168, 7)]),  # attention between channels
    "timm:pvt_v2_b0": (64, 256, [(32, 16), (64, 8), (160, 4), (256, 2)]),  # attention to fewer places
    "torchvision:mobilenet_v3_small": (96, 1024, [(16, 48), (16, 24), (24, 12), (48, 6), (576, 3)]),
    "torchvision:googlenet": (32, 1024, [(64, 16), (192, 8), (480, 4), (832, 2)]),
}
SLOW: dict[str, tuple[int, int, list[tuple[int, int]]]] = {
    "timm:resnet50": (224, 2048, [(64, 112), (256, 56), (512, 28), (1024, 14), (2048, 7)]),
    "timm:vit_tiny_patch16_224": (64, 192, [(192, 14)] * 4),
    "timm:mixer_s32_224": (96, 512, [(512, 7)] * 4),
    "timm:swin_tiny_patch4_window7_224": (32, 768, [(96, 56), (192, 28), (384, 14), (768, 7)]),
    "timm:fastvit_t8": (64, 768, [(48, 16), (96, 8), (192, 4), (384, 2)]),
    "timm:mobileone_s0": (96, 1024, [(48, 48), (48, 24), (128, 12), (256, 6), (1024, 3)]),
    "timm:efficientformer_l1": (224, 448, [(48, 56), (96, 28), (224, 14), (448, 7)]),
    "timm:levit_128s": (224, 768, [(128, 14), (256, 7), (384, 4)]),
    "torchvision:vit_b_16": (32, 768, [(768, 14)] * 4),
    "torchvision:swin_t": (96, 768, [(96, 24), (192, 12), (384, 6), (768, 3)]),
    "torchvision:inception_v3": (96, 2048, [(32, 47), (64, 45), (80, 22), (192, 20), (288, 9), (768, 4)]),
}


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_embedding_and_stages(name: str) -> None:
    side, width, stages = (QUICK | SLOW)[name]
    torch.manual_seed(0)
    network = build(name, 7, image_size=side)
    shape = feature_shapes(network, side)
    assert shape.embedding == width
    assert shape.stages == tuple((channels, s, s) for channels, s in stages)
    with torch.no_grad():
        features = network.train()(torch.rand(2, 3, side, side))
    assert features.logits.shape == (2, 7)
    assert features.embedding.shape == (2, width)
    if network.head is not None:
        torch.testing.assert_close(network.head(features.embedding), features.logits, rtol=1e-4, atol=1e-5)


def test_transformers_are_made_for_the_size_that_is_named() -> None:
    small = build("timm:deit_tiny_patch16_224", 5, image_size=32, size=64)
    assert small.size == 64
    assert isinstance(small.body, FeatureExtractor)
    assert small.body.module.get_parameter("pos_embed").shape[1] == 1 + 16
    resized = build("timm:resnet10t", 5, image_size=32, size=48)  # takes any: images are brought to it
    assert resized.size == 48
    assert resized(torch.rand(2, 3, 32, 32)).stages[0].shape[2] == 24


def test_unused_auxiliary_heads_are_not_computed() -> None:
    network = build("torchvision:googlenet", 5, image_size=32)
    assert any("aux1.fc2.weight" in key for key in network.state_dict())  # its checkpoints still fit
    network.train()(torch.rand(2, 3, 32, 32)).logits.sum().backward()
    assert all(p.grad is not None for p in network.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("name", "width", "aux"),
    [
        ("torchvision:lraspp_mobilenet_v3_large", 168, False),
        pytest.param("torchvision:fcn_resnet50", 512, True, marks=pytest.mark.slow),
        pytest.param("torchvision:deeplabv3_resnet50", 256, True, marks=pytest.mark.slow),
    ],
)
def test_segmentation_networks_of_torchvision(name: str, width: int, aux: bool) -> None:
    torch.manual_seed(0)
    network = build(name, 7, image_size=64)
    shape = feature_shapes(network, 64)
    assert (shape.maps, shape.embedding) == (True, width)
    assert all(channels != 7 for channels, _, _ in shape.stages)
    features = network.eval()(torch.rand(2, 3, 48, 64))
    assert features.logits.shape == (2, 7, 48, 64)
    assert features.embedding.shape == (2, width, 6, 8)
    assert features.aux is None
    learning = network.train()(torch.rand(1 if "deeplab" in name else 2, 3, 64, 64))  # one image alone
    assert (learning.aux is not None) is aux
    if aux:
        assert learning.aux is not None
        assert learning.aux.shape[1] == 7
    assert not isinstance(network.head, nn.Linear)


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("torchvision:resnet18", True), ("torchvision:resnet19", False), ("timm:test_byobnet", True),
        ("timm:no_such_network", False), ("cnn-8", False), ("my.module:net", False),
    ],
)  # fmt: skip
def test_whether_weights_are_published(name: str, there: bool) -> None:
    assert published(name) is there


def test_unknown_names_are_answered_with_near_ones() -> None:
    with pytest.raises(
        UserError, match=r"no classifier or segmentation network 'fcn_resnet5'; did you mean 'fcn_resnet50'"
    ):
        build("torchvision:fcn_resnet5", 5)
    with pytest.raises(UserError, match=r"cannot read images of 32 pixels: .*use larger ones \(data\.image_size\)"):
        build("torchvision:alexnet", 5, image_size=32)


class Returns(nn.Module):
    """Returns a map's mean, what a linear layer makes of it, or both, as told."""

    def __init__(self, form: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.conv, self.fc, self.form = nn.Conv2d(3, 6, 3), nn.Linear(6, 5), form

    def forward(self, x: Tensor) -> Any:
        embedding = torch.relu(self.conv(x)).mean((2, 3))
        return self.form(embedding, self.fc(embedding))


@pytest.mark.parametrize(
    ("form", "classes", "width"),
    [
        (lambda e, y: y, 5, 5),
        (lambda e, y: (e, y), 5, 6),
        (lambda e, y: {"feat": e, "answer": y}, 5, 6),
        (lambda e, y: {"embedding": e, "logits": y}, 5, 6),
        (lambda e, y: e, 0, 6),
        (lambda e, y: {"tokens": e[:, None].expand(-1, 4, -1), "pooler_output": e}, 0, 6),
        (lambda e, y: {"last_hidden_state": e[:, None].expand(-1, 4, -1)}, 0, 6),
        (lambda e, y: {"last_hidden_state": e[:, None], "image_embeds": y}, 0, 5),
    ],
)
def test_a_module_counts_its_classes_and_its_embedding_is_found(form: Any, classes: int, width: int) -> None:
    module, image = Returns(form), torch.rand(2, 3, 8, 8)
    assert count_logits(module, image) == classes
    assert FeatureExtractor(module, classes=0)(image).embedding.shape == (2, width)


def test_the_projection_of_an_image_tower_is_no_classifier() -> None:
    module: Any = timm.create_model("test_vit", num_classes=512)
    assert count_logits(module, torch.rand(2, 3, 160, 160)) == 512
    module.pretrained_cfg = {"architecture": "vit_base_patch16_clip_224", "tag": "openai", "num_classes": 512}
    assert count_logits(module, torch.rand(2, 3, 160, 160)) == 0
    module.pretrained_cfg["tag"] = "openai_ft_in1k"
    assert count_logits(module, torch.rand(2, 3, 160, 160)) == 512
