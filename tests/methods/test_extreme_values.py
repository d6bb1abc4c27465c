"""Numbers nobody hopes for: a defined result or one line, for every method, and never weights that are no numbers."""

import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import antishortcut.training.trainer as loop
from antishortcut import ASDLoss
from antishortcut.config.recipe import Execution, Recipe, with_settings
from antishortcut.errors import UserError
from antishortcut.methods import METHODS, method_options, method_roles
from antishortcut.methods.asd import Select, Source
from antishortcut.models import build
from antishortcut.run_dir import RunDir
from antishortcut.training.checkpoint import Checkpoints
from antishortcut.training.loggers import LossMeter, check_finite_weights
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.types import Features, Method, TrainingView
from tests.methods.test_contract import Setting, odd_features, rebuilt, tensors_of

LEARNERS = [name for name in METHODS if method_roles(name, method_options(name, {}))]
BASES: list[tuple[Source, Select]] = [
    ("batch", "displaced"),
    ("running", "displaced"),
    ("running", "abandoned"),
    ("dataset", "displaced"),
    ("dataset", "abandoned"),
]
B = 5


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("name", LEARNERS)
def test_teacher_outputs_that_are_not_finite_are_one_line(name: str, value: float) -> None:
    """A single such number is enough: none is averaged, clamped or masked away. The message names the teacher."""
    setting = Setting(name, "other-width", B)
    student = odd_features(setting.student, B, requires_grad=True)
    teachers = {role: odd_features(network, B) for role, network in setting.teachers.items()}
    for role, outputs in teachers.items():
        tensors = [each.clone() for each in tensors_of(outputs)]
        for each in tensors:
            each.view(-1)[0] = value
        broken = teachers | {role: rebuilt(tensors)}
        view = setting.method.view(student, broken) if isinstance(setting.method, TrainingView) else student

        def step(view: Features = view, broken: dict[str, Features] = broken) -> None:
            terms = cast(Method, setting.method).terms(view, broken, setting.batch, 1.0)  # also of an initial phase
            meter = LossMeter()
            meter.add({key: term.detach() for key, term in terms.items()})
            meter.check_finite(1, "nothing saved", broken)

        with pytest.raises(
            UserError, match=f"outputs of teacher '{role}' are not finite|has a teacher diverged"
        ) as caught:
            step()
        assert "\n" not in str(caught.value)


@torch.no_grad()
def spoil(network: nn.Module, value: float) -> None:
    first = next(network.parameters())
    first[(0,) * first.dim()] = value


def spoil_after(monkeypatch: pytest.MonkeyPatch, at: int, value: float) -> None:
    """Weights that are finite until this step, whose loss is finite too."""
    original = loop.Trainer._train_step

    def step(self: loop.Trainer, batch: Any) -> float:
        rate = original(self, batch)
        if self.done == at:
            spoil(self.student, value)
        return rate

    monkeypatch.setattr(loop.Trainer, "_train_step", step)


@pytest.mark.parametrize("factor", [1e18, 1e30, math.inf, math.nan])
@pytest.mark.parametrize(("source", "select"), BASES)
def test_directions_of_features_beyond_bounds(source: Source, select: Select, factor: float) -> None:
    """Their squares are no numbers: one line from all three places that directions come from."""
    torch.manual_seed(0)
    asd = ASDLoss(6, 9, subspace=source, select=select)
    student, final, early = torch.randn(B, 6), factor * torch.randn(B, 9), factor * torch.randn(B, 9)

    def terms() -> dict[str, Tensor]:
        asd.prepare([(final, early)])
        result: dict[str, Tensor] = asd(student, final, early, epoch=100.0)
        return result

    if factor == 1e18 or (factor == 1e30 and source == "batch"):  # of one batch they are taken in float64
        assert all(value.isfinite() for value in terms().values())
    else:
        with pytest.raises(UserError, match="not finite, or too large to be squared"):
            terms()


