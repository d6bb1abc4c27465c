"""Networks for segmentation: maps of the right size, DeepLab equal to torchvision's, weights for the backbone alone."""
# B batch, C classes, H × W pixels, h × w the map

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models import segmentation as torchvision_segmentation

from antishortcut.errors import UserError
from antishortcut.models import Network, build, load_weights
from antishortcut.models.layers import SingleSampleNorm2d
from antishortcut.models.registry import DEEPLAB
from tests.models import one_thread as one_thread

SIZES = [(64, 64), (61, 90), (33, 47)]  # most of them no multiples of eight


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def picture(batch: int = 2, height: int = 64, width: int = 64, seed: int = 0) -> Tensor:
    return torch.rand(batch, 3, height, width, generator=torch.Generator().manual_seed(seed))


def network_of(name: str, classes: int = 5, **options: Any) -> Network:
    torch.manual_seed(0)
    return build(name, classes, **options)


def shake(module: nn.Module) -> None:
    """Norms as after training: timm begins with residual branches that are switched off."""
    torch.manual_seed(1)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            assert part.running_mean is not None
            assert part.running_var is not None
            nn.init.uniform_(part.weight, 0.5, 1.0)
            nn.init.uniform_(part.bias, -0.1, 0.1)
            nn.init.uniform_(part.running_mean, -0.1, 0.1)
            nn.init.uniform_(part.running_var, 0.5, 1.5)


def part_of(network: nn.Module, path: str) -> Any:
    return network.get_submodule(path)


