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


def text(word: bytes) -> bytes:
    """The instruction that puts it on the stack."""
    return b"X" + len(word).to_bytes(4, "little") + word


def doubled(depth: int, first: bytes = b"K\x01") -> tuple[bytes, bytes]:
    """Instructions that make tuples, each of the one before twice, in a list; and the one that fetches the last."""
    made = b"](" + first + b"q\x00"
    for at in range(depth):
        made += b"h%ch%c\x86q%c" % (at, at, at + 1)
    return made + b"e", b"h%c" % depth


def grown(depth: int, empty: bytes, first: bytes, then: bytes, adding: bytes) -> tuple[bytes, bytes]:
    """The same of what may be added to: all are made empty, then filled from the last on, with what is empty still."""
    made = b"](" + b"".join(empty + b"q%c" % at for at in range(depth))
    for at in reversed(range(1, depth)):
        made += b"h%c" % at + first + b"h%c" % (at - 1) + then + b"h%c" % (at - 1) + adding
    return made + b"e", b"h%c" % (depth - 1)


def lengthy() -> dict[str, bytes]:
    """Small files that take years, all memory, or the whole stack where a reader does what they say."""
    tuples, last = doubled(40)
    letters, many = doubled(18, text(b"a" * 65_536))
    lists, list_ = grown(40, b"]", b"(", b"", b"e")
    dicts, dict_ = grown(40, b"}", b"(K\x00", b"K\x01", b"u")
    spaces, space = grown(40, b"cargparse\nNamespace\n)R", b"}(" + text(b"a"), text(b"b"), b"ub")
    layout = b"ctorch._utils\n_rebuild_sparse_tensor\n%s)\x86R."  # writes it into its message
    state = b"ctorch._utils\n_rebuild_parameter_with_state\n(ctorch._utils\n_rebuild_meta_tensor_no_storage\n"
    state += b"(ctorch\nfloat32\n))\x89tR\x89}%s\x85tR."  # as that does, where it is a tuple of one
    deep = b")" + b"\x85" * 1_000_000
    twice = b"".join(b"h\x01h\x02h\x03\x86Rq\x02" for _ in range(40))
    first = b"c_codecs\nencode\nq\x01" + text(b"a") + text(b"latin1") + b"\x86Rq\x02" + text(b"hex") + b"q\x03"
    made = {
        "a key": tuples + b"}" + last + b"K\x01s.",
        "a key among several": tuples + b"}(" + last + b"K\x01u.",
        "a persistent id": tuples + b"(" + text(b"storage") + b"NN" + last + b"K\x01tQ.",
        "a part of a persistent id": tuples + b"(" + text(b"storage") + last + last + last + b"K\x01tQ.",
        "called": tuples + last + b")R.",
        "made new": tuples + last + b")\x81.",
        "a pair": tuples + b"ccollections\nOrderedDict\n]]" + last + b"aK\x01aa\x85R.",
        "a set": tuples + b"cbuiltins\nset\n]" + last + b"a\x85R.",
        "a name of its state": tuples + b"ccollections\nOrderedDict\n)R]]" + last + b"aK\x01aab.",
        "a layout": tuples + layout % last,
        "a layout of texts": letters + layout % many,
        "a layout of lists": lists + layout % list_,
        "a layout of dicts": dicts + layout % dict_,
        "a layout of namespaces": spaces + layout % space,
        "a layout of numbers": layout % b"ctorch.storage\nUntypedStorage\nJ\0\0\0\x10\x85R",
        "a state of lists": lists + state % list_,
        "lists called": lists + list_ + b")R.",
        "numbers called": b"ctorch.storage\nUntypedStorage\nJ\0\0\0\x10\x85R)R.",
        "a deep key": b"}" + deep + b"K\x01s.",
        "a deep set": b"cbuiltins\nset\n]" + deep + b"a\x85R.",
        "hex of hex": first + twice + b".",
        "bytes of nothing": b"cbuiltins\nbytearray\n\x8a\x06\0\0\0\0\0\x01\x85R.",
        "bytes of nothing, of a type": b"ctorch._tensor\n_rebuild_from_type_v2\n(cbuiltins\nbytearray\n"
        b"cbuiltins\nbytearray\n\x8a\x06\0\0\0\0\0\x01\x85}tR.",
    }
    return {name: b"\x80\x02" + inner for name, inner in made.items()}
