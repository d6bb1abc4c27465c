"""asd doctor: every problem comes with a fix, and only what breaks asd is an error."""

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from antishortcut import __version__, hardware
from antishortcut.cli import info
from antishortcut.cli.info import examine
from antishortcut.data import readers
from tests.conftest import Ended, asd, invoke
from tests.data.official import make_ade, make_camvid, make_cifar, make_tiny, picture


def test_doctor_reports_versions_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTISHORTCUT_NATIVE", "bfloat16")
    results = asd("doctor")
    assert results["broken"] == []
    assert results["versions"]["antishortcut"] == __version__
    assert results["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert results["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert len(results["GPUs"]) == torch.cuda.device_count()
    assert results["a run uses"]["threads"] == torch.get_num_threads()
    assert results["a run uses"]["teacher precision"] == "bfloat16"
    assert results["a run uses"]["student precision"] == "bf16-mixed"
    assert results["environment"]["ANTISHORTCUT_NATIVE"] == "bfloat16"
    printed = invoke("doctor").stdout
    for words in ("torch", "processor", "data root", "bf16-mixed", "next: asd demo"):
        assert words in printed


def test_data_sets_are_found_where_they_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert examine(tmp_path / "data")["data sets there"] == []
    first = sorted(readers.class_list("imagenet100"))[0]
    picture(tmp_path / "imagenet" / "train" / first / "0.JPEG")
    for make in (make_cifar, make_tiny, make_ade):
        make(tmp_path)
    make_camvid(tmp_path / "camvid")
    monkeypatch.setenv("ANTISHORTCUT_DATA", str(tmp_path))
    assert examine()["data sets there"] == [
        *("cifar100", "cifar100-coarse", "tiny-imagenet", "imagenet100", "ade20k", "camvid")
    ]
    assert examine(tmp_path / readers.CIFAR)["data sets there"] == [
        "cifar100",
        "cifar100-coarse",
    ]  # the folder of the set itself


def test_every_problem_comes_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTISHORTCUT_DATA", str(tmp_path / "gone"))
    monkeypatch.setenv("ANTISHORTCUT_DATE", "today")
    monkeypatch.setattr(hardware, "shared_bytes", lambda: 64 * 2**20)
    usage = shutil.disk_usage(".")._replace(free=2**30)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/nvidia-smi" if name == "nvidia-smi" else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    warnings = "\n".join(examine()["warnings"])
    for words in ("gone: no such folder", "ANTISHORTCUT_DATE is set, but means nothing", "--shm-size",
                  "make room", "install g++", "NVIDIA", "no GPU"):  # fmt: skip
        assert words in warnings, words


def test_missing_extras_are_listed_with_their_command(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = info._installed
    monkeypatch.setattr(info, "_installed", lambda name: None if name == "altair" else installed(name))
    result = examine()
    assert result["broken"] == []
    assert result["missing extras"]["report"] == "pip install 'antishortcut[report]'"
    assert {"dev", "docs"}.isdisjoint(result["missing extras"])


def test_only_what_breaks_asd_is_an_error(monkeypatch: pytest.MonkeyPatch, ended: Ended) -> None:
    installed, load = info._installed, importlib.import_module
    versions = {"timm": None, "typer": "0.1.0"}
    monkeypatch.setattr(info, "_installed", lambda name: versions.get(name, installed(name)))

    def refuse(name: str, package: str | None = None) -> Any:
        if name == "torchvision":
            raise RuntimeError("operator torchvision::nms does not exist\nand more")
        return load(name, package)

    monkeypatch.setattr(importlib, "import_module", refuse)
    out, error, code = ended("doctor")
    assert code == 2
    line = error.strip().splitlines()[-1]
    assert line.startswith("asd: asd cannot run here: ")
    assert "timm is missing: pip install 'timm>=" in line
    assert "typer is 0.1.0: pip install 'typer>=" in line
    assert "torchvision cannot be imported (operator torchvision::nms does not exist)" in line
    assert "data root" in out  # the rest is printed all the same
