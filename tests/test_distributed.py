"""Two real processes equal one: rows, loss terms, gradients, queue and directions."""
# W processes, B rows in all

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from antishortcut.distributed import all_gather_int, gather, rank_local_buffers, world
from antishortcut.methods.asd import ASDLoss
from antishortcut.teachers.snapshots import Snapshots, load_state
from tests.processes import WORLD, in_two
from tests.test_subspace import close, normal, span

SHARES = [(4, 3), (3, 4), (5, 2)]  # rows of each process in three steps
CASES: dict[str, dict[str, Any]] = {
    "batch": {"subspace": "batch"},
    "running": {"subspace": "running", "refresh": 1, "momentum": 0.5},
    "equal widths": {"student_dim": 8},
}
Result = dict[str, Any]


def share(rows: Tensor, step: int, rank: int | None) -> Tensor:
    """The rows of one process, or all of them if there is only one."""
    if rank is None:
        return rows
    start = sum(SHARES[step][:rank])
    return rows[start : start + SHARES[step][rank]]


def inputs(step: int, rank: int | None) -> list[Tensor]:
    """Images and the final and early features of one process."""
    rows = [normal(7, width, seed=10 * step + width, dtype=torch.float32) for width in (6, 8, 9)]
    return [share(x, step, rank) for x in (rows[0], rows[1], rows[2][:, :8])]


def train(case: str, rank: int | None) -> Result:
    """Three steps of an encoder and the loss, gradients averaged over processes as DDP does."""
    torch.manual_seed(0)
    options = {"student_dim": 5, "directions": 2, "queue": 10, "warmup": 0.0} | CASES[case]
    loss = ASDLoss(teacher_dim=8, sync=True, **options)
    encoder = nn.Linear(6, options["student_dim"])
    parameters = [*encoder.parameters(), *loss.parameters()]
    result: Result = {"terms": [], "gradients": []}
    for step in range(len(SHARES)):
        image, final, early = inputs(step, rank)
        index = share(torch.arange(7) + 4 * step, step, rank)  # some samples come again
        terms = loss(encoder(image), final, early, epoch=0, index=index)
        gradients = list(torch.autograd.grad(terms["tc"] + terms["ss"], parameters))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if rank is not None:
                dist.all_reduce(gradient)
                gradient /= WORLD
            parameter.data -= 0.1 * gradient
        result["terms"].append({name: term.item() for name, term in terms.items()})
        result["gradients"].append(gradients)
    assert loss.basis is not None
    result["state"] = {name: value.clone() for name, value in loss.state_dict().items()}
    result["basis"] = loss.basis.eval()(normal(7, 8), normal(7, 8, seed=1))
    return result


def own_loop(rank: int | None, folder: Path) -> Result:
    """Three steps of a loop with DDP around the encoder only, and the loss beside it."""
    torch.manual_seed(0)
    loss = ASDLoss(5, 8, directions=2, queue=10, warmup=0.0, sync=True)
    encoder = nn.Linear(6, 5)
    model = encoder if rank is None else DistributedDataParallel(encoder)
    optimizer = torch.optim.SGD([*encoder.parameters(), *loss.parameters()], lr=0.1)
    snapshots = Snapshots(folder, total_steps=len(SHARES), keep=())
    for step in range(len(SHARES)):
        image, final, early = inputs(step, rank)
        terms = loss(model(image), final, early, epoch=0)
        optimizer.zero_grad()
        (terms["tc"] + terms["ss"]).backward()
        optimizer.step()
        saved = snapshots(model, step + 1)
    state = {**encoder.state_dict(), **loss.state_dict()}
    return {"state": {name: value.clone() for name, value in state.items()}, "saved": saved is not None}


def gathered(rank: int) -> Result:
    """What `gather` returns and its gradient, for 3 and 1 rows, 2 and 0, and integers."""
    rows = normal(3, 2, seed=rank)[: (3, 1)[rank]].requires_grad_()
    joined = gather(rows)
    weight = torch.arange(8.0, dtype=torch.float64).view(4, 2)
    (gradient,) = torch.autograd.grad(((rank + 1) * weight * joined**2).sum(), rows)  # every process its own loss
    none = gather(normal(2, 3, 2, seed=rank)[: (2, 0)[rank]])
    numbers = gather(torch.arange(2) + 10 * rank)
    return {"world": world(), "ints": all_gather_int(7 + rank), "joined": joined.detach(), "gradient": gradient,
            "none": none, "numbers": numbers}  # fmt: skip


