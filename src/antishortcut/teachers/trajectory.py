"""The trajectory of a teacher: which states to keep, how they are kept, and how they teach.

A teacher folder holds snapshots/*.safetensors and manifest.json. A *state* is named by its share of training ("15%"),
its epoch ("epoch:36"), "final", or, for a state of another teacher, "<hash>/15%".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from antishortcut.config.recipe import ModelSettings, Run
from antishortcut.errors import UserError, first_line, suggest
from antishortcut.fileio import atomic_write, expanded, sha256
from antishortcut.models import Network, build, feature_shapes, load_weights
from antishortcut.models.weights import load_checked, read_weights
from antishortcut.run_dir import RunDir, read_json, write_json
from antishortcut.teachers.frozen import FrozenModel, InferenceForm
from antishortcut.teachers.snapshots import check_entries
from antishortcut.types import Features, Shape

NAME = re.compile(r"[0-9A-Za-z_.-]*[0-9A-Za-z_-]")  # of a teacher's folder, which no other folder's name leads to


def build_model(model: ModelSettings, classes: int, image_size: int) -> Network:
    """The network a run's settings describe, with the weights they name."""
    network = build(
        model.name,
        classes,
        image_size=image_size,
        pretrained=model.pretrained and model.weights is None,  # a file of one's own needs no hub
        **model.given,
    )
    if model.weights is not None:
        load_weights(network, expanded(model.weights), start=True)
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.ndim == 4:  # 1.3–1.6 × faster on CPUs, and what tensor cores want
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return network


def cpu_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers on the CPU, each with memory of its own, although tied ones share theirs."""
    result, outputs = {}, set[int]()
    for key, value in module.state_dict().items():
        tensor = value.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        result[key] = tensor.clone() if place in outputs else tensor
        outputs.add(place)
    return result


def save_weights(path: Path, module: nn.Module) -> str:
    """Parameters and buffers as safetensors, written whole or not at all. Returns their sha256."""
    data: bytes = save(cpu_tensors(module))
    with atomic_write(path, parents=False) as file:
        file.write(data)
    return hashlib.sha256(data).hexdigest()


def snapshot_steps(keep: Iterable[float | str], steps_per_epoch: int, total: int) -> dict[int, list[str]]:
    """After how many steps which states are due: {steps done: ["15%", …]}, the end included.

    0 % is the untrained network; any other state is at least one step in.
    """
    due: dict[int, list[str]] = {}
    for point in (*keep, 100):
        if isinstance(point, str):
            label = point
            steps = _number(point) * steps_per_epoch if point.startswith("epoch:") else _number(point) / 100 * total
        else:
            label, steps = f"{point:g}%", point / 100 * total
        if not 0 <= steps <= total:
            raise UserError(f"teacher.keep: {label} is not within training ({total // steps_per_epoch} epochs)")
        names = due.setdefault(max(round(steps), 1) if steps else 0, [])
        if label not in names:
            names.append(label)
    return due


def _number(point: str) -> float:
    try:
        return float(point.removeprefix("epoch:").removesuffix("%"))
    except ValueError:
        raise UserError(f"teacher.keep: {point!r} is neither per cent (15 or '15%') nor 'epoch:36'") from None


class Trajectory:
    """The kept states of one teacher."""

    def __init__(self, folder: RunDir) -> None:
        self.folder = folder
        self.manifest = folder.path / "manifest.json"
        self.entries: list[dict[str, Any]] = []
        if self.manifest.exists():
            try:
                self.entries = check_entries(read_json(self.manifest)["states"])
            except (KeyError, TypeError, ValueError) as error:  # a UserError among them
                message = error if isinstance(error, UserError) else f"{self.manifest} is damaged ({first_line(error)})"
                raise UserError(f"{message}; remove {folder.path} and run asd teach again") from None

    def keep(
        self,
        labels: list[str],
        step: int,
        epoch: float | None,
        total: int | None,
        scores: Mapping[str, float],
        net: nn.Module,
    ) -> None:
        """Save a state and enter it in the manifest; repeating a step after a resume replaces its entry.

        Of a teacher trained elsewhere nobody may know the epoch, nor of how many steps this one was.
        """
        file = f"step-{step:08d}.safetensors"
        digest = save_weights(self.folder.snapshots / file, net)
        entry = {
            "labels": labels,
            "step": step,
            "epoch": epoch,
            "fraction": None if total is None else step / total,
            "file": file,
            "sha256": digest,
        }
        rest = [known for known in self.entries if known["step"] != step]
        self.entries = sorted([*rest, entry | dict(scores)], key=lambda known: known["step"])
        self.write()

    def write(self) -> None:
        write_json(self.manifest, {"states": self.entries}, parents=False)

    @property
    def trained(self) -> list[dict[str, Any]]:
        """Lines of the states after a step or more: nobody learns from an untrained one, nor is measured by it."""
        return [known for known in self.entries if known["step"] > 0]

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """Trained states one may be chosen of: those kept by share, as of every teacher; all when there are no others.

        Epochs are kept beside them to be looked at.
        """
        shares = [known for known in self.trained if any(label.endswith("%") for label in known["labels"])]
        return shares if len(shares) > 1 else self.trained

    def entry(self, state: str) -> dict[str, Any]:
        """The manifest's line for a state."""
        if not self.entries:
            raise UserError(f"{self.folder.path} holds no teacher states; train the teacher first: asd teach")
        if state == "final":
            return self.entries[-1]
        if state == "chosen":
            if not self.candidates or any(_total(known) is None for known in self.candidates):
                raise UserError(f"teacher {self.folder.path.name}: no state has been chosen yet (asd distill does it)")
            return max(self.candidates, key=lambda known: _total(known) or 0.0)
        names = [label for known in self.entries for label in known["labels"]]
        for known in self.entries:
            if state in known["labels"]:
                return known
        known_names = dict.fromkeys([*names, "final"])
        raise UserError(
            f"teacher {self.folder.path.name} kept no state {state!r}{suggest(state, known_names)}; one trained elsewhere "
            f"has what it was given with, one trained here what teacher.keep says (remove {self.folder.path} then)"
        )

    def weights(self, state: str) -> dict[str, Tensor]:
        """The weights of a state; a file that is not the one that was saved is refused."""
        entry = self.entry(state)
        path = self.folder.snapshots / entry["file"]
        if not path.is_file() or sha256(path) != entry["sha256"]:
            raise UserError(f"{path} is missing or damaged; remove {self.folder.path} and run asd teach again")
        return read_weights(path)

    def fill(self, network: nn.Module, state: str) -> None:
        """Give a network the weights of a state, or say in what they are another's."""
        load_checked(network, self.weights(state), self.folder.path)


