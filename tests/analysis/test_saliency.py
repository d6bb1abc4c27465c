"""Where a network looks: maps find what is known to decide, change with the weights, and leave the network alone."""

import copy
from collections.abc import Callable

import pytest
import timm
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from antishortcut.analysis.answers import blank, grad_cam, integrated_gradients, scaled, share_inside
from antishortcut.errors import UserError
from antishortcut.models import Network, build
from antishortcut.models.feature_extractor import FeatureExtractor
from antishortcut.types import Features

SIDE = 32


class RedDetector(nn.Module):
    """Class 0 is the mean of how red the pixels are, class 1 of how blue: the truth about where it looks is known."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 2, 1, bias=False), nn.ReLU())
        self.pool = nn.Sequential(nn.AvgPool2d(4))
        self.head = nn.Linear(2, 2, bias=False)
        self.conv[0].weight.data = torch.tensor([[1.0, -1, -1], [-1, -1, 1]])[:, :, None, None]
        self.head.weight.data = torch.eye(2)

    def forward(self, x: Tensor) -> Features:
        last = self.pool(self.conv(x))
        return Features(self.head(last.mean(dim=(2, 3))), last.mean(dim=(2, 3)), (last,), last=last)


def detector() -> Network:
    return Network(RedDetector(), mean=(0.0,) * 3, std=(1.0,) * 3).eval()


def planted(row: int, column: int) -> tuple[Tensor, Tensor]:
    """A grey image with a red square of 8 pixels, and where it is."""
    image = torch.full((1, 3, SIDE, SIDE), 0.4)
    mask = torch.zeros(1, SIDE, SIDE)
    mask[:, row : row + 8, column : column + 8] = 1
    image[:, 0] += 0.6 * mask
    image[:, 1:] -= 0.4 * mask[:, None]
    return image, mask


@pytest.mark.parametrize("place", [(0, 0), (8, 16), (24, 4)])
def test_maps_localise_a_planted_patch(place: tuple[int, int]) -> None:
    image, mask = planted(*place)
    red = torch.tensor([0])
    cam = grad_cam(detector(), image, red)
    assert cam.shape == (1, SIDE, SIDE)
    assert float(share_inside(cam, mask)) > 0.75  # it is blurred by the resize
    assert mask[0].flatten()[int(cam.flatten().argmax())] == 1
    for baseline in ("blurred", "mean"):
        heat = integrated_gradients(detector(), image, red, baseline=baseline)
        assert float(share_inside(heat, mask)) > 0.9
    assert grad_cam(detector(), image, torch.tensor([1])).count_nonzero() == 0  # nothing is blue: no evidence
    assert torch.isnan(share_inside(torch.zeros(1, SIDE, SIDE), mask)).all()


def test_grad_cam_equals_the_formula_by_hand() -> None:
    """Of a network that pools its last map, the weights of the class are those of the head, over the locations."""
    network = trained_like()
    image = torch.rand(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    label = torch.tensor([1, 4, 2])
    last = network(image).last
    assert network.head is not None
    expected = torch.einsum("bd,bdhw->bhw", network.head.weight[label], last).relu()
    expected = nn.functional.interpolate(expected[:, None], (SIDE, SIDE), mode="bilinear")[:, 0]
    assert torch.allclose(grad_cam(network, image, label), scaled(expected).detach(), atol=1e-5)


def trained_like(seed: int = 0, name: str = "cnn-8-32") -> Network:
    torch.manual_seed(seed)
    return build(name, 10, image_size=SIDE).eval()


@pytest.mark.parametrize("baseline", ["blurred", "mean"])
def test_integrated_gradients_add_up_to_the_change_of_the_logit(baseline: str) -> None:
    network = trained_like().double()
    image = torch.rand(4, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(2)).double()
    label = torch.tensor([0, 3, 3, 9])
    heat = integrated_gradients(network, image, label, steps=300, baseline=baseline)
    with torch.no_grad():
        change = network(image).logits - network(blank(image, baseline)).logits
    expected = change.gather(1, label[:, None])[:, 0]
    assert torch.allclose(heat.sum(dim=(1, 2)), expected, atol=0.02 * float(expected.abs().max()))


def test_integrated_gradients_of_a_linear_network_are_exact() -> None:
    """w · (x − b), in a single step."""

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3 * SIDE * SIDE, 2)

        def forward(self, x: Tensor) -> Features:
            return Features(self.head(x.flatten(1)), x.flatten(1))

    torch.manual_seed(0)
    network = Network(Linear(), mean=(0.0,) * 3, std=(1.0,) * 3).eval()
    image = torch.rand(2, 3, SIDE, SIDE)
    heat = integrated_gradients(network, image, torch.tensor([0, 1]), steps=1, baseline="mean")
    head = network.head
    assert head is not None
    difference = image - image.mean(dim=(2, 3), keepdim=True)
    expected = (head.weight.view(2, 3, SIDE, SIDE) * difference).sum(dim=1).detach()
    assert torch.allclose(heat, expected, atol=1e-6)
    with pytest.raises(UserError, match="feature maps"):
        grad_cam(network, image, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="baseline"):
        integrated_gradients(network, image, torch.tensor([0, 1]), baseline="black")


@pytest.mark.parametrize("method", [grad_cam, integrated_gradients])
@pytest.mark.parametrize("layers", ["head", "last", "all"])
def test_maps_change_when_weights_are_randomised(method: Callable[..., Tensor], layers: str) -> None:
    """The check of Adebayo et al. 2018: the class stays, the weights from the top down are drawn anew."""
    network, image, label = learned()
    other = copy.deepcopy(network)
    torch.manual_seed(7)
    names = {"head": ("body.head",), "last": ("body.head", "body.last"), "all": ("body",)}[layers]
    for name, module in other.named_modules():
        if name.startswith(names) and isinstance(module, nn.Conv2d | nn.Linear):
            module.reset_parameters()
    first, second = method(network, image, label), method(other, image, label)
    correlations = [
        float(spearmanr(one.flatten(), two.flatten()).statistic)
        for one, two in zip(first, second, strict=True)
        if one.any() and two.any()
    ]
    assert len(correlations) >= 4  # the others have no positive evidence left
    assert sum(correlations) / len(correlations) < 0.5
    assert torch.equal(method(copy.deepcopy(network), image, label), first)


def learned() -> tuple[Network, Tensor, Tensor]:
    """A network that has learned which quarter of the image a bright square is in."""
    network = trained_like(name="cnn-8-16")
    maker = torch.Generator().manual_seed(3)
    image = 0.4 * torch.rand(64, 3, SIDE, SIDE, generator=maker)
    label = torch.arange(64) % 4
    for one, quarter in zip(image, label.tolist(), strict=True):
        top, left = 4 + 16 * (quarter // 2), 4 + 16 * (quarter % 2)
        one[:, top : top + 8, left : left + 8] += 0.6
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    network.train()
    for _ in range(30):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(network(image).logits, label).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return network.eval(), image[:16], label[:16]


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_transformers_have_maps(pool: str) -> None:
    """With a class token the last block's patches have no gradient: the map before its attention is read."""
    torch.manual_seed(0)
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=SIDE, patch_size=4, depth=3, embed_dim=24, num_heads=3, num_classes=10,
        global_pool=pool, class_token=pool == "token",
    )  # fmt: skip
    check_maps(Network(FeatureExtractor(vit, classes=10), size=SIDE).eval())


