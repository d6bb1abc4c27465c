"""Every method of the table on two real processes and on one: the same terms and gradients, given the same features."""
# B rows in all, half of them in each process

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from antishortcut.methods import METHODS
from antishortcut.training.step import gather_samples
from antishortcut.types import Batch, Features
from tests.methods.test_contract import PAST_WARMUP, Setting, odd_features, rebuilt, tensors_of
from tests.processes import in_two

ROWS = 8
INITIAL = ("ab", "fsp", "ft")  # methods with an initial phase
Found = dict[str, Tensor]


def cut(rows: Tensor, rank: int | None) -> Tensor:
    half = ROWS // 2
    return (rows if rank is None else rows[rank * half : (rank + 1) * half]).detach().clone()


def share(outputs: Features, rank: int | None, requires_grad: bool = False) -> Features:
    return rebuilt([cut(rows, rank).requires_grad_(requires_grad) for rows in tensors_of(outputs)])


def examine(name: str, rank: int | None, epoch: float = PAST_WARMUP) -> Found:
    """Terms and gradients of one method, averaged over processes as DDP does."""
    setting = Setting(name, "other-stages", ROWS)
    setting.method.train(name != "byot")  # its heads see local maps, whose batch statistics differ
    student = share(odd_features(setting.student, ROWS), rank, requires_grad=True)
    teachers = {role: share(odd_features(network, ROWS), rank) for role, network in setting.teachers.items()}
    whole = setting.batch
    batch = Batch(cut(whole.image, rank), cut(whole.label, rank), cut(whole.index, rank))
    torch.manual_seed(5)  # the noise of a step is a function of (seed, step), the same everywhere
    terms = setting.method.terms(*gather_samples(student, teachers, batch), epoch)  # type: ignore[operator]
    result: Found = {f"term {key}": value.detach().clone() for key, value in terms.items()}
    heads = dict(setting.method.named_parameters())
    if terms:
        torch.autograd.backward(torch.stack(list(terms.values())).sum())
    result |= {f"head {key}": value.grad.clone() for key, value in heads.items() if value.grad is not None}
    if rank is not None:
        for value in result.values():
            dist.all_reduce(value)
            value /= 2
    for place, rows in enumerate(tensors_of(student)):
        if rows.grad is not None:  # rows here: what reaches this process, which DDP divides by the number of processes
            pieces = [rows.grad / 2, rows.grad / 2] if rank is not None else [rows.grad]
            if rank is not None:
                dist.all_gather(pieces, rows.grad / 2)
            result[f"rows {place}"] = torch.cat(pieces)
    return result


def work(rank: int, folder: Path) -> None:
    result = {name: examine(name, rank) for name in METHODS}
    result |= {f"{name} at first": examine(name, rank, 0.0) for name in INITIAL}
    if rank == 0:
        torch.save(result, folder / "found.pt")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    folder: Path = tmp_path_factory.mktemp("two")
    in_two(work, folder)
    result: dict[str, Found] = torch.load(folder / "found.pt", weights_only=True)
    return result


@pytest.mark.parametrize(
    ("name", "key", "epoch"),
    [*((name, name, PAST_WARMUP) for name in METHODS), *((name, f"{name} at first", 0.0) for name in INITIAL)],
)
def test_two_processes_agree_with_one(name: str, key: str, epoch: float, both: dict[str, Found]) -> None:
    single, combined = examine(name, None, epoch), both[key]
    assert single.keys() == combined.keys()
    for part, value in single.items():
        assert torch.allclose(value, combined[part], rtol=1e-4, atol=1e-5), part
