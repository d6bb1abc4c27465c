"""Files of weights as people have them: wrapped, averaged, in parts, for other classes, old, cut, dangerous."""

import argparse
import json
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.models import FeatureExtractor, Network, build, load_weights, weights
from antishortcut.models.user_models import try_out
from tests.models import one_thread as one_thread

State = dict[str, Tensor]


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.deep = nn.Conv2d(4, 6, 3)

    def forward(self, x: Tensor) -> Any:
        return self.deep(self.norm(self.conv(x)).relu()).relu().mean((2, 3))


class Whole(nn.Module):
    """A backbone under a name, and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.classifier = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Any:
        return self.classifier(self.backbone(x))


class Plain(Backbone):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Any:
        return self.fc(super().forward(x))


def network(kind: Callable[[int], nn.Module] = Plain, classes: int = 5, seed: int = 1) -> Network:
    torch.manual_seed(seed)
    built = Network(FeatureExtractor(kind(classes), classes=classes))
    try_out(built, "mine:net", 32)
    return built


def state(kind: Callable[[int], nn.Module] = Plain, classes: int = 5) -> State:
    torch.manual_seed(0)
    return kind(classes).state_dict()


def before(word: str, of: State) -> State:
    return {f"{word}{key}": value for key, value in of.items()}


def loaded(content: Any, path: Path, target: Network, new: bool = True, **options: Any) -> State:
    torch.save(content, path, _use_new_zipfile_serialization=new)
    load_weights(target, path, **options)
    assert isinstance(target.body, FeatureExtractor)
    return target.body.module.state_dict()


PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "model.net.", "module.model.", "body.module.", "body.")
CONTAINERS: dict[str, Callable[[State], Any]] = {
    "Lightning": lambda s: {"epoch": 3, "state_dict": before("model.", s) | {"loss.weight": torch.ones(2)}},
    "timm": lambda s: {"epoch": 3, "arch": "resnet18", "state_dict": s, "args": argparse.Namespace(lr=0.1)},
    **{f"prefix {word}": partial(before, word) for word in PREFIXES},
    "DeiT": lambda s: {"model": s},
    "EMA alone": lambda s: {"state_dict_ema": before("module.", s)},
    "another EMA": lambda s: {"model_ema": s, "optimizer": {"state": {}}},
    "tutorial": lambda s: {"model_state_dict": s, "optimizer_state_dict": {"lr": 0.1}, "loss": torch.tensor(1.0)},
    "numbers beside": lambda s: {**s, "epoch": 3},
    "compiled in part": lambda s: {key.replace("conv.", "conv._orig_mod."): value for key, value in s.items()},
    "nested": lambda s: {"state_dict": {"model": s}},
    "numpy's numbers beside": lambda s: {
        "state_dict": s,
        "best_acc": numpy.float64(0.9),
        "hyper_parameters": {"lr": numpy.float32(1), "steps": numpy.int64(3), "name": numpy.str_("a")},
        "args": argparse.Namespace(mean=numpy.array([0.5, 0.4]), grid=numpy.zeros((2, 2), order="F"), on=numpy.True_),
    },
    "torch's AveragedModel": lambda s: before("module.", s) | {"n_averaged": torch.tensor(3)},
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_weights_are_found_wherever_training_scripts_put_them(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(loaded(CONTAINERS[name](state()), tmp_path / "w.pth", network()), state())


def test_numbers_of_numpy_1_are_passed_over(tmp_path: Path) -> None:
    """Their code lay in numpy.core."""
    path, target = tmp_path / "w.pth", network()
    torch.save(CONTAINERS["numpy's numbers beside"](state()), path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(b"numpy._core.", b"numpy.core."))
    load_weights(target, path)
    assert isinstance(target.body, FeatureExtractor)
    torch.testing.assert_close(target.body.module.state_dict(), state())


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("word", ["", "model.", "body.module."])
def test_weights_with_nan_are_refused_and_change_nothing(word: str, start: bool, tmp_path: Path) -> None:
    path, target = tmp_path / "w.pth", network()
    before_it = {key: value.clone() for key, value in target.state_dict().items()}
    broken = state()
    broken["deep.weight"][0, 0, 0, 0] = torch.nan
    with pytest.raises(
        UserError, match=r"w\.pth holds NaN in 'deep\.weight': that training diverged; use an earlier checkpoint"
    ):
        loaded(before(word, broken), path, target, start=start)
    torch.testing.assert_close(target.state_dict(), before_it, rtol=0, atol=0)


def test_plain_weights_are_preferred_to_averaged_ones_with_a_warning(tmp_path: Path) -> None:
    other = {key: value + 1 for key, value in state().items()}
    with pytest.warns(UserWarning, match="holds 'state_dict' and 'state_dict_ema': the first is used; save the other"):
        result = loaded({"state_dict_ema": other, "state_dict": state()}, tmp_path / "w.pth", network())
    torch.testing.assert_close(result, state())


def test_a_bare_backbone_fills_a_network_that_names_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bare = Backbone().state_dict()
    target = network(Whole)
    assert target.head is not None
    fresh = target.head.weight.clone()
    with pytest.raises(UserError, match=r"missing .*classifier"):
        loaded(bare, tmp_path / "w.pth", target)
    with pytest.warns(UserWarning, match="has no weights that fit these layers, so they start fresh: classifier$"):
        result = loaded(bare, tmp_path / "w.pth", target, start=True)
    torch.testing.assert_close({key: result[f"backbone.{key}"] for key in bare}, bare)
    assert torch.equal(result["classifier.weight"], fresh)


@pytest.mark.parametrize("word", ["", "model.", "body.module."])
def test_a_classifier_for_other_classes(word: str, tmp_path: Path) -> None:
    """To start from it will do, but for its head; a finished network must fit whole."""
    reference = before(word, state(classes=9))
    target = network()
    assert target.head is not None
    fresh = target.head.weight.clone()
    with pytest.raises(UserError, match=r"2 of another shape \(.*fc\.weight \(9, 6\) for \(5, 6\)"):
        loaded(reference, tmp_path / "w.pth", target)
    assert torch.equal(target.head.weight, fresh)
    with pytest.warns(UserWarning, match="so they start fresh: fc$"):
        result = loaded(reference, tmp_path / "w.pth", target, start=True)
    assert torch.equal(result["fc.weight"], fresh)
    torch.testing.assert_close(result["conv.weight"], state()["conv.weight"])


def test_our_own_networks_take_their_own_files_and_start_from_other_classes(tmp_path: Path) -> None:
    source, target, path = build("cnn-8", 9), build("cnn-8", 9), tmp_path / "w.pth"
    for content in (source.state_dict(), source.body.state_dict()):
        torch.save(content, path)
        load_weights(target, path)
        assert all(torch.equal(value, source.state_dict()[key]) for key, value in target.state_dict().items())
    with pytest.warns(UserWarning, match="start fresh: head$"):
        load_weights(build("cnn-8", 5), path, start=True)


def test_old_files_half_precision_and_wrong_endings(tmp_path: Path) -> None:
    half = {key: value.half() if value.is_floating_point() else value for key, value in state().items()}
    torch.testing.assert_close(loaded(half, tmp_path / "w.pth", network()), state(), rtol=1e-3, atol=1e-3)
    save_file(state(), tmp_path / "named.pth")  # safetensors by content
    load_weights(network(), tmp_path / "named.pth")
    for new in (True, False):  # torch's by content
        torch.testing.assert_close(loaded(state(), tmp_path / "n.safetensors", network(), new=new), state())


class Evil:
    """What a pickle may do when it is opened."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("opened",))