def _total(entry: Mapping[str, Any]) -> float | None:
    """How informative a state was found, None where it was not asked yet."""
    result = entry.get("information")
    total = result.get("total") if isinstance(result, dict) else None
    return float(total) if isinstance(total, int | float) and abs(total) < 1e300 else None  # NaN is not


class Teachers:
    """The states a run learns from or is compared with, opened when first asked for."""

    def __init__(self, run: Run, runs: Path, classes: int, image_size: int) -> None:
        self.run, self.runs, self.classes, self.image_size = run, runs, classes, image_size
        self._open: dict[str, Network] = {}
        self._quick: dict[str, FrozenModel] = {}  # by role, when they are to answer quickly

    def network(self, role: str) -> Network:
        """The frozen network of a role, in evaluation mode."""
        if role not in self._open:
            trajectory, state = self._find(role)
            run, _ = trajectory.folder.read()
            network = build_model(
                run.model.model_copy(update={"weights": None, "pretrained": False}), self.classes, self.image_size
            )
            trajectory.fill(network, state)
            self._open[role] = network.requires_grad_(False).eval()
        return self._open[role]

    def weights(self, role: str) -> dict[str, Tensor]:
        trajectory, state = self._find(role)
        return trajectory.weights(state)

    def state(self, role: str) -> tuple[RunDir, dict[str, Any]]:
        """The folder a role's state lies in, and the manifest's line for it."""
        trajectory, state = self._find(role)
        return trajectory.folder, trajectory.entry(state)

    def _find(self, role: str) -> tuple[Trajectory, str]:
        if self.run.teacher is None:
            raise UserError(f"this run names no teacher, but {role!r} is wanted")
        early = {"early": self.run.early}
        state = (early | self.run.roles).get(role, role)
        other, _, own = state.rpartition("/")
        name = other or self.run.teacher
        if not NAME.fullmatch(name):
            raise UserError(f"{name!r} is no teacher's name; a run's teacher lies in {self.runs / 'teachers'}")
        folder = RunDir(self.runs / "teachers" / name)
        if not folder.path.is_dir():
            raise UserError(
                f"no teacher at {folder.path}; train it first: asd teach "
                "(or give the folder that holds teachers/ as --runs)"
            )
        return Trajectory(folder), own

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Feature sizes by role, probed when looked up."""
        return _Shapes(self)

    @torch.no_grad()
    def features(self, roles: Iterable[str], image: Tensor, stages: bool = False) -> dict[str, Features]:
        """What each wanted state says of a batch of raw images, in float32, without gradient."""
        out = {}
        for role in roles:
            outputs = self._quick[role](image) if role in self._quick else self.network(role)(image)
            maps = tuple(stage.float() for stage in outputs.stages) if stages else ()
            out[role] = Features(outputs.logits.float(), outputs.embedding.float(), maps)
        return out

    def quicken(self, made: dict[str, FrozenModel]) -> InferenceForm:
        """Have these states answer in a quicker form, which is the same for all."""
        self._quick = made
        return next(iter(made.values())).form

    def to(self, device: torch.device, roles: Iterable[str]) -> None:
        for role in roles:
            self.network(role).to(device)


class _Shapes(Mapping[str, Shape]):
    def __init__(self, teachers: Teachers) -> None:
        self.teachers = teachers

    def __getitem__(self, role: str) -> Shape:
        return feature_shapes(self.teachers.network(role), self.teachers.image_size)

    def __iter__(self) -> Iterator[str]:
        return iter(self.teachers.run.roles)

    def __len__(self) -> int:
        return len(self.teachers.run.roles)
