"""SimKD: knowledge distillation with the reused teacher classifier, Chen et al. 2022."""
# B batch, D teacher's embedding, H × W pixels

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.distributed import gather
from antishortcut.methods.checks import check_classifier, check_settings
from antishortcut.methods.kd import Distillation, Teachers, Terms
from antishortcut.models.reused_classifier import ClassifierSettings, last_map, reuse_classifier
from antishortcut.models.wrapper import Network
from antishortcut.types import Batch, Features, Sizes


def map_errors(student: Tensor, teacher: Tensor) -> Tensor:
    """Each row's mean squared error of maps (B, D, H, W), the teacher's first averaged to the student's size. (B,)"""
    _, channels, height, width = student.shape
    teacher = teacher.detach()
    if teacher.shape[1] != channels:
        problem = f"student has maps of {channels} channels, teacher of {teacher.shape[1]}"
        raise ValueError(f"{problem}; train what `deployed` makes of the student")
    if teacher.shape[2:] != (height, width):
        teacher = F.adaptive_avg_pool2d(teacher, (height, width))  # (B, D, H, W)
    return (student - teacher).square().mean(dim=(1, 2, 3))


class SimKD(Distillation):
    """task_weight · CE + weight · MSE(the student's projected map, the teacher's last map). See docs/methods/simkd.md.

    reduction: r, the projector's inner width is the teacher's channels divided by it.
    The student is trained, evaluated and saved with the projector and the teacher's classifier: `deployed`.
    """

    taps: tuple[str, ...] = ("last",)

    def __init__(self, sizes: Sizes, *, weight: float = 1.0, reduction: int = 2, task_weight: float = 0.0) -> None:
        super().__init__()
        check_settings(reduction=reduction)
        check_classifier(sizes)
        student, teacher = sizes.student, sizes.teachers["final"]
        self.weight, self.task_weight = weight, task_weight
        self.settings = ClassifierSettings(
            source=student.embedding,
            width=max(teacher.embedding // reduction, 1),
            target=teacher.embedding,
            side=(min(student.side[0], teacher.side[0]), min(student.side[1], teacher.side[1])),
            relu=not teacher.signed,  # a map with negative values is out of a ReLU's reach
            bias=True,
        )

    def deployed(self, student: nn.Module, head: nn.Linear) -> Network:
        assert isinstance(student, Network)
        settings = replace(self.settings, bias=head.bias is not None)
        network = reuse_classifier(student, head.out_features, settings).to(head.weight.device)
        network.get_submodule("body.head").load_state_dict(head.state_dict())
        return network

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        return {"map": self.weight * self.errors(student, teachers).mean()}

    def errors(self, student: Features, teachers: Teachers) -> Tensor:
        """Each row's error, of all processes. (B,)"""
        maps, final = (self._maps(outputs) for outputs in (student, teachers["final"]))
        return map_errors(maps, final)

    @staticmethod
    def _maps(outputs: Features) -> Tensor:
        """The step gathers embeddings over processes, but not maps."""
        return last_map(outputs) if outputs.last is None else gather(outputs.last)
