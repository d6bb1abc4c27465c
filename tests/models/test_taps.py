"""Taps: the embedding is what the classifier reads, stages are maps, and nothing stays behind."""

from __future__ import annotations

import copy
import gc
import io
import threading
import weakref
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.models import Tapped
from antishortcut.types import Features
from tests.models import one_thread as one_thread

IMAGE = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def timm_model(name: str, **options: Any) -> Any:
    return timm.create_model(name, **options)


class Small(nn.Module):
    """Two maps, pooled, with one ReLU module used twice; `form` is what it returns."""

    def __init__(self, form: str = "logits") -> None:
        super().__init__()
        self.form = form
        self.one = nn.Conv2d(3, 4, 3, padding=1)
        self.two = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.relu = nn.ReLU()
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Any:
        x = self.relu(self.two(self.relu(self.one(x))))
        logits = self.fc(self.drop(x.mean(dim=(2, 3))))
        forms = {
            "logits": logits,
            "dict": {"loss": None, "hidden": x, "logits": logits},
            "tuple": (None, logits, x),
            "scaled": logits * 2.0,
            "map": x,
            "text": "logits",
        }
        return forms[self.form]


def check_head(tapped: Tapped, features: Features) -> None:
    assert tapped.head is not None
    torch.testing.assert_close(tapped.head(features.embedding), features.logits)


@pytest.mark.parametrize("form", ["logits", "dict", "tuple"])
def test_every_form_of_output(form: str) -> None:
    net = Small(form).eval()
    tapped = Tapped(net)
    features = tapped(IMAGE)
    check_head(tapped, features)
    assert [tuple(s.shape[1:]) for s in features.stages] == [(4, 64, 64), (6, 32, 32)]
    first = net.relu(net.one(IMAGE))
    torch.testing.assert_close(features.stages[0], first)  # the first turn of the shared ReLU …
    torch.testing.assert_close(features.stages[1], net.relu(net.two(first)))  # … and its second


def test_object_output_with_logits() -> None:
    class Answer:
        def __init__(self, logits: Tensor) -> None:
            self.logits = logits

    class Wrapped(Small):
        def forward(self, x: Tensor) -> Any:
            return Answer(super().forward(x))

    tapped = Tapped(Wrapped().eval())
    check_head(tapped, tapped(IMAGE))


def test_logits_scaled_afterwards_have_one_possible_maker() -> None:
    tapped = Tapped(Small("scaled").eval())
    features = tapped(IMAGE)
    assert tapped.head is not None
    torch.testing.assert_close(2 * tapped.head(features.embedding), features.logits)


def test_torchvision_resnet18() -> None:
    net = torchvision.models.resnet18(num_classes=5).eval()
    tapped = Tapped(net)
    features = tapped(IMAGE)
    check_head(tapped, features)
    assert [tuple(s.shape[1:]) for s in features.stages] == [
        (64, 32, 32), (64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2)
    ]  # fmt: skip
    stem = net.maxpool(net.relu(net.bn1(net.conv1(IMAGE))))
    torch.testing.assert_close(features.stages[1], net.layer1(stem))
    torch.testing.assert_close(Tapped(net, embedding="avgpool")(IMAGE).embedding, features.embedding)
    torch.testing.assert_close(Tapped(net, embedding="layer4")(IMAGE).embedding, features.embedding)
    named = Tapped(net, stages=["layer1", "layer3"])(IMAGE).stages
    torch.testing.assert_close(named, (features.stages[1], features.stages[3]))


def test_stages_are_block_outputs_not_what_a_shrinking_block_computes_on_its_way() -> None:
    """A bottleneck's first 1 × 1 convolution still has the previous size."""
    torch.manual_seed(0)
    net = timm_model("resnet26", num_classes=5).eval()
    stages = Tapped(net)(IMAGE).stages
    assert [s.shape[1] for s in stages] == [64, 256, 512, 1024, 2048]
    torch.testing.assert_close(stages[1:], tuple(net.forward_intermediates(IMAGE, intermediates_only=True)[1:]))


def test_mobilenet_v3() -> None:
    tapped = Tapped(torchvision.models.mobilenet_v3_small(num_classes=5).eval())
    features = tapped(IMAGE)
    check_head(tapped, features)
    assert features.embedding.shape == (2, 1024)
    assert [(s.shape[1], s.shape[2]) for s in features.stages] == [(16, 32), (16, 16), (24, 8), (48, 4), (576, 2)]


