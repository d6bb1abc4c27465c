"""Networks side by side on one image: what they answer, where they look, what changes it. Pure; trial_page shows it.

A saved case is cases/<n>/ in the folder of the runs: image.png as the networks saw it, original.png before it was
changed, and case.json with answers and settings, which is written last.
"""
# C classes, S side of the square images

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from antishortcut.analysis.answers import grad_cam, integrated_gradients, scaled
from antishortcut.analysis.features import predictions
from antishortcut.api import audit_input
from antishortcut.api.arguments import find_run, open_session
from antishortcut.api.scoring import eval_context
from antishortcut.data import Loader, order
from antishortcut.data.corruptions import corrupt
from antishortcut.data.datasets import held
from antishortcut.data.image_io import REPLACE, picture_at
from antishortcut.data.inspect import turned
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import take
from antishortcut.errors import UserError
from antishortcut.evaluation import probes
from antishortcut.evaluation.context import EvalContext, EvaluatedRun
from antishortcut.fileio import atomic_write, refuse_links
from antishortcut.models import Network
from antishortcut.run_dir import write_json
from antishortcut.teachers.trajectory import Trajectory
from antishortcut.types import UNLABELLED, AnySet, FileSet

CASES = "cases"
TOP = 5
MOST = 12  # networks side by side
POOL = 2_000  # images that are searched for those on which networks disagree
WHERE: dict[str, Callable[[Network, Tensor, Tensor], Tensor]] = {
    "Grad-CAM": grad_cam,
    "integrated gradients": integrated_gradients,
}


class Probe(NamedTuple):
    """One kind of evidence that a slider takes away."""

    label: str
    change: Callable[[Tensor, Tensor, Any], Tensor]
    off: int  # where the image is as it was
    low: int
    high: int


PROBES = {
    "shuffle": Probe("Shuffle: patches a side", probes.shuffle, 1, 1, 8),
    "blur": Probe("Blur: % of the side", probes.blur, 0, 0, 12),
    "edges": Probe("Edges alone: blur in %", probes.edges, 0, 0, 6),
    "grey": Probe("Grey: % of the colour gone", probes.grey, 0, 0, 100),
    "hue": Probe("Hue: degrees", probes.hue, 0, 0, 360),
    "centre": Probe("Centre: % that stays", probes.centre, 100, 5, 100),
    "surround": Probe("Surround: % that stays", probes.surround, 100, 5, 100),
}
UNCHANGED: dict[str, Any] = {name: probe.off for name, probe in PROBES.items()} | {"corruption": "", "severity": 3}


@dataclass(frozen=True, eq=False)
class Trial:
    """Networks that answer the same question, and images to ask them."""

    networks: dict[str, Network]
    classes: tuple[str, ...]
    image_size: int
    sets: dict[str, AnySet]
    title: str
    folder: Path  # cases/ is written in it
    device: str = "cpu"


@dataclass(frozen=True)
class TrialImage:
    """One image as evaluations prepare it, and where it is from."""

    pixels: Tensor  # (1, 3, S, S) in [0, 1]
    label: str | None = None
    of: str | None = None  # the set; None of an image that was dropped
    index: int = 0  # its place in the set
    turned: bool = False  # a viewer would turn it


class Answer(NamedTuple):
    network: str
    top: list[tuple[str, float]]  # classes and their probabilities, the answer first
    heat: Tensor | None  # where it looks, (S, S) in [0, 1]


# --- Networks and images ---


