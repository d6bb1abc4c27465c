"""Contrast targets: distil what the final teacher knows beyond its own early state. A method of this project.

A product of experts with the early state divided out; cf. Clark, Yatskar & Zettlemoyer 2019 (known biases), Nam et al.
2020 and Liu et al. 2021 (an early model's failure betrays the bias), Li et al. 2023 (contrastive decoding).
"""
# B batch, C classes

import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.methods.asd import ASDLoss
from antishortcut.methods.checks import check_choice, check_settings, check_tensors, check_widths
from antishortcut.methods.kd import Teachers, Terms, kd_loss
from antishortcut.methods.standardise import standardised
from antishortcut.types import Batch, Features, Sizes


def contrast_logits(final: Tensor, early: Tensor | None, strength: float, floor: float = -8.0) -> Tensor:
    """(1 + λ) log p_F − λ max(log p_E, floor), logits of the target from logits (B, C). (B, C)

    The floor bounds what a class can gain because the early state ruled it out: at most −λ · floor. Without an early
    state it is the uniform one, and the target is only sharper: (1 + λ) log p_F.
    """
    check_tensors(final=final, early=final if early is None else early)
    target = (1 + strength) * F.log_softmax(final.detach(), dim=1)  # (B, C)
    if early is None:
        return target
    return target - strength * F.log_softmax(early.detach(), dim=1).clamp(min=floor)


def contrast_loss(
    student: Tensor,
    final: Tensor,
    early: Tensor | None,
    *,
    strength: float = 1.0,
    temperature: float = 4.0,
    floor: float = -8.0,
) -> Tensor:
    """τ² KL(softmax(contrast / τ) ‖ softmax(student / τ)), mean over rows, from logits (B, C). For any loop."""
    check_tensors(student=student, final=final, early=final if early is None else early)
    return kd_loss(student, contrast_logits(final, early, strength, floor), temperature)


class Contrast(nn.Module):
    """task_weight · CE + weight · τ² KL(softmax(contrast / τ) ‖ softmax(student / τ)) + tc · L_TC.

    strength: λ. floor: of log p_E. reference: "early", or "uniform", the control that only sharpens.
    tc above 0 adds ASD's temporal contrast of features, with its own temperature, queue and warm-up.
    standardise: as in KD, of the target and the student.
    """

    taps: tuple[str, ...] = ()

    def __init__(
        self,
        sizes: Sizes,
        standardise: bool = False,
        *,
        strength: float = 1.0,
        floor: float = -8.0,
        weight: float = 1.0,
        temperature: float = 4.0,
        reference: str = "early",
        tc: float = 0.0,
        tc_temperature: float = 0.07,
        queue: int = 4096,
        warmup: float = 20.0,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_settings(strength=strength, temperature=temperature, floor=floor)
        check_choice("reference", reference, ("early", "uniform"))
        self.strength, self.floor, self.weight, self.temperature = strength, floor, weight, temperature
        self.reference, self.task_weight, self.standardise = reference, task_weight, standardise
        self.roles: tuple[str, ...] = ("final", "early") if reference == "early" or tc != 0 else ("final",)
        self.features: ASDLoss | None = None
        if tc != 0:
            widths = sizes.student.embedding, sizes.teachers["final"].embedding
            self.features = ASDLoss(
                *widths, tc=tc, ss=0.0, temperature=tc_temperature, queue=queue, warmup=warmup, examples=sizes.examples
            )
            check_widths(sizes, self.roles)

    def project(self, student: Tensor) -> Tensor:
        return student if self.features is None else self.features.project(student)

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        final = teachers["final"]
        early = teachers["early"].logits if self.reference == "early" else None
        target = contrast_logits(final.logits, early, self.strength, self.floor)  # (B, C)
        rows = student.logits
        if self.standardise:
            rows, target = standardised(rows), standardised(target)
        terms = {"contrast": self.weight * kd_loss(rows, target, self.temperature)}
        if self.features is not None:
            early_embedding = teachers["early"].embedding
            terms |= self.features(student.embedding, final.embedding, early_embedding, epoch=epoch, index=batch.index)
        return terms
