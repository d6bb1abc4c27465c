"""A teacher trained elsewhere: weight files, or the folder of `Snapshots`, imported as a teacher's folder."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric

from antishortcut.config.recipe import TeacherSettings
from antishortcut.config.schema import PUBLISHED
from antishortcut.data import Loader, to_device
from antishortcut.data.splits import limited
from antishortcut.errors import UserError, first_line
from antishortcut.fileio import expanded, sha256
from antishortcut.metrics import near_chance
from antishortcut.models import Network, load_weights
from antishortcut.models.external import find_source, is_object, is_own, published_classes
from antishortcut.models.feature_extractor import EMBEDS, FeatureExtractor, count_logits
from antishortcut.models.weights import count_classes
from antishortcut.run_dir import RunDir, read_json
from antishortcut.tasks import build_task
from antishortcut.teachers.snapshots import check_entries
from antishortcut.teachers.trajectory import Trajectory, build_model
from antishortcut.types import DataSplits, ScoredByTeacher, lacks_labels

IMAGES = 2_000  # on which an imported state is scored
END = {"final", "100%"}


class ImportedState(NamedTuple):
    labels: list[str]
    step: int  # of training; weight files do not tell, so their place
    file: Path | None  # None: the weights that the network comes with
    fraction: float | None = None  # of training that was done
    sha256: str | None = None  # of the file when it was written


def imported_states(teacher: TeacherSettings) -> list[ImportedState]:
    """The states of a teacher trained elsewhere, in the order they were reached; the last is final."""
    assert teacher.final is not None
    if teacher.final == PUBLISHED:
        if teacher.early_file:
            raise UserError(f"teacher.early is {teacher.early}, so teacher.final must be a file too, not {PUBLISHED}")
        if find_source(teacher.name) is None:
            raise UserError(f"nobody publishes weights for {teacher.name}; train it, or name a file as teacher.final")
        return [ImportedState(["final"], 2, None)]
    path = expanded(teacher.final)
    if not os.path.isdir(path):  # False, not an error, for a name that is too long
        early = [ImportedState(["early"], 1, expanded(teacher.early))] if teacher.early_file else []
        return [*early, ImportedState(["final"], 2, path)]
    if teacher.early_file:
        raise UserError(f"{path} is a folder of snapshots: name one of them as early, not {teacher.early}")
    states = list(_read_snapshots(path))
    if not states or not END & set(states[-1].labels):
        last = ", ".join(states[-1].labels) if states else "none"
        raise UserError(f"{path} has no final state (the last one: {last}); call Snapshots.finish where training ends")
    return states


def _read_snapshots(folder: Path) -> Iterator[ImportedState]:
    """States in the layout of Snapshots and `asd teach`."""
    manifest = folder / "manifest.json"
    tree = read_json(manifest)
    try:
        for entry in sorted(check_entries(tree["states"]), key=lambda entry: int(entry["step"])):
            fraction = float(entry["fraction"])
            if not 0 <= fraction <= 1 or (entry["step"] == 0 and END & set(entry["labels"])):
                raise ValueError("a fraction outside 0 and 1, or an end before the first step")
            file = folder / "snapshots" / entry["file"]
            yield ImportedState(entry["labels"], entry["step"], file, fraction, entry["sha256"])
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        reason = first_line(error) if type(error) is ValueError else repr(error)
        raise UserError(f"{manifest}: not a manifest of antishortcut.Snapshots ({reason})") from None


def check_files_fit(teacher: TeacherSettings, data: DataSplits, download: bool = True) -> None:
    """Raise for weights of another network or of other classes, before anything is trained with them."""
    network, states = _network(teacher, data, download), imported_states(teacher)
    _load(network, states[0])
    first = {key: value.clone() for key, value in network.state_dict().items()}
    _load(network, states[-1])
    if len(states) > 1 and all(torch.equal(value, first[key]) for key, value in network.state_dict().items()):
        raise UserError(_same_weights(states))


def teacher_classes(teacher: TeacherSettings, image_size: int) -> int:
    """How many classes a teacher trained elsewhere knows; 0 if it only embeds."""
    file, model = imported_states(teacher)[-1].file, teacher.without_weights()
    if file is None and not is_own(teacher.name):
        return published_classes(teacher.name)
    if file is not None and not is_object(teacher.name):
        try:
            network = build_model(model, 2, image_size)
        except UserError:
            if not is_own(teacher.name):
                raise
        else:
            return count_classes(network, file)
    network = build_model(model, 0, image_size)  # its outputs are what they are
    assert isinstance(network.body, FeatureExtractor)
    image = torch.rand(2, 3, image_size, image_size, generator=torch.Generator().manual_seed(0))
    return count_logits(network.body.module, network.resized(image))


def only_embeds(teacher: TeacherSettings, classes: int, image_size: int) -> bool:
    """Whether a teacher trained elsewhere has no classifier, neither for these classes nor for others."""
    if teacher.final == PUBLISHED and ":" in teacher.name.partition(":")[2]:
        return False  # hf-hub:owner/name, of which nothing is known before the download
    if is_own(teacher.name) or is_object(teacher.name):
        with suppress(UserError):
            build_model(teacher.without_weights(), classes, image_size)
            return False
    with suppress(UserError):  # it is raised again when its weights are loaded
        return teacher_classes(teacher, image_size) == 0
    return False


def import_teacher(teacher: TeacherSettings, run_dir: RunDir, data: DataSplits, fabric: Fabric) -> Iterator[str]:
    """Check every state, score it, and save it in the teacher's folder. Yields a line about each."""
    network, final = _network(teacher, data), None
    trajectory, metric = Trajectory(run_dir), build_task(data).primary_metric
    states, values = imported_states(teacher), list[float]()
    if lacks_labels(data.train):  # without labels a state is scored by how well it agrees with the final one
        final = _network(teacher, data)
        _load(final, states[-1])
    for state in states:
        _check_sum(state)
        _load(network, state)
        scores = _scores(network, final, data, fabric)
        total = None if state.fraction is None else states[-1].step
        trajectory.keep(state.labels, state.step, None, total, scores, network)
        values.append(scores[metric])
        yield f"{state.file or PUBLISHED} is {' = '.join(state.labels)}: {metric} {scores[metric]:.3f} here"
    if len(states) > 1 and len({entry["sha256"] for entry in trajectory.entries}) == 1:
        raise UserError(_same_weights(states))
    if values[0] > values[-1]:
        suspects = f"teacher.mean and teacher.std ({_colours(network)}), then the image size ({data.image_size})"
        swapped = f"are {states[0].file} and {states[-1].file} swapped?"
        yield f"The early state has the better {metric}. Check first {suspects}; {swapped}"
    chance = 1 / max(len(data.classes), 1)
    if metric == "accuracy" and chance < 1 and near_chance(scores[metric], chance):
        yield (
            "That is hardly better than guessing: does it expect other teacher.mean and teacher.std than "
            f"{_colours(network)}, another image size than {data.image_size}, or its classes in another order than "
            f"yours, {', '.join(data.classes[:3])}{', …' if len(data.classes) > 3 else ''}?"
        )
    last = dict(scores) | {"epoch": None}
    result: dict[str, Any] = {"set": data.eval_split, "primary_metric": metric, "last": last, "best": last}
    size = sum(parameter.numel() for parameter in network.parameters())
    run_dir.finish(result | {"steps": states[-1].step, "parameters": size, "seconds": 0.0})


