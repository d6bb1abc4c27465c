"""What a loop of one's own may hand to ASDLoss by mistake, and what it is told."""
# B batch, D teacher features, d student features

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from antishortcut.methods.asd import ASDLoss
from tests.processes import WORLD, in_two
from tests.test_subspace import normal

S, T, INDEX = torch.randn(4, 8), torch.randn(4, 12), torch.arange(4)  # (B, d), (B, D), (B,)
META = torch.device("meta")  # another device, which every machine has
WHOLE = "it must be a tensor of whole numbers, one a row"
ONE_DEVICE = "they must be on one device"


def call(loss: ASDLoss, **given: Any) -> dict[str, Tensor]:
    terms: dict[str, Tensor] = loss(
        **({"student": S, "final": T, "early": T + 1, "epoch": 1.0, "index": INDEX} | given)
    )
    return terms


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epoch": -5}, "epoch is -5; it must be 0 or more"),
        ({"epoch": -1e-9}, "epoch is -1e-09; it must be 0 or more"),
        ({"epoch": math.nan}, "epoch is nan; it must be 0 or more"),
        ({"epoch": np.float32(-1)}, r"epoch is -1\.0; it must be 0 or more"),
        ({"early": T[:1]}, r"early has shape (1, 12), student 4 rows; it must have as many"),
        ({"final": T[:1], "early": T[:1]}, r"final has shape (1, 12), student 4 rows; it must have as many"),
        ({"student": S[:1]}, r"final has shape (4, 12), student 1 rows; it must have as many"),
        ({"student": torch.zeros(4, 9)}, r"student has shape (4, 9); it must be (rows, 8), student_dim wide"),
        ({"final": S}, r"final has shape (4, 8); it must be (rows, 12), teacher_dim wide"),
        ({"early": T[:, :1]}, r"early has shape (4, 1); it must be (rows, 12), teacher_dim wide"),
        ({"student": S[0]}, r"student has shape (8,); it must be (rows, 8), student_dim wide"),
        ({"final": T[:, :, None, None]}, r"final has shape (4, 12, 1, 1); it must be (rows, 12), .*: pool maps to one"),
        ({"student": S[:, None]}, r"student has shape (4, 1, 8); it must be (rows, 8), .*: pool maps to one"),
        ({"student": S[:0], "final": T[:0], "early": T[:0], "index": None}, "student, final and early have 0 rows"),
        ({"student": S[:0], "final": T[:0], "early": T[:0], "index": INDEX[:0]}, "student, final and early have 0"),
        ({"early": None}, "early is None, but temporal contrast or suppression needs it"),
        ({"index": INDEX[:3]}, rf"index has shape (3,), student 4 rows; {WHOLE}"),
        ({"index": INDEX[:1]}, rf"index has shape (1,), student 4 rows; {WHOLE}"),
        ({"index": INDEX[:, None]}, rf"index has shape (4, 1), student 4 rows; {WHOLE}"),
        ({"student": S.to(META)}, f"final is on cpu, student on meta; {ONE_DEVICE}"),
        ({"early": T.to(META)}, f"early is on meta, student on cpu; {ONE_DEVICE}"),
        ({"index": INDEX.to(META)}, f"index is on meta, student on cpu; {ONE_DEVICE}"),
        (
            {"student": S.to(META), "final": T.to(META), "early": T.to(META), "index": None},
            r"student is on meta, the loss on cpu; move it: loss.to('meta')",
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(given: dict[str, Any], said: str) -> None:
    loss = ASDLoss(8, 12, queue=6)
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    with pytest.raises(ValueError, match="^" + said.replace("(", r"\(").replace(")", r"\)")) as told:
        call(loss, **given)
    assert "\n" not in str(told.value)
    assert all(torch.equal(before[name], value) for name, value in loss.state_dict().items())  # and nothing is kept


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"student": S.numpy()}, r"student is of type ndarray; it must be a tensor of features \(rows, 8\)"),
        ({"final": T.numpy()}, r"final is of type ndarray; it must be a tensor of features \(rows, 12\)"),
        ({"final": None}, "final is of type NoneType; it must be a tensor"),
        ({"early": T.tolist()}, "early is of type list; it must be a tensor"),
        ({"index": [0, 1, 2, 3]}, f"index is of type list; {WHOLE}"),
        ({"index": INDEX.numpy()}, f"index is of type ndarray; {WHOLE}"),
        ({"index": INDEX.float()}, f"index is of torch.float32; {WHOLE}"),
        ({"index": INDEX > 1}, f"index is of torch.bool; {WHOLE}"),
        ({"epoch": None}, "epoch is of type NoneType; it must be a number"),
        ({"epoch": "3"}, "epoch is of type str; it must be a number"),
    ],
)
def test_other_kinds_of_things_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=f"^{said}"):
        call(ASDLoss(8, 12, queue=6), **given)


