"""Pickles: what is allowed in them, and what commands say to those that would run code (see test_readers.py)."""

import io
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from antishortcut.cli import main
from antishortcut.data.readers import read_pickle
from antishortcut.errors import UserError
from antishortcut.models.weights import read_weights
from tests.conftest import TINY
from tests.data.official import make_folder
from tests.hostile.payloads import call, in_torch_zip, text


def written(folder: Path, data: bytes) -> Path:
    (folder / "evil.pth").write_bytes(data)
    return folder / "evil.pth"


def test_pickle_loads_would_run_the_code(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    pickle.loads(call("os", "system", f"touch {marker}"))
    assert marker.exists()


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_pickles_of_arrays_are_read(tmp_path: Path, protocol: int) -> None:
    data = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    content = {"data": data, b"turned": np.asfortranarray(data), "labels": [1, 2], "raw": b"\xff"}
    (tmp_path / "p").write_bytes(pickle.dumps(content, protocol))
    loaded = read_pickle(tmp_path / "p", 0, "", "hint")
    assert loaded["labels"] == [1, 2]
    for name in ("data", "turned"):
        assert np.array_equal(loaded[name], data)


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None])], ids=str)
def test_arrays_of_other_types_are_refused(tmp_path: Path, array: object) -> None:
    (tmp_path / "p").write_bytes(pickle.dumps({"data": array}, 2))
    with pytest.raises(UserError, match="not allowed"):
        read_pickle(tmp_path / "p", 0, "", "hint")


@pytest.mark.parametrize("core", ["numpy._core", "numpy.core"])
def test_a_numpy_object_scalar_is_not_opened(tmp_path: Path, core: str) -> None:
    """One of type object would be a pickle of its own, read without care."""
    inner = call("builtins", "exec", f"open('{tmp_path / 'marker'}', 'w').close()")
    data = b"\x80\x02}" + text(b"a") + f"c{core}.multiarray\nscalar\ncnumpy\ndtype\n".encode() + text(b"O8")
    data += b"\x89\x88\x87Rc_codecs\nencode\n" + text(inner) + text(b"latin1") + b"\x86R\x86Rs."
    with pytest.raises(UserError, match="holds no state_dict but a"):
        read_weights(written(tmp_path, in_torch_zip(data)))
    assert not (tmp_path / "marker").exists()


ODD = ({3: torch.ones(1)}, {"a": torch.ones(2).to_sparse()}, {"a": torch.ones(2, device="meta")}, [torch.ones(1)])


@pytest.mark.parametrize("content", ODD, ids=range(len(ODD)))
def test_sparse_and_meta_tensors_are_refused(tmp_path: Path, content: object) -> None:
    file = io.BytesIO()
    torch.save(content, file)
    with pytest.raises(UserError, match="holds no"):
        read_weights(written(tmp_path, file.getvalue()))


@pytest.mark.parametrize("which", ["distill", "audit"])
def test_commands_refuse_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], which: str
) -> None:
    from antishortcut.models import build

    evil, good = tmp_path / "evil.pt", tmp_path / "good.pt"
    evil.write_bytes(in_torch_zip(call("os", "system", f"touch {tmp_path / 'marker'}")))
    torch.save(build("cnn-2-16", 2).state_dict(), good)
    (tmp_path / "tiny.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    words = ["distill", "tiny.toml", "--method", "ce", "--set", f"student.weights={evil}"]
    if which == "audit":
        data = f"folder:{make_folder(tmp_path / 'data')}"
        words = ["audit", "--final", str(evil), "--early", f"a={good}", "--model", "cnn-2-16", "--data", data]
        words += ["--image-size", "16"]
    monkeypatch.setattr(sys, "argv", ["asd", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    errors = capfd.readouterr().err
    assert errors.splitlines()[-1].startswith("asd: ")
    assert "evil.pt" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert not (tmp_path / "marker").exists()
