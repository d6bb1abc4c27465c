"""A recipe for your own images and two networks; every setting follows from them and has its reason as a comment.

    asd distill --data folder:photos --teacher timm:resnet50 --student timm:mobilenetv3_small_100

The recipe is written beside the runs made from it, and may be edited.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from antishortcut.config.recipe import TeacherSettings, recipe_from, rewind_length
from antishortcut.config.schema import PUBLISHED
from antishortcut.data.datasets import DATASETS
from antishortcut.data.inspect import Finding, open_finding, usual_augment, usual_side
from antishortcut.data.readers import TRAIN, held_of, part_of
from antishortcut.errors import UserError, one_line, plural, suggest
from antishortcut.fileio import expanded, near_folder
from antishortcut.models.external import is_own, published
from antishortcut.teachers.imported import only_embeds, teacher_classes
from antishortcut.types import lacks_labels

STEPS = 20_000  # target number of optimizer steps of a student, within EPOCHS
EPOCHS = (30, 100)  # at least, at most
BATCH, STEPS_PER_EPOCH = (16, 128), 16  # at least and at most; steps an epoch should have
LR, FINE_TUNE = 1e-3, 0.2  # of AdamW with a batch of 64 from scratch; its share for published weights
LR_WARMUP, METHOD_WARMUP = 0.05, 1 / 12  # shares of training; 1/12 is 20 of the paper's 240 epochs
INITIAL, METHOD_INIT = ("ab", "fsp", "ft"), 1 / 8  # methods with an initial phase, and its share: 30 of 240 epochs
HELD_OUT, ENOUGH = 0.1, 1000  # share of the training images that is held out of at least so many
HUBS = ("timm:", "torchvision:")  # networks with published weights
DATA_KEYS = ("seed", "train_limit", "test_limit", "val_fraction", "image_size", "options", "unlabelled")
CLASSES = "data.options.classes"  # of images without labels: how many classes the teacher knows
AUGMENTS = {"imagenet": "random resized crop, flip, colour", "crop-flip": "shift and flip"}


@dataclass(frozen=True)
class PairRequest:
    """The command-line arguments that stand for a recipe."""

    data: str
    teacher: str
    student: str
    final: str | None = None  # weights of a teacher that is already trained
    early: str | None = None  # and those of its early state, or "rewind" or "weak", which make one
    epochs: int | None = None
    pretrained: bool | None = None  # None: if weights are published

    @property
    def name(self) -> str:
        """The folder of its runs."""
        kind, _, path = self.data.partition(":")
        folder = expanded(path or self.data).resolve().name
        if kind in ("wds", "hf"):  # photos-{000..127}.tar, cifar100?label=fine_label
            folder = re.sub(r"[{*?].*|\.tar$", "", folder)
        words = (folder, *(network.rpartition(":")[2] for network in (self.teacher, self.student)))
        return "-".join(re.sub(r"[^\w.-]+", "-", word).strip("-.") or "data" for word in words)

    @property
    def trained(self) -> dict[str, str]:
        """The networks that are to be trained."""
        return {"student": self.student} | ({"teacher": self.teacher} if self.final is None else {})

    @property
    def settings(self) -> dict[str, Any]:
        """The settings these arguments name, which an existing recipe must agree with."""
        known: dict[str, Any] = {"data.name": self.data, "teacher.name": self.teacher, "student.name": self.student}
        known |= {f"{who}.pretrained": self.pretrained for who, name in self.trained.items() if name.startswith(HUBS)}
        known |= {"teacher.final": self.final, "teacher.early": self.early, "epochs": self.epochs}
        return {key: value for key, value in known.items() if value is not None}


class RecipeLine(NamedTuple):
    """A setting and its reason."""

    key: str  # "epochs" or "optim.lr"
    value: Any
    why: str = ""


def data_name(text: str) -> str:
    """The name of a data set; a plain folder is one of images."""
    kind, colon, path = text.partition(":")
    if not colon and expanded(text).is_dir():
        return f"folder:{Path(text)}"
    if not colon and text not in DATASETS:
        raise UserError(f"{text!r} is no folder here and no data set{near_folder(text) or suggest(text, DATASETS)}")
    return f"{kind}:{Path(path)}" if kind in ("folder", "groups") and path else text


def unlabelled_request(request: PairRequest) -> PairRequest:
    """Of images in any layout without labels. A teacher has weights of its own: named, published, or your factory's."""
    kind, colon, path = request.data.partition(":")
    if colon and kind not in ("folder", "unlabelled"):
        raise UserError(f"--unlabelled takes a folder of images as --data, not {request.data}")
    final = request.final
    if final is None and (published(request.teacher) or is_own(request.teacher)):
        final = PUBLISHED
    return replace(request, data=f"unlabelled:{Path(path if colon else request.data)}", final=final)


