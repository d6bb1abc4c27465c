"""What networks answer on a dozen images or two more, and where they look: maps.npz, read without torch.

name       (n,)        of the image: its number in the test set, or its path
why        (n,)        by which rule it was chosen
label      (n,)        its class
jpeg       (bytes,)    the pictures one after the other; jpeg_end (n,) is where each ends
network    (k,)        "own", "early", "final"; a run without a teacher has "own" alone, an audit perhaps no "own"
top        (k, n, 5)   the most probable classes, the answer first; confidence (k, n, 5) their probabilities
grad_cam, integrated_gradients   (k, n, 32, 32) uint8, the largest attribution 255
classes    (C,)        names
"""
# N images of a pool, n chosen ones, k networks, B batch, C classes, H × W pixels, D channels, h × w locations of a map

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms.functional import gaussian_blur

from antishortcut.data import Loader, order
from antishortcut.data.splits import take
from antishortcut.errors import UserError
from antishortcut.fileio import atomic_write
from antishortcut.models import Network
from antishortcut.models.feature_extractor import as_stage, recorded, silent, to_map
from antishortcut.types import AnySet, DataSplits, Features

SIDE, PICTURE, QUALITY = 32, 96, 80  # of a map; longest side of a picture, and its JPEG quality
TOP = 5
BATCH = 16  # a graph that keeps all maps is large
RULES = {  # how many images, and which; they look at the teacher alone, so its students share this dozen
    "T_early and T_final differ": 6,
    "both teachers right": 3,
    "both teachers wrong": 3,
}
MORE = 2  # on which the student and T_final differ
STATES = {  # of an audit, with a student or without
    "T_early right, T_final wrong": 3,
    "T_early and T_final differ": 5,
    "both teachers right": 2,
    "both teachers wrong": 2,
}
ALONE = {"right": 6, "wrong": 6}  # of a run without a teacher


def write_answers(
    path: Path,
    networks: Mapping[str, Network],
    answers: Mapping[str, Tensor],
    pool: AnySet,
    names: Sequence[str | int],
    sets: DataSplits,
    device: str = "cpu",
) -> int:
    """Choose images of a pool by the networks' answers (N,), and write maps.npz. Returns how many there are."""
    chosen = choose(answers, pool.label)
    few = take(pool, torch.tensor([at for at, _ in chosen]))
    arrays = {
        "name": np.array([str(names[at]) for at, _ in chosen]),
        "why": np.array([why for _, why in chosen]),
        "label": few.label.numpy(),
        "classes": np.array(sets.classes),
        "network": np.array(list(networks)),
        **_pictures(few, sets.image_size),
    }
    looks = [look(network, few, sets.image_size, device) for network in networks.values()]
    arrays |= {key: np.stack([each[key] for each in looks]) for key in looks[0]}
    with atomic_write(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return len(few)


def choose(answers: Mapping[str, Tensor], label: Tensor) -> list[tuple[int, str]]:
    """Places in the pool (N,) and why each was chosen, by rule, in a random but fixed order; "any" fills a dozen."""
    if "final" in answers:
        early, final = answers["early"], answers["final"]
        fits = {
            "T_early right, T_final wrong": (early == label) & (final != label),
            "T_early and T_final differ": early != final,
            "both teachers right": (early == label) & (final == label),
            "both teachers wrong": (early != label) & (final != label) & (early == final),
        }
        rules = RULES if "own" in answers else STATES  # an audit asks the states alone
    else:
        right = answers["own"] == label
        fits, rules = {"right": right, "wrong": ~right}, ALONE
    mixed = order(len(label), 0, 0)  # (N,)
    chosen: dict[int, str] = {}

    def add(fit: Tensor, count: int, why: str) -> None:
        places = [at for at in mixed[fit[mixed]].tolist() if at not in chosen]
        chosen.update(dict.fromkeys(places[:count], why))

    for rule, count in rules.items():
        add(fits[rule], count, rule)
    add(torch.ones_like(label, dtype=torch.bool), sum(rules.values()) - len(chosen), "any")
    if rules is RULES:
        add(answers["own"] != answers["final"], MORE, "student and T_final differ")
    return list(chosen.items())


def look(network: Network, images: AnySet, size: int, device: str = "cpu") -> dict[str, NDArray[Any]]:
    """A network's answers and the maps of its first one, for every image of a set."""
    results: dict[str, list[Tensor]] = {}
    for _, logits, cam, gradients in explained(network, images, size, device):
        confidence, top = logits.softmax(dim=1).topk(min(TOP, logits.shape[1]))
        shown = {"top": top, "confidence": confidence, "grad_cam": _small(cam)}
        for key, value in (shown | {"integrated_gradients": _small(gradients.abs())}).items():
            results.setdefault(key, []).append(value.cpu())
    arrays: dict[str, NDArray[Any]] = {key: torch.cat(each).numpy() for key, each in results.items()}
    return arrays | {"top": arrays["top"].astype(np.int32), "confidence": arrays["confidence"].astype(np.float32)}


def explained(
    network: Network, images: AnySet, size: int, device: str
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Images (B, 3, H, W), logits (B, C), Grad-CAM and integrated gradients (B, H, W) of the predicted class."""
    network.to(device).eval()
    for batch in Loader.in_order(images, BATCH, size).epoch(0):
        image = batch.image.to(device)
        with torch.no_grad():
            logits = network(image).logits
        answer = logits.argmax(dim=1)
        yield image, logits, grad_cam(network, image, answer), integrated_gradients(network, image, answer)


def _small(heat: Tensor) -> Tensor:
    """(B, H, W) ≥ 0 → (B, SIDE, SIDE) uint8; means over pixels."""
    return (scaled(F.adaptive_avg_pool2d(heat[:, None], SIDE)[:, 0]) * 255).round().to(torch.uint8)


def _pictures(images: AnySet, size: int) -> dict[str, NDArray[Any]]:
    data, ends = bytearray(), []
    for batch in Loader.in_order(images, BATCH, size).epoch(0):
        for pixels in (batch.image * 255).round().byte().permute(0, 2, 3, 1).numpy():
            picture, file = Image.fromarray(pixels), io.BytesIO()
            picture.thumbnail((PICTURE, PICTURE))
            picture.save(file, format="JPEG", quality=QUALITY)
            data += file.getvalue()
            ends.append(len(data))
    return {"jpeg": np.frombuffer(bytes(data), np.uint8), "jpeg_end": np.array(ends)}


# --- Where a network looks: Grad-CAM (Selvaraju et al. 2017) and integrated gradients (Sundararajan et al. 2017) ---

# Both explain one logit of a `Network`, in evaluation mode, and leave the network as it was: no gradient, no hook.


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