def test_the_early_state_may_be_the_final_one(recipe: Recipe, session: Session) -> None:
    """Nothing was left behind, so nothing is suppressed, and a line says so; extrapolating from it changes nothing."""
    same = with_settings(recipe, ["teacher.early=100%"])
    with pytest.warns(UserWarning, match="nothing to suppress: are the two checkpoints the same"):
        run = distill(same, session, method="asd", seed=1, suite="same")
    folder = RunDir(run.folder(session.runs))
    rows = [row["terms"] for row in folder.history() if "terms" in row]
    assert all(row["ss"] == 0 for row in rows)
    assert any(row["tc"] > 0 for row in rows)
    assert all(value.isfinite().all() for value in load_file(folder.student).values())


def test_run_with_a_diverged_teacher_saves_nothing(recipe: Recipe, session: Session, tmp_path: Path) -> None:
    """A teacher from elsewhere that diverged: its file holds an infinity. One with NaN is refused as it is read."""
    network = build("cnn-4-16", 10)
    state = {key.removeprefix("body."): value for key, value in network.state_dict().items()}
    torch.save(state, tmp_path / "early.pt")
    spoil(network, math.inf)
    torch.save(state, tmp_path / "final.pt")
    session.execution = Execution(accelerator="cpu", threads=1, save_every=0)
    inputs = with_settings(recipe, [f"teacher.final={tmp_path / 'final.pt'}", f"teacher.early={tmp_path / 'early.pt'}"])
    for method, text in (("kd", "outputs of teacher 'final' are not finite"), ("asd", "has a teacher diverged")):
        with pytest.raises(UserError, match=text):
            distill(inputs, session, method=method, seed=1, suite="s")
        folder = RunDir(session.runs / "s" / f"{method}-s1")
        assert not folder.student.exists()
        assert not folder.checkpoints


@pytest.mark.parametrize(
    ("at", "value"), [(3, math.inf), (8, math.nan), (16, math.nan)]
)  # in an epoch, at its end, at the end
def test_weights_that_are_not_finite_are_not_saved(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch, at: int, value: float
) -> None:
    """The loss of a step is finite, what the step made of the weights is not: known before they are written."""
    session.execution = Execution(accelerator="cpu", threads=1, save_every=0)
    spoil_after(monkeypatch, at, value)
    text = f"weights are not finite after step {at}: .*; the state after step {at - 1} is saved; lower optim.lr"
    with pytest.raises(UserError, match=text):
        distill(recipe, session, method="ce", seed=1, suite="s")
    folder = RunDir(session.runs / "s" / "ce-s1")
    assert not folder.student.exists()
    state = Checkpoints(folder, RunDir(folder.path).read()[0].hash).load()
    assert state is not None
    assert state["step"] == at - 1
    assert all(value.isfinite().all() for value in state["model"].values())
    monkeypatch.undo()
    distill(recipe, session, method="ce", seed=1, suite="s")  # goes on from there
    assert all(saved.isfinite().all() for saved in load_file(folder.student).values())


def test_teacher_snapshots_are_checked_before_saving(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_after(monkeypatch, 1, math.nan)
    with pytest.raises(UserError, match="weights are not finite after step 1"):
        teach(recipe, session)
    saved = [load_file(path) for path in session.runs.rglob("*.safetensors")]
    assert all(value.isfinite().all() for state in saved for value in state.values())


def test_infinities_on_purpose_may_stay_and_running_statistics_may_not() -> None:
    norm, mask = nn.BatchNorm1d(2), torch.tensor([0.0, -math.inf])
    network = nn.Sequential(nn.Linear(2, 2), norm)
    network.register_buffer("mask", mask)
    check_finite_weights(network, 1, "nothing saved")
    mask[0] = math.nan
    with pytest.raises(UserError, match="mask"):
        check_finite_weights(network, 1, "nothing saved")
    mask[0] = 0.0
    assert norm.running_var is not None
    norm.running_var[0] = math.inf  # never leaves an average again
    with pytest.raises(UserError, match=r"1\.running_var"):
        check_finite_weights(network, 1, "nothing saved")
