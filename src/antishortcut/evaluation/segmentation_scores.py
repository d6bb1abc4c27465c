"""Dense prediction to look at: scenes with truth and predictions, and features of locations on a plane.

artifacts/scenes.json holds classes, colours and the t-SNE; artifacts/scenes/ the pictures, 00-input.jpg, 00-truth.png,
00-teacher.png, 00-student.png and so on. Of a test set "conflict", where the shortcut lies, scenes-conflict.json and
scenes-conflict/ hold the same, without a t-SNE.
"""
# N images, C classes, D embedding, H × W pixels, R rows

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from antishortcut.analysis.features import places, tsne
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import take
from antishortcut.errors import UserError
from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Examination, Scored
from antishortcut.evaluation.shift_scores import compared
from antishortcut.fileio import atomic_write
from antishortcut.models import Network
from antishortcut.run_dir import write_json
from antishortcut.tasks import build_task, resized
from antishortcut.types import VOID, AnySet, Batch, Features

ARTIFACT = Path("artifacts") / "scenes.json"
LYING = "conflict"  # the test set where the shortcut says another class
SCENES = 16  # as S-Sec. A.10 shows
SIDE = 320  # longest side of a picture
SHOWN, EACH, POOL = 50, 20, 500  # classes and locations of each on the plane, images they are drawn from
SAME = 2  # at most so many locations of a class in one image
VERSION = 2
GREY = [153, 153, 153]  # of the first class, which often is the ground
DARK = 0.3  # lightness below which a colour could be taken for void's black

# Ottosson's matrices: linear sRGB to the responses of cones, their cube roots to lightness and two opponent colours
_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_OPPONENTS = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def scenes(bench: EvalContext) -> Iterator[Examination]:
    """Sixteen images spread over the test set, and the agreement of student and teacher on all of it.

    Likewise of the set "conflict", where there is one: on the first, a shortcut may well help.
    """
    yield Scored("scenes", f"{bench.sets.fingerprint}-{VERSION}", _score, _made)


def artifacts(bench: EvalContext) -> dict[str, Path]:
    """Where the scenes of a set are kept, by its name: of the headline, and of "conflict"."""
    saved = {bench.primary_metric[0]: ARTIFACT}
    if LYING in bench.sets.tests:
        saved.setdefault(LYING, ARTIFACT.with_stem(f"scenes-{LYING}"))
    return saved


def _made(subject: EvaluatedRun) -> bool:
    return all((subject.folder.path / place).exists() for place in artifacts(subject.bench).values())


def _score(subject: EvaluatedRun) -> Mapping[str, Any]:
    bench, (name, images) = subject.bench, subject.bench.primary_metric
    wants_labels("scenes", images, of="pixel")
    if subject.run.teacher is None:
        raise UserError(f"{subject.folder.path} is a teacher; scenes compare a student with its teacher")
    teacher = compared(subject).network("final")
    agreement = {which: _shown(subject, teacher, which, place) for which, place in artifacts(bench).items()}
    values = {"agreement" if which == name else f"{which}_agreement": share for which, share in agreement.items()}
    return {"count": len(images), "values": values, "of": name}