def open_runs(
    paths: Sequence[Path], own: Mapping[str, Path], runs: Path | None, data_root: Path | None, device: str
) -> Trial:
    """Students with their teachers, or a teacher alone. `own` are folders of class folders, by name."""
    folders = [find_run(path, runs or Path("runs")) for path in paths]
    finished = [folder for folder in folders if folder.finished] or folders[:1]
    for folder in folders:
        if folder not in finished and (folder.path / "run.json").exists():  # of what a shell's * brings along
            warnings.warn(f"{folder.path}: no finished run, left out", stacklevel=2)
    parent = runs or finished[0].path.resolve().parent.parent
    context = eval_context(open_session(parent, data_root, False), finished[0].read()[0].data, parent, dict(own))
    wants_labels("asd try", context.sets.train, of="image")
    teachers: dict[str, Network] = {}
    students: dict[str, Network] = {}
    known: set[tuple[str | None, str]] = set()
    for folder in finished:
        evaluated = EvaluatedRun(folder, context, device=device)
        run = evaluated.run
        if run.kind == "distill":
            students[folder.path.resolve().name] = evaluated.network
        origin = (run.teacher if run.kind == "distill" else folder.path.name, run.early)
        if origin[0] is not None and origin not in known:
            more = f" {origin[0][:6]} {origin[1]}" if known else ""  # seeds may have teachers of their own
            known.add(origin)
            teachers |= {f"{role}{more}": network for role, network in _teachers(evaluated).items()}
    place = finished[0].path.parent if students else finished[0].path
    return _trial(teachers | students, context, place.resolve().name, place, device)


def _teachers(evaluated: EvaluatedRun) -> dict[str, Network]:
    """T_final, and T_early if there is one."""
    if evaluated.run.kind == "distill":
        teachers = evaluated.teachers("asd try")
        networks = {"T_final": teachers.network("final")}
        try:
            return networks | {"T_early": teachers.network("early")}
        except UserError as error:
            warnings.warn(f"without T_early: {error}", stacklevel=2)
            return networks
    folder, early = evaluated.folder, evaluated.run.early
    networks = {"T_final": evaluated.network}
    if Trajectory(folder).has(early):
        networks["T_early"] = EvaluatedRun(folder, evaluated.context, early, evaluated.device).network
    return networks


def open_files(
    final: Path | None,
    early: Sequence[str],
    model: str | None,
    data: str | None,
    own: Mapping[str, Path],
    data_root: Path | None,
    device: str,
    classes: int | None = None,
    settings: Sequence[str] = (),
) -> Trial:
    """Two checkpoints or more of one model, loaded as for an audit; no student is needed."""
    from antishortcut.api.arguments import open_session
    from antishortcut.training.auto_recipe import data_name

    if final is None or not early or model is None or data is None:
        raise UserError("asd try needs run folders, or --final, --early, --model and --data")
    built = audit_input.settings_of(model, None, data_name(data), data_root, {}, settings)
    sets = open_session(Path("runs"), data_root, False).sets(built.data)
    wants_labels("asd try", sets.train, of="image")
    case = audit_input.from_files(built.teacher, final, early, sets, classes)
    networks = {"T_final": case.networks.pop("final")}
    networks |= {"T_early" if len(case.networks) == 1 else f"T_early {name}": n for name, n in case.networks.items()}
    return _trial(networks, EvalContext(sets, Path("runs")).with_folders(own), model, Path(), device)


def _trial(networks: dict[str, Network], context: EvalContext, title: str, folder: Path, device: str) -> Trial:
    sets = context.sets
    if not sets.classes:
        raise UserError(f"asd try shows answers, and networks trained on {sets.name} have no classifier")
    if len(networks) > MOST:
        raise UserError(f"asd try shows up to {MOST} networks side by side, not {len(networks)}; name fewer runs")
    images = dict(sets.tests) | {name: held(one.images, sets.image_size, None) for name, one in context.folders.items()}
    for network in networks.values():
        network.to(device).eval()
    return Trial(networks, sets.classes, sets.image_size, images, f"{title} on {sets.name}", folder, device)


def image_of(trial: Trial, of: str, index: int) -> TrialImage:
    """An image of a set, by its place, which is counted round."""
    images = trial.sets[of]
    index %= len(images)
    number = int(images.label[index])
    label = None if number == UNLABELLED else trial.classes[number]
    return TrialImage(_pixels(take(images, torch.tensor([index])), trial.image_size), label, of, index)


def dropped_image(trial: Trial, path: Path) -> TrialImage:
    """Any image file, resized and cropped as those of the test sets."""
    one = FileSet((path,), torch.tensor([UNLABELLED]))
    try:
        pixels = _pixels(held(one, trial.image_size, None), trial.image_size)
        return TrialImage(pixels, turned=turned(picture_at(one, 0)))
    except UserError as error:  # which names the copy that was uploaded
        raise UserError(str(error).replace(str(path), path.name).removesuffix(REPLACE)) from None


