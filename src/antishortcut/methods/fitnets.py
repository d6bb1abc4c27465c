"""FitNets: hints for thin deep nets, Romero et al. 2015, in one stage as in RepDistiller."""
# B batch, C channels, H × W pixels

import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.distributed import gather
from antishortcut.methods.checks import check_stages
from antishortcut.methods.kd import Distillation, Teachers, Terms, kd_term
from antishortcut.models.layers import SingleSampleNorm2d
from antishortcut.types import Batch, Features, Sizes

Stage = tuple[int, int, int]  # (C, H, W)


def hint_loss(regressed: Tensor, hint: Tensor) -> Tensor:
    """Mean squared error of maps (B, C, H, W); a hint of another size is first averaged to the size of `regressed`."""
    return F.mse_loss(regressed, averaged_to(regressed, hint))


def averaged_to(maps: Tensor, hint: Tensor) -> Tensor:
    """The hint (B, C, h, w), averaged to the height and width of maps (B, C, H, W) if its own differ."""
    _, _, height, width = maps.shape
    return hint if hint.shape[2:] == (height, width) else F.adaptive_avg_pool2d(hint, (height, width))


def regressor(student: Stage, teacher: Stage) -> nn.Module:
    """The convolution from the student's map to the teacher's channels and, where possible, its size."""
    (c_s, h_s, w_s), (c_t, h_t, w_t) = student, teacher
    if (h_s, w_s) == (2 * h_t, 2 * w_t):
        return nn.Conv2d(c_s, c_t, 3, stride=2, padding=1)
    if (2 * h_s, 2 * w_s) == (h_t, w_t):
        return nn.ConvTranspose2d(c_s, c_t, 4, stride=2, padding=1)
    if h_s >= h_t and w_s >= w_t:
        return nn.Conv2d(c_s, c_t, (1 + h_s - h_t, 1 + w_s - w_t))  # 1 × 1 for equal sizes
    return nn.Conv2d(c_s, c_t, 1)  # smaller by another factor: `hint_loss` averages the hint


class FitNets(Distillation):
    """task_weight · CE + weight · MSE(regressor(student's map), teacher's map) + kd · KD. See docs/methods/fitnets.md.

    hint: which stage, 0 being the stem and −1 the deepest. relu: end the regressor with a ReLU, as published.
    """

    taps: tuple[str, ...] = ("stages",)

    def __init__(
        self,
        sizes: Sizes,
        *,
        weight: float = 100.0,
        hint: int = 2,
        relu: bool = True,
        kd: float = 0.0,
        kd_temperature: float = 4.0,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_stages(sizes, hint=hint)
        self.stages_read = (hint,)
        student, teacher = sizes.student.stages[hint], sizes.teachers["final"].stages[hint]
        self.weight, self.hint, self.relu = weight, hint, relu
        self.kd, self.kd_temperature, self.task_weight = kd, kd_temperature, task_weight
        self.conv = regressor(student, teacher)
        self.norm = SingleSampleNorm2d(teacher[0])

    def regress(self, maps: Tensor) -> Tensor:
        """The student's map (B, C_s, H_s, W_s) in the teacher's channels (B, C_t, H, W)."""
        regressed: Tensor = self.norm(self.conv(maps))
        return F.relu(regressed) if self.relu else regressed

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        final = teachers["final"]
        # batch norm sees the maps of all processes, as on one
        maps, hint = gather(student.stages[self.hint]), gather(final.stages[self.hint].detach())
        terms = {"hint": self.weight * hint_loss(self.regress(maps), hint)}
        return terms | kd_term(self.kd, student, final, self.kd_temperature)