def test_files_that_are_not_whole(tmp_path: Path) -> None:
    for name, new in (("w.pth", True), ("o.pth", False), ("w.safetensors", True)):
        path = tmp_path / name
        if name.endswith("safetensors"):
            save_file(state(), path)
        else:
            torch.save(state(), path, _use_new_zipfile_serialization=new)
        whole = path.read_bytes()
        for size in (len(whole) // 2, len(whole) - 40, 30, 1, 0):
            path.write_bytes(whole[:size])
            with pytest.raises(UserError, match="holds no plain tensors") as caught:
                load_weights(network(), path)
            assert "\n" not in str(caught.value)


def script(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(Plain(5).eval(), torch.rand(1, 3, 8, 8)).save(str(path))  # type: ignore[no-untyped-call]


def saved(content: Any, new: bool = True) -> Callable[[Path], object]:
    return lambda path: torch.save(content, path, _use_new_zipfile_serialization=new)


def written(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


OPTIMISER = torch.optim.SGD([torch.zeros(1)], lr=0.1).state_dict()


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: None, "no weights at"),
        (lambda path: path.mkdir(), "is no file of weights"),
        (written(b"<!DOCTYPE html><html>"), "it begins with b'<!DOCTYPE html"),
        (written(b"version https://git-lfs.github.com/spec/v1"), "it begins with b'version https://git.*git lfs pull"),
        (lambda path: numpy.save(path.open("wb"), numpy.ones(2)), "no plain tensors: it begins with .*NUMPY"),
        (script, "no state_dict; .*TorchScript"),
        (saved({"epoch": 3, "lr": 0.1}), "holds no state_dict but epoch, lr; save its state_dict"),
        (saved([1, 2]), "holds no state_dict but list"),
        (saved({3: torch.ones(1)}), "holds no state_dict but"),
        (saved(OPTIMISER), "holds no state_dict but state, param_groups"),
        (saved({"fc.weight": numpy.ones(2)}), r"holds no state_dict but fc\.weight"),
        (saved({"fc.weight": torch.ones(2).to_sparse()}), "'fc.weight' is sparse, quantised or a mere shape"),
        (saved({"fc.weight": torch.ones(2, device="meta")}), "'fc.weight' is sparse, quantised or a mere shape"),
        *(
            (saved(content, new), "could run any code; save its state_dict alone")
            for content in (Evil(), {"model": state(), "extra": Evil()}, Plain(5))  # a whole pickled model is code, too
            for new in (True, False)
        ),
        *(
            (saved(state() | {"fc.bias": torch.ones(5).to(kind)}), rf"1 of another type \(fc\.bias {str(kind)[6:]} for")
            for kind in (torch.complex64, torch.bool, torch.int64)
        ),
        (saved({"q.weight": torch.ones(2)}), r"missing \(conv\.weight, .*1 unexpected .*; name the network"),
        (saved(state(classes=9)), r"2 of another shape .*; they are for 9 classes: fine to start from \(weights = …\)"),
        (saved(state() | {"more.weight": torch.ones(2)}), r"1 unexpected \(more\.weight\); name the network"),
        (saved(before("student.", state()) | before("teacher.", state())), r"'student\.' and 'teacher\.'; save one"),
    ],
)
def test_files_that_do_not_fit_say_why_in_one_line(write: Callable[[Path], object], words: str, here: Path) -> None:
    write(here / "w.pth")
    with pytest.raises(UserError, match=words) as caught:
        load_weights(network(), here / "w.pth")
    assert "\n" not in str(caught.value)
    assert {path.name for path in here.iterdir()} <= {"w.pth"}