@pytest.mark.parametrize("name", DEEPLAB)
def test_maps_have_an_eighth_of_the_image(name: str) -> None:
    with torch.device("meta"):
        network = build(name, 21).train()
    for height, width in SIZES:
        features = network(torch.zeros(2, 3, height, width, device="meta"))
        small = (-(-height // 8), -(-width // 8))
        assert features.logits.shape == (2, 21, *small)
        assert features.embedding.shape == (2, DEEPLAB[name][1], *small)
        assert features.stages[-1] is features.embedding
        assert [tuple(s.shape[2:]) for s in features.stages[2:]] == [small] * 3
        assert [s.shape[2] for s in features.stages[:2]] == [-(-height // 2), -(-height // 4)]
        if name == "deeplabv3-mobilenetv2":
            assert features.aux is None
        else:
            assert features.aux.shape == (2, 21, *small)


def test_resnet101_is_torchvisions() -> None:
    """The same parameters under the same names, and with the same weights the same logits and embedding."""
    torch.manual_seed(0)
    twin = torchvision_segmentation.deeplabv3_resnet101(
        num_classes=21, aux_loss=True, weights=None, weights_backbone=None
    )
    shake(twin)
    network = build("deeplabv3-resnet101", 21)
    assert count(network) == count(twin) == 60_996_202
    network.body.load_state_dict(twin.state_dict())
    network.eval()
    twin.eval()
    image = picture(1, 57, 72)
    with torch.no_grad():
        features = network(image)
        x = (image - network.mean) / network.std
        embedding = twin.backbone(x)["out"]
        torch.testing.assert_close(features.embedding, embedding, rtol=1e-3, atol=1e-4 * embedding.abs().max().item())
        logits = twin.classifier(embedding)
        torch.testing.assert_close(features.logits, logits, rtol=1e-3, atol=1e-4 * logits.abs().max().item())
        assert features.logits.std() > 0  # and not all the same
    torch.testing.assert_close(network.mean.flatten(), torch.tensor([0.485, 0.456, 0.406]))


@pytest.mark.parametrize(
    ("name", "classifier", "suffix"),
    [
        ("deeplabv3-resnet18", "timm:resnet18", ".pth"),
        ("deeplabv3-resnet18", "timm:resnet18", ".safetensors"),
        ("deeplabv3-resnet18", "torchvision:resnet18", ".pth"),
        ("deeplabv3-mobilenetv2", "timm:mobilenetv2_100", ".safetensors"),
    ],
)
def test_a_classifiers_file_fills_the_backbone(name: str, classifier: str, suffix: str, tmp_path: Path) -> None:
    """… and every fourth place of its last map is the classifier's own: dilation only makes it denser."""
    torch.manual_seed(2)
    source, _, model = classifier.partition(":")
    net: Any = timm.create_model(model) if source == "timm" else torchvision.models.get_model(model)
    shake(net)
    path = tmp_path / f"classifier{suffix}"
    if suffix == ".pth":
        torch.save({"state_dict": {f"module.{key}": value for key, value in net.state_dict().items()}}, path)
    else:
        save_file(net.state_dict(), path)
    network = network_of(name)
    fresh = {key: value.clone() for key, value in network.body.state_dict().items()}
    load_weights(network, path)
    saved = {key for key, value in network.body.state_dict().items() if torch.equal(value, fresh[key])}
    assert {key for key in fresh if "classifier" in key} <= saved  # the heads, auxiliary one included
    network.eval()
    net.eval()
    image = picture(2, 70, 90)
    x = (image - network.mean) / network.std
    with torch.no_grad():
        embedding = network(image).embedding
        last = last_map(net, x)
    torch.testing.assert_close(embedding[:, :, ::4, ::4], last, rtol=1e-3, atol=1e-4 * last.abs().max().item())


def last_map(net: Any, x: Tensor) -> Tensor:
    """What a classifier's backbone ends in, at stride 32."""
    if hasattr(net, "blocks"):
        result: Tensor = net.blocks(net.bn1(net.conv_stem(x)))
    else:
        x = net.maxpool((net.act1 if hasattr(net, "act1") else net.relu)(net.bn1(net.conv1(x))))
        result = net.layer4(net.layer3(net.layer2(net.layer1(x))))
    return result


def zeros(module: nn.Module) -> dict[str, Tensor]:
    return {key: torch.zeros(value.shape) for key, value in module.state_dict().items()}


def test_files_that_fit_neither(tmp_path: Path) -> None:
    with torch.device("meta"):  # a file that fitted would raise another error
        network = build("deeplabv3-resnet18", 5)
        other = build("cnn-16", 5)
        resnets: list[nn.Module] = [timm.create_model(name) for name in ("resnet18", "resnet34")]
    states = {
        r"96 unexpected \(layer1\.2\.": zeros(resnets[1]),
        r"of another shape \(conv1\.weight \(1, ": {key: x[:1] for key, x in zeros(resnets[0]).items() if x.ndim},
        r"missing \(backbone": zeros(other),
        r"99 missing \(backbone\.bn1\.weight": {"backbone.conv1.weight": torch.zeros(64, 3, 7, 7)},
    }
    for words, state in states.items():
        torch.save(state, tmp_path / "other.pth")
        with pytest.raises(UserError, match=words) as caught:
            load_weights(network, tmp_path / "other.pth")
        assert "or a timm or torchvision classifier with its backbone" in str(caught.value)


HEADS: dict[str, tuple[Callable[[str], bool], list[str]]] = {
    "other classes": (lambda key: True, ["classifier.4", "aux_classifier.4"]),
    "other classes, no auxiliary head": (
        lambda key: not key.startswith("aux"), ["classifier.4", "aux_classifier.4", "aux_classifier"],
    ),
    "the same classes": (lambda key: True, []),
    "the backbone alone": (
        lambda key: key.startswith("backbone"), ["classifier.4", "classifier", "aux_classifier.4", "aux_classifier"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("file", HEADS)
@pytest.mark.parametrize("prefix", ["", "body."])
def test_heads_that_do_not_fit_start_fresh_with_a_warning(file: str, prefix: str, tmp_path: Path) -> None:
    there, fresh = HEADS[file]
    source = build("deeplabv3-resnet18", 5 if file == "the same classes" else 21)
    shake(source)
    state = {key: value for key, value in source.body.state_dict().items() if there(key)}
    torch.save({prefix + key: value for key, value in state.items()}, tmp_path / "voc.pth")
    network = build("deeplabv3-resnet18", 5)
    before = {key: value.clone() for key, value in network.body.state_dict().items()}
    with pytest.warns(UserWarning, match=f"start fresh: {', '.join(fresh)}$") if fresh else nullcontext():
        load_weights(network, tmp_path / "voc.pth")
    for key, value in network.body.state_dict().items():
        saved = key in state and state[key].shape == value.shape
        assert torch.equal(value, state[key] if saved else before[key]), key


def test_a_batch_of_one_trains() -> None:
    """ASPP's image pooling has one value a channel then, from which torch makes no statistics."""
    network = network_of("deeplabv3-resnet18").train()
    shake(network)
    norm = part_of(network, "body.classifier.0.convs.4.2")
    assert isinstance(norm, SingleSampleNorm2d)
    features = network(picture(1))
    (features.logits.square().mean() + features.aux.square().mean()).backward()
    assert norm.num_batches_tracked == 0
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in network.parameters())
    network(picture(2))
    assert norm.num_batches_tracked == 1
    plain = nn.BatchNorm2d(4)
    lone = SingleSampleNorm2d(4)
    for x in (torch.randn(3, 4, 1, 1), torch.randn(5, 4, 1, 1)):
        torch.testing.assert_close(lone(x), plain(x))
    x = torch.randn(1, 4, 1, 1)
    torch.testing.assert_close(lone(x), plain.eval()(x))  # as in evaluation, and nothing is remembered
    torch.testing.assert_close(lone.state_dict(), plain.state_dict())
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(SingleSampleNorm2d(4)))  # type: ignore[no-untyped-call]
    assert type(synced[0]) is nn.SyncBatchNorm


def test_pretrained_comes_from_timms_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []

    def offline(name: str, **options: Any) -> nn.Module:
        requested.append((name, options))
        raise OSError("nobody answers.")

    monkeypatch.setattr("antishortcut.models.downloads.answers", lambda address: True)
    monkeypatch.setattr(timm, "create_model", offline)
    words = r"download the weights of timm:resnet101\.tv_in1k: nobody answers\.; .*; weights = FILE"
    with pytest.raises(UserError, match=words):
        build("deeplabv3-resnet101", 5, pretrained=True)
    assert requested == [("resnet101.tv_in1k", {"pretrained": True, "features_only": True, "output_stride": 8})]


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_dense_maps_have_a_quarter_of_the_image(height: int, width: int) -> None:
    network = network_of("dense-8-24")
    features = network(picture(2, height, width))
    small = (-(-height // 4), -(-width // 4))
    assert features.logits.shape == (2, 5, *small)
    assert features.embedding.shape == (2, 24, *small)
    assert [s.shape[1] for s in features.stages] == [8, 16, 32, 32]
    assert [tuple(s.shape[2:]) for s in features.stages] == [(-(-height // 2), -(-width // 2)), small, small, small]
    assert all(stage.min() >= 0 for stage in features.stages)
    assert features.aux is None
    torch.testing.assert_close(part_of(network, "body.head")(features.embedding), features.logits)


def test_dense_sees_127_pixels_and_the_whole_scene() -> None:
    """What lies out of every convolution's reach still counts, by way of the mean of the third map."""
    network = network_of("dense-8").eval()
    image = picture(1, 8, 256).requires_grad_()
    network(image).logits[..., 32].square().sum().backward()  # its middle is at pixel 128
    assert image.grad is not None
    outputs = image.grad.abs().sum(dim=(0, 1, 2)).nonzero().flatten()
    assert (outputs.min().item(), outputs.max().item()) == (128 - 63, 128 + 63)
    nn.init.normal_(part_of(network, "body.scene").weight, std=0.1)
    with torch.no_grad():
        other = image.clone()
        other[..., 192:] = 1.0
        assert (network(image).logits - network(other).logits)[..., 32].abs().max() > 1e-4