def plan_recipe(request: PairRequest, root: Path | None, overrides: Mapping[str, Any]) -> list[RecipeLine]:
    """The settings of the recipe, in order. Overrides are kept, and the other settings follow from them."""
    options = {key: overrides[f"data.{key}"] for key in DATA_KEYS if f"data.{key}" in overrides}
    finding = open_finding(request.data, root, **options)
    held: dict[str, Any] = {}
    if "val_fraction" not in options and _may_hold_out(finding):
        held = {"val_fraction": HELD_OUT}
    if held:
        finding = open_finding(request.data, root, **options, **held)
    if "image_size" not in options:
        finding = replace(finding, image_size=usual_side(finding))
    _require_images(finding)
    unlabelled = finding.splits.get("unlabelled", ())
    images, pretrained = len(finding.splits["train"]) + len(unlabelled), _pretrained(request)
    batch = min(max(1 << int(math.log2(max(images / STEPS_PER_EPOCH, 1))), BATCH[0]), BATCH[1])
    epochs = request.epochs or min(max(round(STEPS * batch / images), EPOCHS[0]), EPOCHS[1])
    unit, length = ("iterations", overrides["iterations"]) if "iterations" in overrides else ("epochs", epochs)
    length = length if isinstance(length, int) else epochs  # a wrong type is refused below
    why = "" if request.epochs else f"about {STEPS:,} steps, from {EPOCHS[0]} to {EPOCHS[1]} epochs"
    alone = lacks_labels(finding.splits["train"])
    known = "no labels" if alone else plural(len(finding.classes), "class")
    counts = f"{known}, {plural(images, 'image')} to train on"  # no names in comments
    counts += f", {len(unlabelled):,} of them without labels" if unlabelled else ""
    counts += f", {sum(map(len, finding.splits.values())) - images:,} held out"
    if finding.empty:
        names = ", ".join(map(one_line, finding.empty[:3])) + ", …" * (len(finding.empty) > 3)
        counts += f"; left out, without images: {plural(len(finding.empty), 'folder')} ({names})"
    counts += _layout(finding)
    augment = usual_augment(finding)
    lines = [
        RecipeLine("title", f"{request.teacher} → {request.student} on {request.data}"),
        RecipeLine(unit, length, why),
        RecipeLine("data.name", request.data, counts),
    ]
    if finding.own:
        lines.append(RecipeLine("data.image_size", finding.image_size, "half of the images or more are no smaller"))
    lines += [RecipeLine(f"data.{key}", value, "held out of training, to choose by") for key, value in held.items()]
    lines += [
        RecipeLine("data.augment", augment, AUGMENTS.get(augment, "")),
        *_teacher(request, pretrained, length, batch),
        RecipeLine("student.name", request.student),
        *_weights(request, "student", pretrained, "begins with published weights"),
        RecipeLine("optim.name", "adamw", "suits transformers and convolutions alike"),
        RecipeLine("optim.lr", _lr(batch, pretrained["student"])),
        RecipeLine("optim.weight_decay", 0.05),
        RecipeLine("optim.decay", "weights", "not of biases and norms"),
        RecipeLine("optim.batch", batch, f"{images:,} training images, steps an epoch: {math.ceil(images / batch):,}"),
        RecipeLine("optim.warmup", round(LR_WARMUP * length, 2), f"{unit} in which the learning rate rises"),
    ]
    warmup = round(METHOD_WARMUP * length, 2)
    lines.append(RecipeLine("methods.asd.warmup", warmup, f"{unit} in which its losses rise: the paper's share"))
    lines += [RecipeLine(f"methods.{method}.warmup", warmup) for method in ("contrast+tc", "contrast+hint")]
    why = f"{unit} of its initial phase: 30 of 240"
    lines += [RecipeLine(f"methods.{name}.init", round(METHOD_INIT * length, 2), why) for name in INITIAL]
    lines = with_overrides(lines, overrides)
    return lines if CLASSES in overrides or finding.dense else _with_classes(lines, request, finding)


