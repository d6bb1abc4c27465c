"""Files of weights as people have them: wrapped, averaged, in parts, for other classes, old, cut, dangerous."""

from __future__ import annotations

import argparse
import io
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.models import Network, Tapped, build, load_weights
from antishortcut.models.trial import try_out
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
    made = Network(Tapped(kind(classes), classes=classes))
    try_out(made, "mine:net", 32)
    return made


def state(kind: Callable[[int], nn.Module] = Plain, classes: int = 5) -> State:
    torch.manual_seed(0)
    return kind(classes).state_dict()


def before(word: str, of: State) -> State:
    return {f"{word}{key}": value for key, value in of.items()}


def loaded(content: Any, path: Path, target: Network, new: bool = True, **options: Any) -> State:
    torch.save(content, path, _use_new_zipfile_serialization=new)
    load_weights(target, path, **options)
    assert isinstance(target.body, Tapped)
    return target.body.module.state_dict()


WORDS = [
    "module.",
    "_orig_mod.",
    "model.",
    "net.",
    "student.",
    "backbone.",
    "model.net.",
    "module.model.",
    "body.module.",
]


@pytest.mark.parametrize("word", WORDS)
def test_a_word_before_every_key_is_no_matter(word: str, tmp_path: Path) -> None:
    torch.testing.assert_close(loaded(before(word, state()), tmp_path / "w.pth", network()), state())


