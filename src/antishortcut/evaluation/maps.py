"""Where student, T_early and T_final look on the same dozen test images: artifacts/maps.npz (analysis/answers.py)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antishortcut.analysis.answers import explained, share_inside, write_answers
from antishortcut.analysis.features import predictions, sample
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import limited
from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Score
from antishortcut.models import Network
from antishortcut.types import ImageSet

ARTIFACT = Path("artifacts") / "maps.npz"
POOL = 2_000  # test images that those are chosen from
GLYPHS = 256  # images on which the share on the glyph is measured
VERSION = 2


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
    sets, device, path = evaluated.context.sets, evaluated.device, evaluated.folder.path / ARTIFACT
    results = predictions(networks, pool, sets.image_size, device, "answers for maps", evaluated.context.quiet)
    answers = {role: one.label for role, one in results.items()}
    count = write_answers(path, networks, answers, pool, names, sets, device)
    return {"count": count, "values": _glyph_shares(evaluated, networks)}


def _glyph_shares(evaluated: EvaluatedRun, networks: Mapping[str, Network]) -> dict[str, float]:
    """On `cues`: {"glyph_share_cam", "glyph_share_ig"} of the run, with _early and _final of its teacher's states."""
    sets = evaluated.context.sets
    known = sets.tests.get("conflict")
    if not isinstance(known, ImageSet) or known.cover is None:
        return {}
    images = limited(known, GLYPHS, evaluated.run.data.seed)
    assert isinstance(images, ImageSet)
    assert images.cover is not None
    cover = images.cover
    values = {"glyph_area": float(cover.mean())}
    for role, network in networks.items():
        shares: dict[str, list[Tensor]] = {"cam": [], "ig": []}
        start = 0
        for image, _, cam, gradients in explained(network, images, sets.image_size, evaluated.device):
            mask = cover[start : start + len(image)].to(cam)
            start += len(image)
            shares["cam"].append(share_inside(cam, mask))
            shares["ig"].append(share_inside(gradients, mask))
        suffix = "" if role == "own" else f"_{role}"
        for kind, each in shares.items():  # an empty map has no share
            values[f"glyph_share_{kind}{suffix}"] = float(torch.cat(each).nanmean())
    return {name: value for name, value in values.items() if value == value}
