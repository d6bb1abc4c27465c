"""Mixup and CutMix: ratios and labels by hand, methods that refuse them, the same with micro-batches and processes."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from antishortcut.config.recipe import OptimSettings, load_recipe
from antishortcut.errors import UserError
from antishortcut.methods import METHODS
from antishortcut.run_dir import RunDir
from antishortcut.tasks import Classification
from antishortcut.training.mixup import draw_mix, mix_batch
from antishortcut.training.pipeline import Session, distill
from antishortcut.types import Batch, Features, NoMixup
from tests.conftest import CPU
from tests.methods.test_contract import Setting
from tests.processes import asd
from tests.training.test_two_processes import NETWORK

BOTH = OptimSettings(mixup=0.4, cutmix=1.0)


def batch_of(count: int = 5) -> Batch:
    draw = torch.Generator().manual_seed(0)
    return Batch(torch.rand(count, 3, 8, 12, generator=draw), torch.arange(count) % 3, torch.arange(count) + 10)


def test_mixup_equals_a_loop() -> None:
    batch, optim = batch_of(), OptimSettings(mixup=0.4)
    result, share = mix_batch(batch, optim, 3, 7), draw_mix(optim, 3, 7, (8, 12)).share
    for row in range(5):
        expected = share * batch.image[row] + (1 - share) * batch.image[4 - row]
        assert torch.allclose(result.image[row], expected, atol=1e-7)
    assert result.mixed_label is not None
    assert result.mix_ratio is not None
    assert result.mixed_label.tolist() == batch.label.flip(0).tolist()
    assert result.mix_ratio.tolist() == pytest.approx([share] * 5)
    assert torch.equal(result.label, batch.label)
    assert torch.equal(result.index, batch.index)


def test_cutmix_ratio_is_the_share_of_pixels() -> None:
    batch = replace(batch_of(2), image=torch.stack([torch.zeros(3, 8, 12), torch.ones(3, 8, 12)]))
    optim = OptimSettings(cutmix=1.0)
    sizes = set()
    for step in range(40):
        result = mix_batch(batch, optim, 1, step)
        assert result.mix_ratio is not None
        own = float((result.image[0] == 0).float().mean())
        assert own == pytest.approx(float(result.mix_ratio[0]), abs=1e-6)
        assert torch.equal(result.image[0], 1 - result.image[1])
        where = (result.image[0, 0] == 1).nonzero()
        if len(where):  # one box
            (top, left), (bottom, right) = where.min(dim=0).values.tolist(), where.max(dim=0).values.tolist()
            assert len(where) == (bottom - top + 1) * (right - left + 1)
        sizes.add(round(own, 3))
    assert len(sizes) > 10


def test_ratios_are_beta_distributed_and_both_kinds_equally_frequent() -> None:
    drawn = [draw_mix(OptimSettings(mixup=0.4), 5, step, (32, 32)).share for step in range(2000)]
    assert stats.kstest(drawn, stats.beta(0.4, 0.4).cdf).pvalue > 0.01
    cut = [draw_mix(BOTH, 5, step, (32, 32)).box is not None for step in range(2000)]
    assert np.mean(cut) == pytest.approx(0.5, abs=0.05)
    assert draw_mix(BOTH, 5, 9, (32, 32)) == draw_mix(BOTH, 5, 9, (32, 32)) != draw_mix(BOTH, 6, 9, (32, 32))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("mixing", [True, False])
def test_the_loss_of_mixed_labels_equals_a_loop_in_float64(smoothing: float, mixing: bool) -> None:
    draw = torch.Generator().manual_seed(1)
    batch = batch_of()
    if mixing:
        batch = replace(batch, mixed_label=batch.label.flip(0), mix_ratio=torch.rand(5, generator=draw))
    logits = torch.randn(5, 3, generator=draw, dtype=torch.float64)
    total = 0.0
    for row in range(5):
        target = [smoothing / 3] * 3
        share = float(batch.mix_ratio[row]) if batch.mix_ratio is not None else 1.0
        target[int(batch.label[row])] += (1 - smoothing) * share
        if batch.mixed_label is not None:
            target[int(batch.mixed_label[row])] += (1 - smoothing) * (1 - share)
        norm = math.log(sum(math.exp(float(z)) for z in logits[row]))
        total -= sum(q * (float(z) - norm) for q, z in zip(target, logits[row], strict=True))
    result = Classification(label_smoothing=smoothing).loss(Features(logits, logits), batch)["task"]
    assert float(result) == pytest.approx(total / 5, abs=1e-10)


def test_a_ratio_of_one_changes_nothing() -> None:
    batch = batch_of()
    logits = torch.randn(5, 3, dtype=torch.float64)
    whole = replace(batch, mixed_label=batch.label.flip(0), mix_ratio=torch.ones(5))
    task = Classification(label_smoothing=0.1)
    one, two = (float(task.loss(Features(logits, logits), each)["task"]) for each in (batch, whole))
    assert one == pytest.approx(two, abs=1e-12)
    assert mix_batch(batch, OptimSettings(), 1, 1) is batch


@pytest.mark.parametrize("name", METHODS)
def test_a_method_allows_mixup_unless_it_uses_labels(name: str) -> None:
    result = []
    for shuffled in (False, True):
        setting = Setting(name, "same-width")
        for step in (0, 1):  # the second with a queue of the first
            torch.manual_seed(step)
            label = setting.batch.label if not shuffled else setting.batch.label[torch.randperm(16)]
            torch.manual_seed(step)
            terms = setting.terms(replace(setting.batch, label=label, index=(setting.batch.index + step) % 200))
        result.append(terms)
    one, two = ({key: value for key, value in each.items() if key != "task"} for each in result)
    uses_labels = any(not torch.equal(one[key], two[key]) for key in one)
    assert uses_labels == isinstance(setting.method, NoMixup)


@pytest.mark.parametrize(
    ("source", "method", "settings", "message"),
    [
        ("cues", "crd", ["optim.mixup=0.2"], r"optim\.mixup: crd cannot"),
        ("cues", "dkd", ["optim.mixup=0.2", "optim.cutmix=1"], r"optim\.mixup and cutmix: dkd cannot"),
        ("cues-seg", "kd", ["optim.mixup=0.2"], "every pixel"),
    ],
)
def test_a_method_that_needs_whole_images_is_refused_before_training(
    session: Session, source: str, method: str, settings: list[str], message: str
) -> None:
    small = ["data.options.count=16", "data.options.test_count=8"]
    with pytest.raises(UserError, match=message):
        distill(load_recipe(source, [*small, *settings]), session, method=method, seed=1, suite="s")
    assert not session.runs.exists()


def test_teacher_outputs_of_mixed_images_are_not_cached(tiny: Path, session: Session) -> None:
    recipe = load_recipe(str(tiny), ["optim.cutmix=1.0", "epochs=1"])
    session.execution = CPU.model_copy(update={"cache_teachers": "auto"})
    run = distill(recipe, session, method="kd", seed=1, suite="auto")
    assert RunDir(run.folder(session.runs)).read()[1]["cache_teachers"] is False
    assert not list(session.runs.glob("teachers/*/cache"))
    session.execution = CPU.model_copy(update={"cache_teachers": True})
    with pytest.raises(UserError, match=r"--cache-teachers: .* mixed images"):
        distill(recipe, session, method="kd", seed=1, suite="yes")
    assert not (session.runs / "yes" / "kd-s1").exists()


@pytest.mark.parametrize("way", ["micro-batches", pytest.param("processes", marks=pytest.mark.slow)])
def test_micro_batches_and_processes_do_not_change_the_result(
    tmp_path: Path, tiny: Path, session: Session, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """265 images: the last batch of 9 is split as 5 and 4. Mixed, averaged, for a student without batch statistics."""
    (tmp_path / "bare.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = ["data.options.count=265", "student.name=import:bare:net", "optim.lr=0.02", "epochs=1"]
    settings += ["optim.mixup=0.4", "optim.cutmix=1.0", "optim.ema=0.9", "optim.decay=weights"]
    recipe = load_recipe(str(tiny), settings)
    one = RunDir(distill(recipe, session, method="ce", seed=1, suite="one").folder(session.runs))
    other = RunDir(session.runs / "other" / "ce-s1")
    if way == "micro-batches":
        session.execution = CPU.model_copy(update={"micro_batches": 3})
        distill(recipe, session, method="ce", seed=1, suite="other")
        losses = [[row["loss"] for row in folder.history() if "loss" in row] for folder in (one, other)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    else:
        words = [word for text in settings for word in ("--set", text)]
        words += ["--method", "ce", "--devices", "2", "--suite", "other", "--runs", str(session.runs)]
        asd(tmp_path, "distill", str(tiny), *words)
    assert one.result()["raw"] == pytest.approx(other.result()["raw"], abs=0.021)
    weights = load_file(other.student)
    for key, value in load_file(one.student).items():
        assert torch.allclose(value, weights[key], atol=1e-5, rtol=1e-4), key
