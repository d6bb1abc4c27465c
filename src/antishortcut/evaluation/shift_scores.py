"""Other people's images, or the same in another style: stylised copies, renditions, cue conflict, groups, an attack."""
# N images, C classes

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from antishortcut.data.datasets import held
from antishortcut.data.groups import groups_of, shares
from antishortcut.data.shifts import Shift, Stimuli, open_renditions, open_stimuli
from antishortcut.errors import UserError
from antishortcut.evaluation.adversarial import EPSILONS, STEPS, robust_accuracy
from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Examination, Scored, part
from antishortcut.evaluation.stylize import Stylized, open_stylized
from antishortcut.metrics import accuracy, cue_conflict, group_accuracy, overlap_accuracy, split_accuracy
from antishortcut.teachers.trajectory import Teachers
from antishortcut.types import AnySet

ATTACKED = 1_000  # images of the headline test set that are attacked


def stylized(bench: EvalContext) -> Iterator[Examination]:
    """Copies made by asd stylize: accuracy, the loss against clean images, and how often the style's class is said."""
    kind = bench.sets.name.partition(":")[0]
    place = bench.place("stylized", f"{kind}-stylized")
    if place is None:
        make = f"asd stylize {shlex.quote(bench.sets.name)} OUT --stylizer DIR"
        raise UserError(f"no stylised copies of {bench.sets.name}: make them with {make}, then add --at stylized=OUT")
    copies = open_stylized(place, len(bench.sets.classes))
    content = bench.content(copies.images, copies.facts, place)
    yield Scored("stylized", _joint(bench, copies.fingerprint), partial(_stylized, copies, content))


def _stylized(copies: Stylized, content: AnySet, subject: EvaluatedRun) -> Mapping[str, Any]:
    logits, _ = subject.outputs(copies.images)
    values = dict(accuracy(logits, copies.images.label))
    values["clean_accuracy"] = subject.clean_accuracy(content)
    values["gap"] = values["clean_accuracy"] - values["accuracy"]
    if copies.style_label is not None:
        values["by_style"] = float((logits.argmax(dim=1) == copies.style_label).float().mean())
    values["chance"] = 1 / logits.shape[1]
    return {"count": len(copies.images), "values": values, "source": "generated", "facts": dict(copies.facts)}


def renditions(name: str, bench: EvalContext) -> Iterator[Examination]:
    """ImageNet-R or ImageNet-A: all classes as the paper scores them, and only those the set has."""
    place = bench.place(name, name)
    if place is None:
        raise UserError(f"no folder {bench.root / name}; unpack {name} there, or add --at {name}=FOLDER")
    shift = open_renditions(name, place, bench.wnids)
    yield Scored(name, _joint(bench, shift.fingerprint), partial(_renditions, shift))


def _renditions(shift: Shift, subject: EvaluatedRun) -> Mapping[str, Any]:
    logits, _ = subject.outputs(_ready(shift.images, subject))
    values = dict(overlap_accuracy(logits, shift.images.label, shift.allowed))
    values |= {"chance": 1 / len(shift.allowed), "chance_overlap": 1 / len(shift.overlap)}
    source = "official" if shift.facts["official_classes"] else "given"
    return {"count": len(shift.images), "values": values, "source": source, "facts": dict(shift.facts)}


def conflict(bench: EvalContext) -> Iterator[Examination]:
    """Stimuli of Geirhos et al. 2019: a shape of one class, a texture of another."""
    place = bench.place("cue-conflict", "cue-conflict")
    if place is None:
        raise UserError(
            f"no folder {bench.root / 'cue-conflict'}; put the stimuli there (cat7-elephant2.png), "
            "or add --at cue-conflict=FOLDER"
        )
    mapping = place / "mapping.toml"
    stimuli = open_stimuli(place, bench.wnids, mapping if mapping.exists() else None)
    yield Scored("cue-conflict", _joint(bench, stimuli.fingerprint), partial(_conflict, stimuli))


def _conflict(stimuli: Stimuli, subject: EvaluatedRun) -> Mapping[str, Any]:
    logits, _ = subject.outputs(_ready(stimuli.images, subject))
    values = dict(cue_conflict(logits, stimuli.matrix, stimuli.images.label, stimuli.texture))
    return {"count": len(stimuli.images), "values": values, "source": "given", "facts": dict(stimuli.facts)}


def groups(bench: EvalContext) -> Iterator[Examination]:
    """The worst group of the headline test set, where every image has a second fact besides its class."""
    if not bench.primary_metric[1].cues:
        raise UserError(f"{bench.sets.name} has no groups; cues has, and groups:PATH with a metadata.csv")
    yield Scored("groups", bench.sets.fingerprint, _groups)


def _groups(subject: EvaluatedRun) -> Mapping[str, Any]:
    sets = subject.bench.sets
    name, images = subject.bench.primary_metric
    logits, _ = subject.outputs(images)
    group, names = groups_of(images, sets.classes)
    values, detail = group_accuracy(logits, images.label, group, names, shares(sets.train, sets.classes))
    return {"count": len(images), "of": name, "values": values, "groups": detail}


def attack(bench: EvalContext) -> Iterator[Examination]:
    """An ℓ∞ attack, which the method does not aim at: the boundary of the claim (supplement)."""
    yield Scored("attack", bench.sets.fingerprint, _attack)


def _attack(subject: EvaluatedRun) -> Mapping[str, Any]:
    images = part(subject.bench.primary_metric[1], ATTACKED)
    values = robust_accuracy(subject.network, images, subject.bench.sets.image_size, device=subject.device)
    facts = {"attack": "PGD, ℓ∞", "epsilons": list(EPSILONS), "steps": STEPS}
    return {"count": len(images), "values": values, "facts": facts}


def _ready(images: AnySet, subject: EvaluatedRun) -> AnySet:
    """Brought to size as the student's own images were: small ones are resized whole, large ones cut from a margin."""
    return held(images, subject.bench.sets.image_size, None)


def _joint(bench: EvalContext, images: str) -> str:
    """A student's scores depend on the images and on the classes it was trained for."""
    return hashlib.sha256(f"{bench.sets.fingerprint} {images}".encode()).hexdigest()[:16]


# --- Images that the early teacher gets wrong ---


def hard(bench: EvalContext) -> Iterator[Examination]:
    """Accuracy where T_early is wrong, and right: on the validation split, or without one on the first test set."""
    name, images = ("val", bench.sets.val) if bench.sets.val is not None else bench.primary_metric
    yield Scored("hard", f"{bench.sets.fingerprint}-{name}", partial(_score, name, images))


def compared(subject: EvaluatedRun) -> Teachers:
    """The teacher states a student is compared with: final and early of its teacher, whatever it learned from."""
    run, sets = subject.run.model_copy(update={"roles": {}}), subject.bench.sets
    return Teachers(run, subject.bench.runs, len(sets.classes), sets.image_size)


def _score(name: str, images: AnySet, subject: EvaluatedRun) -> Mapping[str, Any]:
    if subject.run.teacher is None:
        raise UserError(f"{subject.folder.path} is a teacher; images hard for its early state are for students")
    logits, _ = subject.outputs(images)
    early, _ = subject.outputs(images, compared(subject).network("early"))
    values = dict(split_accuracy(logits, images.label, early.argmax(dim=1) != images.label))
    return {"count": len(images), "values": values, "of": name}