def _shown(subject: EvaluatedRun, teacher: Network, name: str, place: Path) -> float:
    """Draw the scenes of a set; the share of its pixels that student and teacher call the same."""
    sets, images = subject.bench.sets, subject.bench.sets.tests[name]
    shown = set(torch.linspace(0, len(images) - 1, min(SCENES, len(images))).round().long().tolist())
    colours = palette(len(sets.classes))
    folder = subject.folder.path / place.with_suffix("")
    same = count = 0
    for outputs, batch in subject.predict({"student": subject.network, "teacher": teacher}, images):
        guess, reference = (_classes(outputs[role], batch) for role in ("student", "teacher"))  # (B, H, W)
        known = batch.label != VOID
        same, count = same + int(((guess == reference) & known).sum()), count + int(known.sum())
        for at in [place for place, number in enumerate(batch.index.tolist()) if number in shown]:
            number = sorted(shown).index(int(batch.index[at]))
            _draw(folder, number, batch.image[at], colours, batch.label[at], reference[at], guess[at])
    pool = None if place != ARTIFACT else take(images, torch.arange(0, len(images), max(len(images) // POOL, 1)))
    built = {
        "set": name,
        "classes": list(sets.classes),
        "colours": colours,
        "scenes": len(shown),
        "embedding": None if pool is None else _plane(subject, teacher, pool),
    }
    write_json(subject.folder.path / place, built)
    return same / max(count, 1)


def _classes(outputs: Features, batch: Batch) -> Tensor:
    """The predicted class of every pixel. (B, H, W)"""
    return resized(outputs.logits.float(), batch.label.shape[1:]).argmax(dim=1)


def _plane(subject: EvaluatedRun, teacher: Network, pool: AnySet) -> dict[str, Any] | None:
    """Locations of the first fifty classes, the same in both networks."""
    rows = locations(subject, teacher, pool)
    label, _ = rows.pop("label"), rows.pop("image")
    return tsne(rows, label, subject.bench.sets.classes, SHOWN, EACH)


def locations(subject: EvaluatedRun, teacher: Network, pool: AnySet) -> dict[str, Tensor]:
    """Features of both networks (R, D), labels and numbers of images (R,), in an order drawn once.

    Locations are drawn in every image alone, whatever the length of a batch, and at most SAME of a class are kept.
    """
    task = build_task(subject.bench.sets)
    saved: dict[str, list[Tensor]] = {"teacher": [], "student": [], "label": [], "image": []}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        for outputs, batch in subject.predict({"student": subject.network, "teacher": teacher}, pool):
            for at in range(len(batch.index)):
                one = slice(at, at + 1)
                single = Batch(batch.image[one], batch.label[one], batch.index[one])
                ours, reference = (Features(each.logits[one], each.embedding[one]) for each in outputs.values())
                student, observed, joint = task.samples(ours, {"final": reference}, single)
                few = places(joint.label, SHOWN, SAME)
                saved["student"].append(student.embedding[few].float())
                saved["teacher"].append(observed["final"].embedding[few].float())
                saved["label"].append(joint.label[few])
                saved["image"].append(joint.index[few])
        rows = {role: torch.cat(result) for role, result in saved.items()}
        shuffled = torch.randperm(len(rows["label"]))  # (R,)
    return {role: result[shuffled] for role, result in rows.items()}


def palette(classes: int) -> list[str]:
    """A colour for every class: grey, then each as far as can be from those before, from white, and not near black.

    So the colours of few classes are the first of those of many; black is void, white the paper.
    """
    colours = np.array(list(product(range(0, 256, 17), repeat=3)))  # (4096, 3)
    colours = colours[oklab(colours)[:, 0] >= DARK]  # (n, 3)
    place = oklab(colours)  # (n, 3)
    taken = [[0, 0, 0], [255, 255, 255], GREY]
    apart = np.linalg.norm(place[:, None] - oklab(np.array(taken)), axis=2).min(axis=1)  # (n,) to the nearest taken
    while len(taken) < classes + 2:
        farthest = int(apart.argmax())
        taken.append(colours[farthest].tolist())
        apart = np.minimum(apart, np.linalg.norm(place - place[farthest], axis=1))
    return ["#" + bytes(colour).hex() for colour in taken[2 : classes + 2]]


def oklab(colour: NDArray[np.int64]) -> NDArray[np.float64]:
    """Colours (n, 3) of bytes in Oklab, where distances are as people see them (Ottosson 2020). (n, 3)"""
    part = colour / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    cone = np.cbrt(linear @ _CONES.T)
    return np.asarray(cone @ _OPPONENTS.T)


def _draw(folder: Path, number: int, image: Tensor, colours: list[str], *labels: Tensor) -> None:
    """The image, and each label map in colours, no larger than SIDE."""
    scale = min(1.0, SIDE / max(image.shape[1:]))
    size = (max(round(image.shape[1] * scale), 1), max(round(image.shape[2] * scale), 1))
    small = image if scale == 1 else F.interpolate(image[None], size=size, mode="bilinear", antialias=True)[0]
    picture = Image.fromarray((small.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy())
    with atomic_write(folder / f"{number:02d}-input.jpg") as file:
        picture.save(file, format="JPEG", quality=88)
    table = np.zeros((256, 3), dtype=np.uint8)  # void is black
    table[: len(colours)] = [[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in colours]
    for role, label in zip(("truth", "teacher", "student"), labels, strict=True):
        there = F.interpolate(label[None, None].float(), size=size, mode="nearest")[0, 0].byte().numpy()
        mask = Image.fromarray(there, mode="P")
        mask.putpalette(table.flatten().tolist())
        with atomic_write(folder / f"{number:02d}-{role}.png") as file:
            mask.save(file, format="PNG", optimize=True)
