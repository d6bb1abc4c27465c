"""Odd networks: each works, with the embedding its logits are made of, or says in one line what to name or change."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.models import Network, Tapped
from antishortcut.models.hooks import woven
from antishortcut.models.trial import try_out
from antishortcut.types import Features
from tests.models import one_thread as one_thread

C, D = 5, 6
IMAGE = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Base(nn.Module):
    """Two maps and a pooled vector (B, D)."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 3, padding=1)
        self.two = nn.Conv2d(4, D, 3, stride=2, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(D, C)

    def maps(self, x: Tensor) -> Tensor:
        return F.relu(self.two(F.relu(self.one(x))))

    def vector(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.pool(self.maps(x))
        return pooled.flatten(1)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.vector(x))

    def out(self, v: Tensor) -> Any:
        return self.fc(v)


def made(forward: Callable[[Any, Tensor], Any], **parts: Callable[[], nn.Module | nn.Parameter]) -> Base:
    """A Base with another forward and further parts."""
    torch.manual_seed(0)
    net: Base = type("Odd", (Base,), {"forward": forward})()
    for name, part in parts.items():
        setattr(net, name, part())
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


class Slotted:
    __slots__ = ("scores",)

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores


class Named(NamedTuple):
    features: Tensor
    prediction: Tensor


class ModelOutput(OrderedDict[str, Any]):
    """Like Hugging Face's: a dict whose entries are attributes too."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def twice(net: Any, x: Tensor) -> Tensor:
    left, right = net.vector(x[..., :16]), net.vector(x[..., 16:])
    return (net.fc(left) + net.fc(right)) / 2  # type: ignore[no-any-return]


def two_heads(net: Any, x: Tensor) -> Tensor:
    v = net.vector(x)
    return net.fc(v) + net.fc2(v)  # type: ignore[no-any-return]


class Tokens(nn.Module):
    """A transformer without a class token, mean pooled; `form` is where the mean is taken."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.patch = nn.Conv2d(3, 8, 8, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.fc = nn.Linear(8, C)

    def forward(self, x: Tensor) -> Any:
        tokens = self.block(self.patch(x).flatten(2).transpose(1, 2))  # (B, T, 8)
        if self.form == "maps":
            return self.fc(tokens).transpose(1, 2).unflatten(2, (4, 4))
        return self.fc(tokens.mean(1)) if self.form == "before" else self.fc(tokens).mean(1)


class TokensFirst(Tokens):
    """The same with the batch second, torch's own default."""

    def __init__(self, form: str) -> None:
        super().__init__(form)
        self.block = nn.TransformerEncoderLayer(8, 2, 16)

    def forward(self, x: Tensor) -> Any:
        tokens = self.block(self.patch(x).flatten(2).permute(2, 0, 1))  # (T, B, 8)
        return self.fc(tokens.mean(0)) if self.form == "before" else self.fc(tokens).mean(0)


class Queries(nn.Module):
    """Every class asks the image; no vector is shared by all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 8, 8)
        self.query = nn.Parameter(torch.randn(1, C, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.fc = nn.Linear(8, 1)

    def tokens(self, x: Tensor) -> Tensor:
        return self.patch(x).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        answers, _ = self.attention(self.query.expand(len(x), -1, -1), self.tokens(x), self.tokens(x))  # (B, C, 8)
        return self.fc(answers).squeeze(2)  # type: ignore[no-any-return]


class Waves(nn.Module):
    """Complex weights first."""

    def __init__(self) -> None:
        super().__init__()
        self.complex = nn.Linear(3, 8, dtype=torch.complex64)
        self.fc = nn.Linear(8, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.complex(torch.fft.fft2(x).mean((2, 3))).abs())  # type: ignore[no-any-return]


class Last(nn.Module):
    """Maps with channels last, all the way."""

    def __init__(self, dense: bool = False) -> None:
        super().__init__()
        self.dense = dense
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.mix = nn.Linear(8, 8)
        self.fc = nn.Linear(8, C)

    def forward(self, x: Tensor) -> Any:
        maps = self.mix(self.patch(x).permute(0, 2, 3, 1))  # (B, h, w, 8)
        return self.fc(maps).permute(0, 3, 1, 2) if self.dense else self.fc(maps.mean((1, 2)))


class Modes(Base):
    """In training also what an auxiliary head says; `main` is the place of the other."""

    def __init__(self, main: int = 0) -> None:
        super().__init__()
        self.main = main
        self.aux = nn.Linear(D, C)

    def out(self, v: Tensor) -> Any:
        if not self.training:
            return self.fc(v)
        return (self.fc(v), self.aux(v)) if self.main == 0 else (self.aux(v), self.fc(v))


class Shared(Base):
    """One block under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.again = self.two

    def maps(self, x: Tensor) -> Tensor:
        return F.relu(self.again(F.relu(self.one(x))))


def zero_heads() -> nn.Module:
    """Two heads, averaged, that start at zero: every value is the same."""
    net = made(lambda s, x: (s.fc(s.vector(x)) + s.fc2(s.vector(x).square())) / 2, fc2=lambda: nn.Linear(D, C))
    for part in (net.fc, net.get_submodule("fc2")):
        for weight in part.parameters():
            nn.init.zeros_(weight)
    return net


def matmul(net: Any, x: Tensor) -> Tensor:
    return net.vector(x) @ net.matrix  # type: ignore[no-any-return]


def pooled_matmul(net: Any, x: Tensor) -> Tensor:
    return net.maps(x).mean((2, 3)) @ net.matrix  # type: ignore[no-any-return]


def matrix() -> nn.Parameter:
    return nn.Parameter(torch.randn(D, C, generator=torch.Generator().manual_seed(1)))


def own_precision(net: Any, x: Tensor) -> Tensor:
    vectors = net.vector(x).bfloat16(), net.maps(x).amax((2, 3)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        logits: Tensor = net.fc(vectors[0]) + net.fc2(vectors[1])
    return logits.float()


def features_first(net: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    v = F.relu(net.narrow(net.vector(x)))
    return v, net.last(v)


def enlarged() -> nn.Module:
    return nn.Upsample(scale_factor=2)


def vector(net: Any, x: Tensor) -> Tensor:
    return net.vector(x)  # type: ignore[no-any-return]


Expected = Callable[[Any, Tensor], Tensor]
# name: (network, its embedding written out, number of stages)
WORK: dict[str, tuple[Callable[[], nn.Module], Expected, int]] = {
    "dict with logits": (lambda: made(lambda s, x: {"a": x, "logits": s.fc(s.vector(x))}), vector, 2),
    "dict with out": (lambda: made(lambda s, x: {"features": s.vector(x), "out": s.fc(s.vector(x))}), vector, 2),
    "dict with pred": (lambda: made(lambda s, x: {"pred": s.fc(s.vector(x))}), vector, 2),
    "dict with another word": (lambda: made(lambda s, x: {"z": s.vector(x), "y": s.fc(s.vector(x))}), vector, 2),
    "tuple, logits second": (lambda: made(lambda s, x: (s.vector(x), s.fc(s.vector(x)))), vector, 2),
    "list": (lambda: made(lambda s, x: [s.fc(s.vector(x)), s.maps(x)]), vector, 2),
    "named tuple": (lambda: made(lambda s, x: Named(x, s.fc(s.vector(x)))), vector, 2),
    "dataclass": (lambda: made(lambda s, x: Answer(s.vector(x), s.fc(s.vector(x)))), vector, 2),
    "slots": (lambda: made(lambda s, x: Slotted(s.fc(s.vector(x)))), vector, 2),
    "model output": (lambda: made(lambda s, x: ModelOutput(loss=None, logits=s.fc(s.vector(x)))), vector, 2),
    "logits of 1 × 1": (lambda: made(lambda s, x: s.fc(s.vector(x))[:, :, None, None]), vector, 2),
    "scaled": (lambda: made(lambda s, x: s.fc(s.vector(x)).div(0.07).log_softmax(1)), vector, 2),
    "cosine head": (lambda: made(lambda s, x: s.head(s.vector(x)), head=Cosine), vector, 2),
    "MLP head": (
        lambda: made(
            lambda s, x: s.head(s.vector(x)), head=lambda: nn.Sequential(nn.Linear(D, 9), nn.ReLU(), nn.Linear(9, C))
        ),
        lambda s, x: F.relu(s.head[0](s.vector(x))),
        2,
    ),
    "a matrix as head": (lambda: made(matmul, matrix=matrix), vector, 2),
    "a matrix after a pooling by hand": (
        lambda: made(pooled_matmul, matrix=matrix),
        lambda s, x: s.two(F.relu(s.one(x))).mean((2, 3)),  # the last module's result, pooled
        2,
    ),
    "head used twice": (
        lambda: made(twice),
        lambda s, x: (s.vector(x[..., :16]) + s.vector(x[..., 16:])) / 2,
        0,  # maps of halves have not the image's proportions
    ),
    "two heads of one vector": (
        lambda: made(two_heads, fc2=lambda: nn.Linear(D, C)),
        vector,
        2,
    ),
    "two heads of two vectors": (
        lambda: made(lambda s, x: (s.fc(s.vector(x)) + s.fc2(s.maps(x).amax((2, 3)))) / 2, fc2=lambda: nn.Linear(D, C)),
        lambda s, x: torch.cat([s.vector(x), s.maps(x).amax((2, 3))], 1),
        2,
    ),
    "heads that start at zero": (zero_heads, lambda s, x: torch.cat([s.vector(x), s.vector(x).square()], 1), 2),
    "pooled after the head": (
        lambda: made(lambda s, x: s.last(s.maps(x)).mean((2, 3)), last=lambda: nn.Conv2d(D, C, 1)),
        vector,
        2,
    ),
    "a wide convolution pooled after it": (
        lambda: made(lambda s, x: s.last(s.maps(x)).mean((2, 3)), last=lambda: nn.Conv2d(D, C, 3, padding=1)),
        vector,  # not the logits once more
        2,
    ),
    "a wide convolution, the largest of its places": (
        lambda: made(lambda s, x: s.last(s.maps(x)).amax((2, 3)), last=lambda: nn.Conv2d(D, C, 3, padding=1)),
        vector,
        2,
    ),
    "two heads in a precision of its own": (
        lambda: made(own_precision, fc2=lambda: nn.Linear(D, C)),
        lambda s, x: torch.cat([s.vector(x), s.maps(x).amax((2, 3))], 1).bfloat16(),
        2,
    ),
    "tokens, mean before": (
        lambda: Tokens("before"),
        lambda s, x: s.block(s.patch(x).flatten(2).transpose(1, 2)).mean(1),
        0,
    ),
    "tokens, mean after": (
        lambda: Tokens("after"),
        lambda s, x: s.block(s.patch(x).flatten(2).transpose(1, 2)).mean(1),
        0,
    ),
    "tokens, mean over the first": (
        lambda: TokensFirst("after"),
        lambda s, x: s.block(s.patch(x).flatten(2).permute(2, 0, 1)).mean(0),
        0,
    ),
    "tokens as channels of a sequence": (
        lambda: made(lambda s, x: s.last(s.maps(x).flatten(2)).mean(2), last=lambda: nn.Conv1d(D, C, 1)),
        vector,
        2,
    ),
    "attention of a query for every class": (
        Queries,
        lambda s, x: s.attention(s.query.expand(len(x), -1, -1), s.tokens(x), s.tokens(x))[0].mean(1),
        0,
    ),
    "features as wide as there are classes, first": (
        lambda: made(lambda s, x: features_first(s, x), narrow=lambda: nn.Linear(D, C), last=lambda: nn.Linear(C, C)),
        lambda s, x: F.relu(s.narrow(s.vector(x))),
        2,
    ),
    "nested dict": (
        lambda: made(lambda s, x: {"head": {"main": s.fc(s.vector(x))}, "emb": s.vector(x)}),
        vector,
        2,
    ),
    "nested tuple": (lambda: made(lambda s, x: (s.vector(x), [s.maps(x), s.fc(s.vector(x))])), vector, 2),
    "an auxiliary answer first, in training": (lambda: Modes(main=1), vector, 2),
    "images prepared by modules of its own": (
        lambda: made(lambda s, x: s.fc(s.vector(s.larger(s.same(x)))), same=nn.Identity, larger=enlarged),
        lambda s, x: s.vector(s.larger(x)),
        2,  # none of them is the image
    ),
    "complex weights": (lambda: Waves(), lambda s, x: s.complex(torch.fft.fft2(x).mean((2, 3))).abs(), 0),
    "channels last": (Last, lambda s, x: s.mix(s.patch(x).permute(0, 2, 3, 1)).mean((1, 2)), 1),
    "more in training": (Modes, vector, 2),
    "shared modules": (Shared, vector, 2),
    "says its embedding": (
        lambda: made(lambda s, x: {"logits": s.fc(s.vector(x)), "embedding": s.vector(x) * 2}),
        lambda s, x: s.vector(x) * 2,
        2,
    ),
    "data parallel": (lambda: nn.DataParallel(made(lambda s, x: s.fc(s.vector(x)))), vector, 2),
}


def tried(net: nn.Module, embedding: str | None = None, classes: int = C, side: int = 32) -> Network:
    network = Network(Tapped(net, embedding, classes=classes), (0.0,) * 3, (1.0,) * 3)
    try_out(network, "mine.nets:odd", side, own=True)
    return network


@pytest.mark.parametrize("name", WORK)
def test_odd_networks_that_work(name: str) -> None:
    make, expected, stages = WORK[name]
    torch.manual_seed(0)
    net = make()
    bare = net.module if isinstance(net, nn.DataParallel) else net
    before = copy.deepcopy(net.state_dict())
    rng = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = tried(net).eval()
    assert torch.equal(rng, torch.get_rng_state()), "the trial drew random numbers"
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key]), f"the trial changed {key}"
    features = network(IMAGE)
    assert features.logits.shape == (3, C)
    torch.testing.assert_close(features.embedding, expected(bare, IMAGE))
    assert len(features.stages) == stages
    network.train()
    if network.head is not None and name not in ("scaled", "head used twice"):
        torch.testing.assert_close(network.head(features.embedding), features.logits)
    learning = network(IMAGE)
    assert learning.embedding.shape == features.embedding.shape
    learning.logits.square().sum().backward()
    if network.head is not None:  # which is what learns, not an answer beside it
        assert network.head.weight.grad is not None
    reached = [p for p in network.parameters() if p.grad is not None and p.grad.abs().sum() > 0]
    assert reached or name == "heads that start at zero"
    alone = network.eval()(IMAGE[:1])  # the embedding is the image's own
    torch.testing.assert_close(alone.embedding, features.embedding[:1], rtol=1e-4, atol=1e-5)


class Wide(Base):
    """Features e, as wide as there are classes, before the logits y; `form` is what it returns of them."""

    def __init__(self, form: Callable[[Any, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.form = form
        self.norm = nn.BatchNorm2d(D)
        self.narrow = nn.Linear(D, C)
        self.last = nn.Linear(C, C)
        self.side = nn.Linear(C, C)
        self.drop = nn.Dropout(0.5)
        self.softmax = nn.Softmax(1)
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.register_buffer("prior", torch.randn(C, generator=torch.Generator().manual_seed(1)))
        self.register_buffer("frame", torch.randn(D, C, generator=torch.Generator().manual_seed(2)))

    def maps(self, x: Tensor) -> Tensor:
        return self.norm(super().maps(x))  # type: ignore[no-any-return]

    def out(self, v: Tensor) -> Any:
        self.v: Tensor = v
        self.e: Tensor = self.narrow(v)
        self.y: Tensor = self.last(self.drop(F.relu(self.e)))
        return self.form(self, self.e, self.y)


@dataclass
class Pair:
    feature: Tensor
    answer: Tensor


def second(output: Any) -> Any:
    return output[1]


def aux_in_training(s: Any, e: Tensor, y: Tensor) -> Any:
    return (2 * s.side(e), 2 * y) if s.training else 2 * y


# name: (what is returned, which of it are the logits)
WIDE: dict[str, tuple[Callable[[Any, Tensor, Tensor], Any], Callable[[Any], Tensor]]] = {
    "tuple": (lambda s, e, y: (e, y), second),
    "normalised": (lambda s, e, y: (F.normalize(e), y), second),
    "a copy": (lambda s, e, y: (e.clone(), y), second),
    "without gradient": (lambda s, e, y: (e.detach(), y), second),
    "scaled": (lambda s, e, y: (e, 2 * y), second),
    "scaled by a weight": (lambda s, e, y: (y, s.scale * y), second),
    "dict": (lambda s, e, y: {"z": e, "a": y}, lambda o: o["a"]),
    "a usual name": (lambda s, e, y: {"out": e, "a": y}, lambda o: o["a"]),
    "dataclass": (lambda s, e, y: Pair(e, y), lambda o: o.answer),
    "nested": (lambda s, e, y: {"emb": e, "head": {"main": y}}, lambda o: o["head"]["main"]),
    "maps": (lambda s, e, y: (e[:, :, None, None].expand(-1, -1, 4, 4), y), second),
    "logits named": (lambda s, e, y: {"after": s.side(y), "logits": y}, lambda o: o["logits"]),
    "logits first": (lambda s, e, y: (y, e), lambda o: o[0]),
    "probabilities": (lambda s, e, y: (y, F.softmax(y, 1)), lambda o: o[0]),
    "probabilities by a module": (lambda s, e, y: (y, s.softmax(y)), lambda o: o[0]),
    "a prior": (lambda s, e, y: (y, y - s.prior), lambda o: o[0]),
    "a fixed matrix": (lambda s, e, y: (s.v @ s.frame, e), lambda o: o[0]),
    "two heads": (lambda s, e, y: (y, s.side(e)), lambda o: o[0]),
    "an auxiliary head by name": (lambda s, e, y: {"aux": s.side(e), "main": y}, lambda o: o["main"]),
    "more in training": (lambda s, e, y: (e, 2 * y, s.side(e)) if s.training else (e, 2 * y), second),
    "an auxiliary answer first, in training, scaled": (aux_in_training, lambda o: second(o) if len(o) == 2 else o),
}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", WIDE)
def test_features_as_wide_as_the_logits_are_told_from_them(name: str, frozen: bool) -> None:
    form, logits = WIDE[name]
    torch.manual_seed(0)
    net = Wide(form).requires_grad_(not frozen)
    before, rng = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    network = tried(net)
    assert torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert all(p.grad is None and p.requires_grad is not frozen for p in net.parameters())
    assert net.training
    copy.deepcopy(network)  # nothing it remembers has a graph
    returned: list[Any] = []
    net.register_forward_hook(lambda _, args, output: returned.append(output))
    for training in (False, True):
        for _ in range(2):
            found = network.train(training)(IMAGE)
            torch.testing.assert_close(found.logits, logits(returned[-1]), rtol=0, atol=0)


def test_features_as_wide_as_logits_that_start_at_zero() -> None:
    net = Wide(WIDE["tuple"][0])
    nn.init.zeros_(net.last.weight)
    nn.init.zeros_(net.last.bias)
    network = tried(net)
    assert isinstance(network.body, Tapped)
    assert network.body.heads == ("last",)
    assert not network(IMAGE).logits.any()


def test_features_as_wide_as_logits_that_are_scaled() -> None:
    net = made(lambda s, x: (s.vector(x), 2 * s.last(s.vector(x))), last=lambda: nn.Linear(D, D))
    network = tried(net, classes=D)
    assert isinstance(network.body, Tapped)
    assert network.body.heads == ("last",)

    def forward(net: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = net.fc(net.vector(x))
        return logits, net.gain * logits

    net = made(forward, gain=lambda: nn.Parameter(torch.tensor(3.0)))
    network = tried(net)
    assert isinstance(network.body, Tapped)
    assert network.body.heads == ("fc",)  # what it gives is returned too, but goes into another
    torch.testing.assert_close(network(IMAGE).logits, 3 * net.fc(net.vector(IMAGE)))


@pytest.mark.parametrize("training", [False, True])
def test_looking_for_the_logits_leaves_nothing_behind(training: bool) -> None:
    class Restless(Wide):
        def __init__(self) -> None:
            super().__init__(lambda s, e, y: (e, y))
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Any:
            self.get_buffer("count").add_(1)
            return super().forward(F.dropout(x.sub_(0.5), 0.5, training=True))

    net = Restless().requires_grad_(False)
    net.norm.eval()
    before, rng, image = copy.deepcopy(net.state_dict()), torch.get_rng_state(), IMAGE.clone()
    with torch.inference_mode():
        behind = woven(net, IMAGE, training)
    assert behind["0"] < behind["1"]
    assert torch.equal(rng, torch.get_rng_state())
    assert torch.equal(image, IMAGE)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert all(p.grad is None and not p.requires_grad for p in net.parameters())
    assert net.training
    assert not net.norm.training


def test_without_any_gradient_features_are_seen_to_go_into_a_layer() -> None:
    class Detached(Wide):
        @torch.no_grad()
        def forward(self, x: Tensor) -> Any:
            return super().forward(x)

        def out(self, v: Tensor) -> Any:
            e = F.relu(self.narrow(v))
            return e, self.last(e)

    net = Detached(lambda s, e, y: y)
    torch.testing.assert_close(tried(net).eval()(IMAGE).logits, net(IMAGE)[1])


def grey() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, C))


def scripted() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, C))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(body, torch.rand(2, 3, 32, 32))  # type: ignore[no-any-return,no-untyped-call]


class Silent(nn.Module):
    pass


class Moody(Base):
    """Another width of the embedding in training."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(2 * D, C)

    def out(self, v: Tensor) -> Any:
        return {"logits": self.fc(v), "embedding": torch.cat([v, v], 1) if self.training else v}


def raises(net: Any, x: Tensor) -> Tensor:
    raise KeyError("image")


def refuses(net: Any, x: Tensor) -> Tensor:
    raise ValueError("Input image size (32*32) doesn't match model (224*224).")


class Bare(nn.Module):
    """Weights, but no modules."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(C, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.mean((2, 3)), self.matrix)


def unknown(net: Any, x: Tensor) -> Tensor:
    """Logits that depend on the image in two ways, neither by a layer of that width."""
    return net.maps(x).mean((2, 3)) @ net.matrix + x.mean((2, 3)) @ net.matrix[:3]  # type: ignore[no-any-return]


# name: (network, what the one line says)
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "no tensor": (
        lambda: made(lambda s, x: {"logits": None, "n": 3}),
        r"returns dict of logits, n, no tensor; wanted: l",
    ),
    "text": (lambda: made(lambda s, x: "cat"), "returns str, no tensor"),
    "dict without logits": (
        lambda: made(lambda s, x: {"z": s.vector(x)}),
        r"6 logits, but there are 5 classes; let its",
    ),
    "list of maps": (
        lambda: made(lambda s, x: [s.one(x), s.maps(x)]),
        r"returns tensors 0 \(2, 4, 32, 32\), 1 \(2, 6, 16, 16\), none with 5 columns; return logits, .*'logits'",
    ),
    "nested, too narrow": (
        lambda: made(lambda s, x: {"head": {"main": s.fc(s.vector(x))[:, 1:]}, "emb": s.vector(x)}),
        r"returns tensors emb \(2, 6\), head\.main \(2, 4\), none with 5 columns; return logits",
    ),
    "nested, usual name beside": (
        lambda: made(lambda s, x: {"out": s.vector(x), "more": [s.one(x)]}),
        "6 logits, but there are 5 classes; let its factory",
    ),
    "nested, no tensor": (lambda: made(lambda s, x: {"head": {"main": None}}), "returns dict of head, no tensor"),
    "channels last maps": (
        lambda: made(lambda s, x: s.fc(s.maps(x).permute(0, 2, 3, 1))),
        r"channels last; return them as \.permute\(0, 3, 1, 2\)",
    ),
    "a vector": (lambda: made(lambda s, x: s.fc(s.vector(x))[:, 0]), r"tensor of shape \(2,\); wanted: logits"),
    "integers": (
        lambda: made(lambda s, x: s.fc(s.vector(x)).long()),
        "int64 values; wanted: real logits, before argmax",
    ),
    "complex": (lambda: made(lambda s, x: s.fc(s.vector(x)) + 1j), "complex64 values; wanted: real logits"),
    "grey": (grey, "takes 1 channels; networks receive 3 channels, grey images as three equal ones"),
    "another argument": (
        lambda: made(lambda s, x, mask: s.fc(s.vector(x))),  # type: ignore[arg-type,misc]
        "cannot be called with images alone: missing a required argument: 'mask'; give",
    ),
    "an attribute that is not there": (
        lambda: made(lambda s, x: s.fc(s.vector(s.nothing(x)))),
        r"test_odd\.py line \d+\); networks are called with images",
    ),
    "raises": (lambda: made(raises), r"KeyError: 'image' \(.*test_odd\.py line \d+\)"),
    "no forward": (Silent, "has no forward"),
    "TorchScript": (scripted, r"TorchScript module shows nothing .* give the nn\.Module .* or let it return"),
    "two ways": (lambda: made(unknown, matrix=matrix), r"cannot tell .* name it: embedding = … \(candidates: "),
    "moody": (Moody, r"embedding of shape \(2, 6\) in evaluation, \(2, 12\) in training"),
    "too small": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 40), nn.Flatten(), nn.Linear(4, C)),
        r"cannot read images of 32 pixels: .*; give larger ones \(data\.image_size\)",
    ),
    "one size, checked by itself": (
        lambda: made(refuses),
        r"cannot read images of 32 pixels: ValueError: .*size = … beside its name",
    ),
    "half precision": (
        lambda: made(lambda s, x: s.fc(s.vector(x))).half(),
        r"has weights of float16 and images are float32: return it as \.float\(\)",
    ),
    "double precision": (
        lambda: made(lambda s, x: s.fc(s.vector(x))).double(),
        r"has weights of float64 and images are float32: return it as \.float\(\)",
    ),
    "nothing to name": (Bare, r"cannot tell which .* no module of it gives one, so let it return \{'logits'"),
    "one size": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, C)),
        r"cannot read images of 32 pixels: .*size = … beside its name",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_odd_networks_that_say_what_to_change(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(UserError, match=words) as told:
        tried(make())
    assert "\n" not in str(told.value)
    assert "mine.nets:odd" in str(told.value)


def test_one_logit_for_two_classes() -> None:
    with pytest.raises(UserError, match="one logit an image; give two"):
        tried(made(lambda s, x: s.fc(s.vector(x))[:, :1]), classes=2)


def test_randomness_in_evaluation_is_told() -> None:
    net = made(lambda s, x: s.fc(F.dropout(s.vector(x), 0.5, training=True)))
    with pytest.warns(UserWarning, match=r"differently in evaluation mode; let randomness heed self\.training"):
        tried(net)


@pytest.mark.parametrize("mode", ["evaluation", "training"])
def test_probabilities_in_place_of_logits_are_told(mode: str) -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        logits: Tensor = net.fc(net.vector(x))
        return logits.softmax(1) if net.training == (mode == "training") else logits

    with pytest.warns(UserWarning, match=f"gives probabilities in {mode} mode, .*leave the softmax at its end off"):
        tried(made(forward))


def test_logits_that_are_no_numbers_hide_no_layer() -> None:
    network = tried(made(lambda s, x: s.fc(s.vector(x)) * float("nan")))
    assert isinstance(network.body, Tapped)
    assert network.body.heads == ("fc",)


def test_a_path_named_by_hand_settles_what_cannot_be_told() -> None:
    net = made(unknown, matrix=matrix)
    features = tried(net, "two").eval()(IMAGE)
    torch.testing.assert_close(features.embedding, net.two(F.relu(net.one(IMAGE))).mean((2, 3)))
    first = TokensFirst("before")
    tokens = first.eval().block(first.patch(IMAGE).flatten(2).permute(2, 0, 1))
    torch.testing.assert_close(tried(first, "block").eval()(IMAGE).embedding, tokens.mean(0))
    with pytest.raises(UserError, match=r"no module 'to'; did you mean 'two'"):
        tried(made(unknown, matrix=matrix), "to")
    torch.testing.assert_close(  # the second name of a shared module is a name too
        tried(Shared(), "again").eval()(IMAGE).embedding.shape, torch.Size((3, D))
    )


class Sequences(nn.Module):
    """Channels before places, as Conv1d has them; a matrix of its own at the end."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 8, stride=8)  # 16 places
        self.deep = nn.Sequential(nn.Conv1d(8, D, 1), nn.BatchNorm1d(D), nn.ReLU())
        self.fc = nn.Linear(D, C)
        self.own = own

    def forward(self, x: Tensor) -> Tensor:
        v = self.deep(self.patch(x).flatten(2)).mean(2)
        return v @ self.fc.weight.T if self.own else self.fc(v)  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", ["deep", "deep.0", "deep.1", "deep.2", None])
def test_sequences_with_channels_first_are_pooled_over_places(path: str | None) -> None:
    torch.manual_seed(0)
    net = Sequences(own=path is None)
    found = tried(net, path).eval()(IMAGE).embedding  # without a name: the last result that all passes through
    with torch.no_grad():
        rows = net.patch(IMAGE).flatten(2)
        for part in list(net.deep)[: 1 + int(path[-1]) if path and path[-1].isdigit() else 3]:
            rows = part(rows)
    torch.testing.assert_close(found, rows.mean(2))


def test_a_stage_that_is_skipped_at_random_stops_nobody_who_needs_none() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        maps = net.maps(x)
        if not net.training or torch.rand(()) < 0.5:
            maps = maps + net.deep(maps)
        return net.fc(maps.mean((2, 3)))  # type: ignore[no-any-return]

    network = tried(made(forward, deep=lambda: nn.Conv2d(D, D, 3, padding=1)))
    assert len(network.eval()(IMAGE).stages) == 2
    network.train()
    assert {len(network(IMAGE).stages) for _ in range(20)} == {0, 2}  # all of them, or none


def test_compiled_modules_are_read_as_they_were() -> None:
    for wrap in ("whole", "part", "in place"):
        net = made(lambda s, x: s.fc(s.vector(x)))
        keys = list(net.state_dict())
        whole: Any = net
        if wrap == "whole":
            whole = torch.compile(net, backend="eager")
        elif wrap == "part":
            net.two = torch.compile(net.two, backend="eager")  # type: ignore[assignment]
        else:
            net.compile(backend="eager")
        network = tried(whole).eval()
        torch.testing.assert_close(network(IMAGE).embedding, net.vector(IMAGE))
        assert list(network.state_dict()) == [f"body.module.{key}" for key in keys]


def test_a_scripted_network_may_say_its_embedding() -> None:
    class Says(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.fc = nn.Linear(4, C)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            v = self.conv(x).mean((2, 3))
            return {"logits": self.fc(v), "embedding": v}

    net = Says()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.trace(net, IMAGE, strict=False)  # type: ignore[no-untyped-call]
    features = tried(script)(IMAGE)
    torch.testing.assert_close(features.embedding, net.conv(IMAGE).mean((2, 3)))
    assert features.stages == ()


@pytest.mark.parametrize(
    ("make", "embedding"),
    [
        (lambda: made(lambda s, x: s.last(s.maps(x)), last=lambda: nn.Conv2d(D, C, 1)), lambda s, x: s.maps(x)),
        (
            lambda: made(
                lambda s, x: {"out": F.interpolate(s.last(s.maps(x)), x.shape[2:], mode="bilinear"), "aux": s.side(x)},
                last=lambda: nn.Conv2d(D, C, 3, padding=1),
                side=lambda: nn.Conv2d(3, C, 1),
            ),
            lambda s, x: s.maps(x),
        ),
        (
            lambda: made(lambda s, x: s.last(s.maps(x)), last=lambda: nn.ConvTranspose2d(D, C, 2, 2)),
            lambda s, x: s.maps(x),
        ),
        (lambda: Last(dense=True), lambda s, x: s.mix(s.patch(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)),
        (
            lambda: Tokens("maps"),
            lambda s, x: s.block(s.patch(x).flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, (4, 4)),
        ),
    ],
    ids=["convolution", "enlarged, with aux", "transposed", "channels last", "tokens"],
)
def test_maps_of_logits(make: Callable[[], nn.Module], embedding: Expected) -> None:
    torch.manual_seed(0)
    net = make()
    network = tried(net).eval()
    features: Features = network(IMAGE)
    assert features.logits.ndim == 4
    assert features.logits.shape[:2] == (3, C)
    torch.testing.assert_close(features.embedding, embedding(net, IMAGE))
    assert features.aux is None
    assert all(stage.shape[1] != C for stage in features.stages)  # maps of logits are no features
    aux = network.train()(IMAGE).aux
    assert (aux is not None) is hasattr(net, "side")
    if aux is not None:
        torch.testing.assert_close(aux, net.get_submodule("side")(IMAGE))
    if not isinstance(net, Tokens):  # whole scenes have other proportions than crops
        wide: Features = network.eval()(torch.rand(2, 3, 32, 64))
        assert wide.embedding.shape[3] == 2 * wide.embedding.shape[2]


def test_a_named_embedding_of_maps_stays_a_map() -> None:
    net = made(lambda s, x: s.last(s.maps(x)), last=lambda: nn.Conv2d(D, C, 1))
    torch.testing.assert_close(tried(net, "one").eval()(IMAGE).embedding, net.one(IMAGE))
    tokens = Tokens("maps")
    assert tried(tokens, "block").eval()(IMAGE).embedding.shape == (3, 8, 4, 4)
    with pytest.raises(UserError, match="'pool' gives no map or tokens"):
        tried(made(lambda s, x: s.last(s.maps(x)), last=lambda: nn.Conv2d(D, C, 1)), "pool")
