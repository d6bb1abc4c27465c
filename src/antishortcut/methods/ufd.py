"""UFD-KD: unified frequency decoupling knowledge distillation, Lu et al. 2025, as in its segmentation code.

The teacher's map is matched in four pieces: its mean (DC, the first coefficient of a cosine transform) and the
deviation from it (AC), over pixels and over channels, each scaled to length 1 so that only its pattern counts.
"""
# B batch, C channels, H × W pixels, P = H · W

import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.distributed import gather
from antishortcut.methods.checks import check_stages
from antishortcut.methods.kd import Distillation, Teachers, Terms, kd_term
from antishortcut.subspace import unit
from antishortcut.types import Batch, Features, Sizes


def decouple(maps: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """DC and AC over a dimension. The first basis vector of a DCT-II is constant, so DC is the mean, AC the rest."""
    dc = maps.mean(dim=dim, keepdim=True)
    return dc, maps - dc


def pattern_distance(student: Tensor, teacher: Tensor, dim: int) -> Tensor:
    """Squared distance of (B, C, P) and (B, C, P), each scaled to length 1 along a dimension, for each row. (B,)"""
    # one expression: the scaled maps are freed early
    return (unit(student.movedim(dim, -1)) - unit(teacher.movedim(dim, -1))).square().sum(dim=(1, 2))


def spatial_distance(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """DC and AC over pixels of (B, C, P), scaled over channels, for each row. (B,), (B,)"""
    (dc_s, ac_s), (dc_t, ac_t) = decouple(student, 2), decouple(teacher, 2)  # (B, C, 1), (B, C, P)
    return student.shape[2] * pattern_distance(dc_s, dc_t, 1), pattern_distance(ac_s, ac_t, 1)


def channel_distance(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """DC and AC over channels of (B, C, P), scaled over pixels, for each row. (B,), (B,)"""
    (dc_s, ac_s), (dc_t, ac_t) = decouple(student, 1), decouple(teacher, 1)  # (B, 1, P), (B, C, P)
    return student.shape[1] * pattern_distance(dc_s, dc_t, 2), pattern_distance(ac_s, ac_t, 2)


def misread(maps: Tensor) -> Tensor:
    """Maps (B, C, P) read as if their memory were (B, P, C): the published code's view without a permutation.

    What stands for channel c of pixel p is the number c + C · p of the image's C · P numbers, which belongs to another
    channel and pixel. Only the student's map is read so.
    """
    rows, channels, pixels = maps.shape
    return maps.reshape(rows, pixels, channels).transpose(1, 2)


def enlarged(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (B, C, h, w), bilinearly brought to a height and width if their own differ."""
    return maps if maps.shape[2:] == size else F.interpolate(maps, size, mode="bilinear", align_corners=False)


def projector(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels, channels, 3, padding=1),
    )


class UFD(Distillation):
    """task_weight · CE + kd · KD + the four distances of spatial and channel, DC and AC. See docs/methods/ufd.md.

    stage: which map, 0 being the stem and −1 the deepest. published_channel: the channel branch as the published code
    has it, which mixes channels and pixels of the student.
    """

    taps: tuple[str, ...] = ("stages",)

    def __init__(
        self,
        sizes: Sizes,
        *,
        kd: float = 0.5,
        kd_temperature: float = 1.0,
        spatial_dc: float = 0.004,
        spatial_ac: float = 0.0012,
        channel_dc: float = 0.001,
        channel_ac: float = 0.002,
        published_channel: bool = False,
        stage: int = -1,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_stages(sizes, stage=stage)
        self.stages_read = (stage,)
        self.kd, self.kd_temperature, self.task_weight = kd, kd_temperature, task_weight
        self.spatial_dc, self.spatial_ac = spatial_dc, spatial_ac
        self.channel_dc, self.channel_ac = channel_dc, channel_ac
        self.published_channel, self.stage = published_channel, stage
        channels = sizes.teachers["final"].stages[stage][0]
        self.align = nn.Conv2d(sizes.student.stages[stage][0], channels, 1)
        self.spatial, self.channel = projector(channels), projector(channels)

    def branches(self, maps: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The student's map (B, C_s, h, w) as the two branches compare it with the teacher's (B, C_t, *size)."""
        aligned = self.align(enlarged(maps, size))
        return self.spatial(aligned), self.channel(aligned)

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        final = teachers["final"]
        target = final.stages[self.stage].detach()  # (B, C, H, W)
        spatial, channel = self.branches(student.stages[self.stage], (target.shape[2], target.shape[3]))
        spatial, channel, target = spatial.flatten(2), channel.flatten(2), target.flatten(2)  # (B, C, P)
        if self.published_channel:
            channel = misread(channel)
        dc, ac = spatial_distance(spatial, target)  # (B,)
        channel_dc, channel_ac = channel_distance(channel, target)  # (B,)
        terms = {  # the step gathers rows over processes, but not maps
            "spatial_dc": self.spatial_dc * gather(dc).mean(),
            "spatial_ac": self.spatial_ac * gather(ac).mean(),
            "channel_dc": self.channel_dc * gather(channel_dc).mean(),
            "channel_ac": self.channel_ac * gather(channel_ac).mean(),
        }
        return terms | kd_term(self.kd, student, final, self.kd_temperature)
