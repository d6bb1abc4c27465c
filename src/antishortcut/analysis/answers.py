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
# N images of a pool, n chosen ones, k networks, C classes, H × W pixels

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from antishortcut.analysis.saliency import grad_cam, integrated_gradients, scaled
from antishortcut.data import Loader, order
from antishortcut.data.splits import take
from antishortcut.fileio import atomic_write
from antishortcut.models import Network
from antishortcut.types import AnySet, DataSplits

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
    for batch in Loader(images, batch=BATCH, seed=0, image_size=size, augment="none", shuffle=False).epoch(0):
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
    for batch in Loader(images, batch=BATCH, seed=0, image_size=size, augment="none", shuffle=False).epoch(0):
        for pixels in (batch.image * 255).round().byte().permute(0, 2, 3, 1).numpy():
            picture, file = Image.fromarray(pixels), io.BytesIO()
            picture.thumbnail((PICTURE, PICTURE))
            picture.save(file, format="JPEG", quality=QUALITY)
            data += file.getvalue()
            ends.append(len(data))
    return {"jpeg": np.frombuffer(bytes(data), np.uint8), "jpeg_end": np.array(ends)}
