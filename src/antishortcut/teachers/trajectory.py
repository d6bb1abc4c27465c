"""The trajectory of a teacher: which states of its training are saved, and how they are found again.

A teacher's folder holds snapshots/*.safetensors and manifest.json. A *state* is named by its share of training
("15%"), its epoch ("epoch:36"), "final", or, for a state of another teacher, "<hash>/15%". A weak network in T_early's
place is such another teacher; the state that was chosen for teacher T is labelled "weak-<hash of T>".
"""

from __future__ import annotations

import hashlib
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from antishortcut.config.recipe import WEAK, ModelSettings, Run
from antishortcut.errors import UserError, first_line, suggest
from antishortcut.fileio import atomic_write, expanded, sha256
from antishortcut.models import Network, build, feature_shapes, load_weights, reuse_classifier, tapped_features
from antishortcut.models.external import code_of
from antishortcut.models.reused_classifier import ClassifierSettings
from antishortcut.models.weights import load_checked, read_weights
from antishortcut.run_dir import RunDir, damaged, read_json, write_json
from antishortcut.teachers.frozen import FrozenModel
from antishortcut.teachers.snapshots import check_entries
from antishortcut.types import Features, Shape

FOLDER_NAME = re.compile(r"[0-9A-Za-z_.-]*[0-9A-Za-z_-]")  # no path that leads out of runs/teachers


def build_model(model: ModelSettings, classes: int, image_size: int) -> Network:
    """The network that a run's settings describe, with the weights they name."""
    pretrained = model.pretrained and model.weights is None  # a file of one's own needs no hub
    network = build(model.name, classes, image_size=image_size, pretrained=pretrained, **model.build_options)
    if model.weights is not None:
        load_weights(network, expanded(model.weights), start=True)
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.ndim == 4:  # 1.3–1.6 × faster on CPUs, and what tensor cores want
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return network


def build_saved(folder: RunDir, classes: int, image_size: int) -> Network:
    """The network of a run folder, still without its weights; warns if its code has changed since."""
    warn_of_changed_code(folder)
    network = build_model(folder.read()[0].model.without_weights(), classes, image_size)
    classifier = folder.classifier()
    if classifier is None:
        return network
    try:
        settings = ClassifierSettings.from_json(classifier)
    except (TypeError, ValueError):
        raise damaged(folder.path / "run.json", "classifier") from None
    return reuse_classifier(network, classes, settings)


def warn_of_changed_code(folder: RunDir) -> None:
    with suppress(UserError):  # what cannot be imported is an error where it is built
        for file in _changed_files(folder, code_of(folder.read()[0].model.name)):
            warnings.warn(f"{file} has changed since {folder.path} was trained", stacklevel=3)


def check_code(folder: RunDir, code: Mapping[str, str]) -> None:
    for file in _changed_files(folder, code):
        advice = "restore it, remove that folder to start again, or resume with the new code: --force"
        raise UserError(f"{file} has changed since {folder.path} was started; {advice}")


def _changed_files(folder: RunDir, code: Mapping[str, str]) -> list[str]:
    """The files of this code that are not what they were when the run began."""
    saved = folder.code()
    return [str(sys.modules[name].__file__) for name, sha in code.items() if saved.get(name, sha) != sha]