def check_maps(network: Network) -> None:
    image, label = torch.rand(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 5, 9])
    for heat in (grad_cam(network, image, label), integrated_gradients(network, image, label, steps=4)):
        assert heat.shape == (3, SIDE, SIDE)
        assert heat.isfinite().all()
        assert heat.count_nonzero() > 0
    cam = grad_cam(network, image, label)
    assert 0 <= float(cam.min()) < float(cam.max()) == 1
    one = torch.cat([grad_cam(network, image[at : at + 1], label[at : at + 1]) for at in range(3)])
    assert torch.allclose(one, cam, atol=1e-3)  # whatever else is in the batch


@pytest.mark.parametrize("name", ["timm:test_resnet", "timm:test_vit", "timm:test_convnext", "resnet8", "wrn-10-1"])
def test_networks_of_every_kind_have_maps(name: str) -> None:
    torch.manual_seed(0)
    check_maps(build(name, 10, image_size=SIDE, pretrained=False).eval())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_left_behind(mode: type[torch.no_grad]) -> None:
    network = trained_like().requires_grad_(False)
    network.train()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    image = torch.rand(2, 3, SIDE, SIDE)
    before, label = image.clone(), torch.tensor([0, 1])
    with mode():
        results = [grad_cam(network, image, label), integrated_gradients(network, image, label, steps=2)]
    assert all(not heat.requires_grad for heat in results)
    assert torch.equal(image, before)
    assert not image.requires_grad
    assert network.training
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in network.parameters())
    assert all(not part._forward_hooks for part in network.modules())
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
