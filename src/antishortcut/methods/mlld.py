"""Multi-level logit distillation, Jin, Wang & Lin 2023: samples, classes and the batch, at five temperatures.

Every image is seen twice, as usual and strongly augmented. As in the authors' code; the card says where the paper
differs.
"""
# B weak views, C classes

import torch
from torch import Tensor

from antishortcut.methods.checks import check_labels, check_settings
from antishortcut.methods.kd import Distillation, Teachers, Terms, kl_rows, standardised
from antishortcut.types import Batch, Features, Sizes

STRONG, REPEATED = (3.0, 5.0), (2.0, 6.0)  # temperatures beside the first; the last two are the weak views' again
Pair = tuple[Tensor, Tensor]  # logits of student and teacher


def lower_half(values: Tensor) -> Tensor:
    """1 where a value is at most the median, 0 elsewhere. (N,)"""
    ordered, count = values.sort().values, len(values)
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return (values <= median).to(values) + 0 * values  # NaN stays visible


def gram_loss(student: Tensor, teacher: Tensor, keep: Tensor) -> Tensor:
    """Σ_ij keep_j (⟨t_i, t_j⟩ − ⟨s_i, s_j⟩)² / n over the rows of (n, m); keep is (n,) or one number."""
    return (keep * (teacher @ teacher.T - student @ student.T).square()).sum() / len(student)


def mlld_terms(
    weak: Pair, strong: Pair | None, temperature: float, *, masks: bool = False, standardise: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses of samples, of classes and of the batch, from logits (B, C) of student and teacher in each view."""
    probability = weak[1].softmax(dim=1)  # (B, C)
    sample, classes = lower_half(probability.amax(dim=1)), lower_half(probability.sum(dim=0))  # (B,), (C,)
    if not masks:
        sample, classes = sample.mean(), classes.mean()
    class_level = batch_level = weak[0].new_zeros(())
    temperatures = (temperature, *STRONG, *REPEATED)
    for tau in temperatures:
        p, q = ((logits / tau).softmax(dim=1) for logits in weak)  # (B, C)
        class_level = class_level + gram_loss(p.T, q.T, classes)
        batch_level = batch_level + gram_loss(p, q, sample)
    if standardise:
        weak = standardised(weak[0]), standardised(weak[1])
        strong = None if strong is None else (standardised(strong[0]), standardised(strong[1]))
    kl = [(sample * (tau**2 * kl_rows(*weak, tau))).mean() for tau in temperatures]
    kl += [(tau**2 * kl_rows(*weak, tau)).mean() for tau in REPEATED]
    if strong is not None:
        kl += [(tau**2 * kl_rows(*strong, tau)).mean() for tau in (temperature, *STRONG)]
    return torch.stack(kl).sum(), class_level, batch_level


class MLLD(Distillation):
    """task_weight · CE of both views + weight · (KL + class_weight · CC + batch_weight · BC). See its card.

    CC and BC are distances of Gram matrices, of classes and of the batch. temperature: the first of five. masks: leave
    out the samples and classes that the teacher is surer of, instead of multiplying by the share of the rest.
    standardise: the logits of the KL, as in KD.
    """

    strong_view = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        weight: float = 0.9,
        class_weight: float = 1.0,
        batch_weight: float = 1.0,
        temperature: float = 4.0,
        masks: bool = False,
        standardise: bool = False,
        task_weight: float = 0.2,
    ) -> None:
        super().__init__()
        check_labels(sizes)
        check_settings(temperature=temperature)
        self.weights = {"kd": weight, "class": weight * class_weight, "batch": weight * batch_weight}
        self.temperature, self.task_weight = temperature, task_weight
        self.masks, self.standardise = masks, standardise

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        rows, targets = student.logits, teachers["final"].logits.detach().to(student.logits)  # (2B, C)
        weak, strong = (rows, targets), None
        if batch.strong is not None:  # half of the rows, in a place that depends on the number of processes
            first, second = batch.strong.to(torch.uint8).argsort(stable=True).chunk(2)  # (B,), (B,)
            weak, strong = (rows[first], targets[first]), (rows[second], targets[second])
        levels = mlld_terms(weak, strong, self.temperature, masks=self.masks, standardise=self.standardise)
        return {name: weight * loss for (name, weight), loss in zip(self.weights.items(), levels, strict=True)}