def _with_classes(lines: list[RecipeLine], request: PairRequest, finding: Finding) -> list[RecipeLine]:
    """Images without labels have the classes of their teacher. With a teacher that only embeds there are none."""
    teacher = recipe_from(to_toml(lines, ""), Path(request.name)).teacher
    alone = lacks_labels(finding.splits["train"])
    if alone and teacher.final is None:
        raise UserError(f"{request.data} has no labels to train a teacher with; name its weights: --final FILE")
    if alone:
        count = teacher_classes(teacher, finding.image_size)
    elif teacher.final is not None and only_embeds(teacher, len(finding.classes), finding.image_size):
        count = 0
    else:
        return lines
    why = "the teacher's" if count else "the teacher only embeds: --method features, a student without a classifier"
    at = max(number for number, line in enumerate(lines, start=1) if line.key.startswith("data."))
    return [*lines[:at], RecipeLine(CLASSES, count, why), *lines[at:]]


def with_overrides(lines: list[RecipeLine], overrides: Mapping[str, Any]) -> list[RecipeLine]:
    """With the person's settings in their places, or below the last line of their section."""
    replaced = {key: RecipeLine(key, value, "as you said") for key, value in overrides.items()}
    lines = [replaced.pop(line.key, line) for line in lines]
    for key, line in replaced.items():
        section = key.rpartition(".")[0]
        at = [number for number, line in enumerate(lines, start=1) if line.key.rpartition(".")[0] == section]
        lines.insert(at[-1] if at else len(lines), line)
    return lines


def _layout(finding: Finding) -> str:
    """How a folder's own split was read, and how many images stand beside it: train may be meant as a class."""
    train = None if finding.base is None or finding.dense else part_of(finding.base, TRAIN)
    if train is None or not finding.name.startswith("folder:"):
        return ""
    parts = [train.name, *(part.name for part in held_of(train.parent) if part is not None)]
    text = f"; split by its folders {', '.join(parts)}, which are no classes"
    left = sum(finding.unused.values())
    return f"{text}; {plural(left, 'image')} beside them not read" if left else text


def _may_hold_out(finding: Finding) -> bool:
    """Whether there is no validation split yet and enough labelled images for one, which the dial chooses by."""
    train = finding.splits["train"]
    return "val" not in finding.splits and not finding.dense and not lacks_labels(train) and len(train) >= ENOUGH


def _require_images(finding: Finding) -> None:
    """At least one image of each class, and two in all."""
    if finding.dense or lacks_labels(finding.splits["train"]):
        return
    counts = torch.bincount(finding.splits["train"].label, minlength=len(finding.classes)).tolist()
    if empty := [name for name, count in zip(finding.classes, counts, strict=True) if count == 0]:
        raise UserError(f"{finding.name}: no image of {empty[0]} is left to train on; add some (asd check counts them)")
    if sum(counts) < 2:
        raise UserError(f"{finding.name}: {sum(counts)} training image; at least two are needed")


