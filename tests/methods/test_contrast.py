"""Contrast targets against a loop, by hand, in their limits, and what they can and cannot do to a teacher's answer."""
# B batch, C classes, D teacher features, d student features

import math
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.errors import UserError
from antishortcut.methods import METHODS, method_options, method_roles
from antishortcut.methods.asd import ASDLoss
from antishortcut.methods.contrast import Contrast, contrast_logits, contrast_loss, guarded_strength
from antishortcut.methods.dkd import dkd_terms
from antishortcut.methods.fitnets import FitNets
from antishortcut.methods.kd import kd_loss
from antishortcut.types import Batch, Features, Method, Projects, Shape, Sizes
from tests.methods.test_asd import double, sizes
from tests.methods.test_fitnets import numbered
from tests.methods.test_kd import logits_only, slow_kd
from tests.test_subspace import close, normal, seeds, several

SIZES = sizes(8, 8, 100)
strengths = st.sampled_from([0.25, 0.5, 1.0, 2.0])


def slow_log_softmax(row: list[float]) -> list[float]:
    return [v - math.log(sum(math.exp(w) for w in row)) for v in row]


def slow_target(final: Tensor, early: Tensor, strength: float, floor: float) -> list[list[float]]:
    """(1 + λ) log p_F − λ max(log p_E, floor), class by class."""
    rows = []
    for row, before in zip(final.tolist(), early.tolist(), strict=True):
        pairs = zip(slow_log_softmax(row), slow_log_softmax(before), strict=True)
        rows.append([(1 + strength) * f - strength * max(e, floor) for f, e in pairs])
    return rows


def terms_of(method: Method, student: Tensor, final: Tensor, early: Tensor) -> dict[str, Tensor]:
    teachers = {"final": logits_only(final), "early": logits_only(early)}
    return method.terms(logits_only(student), teachers, numbered(len(student)), epoch=0.0)


@several
@given(strength=strengths, floor=st.sampled_from([-0.5, -8.0]), temperature=st.sampled_from([0.5, 4.0]), seed=seeds)
def test_agrees_with_the_loop(strength: float, floor: float, temperature: float, seed: int) -> None:
    student, final, early = (3 * normal(1 + seed % 5, 4, seed=seed + i) for i in range(3))
    target = contrast_logits(final, early, strength, floor)
    slow = double(slow_target(final, early, strength, floor))
    close(target, slow)
    method = Contrast(SIZES, strength=strength, floor=floor, weight=0.5, temperature=temperature)
    terms = terms_of(method, student, final, early)
    assert list(terms) == ["contrast"]
    close(terms["contrast"], 0.5 * slow_kd(student, slow, temperature))
    loss = contrast_loss(student, final, early, strength=strength, temperature=temperature, floor=floor)
    close(loss, slow_kd(student, slow, temperature))


def test_two_classes_by_hand() -> None:
    """p_F = (3/4, 1/4), p_E = (1/4, 3/4), λ = 1: the target is 9/16 · 4 to 1/16 · 4/3, so 27 to 1."""
    final, early = double([[math.log(3), 0]]), double([[0, math.log(3)]])
    close(contrast_logits(final, early, 1.0), [[math.log(9 / 4), math.log(1 / 12)]], 1e-12)
    close(contrast_logits(final, early, 1.0).softmax(1), [[27 / 28, 1 / 28]], 1e-12)
    student = torch.zeros(1, 2, dtype=torch.float64)  # p = (1/2, 1/2)
    by_hand = 27 / 28 * math.log(27 / 14) + 1 / 28 * math.log(1 / 14)
    loss = terms_of(Contrast(SIZES, strength=1.0, temperature=1.0), student, final, early)["contrast"]
    close(loss, by_hand, 1e-12)
    softened = kd_loss(student, double([[math.log(27), 0]]), 3.0)  # at τ = 3 the odds are 3 to 1
    close(softened, 9 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5)), 1e-12)
    close(terms_of(Contrast(SIZES, strength=1.0, temperature=3.0), student, final, early)["contrast"], softened, 1e-12)


