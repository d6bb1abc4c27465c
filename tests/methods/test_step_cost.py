"""What a step may not do, for every method: wait for the device, or go through the samples one by one.

There need be no accelerator: a mode sees every operation, and what would make the host wait is known by name. Beside
it there is the device "meta", which computes nothing, so that whoever reads from it fails.
"""
# B batch, C classes, D embedding

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from antishortcut.methods import METHODS, method_options, method_roles
from antishortcut.methods.fsp import FSP
from antishortcut.tasks import Classification
from antishortcut.training.loggers import LossMeter
from antishortcut.training.step import DistillationStep
from antishortcut.types import Batch, Features, Method, Shape, Sizes, TaskSchedule
from tests.methods.test_contract import EQUAL_CHANNELS, trained_shape

CLASSES, EXAMPLES, PAST_WARMUP = 5, 200, 1000.0
STUDENT = Shape(48, ((4, 8, 8), (4, 8, 8), (8, 4, 4), (16, 4, 4)))  # wider than the largest batch: the same branches
TEACHER = Shape(64, ((4, 8, 8), (8, 8, 8), (12, 4, 4), (24, 4, 4)))

# their result, or its size, must be known to the host before it can go on
READS = {
    "_local_scalar_dense": "item(), float(), int(), bool() or tolist() of a tensor",
    "nonzero": "nonzero(), whose size depends on the numbers",
    "masked_select": "a selection whose size depends on the numbers",
    "bincount": "bincount(), whose size depends on the numbers",
    "_unique2": "unique(), whose size depends on the numbers",
    "unique_dim": "unique(), whose size depends on the numbers",
    "unique_consecutive": "unique(), whose size depends on the numbers",
    "equal": "torch.equal()",
    "_linalg_check_errors": "a decomposition that asks whether it succeeded",
    "_linalg_svd": "torch.linalg.svd",
    "_linalg_eigh": "torch.linalg.eigh",
}
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
# torch asks its own decomposition whether it converged, and there is no other
ALLOWED = {
    "asd": Counter({READS["_linalg_eigh"]: 1}),  # once a step, on the B × B side
    "kdsvd": Counter({READS["_linalg_svd"]: 6}),  # of three stages, the student's and the teacher's
}


class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operation inside, counted, and what in it would make the host wait."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        self.calls[name] += 1
        if name in READS:
            self.waits[READS[name]] += 1
        if name in INDEXING and any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]):
            self.waits["a mask as an index: the same as nonzero()"] += 1
        out = func(*args, **(kwargs or {}))
        if name in ("_to_copy", "copy_"):
            inputs = args[1] if name == "copy_" else args[0]
            if inputs.device != out.device and not (kwargs or {}).get("non_blocking"):
                self.waits[f"a copy from {inputs.device} to {out.device}"] += 1
        return out


def features(shape: Shape, rows: int, requires_grad: bool = False) -> Features:
    built = [
        torch.randn(rows, *size, requires_grad=requires_grad)
        for size in ((CLASSES,), (shape.embedding,), *shape.stages)
    ]
    return Features(built[0], built[1], tuple(built[2:]), preact=tuple(built[2:]))


def sizes_of(roles: Sequence[str], teacher: Shape = TEACHER) -> Sizes:
    number = torch.arange(EXAMPLES)
    shapes = dict.fromkeys(roles, teacher)
    return Sizes(CLASSES, EXAMPLES, STUDENT, shapes, number % CLASSES, number % (2 * CLASSES))


def method_of(name: str, **options: Any) -> nn.Module:
    settings = method_options(name, options)
    roles = method_roles(name, settings)
    return METHODS[name](sizes_of(roles, STUDENT if name in EQUAL_CHANNELS else TEACHER), **settings)


class Given(nn.Module):
    """A student whose features are known beforehand."""

    def __init__(self, outputs: Features) -> None:
        super().__init__()
        self.seen = outputs

    def forward(self, image: Tensor) -> Features:
        return self.seen


def watched(method: nn.Module, rows: int, steps: int = 1, device: str = "cpu") -> Watching:
    """The operations of the last of so many steps: from features to their gradients, and to the sums of the log."""
    torch.manual_seed(rows)
    meter, watching, shape = LossMeter(), Watching(), trained_shape(method, sizes_of(cast(Method, method).roles))
    for _ in range(steps):
        with torch.device(device):
            index = torch.randperm(EXAMPLES)[:rows]
            batch = Batch(torch.zeros(rows, 3, 1, 1), index % CLASSES, index)
            student = Given(features(shape, rows, requires_grad=True))
            teacher = STUDENT if isinstance(method, FSP) else TEACHER
            teachers = {role: features(teacher, rows) for role in cast(Method, method).roles}
        step = DistillationStep(student, method, Classification())
        watching = Watching()
        with watching:
            terms = step(batch, teachers, 0.0 if isinstance(method, TaskSchedule) else PAST_WARMUP)
            torch.autograd.backward(torch.stack(list(terms.values())).sum())
            meter.add(terms)
    return watching


@pytest.mark.parametrize("name", METHODS)
def test_only_the_first_step_synchronises(name: str) -> None:
    """What is found out in the first, like a constant or how many directions there are, is then known."""
    result = watched(method_of(name), rows=16, steps=2)
    assert result.waits == ALLOWED.get(name, Counter())
    assert result.calls.total() > 20  # it has seen something


@pytest.mark.parametrize("select", ["displaced", "abandoned"])
@pytest.mark.parametrize("subspace", ["running", "dataset"])
def test_stored_directions_do_not_synchronise_between_refreshes(subspace: str, select: str) -> None:
    method = method_of("asd", subspace=subspace, select=select, refresh=10)
    if subspace == "dataset":
        outputs = {role: features(TEACHER, 100) for role in ("final", "early")}
        cast(Any, method).prepare([outputs])
    other = method_of("asd", subspace=subspace, select=select, refresh=10)
    other.load_state_dict(method.state_dict())
    for basis in (method, other):
        assert not watched(basis, rows=16, steps=2).waits
    if subspace == "running":
        assert READS["_linalg_eigh"] in watched(method, rows=16, steps=9).waits  # the eleventh decomposes again


@pytest.mark.parametrize("name", METHODS)
def test_as_many_operations_for_few_samples_as_for_many(name: str) -> None:
    """A loop over samples would have four times as many."""
    method = method_of(name)
    watched(method, rows=8)  # what only the first step does
    few, many = watched(method, rows=8).calls, watched(method, rows=32).calls
    assert few == many


@pytest.mark.parametrize(
    ("culprit", "said"),
    [
        (lambda rows: rows.sum() if rows.sum() > 0 else -rows.sum(), "item()"),
        (lambda rows: rows * float(rows.max()), "item()"),
        (lambda rows: rows[rows > 0], "mask"),
        (lambda rows: rows[(rows[:, 0] > 0).nonzero().flatten()], "nonzero()"),
        (lambda rows: rows * torch.linalg.cholesky(torch.eye(rows.shape[1])).sum(), "succeeded"),
        (lambda rows: rows * torch.linalg.svdvals(rows.detach()).sum(), "svd"),
        (lambda rows: rows.to("meta"), "copy from cpu to meta"),
    ],
)
def test_the_watch_sees_what_waits(culprit: Callable[[Tensor], Tensor], said: str) -> None:
    with Watching() as watching:
        culprit(torch.randn(4, 3))
    assert any(said in reason for reason in watching.waits), watching.calls
