"""One step's arithmetic: student and method as one module, and the mean of its terms over time."""
# B batch, W processes

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from antishortcut.distributed import gather, world
from antishortcut.errors import UserError
from antishortcut.types import Batch, Features, Method, Task, TrainingView

EMPTY_STEP = "void"  # the term of a step that has nothing to learn from
SKIPPED = (
    "the student gave no feature maps in this step: a module that is a stage of it was skipped; name modules that are "
    "used every time (student.stages = …), or take a method that needs no feature maps, like asd"
)
DETACHED = (
    "nothing that the student gives carries a gradient, so it cannot learn: its forward must not run under "
    "torch.no_grad(), nor detach what it returns"
)
ADVICE = "lower optim.lr or look at the data"


class DistillationStep(nn.Module):
    """A batch and the teachers' features in, named and weighted loss terms out."""

    def __init__(self, student: nn.Module, method: nn.Module, task: Task) -> None:
        super().__init__()
        self.student, self.method, self.task = student, method, task

    def forward(self, batch: Batch, teachers: Mapping[str, Features], epoch: float) -> dict[str, Tensor]:
        outputs = self.student(batch.image)
        if torch.is_grad_enabled() and not (outputs.logits.requires_grad or outputs.embedding.requires_grad):
            raise UserError(DETACHED)
        method = cast(Method, self.method)
        stages = outputs.stages if "stages" in method.taps else ()
        if "stages" in method.taps and not stages:
            raise UserError(SKIPPED)
        with torch.autocast(batch.image.device.type, enabled=False):  # a Gram matrix would come back in bfloat16
            aux = None if outputs.aux is None else outputs.aux.float()
            maps = tuple(stage.float() for stage in stages)
            student = Features(outputs.logits.float(), outputs.embedding.float(), maps, aux)
            if isinstance(self.method, TrainingView):
                student = self.method.view(student, teachers)
            own = self.task.loss(student, batch)
            rows, targets, joint = gather_samples(*self.task.samples(student, teachers, batch))
            terms = {name: method.task_weight * self._share(batch) * value for name, value in own.items()}
            if len(joint.label) == 0:  # not a labelled pixel in any process: nothing to learn from, and no mean of it
                nothing = batch.image.new_zeros(())
                return terms | {EMPTY_STEP: sum((0.0 * part.sum() for part in self.method.parameters()), nothing)}
            return terms | method.terms(rows, targets, joint, epoch)

    def _share(self, batch: Batch) -> Tensor | float:
        """DDP averages over processes, not over what a loss is a mean of."""
        if world() == 1:
            return 1.0
        own = self.task.weight(batch)  # (1,)
        return own.sum() * world() / gather(own).sum().clamp(min=1)


class OpaqueBatch:
    """What a step works on, in a box: Fabric would walk through it and cast tensors that are float32 on purpose."""

    def __init__(self, batch: Batch, teachers: Mapping[str, Features], epoch: float) -> None:
        self.contents = (batch, teachers, epoch)


class FabricStep(nn.Module):
    """A step as Fabric wraps it."""

    def __init__(self, step: nn.Module) -> None:
        super().__init__()
        self.step = step

    def forward(self, work: OpaqueBatch) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = self.step(*work.contents)
        return terms


def gather_samples(
    student: Features, teachers: Mapping[str, Features], batch: Batch
) -> tuple[Features, Mapping[str, Features], Batch]:
    """The rows of all processes, so that negatives and moments are those of the whole batch. Maps stay here."""
    if world() == 1:
        return student, teachers, batch
    rows = {name: getattr(batch, name) for name in ("label", "index", "mixed_label", "mix_ratio")}
    whole = replace(batch, **{name: gather(value) for name, value in rows.items() if value is not None})
    return _rows(student), {role: _rows(outputs) for role, outputs in teachers.items()}, whole


def _rows(outputs: Features) -> Features:
    return replace(outputs, logits=gather(outputs.logits), embedding=gather(outputs.embedding))


class LossMeter:
    """Means of the terms since the last logged step. The sums are part of the resume state, so logs repeat exactly.

    They stay on the terms' device: fetching them is waiting for it, which is done when they are asked for.
    """

    def __init__(self, sums: Mapping[str, Tensor] | None = None) -> None:
        self.sums: dict[str, Tensor] = dict(sums or {})
        self.last: Mapping[str, Tensor] = {}

    def add(self, terms: Mapping[str, Tensor]) -> None:
        self.last = terms
        for name, value in (*terms.items(), ("count", torch.ones(()))):
            new = value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64)
            old = self.sums.get(name)
            self.sums[name] = new if old is None else old.to(new) + new

    def check(self, step: int, kept: Callable[[], str], teachers: Mapping[str, Features] | None = None) -> None:
        """A loss that is not a number ends the run before anything of it is saved; `teachers` may be to blame."""
        bad = [name for name, value in self.sums.items() if not torch.isfinite(value)]
        if bad:
            values = ", ".join(f"{name} {float(value):g}" for name, value in self.last.items())
            roles = [repr(role) for role, outputs in (teachers or {}).items() if not _finite(outputs)]
            blamed = f"the answers of {' and '.join(roles)} are not finite: has that network diverged?"
            raise UserError(
                f"the loss is not finite at step {step}: {', '.join(bad)} (this step: {values}); {kept()}; "
                + (blamed if roles else f"{ADVICE}, or use another --precision")
            )

    def means(self) -> dict[str, float]:
        """The means, and a new beginning."""
        count = float(self.sums.pop("count"))
        means = {name: float(value) / count for name, value in self.sums.items()}
        self.sums = {}
        return means


def check_finite_weights(network: nn.Module, step: int, kept: Callable[[], str]) -> None:
    """Weights that are no numbers are not saved: a finite loss may have had a gradient that is not.

    Of buffers only the running statistics must be finite; others may hold an infinity on purpose, as masks do.
    """
    learned = {name for name, _ in network.named_parameters()}
    for name, value in network.state_dict().items():
        strict = name in learned or "running_" in name
        if value.is_floating_point() and not bool((value.isfinite() if strict else ~value.isnan()).all()):
            raise UserError(f"weights are not finite after step {step}: {name}; {kept()}; {ADVICE}")


def _finite(outputs: Features) -> bool:
    return all(bool(each.isfinite().all()) for each in (outputs.logits, outputs.embedding, *outputs.stages))