def _network(teacher: TeacherSettings, data: DataSplits, download: bool = True) -> Network:
    """The teacher's network before files of weights are loaded; your own factory loads its published ones itself."""
    published = teacher.final == PUBLISHED and not is_own(teacher.name)
    model = teacher.without_weights().model_copy(update={"pretrained": published and download})
    network, count = build_model(model, len(data.classes), data.image_size), len(data.classes)
    if published and count:
        settings = getattr(getattr(network.body, "module", None), "pretrained_cfg", None) or {}  # timm's
        known = settings.get("num_classes") or published_classes(teacher.name)
        if known != count:  # its classifier would be a random one
            what = f"{known:,} outputs" if known else "no classifier"
            advice = f"leave --final (teacher.final) out to fine-tune it, or learn its embedding: {EMBEDS}"
            raise UserError(f"the published weights of {teacher.name} have {what}, your data {count} classes; {advice}")
    return network


def _colours(network: Network) -> str:
    return " and ".join(" ".join(f"{x:.4g}" for x in part.flatten().tolist()) for part in (network.mean, network.std))


def _check_sum(state: ImportedState) -> None:
    if state.file is None or state.sha256 is None:
        return
    if not state.file.is_file() or sha256(state.file) != state.sha256:
        raise UserError(f"{state.file} is missing or damaged: not the file that was saved; restore it")


def _load(network: Network, state: ImportedState) -> None:
    if state.file is not None:
        load_weights(network, state.file)


def _same_weights(states: list[ImportedState]) -> str:
    return f"{states[0].file} and {states[-1].file} hold the same weights: there is nothing to push away from"


@torch.no_grad()
def _scores(network: Network, final: Network | None, data: DataSplits, fabric: Fabric) -> dict[str, float]:
    task, images = build_task(data), limited(data.val or data.tests[data.eval_split], IMAGES, 0)
    loader = Loader.in_order(images, task.eval_batch_size, data.image_size)
    networks = [each.to(fabric.device).eval() for each in (network, final) if each is not None]
    counts = []
    for batch in to_device(loader.epoch(0), fabric.device):
        outputs = [each(batch.image) for each in networks]
        if isinstance(task, ScoredByTeacher):
            counts.append(task.agreement(*outputs))
        else:
            counts.append(task.counts(outputs[0], batch.label))
    for each in networks:
        each.cpu()
    return task.scores(torch.stack(counts).sum(dim=0).cpu()) | {"images": len(images)}
