"""One training step: student and method as one module."""
# B batch, W processes

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from antishortcut.distributed import gather, world
from antishortcut.errors import UserError
from antishortcut.models import tapped_features
from antishortcut.types import Batch, Features, Method, Samples, Task, TaskSchedule, TrainingView

EMPTY_STEP = "void"  # the loss of a step without a single labelled pixel: nothing is learned, nothing decays


class DistillationStep(nn.Module):
    """A batch and the teachers' features in, named and weighted losses out. DDP wraps it, a checkpoint holds it."""

    def __init__(self, student: nn.Module, method: nn.Module, task: Task) -> None:
        super().__init__()
        self.student, self.method, self.task = student, method, task

    def forward(self, batch: Batch, teachers: Mapping[str, Features], epoch: float) -> dict[str, Tensor]:
        method = cast(Method, self.method)
        outputs = tapped_features(self.student, batch.image, method.taps)
        _check_outputs(outputs, method)
        with torch.autocast(batch.image.device.type, enabled=False):  # losses in float32: τ = 0.07 magnifies rounding
            student = outputs.float32(method.taps)
            if isinstance(method, TrainingView):
                student = method.view(student, teachers)
            share = method.task_weight_at(epoch) if isinstance(method, TaskSchedule) else method.task_weight
            weight = share * self._process_weight(batch)
            losses = {name: weight * value for name, value in self.task.loss(student, batch).items()}
            samples, targets, whole = gather_samples(*self.task.samples(student, teachers, batch))
            if len(whole.label) == 0:  # the method's parameters still need a gradient: DDP waits for each of them
                zero = sum((0.0 * parameter.sum() for parameter in self.method.parameters()), batch.image.new_zeros(()))
                return losses | {EMPTY_STEP: zero}
            return losses | method.terms(samples, targets, whole, epoch)

    def _process_weight(self, batch: Batch) -> Tensor | float:
        """DDP averages the processes' means; weighted by own · W / total labels it is the mean over all labels."""
        if world() == 1:
            return 1.0
        own = self.task.weight(batch)  # (1,)
        return own.sum() * world() / gather(own).sum().clamp(min=1)


def gather_samples(student: Features, teachers: Mapping[str, Features], batch: Batch) -> Samples:
    """The samples of all processes, so that negatives and moments are those of the whole batch. Stages stay local."""
    if world() == 1:
        return student, teachers, batch
    fields = {name: getattr(batch, name) for name in ("label", "index", "mixed_label", "mix_ratio", "strong")}
    whole = replace(batch, **{name: gather(value) for name, value in fields.items() if value is not None})
    return _gathered(student), {role: _gathered(outputs) for role, outputs in teachers.items()}, whole


def _gathered(outputs: Features) -> Features:
    return replace(outputs, logits=gather(outputs.logits), embedding=gather(outputs.embedding))


class OpaqueBatch:
    """A step's inputs in a box: Fabric would walk through them and cast tensors that are float32 on purpose."""

    def __init__(self, batch: Batch, teachers: Mapping[str, Features], epoch: float) -> None:
        self.contents = (batch, teachers, epoch)


class FabricStep(nn.Module):
    """Unpacks the OpaqueBatch."""

    def __init__(self, step: nn.Module) -> None:
        super().__init__()
        self.step = step

    def forward(self, inputs: OpaqueBatch) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = self.step(*inputs.contents)
        return losses


def _check_outputs(outputs: Features, method: Method) -> None:
    if torch.is_grad_enabled() and not (outputs.logits.requires_grad or outputs.embedding.requires_grad):
        raise UserError("the student's outputs carry no gradient: remove torch.no_grad() or detach() from its forward")
    if ("stages" in method.taps and not outputs.stages) or ("preact" in method.taps and not outputs.preact):
        advice = "name modules that run every time (student.stages = …), or use a method like asd"
        raise UserError(f"the student returned no feature maps in this step: a stage was skipped; {advice}")
