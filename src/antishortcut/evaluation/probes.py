"""The same test images with one kind of evidence taken away: what does a network's answer depend on?

Needs no second data set. A probe is a pure function of images (B, 3, H, W) in [0, 1] and their indices (B,), and its
strength is relative to the side, so it means the same at 32 and at 224 pixels:

shuffle-G    the patches of a G × G grid in another order: texture and colour stay, shape goes
blur-P       a Gaussian blur with σ = P % of the side: shape stays, fine texture goes
edges-P      outlines of the grey image after such a blur, dark on white: shape stays, texture and colour go
grey-P       P % of the colour taken away
hue-D        colours turned by D degrees: every colour stays distinct, and is another
centre-P     the central P % of the area; the rest is one colour, the mean of what is left
surround-P   the outer P % of the area, likewise
"""
# B batch, N images, C classes, H × W pixels, G × G patches

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.functional import gaussian_blur

from antishortcut.analysis.features import BATCH
from antishortcut.data import Loader, rng
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import limited
from antishortcut.evaluation import evaluate
from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Score
from antishortcut.models import Network
from antishortcut.progress import ProgressBar
from antishortcut.teachers.trajectory import find_trajectory
from antishortcut.types import AnySet

Probe = Callable[[Tensor, Tensor], Tensor]  # images (B, 3, H, W) and their indices (B,) → images (B, 3, H, W)
Answers = Mapping[str, Tensor]  # predicted classes (N,) by probe; "whole" of the images as they are

IMAGES = 2_000
SEED = 0  # of the choice of images and of the shuffled patches: the same for every run
VERSION = 1
WHOLE = "whole"
RELIANCE = ("needs_colour", "texture_share", "surround_share")
LUMA = (0.299, 0.587, 0.114)  # of ITU-R BT.601, as in "grey" of Pillow and torchvision


def shuffle(image: Tensor, index: Tensor, grid: int, seed: int = SEED) -> Tensor:
    """Every patch moves: they change places along one random cycle, a function of (seed, index).

    If the sides are no multiples of `grid`, the rest at the right and at the bottom stays where it is.
    """
    height, width = (side // grid for side in image.shape[2:])
    inner = image[:, :, : grid * height, : grid * width]
    patches = inner.reshape(len(image), 3, grid, height, grid, width)
    patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, G², 3, h, w)
    draws = rng.mix(seed, rng.PROBE, index.cpu().numpy()[:, None], np.arange(grid**2))  # (B, G²)
    cycle = torch.from_numpy(draws.argsort(axis=1, kind="stable")).to(image.device)  # (B, G²)
    source = torch.empty_like(cycle).scatter_(1, cycle.roll(-1, dims=1), cycle)  # (B, G²) place → patch that goes there
    patches = patches[torch.arange(len(image), device=image.device)[:, None], source]
    result = image.clone()
    moved = patches.view(len(image), grid, grid, 3, height, width).permute(0, 3, 1, 4, 2, 5)  # (B, 3, G, h, G, w)
    result[:, :, : grid * height, : grid * width] = moved.flatten(4, 5).flatten(2, 3)
    return result


def blur(image: Tensor, index: Tensor, percent: float) -> Tensor:
    """A Gaussian whose σ is `percent` of the shorter side, cut off at 3 σ; the image is mirrored at its borders."""
    sigma = percent / 100 * min(image.shape[2:])
    blurred: Tensor = gaussian_blur(image, [2 * math.ceil(3 * sigma) + 1] * 2, [sigma, sigma])
    return blurred


def edges(image: Tensor, index: Tensor, percent: float) -> Tensor:
    """1 − the length of the grey image's gradient (Sobel) after a blur, relative to the longest in the image."""
    luma = blur(grey(image, index, 100)[:, :1], index, percent)  # (B, 1, H, W)
    ramp = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]).to(image)
    slope = F.conv2d(F.pad(luma, [1] * 4, mode="replicate"), torch.stack([ramp, ramp.T])[:, None])  # (B, 2, H, W)
    length = slope.square().sum(dim=1, keepdim=True).sqrt()  # (B, 1, H, W)
    longest = length.amax(dim=(2, 3), keepdim=True).clamp(min=1e-6)  # a plain image has no edges
    return (1 - length / longest).expand_as(image).contiguous()


def grey(image: Tensor, index: Tensor, percent: float) -> Tensor:
    weight = torch.tensor(LUMA).to(image)[:, None, None]
    return torch.lerp(image, (weight * image).sum(dim=1, keepdim=True).expand_as(image), percent / 100)


def hue(image: Tensor, index: Tensor, degrees: float) -> Tensor:
    """A rotation of RGB about the grey axis; 120° and 240° exchange the channels in a circle."""
    turn = math.radians(degrees)
    along = (1 - math.cos(turn)) / 3
    across = math.sin(turn) / math.sqrt(3)
    first = [along + math.cos(turn), along - across, along + across]  # red from red, green, blue
    matrix = torch.tensor([first[-row:] + first[:-row] for row in range(3)]).to(image)  # (3, 3)
    return torch.einsum("rc,bchw->brhw", matrix, image).clamp(0, 1)


def centre(image: Tensor, index: Tensor, percent: float) -> Tensor:
    return _kept(image, _central(image, percent))


def surround(image: Tensor, index: Tensor, percent: float) -> Tensor:
    return _kept(image, ~_central(image, 100 - percent))


