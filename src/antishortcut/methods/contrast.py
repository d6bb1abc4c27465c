"""Contrast targets: distil what the final teacher knows beyond its own early state. A method of this project.

A product of experts with the early state divided out; cf. Clark, Yatskar & Zettlemoyer 2019 (known biases), Nam et al.
2020 and Liu et al. 2021 (an early model's failure betrays the bias), Li et al. 2023 (contrastive decoding).
"""
# B batch, C classes

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.methods.asd import NO_NEGATIVE, ASDLoss
from antishortcut.methods.checks import (
    check_choice,
    check_every_label,
    check_settings,
    check_tensors,
    check_widths,
    weak_reference,
)
from antishortcut.methods.dkd import dkd_terms
from antishortcut.methods.fitnets import FitNets
from antishortcut.methods.kd import Teachers, Terms, kd_loss, standardised
from antishortcut.types import Batch, Features, Sizes


def contrast_logits(final: Tensor, early: Tensor | None, strength: float | Tensor, floor: float = -8.0) -> Tensor:
    """(1 + λ) log p_F − λ max(log p_E, floor), logits of the target from logits (B, C). (B, C)

    strength: λ, or one for each row (B, 1). The floor bounds what a class can gain because the early state ruled it
    out: at most −λ · floor. Without an early state it is the uniform one, and the target is only sharper:
    (1 + λ) log p_F.
    """
    check_tensors(final=final, early=final if early is None else early)
    target = (1 + strength) * F.log_softmax(final.detach(), dim=1)  # (B, C)
    if early is None:
        return target
    return target - strength * F.log_softmax(early.detach(), dim=1).clamp(min=floor)


def guarded_strength(final: Tensor, early: Tensor, label: Tensor, strength: float, floor: float = -8.0) -> Tensor:
    """The largest λ_i ≤ λ at which the target of each row still names its label. Logits (B, C), label (B,). (B, 1)

    With the label's margins over class c, m_F = log p_F[y] − log p_F[c] and m_E likewise, the target's
    margin is m_F + λ (m_F − m_E): it falls where m_E > m_F, and is 0 at λ = m_F / (m_E − m_F), of which the least over
    all c counts. Where T_final names another class there is nothing to guard: λ_i = λ.
    """
    late = F.log_softmax(final.detach(), dim=1)
    margin = late.gather(1, label[:, None]) - late  # m_F (B, C)
    before = F.log_softmax(early.detach(), dim=1).clamp(min=floor)
    falls = before.gather(1, label[:, None]) - before - margin  # m_E − m_F (B, C); 0 for the label
    limit = torch.where(falls > 0, margin / falls.clamp(min=1e-12), strength)  # (B, C)
    limit = limit.amin(dim=1, keepdim=True).clamp(max=strength)  # (B, 1)
    right = (margin >= 0).all(dim=1, keepdim=True)
    return torch.where(right, limit, strength)


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
    """task_weight · CE + weight · τ² KL(softmax(contrast / τ) ‖ softmax(student / τ)) + hint · MSE + tc · L_TC.

    strength: λ. guard: λ of each image is lowered until the target names its label, where T_final does. floor: of
    log p_E. reference: "early", another state of the teacher ("30%", "epoch:9"), or "uniform", the control that only
    sharpens. beta: 0, or the weight of the other classes beside the label, which DKD takes apart: KL becomes
    TCKD + β NCKD.
    hint above 0 adds FitNets' regression of the teacher's map of a stage, −1 being the deepest; networks without maps
    go without. tc above 0 adds ASD's temporal contrast of features, with its own temperature, queue and warm-up; beside
    a weak reference, without its temporal negative.
    standardise: as in KD, of the target and the student.
    """

    def __init__(
        self,
        sizes: Sizes,
        standardise: bool = False,
        *,
        strength: float = 1.0,
        guard: bool = False,
        floor: float = -8.0,
        weight: float = 1.0,
        temperature: float = 4.0,
        beta: float = 0.0,
        reference: str = "early",
        hint: float = 0.0,
        hint_stage: int = -2,
        tc: float = 0.0,
        tc_temperature: float = 0.07,
        queue: int = 4096,
        warmup: float = 20.0,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_settings(strength=strength, temperature=temperature, floor=floor)
        if not reference.endswith("%") and not reference.startswith("epoch:"):
            check_choice("reference", reference, ("early", "uniform", "30%"))
        self.strength, self.floor, self.weight, self.temperature = strength, floor, weight, temperature
        self.beta = beta
        self.guard, self.task_weight, self.standardise = guard, task_weight, standardise
        self.divides = reference != "uniform" and strength != 0
        self.early = "early" if reference == "uniform" else reference
        temporal = tc != 0 and not (self.early == "early" and weak_reference(sizes))
        self.roles: tuple[str, ...] = ("final", self.early) if self.divides or temporal else ("final",)
        self.features: ASDLoss | None = None
        if tc != 0:
            own: dict[str, Any] = {"temperature": tc_temperature, "queue": queue, "warmup": warmup}
            widths = sizes.student.embedding, sizes.teachers["final"].embedding
            self.features = ASDLoss(*widths, tc=tc, ss=0.0, temporal=temporal, examples=sizes.examples, **own)
            self.project = self.features.project  # only then is there a head for embeddings
        if temporal:
            check_widths(sizes, self.roles)
        stages = min(len(sizes.student.stages), len(sizes.teachers["final"].stages))
        notes = ["no feature maps in both networks: it goes without hints"] if hint != 0 and not stages else []
        self.note = "; ".join(notes + ([NO_NEGATIVE] if tc != 0 and not temporal else []))
        stage = -1 if stages == 1 else hint_stage
        self.hints = FitNets(sizes, weight=hint, hint=stage) if hint != 0 and stages else None
        self.taps: tuple[str, ...] = () if self.hints is None else self.hints.taps
        self.stages_read: tuple[int, ...] = () if self.hints is None else self.hints.stages_read
        if guard or beta != 0:
            self.no_mixup = "it goes by the one true class"
            check_every_label(sizes)

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        final = teachers["final"]
        early = teachers[self.early].logits if self.divides else None
        strength: float | Tensor = self.strength
        if self.guard and early is not None:
            strength = guarded_strength(final.logits, early, batch.label, self.strength, self.floor)  # (B, 1)
        target = contrast_logits(final.logits, early, strength, self.floor) if self.strength else final.logits  # (B, C)
        rows = student.logits
        if self.standardise:
            rows, target = standardised(rows), standardised(target)
        if self.beta == 0:
            loss = kd_loss(rows, target, self.temperature)
        else:
            tckd, nckd = dkd_terms(rows, target, batch.label, self.temperature)
            loss = tckd + self.beta * nckd
        terms = {"contrast": self.weight * loss}
        if self.hints is not None:
            terms |= self.hints.terms(student, teachers, batch, epoch)
        if self.features is not None:
            negative = teachers[self.early].embedding if self.features.temporal else None
            terms |= self.features(student.embedding, final.embedding, negative, epoch=epoch, index=batch.index)
        return terms