def test_widths_are_those_it_was_made_for_without_a_projector_or_queue_too() -> None:
    rows = torch.randn(4, 9)
    with pytest.raises(ValueError, match=r"student has shape \(4, 9\); it must be \(rows, 8\)"):
        ASDLoss(8, 8, queue=0)(rows, rows, rows + 1, epoch=1)


@pytest.mark.parametrize("epoch", [0, 0.0, 3, math.inf, np.float32(2), np.int64(2), torch.tensor(2.5)])
def test_epochs_of_any_kind_of_number_are_taken(epoch: Any) -> None:
    terms = call(ASDLoss(8, 12, queue=6), epoch=epoch)
    assert all(term >= 0 for term in terms.values())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_numbers_of_samples_may_be_any_whole_ones(dtype: torch.dtype) -> None:
    loss = ASDLoss(8, 12, queue=6)
    call(loss, index=INDEX.to(dtype))
    assert loss.queue_index.tolist() == [0, 1, 2, 3, -2, -2]


def test_an_early_state_that_nothing_needs_is_not_looked_at() -> None:
    first, second = (ASDLoss(8, 8, queue=6, ss=0.0, temporal=False) for _ in range(2))
    for unused in (None, torch.zeros(4, 3)):
        assert torch.equal(call(first, final=S, early=unused)["tc"], call(second, final=S, early=S)["tc"])


