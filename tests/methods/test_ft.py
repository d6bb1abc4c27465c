"""FT against loops over convolutions and pixels and by hand; the paraphraser learns first and is then fixed."""
# B batch, C channels, H × W pixels

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from antishortcut.methods.ft import FT, encoder, factor_distance
from tests.methods.test_at import slow_attention
from tests.methods.test_fitnets import maps_of, numbered, sides, sizes_of
from tests.test_subspace import close, normal, seeds, several

SIZES = sizes_of([(2, 4, 4), (3, 4, 4)], [(2, 4, 4), (6, 3, 3)])


def slow_distance(student: Tensor, teacher: Tensor) -> list[float]:
    height, width = (min(student.shape[i], teacher.shape[i]) for i in (2, 3))
    rows = []
    for ours, other in zip(student.tolist(), teacher.tolist(), strict=True):
        pair = slow_attention(ours, height, width), slow_attention(other, height, width)
        rows.append(sum(abs(a - b) for a, b in zip(*pair, strict=True)) / (height * width))
    return rows


def slow_encoder(module: nn.Module, maps: Tensor) -> Tensor:
    """3 × 3 convolutions with padding, added up product by product, each with a leaky ReLU of slope 0.1."""
    for layer in module.children():
        if not isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            continue
        weight = layer.weight if isinstance(layer, nn.Conv2d) else layer.weight.transpose(0, 1).flip(2, 3)
        assert layer.bias is not None
        b, _, height, width = maps.shape
        result = torch.zeros(b, len(weight), height, width, dtype=torch.float64)
        for y in range(height):
            for x in range(width):
                value = layer.bias.detach().clone().expand(b, -1).clone()  # (B, out)
                for dy in (-1, 0, 1):
                    for dx in (-1, 0, 1):
                        if 0 <= y + dy < height and 0 <= x + dx < width:
                            value += maps[:, :, y + dy, x + dx] @ weight.detach()[:, :, dy + 1, dx + 1].T
                result[:, :, y, x] = torch.where(value > 0, value, 0.1 * value)
        maps = result
    return maps


@several
@given(b=st.integers(1, 3), k=st.tuples(st.integers(1, 3), st.integers(1, 3)), size=st.tuples(sides, sides),
       other=st.tuples(sides, sides), seed=seeds)  # fmt: skip
def test_distance_agrees_with_the_loop(
    b: int, k: tuple[int, int], size: tuple[int, int], other: tuple[int, int], seed: int
) -> None:
    student, teacher = normal(b, k[0], *size, seed=seed), normal(b, k[1], *other, seed=seed + 1)
    close(factor_distance(student, teacher), slow_distance(student, teacher))


def test_by_hand() -> None:
    student, teacher = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[0.0, -2.0]]]])
    close(factor_distance(student, teacher), torch.tensor([1.0]))
    close(factor_distance(student, 3 * student), torch.tensor([0.0]), 0.0)  # length does not count


def test_channels_of_the_factor() -> None:
    assert [len(layer.weight) for layer in encoder(6, 3, norm=False) if isinstance(layer, nn.Conv2d)] == [6, 3, 3]
    for rate, channels in ((0.5, 3), (1.0, 6), (0.01, 1)):
        method = FT(SIZES, rate=rate)
        assert method.encoder(torch.zeros(1, 6, 3, 3)).shape == (1, channels, 3, 3)
        assert method.translator(torch.zeros(1, 3, 4, 4)).shape == (1, channels, 4, 4)
        assert method.decoder(torch.zeros(1, channels, 3, 3)).shape == (1, 6, 3, 3)


def test_paraphraser_agrees_with_the_loop() -> None:
    torch.manual_seed(0)
    method = FT(SIZES, paraphrase=7.0).double()
    student, teacher = maps_of(SIZES.student, 2), maps_of(SIZES.teachers["final"], 2, seed=9)
    rebuilt = slow_encoder(method.decoder, slow_encoder(method.encoder, teacher.stages[-1]))
    errors, values = (x.flatten().tolist() for x in (rebuilt - teacher.stages[-1], teacher.stages[-1]))
    terms = method.terms(student, {"final": teacher}, numbered(2), 29.9)
    close(terms["paraphrase"], 7 * sum(x**2 for x in errors) / sum(x**2 for x in values))
    close(terms["ft"], 0.0, 0.0)


def test_factors_agree_with_the_loop() -> None:
    torch.manual_seed(0)
    method = FT(SIZES).double().eval()  # running statistics of 0 and 1
    student, teacher = maps_of(SIZES.student, 2), maps_of(SIZES.teachers["final"], 2, seed=9)
    assert len([layer for layer in method.translator if isinstance(layer, nn.BatchNorm2d)]) == 3
    for layer in method.translator:
        if isinstance(layer, nn.BatchNorm2d):
            layer.eps = 0.0
    rows = slow_distance(
        slow_encoder(method.translator, student.stages[-1]), slow_encoder(method.encoder, teacher.stages[-1])
    )
    terms = method.terms(student, {"final": teacher}, numbered(2), 30.0)
    close(terms["ft"], 200 * sum(rows) / 2)
    close(terms["paraphrase"], 0.0, 0.0)


@pytest.mark.parametrize("init", [0, 3])
def test_paraphraser_learns_in_the_initial_phase_and_is_fixed_afterwards(init: int) -> None:
    """Neither trained nor decayed; its weights are those before the last step of the phase."""
    torch.manual_seed(0)
    method = FT(SIZES, init=float(init))
    student, final = (maps_of(shape, 2, dtype=torch.float32) for shape in (SIZES.student, SIZES.teachers["final"]))
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    before = [[weight.clone() for weight in method.encoder.parameters()]]
    kept, losses = [], []
    for step in range(6):
        terms = method.terms(student, {"final": final}, numbered(2), float(step))
        torch.autograd.backward(torch.stack(list(terms.values())).sum())
        assert all(parameter.grad is not None for parameter in method.parameters())
        optimizer.step()
        optimizer.zero_grad()
        before.append([weight.detach().clone() for weight in method.encoder.parameters()])
        kept.append([weight.clone() for weight in method.paraphraser.buffers()])
        losses.append(float(terms["paraphrase"].detach()))
    for step in range(6):
        expected = before[min(step, max(init - 1, 0))]
        assert all(torch.equal(a, b) for a, b in zip(kept[step], expected, strict=True)), step
    assert losses[init:] == [0.0] * (6 - init)
    if init:
        assert losses[init - 1] < losses[0]
