"""Arguments that cannot work: every loss and method says which one, and what it must be, in one line."""
# B batch, D teacher features, d student features

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from antishortcut.errors import UserError
from antishortcut.methods import METHODS, build_method, method_options
from antishortcut.methods.asd import ASDLoss
from antishortcut.methods.contrast import contrast_loss
from antishortcut.methods.kd import kd_loss
from antishortcut.types import Shape, Sizes
from tests.processes import WORLD, in_two
from tests.test_subspace import normal

S, T, INDEX, LOGITS = torch.randn(4, 8), torch.randn(4, 12), torch.arange(4), torch.zeros(4, 5)
META = torch.device("meta")  # another device, which every machine has
WHOLE = "it must be a tensor of whole numbers, one a row"


def asd(**changed: Any) -> dict[str, Tensor]:
    loss = changed.pop("loss", None) or ASDLoss(8, 12, queue=6)
    terms: dict[str, Tensor] = loss(
        **({"student": S, "final": T, "early": T + 1, "epoch": 1.0, "index": INDEX} | changed)
    )
    return terms


def contrast(**changed: Any) -> Tensor:
    return contrast_loss(**({"student": LOGITS, "final": LOGITS, "early": LOGITS} | changed))


def kd(**changed: Any) -> Tensor:
    inputs: dict[str, Any] = {"student": LOGITS, "teacher": LOGITS, "temperature": 4.0}
    return kd_loss(**(inputs | changed))


@pytest.mark.parametrize(
    ("loss", "wrong", "message"),
    [
        (asd, {"epoch": -5}, "epoch is -5; it must be 0 or more"),
        (asd, {"epoch": None}, "epoch is of type NoneType; it must be a number"),
        (asd, {"early": T[:1]}, "early has shape (1, 12), student (4, 8); they must match"),
        (asd, {"student": torch.zeros(4, 9)}, "student has shape (4, 9); it must be features (rows, 8)"),
        (asd, {"final": S}, "final has shape (4, 8); it must be features (rows, 12)"),
        (asd, {"student": S[:, :, None, None]}, "student has shape (4, 8, 1, 1); it must be features (rows, 8): pool"),
        (asd, {"student": S[:0], "final": T[:0], "early": T[:0], "index": None}, "student, final and early have 0"),
        (asd, {"early": None}, "early is None, but temporal contrast or suppression needs it"),
        (asd, {"index": INDEX[:1]}, f"index has shape (1,), student 4 rows; {WHOLE}"),
        (asd, {"index": INDEX.tolist()}, f"index is of type list; {WHOLE}"),
        (asd, {"index": INDEX.float()}, f"index is of torch.float32; {WHOLE}"),
        (asd, {"index": INDEX.to(META)}, "index is on meta, student on cpu; they must be on one device"),
        (asd, {"early": T.to(META)}, "early is on meta, student on cpu; they must be on one device"),
        (asd, {"final": T.numpy()}, "final is of type ndarray; it must be a tensor of features (rows, 12)"),
        (contrast, {"early": torch.zeros(4, 1)}, "early has shape (4, 1), student (4, 5); they must match"),
        (contrast, {"temperature": -4.0}, "temperature is -4.0; it must be above 0, and finite"),
        (kd, {"teacher": LOGITS[:1]}, "teacher has shape (1, 5), student (4, 5); they must match"),
        (kd, {"student": LOGITS[0]}, "student has shape (5,); it must be logits (rows, classes)"),
        (kd, {"teacher": LOGITS.tolist()}, "teacher is of type list; it must be a tensor of logits (rows, classes)"),
        (kd, {"temperature": math.inf}, "temperature is inf; it must be above 0, and finite"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(loss: Any, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        loss(**wrong)
    assert str(error.value).startswith(message)


def test_a_refused_batch_leaves_the_loss_as_it_was() -> None:
    loss = ASDLoss(8, 12, queue=6)
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    with pytest.raises(ValueError, match="they must match"):
        asd(loss=loss, early=T[:1])
    assert all(torch.equal(before[name], value) for name, value in loss.state_dict().items())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"student_dim": 0}, "student_dim is 0; it must be a whole number, 1 or more"),
        ({"student_dim": True}, "student_dim is True; it must be a whole number, 1 or more"),
        ({"queue": 2.5}, "queue is 2.5; it must be a whole number, 0 or more"),
        ({"examples": -1}, "examples is -1; it must be a whole number, 0 or more"),
        ({"directions": 2.5}, "directions is 2.5; it must be a whole number, 1 or more"),
        ({"warmup": math.nan}, "warmup is nan; it must be 0 or more"),
    ],
)
def test_settings_of_the_loss_that_cannot_work_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        ASDLoss(**({"student_dim": 8, "teacher_dim": 12} | wrong))
    assert str(error.value) == message


MAPS, LABELS = ((4, 4, 4), (4, 4, 4), (4, 2, 2)), torch.arange(8) % 4


