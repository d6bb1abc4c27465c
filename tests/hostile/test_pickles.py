"""Files that want to run code when they are read: none does, at any place where we read one, and each is one line."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from antishortcut.cli import main
from antishortcut.data import layouts
from antishortcut.data.copies import read_images, read_labels
from antishortcut.data.pictures import _cached
from antishortcut.errors import UserError
from antishortcut.folder import Folder, write_json
from antishortcut.models.checkpoints import NumpyNumber, loaded
from antishortcut.models.weights import read
from antishortcut.resume import load_state
from antishortcut.snapshots import load_state as load_snapshot
from antishortcut.stylize.weights import network_from, reference
from antishortcut.teachers import Trajectory
from tests.conftest import TINY
from tests.data.official import make_cifar, make_folder
from tests.hostile.payloads import FORMS, WORKS, call, in_torch_zip, pickles

Place = Callable[[Path, bytes], object]


def weights(folder: Path, data: bytes) -> object:
    (folder / "evil.pth").write_bytes(data)
    return read(folder / "evil.pth")


def named_safetensors(folder: Path, data: bytes) -> object:
    (folder / "evil.safetensors").write_bytes(data)
    return read(folder / "evil.safetensors")


def resumed(folder: Path, data: bytes) -> object:
    place = folder / "resume"
    place.mkdir(exist_ok=True)
    for path in place.iterdir():
        path.unlink()
    (place / f"000000004-{hashlib.sha256(data).hexdigest()[:16]}.pt").write_bytes(data)
    return load_state(place)


def _listed(folder: Path, data: bytes, name: str) -> None:
    (folder / "snapshots").mkdir(exist_ok=True)
    (folder / "snapshots" / name).write_bytes(data)
    entry = {"labels": ["100%"], "step": 4, "file": name, "sha256": hashlib.sha256(data).hexdigest()}
    write_json(folder / "manifest.json", {"states": [entry]})


def teacher(folder: Path, data: bytes) -> object:
    _listed(folder, data, "step-1.safetensors")
    return Trajectory(Folder(folder)).weights("final")


def teacher_as_pickle(folder: Path, data: bytes) -> object:
    _listed(folder, data, "step-1.pt")
    return Trajectory(Folder(folder)).weights("final")


def own_loop(folder: Path, data: bytes) -> object:
    _listed(folder, data, "final.safetensors")
    return load_snapshot(folder)


def stylizer(folder: Path, data: bytes) -> object:
    (folder / "vgg.pth").write_bytes(data)
    return reference(folder / "vgg.pth", folder / "vgg.pth")


def encoder(folder: Path, data: bytes) -> object:
    (folder / "encoder.pt").write_bytes(data)
    return network_from(folder / "encoder.pt")


def cifar(folder: Path, data: bytes) -> object:
    if not (folder / layouts.CIFAR).exists():
        make_cifar(folder)
    (folder / layouts.CIFAR / "meta").write_bytes(data)
    return layouts.read_cifar100(folder)


def images(folder: Path, data: bytes) -> object:
    (folder / "fog.npy").write_bytes(data)
    return read_images(folder / "fog.npy")


def labels(folder: Path, data: bytes) -> object:
    (folder / "labels.npy").write_bytes(data)
    return read_labels(folder / "labels.npy", 10)


PLACES: tuple[Place, ...] = (
    weights, named_safetensors, resumed, teacher, teacher_as_pickle, own_loop, stylizer, encoder, cifar, images, labels,
)  # fmt: skip


def refusal(place: Place, folder: Path, data: bytes) -> str:
    """What a place says of a file that it refuses; nothing where it takes it."""
    try:
        place(folder, data)
    except UserError as error:
        return str(error)
    return ""


DEEP = (weights, resumed, cifar)  # the readers that the other places use, and that read pickles at all


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_no_trick_runs_anywhere(tmp_path: Path, place: Place, form: str) -> None:
    marker = tmp_path / "marker"
    for name, inner in pickles(marker, few=place not in DEEP).items():
        told = refusal(place, tmp_path, FORMS[form](inner))
        assert told or name == "after the end", f"{name} was read"  # which is a plain one, with something behind it
        assert "\n" not in told, name
        assert len(told) < 2_000, name
        assert not marker.exists(), name


@pytest.mark.parametrize(("module", "name"), WORKS)
def test_the_tricks_are_real(tmp_path: Path, module: str, name: str) -> None:
    """Read as Python would, they leave their marker: so the test above can fail."""
    marker = tmp_path / "marker"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.StringIO())
        argument = {"system": f"touch {marker}", "open": str(marker)}.get(name, f"open('{marker}', 'w').close()")
        if name == "open":
            marker.write_text("")
        pickle.loads(call("GLOBAL", module, name, argument))
    assert marker.exists()


def test_arrays_of_objects_are_not_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (open, (str(tmp_path / "marker"), "w"))  # type: ignore[return-value]

    path = tmp_path / "labels.npy"
    np.save(path, np.array([Evil()], dtype=object), allow_pickle=True)
    for read_it in (lambda: read_labels(path, 10), lambda: read_images(path)):
        with pytest.raises(UserError, match="Python objects"):
            read_it()
    assert _cached(path, (1,)) is None
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    (tmp_path / "x.npz").rename(path)
    with pytest.raises(UserError, match="archive"):
        read_labels(path, 10)
    assert _cached(path, (1,)) is None
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("form", ["zip", "old"])
@pytest.mark.parametrize("core", [b"numpy._core", b"numpy.core"])
@pytest.mark.parametrize("place", [weights, named_safetensors, teacher])
def test_numbers_of_numpy_that_hold_a_pickle_are_refused(tmp_path: Path, place: Place, core: bytes, form: str) -> None:
    """numpy's numbers may lie beside weights; one of type object would be a pickle of its own, read without care."""
    marker = tmp_path / "marker"
    inner = call("GLOBAL", "builtins", "exec", f"open('{marker}', 'w').close()")
    quoted = b"c_codecs\nencode\n" + _text(inner) + _text(b"latin1") + b"\x86R"
    number = b"c" + core + b".multiarray\nscalar\n"
    array = b"c" + core + b".multiarray\n_reconstruct\ncnumpy\nndarray\n(K\x00t" + _text(b"b") + b"\x87R"
    for kind in (b"O8", b"O", b"|O", b"object", b"f8,O", b"", b"os.system"):
        dtype = b"cnumpy\ndtype\n" + _text(kind) + b"\x89\x88\x87R"
        for made in (
            number + dtype + quoted + b"\x86R",  # scalar(dtype, bytes)
            dtype,
            array + b"(K\x01(K\x01t" + dtype + b"\x89]" + quoted + b"atb",  # an array's state: objects in a list
        ):
            data = b"\x80\x02}" + _text(b"a") + made + b"s."
            assert "but a numpy.object_, which could run any code" in refusal(place, tmp_path, FORMS[form](data)), kind
            assert not marker.exists()