def cpu_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers on the CPU, each with its own memory (tied weights share theirs)."""
    form = torch.contiguous_format
    return {key: value.detach().cpu().clone(memory_format=form) for key, value in module.state_dict().items()}


def save_weights(path: Path, module: nn.Module) -> str:
    """Write parameters and buffers as safetensors, atomically. Returns their sha256."""
    data: bytes = save(cpu_tensors(module))
    with atomic_write(path, parents=False) as file:
        file.write(data)
    return hashlib.sha256(data).hexdigest()


def snapshot_steps(keep: Iterable[float | str], steps_per_epoch: int, total: int) -> dict[int, list[str]]:
    """Which states are saved after which step: {step: ["15%", …]}, the last step included.

    0 % is the untrained network; any other state is at least one step in.
    """
    schedule: dict[int, list[str]] = {}
    for point in (*keep, 100):
        label = point if isinstance(point, str) else f"{point:g}%"
        try:
            value = float(label.removeprefix("epoch:").removesuffix("%"))
        except ValueError:
            raise UserError(f"teacher.keep: {label!r} is neither a percentage (15 or '15%') nor 'epoch:36'") from None
        step = value * steps_per_epoch if label.startswith("epoch:") else value / 100 * total
        if not 0 <= step <= total:
            raise UserError(f"teacher.keep: {label} is not within training ({total // steps_per_epoch} epochs)")
        labels = schedule.setdefault(max(round(step), 1) if step else 0, [])
        if label not in labels:
            labels.append(label)
    return schedule


def find_trajectory(runs: Path, teacher: str, state: str) -> tuple[Trajectory, str]:
    """The trajectory a state is in, and its name there: "15%" of this teacher, or "<hash>/15%" of another."""
    other, _, own = state.rpartition("/")
    name = other or teacher
    if not FOLDER_NAME.fullmatch(name):
        raise UserError(f"{name!r} is not a teacher's name; teachers are the folders in {runs / 'teachers'}")
    run_dir = RunDir(runs / "teachers" / name)
    if own.startswith(WEAK) and not (run_dir.path.is_dir() and Trajectory(run_dir).has(own)):
        raise UserError("this teacher has no weak reference yet; --method contrast, or another that uses it, makes one")
    if not run_dir.path.is_dir():
        raise UserError(f"no teacher at {run_dir.path}; train it first: asd teach, or name its folder as --runs")
    saved = read_json(run_dir.path / "run.json")
    if not isinstance(saved, dict) or saved.get("hash") != name:
        raise UserError(f"{run_dir.path} holds another teacher than its name says; restore it, or remove that folder")
    return Trajectory(run_dir), own


class Trajectory:
    """The saved states of one teacher."""

    def __init__(self, folder: RunDir) -> None:
        self.folder = folder
        self.manifest = folder.path / "manifest.json"
        self.entries: list[dict[str, Any]] = []
        if self.manifest.exists():
            try:
                self.entries = check_entries(read_json(self.manifest)["states"])
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                reason = error if isinstance(error, UserError) else f"{self.manifest} is damaged ({first_line(error)})"
                raise UserError(f"{reason}; remove {folder.path} and run asd teach again") from None

    def keep(
        self,
        labels: list[str],
        step: int,
        epoch: float | None,
        total: int | None,
        scores: Mapping[str, float],
        network: nn.Module,
    ) -> None:
        """Save a state and list it; a step that is repeated after a resume replaces its entry.

        An imported teacher may have no epoch, and no number of steps in all.
        """
        rest = [known for known in self.entries if known["step"] != step]
        label = "final" if {"final", "100%"} & {*labels} else labels[0].replace(":", "-")
        file = f"{label}.safetensors"  # as Snapshots names it
        if not re.fullmatch(r"[\w.%-]{1,100}", file) or any(known["file"] == file for known in rest):
            file = f"step-{step:08d}.safetensors"
        entry = {
            "labels": labels,
            "step": step,
            "epoch": epoch,
            "fraction": None if total is None else step / total,
            "file": file,
            "sha256": save_weights(self.folder.snapshots / file, network),
        }
        self.entries = sorted([*rest, entry | dict(scores)], key=lambda known: known["step"])
        self.write()

    def write(self) -> None:
        write_json(self.manifest, {"states": self.entries}, parents=False)

    @property
    def trained(self) -> list[dict[str, Any]]:
        """Entries of all states but the untrained network."""
        return [entry for entry in self.entries if entry["step"] > 0]

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """Trained states that may be selected: those saved by percentage, or all if there are no others."""
        shares = [entry for entry in self.trained if any(label.endswith("%") for label in entry["labels"])]
        return shares if len(shares) > 1 else self.trained

    def has(self, label: str) -> bool:
        return any(label in entry["labels"] for entry in self.entries)

    def entry(self, state: str) -> dict[str, Any]:
        """The manifest's entry of a state."""
        if not self.entries:
            lost = f"restore {self.manifest.name}, or remove that folder and run asd teach again"
            advice = lost if self.folder.finished else "train the teacher first: asd teach"
            raise UserError(f"{self.folder.path} holds no teacher states; {advice}")
        if state == "final":
            return self.entries[-1]
        if state == "chosen":
            if not self.candidates or any("information" not in entry for entry in self.candidates):
                raise UserError(f"teacher {self.folder.path.name}: no state was selected yet (asd distill does it)")
            return max(self.candidates, key=lambda entry: float(entry["information"]["total"]))
        for entry in self.entries:
            if state in entry["labels"]:
                return entry
        names = dict.fromkeys([*(label for entry in self.entries for label in entry["labels"]), "final"])
        advice = f"a trained one has those of teacher.keep (to train it again, remove {self.folder.path})"
        raise UserError(f"teacher {self.folder.path.name} has no state {state!r}{suggest(state, names)}; {advice}")

    def weights(self, state: str) -> dict[str, Tensor]:
        """The weights of a state; a file whose checksum is wrong is an error."""
        entry = self.entry(state)
        path = self.folder.snapshots / entry["file"]
        if not path.is_file() or sha256(path) != entry["sha256"]:
            raise UserError(f"{path} is missing or damaged; remove {self.folder.path} and run asd teach again")
        return read_weights(path)

    def fill(self, network: nn.Module, state: str) -> None:
        """Load the weights of a state into a network."""
        load_checked(network, self.weights(state), self.folder.path)