# --- limits ------------------------------------------------------------------------------------------------------


@several
@given(temperature=st.sampled_from([1.0, 4.0]), seed=seeds)
def test_without_strength_it_is_kd(temperature: float, seed: int) -> None:
    student, final, early = (3 * normal(4, 5, seed=seed + i) for i in range(3))
    ours = METHODS["contrast"](SIZES, **method_options("contrast", {"strength": 0, "temperature": temperature}))
    kd = METHODS["kd"](SIZES, **method_options("kd", {"temperature": temperature}))
    close(kd_loss(student, contrast_logits(final, early, 0.0), temperature), kd_loss(student, final, temperature))
    result = terms_of(cast(Method, ours), student, final, early)
    close(result["contrast"], terms_of(cast(Method, kd), student, final, early)["kd"])
    assert (ours.task_weight, ours.weight) == (kd.task_weight, kd.weight)


@several
@given(strength=strengths, offset=st.floats(-50, 50), seed=seeds)
def test_a_uniform_early_state_only_sharpens(strength: float, offset: float, seed: int) -> None:
    student, final = 3 * normal(4, 5, seed=seed), 3 * normal(4, 5, seed=seed + 1)
    uniform = torch.full_like(final, offset)
    given_ = terms_of(Contrast(SIZES, strength=strength), student, final, uniform)["contrast"]
    close(given_, kd_loss(student, (1 + strength) * final, 4.0))
    control = Contrast(SIZES, strength=strength, reference="uniform")
    close(control.terms(logits_only(student), {"final": logits_only(final)}, numbered(4), 0.0)["contrast"], given_)
    assert torch.equal(contrast_logits(final, uniform, strength).argmax(1), final.argmax(1))


# --- properties --------------------------------------------------------------------------------------------------


# --- with ASD's temporal contrast --------------------------------------------------------------------------------


def batches(d: int, wide: int, count: int = 4) -> list[tuple[Features, dict[str, Features], Batch]]:
    """Student, teachers and a batch, several in a row; each batch sees a sample of the one before again."""
    built = []
    for step in range(count):
        student, final, early = (
            Features(normal(4, 5, seed=9 * step + i).float(), normal(4, width, seed=9 * step + i + 3).float())
            for i, width in enumerate((d, wide, wide))
        )
        batch = Batch(torch.zeros(4, 3, 1, 1), torch.zeros(4, dtype=torch.int64), torch.arange(4) + 3 * step)
        built.append((student, {"final": final, "early": early}, batch))
    return built


@pytest.mark.parametrize("d", [6, 3], ids=["same width", "projected"])
@pytest.mark.parametrize("reference", ["early", "uniform"])
def test_tc_is_the_term_of_asd(d: int, reference: str) -> None:
    """Step by step, queue and projector included, and nothing else changes."""
    settings: dict[str, Any] = {"tc": 0.6, "queue": 7, "warmup": 8.0}
    torch.manual_seed(0)
    given_ = method_options("contrast+tc", settings | {"tc_temperature": 0.2, "reference": reference})
    both = cast(Contrast, METHODS["contrast+tc"](sizes(d, 6, 9), **given_))
    torch.manual_seed(0)
    apart = ASDLoss(d, 6, **settings, ss=0.0, temperature=0.2, examples=9)  # the queue reaches 9 − 4 back
    single = Contrast(sizes(d, 6, 9), reference=reference)
    assert both.roles == ("final", "early")
    for step, (student, teachers, batch) in enumerate(batches(d, 6)):
        terms = both.terms(student, teachers, batch, epoch=3.0 * step)
        near, far = teachers["final"].embedding, teachers["early"].embedding
        expected = apart(student.embedding, near, far, epoch=3.0 * step, index=batch.index)
        assert list(terms) == ["contrast", "tc"]
        assert torch.equal(terms["tc"], expected["tc"])
        assert torch.equal(terms["contrast"], single.terms(student, teachers, batch, epoch=3.0 * step)["contrast"])
        assert (terms["tc"] > 0) == (step > 0)  # warmed up from 0
    assert both.features is not None
    assert torch.equal(both.features.queue, apart.queue)
    assert torch.equal(both.features.queue_index, apart.queue_index)
    assert both.features.queue.abs().sum() > 0