@pytest.mark.parametrize("form", ["zip", "old"])
def test_nothing_of_numpy_is_called_as_weights_are_read(tmp_path: Path, form: str) -> None:
    """With whatever it is given, in every way there is to call it: what stands for it keeps and does nothing."""
    state = b"}" + _text(b"__class__") + b"ccollections\nOrderedDict\ns"
    no_storages = pickle.dumps([], 2)  # what the old form ends with
    for name in ("dtype", "ndarray", "core.multiarray.scalar", "_core.multiarray._reconstruct"):
        module, _, last = f"numpy.{name}".rpartition(".")
        one = f"c{module}\n{last}\n".encode() + _text(b"f8") + b"\x85"
        for made in (one + b"R", one + b"\x81", one + b"R" + state + b"b", one + b"\x81" + state + state + b"\x86b"):
            (tmp_path / "w.pth").write_bytes(FORMS[form](b"\x80\x02" + made + b"." + no_storages))
            found = loaded(tmp_path / "w.pth")
            assert isinstance(found, NumpyNumber)
            assert not vars(found)
        called_again, of_class = one + b"R)R.", f"c{module}\n{last}\n".encode() + state + b"b."
        for data in (called_again, of_class):
            assert refusal(weights, tmp_path, FORMS[form](b"\x80\x02" + data))
    for name in (
        "fromfile",
        "load",
        "memmap",
        "core.multiarray.frombuffer",
        "_core.numeric._frombuffer",
        "core.scalar",
    ):
        module, _, last = f"numpy.{name}".rpartition(".")
        told = refusal(weights, tmp_path, FORMS[form](b"\x80\x02" + call("GLOBAL", module, last, "x")))
        assert f"numpy.{name}, which could run any code" in told


def _text(word: bytes) -> bytes:
    """The instruction that puts a text on the stack, of bytes as Latin letters."""
    letters = word.decode("latin1").encode()
    return b"X" + struct.pack("<I", len(letters)) + letters


def _safetensors(head: object, body: bytes = b"\0" * 8, length: int | None = None) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
LIES = {
    "a head longer than the file": _safetensors({"a": ONE}, length=2**20),
    "a head of 2⁶³ bytes": _safetensors({"a": ONE}, length=2**63),
    "a head of 200 MB": _safetensors({"a": ONE}, length=200 * 2**20),
    "offsets outside": _safetensors({"a": ONE | {"data_offsets": [0, 2**40]}}),
    "offsets backwards": _safetensors({"a": ONE | {"data_offsets": [8, 0]}}),
    "overlapping": _safetensors({"a": ONE, "b": ONE}),
    "a gap": _safetensors({"a": ONE | {"data_offsets": [8, 16]}}, b"\0" * 16),
    "more bytes than said": _safetensors({"a": ONE}, b"\0" * 64),
    "fewer bytes than said": _safetensors({"a": ONE}, b"\0" * 4),
    "a shape that does not fit": _safetensors({"a": ONE | {"shape": [3]}}),
    "a shape that overflows": _safetensors({"a": ONE | {"shape": [2**62, 2**62]}}),
    "a negative shape": _safetensors({"a": ONE | {"shape": [-2]}}),
    "an unknown type": _safetensors({"a": ONE | {"dtype": "F33"}}),
    "no JSON": _safetensors(b"{" * 40),
    "deep JSON": _safetensors(b'{"a":' * 100_000),
    "a list": _safetensors([ONE]),
    "nothing": b"",
}


