"""Af-DCD: augmentation-free dense contrastive distillation for segmentation, Fan, Li, Liu, Song & Yao 2023.

A generator restores the teacher's whole map from a quarter of the student's pixels (fd). In it every group of channels
at every pixel must be nearer to the teacher's own than to other groups around it (ctr).
"""
# B batch, C channels, M groups of channels, H × W pixels, P patches, N pixels of a patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.distributed import gather, world
from antishortcut.methods.checks import check_settings, check_stages
from antishortcut.methods.kd import Distillation, Teachers, Terms, kd_term
from antishortcut.methods.ufd import enlarged, projector
from antishortcut.types import Batch, Features, Sizes


def patches(maps: Tensor, groups: int, patch: int) -> Tensor:
    """The group vectors of maps (B, C, H, W), one set for each patch × patch square. (B, P, N·M, C/M)

    Pixels in reading order, all groups of one after the other; zeros where a square reaches over the border.
    """
    rows, channels, height, width = maps.shape
    if height % patch or width % patch:
        maps = F.pad(maps, (0, -width % patch, 0, -height % patch))
    down, across = maps.shape[2] // patch, maps.shape[3] // patch
    split = maps.reshape(rows, groups, channels // groups, down, patch, across, patch)
    return split.permute(0, 3, 5, 4, 6, 1, 2).reshape(rows, down * across, -1, channels // groups)


def patch_contrast(student: Tensor, teacher: Tensor, groups: int, patch: int, temperature: float) -> Tensor:
    """L_ctr of maps (B, C, H, W): Σ over pixels i and groups m of −log( e(i,m) / Σ_n e(n) ) / HW, for each row. (B,)

    e = exp(−‖s − t‖₁ / τ) of the student's vector of group m at i and a teacher's: the positive is that of (i, m), the
    negatives are all other groups of all pixels of the patch; the same group of other pixels is left out.
    """
    _, _, height, width = student.shape
    patch = min(patch, max(height, width))  # no more padding than needed
    pairs = patches(student, groups, patch), patches(teacher, groups, patch)  # (B, P, N·M, C/M)
    similarity = torch.cdist(*pairs, p=1) / -temperature  # without the C/M differences. (B, P, N·M, N·M)
    group = torch.arange(similarity.shape[-1], device=student.device) % groups
    valid = patches(student.new_ones(1, groups, height, width), groups, patch)[0, :, :, 0] > 0  # (P, N·M), not padding
    negative = (group[:, None] != group) & valid[:, None]  # (P, N·M, N·M)
    positive = similarity.diagonal(dim1=-2, dim2=-1)  # (B, P, N·M)
    own = torch.eye(len(group), dtype=torch.bool, device=student.device)
    entropy = similarity.masked_fill(~(negative | own), -torch.inf).logsumexp(dim=-1) - positive  # (B, P, N·M)
    return (entropy * valid).sum(dim=(1, 2)) / (height * width)


def pixel_mask(maps: Tensor, mask_ratio: float) -> Tensor:
    """A random mask for maps (B, C, H, W): 0 at a share `mask_ratio` of the pixels, 1 elsewhere. (B, 1, H, W)

    Drawn for the maps of all processes, each of which takes its own: the noise of a step is the same on any number.
    """
    with torch.enable_grad():
        here = maps.new_zeros(len(maps), 1, *maps.shape[2:], requires_grad=True)
        everywhere = gather(here)
    mask = (torch.rand(everywhere.shape, device="cpu") >= mask_ratio).to(here, non_blocking=True)
    if world() == 1:
        return mask
    # the transpose of gather: sums what all processes have for the rows of this one
    return torch.autograd.grad(everywhere, here, mask)[0] / world()


def group_count(channels: int, groups: int) -> int:
    """The largest divisor of `channels` that is at most `groups`."""
    count = max(m for m in range(1, min(groups, channels) + 1) if channels % m == 0)
    if count < 2:
        raise ValueError(
            f"the {channels} channels of the teacher's map cannot be cut into 2 to {groups} equal groups, and a "
            "contrast needs two; choose another stage, or more groups"
        )
    return count


class AfDCD(Distillation):
    """task_weight · CE + kd · KD + fd · ‖G(masked) − teacher‖² + ctr · L_ctr. See docs/methods/afdcd.md.

    stage: which map, 0 being the stem and −1 the deepest. groups: M, at most; the largest divisor of the channels.
    """

    taps: tuple[str, ...] = ("stages",)

    def __init__(
        self,
        sizes: Sizes,
        *,
        kd: float = 0.5,
        fd: float = 1e-6,
        ctr: float = 0.04,
        kd_temperature: float = 1.0,
        mask_ratio: float = 0.75,
        groups: int = 16,
        patch: int = 4,
        pool: int = 4,
        temperature: float = 0.07,
        stage: int = -1,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_stages(sizes, stage=stage)
        self.stages_read = (stage,)
        check_settings(groups=groups, patch=patch, pool=pool, mask_ratio=mask_ratio, temperature=temperature)
        self.kd, self.fd, self.ctr, self.task_weight = kd, fd, ctr, task_weight
        self.kd_temperature, self.temperature, self.mask_ratio = kd_temperature, temperature, mask_ratio
        self.patch, self.pool, self.stage = patch, pool, stage
        channels = sizes.teachers["final"].stages[stage][0]
        self.groups = group_count(channels, groups)
        self.align = nn.Conv2d(sizes.student.stages[stage][0], channels, 1)
        self.generator = projector(channels)

    def generate(self, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """The teacher's map (B, C_t, *size), restored from the unmasked pixels of the student's (B, C_s, h, w)."""
        maps = enlarged(maps, size)
        restored: Tensor = self.generator(self.align(maps) * pixel_mask(maps, self.mask_ratio))
        return restored

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        final = teachers["final"]
        target = final.stages[self.stage].detach()  # (B, C, H, W)
        restored = self.generate(student.stages[self.stage], (target.shape[2], target.shape[3]))  # (B, C, H, W)
        distance = (restored - target).square().sum(dim=(1, 2, 3))  # (B,)
        # ceil_mode: where the size is no multiple, the last window is smaller
        pooled, pooled_target = (F.max_pool2d(maps, self.pool, ceil_mode=True) for maps in (restored, target))
        contrast = patch_contrast(pooled, pooled_target, self.groups, self.patch, self.temperature)  # (B,)
        # the step gathers rows over processes, but not maps
        terms = {"fd": self.fd * gather(distance).mean(), "ctr": self.ctr * gather(contrast).mean()}
        return terms | kd_term(self.kd, student, final, self.kd_temperature)