def test_a_loss_that_keeps_nothing_is_on_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal widths and no queue: it works where the features are, whether it was moved there or not."""
    rows = S.to(META)
    given = {"student": rows, "final": rows, "early": rows, "index": INDEX.to(META)}
    monkeypatch.setattr(torch, "autocast", lambda *args, **how: torch.no_grad())  # there is none for this device
    assert call(ASDLoss(8, 8, queue=0, ss=0.0), **given)["tc"].device == META
    for keeps in ({"queue": 6, "ss": 0.0}, {"queue": 0, "subspace": "running"}):
        with pytest.raises(ValueError, match=r"student is on meta, the loss on cpu; move it: loss\.to\('meta'\)"):
            call(ASDLoss(8, 8, **keeps), **given)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"student_dim": 0}, "student_dim is 0; it must be a whole number, 1 or more"),
        ({"student_dim": 8.0}, r"student_dim is 8\.0; it must be a whole number, 1 or more"),
        ({"student_dim": True}, "student_dim is True; it must be a whole number, 1 or more"),
        ({"student_dim": None}, "student_dim is None; it must be a whole number, 1 or more"),
        ({"teacher_dim": -1}, "teacher_dim is -1; it must be a whole number, 1 or more"),
        ({"teacher_dim": "12"}, "teacher_dim is '12'; it must be a whole number, 1 or more"),
        ({"queue": 2.5}, r"queue is 2\.5; it must be a whole number, 0 or more"),
        ({"queue": -1}, "queue is -1; it must be a whole number, 0 or more"),
        ({"queue": math.nan}, "queue is nan; it must be a whole number, 0 or more"),
        ({"examples": 50.0}, r"examples is 50\.0; it must be a whole number, 0 or more"),
        ({"examples": -1}, "examples is -1; it must be a whole number, 0 or more"),
        ({"directions": 0}, "directions is 0; it must be a whole number, 1 or more"),
        ({"directions": 2.5}, r"directions is 2\.5; it must be a whole number, 1 or more"),
        ({"refresh": 1.5}, r"refresh is 1\.5; it must be a whole number, 1 or more"),
        ({"temperature": 0.0}, r"temperature is 0\.0; it must be above 0, and finite"),
        ({"temperature": math.nan}, "temperature is nan; it must be above 0, and finite"),
        ({"temperature": math.inf}, "temperature is inf; it must be above 0, and finite"),
        ({"margin": -0.1}, r"margin is -0\.1; it must be 0 or more"),
        ({"warmup": -1.0}, r"warmup is -1\.0; it must be 0 or more"),
        ({"warmup": math.nan}, "warmup is nan; it must be 0 or more"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        ASDLoss(**({"student_dim": 8, "teacher_dim": 12} | wrong))


def test_whole_numbers_of_numpy_are_sizes() -> None:
    eight, many = np.int64(8), np.int32(12)
    loss = ASDLoss(eight, many, queue=np.int64(6), directions=np.int64(2), refresh=np.int64(3), examples=np.int64(40))  # type: ignore[arg-type]
    assert torch.isfinite(call(loss)["tc"])
    assert loss.queue.shape == (6, 12)


def test_it_compiles_into_one_graph() -> None:
    plain, inside = (ASDLoss(8, 8, queue=6, directions=2) for _ in range(2))
    for loss in (plain, inside):
        call(loss, final=S, early=S + T[:, :8])  # what only the first step does
    compiled = torch.compile(inside, backend="eager", fullgraph=True, dynamic=True)
    for rows, epoch in ((4, 1.0), (3, 2.5), (2, 3)):
        given = {"student": S[:rows], "final": S[:rows] + 1, "early": T[:rows, :8], "index": INDEX[:rows]}
        terms, expected = compiled(**given, epoch=epoch), plain(**given, epoch=epoch)
        assert all(torch.allclose(terms[name], expected[name], atol=1e-6) for name in ("tc", "ss"))
    torch.compiler.reset()


# --- several processes -------------------------------------------------------------------------------------------


def uneven(rank: int, folder: Path) -> None:
    """One process has every row; then neither has any."""
    student, final, early, index = batch()
    mine = slice(0, len(index) if rank == 0 else 0)
    loss = ASDLoss(8, 8, queue=6, sync=True)
    terms = loss(student[mine].requires_grad_(), final[mine], early[mine], epoch=10, index=index[mine])
    sum(terms.values()).backward()
    with pytest.raises(ValueError, match="student, final and early have 0 rows"):
        loss(student[:0], final[:0], early[:0], epoch=10, index=index[:0])
    torch.save([terms["tc"].item(), terms["ss"].item(), loss.queue], folder / f"{rank}.pt")


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = [normal(5, 8, seed=seed, dtype=torch.float32) for seed in range(3)]
    return rows[0], rows[1], rows[2], torch.arange(5)


def test_a_process_without_rows_works_with_those_of_the_others(tmp_path: Path) -> None:
    in_two(uneven, tmp_path)
    student, final, early, index = batch()
    alone = ASDLoss(8, 8, queue=6)
    terms = alone(student, final, early, epoch=10, index=index)
    for rank in range(WORLD):
        tc, ss, queue = torch.load(tmp_path / f"{rank}.pt")
        assert (tc, ss) == pytest.approx((terms["tc"].item(), terms["ss"].item()), rel=1e-5)
        assert torch.equal(queue, alone.queue)