def test_timm_convnext_and_channels_last_swin() -> None:
    convnext = timm_model("convnext_atto", num_classes=5).eval()
    tapped = Tapped(convnext)
    features = tapped(IMAGE)
    check_head(tapped, features)
    expected = convnext.forward_intermediates(IMAGE, intermediates_only=True)
    torch.testing.assert_close(features.stages, tuple(expected))
    swin = timm_model(
        "swin_tiny_patch4_window7_224", num_classes=5, img_size=64, window_size=4, embed_dim=12, depths=(1, 1, 1)
    )
    tapped = Tapped(swin.eval())
    features = tapped(IMAGE)
    check_head(tapped, features)
    assert [tuple(s.shape[1:]) for s in features.stages] == [(12, 16, 16), (24, 8, 8), (48, 4, 4)]


TINY: dict[str, Any] = {"img_size": 64, "patch_size": 16, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}


def test_class_token_of_a_deit() -> None:
    torch.manual_seed(0)
    net = timm_model("deit_tiny_patch16_224", **TINY).eval()
    tapped = Tapped(net)
    features = tapped(IMAGE)
    check_head(tapped, features)
    tokens = net.forward_features(IMAGE)  # after the last norm
    torch.testing.assert_close(features.embedding, tokens[:, 0])
    torch.testing.assert_close(Tapped(net, embedding="norm")(IMAGE).embedding, tokens[:, 0])
    assert features.stages == ()  # the patch embedding is no stage


def test_vit_without_class_token() -> None:
    torch.manual_seed(0)
    net = timm_model("vit_tiny_patch16_224", class_token=False, global_pool="avg", **TINY).eval()
    tapped = Tapped(net)
    features = tapped(IMAGE)
    check_head(tapped, features)
    torch.testing.assert_close(Tapped(net, embedding="blocks")(IMAGE).embedding, net.blocks(embed(net)).mean(dim=1))
    assert features.stages == ()


def embed(net: Any) -> Tensor:
    """The tokens that enter a timm transformer's blocks."""
    tokens: Tensor = net.norm_pre(net.patch_drop(net._pos_embed(net.patch_embed(IMAGE))))
    return tokens


def test_mean_of_tokens_leaves_the_class_token_out() -> None:
    net = timm_model("vit_tiny_patch16_224", class_token=True, global_pool="avg", fc_norm=False, **TINY).eval()
    tokens = net.forward_features(IMAGE)
    torch.testing.assert_close(Tapped(net, embedding="norm")(IMAGE).embedding, tokens[:, 1:].mean(dim=1))


def test_attention_matrices_are_no_stages() -> None:
    net = timm_model("vit_tiny_patch16_224", **TINY).eval()
    for block in net.blocks:
        block.attn.fused_attn = False  # the matrix then passes through a dropout module
    assert Tapped(net)(IMAGE).stages == ()


def test_pointwise_convolution_as_classifier() -> None:
    last = nn.Conv2d(8, 5, 1)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.AdaptiveAvgPool2d(1), last, nn.Flatten())
    tapped = Tapped(net)
    features = tapped(IMAGE)
    assert features.embedding.shape == (2, 8)
    torch.testing.assert_close(F.linear(features.embedding, last.weight.flatten(1), last.bias), features.logits)
    assert tapped.head is None  # a convolution is no nn.Linear


def test_a_network_that_gives_features_itself_is_left_alone() -> None:
    class Own(Small):
        def forward(self, x: Tensor) -> Features:
            logits = super().forward(x)
            return Features(logits, logits * 3, (x,))

    features = Tapped(Own().eval())(IMAGE)
    torch.testing.assert_close(features.embedding, features.logits * 3)
    assert len(features.stages) == 1


def test_a_classifier_that_pools_last() -> None:
    squeeze = torchvision.models.squeezenet1_1(num_classes=5).eval()  # convolution, ReLU, mean
    features = Tapped(squeeze)(IMAGE)
    torch.testing.assert_close(features.embedding, squeeze.features(IMAGE).mean(dim=(2, 3)))
    torch.testing.assert_close(Tapped(squeeze, embedding="features")(IMAGE).embedding, features.embedding)
    assert features.stages[-1].shape[1] == 512


