"""Segmentation examples: scenes with labels and predictions, and a t-SNE of features of locations.

artifacts/scenes.json holds classes, colours and the t-SNE; artifacts/scenes/ the pictures 00-input.jpg, 00-truth.png,
00-teacher.png, 00-early.png, 00-student.png and so on. scenes-conflict.json and scenes-conflict/ hold the same of a
test set "conflict", where the shortcut misleads, without a t-SNE.
"""
# N images, C classes, D embedding, H × W pixels, R rows

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

from antishortcut.analysis.features import first_of_classes, tsne
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import take
from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Score
from antishortcut.fileio import atomic_write
from antishortcut.models import Network
from antishortcut.run_dir import write_json
from antishortcut.tasks import build_task, resized
from antishortcut.types import VOID, AnySet, Batch, Features

ARTIFACT = Path("artifacts") / "scenes.json"
CONFLICT = "conflict"  # the test set where the shortcut points to another class
SCENES = 16  # as in S-Sec. A.10
SIDE = 320  # longest side of a picture
CLASSES, EACH, POOL = 50, 20, 500  # of the t-SNE: classes, locations of each, images they are drawn from
PER_IMAGE = 2  # locations of a class in one image
VERSION = 3
GREY = [153, 153, 153]  # of the first class, often the background
DARK = 0.3  # lightness below which a colour is too close to the black of void pixels

# Ottosson's matrices: linear sRGB to cone responses, their cube roots to lightness and two opponent colours
_CONES = np.array([
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
])  # fmt: skip
_OPPONENTS = np.array([
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
])  # fmt: skip


def scenes(context: EvalContext) -> Iterator[Score]:
    """Sixteen images spread over the first test set and over "conflict", and the agreement of student and teacher."""
    yield Score("scenes", f"{context.sets.fingerprint}-{VERSION}", _score, _complete)


def artifacts(context: EvalContext) -> dict[str, Path]:
    """The JSON file of each set that scenes are drawn of."""
    paths = {context.first_test[0]: ARTIFACT}
    if CONFLICT in context.sets.tests:
        paths.setdefault(CONFLICT, ARTIFACT.with_stem(f"scenes-{CONFLICT}"))
    return paths


def _complete(evaluated: EvaluatedRun) -> bool:
    return all((evaluated.folder.path / path).exists() for path in artifacts(evaluated.context).values())


def _score(evaluated: EvaluatedRun) -> Mapping[str, Any]:
    context, (name, images) = evaluated.context, evaluated.context.first_test
    wants_labels("scenes", images, of="pixel")
    teachers = evaluated.teachers("scenes")
    networks = {"teacher": teachers.network("final"), "early": teachers.network("early")}
    values = {
        "agreement" if which == name else f"{which}_agreement": _write_scenes(evaluated, networks, which, path)
        for which, path in artifacts(context).items()
    }
    return {"count": len(images), "values": values, "of": name}


