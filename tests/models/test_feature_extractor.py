"""Any network → Features: the embedding is what the classifier reads, stages are feature maps, nothing stays behind."""

import copy
import gc
import io
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torchvision.models.feature_extraction import create_feature_extractor

from antishortcut.errors import UserError
from antishortcut.methods import build_method
from antishortcut.models import FeatureExtractor, Network, build, feature_shapes, tapped_features
from antishortcut.models.user_models import try_out
from antishortcut.types import Batch, Features, Sizes
from tests.models import one_thread as one_thread

C, D = 5, 6
IMAGE = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Base(nn.Module):
    """Two maps and a pooled vector (B, D); one ReLU is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 3, padding=1)
        self.two = nn.Conv2d(4, D, 3, stride=2, padding=1)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(D, C)

    def maps(self, x: Tensor) -> Any:
        return self.relu(self.two(self.relu(self.one(x))))

    def vector(self, x: Tensor) -> Any:
        return self.maps(x).mean((2, 3))

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.vector(x))


def network(forward: Callable[[Any, Tensor], Any], **modules: Callable[[], nn.Module | nn.Parameter]) -> Base:
    """A Base with another forward and further modules."""
    torch.manual_seed(0)
    net: Base = type("Odd", (Base,), {"forward": forward})()
    for name, module in modules.items():
        setattr(net, name, module())
    return net


class Cosine(nn.Module):
    """Not a linear layer: cosines with a direction for every class."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(C, D))

    def forward(self, v: Tensor) -> Tensor:
        return 8 * F.linear(F.normalize(v), F.normalize(self.weight))


@dataclass
class Answer:
    hidden: Tensor
    logits: Tensor