@pytest.mark.parametrize("reference", ["early", "uniform"])
def test_beside_a_weak_reference_tc_has_no_temporal_negative(reference: str) -> None:
    """It equals ASD's L_TC without one, whatever the width of the weak network."""
    settings: dict[str, Any] = {"tc": 0.6, "queue": 7, "warmup": 8.0}
    usual = sizes(3, 6, 9)
    weak = replace(usual, teachers={"final": Shape(6), "early": Shape(2, weak=True)})
    torch.manual_seed(0)
    both = Contrast(weak, **settings, reference=reference)
    torch.manual_seed(0)
    apart = ASDLoss(3, 6, **settings, ss=0.0, temporal=False, examples=9)
    assert both.roles == (("final", "early") if reference == "early" else ("final",))
    assert method_roles("contrast+tc", settings | {"reference": reference}, weak=True) == both.roles
    assert "without its temporal negative" in both.note
    assert not Contrast(usual, **settings).note
    single = Contrast(usual, reference=reference)
    for step, (student, teachers, batch) in enumerate(batches(3, 6)):
        early = Features(teachers["early"].logits, normal(4, 2, seed=step).float())
        roles = {"final": teachers["final"], "early": early}
        terms = both.terms(student, {role: roles[role] for role in both.roles}, batch, epoch=3.0 * step)
        near = teachers["final"].embedding
        expected = apart(student.embedding, near, None, epoch=3.0 * step, index=batch.index)
        assert torch.equal(terms["tc"], expected["tc"])
        assert torch.equal(terms["contrast"], single.terms(student, teachers, batch, epoch=3.0 * step)["contrast"])


# --- settings ----------------------------------------------------------------------------------------------------


def test_projector_is_exposed_for_feature_measurements() -> None:
    rows = normal(4, 6, seed=1).float()
    method = cast(Any, Contrast(sizes(6, 8, 100), tc=0.8)).eval()
    assert torch.equal(method.project(rows), method.features.project(rows))
    assert isinstance(method, Projects)
    assert method.project(rows).shape == (4, 8)
    assert not isinstance(Contrast(sizes(6, 8, 100)), Projects)  # no features, no projector


def slow_guarded(final: Tensor, early: Tensor, label: list[int], strength: float, floor: float) -> list[float]:
    """λ_i by the paper's margins: the smallest λ at which a class ties with the label, at most λ."""
    rows = []
    for late, before, y in zip(final.tolist(), early.tolist(), label, strict=True):
        f, e = slow_log_softmax(late), [max(v, floor) for v in slow_log_softmax(before)]
        limit = strength
        if f[y] == max(f):
            for c in range(len(f)):
                m_f, m_e = f[y] - f[c], e[y] - e[c]
                if m_e > m_f:
                    limit = min(limit, m_f / (m_e - m_f))
        rows.append(limit)
    return rows


