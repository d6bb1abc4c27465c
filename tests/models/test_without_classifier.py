"""Networks without a classifier: ours, of libraries and of users; their embedding is the one they have with one."""

from pathlib import Path

import pytest
import torch
from torch import nn

from antishortcut.errors import UserError
from antishortcut.models import build, feature_shapes, load_weights
from antishortcut.models.external import published_classes
from antishortcut.models.weights import count_classes

NAMES = ["cnn-4-16", "resnet8", "timm:test_resnet", "timm:test_vit", "torchvision:mobilenet_v3_small"]


@pytest.mark.parametrize("name", NAMES)
def test_same_embedding_as_with_a_classifier(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole, bare = build(name, 7, image_size=32).eval(), build(name, 0, image_size=32).eval()
    torch.save(whole.state_dict(), tmp_path / "whole.pt")
    load_weights(bare, tmp_path / "whole.pt")  # the classifier in the file is left out
    image = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        one, two = whole(image), bare(image)
    assert two.logits.shape == (3, 0)
    torch.testing.assert_close(two.embedding, one.embedding)
    shapes = [feature_shapes(network, 32) for network in (whole, bare)]
    assert shapes[0].embedding == shapes[1].embedding
    assert shapes[0].stages == shapes[1].stages
    assert (bare.head, shapes[1].head) == (None, False)
    assert not set(bare.state_dict()) - set(whole.state_dict())
    with pytest.raises(UserError, match="missing"):
        load_weights(bare, _saved(build("cnn-2", 3), tmp_path))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_tells_its_classes(name: str, tmp_path: Path) -> None:
    network = build(name, 2, image_size=32)
    for classes in (2, 5, 0):
        assert count_classes(network, _saved(build(name, classes, image_size=32), tmp_path)) == classes


def _saved(network: nn.Module, folder: Path) -> Path:
    torch.save(network.state_dict(), folder / "some.pt")
    return folder / "some.pt"


OWN = """
import torch
from torch import nn

class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2)
    def forward(self, x):
        return {returned}

def trunk(): return Trunk()
"""


@pytest.mark.parametrize(
    ("returned", "width"),
    [
        ("self.conv(x).mean(dim=(2, 3))", 6),
        ("self.conv(x)", 6),
        ("{'embedding': self.conv(x).mean(dim=(2, 3)), 'tokens': x}", 6),
        ("self.conv(x).flatten(1)[:, :0]", None),
        ("self.conv(x).argmax()", None),
    ],
)
def test_your_own_backbone(here: Path, returned: str, width: int | None) -> None:
    module = f"trunk_{abs(hash(returned))}"
    (here / f"{module}.py").write_text(OWN.replace("{returned}", returned))
    if width is None:
        with pytest.raises(UserError, match=r"expected an embedding \(batch, width\)"):
            build(f"{module}:trunk", 0, image_size=16)
        return
    network = build(f"{module}:trunk", 0, image_size=16)
    outputs = network(torch.rand(2, 3, 16, 16))
    assert (outputs.logits.shape, outputs.embedding.shape) == ((2, 0), (2, width))


def test_segmentation_needs_classes() -> None:
    for name in ("dense-4", "deeplabv3-resnet18", "torchvision:fcn_resnet50"):
        with pytest.raises(UserError, match="needs classes"):
            build(name, 0)


def test_published_weights_that_only_embed() -> None:
    """From timm's own table; nothing is downloaded."""
    only_embed = ("vit_small_patch14_dinov2.lvd142m", "vit_base_patch16_clip_224.openai", "vit_base_patch16_siglip_224")
    assert [published_classes(f"timm:{name}") for name in only_embed] == [0, 0, 0]
    assert [published_classes(name) for name in ("timm:resnet50", "torchvision:resnet18", "cnn-8")] == [1000, 1000, 0]
