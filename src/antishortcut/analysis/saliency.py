"""Where a network looks: Grad-CAM (Selvaraju et al. 2017) and integrated gradients (Sundararajan et al. 2017).

Both explain one logit of a `Network`, in evaluation mode, and leave the network as it was: no gradient, no hook.
"""
# B batch, C classes, H × W pixels, D channels, h × w locations of a map

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms.functional import gaussian_blur

from antishortcut.errors import UserError
from antishortcut.models import Network
from antishortcut.models.feature_extractor import as_stage, recorded, silent, to_map
from antishortcut.types import Features

COARSE = 4  # a map of fewer locations a side says too little; an earlier one is read
NORMS = ("Norm", "BatchNorm2d", "LayerNorm", "LayerNorm2d", "RmsNorm", "RMSNorm", "GroupNorm")
STEPS = 32  # of the path from the baseline to the image
BLUR = 0.125  # σ of the blurred baseline, in sides


class MapAndGradient(NamedTuple):
    value: Tensor  # (B, D, h, w)
    gradient: Tensor  # (B, D, h, w)


def grad_cam(network: Network, image: Tensor, label: Tensor) -> Tensor:
    """ReLU(Σ_d mean_hw(∂logit/∂A_d) A_d) of the last useful map A, resized, each image's maximum 1. (B, H, W) in [0, 1]

    image (B, 3, H, W) in [0, 1], label (B,) the class whose logit is explained. The map is the last one on which the
    logits depend location by location: of a transformer that reads its class token, the one before the last attention.
    An image on which the class has no positive evidence gets zeros.
    """
    with _differentiable(network, image) as point:
        read = _last_map(network, point, label)
        weight = read.gradient.mean(dim=(2, 3), keepdim=True)  # (B, D, 1, 1)
        cam = (weight * read.value).sum(dim=1, keepdim=True).relu()  # (B, 1, h, w)
    cam = F.interpolate(cam.float(), image.shape[2:], mode="bilinear")[:, 0].clamp(min=0)  # (B, H, W)
    return scaled(cam)


def integrated_gradients(
    network: Network, image: Tensor, label: Tensor, *, steps: int = STEPS, baseline: str = "blurred"
) -> Tensor:
    """Σ_rgb (x − b) · mean of ∂logit/∂x on the way from the baseline b to the image x. (B, H, W), signed

    The values of an image add up to logit(x) − logit(b), as exactly as `steps` (midpoint rule) allow. The baseline is
    the image "blurred" until its details are gone, or its "mean" colour.
    """
    start = blank(image, baseline)
    slopes = torch.zeros_like(image)
    for step in range(steps):
        with _differentiable(network, start + (step + 0.5) / steps * (image - start)) as point:
            score = network(point).logits.gather(1, label[:, None]).sum()
            (slope,) = torch.autograd.grad(score, point)
        slopes = slopes + slope
    return ((image - start) * slopes / steps).sum(dim=1)


def blank(image: Tensor, baseline: str) -> Tensor:
    """The image without what is to be explained. (B, 3, H, W)"""
    if baseline == "mean":
        return image.mean(dim=(2, 3), keepdim=True).expand_as(image)
    if baseline != "blurred":
        raise ValueError(f"baseline is 'blurred' or 'mean', not {baseline!r}")
    sigma = BLUR * min(image.shape[2:])
    blurred: Tensor = gaussian_blur(image, [2 * round(3 * sigma) + 1] * 2, [sigma, sigma])
    return blurred


def scaled(heat: Tensor) -> Tensor:
    """Sizes of attributions (B, H, W), each image's largest 1; zeros stay zeros."""
    size = heat.abs()
    return size / size.amax(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)


def share_inside(heat: Tensor, mask: Tensor) -> Tensor:
    """The share of each image's attribution that falls on a mask, (B, H, W) in [0, 1]; NaN of an empty map. (B,)"""
    size = heat.abs().double()
    return (size * mask).sum(dim=(1, 2)) / size.sum(dim=(1, 2))


@contextmanager
def _differentiable(network: nn.Module, image: Tensor) -> Iterator[Tensor]:
    """In evaluation mode with gradients on, the image as the start of a graph."""
    with silent(network), torch.inference_mode(False), torch.enable_grad():
        yield image.detach().clone().requires_grad_()


def _last_map(network: Network, image: Tensor, label: Tensor) -> MapAndGradient:
    """The last map, at least COARSE a side if there is one, with a gradient other than zero, and that gradient.

    Maps are outputs of blocks and of normalisation layers; those of single layers inside a block, like the queries of
    an attention, are passed over.
    """
    paths = [path for path, part in network.named_modules() if path and _is_block(part)]
    with recorded(network, paths) as calls:
        features: Features = network(image)
    score = features.logits.gather(1, label[:, None]).sum()
    resized = network.resized(image)
    outputs = [features.last, *(call.output for call in reversed(calls.values()))]  # last: after its ReLU
    stages = [(stage, output) for output in outputs if (stage := as_stage("", output, resized)) and output is not None]
    stages = [(stage, output) for stage, output in stages if min(stage.side) > 1 and output.requires_grad]
    gradients = torch.autograd.grad(score, [output for _, output in stages], allow_unused=True) if stages else ()
    maps = []
    for (stage, output), gradient in zip(stages, gradients, strict=True):
        if gradient is not None and bool((at_patches := to_map(gradient, stage, resized)).any()):
            maps.append(MapAndGradient(to_map(output, stage, resized).detach(), at_patches))
    if not maps:
        raise UserError("Grad-CAM needs a network with feature maps, and this one has none that its answer depends on")
    return next((each for each in maps if min(each.value.shape[2:]) >= COARSE), maps[0])


def _is_block(part: nn.Module) -> bool:
    return any(True for _ in part.children()) or type(part).__name__ in NORMS