CONTAINERS: dict[str, Callable[[State], Any]] = {
    "Lightning": lambda s: {"epoch": 3, "state_dict": before("model.", s) | {"loss.weight": torch.ones(2)}},
    "timm": lambda s: {
        "epoch": 3,
        "arch": "resnet18",
        "state_dict": s,
        "args": argparse.Namespace(lr=0.1),
        "version": 2,
    },
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
def test_containers(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(loaded(CONTAINERS[name](state()), tmp_path / "w.pth", network()), state())


def numpy_1(content: Any) -> bytes:
    """A file of torch, of the old form, as numpy 1 has it written: its parts lie in numpy.core."""
    torch.save(content, out := io.BytesIO(), _use_new_zipfile_serialization=False)
    return out.getvalue().replace(b"numpy._core.", b"numpy.core.")


def test_numbers_of_either_numpy_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    path.write_bytes(numpy_1(CONTAINERS["numpy's numbers beside"](state())))
    load_weights(target := network(), path)
    assert isinstance(target.body, Tapped)
    torch.testing.assert_close(target.body.module.state_dict(), state())


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("word", ["", "model.", "body.module."])
def test_weights_with_nan_are_refused_and_change_nothing(word: str, start: bool, tmp_path: Path) -> None:
    path, target = tmp_path / "w.pth", network()
    before_it = {key: value.clone() for key, value in target.state_dict().items()}
    broken = state()
    broken["deep.weight"][0, 0, 0, 0] = torch.nan
    with pytest.raises(
        UserError, match=r"w\.pth holds NaN in 'deep\.weight': that training diverged; take a state from"
    ):
        loaded(before(word, broken), path, target, start=start)
    torch.testing.assert_close(target.state_dict(), before_it, rtol=0, atol=0)


class Masked(Plain):
    """With a buffer that is meant to hold infinities."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))


def test_nan_where_it_is_not_used_and_infinities_are_no_matter(tmp_path: Path) -> None:
    found = loaded(state(Masked), tmp_path / "w.pth", network(Masked))
    assert found["mask"].isinf().any()
    theirs = state(classes=9)
    theirs["fc.weight"].fill_(torch.nan)
    with pytest.warns(UserWarning, match="start fresh: fc$"):
        loaded(theirs, tmp_path / "w.pth", network(), start=True)
    loaded(before("model.", state()) | {"loss.weight": torch.tensor([torch.nan])}, tmp_path / "w.pth", network())


def test_weights_go_before_their_average_and_it_is_said(tmp_path: Path) -> None:
    other = {key: value + 1 for key, value in state().items()}
    with pytest.warns(UserWarning, match="holds 'state_dict' and 'state_dict_ema': the first is used; save the other"):
        found = loaded({"state_dict_ema": other, "state_dict": state()}, tmp_path / "w.pth", network())
    torch.testing.assert_close(found, state())


def test_a_bare_backbone_fills_a_network_that_names_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bare = Backbone().state_dict()
    target = network(Whole)
    assert target.head is not None
    fresh = target.head.weight.clone()
    with pytest.raises(UserError, match=r"missing .*classifier"):
        loaded(bare, tmp_path / "w.pth", target)
    with pytest.warns(UserWarning, match="has no weights for these classes, so these layers start fresh: classifier$"):
        found = loaded(bare, tmp_path / "w.pth", target, start=True)
    torch.testing.assert_close({key: found[f"backbone.{key}"] for key in bare}, bare)
    assert torch.equal(found["classifier.weight"], fresh)


@pytest.mark.parametrize("word", ["", "model.", "body.module."])
def test_a_classifier_for_other_classes(word: str, tmp_path: Path) -> None:
    """To start from it will do, but for its head; a finished network must fit whole."""
    theirs = before(word, state(classes=9))
    target = network()
    assert target.head is not None
    fresh = target.head.weight.clone()
    with pytest.raises(UserError, match=r"2 of another shape \(.*fc\.weight \(9, 6\) for \(5, 6\)"):
        loaded(theirs, tmp_path / "w.pth", target)
    assert torch.equal(target.head.weight, fresh)
    with pytest.warns(UserWarning, match="so these layers start fresh: fc$"):
        found = loaded(theirs, tmp_path / "w.pth", target, start=True)
    assert torch.equal(found["fc.weight"], fresh)
    torch.testing.assert_close(found["conv.weight"], state()["conv.weight"])


def test_a_head_of_another_name_is_left_out_but_nothing_else_may_lack(tmp_path: Path) -> None:
    theirs = {key.replace("fc.", "head.mlp."): value for key, value in state().items()}
    with pytest.warns(UserWarning, match="start fresh: fc$"):
        loaded(theirs, tmp_path / "w.pth", network(), start=True)
    del theirs["deep.weight"]
    with pytest.raises(UserError, match=r"missing \(deep\.weight, fc\.weight, fc\.bias\)"):
        loaded(theirs, tmp_path / "w.pth", network(), start=True)


def test_our_own_networks_start_from_other_classes_too(tmp_path: Path) -> None:
    torch.save(build("cnn-8", 9).state_dict(), tmp_path / "w.pth")
    with pytest.warns(UserWarning, match="start fresh: head$"):
        load_weights(build("cnn-8", 5), tmp_path / "w.pth", start=True)


def test_two_networks_in_one_file(tmp_path: Path) -> None:
    both = before("student.", state()) | before("teacher.", state())
    with pytest.raises(UserError, match=r"more than one network that would fit, under 'student\.' and 'teacher\.'"):
        loaded(both, tmp_path / "w.pth", network())


def test_keys_that_are_nearly_right_are_named(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    other = {key.replace("deep.", "deeper."): value for key, value in state().items()}
    with pytest.raises(
        UserError, match=r"2 missing .*2 unexpected .*'deep\.weight' may be 'deeper\.weight' in the file"
    ):
        loaded(other, path, network())
    del other["conv.weight"]
    with pytest.raises(UserError, match="3 missing"):
        loaded(other, path, network())
    half = before("trunk.", {key: value for key, value in state().items() if "deep" in key or "conv" in key})
    rest = {key: value for key, value in state().items() if "norm" in key or "fc" in key}
    with pytest.raises(UserError, match=r"keys in the file have 'trunk\.' before them"):
        loaded(half | rest, path, network())


def test_old_files_shards_and_wrong_endings(tmp_path: Path) -> None:
    old = tmp_path / "old.pth"
    torch.save(state(), old, _use_new_zipfile_serialization=False)
    target = network()
    load_weights(target, old)
    assert isinstance(target.body, Tapped)
    torch.testing.assert_close(target.body.module.state_dict(), state())
    save_file(state(), tmp_path / "named.pth")  # safetensors by content
    load_weights(network(), tmp_path / "named.pth")
    for new in (True, False):  # torch's by content
        named = loaded(state(), tmp_path / "n.safetensors", network(), new=new)
        torch.testing.assert_close(named, state())
    parts: dict[str, State] = {"a.safetensors": {}, "b.safetensors": {}}
    where = {}
    for i, (key, value) in enumerate(state().items()):
        name = list(parts)[i % 2]
        parts[name][key], where[key] = value, name
    for name, part in parts.items():
        save_file(part, tmp_path / name)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    target = network()
    load_weights(target, index)
    assert isinstance(target.body, Tapped)
    torch.testing.assert_close(target.body.module.state_dict(), state())
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(UserError, match=r"no weights at .*b\.safetensors"):
        load_weights(network(), index)
    save_file({"x": torch.ones(1)}, tmp_path / "b.safetensors")
    with pytest.raises(UserError, match=r"promises '.*' in b\.safetensors, which has none"):
        load_weights(network(), index)
    index.write_text("{}")
    with pytest.raises(UserError, match="is no index of weights"):
        load_weights(network(), index)


class Evil:
    """What a pickle may do when it is opened."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("opened",))


def test_a_file_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "w.pth"
    for content in (Evil(), {"model": state(), "extra": Evil()}, Plain(5)):
        for new in (True, False):
            torch.save(content, path, _use_new_zipfile_serialization=new)
            with pytest.raises(UserError, match=r"could run any code; save its state_dict alone") as told:
                load_weights(network(), path)
            assert "\n" not in str(told.value)
    assert not (tmp_path / "opened").exists()


def test_files_that_are_not_whole(tmp_path: Path) -> None:
    for name, new in (("w.pth", True), ("o.pth", False), ("w.safetensors", True)):
        path = tmp_path / name
        if name.endswith("safetensors"):
            save_file(state(), path)
        else:
            torch.save(state(), path, _use_new_zipfile_serialization=new)
        whole = path.read_bytes()
        for size in (len(whole) // 2, len(whole) - 40, 30, 1):
            path.write_bytes(whole[:size])
            with pytest.raises(UserError, match=r"cut short or damaged|is damaged") as told:
                load_weights(network(), path)
            assert "\n" not in str(told.value)
    for content, words in (
        (b"", "is empty"),
        (b"<!DOCTYPE html><html>", "is a web page, .* fetch the file itself"),
        (b"\xef\xbb\xbf\r\n<html>", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
    ):
        for path in (tmp_path / "w.safetensors", tmp_path / "w.pt"):
            path.write_bytes(content)
            with pytest.raises(UserError, match=words):
                load_weights(network(), path)
    script = tmp_path / "s.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(Plain(5).eval(), torch.rand(1, 3, 8, 8)).save(str(script))  # type: ignore[no-untyped-call]
    with pytest.raises(UserError, match="TorchScript program, not weights"):
        load_weights(network(), script)
    torch.save({"epoch": 3, "lr": 0.1}, script)
    with pytest.raises(UserError, match="holds no state_dict but epoch, lr; wanted a dict of tensors"):
        load_weights(network(), script)


def test_files_of_another_kind_say_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"

    def refused(words: str, where: Path = path) -> None:
        with pytest.raises(UserError, match=words) as told:
            load_weights(network(), where)
        assert "\n" not in str(told.value)

    numpy.savez(tmp_path / "w.npz", *(value.numpy() for value in state().values()))
    refused(r"is numpy's; save it for torch: torch\.save", tmp_path / "w.npz")
    numpy.save(tmp_path / "w.npy", state()["fc.bias"].numpy())
    refused(r"is numpy's; save it for torch: torch\.save", tmp_path / "w.npy")
    for text in ("these are the weights of my network\n", "epoch", "a\tb\r\n", "größere Gewichte", "ä" * 99):
        for named in (path, tmp_path / "w.safetensors"):
            named.write_text(text)
            refused("holds no plain tensors: it is text; name a file of weights$", named)
    path.write_bytes(b"\x80\x02he.")  # the library's error is a mere number
    refused(r"cut short or damaged; fetch it again, .* or as safetensors$")
    for arrays in ({key: value.numpy() for key, value in state().items()}, numpy.ones(2)):
        torch.save(arrays, path)
        refused(r"holds arrays of numpy's, not tensors; save it with torch\.from_numpy")
    (tmp_path / "w.safetensors").unlink()
    torch.save(torch.optim.SGD(Plain(5).parameters(), lr=0.1).state_dict(), path)
    refused("holds the state of an optimiser, not of a network; save")
    refused(r"is a folder, not a file of weights: name a file in it \(w\.pth\)", tmp_path)


def test_what_to_do_about_weights_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"for 9 classes, not 5: .* one to start from \(weights = …\) may know others$"):
        loaded(state(classes=9), tmp_path / "w.pth", network())
    lacking = {key: value for key, value in state().items() if not key.startswith("deep.")}
    for given in (lacking, state() | {"more.weight": torch.ones(2)}):
        with pytest.raises(UserError, match=r"; name the network they were saved from$"):
            loaded(given, tmp_path / "w.pth", network())
    with pytest.raises(UserError, match=r"missing .*; it is one of several files: name their index"):
        loaded(lacking, tmp_path / "model-00001-of-00002.pth", network())
    with pytest.raises(UserError, match=r"missing \(conv\.weight, "):  # its own names, not those of what is around it
        loaded({"q.weight": torch.ones(2)}, tmp_path / "w.pth", network())
