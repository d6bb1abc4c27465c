"""Pickles that want to run code, written instruction by instruction; each would leave a marker file behind."""

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

CALLS = {  # module, name → what it is called with, where {} is the marker
    ("os", "system"): "touch {}",
    ("builtins", "exec"): "open('{}', 'w').close()",
    ("runpy", "run_path"): "{}",
    ("torch.hub", "load"): "{}",
    ("torch.storage", "_load_from_bytes"): "x",
    ("torch.serialization", "os.system"): "touch {}",
    ("numpy.testing._private.utils", "runstring"): "open('{}', 'w').close()",
}


def call(module: str, name: str, argument: str) -> bytes:
    """A pickle that calls module.name(argument) when it is trusted."""
    return b"c%s\n%s\n(V%s\ntR." % (module.encode(), name.encode(), argument.encode())


def pickles(marker: Path) -> dict[str, bytes]:
    """All of them by name; GLOBAL, STACK_GLOBAL, INST, OBJ, NEWOBJ and NEWOBJ_EX are the ways to call a function."""
    named = {f"{module}.{name}": call(module, name, text.format(marker)) for (module, name), text in CALLS.items()}
    touch = f"touch {marker}".encode()
    inner = call("builtins", "exec", f"open('{marker}', 'w').close()")
    scalar = b"multiarray\nscalar\ncnumpy\ndtype\n" + text(b"O8")  # one of type object is a pickle of its own
    scalar += b"\x89\x88\x87Rc_codecs\nencode\n" + text(inner) + text(b"latin1") + b"\x86R\x86Rs."
    return named | {
        "object of numpy 1": b"\x80\x02}" + text(b"a") + b"cnumpy.core." + scalar,
        "object of numpy 2": b"\x80\x02}" + text(b"a") + b"cnumpy._core." + scalar,
        "STACK_GLOBAL": b"\x80\x04X\x02\x00\x00\x00osX\x06\x00\x00\x00system\x93(V" + touch + b"\ntR.",
        "INST": b"(V" + touch + b"\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nV" + touch + b"\no.",
        "NEWOBJ": b"\x80\x02cos\nsystem\n(V" + touch + b"\nt\x81.",
        "NEWOBJ_EX": b"\x80\x04cos\nsystem\n(V" + touch + b"\nt}\x92.",
        "code in a dictionary": b"\x80\x02}X\x01\x00\x00\x00a" + inner[:-1] + b"s.",
        "BUILD of a function": b"\x80\x02cnumpy\ndtype\nN}X\x08\x00\x00\x00__code__K\x01s\x86b.",
        "persistent id": b"Pevil\n.",
        "extension": b"\x80\x02\x82\x01)R.",
    }


def text(word: bytes) -> bytes:
    """The instruction that puts a text on the stack, of bytes as Latin letters."""
    letters = word.decode("latin1").encode()
    return b"X" + struct.pack("<I", len(letters)) + letters


def array(shape: str, body: bytes, kind: str = "|u1") -> bytes:
    """A .npy file with this head."""
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + body


def in_torch_zip(inner: bytes) -> bytes:
    """What torch.save writes today, with these instructions in data.pkl."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, content in _members():
            archive.writestr(name, inner if name.endswith("data.pkl") else content)
    return out.getvalue()


@cache
def _members() -> tuple[tuple[str, bytes], ...]:
    whole = io.BytesIO()
    torch.save({"weight": torch.ones(2)}, whole)
    with zipfile.ZipFile(whole) as archive:
        return tuple((name, archive.read(name)) for name in archive.namelist())


@cache
def _head() -> bytes:
    whole = io.BytesIO()
    torch.save({"weight": torch.ones(2)}, whole, _use_new_zipfile_serialization=False)
    whole.seek(0)
    for _ in range(3):
        pickle.load(whole)
    return whole.getvalue()[: whole.tell()]


def in_script(inner: bytes) -> bytes:
    """As TorchScript lies on disk: code beside the tensors."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, content in (("constants.pkl", inner), ("data.pkl", inner), ("code/__torch__.py", b"import os")):
            archive.writestr(f"m/{name}", content)
        archive.writestr("m/version", "3\n")
    return out.getvalue()


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "bare": lambda inner: inner,
    "zip": in_torch_zip,
    "before zip files": lambda inner: _head() + inner,
    "TorchScript": in_script,
    "array of objects": lambda inner: array("(2,)", inner, "|O"),
}