class CountedState(dict[str, Tensor]):
    """Counts how often it is gone through."""

    passes = 0

    def items(self) -> Any:
        self.passes += 1
        return super().items()

    def __iter__(self) -> Any:
        self.passes += 1
        return super().__iter__()


def test_the_time_grows_with_the_number_of_keys_not_with_its_square(tmp_path: Path) -> None:
    plain = Plain(5).state_dict()
    own = {f"net.{key}": value for key, value in plain.items()}
    state = CountedState({f"layer{n}.weight": torch.empty(0) for n in range(1_000)} | own)
    assert weights._aligned(plain, state, tmp_path).keys() == plain.keys()
    assert state.passes < 10  # it was one for each of the 1,000 prefixes
    save_file({f"layer{n}.weight": torch.empty(0) for n in range(20_000)} | own, tmp_path / "many.safetensors")
    load_weights(network(seed=2), tmp_path / "many.safetensors")


def test_more_tensors_than_any_network_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({str(n): entry for n in range(30_001)}).encode()
    (tmp_path / "many.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(UserError, match=r"holds 30,001 tensors, more than any network \(30,000\)"):
        load_weights(network(), tmp_path / "many.safetensors")
    monkeypatch.setattr(weights, "MOST", 20)
    shared = torch.empty(0)
    torch.save({str(n): shared.view(0) for n in range(21)}, tmp_path / "shared.pt")  # one record
    with pytest.raises(UserError, match="holds 21 tensors"):
        load_weights(network(), tmp_path / "shared.pt")
    torch.save({str(n): torch.empty(0) for n in range(21)}, tmp_path / "many.pt")
    monkeypatch.setattr(torch, "load", None)  # its time grows with the square of the records: minutes for 200,000
    with pytest.raises(UserError, match=r"holds \d\d tensors"):
        load_weights(network(), tmp_path / "many.pt")
