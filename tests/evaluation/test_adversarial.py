"""The attack: exact where the worst case is known, inside its ball, the same in any batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from antishortcut.evaluation.adversarial import EPSILONS, margin, pgd, robust_accuracy, start
from antishortcut.types import Features, ImageSet

SIDE = 6


class Linear(nn.Module):
    """Logits W x + b: the worst point of a ball is x + ε sign(w_other − w_own) for two classes."""

    def __init__(self, classes: int = 2, seed: int = 0) -> None:
        super().__init__()
        maker = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(classes, 3 * SIDE * SIDE, generator=maker, dtype=torch.float64))

    def forward(self, image: Tensor) -> Features:
        flat = image.flatten(1).to(self.weight.dtype) - 0.5
        return Features(flat @ self.weight.T, flat)


class Small(nn.Module):
    """Convolution, batch norm, ReLU: what real networks are made of."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU()
            )
            self.head = nn.Linear(8 * 4, 4)
        self.double()

    def forward(self, image: Tensor) -> Features:
        embedding = self.body(image.double()).flatten(1)
        return Features(self.head(embedding), embedding)


def batch(count: int = 8, classes: int = 2, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    maker = torch.Generator().manual_seed(seed)
    image = torch.rand(count, 3, SIDE, SIDE, generator=maker)
    return image, torch.randint(0, classes, (count,), generator=maker), torch.arange(count)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000), st.sampled_from(EPSILONS), st.integers(1, 12))
def test_the_attack_on_a_linear_network_is_optimal(seed: int, epsilon: float, steps: int) -> None:
    network = Linear(seed=seed).eval()
    image, label, index = batch(seed=seed)
    result = pgd(network, image, label, index, epsilon=epsilon, steps=steps, seed=seed)
    away = (network.weight[1 - label] - network.weight[label]).sign().view_as(image)
    assert torch.allclose(result, (image + epsilon * away.float()).clamp(0, 1), atol=1e-6)
    clean = network(image).logits.argmax(1) == label
    attacked = network(result).logits.argmax(1) == label
    assert not (attacked & ~clean).any()


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000), st.floats(0, 1), st.integers(1, 3))
def test_attacked_images_stay_in_the_ball(seed: int, epsilon: float, steps: int) -> None:
    image, label, index = batch(4, classes=4, seed=seed)
    result = pgd(Small(seed % 3).eval(), image, label, index, epsilon=epsilon, steps=steps, seed=seed)
    assert result.shape == image.shape
    assert result.dtype == image.dtype
    assert float((result - image).abs().max()) <= epsilon + 1e-6
    assert 0 <= float(result.min()) <= float(result.max()) <= 1


def test_the_attack_does_not_depend_on_the_batch() -> None:
    network = Small().eval()
    image, label, index = batch(10, classes=4)
    whole = pgd(network, image, label, index, epsilon=8 / 255, seed=3)
    assert torch.equal(whole, pgd(network, image, label, index, epsilon=8 / 255, seed=3))
    assert not torch.equal(whole, pgd(network, image, label, index, epsilon=8 / 255, seed=4))
    turned = torch.tensor([7, 2, 9, 0, 1, 3, 8, 6, 5, 4])
    results = [
        pgd(network, image[part], label[part], index[part], epsilon=8 / 255, seed=3)
        for part in (turned[:3], turned[3:4], turned[4:])
    ]
    assert torch.allclose(torch.cat(results), whole[turned], atol=1e-6)
    assert torch.equal(start(image.shape, index, 0)[turned], start(image.shape, turned, 0))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_attack_finds_its_gradient_where_gradients_are_off(mode: type[torch.no_grad]) -> None:
    network = Small().eval()
    image, label, index = batch(4, classes=4)
    expected = pgd(network, image, label, index, epsilon=0.1)
    with mode():
        assert torch.equal(pgd(network, image.clone(), label, index, epsilon=0.1), expected)


def test_the_network_is_unchanged() -> None:
    network = Small().eval()
    image, label, index = batch(6, classes=4)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    before = image.clone()
    pgd(network, image, label, index, epsilon=0.1, steps=2)
    assert torch.equal(image, before)
    assert not image.requires_grad
    assert not network.training
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    network.train()
    with pytest.raises(ValueError, match="evaluation mode"):
        pgd(network, image, label, index, epsilon=0.1)


def test_the_gradient_of_a_certain_network_does_not_vanish() -> None:
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    (by_entropy,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([0])), logits)
    (by_margin,) = torch.autograd.grad(margin(logits, torch.tensor([0])).sum(), logits)
    assert by_entropy.abs().max() == 0
    assert by_margin.tolist() == [[-1.0, 1.0]]


def test_robust_accuracy_of_a_linear_network() -> None:
    network = Linear().eval()
    image = (batch(200)[0] * 255).to(torch.uint8)
    flat = image.float() / 255
    with torch.no_grad():
        label = network(flat).logits.argmax(1)
    label[:20] = 1 - label[:20]
    values = robust_accuracy(network, ImageSet(image, label), SIDE, batch=33)
    assert list(values) == ["clean", "1/255", "2/255", "4/255", "8/255"]
    assert values["clean"] == 0.9
    away = (network.weight[1 - label] - network.weight[label]).sign().view_as(flat)
    for epsilon in EPSILONS:
        worst = (flat + epsilon * away).clamp(0, 1)
        expected = float((network(worst).logits.argmax(1) == label).double().mean())
        assert values[f"{epsilon * 255:.0f}/255"] == pytest.approx(expected, abs=0.006)  # an image on the brink
    assert 0.9 > values["1/255"] > values["8/255"]


def test_robust_accuracy_falls_and_does_not_depend_on_the_batch() -> None:
    network = Small().eval()
    image = (batch(60, classes=4)[0] * 255).to(torch.uint8)
    with torch.no_grad():
        label = network(image / 255).logits.argmax(1)
    images = ImageSet(image, label)
    curve = robust_accuracy(network, images, SIDE, steps=3, batch=7)
    assert curve == robust_accuracy(network, images, SIDE, steps=3, batch=60)
    assert curve["clean"] == 1
    values = list(curve.values())
    assert values == sorted(values, reverse=True)
    assert values[-1] < 1
    assert list(robust_accuracy(network, images, SIDE, steps=1, epsilons=(0.5 / 255,))) == ["clean", "0.5/255"]
    wrong = ImageSet(image, (label + 1) % 4)
    assert set(robust_accuracy(network, wrong, SIDE).values()) == {0.0}
