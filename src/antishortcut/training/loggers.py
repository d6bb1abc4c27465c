"""Running means of a training's losses, whether they are finite, and where they go: TensorBoard, Weights & Biases."""

import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from antishortcut.config.recipe import Run
from antishortcut.errors import UserError
from antishortcut.types import Features


class LossMeter:
    """Means of the losses since the last logged step. Its sums are part of a checkpoint, so logs repeat exactly.

    They stay on the losses' device: reading them waits for it.
    """

    def __init__(self, sums: Mapping[str, Tensor] | None = None) -> None:
        self.sums: dict[str, Tensor] = dict(sums or {})
        self.last: Mapping[str, Tensor] = {}

    def add(self, losses: Mapping[str, Tensor]) -> None:
        self.last = losses
        for name, value in (*losses.items(), ("count", torch.ones(()))):
            new = value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64)
            old = self.sums.get(name)
            self.sums[name] = new if old is None else old.to(new) + new

    def means(self) -> dict[str, float]:
        """The means; the sums start again."""
        count = float(self.sums.pop("count"))
        means = {name: float(value) / count for name, value in self.sums.items()}
        self.sums = {}
        return means

    def check_finite(self, step: int, saved: object, teachers: Mapping[str, Features] | None = None) -> None:
        """A loss that is not finite ends the run before it is saved. saved: what there is to resume from."""
        bad = [name for name, value in self.sums.items() if not torch.isfinite(value)]
        if not bad:
            return
        values = ", ".join(f"{name} {float(value):g}" for name, value in self.last.items())
        outputs = {
            role: (each.logits, each.embedding, *each.stages, *each.preact) for role, each in (teachers or {}).items()
        }
        roles = [repr(role) for role, tensors in outputs.items() if not all(x.isfinite().all() for x in tensors)]
        advice = "lower optim.lr or check the data, or use another --precision"
        if roles:
            advice = f"the outputs of teacher {' and '.join(roles)} are not finite: has that network diverged?"
        raise UserError(f"the loss is not finite at step {step}: {', '.join(bad)} (now {values}); {saved}; {advice}")


def check_finite_weights(module: nn.Module, step: int, saved: object) -> None:
    """Weights that are not finite are never saved: a finite loss may have had a gradient that is not.

    Of buffers only running statistics must be finite; others may hold an infinity on purpose, as masks do.
    """
    parameters = {name for name, _ in module.named_parameters()}
    for name, value in module.state_dict().items():
        strict = name in parameters or "running_" in name
        if value.is_floating_point() and not bool((value.isfinite() if strict else ~value.isnan()).all()):
            raise UserError(f"weights are not finite after step {step}: {name}; {saved}; lower optim.lr or check data")


class Log(Protocol):
    """Opened as Log(run, folder, step the run resumes from)."""

    def add(self, numbers: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in tensorboard/; on resume TensorBoard drops the steps that are repeated."""

    def __init__(self, run: Run, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = step + 1 if step else None
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=purge, flush_secs=60)

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A run of Weights & Biases with this run's hash as its id, so that it resumes where the run does.

    Repeated steps give the numbers that are there already, which wandb ignores. WANDB_MODE, WANDB_PROJECT and the like
    are heeded; offline files lie in the run's folder.
    """

    def __init__(self, run: Run, folder: Path, step: int) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "antishortcut"),
            id=f"{run.hash}-{zlib.crc32(f'{run.suite}/{run.name}'.encode()):08x}",  # a twin elsewhere is another
            name=f"{run.suite}/{run.name}-s{run.seed}",
            group=run.suite,
            dir=str(folder),
            config=run.model_dump(mode="json"),
            resume="allow",
            settings=wandb.Settings(silent=True, console="off"),
        )

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


KINDS: dict[str, Callable[[Run, Path, int], Log]] = {"tensorboard": TensorBoard, "wandb": Wandb}


def check_loggers(names: Sequence[str]) -> None:
    """A missing package is an error before anything is trained."""
    for name in names:
        if find_spec(name) is None:
            raise UserError(f"--log {name}: the package {name} is not installed; pip install 'antishortcut[{name}]'")


class Loggers:
    """All of a run's logs. One that fails is left out from then on, and training goes on without it."""

    def __init__(self, names: Sequence[str], run: Run, folder: Path, step: int, say: Callable[[str], None]) -> None:
        self._say, self._open = say, dict[str, Log]()
        for name in names:
            try:
                self._open[name] = KINDS[name](run, folder, step)
            except Exception as error:  # not logged in, no network, a folder that cannot be written
                self.close()
                raise UserError(f"--log {name}: {_line(error)}; leave it out, or see to that first") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        self._each(lambda log: log.add(numbers, step))

    def close(self) -> None:
        self._each(lambda log: log.close())
        self._open = {}

    def _each(self, call: Callable[[Log], None]) -> None:
        for name, log in list(self._open.items()):
            try:
                call(log)
            except Exception as error:  # a full disk, a lost network: no reason to lose a training
                del self._open[name]
                self._say(f"log {name}: {_line(error)}; training goes on without it")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