@several
@given(strength=st.sampled_from([0.5, 1.0, 4.0]), floor=st.sampled_from([-1.0, -8.0]), seed=seeds)
def test_the_guard_agrees_with_the_loop_and_keeps_right_answers(strength: float, floor: float, seed: int) -> None:
    final, early = 2 * normal(20, 5, seed=seed), 4 * normal(20, 5, seed=seed + 1)
    label = torch.arange(20) % 5
    each = guarded_strength(final, early, label, strength, floor)
    close(each.T, double([slow_guarded(final, early, label.tolist(), strength, floor)]))
    right = final.argmax(dim=1) == label
    target = contrast_logits(final, early, each, floor)
    margin = target.gather(1, label[:, None]) - target
    assert float(margin[right].min()) >= -1e-9
    assert torch.equal(each[~right], torch.full_like(each[~right], strength))
    method = Contrast(SIZES, strength=strength, floor=floor, guard=True)
    student = normal(20, 5, seed=seed + 2)
    teachers = {"final": logits_only(final), "early": logits_only(early)}
    batch = replace(numbered(20), label=label)
    terms = method.terms(logits_only(student), teachers, batch, epoch=0.0)
    close(terms["contrast"], slow_kd(student, target, 4.0))


def test_hints_are_those_of_fitnets_and_networks_without_maps_go_without() -> None:
    """One stage's maps, regressed as FitNets does; without maps the method says so and trains on."""
    maps = Shape(8, ((4, 4, 4),) * 4)
    both = Sizes(5, 100, maps, {"final": maps, "early": maps})
    torch.manual_seed(0)
    method = Contrast(both, hint=100.0)
    torch.manual_seed(0)
    alone = FitNets(both, hint=-2)
    assert method.taps == ("stages",)
    assert method.note == ""
    images = [torch.randn(6, 4, 4, 4) for _ in range(8)]
    student, teacher = (Features(torch.randn(6, 5), torch.randn(6, 8), tuple(images[at : at + 4])) for at in (0, 4))
    terms = method.terms(student, {"final": teacher, "early": teacher}, numbered(6), epoch=0.0)
    expected = alone.terms(student, {"final": teacher}, numbered(6), epoch=0.0)
    assert torch.equal(terms["hint"], expected["hint"])
    bare = Contrast(SIZES, hint=100.0)
    assert (bare.taps, bare.hints) == ((), None)
    assert "without hints" in bare.note


def test_with_beta_it_is_dkd_on_contrast_targets() -> None:
    """TCKD + β NCKD of the target; of one row, β = 1 − q_t gives the KL back."""
    student, final, early = (normal(6, 5, seed=seed) for seed in range(3))
    label = torch.arange(6) % 5
    teachers = {"final": logits_only(final), "early": logits_only(early)}
    batch = replace(numbered(6), label=label)
    target = contrast_logits(final, early, 1.0)
    tckd, nckd = dkd_terms(student, target, label, 4.0)
    terms = Contrast(SIZES, beta=2.0).terms(logits_only(student), teachers, batch, epoch=0.0)
    close(terms["contrast"], tckd + 2 * nckd)
    one = {role: logits_only(rows.logits[:1]) for role, rows in teachers.items()}
    rest = float(1 - (target[0] / 4).softmax(dim=0)[label[0]])
    first = replace(numbered(1), label=label[:1])
    terms = Contrast(SIZES, beta=rest).terms(logits_only(student[:1]), one, first, epoch=0.0)
    close(terms["contrast"], kd_loss(student[:1], target[:1], 4.0))


def test_the_reference_may_be_any_state_and_is_left_out_without_strength() -> None:
    final, early = normal(3, 4, seed=1), normal(3, 4, seed=2)
    named = Contrast(SIZES, reference="30%")
    assert named.roles == ("final", "30%")
    terms = named.terms(
        logits_only(final), {"final": logits_only(final), "30%": logits_only(early)}, numbered(3), epoch=0.0
    )
    close(terms["contrast"], terms_of(Contrast(SIZES), final, final, early)["contrast"])
    assert Contrast(SIZES, strength=0.0).roles == ("final",)
    assert Contrast(
        replace(SIZES, teachers={"final": SIZES.student, "30%": SIZES.student}), strength=0.0, tc=1.0, reference="30%"
    ).roles == ("final", "30%")
    with pytest.raises(UserError, match="unknown reference"):
        Contrast(SIZES, reference="late")