def sizes(
    student: int = 3,
    teacher: int = 3,
    channels: int = 4,
    labels: Tensor | None = LABELS,
    groups: Tensor | None = LABELS,
) -> Sizes:
    """Networks with so many stages, the teacher's of so many channels."""
    other = tuple((channels, *size) for _, *size in MAPS[:teacher])
    teachers = {role: Shape(8, other) for role in ("final", "early", "chosen")}  # type: ignore[arg-type]
    return Sizes(4, 8, Shape(8, MAPS[:student]), teachers, labels, groups)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("afdcd", {"groups": 1}, "groups is 1; it must be a whole number, 2 or more"),
        ("afdcd", {"mask_ratio": 1.0}, "mask_ratio is 1.0; it must be at least 0 and below 1"),
        ("asd", {"directions": 0}, "directions is 0; it must be a whole number, 1 or more"),
        ("asd", {"margin": -0.1}, "margin is -0.1; it must be 0 or more"),
        ("asd", {"kd_temperature": -1.0}, "kd_temperature is -1.0; it must be above 0, and finite"),
        ("asd", {"momentum": 1.0}, "momentum is 1.0; it must be at least 0 and below 1"),
        ("asd", {"subspace": "all"}, "unknown subspace 'all'; it must be 'batch' or 'running' or 'dataset'"),
        ("ab", {"init": -1.0}, "init is -1.0; it must be 0 or more"),
        ("ab", {"margin": -1.0}, "margin is -1.0; it must be 0 or more"),
        ("ft", {"rate": 1.5}, "rate is 1.5; it must be above 0 and at most 1"),
        ("asd", {"select": "forgotten"}, "unknown select 'forgotten'; it must be 'displaced' or 'abandoned'"),
        ("asd", {"select": "abandoned"}, "abandoned directions need full-rank moments: use subspace='running'"),
        ("byot", {"alpha": 1.5}, "alpha is 1.5; it must be between 0 and 1"),
        ("cc", {"width": 0}, "width is 0; it must be a whole number, 1 or more"),
        ("contrast", {"strength": -0.1}, "strength is -0.1; it must be 0 or more"),
        ("contrast", {"floor": 0.0}, "floor is 0.0; it must be below 0"),
        ("contrast", {"reference": "late"}, "unknown reference 'late'; it must be 'early' or 'uniform'"),
        ("contrast+tc", {"tc_temperature": 0.0}, "temperature is 0.0; it must be above 0, and finite"),
        ("crd", {"memory": "disk"}, "unknown memory 'disk'; it must be 'bank' or 'queue'"),
        ("crd", {"negatives": 0}, "negatives is 0; it must be a whole number, 1 or more"),
        ("dfr+kd", {"refits": -1}, "refits is -1; it must be a whole number, 0 or more"),
        ("dfr+kd", {"split": "test"}, "unknown split 'test'; it must be 'auto' or 'train' or 'val' or 'validation'"),
        ("groupdro+kd", {"adjustment": -1.0}, "adjustment is -1.0; it must be 0 or more"),
        ("groupdro+kd", {"step_size": -0.01}, "step_size is -0.01; it must be 0 or more"),
        ("jtt+kd", {"scheme": "x"}, "unknown scheme 'x'; it must be 'jtt' or 'lff'"),
        ("kd", {"temperature": 0.0}, "temperature is 0.0; it must be above 0, and finite"),
        ("reviewkd", {"width": 0}, "width is 0; it must be a whole number, 1 or more"),
        ("vid", {"variance": 0.0}, "variance is 0.0; it must be 0.001 or more, and finite"),
        ("features", {"temperature": 0.0}, "temperature is 0.0; it must be above 0, and finite"),
        ("simkd", {"reduction": 0}, "reduction is 0; it must be a whole number, 1 or more"),
        ("transplant", {"factor": 0.0}, "factor is 0.0; it must be above 0, and finite"),
        ("snapshot", {"states": " , "}, "states names no teacher state"),
    ],
)
def test_settings_of_a_recipe_that_cannot_work_are_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        build_method(name, sizes(), settings)
    assert str(error.value).startswith(f"method {name!r}: {message}")


@pytest.mark.parametrize(
    "name",
    [*("ab", "afdcd", "at", "at+kd", "fitnets", "fsp", "ft", "ofd"), *("kdsvd", "nst", "reviewkd", "sp", "ufd", "vid")],
)
def test_a_network_without_feature_maps_is_named(name: str) -> None:
    for networks, who in ((sizes(student=0), "student"), (sizes(teacher=0), "teacher")):
        with pytest.raises(UserError, match=rf"needs feature maps of both .* stages of .*\({who}\.stages = …\)"):
            build_method(name, networks, {})


