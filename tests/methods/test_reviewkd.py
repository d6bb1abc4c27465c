"""ReviewKD against loops over pixels: the context loss, the fusion and the whole review; by hand; and its settings."""
# B batch, C channels, M width of the fusion, H × W pixels

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from antishortcut.config.recipe import load_recipe
from antishortcut.methods import method_options
from antishortcut.methods.reviewkd import Fusion, ReviewKD, context_loss
from antishortcut.types import Features, Shape, Sizes
from tests.methods.test_fitnets import Stage, maps_of, numbered, sizes_of, slow_pool
from tests.test_subspace import close, normal, seeds, several

Maps = list[list[list[list[float]]]]  # (B, C, H, W)


def slow_mse(ours: Maps, theirs: Maps) -> float:
    def flat(maps: Maps) -> list[float]:
        return [v for planes in maps for plane in planes for line in plane for v in line]

    differences = [(a - b) ** 2 for a, b in zip(flat(ours), flat(theirs), strict=True)]
    return sum(differences) / len(differences)


def slow_context(ours: Maps, theirs: Maps) -> float:
    """1, ½, ¼, ⅛ for the maps and those of the averages 4 × 4, 2 × 2, 1 × 1 that are smaller, divided by their sum."""
    losses = [slow_mse(ours, theirs)]
    for side in (4, 2, 1):
        if side < min(len(ours[0][0]), len(ours[0][0][0])):
            pooled = [[[slow_pool(plane, side, side) for plane in row] for row in maps] for maps in (ours, theirs)]
            losses.append(slow_mse(*pooled))
    weights = [0.5**i for i in range(len(losses))]
    return sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights)


@several
@given(b=st.integers(1, 2), c=st.integers(1, 3), h=st.integers(1, 7), w=st.integers(1, 7), seed=seeds)
def test_context_loss_agrees_with_the_loop(b: int, c: int, h: int, w: int, seed: int) -> None:
    student, teacher = normal(b, c, h, w, seed=seed), normal(b, c, h, w, seed=seed + 1)
    loss = context_loss(student, teacher)
    assert loss.dtype == torch.float64
    close(loss, slow_context(student.tolist(), teacher.tolist()))
    close(context_loss(student, student.clone()), 0.0, 0.0)
    close(context_loss(student + 3, student), 9.0)  # a constant difference is the same at every scale
    assert loss <= (student - teacher).square().mean() + 1e-12  # averaging never enlarges a difference


def test_context_loss_by_hand() -> None:
    stripes = torch.tensor([[[[1.0, -1.0], [1.0, -1.0]]]])
    close(context_loss(stripes, torch.zeros(1, 1, 2, 2)), 1 / 1.5, 1e-6)  # 1 at 2 × 2, 0 in the mean of weight ½
    wide = stripes.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)  # 8 × 8: seen at 8, 4 and 2, not at 1
    close(context_loss(wide, torch.zeros(1, 1, 8, 8)), (1 + 0.5 + 0.25) / 1.875, 1e-6)
    close(context_loss(torch.full((1, 2, 1, 1), 3.0), torch.zeros(1, 2, 1, 1)), 9.0)  # a pixel has no coarser scale


def slow_conv(maps: Maps, layer: nn.Conv2d, norm: nn.BatchNorm2d | None) -> Maps:
    """A convolution that keeps the size, with zeros around, and batch norm by running statistics."""
    kernel, k = layer.weight.tolist(), layer.kernel_size[0]
    height, width = len(maps[0][0]), len(maps[0][0][0])
    out: Maps = []
    for planes in maps:
        out.append([])
        for o, filters in enumerate(kernel):
            plane = [[0.0 if layer.bias is None else layer.bias[o].item()] * width for _ in range(height)]
            for y in range(height):
                for x in range(width):
                    for source, weights in zip(planes, filters, strict=True):
                        for dy in range(k):
                            for dx in range(k):
                                v, u = y + dy - k // 2, x + dx - k // 2
                                if 0 <= v < height and 0 <= u < width:
                                    plane[y][x] += weights[dy][dx] * source[v][u]
            if norm is not None:
                assert norm.running_mean is not None
                assert norm.running_var is not None
                gain = norm.weight[o].item() / math.sqrt(norm.running_var[o].item() + norm.eps)
                mean, shift = norm.running_mean[o].item(), norm.bias[o].item()
                plane = [[gain * (v - mean) + shift for v in line] for line in plane]
            out[-1].append(plane)
    return out


