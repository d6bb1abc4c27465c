"""Archives and pickles: the package unpacks none; one that torchvision unpacks must have the official checksum.

Tar shards (wds:) are read in place: their headers by tarfile, their images at an offset. Nothing is extracted.
"""

import ast
import io
import tarfile
from pathlib import Path

import pytest

import antishortcut
from antishortcut.data import open_sets
from antishortcut.errors import UserError

PACKAGE = Path(antishortcut.__file__).parent
UNPACKS = {"tarfile", "zipfile", "gzip", "bz2", "lzma", "shelve", "dill", "joblib", "cloudpickle", "marshal"}
EXTRACTS = ("unpack_archive", "extractall", "extract", "extractfile")
MEMBERS = ("../escaped.txt", "/tmp/antishortcut-escaped.txt", "a/../../escaped.txt", "cifar-100-python/\x1b[2Jmeta")


def test_no_module_unpacks_archives_or_loads_pickles() -> None:
    used = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            used |= {(path.name, name) for name in names if name.split(".")[0] in UNPACKS}
            if isinstance(node, ast.Attribute) and node.attr in (
                "unpack_archive",
                "extractall",
                "extract",
                "extractfile",
            ):
                used.add((path.name, node.attr))
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            called, options = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
            if called in ("pickle.load", "pickle.loads", "torch.jit.load", "torch.hub.load"):
                used.add((path.name, called))
            if called == "torch.load":
                assert options.get("weights_only") == "True", path
            if called in ("np.load", "numpy.load"):
                assert options.get("allow_pickle") == "False", path
    # to read headers, to count records, and for the error of a damaged .npz; nothing is extracted
    assert used == {("shards.py", "tarfile"), ("weights.py", "zipfile"), ("first_screen.py", "zipfile")}


def test_an_archive_with_another_checksum_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tar with paths and links that lead outside, in place of torchvision's download; the proxy does not answer."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "data"
    root.mkdir()
    with tarfile.open(root / "cifar-100-python.tar.gz", "w:gz") as archive:
        for name in MEMBERS:
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"evil"))
        info = tarfile.TarInfo("cifar-100-python/link")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(info)
    with pytest.raises(UserError, match="cannot download cifar100") as caught:
        open_sets("cifar100", root, download=True)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert {path.name for path in root.iterdir()} <= {"cifar-100-python.tar.gz"}
    assert not Path("/tmp/antishortcut-escaped.txt").exists()