class Teachers:
    """The teacher states of a run by role, each loaded when it is first used."""

    def __init__(self, run: Run, runs: Path, classes: int, image_size: int) -> None:
        self.run, self.runs, self.classes, self.image_size = run, runs, classes, image_size
        self._models: dict[str, Network] = {}
        self._frozen: dict[str, FrozenModel] = {}  # faster forms of the same states

    def _find(self, role: str) -> tuple[Trajectory, str]:
        """The trajectory that holds a role's state, and the state's name there."""
        if self.run.teacher is None:
            raise UserError(f"this run has no teacher, but its state {role!r} is needed")
        state = ({"early": self.run.early} | self.run.roles).get(role, role)
        return find_trajectory(self.runs, self.run.teacher, state)

    def state(self, role: str) -> tuple[RunDir, dict[str, Any]]:
        """The run folder that holds a role's state, and its entry in the manifest."""
        trajectory, state = self._find(role)
        return trajectory.folder, trajectory.entry(state)

    def weights(self, role: str) -> dict[str, Tensor]:
        trajectory, state = self._find(role)
        return trajectory.weights(state)

    def network(self, role: str) -> Network:
        """The network of a role, frozen and in evaluation mode."""
        if role not in self._models:
            trajectory, state = self._find(role)
            model = build_saved(trajectory.folder, self.classes, self.image_size)
            trajectory.fill(model, state)
            self._models[role] = model.requires_grad_(False).eval()
        return self._models[role]

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """Feature sizes of the states that the run learns from, by role."""
        shapes = {role: feature_shapes(self.network(role), self.image_size) for role in self.run.roles}
        return {role: replace(shape, weak=WEAK in self.run.roles[role]) for role, shape in shapes.items()}

    @torch.no_grad()
    def features(self, roles: Iterable[str], image: Tensor, taps: Sequence[str] = ()) -> dict[str, Features]:
        """Each role's outputs for raw images, in float32."""
        result = {}
        for role in roles:
            network = self._frozen[role] if role in self._frozen else self.network(role)
            result[role] = tapped_features(network, image, taps).float32(taps)
        return result

    def use(self, frozen: dict[str, FrozenModel]) -> None:
        """Compute outputs by these forms of the same states from now on."""
        self._frozen = frozen