@pytest.mark.parametrize("lie", LIES)
def test_safetensors_that_lie_are_one_line(tmp_path: Path, lie: str) -> None:
    for place in (named_safetensors, teacher, own_loop):
        with pytest.raises(UserError) as caught:
            place(tmp_path, LIES[lie])
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 2_000


ODD = (
    {3: torch.ones(1)},
    {"a": torch.ones(2).to_sparse()},
    {"a": torch.ones(2, device="meta")},
    [torch.ones(1)],
    {"a": 3},
)


@pytest.mark.parametrize("content", ODD, ids=range(len(ODD)))
def test_tensors_that_are_not_plain_are_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "odd.pt")
    with pytest.raises(UserError, match="holds no"):
        read(tmp_path / "odd.pt")


@pytest.mark.parametrize("code", [b"\x96", b"\x8e", b"\x8d"], ids=["bytearray", "bytes", "text"])
def test_a_size_that_lies_takes_no_memory(tmp_path: Path, code: bytes) -> None:
    """40 GB, says the file of 20 bytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError):
        cifar(tmp_path, b"\x80\x05" + code + struct.pack("<Q", 40 * 2**30) + b"x" * 9)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 2**10


@pytest.mark.parametrize("depth", [40, 5_000])
def test_cifar_pickles_of_shared_lists_end(tmp_path: Path, depth: int) -> None:
    """Each list holds the one before twice: 2⁴⁰ entries in a few bytes, as labels, as names, and as keys."""
    shared = b"(lp0\n" + b"".join(b"(lp%d\ng%da" % (at, at - 1) + b"g%d\na" % (at - 1) for at in range(1, depth))
    tuples = b"(tp0\n0" + b"".join(b"(g%d\ng%d\ntp%d\n0" % (at - 1, at - 1, at) for at in range(1, depth))
    last = b"g%d\n" % (depth - 1)
    for inner in (
        b"(dS'fine_label_names'\n" + shared.replace(b"a(l", b"\na0(l") + b"s.",
        tuples + b"(d" + last + b"I1\ns.",
    ):
        with pytest.raises(UserError):
            cifar(tmp_path, inner)


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["asd", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("which", ["distill", "teach", "audit --final", "audit --early", "stylize"])
def test_the_command_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], which: str
) -> None:
    marker, good = tmp_path / "marker", tmp_path / "good.pt"
    evil = tmp_path / "evil.pt"
    evil.write_bytes(in_torch_zip(call("GLOBAL", "os", "system", f"touch {marker}")))
    from antishortcut.models import build

    torch.save(build("cnn-2-16", 2).state_dict(), good)
    data = f"folder:{make_folder(tmp_path / 'data')}"
    (tmp_path / "tiny.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    words = {
        "distill": ["distill", "tiny.toml", "--method", "ce", "--set", f"student.weights={evil}"],
        "teach": ["teach", "tiny.toml", "--set", f"teacher.weights={evil}"],
        "audit --final": ["audit", "--final", str(evil), "--early", f"a={good}"],
        "audit --early": ["audit", "--final", str(good), "--early", f"a={evil}"],
        "stylize": ["stylize", data, "out", "--encoder", str(evil), "--train"],
    }[which]
    if which.startswith("audit"):
        words += ["--model", "cnn-2-16", "--data", data, "--image-size", "16"]
    assert command(monkeypatch, *words) == 2
    told = capfd.readouterr().err.strip().splitlines()
    assert told[-1].startswith("asd: ")
    assert "evil.pt" in told[-1]
    assert not [line for line in told if "Traceback" in line]
    assert not marker.exists()


LONG = b"a" * 3_000_000  # letters; looking for words in a refusal of so many would take days
LENGTHY = {
    "a name": b"\x80\x02c" + LONG + b"\nb\n.",
    "a name in a module": b"\x80\x02ctorch\n" + LONG + b"\n.",
    "a text that is called": b"\x80\x02X" + struct.pack("<I", len(LONG)) + LONG + b")R.",
}


@pytest.mark.parametrize("place", [weights, resumed])
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("what", LENGTHY)
def test_long_names_are_refused_as_soon_as_short_ones(place: Place, old: bool, what: str, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({}, buffer, _use_new_zipfile_serialization=False)
    head = buffer.getvalue().partition(pickle.dumps({}, 2))[0]  # magic number, version and machine
    data = head + LENGTHY[what] if old else in_torch_zip(LENGTHY[what])
    with pytest.raises(UserError) as told:
        place(tmp_path, data)
    assert len(str(told.value)) < 2_000
    if place is weights and what == "a name":  # so it came as far as that
        assert "but a aaaa" in str(told.value)