def with_local_buffers(rank: int) -> nn.Module:
    """Equal in both processes but for a mean, a counter, a mask and the sign of a zero."""
    module = nn.Linear(2, 2)
    nn.init.constant_(module.weight, float(rank))  # a weight that differs would be DDP's fault
    own = {"mean": normal(4, seed=rank), "count": torch.tensor(5 + rank), "mask": torch.tensor([True, rank == 0])}
    half = torch.tensor([0.0, -0.0 if rank else 0.0]).bfloat16()
    for name, value in ({"same": normal(3, 2), "none": torch.empty(0), "rounded": half} | own).items():
        module.register_buffer(name, value)
    module.register_buffer("passing", torch.tensor(rank), persistent=False)
    return module


def work(rank: int, folder: Path) -> None:
    result = {"gather": gathered(rank)} | {case: train(case, rank) for case in CASES}
    result["own loop"] = own_loop(rank, folder / "states")
    result["buffers"] = {"local": rank_local_buffers(with_local_buffers(rank))}
    result["folder"] = {"path": str(folder)}
    torch.save(result, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """The results of two processes, by rank. They are started once."""
    folder = tmp_path_factory.mktemp("ranks")
    in_two(work, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


def assert_identical(ranks: list[Result], case: str) -> None:
    first, second = (rank[case]["state"] for rank in ranks)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_single_process_gathers_its_own_rows() -> None:
    rows = normal(3, 2)
    assert world() == 1
    assert gather(rows) is rows
    assert all_gather_int(3) == [3]


def test_uneven_rows_are_gathered_in_rank_order(ranks: list[Result]) -> None:
    for result in (rank["gather"] for rank in ranks):
        assert result["world"] == 2
        assert result["ints"] == [7, 8]
        assert torch.equal(result["joined"], torch.cat([normal(3, 2), normal(3, 2, seed=1)[:1]]))
        assert torch.equal(result["none"], normal(2, 3, 2))
        assert result["numbers"].tolist() == [0, 1, 10, 11]


def test_rank_zero_gets_buffers_that_differ(ranks: list[Result]) -> None:
    (other,), none = (rank["buffers"]["local"] for rank in ranks)
    assert none == []
    assert other.keys() == {"mean", "count", "mask", "rounded"}
    assert all(torch.equal(value, with_local_buffers(1).state_dict()[name]) for name, value in other.items())
    assert rank_local_buffers(with_local_buffers(0)) == []


def test_gradients_of_all_processes_are_summed(ranks: list[Result]) -> None:
    joined = ranks[0]["gather"]["joined"]
    expected = (1 + 2) * 2 * torch.arange(8.0, dtype=torch.float64).view(4, 2) * joined
    close(torch.cat([rank["gather"]["gradient"] for rank in ranks]), expected)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one_with_the_whole_batch(ranks: list[Result], case: str) -> None:
    single = train(case, None)
    assert single["state"]["queue_index"].tolist() == [8, 9, 10, *range(8, 15)]  # oldest first
    for result in (rank[case] for rank in ranks):
        for own, reference in zip(result["terms"], single["terms"], strict=True):
            assert own == pytest.approx(reference, rel=1e-5, abs=1e-6)
        for own, reference in zip(result["gradients"], single["gradients"], strict=True):
            for gradient, expected in zip(own, reference, strict=True):
                close(gradient, expected, 1e-5)
        for name, value in single["state"].items():
            if name != "basis.vectors":  # its columns are free in sign
                close(result["state"][name], value, 1e-6 if name == "queue" else 1e-5)
        close(span(result["basis"]), span(single["basis"]), 1e-5)
    assert_identical(ranks, case)


def test_a_custom_loop_needs_ddp_around_the_student_only(ranks: list[Result], tmp_path: Path) -> None:
    single = own_loop(None, tmp_path)
    for result in (rank["own loop"]["state"] for rank in ranks):
        for name, value in single["state"].items():
            close(result[name], value, 1e-5)
    assert_identical(ranks, "own loop")


def test_rank_zero_saves_snapshots(ranks: list[Result]) -> None:
    assert [rank["own loop"]["saved"] for rank in ranks] == [True, False]
    state = load_state(Path(ranks[0]["folder"]["path"]) / "states")
    assert {name: value.tolist() for name, value in state.items()} == {
        name: ranks[1]["own loop"]["state"][name].tolist() for name in ("weight", "bias")
    }