def _central(image: Tensor, percent: float) -> Tensor:
    """The pixels of a central rectangle of the image's proportions, `percent` of its area. (H, W) bool"""
    sides = []
    for side in image.shape[2:]:
        gap = round(side * (1 - math.sqrt(percent / 100)) / 2)
        place = torch.arange(side, device=image.device)
        sides.append((place >= gap) & (place < side - gap))
    return sides[0][:, None] & sides[1]


def _kept(image: Tensor, mask: Tensor) -> Tensor:
    """The pixels of a mask (H, W); all others get the mean colour of these."""
    mean = (image * mask).sum(dim=(2, 3), keepdim=True) / mask.sum()  # (B, 3, 1, 1)
    return torch.where(mask, image, mean)


def _at(probe: Callable[[Tensor, Tensor, int], Tensor], strength: int) -> Probe:
    return lambda image, index: probe(image, index, strength)


PROBES: dict[str, Probe] = {
    f"{name}-{strength}": _at(probe, strength)
    for name, probe, strengths in (
        ("shuffle", shuffle, (2, 4, 8)),
        ("blur", blur, (3, 6)),
        ("edges", edges, (1, 3)),
        ("grey", grey, (50, 100)),
        ("hue", hue, (120, 240)),
        ("centre", centre, (25, 50)),
        ("surround", surround, (25, 50)),
    )
    for strength in strengths
}


def probes(context: EvalContext) -> Iterator[Score]:
    """Accuracy and agreement of the student, T_early and T_final under every probe, and three numbers in plain words.

    accuracy        share of right answers
    agreement       share of answers that are the network's own on the whole image, right or wrong
    kept            of the answers that are right on the whole image, the share that a probe leaves right

    needs_colour    1 − kept in grey: the share of its right answers that it loses with the colour
    texture_share   kept where shape goes (shuffle) ÷ the sum of that and kept where texture goes (blur, edges), means
                    over all strengths: above 0.5 it lives on texture more than on shape
    surround_share  kept with the surround alone ÷ the sum of that and kept with the centre alone, likewise: above 0.5
                    it looks at the surround more than at the centre

    Any network loses something where an image is spoilt, so compare with T_final, whose numbers stand beside them.
    """
    wants_labels("probes", context.sets.train, of="image")
    yield Score("probes", f"{context.sets.fingerprint}-{VERSION}", _score)


def _score(evaluated: EvaluatedRun) -> Mapping[str, Any]:
    sets = evaluated.context.sets
    images = limited(evaluated.context.first_test[1], IMAGES, SEED)
    answers = probe_answers(evaluated.network, images, sets.image_size, evaluated.device, evaluated.context.quiet)
    networks = {"own": probe_scores(answers, images.label)}
    values = reliance(answers, images.label)
    for role in ("early", "final") if evaluated.run.teacher is not None else ():
        score = _teacher_score(evaluated, role)
        networks[role] = score["networks"]["own"]
        values |= {f"{name}_{role}": score["values"][name] for name in RELIANCE if name in score["values"]}
    counts = images.label.bincount(minlength=len(sets.classes))
    chance = {"chance": 1 / len(counts), "majority": int(counts.max()) / len(images)}
    return {"count": len(images), "values": values, "networks": networks} | chance


def _teacher_score(evaluated: EvaluatedRun, role: str) -> dict[str, Any]:
    """The same score of a teacher's state, in the teacher's folder, where its other students find it."""
    run = evaluated.run
    state = ({"early": run.early} | run.roles).get(role, role)
    trajectory, state = find_trajectory(evaluated.context.runs, str(run.teacher), state)
    name = "probes" if state == "final" else f"probes@{state}"
    return evaluate(trajectory.folder, evaluated.context, ["probes"], state, evaluated.device)[name]


@torch.no_grad()
def probe_answers(network: Network, images: AnySet, size: int, device: str = "cpu", quiet: bool = True) -> Answers:
    """The class that the network predicts for every image under every probe, and "whole"."""
    network.to(device).eval()
    answers = {name: torch.empty(len(images)).long() for name in (WHOLE, *PROBES)}
    loader = Loader.in_order(images, BATCH, size)
    with ProgressBar("probes", len(loader), quiet, BATCH) as bar:
        for number, batch in enumerate(loader.epoch(0), start=1):
            image = batch.image.to(device)
            for name, answer in answers.items():
                probed = image if name == WHOLE else PROBES[name](image, batch.index)
                answer[batch.index] = network(probed).logits.argmax(dim=1).cpu()
            bar.update(number, {})
    return answers


def probe_scores(answers: Answers, label: Tensor) -> dict[str, dict[str, float]]:
    """{probe: {"accuracy", "agreement"}}, and of "whole" the accuracy."""
    whole = answers[WHOLE]
    scores = {
        name: {"accuracy": _share(answer == label), "agreement": _share(answer == whole)}
        for name, answer in answers.items()
    }
    del scores[WHOLE]["agreement"]  # with itself
    return scores


def reliance(answers: Answers, label: Tensor) -> dict[str, float]:
    """needs_colour, texture_share and surround_share, see `probes`; a share of nothing is left out."""
    right = answers[WHOLE] == label
    if not right.any():
        return {}

    def kept(*kinds: str) -> float:
        shares = [_share(answers[name][right] == label[right]) for name in PROBES if name.split("-")[0] in kinds]
        return sum(shares) / len(shares)

    pairs = {
        "texture_share": (kept("shuffle"), kept("blur", "edges")),
        "surround_share": (kept("surround"), kept("centre")),
    }
    values = {"needs_colour": 1 - _share(answers["grey-100"][right] == label[right])}
    return values | {name: one / (one + other) for name, (one, other) in pairs.items() if one + other > 0}


def _share(which: Tensor) -> float:
    return float(which.double().mean())
