"""Archives: the package unpacks none by itself; one that torchvision unpacks must have the official checksum."""

from __future__ import annotations

import ast
import io
import tarfile
from pathlib import Path

import pytest

from antishortcut.data import open_sets
from antishortcut.data import readers as layouts
from antishortcut.errors import UserError

PACKAGE = Path(layouts.__file__).parent.parent
UNPACKS = {"tarfile", "zipfile", "gzip", "bz2", "lzma", "shelve", "dill", "joblib", "cloudpickle", "marshal"}
MEMBERS = ("../escaped.txt", "/tmp/antishortcut-escaped.txt", "a/../../escaped.txt", "cifar-100-python/\x1b[2Jmeta")


def test_nothing_here_unpacks_an_archive() -> None:
    """`files` looks at the names in a zip, and opens none of its members."""
    result = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            result |= {(path.name, name) for name in names if name.split(".")[0] in UNPACKS}
            if isinstance(node, ast.Attribute) and node.attr in ("unpack_archive", "extractall", "extract"):
                result.add((path.name, node.attr))
    assert result == {("files.py", "zipfile")}


def test_no_reader_of_pickles_is_the_trusting_one() -> None:
    """Of pickle only the unpickler that is held back; torch.load and numpy.load always with the safe choice."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            called = ast.unparse(node.func)
            inputs = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert called not in ("pickle.load", "pickle.loads", "torch.jit.load", "torch.hub.load"), path
            if called == "torch.load":
                assert inputs.get("weights_only") == "True", path
            if called in ("np.load", "numpy.load"):
                assert inputs.get("allow_pickle") == "False", path


def evil_tar(path: Path) -> None:
    """Paths and links that lead outside."""
    with tarfile.open(path, "w:gz") as archive:
        for name in MEMBERS:
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"evil"))
        info = tarfile.TarInfo("cifar-100-python/link")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(info)


def test_an_archive_in_place_of_the_official_one_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It lies where torchvision would put its download. Nobody answers at the proxy, so none comes instead."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "data"
    root.mkdir()
    evil_tar(root / "cifar-100-python.tar.gz")
    with pytest.raises(UserError, match="cannot download cifar100") as caught:
        open_sets("cifar100", root, download=True)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert {path.name for path in root.iterdir()} <= {"cifar-100-python.tar.gz"}
    assert not Path("/tmp/antishortcut-escaped.txt").exists()