def test_errors_name_what_could_be_meant() -> None:
    with pytest.raises(UserError, match=r"no module 'layer5'; did you mean .*'layer4'"):
        Tapped(torchvision.models.resnet18(), embedding="layer5")
    with pytest.raises(UserError, match="no module 'zzz'; known: one, two, relu, drop, fc"):
        Tapped(Small(), stages=["zzz"])
    with pytest.raises(UserError, match="cannot be a stage"):
        Tapped(Small(), stages=["fc"])(IMAGE)
    for form, words in (("map", "6 logits, but there are 5 classes"), ("text", "returns str")):
        with pytest.raises(UserError, match=words):
            Tapped(Small(form), classes=5)(IMAGE)

    class Skips(Small):
        def __init__(self) -> None:
            super().__init__()
            self.idle = nn.Linear(2, 2)

    with pytest.raises(UserError, match="'idle' gives no vector"):
        Tapped(Skips(), embedding="idle")(IMAGE)


def test_the_first_call_changes_neither_mode_nor_statistics_nor_randomness() -> None:
    net = torchvision.models.resnet18(num_classes=5)
    net.layer1.eval()
    tapped = Tapped(net)
    twin = copy.deepcopy(net)
    torch.manual_seed(1)
    features = tapped(IMAGE)
    torch.manual_seed(1)
    torch.testing.assert_close(features.logits, twin(IMAGE), rtol=0, atol=0)
    assert net.training
    assert not net.layer1.training
    for key, value in net.state_dict().items():
        assert torch.equal(value, twin.state_dict()[key]), key


def test_dropout_in_training_mode_keeps_head_of_embedding_equal_to_logits() -> None:
    tapped = Tapped(Small().train())
    for _ in range(3):
        check_head(tapped, tapped(IMAGE))


@pytest.mark.parametrize("precise", [True, False])
def test_gradient_flows_also_when_the_first_call_is_under_autocast(precise: bool) -> None:
    tapped = Tapped(Small().eval())
    with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
        features = tapped(IMAGE)
    (features.embedding.float().sum() + sum(s.float().sum() for s in features.stages)).backward()
    net = tapped.module
    assert isinstance(net, Small)
    assert net.one.weight.grad is not None
    assert net.one.weight.grad.abs().sum() > 0
    assert net.fc.weight.grad is None  # nothing asked for the logits
    with torch.no_grad():
        assert not tapped(IMAGE).embedding.requires_grad


def test_nothing_stays_behind() -> None:
    tapped = Tapped(Small())
    keys = list(tapped.state_dict())
    features = tapped(IMAGE)
    held = [weakref.ref(t) for t in (features.logits, features.embedding, *features.stages)]
    assert list(tapped.state_dict()) == keys == [f"module.{key}" for key in tapped.module.state_dict()]
    assert all(len(part._forward_hooks) == 0 for part in tapped.modules())
    del features
    gc.collect()
    assert all(ref() is None for ref in held)


def test_hooks_go_also_when_the_network_fails() -> None:
    tapped = Tapped(Small())
    with pytest.raises(RuntimeError):
        tapped(torch.zeros(2, 7, 8, 8))
    assert all(len(part._forward_hooks) == 0 for part in tapped.modules())
    assert tapped.training


def test_copies_are_independent() -> None:
    tapped = Tapped(Small().eval())
    before = tapped(IMAGE)
    copied = copy.deepcopy(tapped)
    file = io.BytesIO()
    torch.save(tapped, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (copied, loaded):
        torch.testing.assert_close(other(IMAGE).embedding, before.embedding)
    with torch.no_grad():
        tapped.module.get_parameter("one.weight").zero_()
    torch.testing.assert_close(copied(IMAGE).embedding, before.embedding)
    assert not torch.equal(tapped(IMAGE).embedding, before.embedding)


def test_threads_do_not_see_each_other() -> None:
    tapped = Tapped(Small().eval())
    images = [torch.rand(3, 3, 32, 32) for _ in range(4)]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            features = tapped(images[i])
            again = F.linear(features.embedding, tapped.module.get_parameter("fc.weight"))
            same = torch.allclose(again + tapped.module.get_parameter("fc.bias"), features.logits, atol=1e-6)
            if not same or features.stages[1].shape != (3, 6, 16, 16):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_smaller_images_than_the_first_keep_the_number_of_stages() -> None:
    tapped = Tapped(torchvision.models.resnet18(num_classes=5).eval())
    assert len(tapped(IMAGE).stages) == 5
    assert [s.shape[-1] for s in tapped(IMAGE[..., :32, :32]).stages] == [16, 8, 4, 2, 1]
