"""Pickles that want to run code, written instruction by instruction; each would leave a marker file behind."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from functools import cache
from pathlib import Path

import torch

CALLS = {  # module, name → what it is called with, where {} is the marker
    ("os", "system"): "touch {}",
    ("posix", "system"): "touch {}",
    ("builtins", "exec"): "open('{}', 'w').close()",
    ("builtins", "eval"): "open('{}', 'w').close()",
    ("__builtin__", "eval"): "open('{}', 'w').close()",
    ("builtins", "__import__"): "antigravity",
    ("builtins", "open"): "{}",
    ("builtins", "getattr"): "x",
    ("builtins", "compile"): "x",
    ("subprocess", "check_output"): "touch",
    ("subprocess", "Popen"): "touch",
    ("functools", "partial"): "x",
    ("functools", "reduce"): "x",
    ("operator", "attrgetter"): "system",
    ("operator", "methodcaller"): "system",
    ("importlib", "import_module"): "os",
    ("runpy", "run_path"): "{}",
    ("timeit", "timeit"): "open('{}', 'w').close()",
    ("cProfile", "run"): "open('{}', 'w').close()",
    ("pdb", "run"): "open('{}', 'w').close()",
    ("code", "interact"): "x",
    ("pty", "spawn"): "sh",
    ("shutil", "rmtree"): "{}",
    ("pickle", "loads"): "x",
    ("_pickle", "loads"): "x",
    ("marshal", "loads"): "x",
    ("types", "CodeType"): "x",
    ("types", "FunctionType"): "x",
    ("torch", "load"): "{}",
    ("torch.hub", "load"): "{}",
    ("torch.hub", "load_state_dict_from_url"): "file://{}",
    ("torch.jit", "load"): "{}",
    ("torch.storage", "_load_from_bytes"): "x",
    ("torch.serialization", "load"): "{}",
    ("torch.serialization", "os.system"): "touch {}",
    ("torch.utils.cpp_extension", "load"): "{}",
    ("torch.fx.graph_module", "_deserialize_graph_module"): "x",
    ("torch._dynamo.guards", "pickle.loads"): "x",
    ("numpy", "load"): "{}",
    ("numpy", "fromfile"): "{}",
    ("numpy", "ndarray"): "x",
    ("numpy.core.multiarray", "scalar"): "x",
    ("numpy.testing._private.utils", "runstring"): "open('{}', 'w').close()",
    ("numpy.f2py.crackfortran", "myeval"): "open('{}', 'w').close()",
    ("antishortcut.models.foreign", "from_import"): "os:system",
    ("webbrowser", "open"): "file://{}",
}
WAYS = ("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX")
WORKS = (("os", "system"), ("builtins", "exec"), ("builtins", "eval"), ("builtins", "open"))  # as plain pickles, here


def call(way: str, module: str, name: str, argument: str) -> bytes:
    """A pickle that calls module.name(argument) when it is trusted."""
    words = [word.encode() for word in (module, name, argument)]
    if way == "GLOBAL":
        return b"c%s\n%s\n(V%s\ntR." % (*words,)
    if way == "STACK_GLOBAL":
        names = b"".join(b"X" + len(word).to_bytes(4, "little") + word for word in words[:2])
        return b"\x80\x04" + names + b"\x93(V%s\ntR." % words[2]
    if way == "INST":
        return b"(V%s\ni%s\n%s\n." % (words[2], words[0], words[1])
    if way == "OBJ":
        return b"(c%s\n%s\nV%s\no." % (*words,)
    if way == "NEWOBJ":
        return b"\x80\x02c%s\n%s\n(V%s\nt\x81." % (*words,)
    return b"\x80\x04c%s\n%s\n(V%s\nt}\x92." % (*words,)


def pickles(marker: Path, few: bool = False) -> dict[str, bytes]:
    """All tricks by name; few: every way to call one function rather than every function."""
    made = {
        f"{way} {module}.{name}": call(way, module, name, argument.format(marker))
        for (module, name), argument in list(CALLS.items())[: 1 if few else None]
        for way in WAYS
    }
    run = f"open('{marker}', 'w').close()"
    inner = call("GLOBAL", "builtins", "exec", run)
    quoted = b"B" + len(inner).to_bytes(4, "little") + inner
    made |= {
        "nested pickle.loads": b"\x80\x03cpickle\nloads\n(" + quoted + b"tR.",
        "nested torch bytes": b"\x80\x03ctorch.storage\n_load_from_bytes\n(" + quoted + b"tR.",
        "code in a dictionary": b"\x80\x02}X\x01\x00\x00\x00a" + inner[:-1] + b"s.",
        "code as a key": b"\x80\x02}" + inner[:-1] + b"K\x01s.",
        "BUILD of a class": b"\x80\x02ctorch.nn\nLinear\n)\x81}X\x01\x00\x00\x00aK\x01sb.",
        "BUILD of a function": b"\x80\x02cnumpy\ndtype\nN}X\x08\x00\x00\x00__code__K\x01s\x86b.",
        "persistent id": b"Pevil\n.",
        "binary persistent id": b"\x80\x02" + inner[:-1] + b"Q.",
        "extension": b"\x80\x02\x82\x01.",
        "after the end": pickle.dumps({"a": 1}, 2) + inner,
        "dotted name": call("STACK_GLOBAL", "torch", "serialization.os.system", f"touch {marker}"),
    }  # fmt: skip
    return made


def in_torch_zip(inner: bytes, packed: bool = False) -> bytes:
    """What torch.save writes, with other instructions in data.pkl."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, content in _members():
            archive.writestr(name, inner if name.endswith("data.pkl") else content)
    return out.getvalue()


@cache
def _members() -> tuple[tuple[str, bytes], ...]:
    whole = io.BytesIO()
    torch.save({"weight": torch.ones(2)}, whole)
    with zipfile.ZipFile(whole) as archive:
        return tuple((name, archive.read(name)) for name in archive.namelist())


def in_old_form(inner: bytes) -> bytes:
    """The form before zip files: magic number, protocol and system, then the object."""
    return _head() + inner


@cache
def _head() -> bytes:
    whole = io.BytesIO()
    torch.save({"weight": torch.ones(2)}, whole, _use_new_zipfile_serialization=False)
    whole.seek(0)
    for _ in range(3):
        pickle.load(whole)
    return whole.getvalue()[: whole.tell()]


def in_old_tar(inner: bytes) -> bytes:
    """The form before that one: a tar of pickles."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in ("storages", "tensors", "pickle"):
            info = tarfile.TarInfo(name)
            info.size = len(inner)
            archive.addfile(info, io.BytesIO(inner))
    return out.getvalue()


def in_script(inner: bytes) -> bytes:
    """As TorchScript lies on disk: code beside the tensors."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("m/constants.pkl", inner)
        archive.writestr("m/data.pkl", inner)
        archive.writestr("m/code/__torch__.py", "import os")
        archive.writestr("m/version", "3\n")
    return out.getvalue()


FORMS = {
    "bare": lambda inner: inner,
    "zip": in_torch_zip,
    "packed zip": lambda inner: in_torch_zip(inner, packed=True),
    "old": in_old_form,
    "old tar": in_old_tar,
    "script": in_script,
}