def _pretrained(request: PairRequest) -> dict[str, bool]:
    """Whether each trained network begins with published weights."""
    names = request.trained
    if request.pretrained and not any(name.startswith(HUBS) for name in names.values()):
        raise UserError(f"--pretrained: nobody publishes weights of {' or '.join(names.values())}")
    if request.pretrained is None:
        return {who: published(name) for who, name in names.items()}
    return {who: request.pretrained and name.startswith(HUBS) for who, name in names.items()}


def _weights(request: PairRequest, who: str, pretrained: Mapping[str, bool], why: str) -> list[RecipeLine]:
    if request.pretrained is False and request.trained[who].startswith(HUBS):
        return [RecipeLine(f"{who}.pretrained", False, "as you said")]
    return [RecipeLine(f"{who}.pretrained", True, why)] if pretrained[who] else []


def _teacher(request: PairRequest, pretrained: Mapping[str, bool], length: int, batch: int) -> list[RecipeLine]:
    early, lines = request.early, [RecipeLine("teacher.name", request.teacher)]
    if request.final is not None:
        lines.append(RecipeLine("teacher.final", request.final, "already trained"))
        if early is None and not expanded(request.final).is_dir():  # a folder of states has early ones
            early = "weak"
        why = "no early checkpoint: a small network, trained briefly, in its place" if early == "weak" else ""
        lines += [] if early is None else [RecipeLine("teacher.early", early, why)]
    else:
        lines += _weights(request, "teacher", pretrained, "fine-tuned from published weights")
        if pretrained["teacher"]:
            lines.append(RecipeLine("teacher.epochs", max(min(math.ceil(length / 2), 30), 1)))
        lines.append(RecipeLine("teacher.lr", _lr(batch, pretrained["teacher"])))
        why = "a small network, trained briefly" if early == "weak" else "T_early, of the teacher's training"
        lines.append(RecipeLine("teacher.early", early or "15%", why))
        lines += _keep(early)
    if early == "weak" and pretrained["student"]:
        lines.append(RecipeLine("teacher.weak_lr", _lr(batch, False), "it begins from scratch"))
    if early == "rewind":  # the paper rewinds at the learning rate that training begins with
        lines.append(RecipeLine("teacher.rewind_epochs", rewind_length(length), "10 of 240: the paper's share"))
        lines.append(RecipeLine("teacher.rewind_lr", _lr(batch, False)))
    return lines


def _keep(early: str | None) -> list[RecipeLine]:
    """Keep a state at an unusual share of training too."""
    usual = TeacherSettings(name="").keep
    try:
        share = float((early or "").removesuffix("%"))
    except ValueError:  # none was named, or it is to be made
        return []
    if not 0 <= share < 100 or f"{share:g}%" != early:
        raise UserError(f"--early {early}: a share of the teacher's training is wanted, from 0% to 99%, like 15%")
    return [] if share in usual else [RecipeLine("teacher.keep", [share, *usual], f"with {early}, as you said")]


def _lr(batch: int, fine_tune: bool) -> float:
    return float(f"{LR * math.sqrt(batch / 64) * (FINE_TUNE if fine_tune else 1):.2g}")


def to_toml(lines: list[RecipeLine], head: str) -> str:
    """The recipe as TOML, with the reasons as comments."""
    text, section = [f"# {line}" for line in head.splitlines()], ""
    for line in lines:
        first, *rest = line.key.split(".", 1)
        keys = [first, *rest[0].rsplit(".", 1)] if first == "methods" else line.key.split(".")  # contrast+tc is one key
        *parents, key = (k if re.fullmatch(r"[A-Za-z0-9_-]+", k) else json.dumps(k) for k in keys)
        if ".".join(parents) != section:
            section = ".".join(parents)
            text += ["", f"[{section}]"]
        setting = f"{key} = {json.dumps(line.value, ensure_ascii=False, default=str)}"
        text.append(f"{setting:<34} # {line.why}" if line.why else setting)
    return "\n".join(text) + "\n"