def slow_nearest(maps: Maps, height: int, width: int) -> Maps:
    h, w = len(maps[0][0]), len(maps[0][0][0])
    return [
        [[[plane[y * h // height][x * w // width] for x in range(width)] for y in range(height)] for plane in planes]
        for planes in maps
    ]


def slow_fusion(fusion: Fusion, maps: Maps, deeper: Maps | None, size: tuple[int, int]) -> tuple[Maps, Maps]:
    def pair(part: nn.Sequential) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
        conv, norm = part
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        return conv, norm

    fused = slow_conv(maps, *pair(fusion.narrow))
    height, width = len(fused[0][0]), len(fused[0][0][0])
    if fusion.attend is not None and deeper is not None:
        deeper = slow_nearest(deeper, height, width)
        share = slow_conv([a + b for a, b in zip(fused, deeper, strict=True)], fusion.attend, None)
        for n, planes in enumerate(fused):
            for m, plane in enumerate(planes):
                for y in range(height):
                    for x in range(width):
                        own, other = (1 / (1 + math.exp(-share[n][i][y][x])) for i in (0, 1))
                        plane[y][x] = own * plane[y][x] + other * deeper[n][m][y][x]
    fused = slow_nearest(fused, *size)
    return slow_conv(fused, *pair(fusion.widen)), fused


STUDENT: list[Stage] = [(2, 4, 4), (2, 4, 4), (3, 3, 2)]
TEACHERS: dict[str, list[Stage]] = {
    "equal": STUDENT,
    "larger maps": [(2, 8, 8), (3, 6, 6), (2, 4, 4)],
    "smaller maps": [(2, 4, 4), (3, 2, 2), (2, 1, 1)],
    "more stages": [(2, 8, 8), (1, 8, 8), (3, 4, 4), (2, 4, 4)],
    "fewer stages": [(2, 8, 8), (3, 4, 4)],
    "one stage": [(2, 4, 4)],
}


@pytest.mark.parametrize("teacher", TEACHERS)
def test_the_review_agrees_with_the_loop(teacher: str) -> None:
    torch.manual_seed(0)
    sizes = sizes_of(STUDENT, TEACHERS[teacher], embedding=3)
    method = ReviewKD(sizes, width=2, weight=2.0).double().eval()
    for module in method.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean):
                nn.init.normal_(tensor)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    student, final = maps_of(sizes.student, 2), maps_of(sizes.teachers["final"], 2, seed=9)

    def deep_first(outputs: Features) -> list[Tensor]:
        return [outputs.embedding[:, :, None, None], *reversed(outputs.stages[1:] or outputs.stages)]

    total, fused = 0.0, None
    for fusion, ours, reference in zip(method.fusions, deep_first(student), deep_first(final), strict=False):
        assert isinstance(fusion, Fusion)
        reviewed, fused = slow_fusion(fusion, ours.tolist(), fused, (reference.shape[2], reference.shape[3]))
        total += slow_context(reviewed, reference.tolist())
    assert len(method.fusions) == 1 + max(1, min(len(STUDENT), len(TEACHERS[teacher])) - 1)
    terms = method.terms(student, {"final": final}, numbered(2), epoch=1000.0)
    assert list(terms) == ["review"]
    close(terms["review"], 2 * total)


def test_where_the_embedding_is_a_map_the_stages_alone_are_reviewed() -> None:
    """Its rows are locations, more than there are images, and must not matter."""
    torch.manual_seed(0)
    shape = Shape(3, tuple(STUDENT), maps=True)
    method = ReviewKD(Sizes(2, 8, shape, {"final": shape}), width=2, warmup=0.0).double().eval()
    assert len(method.fusions) == len(STUDENT) - 1
    student, final = maps_of(shape, 2), maps_of(shape, 2, seed=9)

    def term(rows: int) -> Tensor:
        outputs = [replace(each, embedding=torch.rand(rows, 3, dtype=torch.float64)) for each in (student, final)]
        return method.terms(outputs[0], {"final": outputs[1]}, numbered(rows), 1.0)["review"]

    total, fused = 0.0, None
    for fusion, ours, reference in zip(method.fusions, student.stages[:0:-1], final.stages[:0:-1], strict=True):
        assert isinstance(fusion, Fusion)
        reviewed, fused = slow_fusion(fusion, ours.tolist(), fused, (reference.shape[2], reference.shape[3]))
        total += slow_context(reviewed, reference.tolist())
    close(term(7), 5 * total)
    close(term(40), 5 * total)


def test_attention_shares_by_hand() -> None:
    fusion = Fusion(1, 1, 1, first=False).double().eval()
    attend = fusion.attend
    assert attend is not None
    assert attend.bias is not None
    for conv, value in ((fusion.narrow[0], 1.0), (attend, 0.0)):
        nn.init.constant_(conv.weight, value)  # type: ignore[arg-type]
    attend.bias.data = torch.tensor([0.0, math.log(3)], dtype=torch.float64)  # shares ½ and ¾
    deeper = torch.full((1, 1, 1, 1), 4.0, dtype=torch.float64)
    _, fused = fusion(torch.full((1, 1, 2, 2), 2.0, dtype=torch.float64), deeper, (2, 2))
    close(fused, torch.full((1, 1, 2, 2), 0.5 * 2 + 0.75 * 4), 2e-5)  # fresh batch norm divides by √(1 + 1e-5)


def test_warm_up_and_weight() -> None:
    sizes = sizes_of(STUDENT, STUDENT)
    student, teacher = maps_of(sizes.student, 2), maps_of(sizes.teachers["final"], 2, seed=9)

    def term(epoch: float, warmup: float = 20.0, weight: float = 5.0) -> float:
        torch.manual_seed(0)
        method = ReviewKD(sizes, warmup=warmup, weight=weight).double()
        return method.terms(student, {"final": teacher}, numbered(2), epoch)["review"].item()

    full = term(1000.0)
    close([term(0.0), term(5.0), term(20.0), term(40.0)], [0.0, full / 4, full, full])
    close([term(0.0, warmup=0.0), term(20.0, weight=1.0)], [full, full / 5])


@pytest.mark.parametrize(("width", "embedding", "found"), [(512, 3, 3), (2, 3, 2), (512, 600, 512)])
def test_width_is_bounded_by_the_embedding(width: int, embedding: int, found: int) -> None:
    method = ReviewKD(sizes_of(STUDENT, STUDENT, embedding), width=width)
    assert {fusion.narrow[0].out_channels for fusion in method.fusions} == {found}  # type: ignore[index, union-attr]


def test_a_row_alone_uses_running_statistics() -> None:
    sizes = sizes_of(STUDENT, STUDENT)
    method = ReviewKD(sizes)
    student, teacher = (maps_of(sizes.student, 1, seed=seed, dtype=torch.float32) for seed in (0, 9))
    student.embedding.requires_grad_()
    torch.autograd.backward(method.terms(student, {"final": teacher}, numbered(1), 30.0)["review"])
    assert student.embedding.grad is not None
    assert torch.isfinite(student.embedding.grad).all()
    tracked = [int(norm.num_batches_tracked) for norm in method.modules() if isinstance(norm, nn.BatchNorm2d)]  # type: ignore[arg-type]
    assert tracked == [0, 0] + [1] * (len(tracked) - 2)  # the embedding is one pixel, the maps have more


def test_recipes_carry_the_published_weight() -> None:
    """Of the paper's pairs that the authors' script has, only P9 departs from 5: ResNet-32x4 → ShuffleNetV2."""
    weights = {
        n: method_options("reviewkd", load_recipe(f"P{n}").methods.get("reviewkd", {}))["weight"] for n in (2, 9)
    }
    assert weights == {2: 5.0, 9: 8.0}