class Tokens(nn.Module):
    """A transformer without a class token; `form` is where the mean is taken."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.patch = nn.Conv2d(3, 8, 8, 8)
        self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)))
        self.fc = nn.Linear(8, C)

    def tokens(self, x: Tensor) -> Any:
        return self.layers(self.patch(x).flatten(2).transpose(1, 2))  # (B, T, 8)

    def forward(self, x: Tensor) -> Any:
        if self.form == "maps":
            return self.fc(self.tokens(x)).transpose(1, 2).unflatten(2, (4, 4))
        return self.fc(self.tokens(x).mean(1))


class ChannelsLast(nn.Module):
    def __init__(self, dense: bool = False) -> None:
        super().__init__()
        self.dense = dense
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.mix = nn.Linear(8, 8)
        self.fc = nn.Linear(8, C)

    def maps(self, x: Tensor) -> Any:
        return self.mix(self.patch(x).permute(0, 2, 3, 1))  # (B, h, w, 8)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.maps(x)).permute(0, 3, 1, 2) if self.dense else self.fc(self.maps(x).mean((1, 2)))


def more_in_training(net: Any, x: Tensor) -> Any:
    v = net.vector(x)
    return (net.aux(v), net.fc(v)) if net.training else net.fc(v)


def linear() -> nn.Module:
    return nn.Linear(D, C)


def conv(kernel: int = 1) -> nn.Module:
    return nn.Conv2d(D, C, kernel, padding=kernel // 2)


def vector(net: Any, x: Tensor) -> Any:
    return net.vector(x)


Expected = Callable[[Any, Tensor], Tensor]
# name: (network, its embedding written out, number of stages)
WORK: dict[str, tuple[Callable[[], nn.Module], Expected, int]] = {
    "plain": (Base, vector, 2),
    "dict with logits": (lambda: network(lambda s, x: {"a": x, "loss": None, "logits": s.fc(s.vector(x))}), vector, 2),
    "tuple, logits second": (lambda: network(lambda s, x: (s.vector(x), s.fc(s.vector(x)))), vector, 2),
    "dataclass": (lambda: network(lambda s, x: Answer(s.vector(x), s.fc(s.vector(x)))), vector, 2),
    "scaled": (lambda: network(lambda s, x: s.fc(s.vector(x)).div(0.07).log_softmax(1)), vector, 2),
    "frozen": (lambda: Base().requires_grad_(False), vector, 2),
    "under no_grad": (lambda: network(torch.no_grad()(lambda s, x: s.fc(s.vector(x)))), vector, 2),
    "cosine head": (lambda: network(lambda s, x: s.head(s.vector(x)), head=Cosine), vector, 2),
    "MLP head": (
        lambda: network(
            lambda s, x: s.head(s.vector(x)), head=lambda: nn.Sequential(nn.Linear(D, 9), nn.ReLU(), nn.Linear(9, C))
        ),
        lambda s, x: F.relu(s.head[0](s.vector(x))),
        2,
    ),
    "two heads of two vectors": (
        lambda: network(lambda s, x: (s.fc((m := s.maps(x)).mean((2, 3))) + s.fc2(m.amax((2, 3)))) / 2, fc2=linear),
        lambda s, x: torch.cat([s.vector(x), s.maps(x).amax((2, 3))], 1),
        2,
    ),
    "pooled after the head": (lambda: network(lambda s, x: s.last(s.maps(x)).mean((2, 3)), last=conv), vector, 2),
    "tokens, mean before the head": (lambda: Tokens("before"), lambda s, x: s.tokens(x).mean(1), 2),
    "channels last": (ChannelsLast, lambda s, x: s.maps(x).mean((1, 2)), 1),
    "an auxiliary head first, in training": (lambda: network(more_in_training, aux=linear), vector, 2),
    "images prepared by modules of its own": (
        lambda: network(lambda s, x: s.fc(s.vector(s.larger(x))), larger=lambda: nn.Upsample(scale_factor=2)),
        lambda s, x: s.vector(s.larger(x)),
        2,
    ),
    "returns its embedding": (
        lambda: network(lambda s, x: {"logits": s.fc(v := s.vector(x)), "embedding": v * 2}),
        lambda s, x: s.vector(x) * 2,
        2,
    ),
    "returns Features": (
        lambda: network(lambda s, x: Features(s.fc(s.vector(x)), s.vector(x) * 3, (x,))),
        lambda s, x: s.vector(x) * 3,
        1,
    ),
    "data parallel": (lambda: nn.DataParallel(Base()), vector, 2),
    "compiled": (lambda: torch.compile(Base(), backend="eager"), vector, 2),  # type: ignore[dict-item,return-value]
}  # fmt: skip


def tried(net: nn.Module, embedding: str | None = None, classes: int = C) -> Network:
    wrapped = Network(FeatureExtractor(net, embedding, classes=classes), (0.0,) * 3, (1.0,) * 3)
    try_out(wrapped, "mine.nets:odd", 32, own=True)
    return wrapped


@pytest.mark.parametrize("name", WORK)
def test_networks_that_work_as_they_are(name: str) -> None:
    make, expected, stages = WORK[name]
    torch.manual_seed(0)
    net = make()
    bare: Any = getattr(net, "_orig_mod", net)
    bare = bare.module if isinstance(bare, nn.DataParallel) else bare
    before, rng = copy.deepcopy(bare.state_dict()), torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped = tried(net).eval()
    assert torch.equal(rng, torch.get_rng_state()), "the trial drew random numbers"
    assert all(torch.equal(value, before[key]) for key, value in bare.state_dict().items()), "the trial changed weights"
    features = wrapped(IMAGE)
    assert features.logits.shape == (3, C)
    torch.testing.assert_close(features.embedding, expected(bare, IMAGE))
    assert len(features.stages) == stages
    if wrapped.head is not None and name != "scaled":
        torch.testing.assert_close(wrapped.head(features.embedding), features.logits)
    learning = wrapped.train()(IMAGE)
    assert learning.embedding.shape == features.embedding.shape
    if name not in ("frozen", "under no_grad"):
        learning.logits.square().sum().backward()
        assert wrapped.head is None or wrapped.head.weight.grad is not None  # the main head, not the auxiliary one


def grey() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, C))


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(Base(), torch.rand(2, 3, 32, 32))  # type: ignore[no-any-return,no-untyped-call]


def matrix_head() -> Base:
    return network(lambda s, x: s.vector(x) @ s.matrix, matrix=lambda: nn.Parameter(torch.randn(D, C)))


def aux_beside_matrix() -> Base:
    """The module that runs last is not on the way to the logits."""
    net = network(lambda s, x: {"logits": (v := s.vector(x)) @ s.matrix, "side": s.side(v)})
    net.matrix, net.side = nn.Parameter(torch.randn(D, C)), nn.Linear(D, 3)
    return net


def moody(net: Any, x: Tensor) -> dict[str, Tensor]:
    v = net.vector(x)
    return {"logits": net.fc(v), "embedding": torch.cat([v, v], 1) if net.training else v}


def raises(net: Any, x: Tensor) -> Tensor:
    raise KeyError("image")


# name: (network, what the one line says)
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "no tensor": (lambda: network(lambda s, x: {"logits": None}), "returns dict; expected float logits"),
    "other classes": (lambda: network(lambda s, x: s.vector(x)), "6 logits, but there are 5 classes; let its factory"),
    "list of maps": (
        lambda: network(lambda s, x: [s.one(x), s.maps(x)]),
        r"returns 0 \(2, 4, 32, 32\) float32, 1 \(2, 6, 16, 16\) float32, none of them with 5 columns; expected",
    ),
    "integers": (lambda: network(lambda s, x: s.fc(s.vector(x)).long()), r"returns \(2, 5\) int64; expected float"),
    "a vector": (lambda: network(lambda s, x: s.fc(s.vector(x))[:, 0]), r"returns \(2,\) float32; expected float"),
    "grey": (grey, "takes 1 channels; images have 3, grey ones three equal ones"),
    "another argument": (
        lambda: network(lambda s, x, mask: s.fc(s.vector(x))),  # type: ignore[arg-type,misc]
        r"TypeError: .*missing 1 required positional argument: 'mask'.*forward must take images",
    ),
    "raises": (lambda: network(raises), r"KeyError: 'image' \(.*test_feature_extractor\.py line \d+\)"),
    "TorchScript": (scripted, r"TorchScript module cannot be read; give the nn\.Module"),
    "a matrix as head": (
        matrix_head, r"return \{'logits': .*, or name .*--set student.embedding=PATH \(candidates: relu, two, one;",
    ),
    "a matrix beside an auxiliary head": (aux_beside_matrix, r"\(candidates: relu, two, one;"),
    "a head used twice": (
        lambda: network(lambda s, x: (s.fc(s.vector(x)) + s.fc(s.vector(x.flip(3)))) / 2), "cannot tell where the emb",
    ),
    "moody": (lambda: network(moody), r"embedding of shape \(2, 6\) in evaluation, \(2, 12\) in training"),
    "too small": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 40), nn.Flatten(), nn.Linear(4, C)),
        r"cannot read images of 32 pixels: .*; use larger ones \(data\.image_size\)",
    ),
    "half precision": (lambda: Base().half(), "cannot read images of 32 pixels: RuntimeError: .*(type|dtype)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_networks_that_do_not_work_say_what_to_change(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(UserError, match=words) as caught:
        tried(make())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda s, x: s.fc(F.dropout(s.vector(x), 0.5, training=True)), "is random in evaluation mode"),
        (lambda s, x: s.fc(s.vector(x)).softmax(1), "returns probabilities, .* remove its last softmax"),
    ],
)
def test_usual_mistakes_give_a_warning(forward: Any, words: str) -> None:
    with pytest.warns(UserWarning, match=words):
        tried(network(forward))


def test_modules_may_be_named() -> None:
    net = torchvision.models.resnet18(num_classes=5).eval()
    features = FeatureExtractor(net)(IMAGE)
    for path in ("avgpool", "layer4"):  # maps are pooled
        torch.testing.assert_close(FeatureExtractor(net, embedding=path)(IMAGE).embedding, features.embedding)
    chosen = FeatureExtractor(net, stages=["layer1", "layer3"])
    torch.testing.assert_close(chosen(IMAGE).stages, (features.stages[1], features.stages[3]))
    assert chosen.summary == "embedding: input of fc; stages: layer1, layer3"
    odd = matrix_head()
    torch.testing.assert_close(
        tried(odd, "two").eval()(IMAGE).embedding,
        odd.get_submodule("two")(odd.get_submodule("relu")(odd.get_submodule("one")(IMAGE))).mean((2, 3)),
    )
    tokens = Tokens("before").eval()
    torch.testing.assert_close(tried(tokens, "layers").eval()(IMAGE).embedding, tokens.tokens(IMAGE).mean(1))
    assert FeatureExtractor(tokens, stages=["layers.0"])(IMAGE).stages[0].shape == (3, 8, 4, 4)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"embedding": "layer5"}, r"no module 'layer5'; did you mean .*'layer4'"),
        ({"stages": ["zzzz"]}, "no module 'zzzz'; known: conv1, bn1"),
        ({"stages": ["layer1", "fc"]}, r"'fc' gives no map .* stages = … \(maps: .*layer3"),
    ]
    for options, words in wrong:
        with pytest.raises(UserError, match=words):
            FeatureExtractor(net, **options)(IMAGE)


# name: (network, its embedding written out)
MAPS: dict[str, tuple[Callable[[], nn.Module], Expected]] = {
    "convolution": (lambda: network(lambda s, x: s.last(s.maps(x)), last=conv), lambda s, x: s.maps(x)),
    "enlarged, with aux": (
        lambda: network(
            lambda s, x: {"out": F.interpolate(s.last(s.maps(x)), x.shape[2:], mode="bilinear"), "aux": s.side(x)},
            last=lambda: conv(3),
            side=lambda: nn.Conv2d(3, C, 1),
        ),
        lambda s, x: s.maps(x),
    ),
    "transposed": (
        lambda: network(lambda s, x: s.last(s.maps(x)), last=lambda: nn.ConvTranspose2d(D, C, 2, 2)),
        lambda s, x: s.maps(x),
    ),
    "channels last": (lambda: ChannelsLast(dense=True), lambda s, x: s.maps(x).permute(0, 3, 1, 2)),
    "tokens": (lambda: Tokens("maps"), lambda s, x: s.tokens(x).transpose(1, 2).unflatten(2, (4, 4))),
}


@pytest.mark.parametrize("name", MAPS)
def test_maps_of_logits(name: str) -> None:
    make, embedding = MAPS[name]
    torch.manual_seed(0)
    net = make()
    wrapped = tried(net).eval()
    features: Features = wrapped(IMAGE)
    assert features.logits.ndim == 4
    torch.testing.assert_close(features.embedding, embedding(net, IMAGE))
    assert features.aux is None
    assert all(stage.shape[1] != C for stage in features.stages)  # maps of logits are no features
    aux = wrapped.train()(IMAGE).aux
    assert (aux is not None) is hasattr(net, "side")
    if aux is not None:
        torch.testing.assert_close(aux, net.get_submodule("side")(IMAGE))
    if not isinstance(net, Tokens):  # whole scenes have other proportions than crops
        wide: Features = wrapped.eval()(torch.rand(2, 3, 32, 64))
        assert wide.embedding.shape[3] == 2 * wide.embedding.shape[2]


TINY: dict[str, Any] = {"img_size": 64, "patch_size": 16, "embed_dim": 24, "depth": 8, "num_heads": 2, "num_classes": 5}
LARGER = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


SWIN: dict[str, Any] = {"img_size": 64, "window_size": 4, "embed_dim": 12, "depths": (1, 1, 1), "num_heads": (1, 2, 3)}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet26", {}),
        ("convnext_atto", {}),
        ("mobilenetv2_100", {}),
        ("swin_tiny_patch4_window7_224", SWIN),  # channels last
        ("levit_128s", {"img_size": 64}),  # tokens at three resolutions
    ],
)
def test_stages_of_a_hierarchical_timm_network_are_what_timm_says(name: str, options: dict[str, Any]) -> None:
    net: Any = timm.create_model(name, num_classes=5, **options).eval()
    expected = net.forward_intermediates(LARGER, intermediates_only=True, output_fmt="NCHW")
    features = FeatureExtractor(net)(LARGER)
    torch.testing.assert_close(features.stages, tuple(m for m in expected if m.shape[-1] > 1), rtol=0, atol=0)
    torch.testing.assert_close(features.logits, net(LARGER), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("resnet50", ["relu", "layer1", "layer2", "layer3", "layer4"]),  # no 1 × 1 convolution before a strided one
        ("densenet121", ["features.relu0", *(f"features.transition{i}.conv" for i in (1, 2, 3)), "relu"]),
        ("shufflenet_v2_x0_5", ["conv1", "maxpool", "stage2", "stage3", "conv5"]),
    ],
)
def test_stages_of_a_torchvision_network_are_the_last_maps_of_its_graph(name: str, nodes: list[str]) -> None:
    net = torchvision.models.get_model(name, num_classes=5).eval()
    expected = create_feature_extractor(net, nodes)(LARGER)
    torch.testing.assert_close(FeatureExtractor(net)(LARGER).stages, tuple(expected.values()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("deit_tiny_patch16_224", {}),
        ("deit_tiny_distilled_patch16_224", {}),
        ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}),
        ("vit_tiny_patch16_224", {"reg_tokens": 4}),
    ],
)
def test_stages_of_a_plain_transformer_are_what_timm_says(name: str, options: dict[str, Any]) -> None:
    """Evenly spaced blocks, without class and register tokens, as maps."""
    torch.manual_seed(0)
    net: Any = timm.create_model(name, **TINY, **options).eval()
    for block in net.blocks:
        block.attn.fused_attn = False  # attention matrices pass through a module, and are no stages
    extractor = FeatureExtractor(net)
    features = extractor(LARGER)
    expected = net.forward_intermediates(LARGER, [1, 3, 5, 7], intermediates_only=True, output_fmt="NCHW")
    torch.testing.assert_close(features.stages, tuple(expected))
    assert extractor.summary.endswith("stages: blocks.1, blocks.3, blocks.5, blocks.7")
    if "distilled" in name:  # two heads, read side by side
        first, second = features.embedding.chunk(2, dim=1)
        torch.testing.assert_close((net.head(first) + net.head_dist(second)) / 2, features.logits)
    else:
        torch.testing.assert_close(features.embedding, net.forward_head(net.forward_features(LARGER), pre_logits=True))
    if options != {"class_token": False, "global_pool": "avg"} and "distilled" not in name:
        torch.testing.assert_close(FeatureExtractor(net, embedding="norm")(LARGER).embedding, features.embedding)


@pytest.mark.parametrize(("teacher", "student"), [("timm:test_vit", "cnn-4"), ("cnn-4", "timm:test_vit")])
@pytest.mark.parametrize("method", ["fitnets", "at", "ab", "ft", "ofd", "reviewkd", "sp", "vid", "nst", "kdsvd"])
def test_feature_map_methods_take_transformers(method: str, teacher: str, student: str) -> None:
    torch.manual_seed(0)
    one, other = (build(name, 7, image_size=32, size=64 if ":" in name else None) for name in (teacher, student))
    shapes = feature_shapes(other, 32), {"final": feature_shapes(one, 32)}
    assert len(shapes[0].stages) == 4
    loss: Any = build_method(method, Sizes(7, 4, *shapes, torch.arange(4)), {})
    batch = Batch(torch.rand(4, 3, 32, 32), torch.arange(4), torch.arange(4))
    with torch.no_grad():
        target = tapped_features(one.eval(), batch.image, loss.taps)
    outputs = tapped_features(other, batch.image, loss.taps)
    sum(loss.terms(outputs, {"final": target}, batch, 40.0 if method == "ft" else 1.0).values()).backward()
    weights = [p.grad for key, p in other.named_parameters() if "head" not in key]
    assert any(grad is not None and grad.isfinite().all() and grad.any() for grad in weights)


def test_first_call_changes_neither_mode_nor_statistics_nor_randomness() -> None:
    net = torchvision.models.resnet18(num_classes=5)
    net.layer1.eval()
    extractor, twin = FeatureExtractor(net), copy.deepcopy(net)
    torch.manual_seed(1)
    features = extractor(IMAGE)
    torch.manual_seed(1)
    torch.testing.assert_close(features.logits, twin(IMAGE), rtol=0, atol=0)
    assert net.training
    assert not net.layer1.training
    for key, value in net.state_dict().items():
        assert torch.equal(value, twin.state_dict()[key]), key
    extractor.eval()
    assert [s.shape[-1] for s in extractor(IMAGE).stages] == [16, 8, 4, 2]  # at 32 pixels the last map is 1 × 1


@pytest.mark.parametrize("precise", [True, False])
def test_gradient_flows_also_when_the_first_call_is_under_autocast(precise: bool) -> None:
    extractor = FeatureExtractor(net := Base().eval())
    with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
        features = extractor(IMAGE)
    (features.embedding.float().sum() + sum(s.float().sum() for s in features.stages)).backward()
    assert net.one.weight.grad is not None
    assert net.one.weight.grad.abs().sum() > 0
    assert net.fc.weight.grad is None  # nothing used the logits
    other = FeatureExtractor(Base().eval())
    with torch.inference_mode():
        assert not other(IMAGE.clone()).embedding.requires_grad


def test_no_hooks_or_tensors_remain() -> None:
    extractor = FeatureExtractor(Base())
    features = extractor(IMAGE)
    held = [weakref.ref(t) for t in (features.logits, features.embedding, *features.stages)]
    assert list(extractor.state_dict()) == [f"module.{key}" for key in extractor.module.state_dict()]
    del features
    gc.collect()
    assert all(ref() is None for ref in held)
    with pytest.raises(RuntimeError):
        extractor(torch.zeros(2, 7, 8, 8))
    assert all(len(part._forward_hooks) == 0 for part in extractor.modules())
    assert extractor.training


def test_copies_are_independent() -> None:
    extractor = FeatureExtractor(Base().eval())
    before = extractor(IMAGE)
    torch.save(extractor, file := io.BytesIO())
    file.seek(0)
    copies = [copy.deepcopy(extractor), torch.load(file, weights_only=False)]
    with torch.no_grad():
        extractor.module.get_parameter("one.weight").zero_()
    for other in copies:
        torch.testing.assert_close(other(IMAGE).embedding, before.embedding)
    assert not torch.equal(extractor(IMAGE).embedding, before.embedding)


def test_randomly_skipped_stage_gives_no_stages() -> None:
    def forward(net: Any, x: Tensor) -> Any:
        maps = net.maps(x)
        if not net.training or torch.rand(()) < 0.5:
            maps = maps + net.deep(maps)
        return net.fc(maps.mean((2, 3)))

    wrapped = tried(network(forward, deep=lambda: nn.Conv2d(D, D, 3, padding=1)))
    assert len(wrapped.eval()(IMAGE).stages) == 2
    wrapped.train()
    assert {len(wrapped(IMAGE).stages) for _ in range(20)} == {0, 2}