def _write_scenes(evaluated: EvaluatedRun, teachers: Mapping[str, Network], name: str, path: Path) -> float:
    """Draw the scenes of a set; return the share of its pixels for which student and teacher predict the same class."""
    sets, images = evaluated.context.sets, evaluated.context.sets.tests[name]
    drawn = torch.linspace(0, len(images) - 1, min(SCENES, len(images))).round().long().tolist()
    colours = palette(len(sets.classes))
    folder = evaluated.folder.path / path.with_suffix("")
    same = count = 0
    for outputs, batch in evaluated.predict({"student": evaluated.network, **teachers}, images):
        predicted = {
            role: resized(out.logits.float(), batch.label.shape[1:]).argmax(dim=1)  # (B, H, W)
            for role, out in outputs.items()
        }
        known = batch.label != VOID
        same += int(((predicted["student"] == predicted["teacher"]) & known).sum())
        count += int(known.sum())
        for at, number in enumerate(batch.index.tolist()):
            if number in drawn:
                labels = {"truth": batch.label[at]} | {role: each[at] for role, each in predicted.items()}
                _draw(folder, drawn.index(number), batch.image[at], labels, colours)
    embedding = None
    if path == ARTIFACT:
        drawn_from = take(images, torch.arange(0, len(images), max(len(images) // POOL, 1)))
        rows = locations(evaluated, teachers["teacher"], drawn_from)
        planes = {role: rows[role] for role in ("teacher", "student")}
        embedding = tsne(planes, rows["label"], sets.classes, CLASSES, EACH)
    facts = {"set": name, "classes": list(sets.classes), "colours": colours, "scenes": len(drawn)}
    write_json(evaluated.folder.path / path, facts | {"embedding": embedding})
    return same / max(count, 1)


def locations(evaluated: EvaluatedRun, teacher: Network, images: AnySet) -> dict[str, Tensor]:
    """Features of both networks (R, D), labels and numbers of images (R,), in random but fixed order.

    Locations are sampled in each image separately, so batches do not matter; at most PER_IMAGE of a class are taken.
    """
    task = build_task(evaluated.context.sets)
    chosen: dict[str, list[Tensor]] = {"teacher": [], "student": [], "label": [], "image": []}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        for outputs, batch in evaluated.predict({"student": evaluated.network, "teacher": teacher}, images):
            for at in range(len(batch.index)):
                one = slice(at, at + 1)
                single = Batch(batch.image[one], batch.label[one], batch.index[one])
                own, other = (Features(each.logits[one], each.embedding[one]) for each in outputs.values())
                student, teachers, sampled = task.samples(own, {"final": other}, single)
                few = first_of_classes(sampled.label, CLASSES, PER_IMAGE)
                chosen["student"].append(student.embedding[few].float())
                chosen["teacher"].append(teachers["final"].embedding[few].float())
                chosen["label"].append(sampled.label[few])
                chosen["image"].append(sampled.index[few])
        rows = {role: torch.cat(each) for role, each in chosen.items()}
        shuffled = torch.randperm(len(rows["label"]))  # (R,)
    return {role: each[shuffled] for role, each in rows.items()}


def palette(classes: int) -> list[str]:
    """A colour for every class: grey, then each as far as possible from the earlier ones and from white, and not dark.

    The colours of few classes are the first of those of many; black is void, white the background.
    """
    colours = np.array(list(product(range(0, 256, 17), repeat=3)))  # (4096, 3)
    colours = colours[oklab(colours)[:, 0] >= DARK]  # (n, 3)
    points = oklab(colours)  # (n, 3)
    taken = [[0, 0, 0], [255, 255, 255], GREY]
    apart = np.linalg.norm(points[:, None] - oklab(np.array(taken)), axis=2).min(axis=1)  # (n,) to the nearest taken
    while len(taken) < classes + 2:
        farthest = int(apart.argmax())
        taken.append(colours[farthest].tolist())
        apart = np.minimum(apart, np.linalg.norm(points - points[farthest], axis=1))
    return ["#" + bytes(colour).hex() for colour in taken[2 : classes + 2]]


def oklab(colour: NDArray[np.int64]) -> NDArray[np.float64]:
    """sRGB bytes (n, 3) in Oklab, where distances are perceptual (Ottosson 2020). (n, 3)"""
    value = colour / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    cone = np.cbrt(linear @ _CONES.T)
    return np.asarray(cone @ _OPPONENTS.T)


def _draw(folder: Path, number: int, image: Tensor, labels: Mapping[str, Tensor], colours: list[str]) -> None:
    """The image, and each label map in colours, no larger than SIDE."""
    scale = min(1.0, SIDE / max(image.shape[1:]))
    size = (max(round(image.shape[1] * scale), 1), max(round(image.shape[2] * scale), 1))
    small = image if scale == 1 else F.interpolate(image[None], size=size, mode="bilinear", antialias=True)[0]
    picture = Image.fromarray((small.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy())
    with atomic_write(folder / f"{number:02d}-input.jpg") as file:
        picture.save(file, format="JPEG", quality=88)
    table = b"".join(bytes.fromhex(colour[1:]) for colour in colours).ljust(3 * 256, b"\0")  # void is black
    for role, label in labels.items():
        nearest = F.interpolate(label[None, None].float(), size=size, mode="nearest")[0, 0].byte().numpy()
        mask = Image.fromarray(nearest, mode="P")
        mask.putpalette(table)
        with atomic_write(folder / f"{number:02d}-{role}.png") as file:
            mask.save(file, format="PNG", optimize=True)
