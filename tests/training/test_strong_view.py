"""Methods with a strong view: every micro-batch is doubled, for student and teachers, wherever a step is taken."""
# B batch

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from antishortcut.config.recipe import Execution, Recipe, with_settings
from antishortcut.data.transforms import strong_view, with_strong_view
from antishortcut.methods.mlld import MLLD
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill
from antishortcut.training.step import DistillationStep, gather_samples
from antishortcut.types import Batch, Features
from tests.conftest import CPU, assert_same_run
from tests.methods.test_mlld import sizes
from tests.processes import in_two
from tests.test_subspace import normal
from tests.training.test_microbatch import limit_training_batches


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Batch, Any, Any]]:
    """What every training step gets and returns."""
    forward, seen = DistillationStep.forward, list[tuple[Batch, Any, Any]]()

    def record(self: DistillationStep, batch: Batch, teachers: Any, epoch: float) -> dict[str, Tensor]:
        losses = forward(self, batch, teachers, epoch)
        seen.append((batch, teachers, losses))
        return losses

    monkeypatch.setattr(DistillationStep, "forward", record)
    return seen


@pytest.mark.parametrize("count", [1, 3])
def test_every_micro_batch_is_doubled(
    recipe: Recipe, session: Session, steps: list[tuple[Batch, Any, Any]], count: int
) -> None:
    short = with_settings(recipe, ["epochs=2", "data.options.count=64"])  # two batches an epoch
    session.execution = CPU.model_copy(update={"micro_batches": count})
    distill(short, session, method="mlld", seed=3, suite="s")
    student = [step for step in steps if step[1]]  # the teacher is trained in the same loop, from nobody
    assert len(student) == 4 * count
    for number, (batch, teachers, losses) in enumerate(student):
        rows = len(batch.label) // 2
        assert len(batch.image) == 2 * rows
        assert rows in ((32,) if count == 1 else (10, 11))
        assert batch.strong is not None
        assert batch.strong.tolist() == [False] * rows + [True] * rows
        for values in (batch.label, batch.index):
            assert torch.equal(values[:rows], values[rows:])
        epoch = number // (2 * count)
        assert torch.equal(batch.image[rows:], strong_view(batch.image[:rows], 3, epoch, batch.index[:rows]))
        assert len(teachers["final"].logits) == 2 * rows
        assert set(losses) == {"task", "kd", "class", "batch"}


def test_other_methods_see_single_images(recipe: Recipe, session: Session, steps: list[tuple[Batch, Any, Any]]) -> None:
    distill(with_settings(recipe, ["epochs=1"]), session, method="kd", seed=1, suite="s")
    assert {(len(batch.label), batch.strong) for batch, _, _ in steps} == {(32, None)}


def test_mixed_images_keep_their_labels(recipe: Recipe, session: Session, steps: list[tuple[Batch, Any, Any]]) -> None:
    mixing = with_settings(recipe, ["epochs=1", "optim.mixup=0.4"])
    distill(mixing, session, method="mlld", seed=1, suite="s")
    for batch, teachers, _ in steps:
        assert batch.mixed_label is not None
        assert len(batch.mixed_label) == (64 if teachers else 32)


def test_teacher_outputs_are_not_cached(recipe: Recipe, session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    short = with_settings(recipe, ["epochs=1"])
    results = []
    for cache in (False, "auto", True):
        session.execution = CPU.model_copy(update={"cache_teachers": cache})
        session.quiet = cache is not True
        run = distill(short, session, method="mlld", seed=1, suite=str(cache))
        results.append(RunDir(run.folder(session.runs)))
    assert "teacher cache: off, because strong views are new in every epoch" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not list(session.runs.glob("teachers/*/cache"))
    for other in results[1:]:
        assert_same_run(results[0], other)


def test_the_search_for_memory_counts_both_views(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = with_settings(recipe, ["epochs=1", "data.options.count=64"])
    session.execution = Execution(accelerator="cpu", threads=1, micro_batches=4)
    distill(short, session, method="kd", seed=1, suite="s")  # with its teacher
    limit_training_batches(monkeypatch, 16)
    session.execution = Execution(accelerator="cpu", threads=1, micro_batches="auto")
    run = distill(short, session, method="mlld", seed=1, suite="s")
    assert RunDir(run.folder(session.runs)).read()[1]["micro_batches"] == 4  # of 8 images, so 16


def batch_of(part: slice) -> tuple[Features, dict[str, Features], Batch]:
    """Weak and strong rows of some of six images."""
    index = torch.arange(6)[part]
    image = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))[part]
    batch = with_strong_view(Batch(image, index % 4, index), 1, 2)
    rows = torch.cat([normal(6, 4)[part], normal(6, 4, seed=1)[part]]).float().requires_grad_()
    targets = torch.cat([normal(6, 4, seed=2)[part], normal(6, 4, seed=3)[part]]).float()
    empty = torch.zeros(len(rows), 8)
    return Features(rows, empty), {"final": Features(targets, empty)}, batch


def work(rank: int, folder: Path) -> None:
    student, teachers, batch = batch_of(slice(0, 4) if rank == 0 else slice(4, 6))
    terms = MLLD(sizes(4)).terms(*gather_samples(student, teachers, batch), 0.0)
    torch.autograd.backward(torch.stack(list(terms.values())).sum())
    assert student.logits.grad is not None
    values = torch.stack(list(terms.values())).detach()
    torch.save((values, student.logits.grad / 2, batch.image), folder / f"{rank}.pt")


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    in_two(work, tmp_path)
    student, teachers, batch = batch_of(slice(0, 6))
    terms = MLLD(sizes(4)).terms(student, teachers, batch, 0.0)
    torch.autograd.backward(torch.stack(list(terms.values())).sum())
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for values, _, _ in (first, second):
        assert torch.allclose(values, torch.stack(list(terms.values())), rtol=1e-5)
    for place, whole in ((1, student.logits.grad), (2, batch.image)):
        halves = [first[place][:4], second[place][:2], first[place][4:], second[place][2:]]
        assert torch.allclose(torch.cat(halves), whole, rtol=1e-4, atol=1e-6)  # type: ignore[arg-type]
