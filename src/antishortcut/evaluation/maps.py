"""Where student, T_early and T_final look on the same dozen test images: artifacts/maps.npz, read without torch.

name       (n,)        of the image: its number in the test set, or its path
why        (n,)        by which rule it was chosen
label      (n,)        its class
jpeg       (bytes,)    the pictures one after the other; jpeg_end (n,) is where each ends
network    (k,)        "own", "early", "final"; a run without a teacher has "own" alone
top        (k, n, 5)   the most probable classes, the answer first; confidence (k, n, 5) their probabilities
grad_cam, integrated_gradients   (k, n, 32, 32) uint8, the largest attribution 255
classes    (C,)        names
"""
# N images of a pool, n chosen ones, k networks, C classes, H × W pixels

import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from antishortcut.analysis.features import predictions, sample
from antishortcut.analysis.saliency import grad_cam, integrated_gradients, scaled, share_inside
from antishortcut.data import DATASETS, Loader, order
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import limited, take
from antishortcut.data.synthetic import glyph_cover, make_cues
from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Score
from antishortcut.fileio import atomic_write
from antishortcut.models import Network
from antishortcut.types import AnySet, ImageSet

ARTIFACT = Path("artifacts") / "maps.npz"
POOL = 2_000  # test images that those are chosen from
SIDE, PICTURE, QUALITY = 32, 96, 80  # of a map; longest side of a picture, and its JPEG quality
TOP = 5
BATCH = 16  # a graph that keeps all maps is large
GLYPHS = 256  # images on which the share on the glyph is measured
RULES = {  # how many images, and which; the first three look at the teacher alone, so its students share them
    "T_early and T_final differ": 6,
    "both teachers right": 2,
    "both teachers wrong": 2,
    "student and T_final differ": 2,
}
ALONE = {"right": 6, "wrong": 6}  # of a run without a teacher
VERSION = 1


def maps(context: EvalContext) -> Iterator[Score]:
    """Grad-CAM and integrated gradients of each network's own answer, on a dozen images of the first test set.

    On `cues`, where it is known which pixels are the glyph, also the mean share of the attribution that falls on it,
    on images whose texture is another class's. `glyph_area` is the share that an even map would have.
    """
    wants_labels("maps", context.sets.train, of="image")
    yield Score("maps", f"{context.sets.fingerprint}-{VERSION}", _score, _complete)


def _complete(evaluated: EvaluatedRun) -> bool:
    return (evaluated.folder.path / ARTIFACT).exists()


def _score(evaluated: EvaluatedRun) -> Mapping[str, Any]:
    networks = {"own": evaluated.network}
    if evaluated.run.teacher is not None:
        teachers = evaluated.teachers("maps")
        networks |= {role: teachers.network(role) for role in ("early", "final")}
    pool, names = sample(evaluated.context.first_test[1], POOL)
    size, device = evaluated.context.sets.image_size, evaluated.device
    results = predictions(networks, pool, size, device, "answers for maps", evaluated.context.quiet)
    chosen = choose({role: one.label for role, one in results.items()}, pool.label)
    few = take(pool, torch.tensor([at for at, _ in chosen]))
    arrays = {
        "name": np.array([str(names[at]) for at, _ in chosen]),
        "why": np.array([why for _, why in chosen]),
        "label": few.label.numpy(),
        "classes": np.array(evaluated.context.sets.classes),
        "network": np.array(list(networks)),
        **_pictures(few, size),
    }
    looks = [look(network, few, size, device) for network in networks.values()]
    arrays |= {key: np.stack([each[key] for each in looks]) for key in looks[0]}
    with atomic_write(evaluated.folder.path / ARTIFACT) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return {"count": len(few), "values": _glyph_shares(evaluated, networks)}


def choose(answers: Mapping[str, Tensor], label: Tensor) -> list[tuple[int, str]]:
    """Places in the pool (N,) and why each was chosen, by RULES, in a random but fixed order; "any" fills up."""
    if "final" in answers:
        early, final = answers["early"], answers["final"]
        fits = {
            "T_early and T_final differ": early != final,
            "both teachers right": (early == label) & (final == label),
            "both teachers wrong": (early != label) & (final != label) & (early == final),
            "student and T_final differ": answers["own"] != final,
        }
        rules = RULES
    else:
        right = answers["own"] == label
        fits, rules = {"right": right, "wrong": ~right}, ALONE
    mixed = order(len(label), 0, 0)  # (N,)
    chosen: dict[int, str] = {}
    for rule, count in rules.items():
        places = [at for at in mixed[fits[rule][mixed]].tolist() if at not in chosen]
        chosen |= dict.fromkeys(places[:count], rule)
    rest = [at for at in mixed.tolist() if at not in chosen][: sum(rules.values()) - len(chosen)]
    return list((chosen | dict.fromkeys(rest, "any")).items())


def look(network: Network, images: AnySet, size: int, device: str = "cpu") -> dict[str, NDArray[Any]]:
    """A network's answers and the maps of its first one, for every image of a set."""
    results: dict[str, list[Tensor]] = {}
    for _, logits, cam, gradients in _explained(network, images, size, device):
        confidence, top = logits.softmax(dim=1).topk(min(TOP, logits.shape[1]))
        shown = {"top": top, "confidence": confidence, "grad_cam": _small(cam)}
        for key, value in (shown | {"integrated_gradients": _small(gradients.abs())}).items():
            results.setdefault(key, []).append(value.cpu())
    arrays: dict[str, NDArray[Any]] = {key: torch.cat(each).numpy() for key, each in results.items()}
    return arrays | {"top": arrays["top"].astype(np.int32), "confidence": arrays["confidence"].astype(np.float32)}


def _explained(
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


def _glyph_shares(evaluated: EvaluatedRun, networks: Mapping[str, Network]) -> dict[str, float]:
    """On `cues`: {"glyph_share_cam", "glyph_share_ig"} of the run, with _early and _final of its teacher's states."""
    sets, data = evaluated.context.sets, evaluated.run.data
    if sets.name != "cues":
        return {}
    images, cover = conflict_glyphs(data.options, data.seed, data.test_limit, sets.image_size)
    values = {"glyph_area": float(cover.mean())}
    for role, network in networks.items():
        shares: dict[str, list[Tensor]] = {"cam": [], "ig": []}
        start = 0
        for image, _, cam, gradients in _explained(network, images, sets.image_size, evaluated.device):
            mask = cover[start : start + len(image)].to(cam)
            start += len(image)
            shares["cam"].append(share_inside(cam, mask))
            shares["ig"].append(share_inside(gradients, mask))
        suffix = "" if role == "own" else f"_{role}"
        for kind, each in shares.items():  # an empty map has no share
            values[f"glyph_share_{kind}{suffix}"] = float(torch.cat(each).nanmean())
    return {name: value for name, value in values.items() if value == value}


def conflict_glyphs(options: Mapping[str, float], seed: int, limit: int | None, size: int) -> tuple[ImageSet, Tensor]:
    """Images of the conflict set, at most GLYPHS, and how much of each pixel is glyph (N, H, W)."""
    settings = {**DATASETS["cues"].options, **options}
    same: dict[str, Any] = {"seed": seed, "rho": settings["rho"], "size": size}
    count = int(settings["test_count"])
    glyph = glyph_cover("conflict", count, **same)
    images = replace(make_cues("conflict", count, **same), cues={"glyph": glyph})
    few = limited(limited(images, limit, seed), GLYPHS, seed)
    assert isinstance(few, ImageSet)
    return few, few.cues["glyph"]
