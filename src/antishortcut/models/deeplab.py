"""DeepLabv3, Chen et al. 2017: `deeplabv3-resnet101`, `-resnet50`, `-resnet18` and `-mobilenetv2`, at output stride 8.

Backbones are timm's, heads are torchvision's (ASPP of width 256 with rates 12, 24, 36; FCN as the auxiliary head of the
ResNets, none on MobileNetV2, as in CIRKD). Modules have torchvision's names, so its DeepLab checkpoints fit.
Logits keep the backbone's size, the embedding is its last map, before ASPP.

Where the published CIRKD networks differ: ResNets with a stem of three 3 × 3 convolutions, ASPP of width 512 (128 on
MobileNetV2), a dropout of 0.1 before the classifier, and BGR images with the mean subtracted. Here images are
normalised as timm's weights want them, which for the ResNets are torchvision's first ones.
"""
# B batch, C classes, D embedding, H × W pixels, h × w = ⌈H/8⌉ × ⌈W/8⌉

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.models.external import ExternalModel, make_timm
from antishortcut.models.layers import SingleSampleNorm2d
from antishortcut.types import Features

BACKBONES = {
    "deeplabv3-resnet101": "resnet101.tv_in1k",  # torchvision's first, from which published DeepLabs start
    "deeplabv3-resnet50": "resnet50.tv_in1k",
    "deeplabv3-resnet18": "resnet18.tv_in1k",
    "deeplabv3-mobilenetv2": "mobilenetv2_100.ra_in1k",
}
# what a classifier has after its last map: fully connected layers, MobileNetV2's last convolution
CLASSIFIER = ("fc.", "classifier.", "conv_head.", "bn2.")


class DeepLab(nn.Module):
    def __init__(self, backbone: nn.Module, classifier: nn.Module, aux_classifier: nn.Module | None) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = classifier
        self.aux_classifier = aux_classifier

    def forward(self, x: Tensor) -> Features:
        maps = tuple(self.backbone(x))  # sides H/2, H/4, h, h, h; the last (B, D, h, w)
        logits = self.classifier(maps[-1])  # (B, C, h, w)
        aux = self.aux_classifier(maps[-2]) if self.training and self.aux_classifier is not None else None
        return Features(logits, maps[-1], maps, aux)


def deeplab(name: str, classes: int, pretrained: bool = False) -> ExternalModel:
    """The DeepLab of that name, its backbone with ImageNet's weights if wanted."""
    try:
        backbone = make_timm(BACKBONES[name], pretrained, features_only=True, output_stride=8)
    except UserError as error:
        raise UserError(f"{error}; weights = FILE takes the backbone's from a file") from error
    from torchvision.models.segmentation.deeplabv3 import DeepLabHead  # here: seconds to import
    from torchvision.models.segmentation.fcn import FCNHead

    info: Any = backbone.module.feature_info
    widths = info.channels()  # shallow to deep
    classifier = DeepLabHead(widths[-1], classes)
    pooling = classifier[0].convs[-1]
    pooling[2] = SingleSampleNorm2d(pooling[2].num_features)
    aux = None if "mobilenet" in name else FCNHead(widths[-2], classes)
    return ExternalModel(DeepLab(backbone.module, classifier, aux), backbone.mean, backbone.std)


def backbone_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a classifier, timm's or torchvision's ResNet, without those after its last map."""
    return {key: value for key, value in state.items() if not key.startswith(CLASSIFIER)}