@pytest.mark.parametrize(
    ("name", "networks", "settings", "message"),
    [
        ("afdcd", {"student": 2}, {"stage": 2}, "stage = 2 is not a stage of both networks: the student has 2 stages"),
        ("ufd", {}, {"stage": -4}, "stage = -4 is not a stage of both networks"),
        ("sp", {"teacher": 2}, {"stage": 2}, "stage = 2 is not a stage of both networks"),
        ("kdsvd", {"teacher": 2}, {}, "compares neighbouring stages, so both networks need three stages"),
        ("fitnets", {"teacher": 2}, {"hint": 2}, "hint = 2 is not a stage of both networks"),
        ("afdcd", {"channels": 23}, {}, "the 23 channels of the teacher's map cannot be cut into 2 to 16 equal"),
        ("byot", {"student": 1}, {}, "it needs a student with at least two stages"),
        ("crd", {"labels": torch.zeros(8, dtype=torch.int64)}, {}, "needs training images of at least two classes"),
        ("dfr+kd", {"groups": None}, {}, "needs groups: images with an attribute besides their class"),
        ("groupdro+kd", {"groups": None}, {}, "needs groups: images with an attribute besides their class"),
        *(
            (name, {"labels": None}, {}, "needs one label for every image, not for every pixel")
            for name in ("crd", "groupdro+kd", "byot", "mlld", "transplant")
        ),
    ],
)
def test_networks_and_data_that_do_not_fit_are_refused(
    name: str, networks: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as error:
        build_method(name, sizes(**networks), settings)
    assert str(error.value).startswith(f"method {name!r}: {message}")


def test_numbers_of_numpy_and_tensors_are_taken() -> None:
    loss = ASDLoss(np.int64(8), np.int32(12), queue=np.int64(6), directions=np.int64(2))  # type: ignore[arg-type]
    for epoch in (0, math.inf, np.float32(2), np.int64(2), torch.tensor(2.5)):
        assert all(term >= 0 for term in asd(loss=loss, epoch=epoch, index=INDEX.to(torch.uint8)).values())


def test_unused_early_state_is_ignored() -> None:
    first, second = (ASDLoss(8, 8, queue=6, ss=0.0, temporal=False) for _ in range(2))
    for unused in (None, torch.zeros(4, 3)):
        assert torch.equal(asd(loss=first, final=S, early=unused)["tc"], asd(loss=second, final=S, early=S)["tc"])


def test_early_features_of_another_width_are_refused_where_they_are_compared() -> None:
    odd = Sizes(5, 100, Shape(8), {"final": Shape(8), "early": Shape(6)})
    METHODS["contrast"](odd, **method_options("contrast", {}))  # logits alone have one width
    for method in ("contrast+tc", "asd"):
        with pytest.raises(UserError, match="8 wide, the early state's 6"):
            build_method(method, odd, {})
    build_method("asd", odd, {"ss": 0.0, "temporal": False})  # nor where they are not


@pytest.mark.slow
def test_the_loss_compiles_into_one_graph() -> None:
    plain, inside = (ASDLoss(8, 8, queue=6, directions=2) for _ in range(2))
    for loss in (plain, inside):
        asd(loss=loss, final=S, early=S + T[:, :8])  # what only the first step does
    compiled = torch.compile(inside, backend="eager", fullgraph=True, dynamic=True)
    for rows, epoch in ((4, 1.0), (3, 2.5), (2, 3)):
        batch = {"student": S[:rows], "final": S[:rows] + 1, "early": T[:rows, :8], "index": INDEX[:rows]}
        terms, expected = compiled(**batch, epoch=epoch), plain(**batch, epoch=epoch)
        assert all(torch.allclose(terms[name], expected[name], atol=1e-6) for name in ("tc", "ss"))
    torch.compiler.reset()


def rows_of(count: int) -> list[Tensor]:
    return [normal(5, 8, seed=seed, dtype=torch.float32)[:count] for seed in range(3)]


def uneven(rank: int, folder: Path) -> None:
    """One process has every row; then neither has any."""
    own = 5 if rank == 0 else 0
    loss = ASDLoss(8, 8, queue=6, sync=True)
    student, final, early = rows_of(own)
    terms = loss(student.requires_grad_(), final, early, epoch=10, index=torch.arange(own))
    sum(terms.values()).backward()
    with pytest.raises(ValueError, match="student, final and early have 0 rows"):
        loss(*rows_of(0), epoch=10)
    torch.save([terms["tc"].item(), terms["ss"].item(), loss.queue], folder / f"{rank}.pt")


def test_a_process_without_rows_works_with_those_of_the_others(tmp_path: Path) -> None:
    in_two(uneven, tmp_path)
    single = ASDLoss(8, 8, queue=6)
    terms = single(*rows_of(5), epoch=10, index=torch.arange(5))
    for rank in range(WORLD):
        tc, ss, queue = torch.load(tmp_path / f"{rank}.pt")
        assert (tc, ss) == pytest.approx((terms["tc"].item(), terms["ss"].item()), rel=1e-5)
        assert torch.equal(queue, single.queue)
