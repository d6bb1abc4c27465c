"""Dense prediction to look at: scenes with truth and predictions, and features of locations on a plane.

artifacts/scenes.json holds classes, colours and the t-SNE; artifacts/scenes/ the pictures, 00-input.jpg, 00-truth.png,
00-teacher.png, 00-student.png and so on.
"""
# N images, C classes, D embedding, H × W pixels, R rows

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from antishortcut.data.parts import take
from antishortcut.errors import UserError
from antishortcut.evaluate.hard import compared
from antishortcut.evaluate.subject import Bench, Examination, Scored, Subject
from antishortcut.folder import replacing, write_json
from antishortcut.mechanism.maps import tsne
from antishortcut.models import Network
from antishortcut.tasks import resized, task_of
from antishortcut.types import VOID, AnySet, Batch, Features

ARTIFACT = Path("artifacts") / "scenes.json"
SCENES = 16  # as S-Sec. A.10 shows
SIDE = 320  # longest side of a picture
SHOWN, EACH, POOL = 50, 20, 500  # classes and locations of each on the plane, images they are drawn from
VERSION = 1


def scenes(bench: Bench) -> Iterator[Examination]:
    """Sixteen images spread over the test set, and the agreement of student and teacher on all of it."""
    yield Scored("scenes", f"{bench.sets.fingerprint}-{VERSION}", _score, _made)


def _made(subject: Subject) -> bool:
    return (subject.folder.path / ARTIFACT).exists()


def _score(subject: Subject) -> Mapping[str, Any]:
    sets, (name, images) = subject.bench.sets, subject.bench.headline
    if subject.run.teacher is None:
        raise UserError(f"{subject.folder.path} is a teacher; scenes compare a student with its teacher")
    teacher = compared(subject).network("final")
    shown = set(torch.linspace(0, len(images) - 1, min(SCENES, len(images))).round().long().tolist())
    colours = palette(len(sets.classes))
    folder = subject.folder.path / ARTIFACT.with_suffix("")
    same = count = 0
    for (student, batch), (other, _) in zip(subject.stream(images), subject.stream(images, teacher), strict=True):
        guess, theirs = (_classes(seen, batch) for seen in (student, other))  # (B, H, W)
        known = batch.label != VOID
        same, count = same + int(((guess == theirs) & known).sum()), count + int(known.sum())
        for at in [place for place, number in enumerate(batch.index.tolist()) if number in shown]:
            number = sorted(shown).index(int(batch.index[at]))
            _draw(folder, number, batch.image[at], colours, batch.label[at], theirs[at], guess[at])
    pool = take(images, torch.arange(0, len(images), max(len(images) // POOL, 1)))
    made = {
        "set": name,
        "classes": list(sets.classes),
        "colours": colours,
        "scenes": len(shown),
        "embedding": _plane(subject, teacher, pool),
    }
    write_json(subject.folder.path / ARTIFACT, made)
    return {"count": len(images), "values": {"agreement": same / max(count, 1)}, "of": name}


def _classes(seen: Features, batch: Batch) -> Tensor:
    """The predicted class of every pixel. (B, H, W)"""
    if seen.logits.ndim != 4:
        raise UserError("scenes are of data with a label for every pixel; these have one for every image")
    return resized(seen.logits.float(), batch.label.shape[1:]).argmax(dim=1)


def _plane(subject: Subject, teacher: Network, pool: AnySet) -> dict[str, Any] | None:
    """Locations of the first fifty classes, the same in both networks."""
    task, sets = task_of(subject.bench.sets, rows=64), subject.bench.sets
    kept: dict[str, list[Tensor]] = {"teacher": [], "student": [], "label": []}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of the draw of locations
        for (own, batch), (other, _) in zip(subject.stream(pool), subject.stream(pool, teacher), strict=True):
            student, seen, joint = task.rows(own, {"final": other}, batch)
            kept["student"].append(student.embedding.float())
            kept["teacher"].append(seen["final"].embedding.float())
            kept["label"].append(joint.label)
    rows = {role: torch.cat(found) for role, found in kept.items()}
    label = rows.pop("label")
    return tsne(rows, label, sets.classes, SHOWN, EACH)


def palette(classes: int) -> list[str]:
    """A colour for every class, neighbours far apart: hues by the golden ratio, four brightnesses in turn."""
    turns = [
        (0.618034 * number % 1, 0.45 + 0.2 * (number % 3), (0.95, 0.7, 0.5)[number % 3]) for number in range(classes)
    ]
    return ["#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hsv_to_rgb(*turn)) for turn in turns]


def _draw(folder: Path, number: int, image: Tensor, colours: list[str], *labels: Tensor) -> None:
    """The image, and each label map in colours, no larger than SIDE."""
    scale = min(1.0, SIDE / max(image.shape[1:]))
    size = (max(round(image.shape[1] * scale), 1), max(round(image.shape[2] * scale), 1))
    small = image if scale == 1 else F.interpolate(image[None], size=size, mode="bilinear", antialias=True)[0]
    picture = Image.fromarray((small.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy())
    with replacing(folder / f"{number:02d}-input.jpg") as file:
        picture.save(file, format="JPEG", quality=88)
    table = np.zeros((256, 3), dtype=np.uint8)  # void is black
    table[: len(colours)] = [[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in colours]
    for role, label in zip(("truth", "teacher", "student"), labels, strict=True):
        there = F.interpolate(label[None, None].float(), size=size, mode="nearest")[0, 0].byte().numpy()
        mask = Image.fromarray(there, mode="P")
        mask.putpalette(table.flatten().tolist())
        with replacing(folder / f"{number:02d}-{role}.png") as file:
            mask.save(file, format="PNG", optimize=True)
