"""A recipe for someone's own images and two networks: every choice follows from what is there, and says why.

    asd distill --data folder:photos --teacher timm:resnet50 --student timm:mobilenetv3_small_100

The recipe is written beside the runs made from it; from then on it is what counts, and may be edited.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from antishortcut.config.recipe import TeacherSettings
from antishortcut.data.datasets import DATASETS
from antishortcut.data.inspect import open_finding, usual_augment, usual_side
from antishortcut.data.inspect.scan import Finding
from antishortcut.errors import UserError, plural, suggest
from antishortcut.fileio import expanded, near_folder
from antishortcut.models.external import published

STEPS = 20_000  # of the optimiser that a student is worth, within EPOCHS
EPOCHS, FEWEST = (30, 100), 16  # at least and at most; steps that an epoch should have
BATCH = (16, 128)
HUBS = ("timm:", "torchvision:")  # networks with published weights
OWN = ("folder:", "groups:")  # data whose images may have any size
SEEN = {f"data.{name}" for name in ("seed", "train_limit", "test_limit", "val_fraction", "image_size", "options")}
RATE, FINE = 1e-3, 0.2  # of AdamW at 64 images a step, from scratch; the share of it for published weights
WARM, EARLY = 0.05, 1 / 12  # shares of training: warm-up of the rate, and of the method's terms (20 of the paper's 240)


@dataclass(frozen=True)
class Wanted:
    """What the person said."""

    data: str
    teacher: str
    student: str
    final: str | None = None  # the teacher is already trained: its weights
    early: str | None = None  # and those of its early state, or "rewind"
    epochs: int | None = None
    pretrained: bool | None = None  # None: where weights are published

    @property
    def name(self) -> str:
        """Of the folder of its runs."""
        where = expanded(self.data.partition(":")[2] or self.data).resolve().name
        words = (where, *(network.rpartition(":")[2] for network in (self.teacher, self.student)))
        return "-".join(re.sub(r"[^\w.-]+", "-", word).strip("-.") or "data" for word in words)

    @property
    def said(self) -> dict[str, Any]:
        """Settings that were asked for by name, which a recipe that is there must agree with."""
        networks = {"student": self.student} | ({"teacher": self.teacher} if self.final is None else {})
        known = {f"{who}.pretrained": self.pretrained for who, name in networks.items() if name.startswith(HUBS)} | {
            "data.name": self.data,
            "teacher.name": self.teacher,
            "student.name": self.student,
            "teacher.final": self.final,
            "teacher.early": self.early,
            "epochs": self.epochs,
        }
        return {key: value for key, value in known.items() if value is not None}


@dataclass(frozen=True)
class Line:
    """A setting and why it is so."""

    key: str  # "epochs" or "optim.lr"
    value: Any
    why: str = ""


def data_name(text: str) -> str:
    """A plain folder is one of images; however its path is spelt, it is the same."""
    kind, result, path = text.partition(":")
    if not result and expanded(text).is_dir():
        return f"folder:{Path(text)}"
    if not result and text not in DATASETS:
        raise UserError(f"{text!r} is no folder here and no data set{near_folder(text) or suggest(text, DATASETS)}")
    return f"{kind}:{Path(path)}" if f"{kind}:" in OWN and path else text


def plan(wanted: Wanted, root: Path | None, given: Mapping[str, Any]) -> list[Line]:
    """The settings of the recipe, in order; those given are as they were, and others follow from them."""
    own = {key.removeprefix("data."): value for key, value in given.items() if key in SEEN}
    finding = open_finding(wanted.data, root, **own)
    if "image_size" not in own:
        finding = replace(finding, image_size=usual_side(finding))
    if finding.refusal:
        raise UserError(f"{finding.refusal} (asd check {shlex.quote(wanted.data)} tells more)")
    _refuse_too_few(finding)
    images = len(finding.parts["train"])
    batch = _batch(images)
    ready = {who: _weights(wanted, network) for who, network in _learning(wanted).items()}
    steps = given.get("iterations")
    epochs, why = (steps, "") if isinstance(steps, int) else _epochs(wanted, images, batch)
    unit = "epochs" if steps is None else "iterations"
    lines = [
        Line("title", f"{wanted.teacher} → {wanted.student} on {wanted.data}"),
        Line(unit, epochs, why),
        *_data(wanted, finding),
        *_teacher(wanted, ready, epochs, batch),
        Line("student.name", wanted.student),
        *_student(wanted, ready),
        Line("optim.name", "adamw", "suits transformers and convolutions alike"),
        Line("optim.lr", _rate(batch, ready["student"])),
        Line("optim.weight_decay", 0.05),
        Line("optim.decay", "weights", "none of biases and norms"),
        Line("optim.batch", batch, f"{images:,} training images, steps an epoch: {math.ceil(images / batch):,}"),
        Line("optim.warmup", round(WARM * epochs, 2), f"{unit} in which the rate rises"),
    ]
    rise = round(EARLY * epochs, 2)
    lines.append(Line("methods.asd.warmup", rise, f"{unit} in which its terms rise: the paper's share"))
    return as_given([*lines, Line("methods.contrast+tc.warmup", rise)], given)


def as_given(lines: list[Line], given: Mapping[str, Any]) -> list[Line]:
    """With settings that the person gave in their places, or below the last of their section."""
    lines = [Line(line.key, given[line.key], "as you said") if line.key in given else line for line in lines]
    for key in given.keys() - {line.key for line in lines}:
        section = key.rpartition(".")[0]
        place = max((at for at, line in enumerate(lines) if line.key.rpartition(".")[0] == section), default=-1)
        lines.insert(place + 1 if place >= 0 else len(lines), Line(key, given[key], "as you said"))
    return lines


def _learning(wanted: Wanted) -> dict[str, str]:
    return {"student": wanted.student} | ({"teacher": wanted.teacher} if wanted.final is None else {})


def _weights(wanted: Wanted, network: str) -> bool:
    """As `published`, unless the person decided."""
    if wanted.pretrained and not any(name.startswith(HUBS) for name in _learning(wanted).values()):
        raise UserError(f"--pretrained: nobody publishes weights of {' or '.join(_learning(wanted).values())}")
    if wanted.pretrained is not None:
        return wanted.pretrained and network.startswith(HUBS)
    return published(network)


def _data(wanted: Wanted, finding: Finding) -> list[Line]:
    kind, own = usual_augment(finding), wanted.data.startswith(OWN)
    side = [Line("data.image_size", finding.image_size, "half of the images or more are no smaller")] if own else []
    whys = {"imagenet": "random resized crop, flip, colour", "crop-flip": "shift and flip"}
    return [Line("data.name", wanted.data, _counts(finding)), *side, Line("data.augment", kind, whys.get(kind, ""))]


def _counts(finding: Finding) -> str:
    """What was found, without names: they may hold anything, and this becomes a comment."""
    train, *held = (len(part) for part in finding.parts.values())
    message = f"{plural(len(finding.classes), 'class')}, {plural(train, 'image')} to train on, {sum(held):,} held out"
    return message + (f"; without images: {plural(len(finding.empty), 'folder')}" if finding.empty else "")


def _teacher(wanted: Wanted, ready: dict[str, bool], epochs: int, batch: int) -> list[Line]:
    lines = [Line("teacher.name", wanted.teacher)]
    if wanted.final is not None:
        lines.append(Line("teacher.final", wanted.final, "already trained"))
        lines += [] if wanted.early is None else [Line("teacher.early", wanted.early)]
        return lines + _rewinds(wanted, batch)
    if wanted.pretrained is False and wanted.teacher.startswith(HUBS):
        lines.append(Line("teacher.pretrained", False, "as you said"))
    if ready["teacher"]:
        short = max(min(math.ceil(epochs / 2), 30), 1)
        lines += [
            Line("teacher.pretrained", True, "fine-tuned from published weights"),
            Line("teacher.epochs", short),
        ]
    lines.append(Line("teacher.lr", _rate(batch, ready["teacher"])))
    lines.append(Line("teacher.early", wanted.early or "15%", "T_early, of the teacher's training"))
    return lines + _kept(wanted.early) + _rewinds(wanted, batch)


def _kept(early: str | None) -> list[Line]:
    """A share of training that is not kept unless said is added to those that are."""
    usual = TeacherSettings(name="").keep
    try:
        share = float((early or "").removesuffix("%"))
    except ValueError:  # none was named, or it is rewound
        return []
    if not 0 <= share < 100 or f"{share:g}%" != early:
        raise UserError(f"--early {early}: a share of the teacher's training is wanted, from 0% to 99%, like 15%")
    return [] if share in usual else [Line("teacher.keep", [share, *usual], f"with {early}, as you said")]


def _rewinds(wanted: Wanted, batch: int) -> list[Line]:
    """The paper rewinds at the rate that training begins with."""
    return [Line("teacher.rewind_lr", _rate(batch, fine=False))] if wanted.early == "rewind" else []


def _refuse_too_few(finding: Finding) -> None:
    """A class that nothing can be learned of, or one image in all."""
    train = finding.parts["train"]
    if finding.dense:
        return
    counts = torch.bincount(train.label, minlength=len(finding.classes)).tolist()
    if empty := [name for name, count in zip(finding.classes, counts, strict=True) if count == 0]:
        raise UserError(f"{finding.name}: no image of {empty[0]} is left to train on; add some (asd check counts them)")
    if sum(counts) < 2:
        raise UserError(f"{finding.name}: {sum(counts)} training image; at least two are needed")


def _student(wanted: Wanted, ready: dict[str, bool]) -> list[Line]:
    if wanted.pretrained is False and wanted.student.startswith(HUBS):
        return [Line("student.pretrained", False, "as you said")]
    return [Line("student.pretrained", True, "begins with published weights")] if ready["student"] else []


def _rate(batch: int, fine: bool) -> float:
    return float(f"{RATE * math.sqrt(batch / 64) * (FINE if fine else 1):.2g}")


def _batch(images: int) -> int:
    """The largest power of two with which an epoch has steps enough."""
    least, most = BATCH
    return min(max(1 << int(math.log2(max(images / FEWEST, 1))), least), most)


def _epochs(wanted: Wanted, images: int, batch: int) -> tuple[int, str]:
    if wanted.epochs is not None:
        return wanted.epochs, ""
    least, most = EPOCHS
    return min(max(round(STEPS * batch / images), least), most), f"about {STEPS:,} steps, from {least} to {most} epochs"


def written(lines: list[Line], head: str) -> str:
    """The recipe as TOML, with the reasons as comments."""
    text, table = [f"# {line}" for line in head.splitlines()], ""
    for line in lines:
        *parents, key = line.key.split(".") if not line.key.startswith("methods.") else _method_key(line.key)
        if (name := ".".join(_bare(parent) for parent in parents)) != table:
            text += ["", f"[{name}]"]
            table = name
        setting = f"{_bare(key)} = {json.dumps(line.value, ensure_ascii=False, default=str)}"
        text.append(f"{setting:<34} # {line.why}" if line.why else setting)
    return "\n".join(text) + "\n"


def _method_key(key: str) -> list[str]:
    first, rest = key.split(".", 1)
    return [first, *rest.rsplit(".", 1)]


def _bare(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)