def _pixels(one: AnySet, size: int) -> Tensor:
    loader = Loader(one, batch=1, seed=0, image_size=size, augment="none", shuffle=False, workers=0)
    return next(iter(loader.epoch(0))).image


# --- What they say ---


def changed(image: TrialImage, settings: Mapping[str, Any]) -> Tensor:
    """The pixels corrupted, then without the evidence that the probes take away. (1, 3, S, S)"""
    pixels = image.pixels
    if settings["corruption"]:
        raw = (pixels * 255).round().byte().permute(0, 2, 3, 1).numpy()  # (1, S, S, 3)
        raw = corrupt(raw, settings["corruption"], int(settings["severity"]))
        pixels = torch.from_numpy(raw).permute(0, 3, 1, 2).float() / 255
    for name, probe in PROBES.items():
        if settings[name] != probe.off:
            pixels = probe.change(pixels, torch.tensor([image.index]), settings[name])
    return pixels


def answers(trial: Trial, pixels: Tensor, where: str = "") -> list[Answer]:
    """The five most probable classes of every network; by the name of a map, where it looks for the first."""
    results = []
    for name, network in trial.networks.items():
        image = pixels.to(trial.device)
        with torch.no_grad():
            logits = network(image).logits[0].float()  # (C,)
        confidence, top = logits.softmax(dim=0).topk(min(TOP, len(logits)))
        heat = scaled(WHERE[where](network, image, top[:1]))[0].cpu() if where else None  # (S, S)
        named = len(logits) == len(trial.classes)  # else the outputs are those of other classes
        names = [trial.classes[at] if named else f"output {at}" for at in top.tolist()]
        results.append(Answer(name, list(zip(names, confidence.tolist(), strict=True)), heat))
    return results


@cache
def disagreements(trial: Trial, of: str) -> list[int]:
    """Places in a set of images with different answers, those with most different ones first; of POOL random ones."""
    pool = order(len(trial.sets[of]), 0, 0)[:POOL]
    results = predictions(trial.networks, take(trial.sets[of], pool), trial.image_size, trial.device)
    labels = torch.stack([one.label for one in results.values()])  # (networks, images)
    different = torch.tensor([len(column.unique()) for column in labels.T])
    return [int(pool[at]) for at in different.argsort(descending=True, stable=True) if different[at] > 1]


# --- Saved cases ---


def picture(pixels: Tensor, heat: Tensor | None = None, shade: float = 0.8) -> bytes:
    """Pixels (1, 3, S, S) as PNG; with a map (S, S), dark where the network does not look."""
    shown = pixels[0] if heat is None else pixels[0] * (1 - shade * (1 - heat))
    file = io.BytesIO()
    Image.fromarray((shown * 255).round().byte().permute(1, 2, 0).numpy().astype(np.uint8)).save(file, format="PNG")
    return file.getvalue()


def save_case(trial: Trial, image: TrialImage, settings: Mapping[str, Any]) -> Path:
    """Write the next free cases/<n>/; returns it."""
    refuse_links(trial.folder, CASES)
    (trial.folder / CASES).mkdir(exist_ok=True)
    pixels = changed(image, settings)
    for number in count(1):
        place = trial.folder / CASES / str(number)
        try:
            place.mkdir()
        except FileExistsError:
            continue
        break
    for name, shot in (("image", pixels), ("original", image.pixels)):
        with atomic_write(place / f"{name}.png") as file:
            file.write(picture(shot))
    shown = [{"network": one.network, "top": one.top} for one in answers(trial, pixels)]
    used = {name: settings[name] for name in (*PROBES, "corruption") if settings[name] != UNCHANGED[name]}
    used |= {"severity": settings["severity"]} if settings["corruption"] else {}
    facts = {"title": trial.title, "set": image.of, "index": image.index if image.of else None, "label": image.label}
    write_json(place / "case.json", facts | {"settings": used, "answers": shown})
    return place
