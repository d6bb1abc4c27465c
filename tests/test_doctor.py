"""asd doctor: what it finds is what there is, what is amiss has a remedy, and only what breaks asd fails it."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from antishortcut import __version__, doctor, machine
from antishortcut.cli import app, main
from antishortcut.data import DATASETS, layouts
from antishortcut.data.sources import WITH_PATH
from antishortcut.doctor import KNOWN, examine
from tests.data.official import make_ade, make_camvid, make_cifar, make_tiny, picture

EMBEDDED = {"cues", "cues-seg"}


def asd() -> dict[str, Any]:
    result = CliRunner().invoke(app, ["doctor", "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_it_tells_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTISHORTCUT_NATIVE", raising=False)
    found = asd()
    assert found["broken"] == []
    assert found["versions"]["antishortcut"] == __version__
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert all(found["versions"].values())
    assert found["devices"]["cores"] == machine.cores() >= 1
    assert found["devices"]["memory_gib"] > 0
    assert len(found["devices"]["cuda"]) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    assert found["default"]["threads"] == torch.get_num_threads()
    assert found["default"]["device"] == "cuda" or not torch.cuda.is_available()
    assert found["room"]["disk_gib"]["here"] > 0


@pytest.mark.parametrize(("said", "student"), [("bfloat16", "bf16-mixed"), ("float32", "32-true")])
def test_the_precision_is_the_one_a_run_would_take(said: str, student: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTISHORTCUT_NATIVE", said)
    found = examine()
    assert found["default"]["teacher_precision"] == said
    assert found["default"]["student_precision"] == student
    assert found["environment"]["ANTISHORTCUT_NATIVE"] == said


def test_sets_are_found_where_open_sets_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(KNOWN) == set(DATASETS) - set(WITH_PATH) - EMBEDDED
    assert not any(examine(tmp_path)["data"]["sets"].values())
    first = sorted(layouts.class_list("imagenet100"))[0]
    picture(tmp_path / "imagenet" / "train" / first / "0.JPEG")
    for make in (make_cifar, make_tiny, make_ade):
        make(tmp_path)
    make_camvid(tmp_path / "camvid")
    monkeypatch.setenv("ANTISHORTCUT_DATA", str(tmp_path))
    found = examine()
    assert found["data"] == {"root": str(tmp_path), "exists": True, "sets": dict.fromkeys(KNOWN, True)}
    right_at_it = examine(tmp_path / layouts.CIFAR)["data"]["sets"]
    assert [name for name, there in right_at_it.items() if there] == ["cifar100"]


def test_what_is_amiss_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTISHORTCUT_DATA", str(tmp_path / "gone"))
    monkeypatch.setenv("ANTISHORTCUT_DATE", "today")
    monkeypatch.setenv("ANTISHORTCUT_NATIVE", "float23")
    monkeypatch.setattr(machine, "shared_bytes", lambda: 64 * 2**20)
    monkeypatch.setattr(doctor, "_free", lambda place: 2**30)
    monkeypatch.setattr(doctor, "_quota", lambda: machine.cores() - 0.75)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/nvidia-smi" if name == "nvidia-smi" else None)
    said = "\n".join(asd()["warnings"])
    for words in ("gone: no such folder", "ANTISHORTCUT_DATE is set, but means nothing", "float23", "--shm-size",
                  "make room", "--threads", "install g++"):  # fmt: skip
        assert words in said, words
    assert ("torch" in said and "NVIDIA" in said) or torch.cuda.is_available()


def test_missing_extras_are_told_with_the_line_that_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    there = doctor._there
    monkeypatch.setattr(doctor, "_there", lambda name: None if name == "altair" else there(name))
    found = examine()
    assert found["broken"] == []
    assert "altair" in found["extras"]["report"]["missing"]
    assert found["extras"]["report"]["install"] == "pip install 'antishortcut[report]'"
    assert {"dev", "docs"}.isdisjoint(found["extras"])


def test_only_what_breaks_asd_fails_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    there, load = doctor._there, importlib.import_module
    versions = {"timm": None, "typer": "0.1.0"}
    monkeypatch.setattr(doctor, "_there", lambda name: versions.get(name, there(name)))

    def refuse(name: str, package: str | None = None) -> Any:
        if name == "torchvision":
            raise RuntimeError("operator torchvision::nms does not exist\nand more")
        return load(name, package)

    monkeypatch.setattr(importlib, "import_module", refuse)
    monkeypatch.setattr(sys, "argv", ["asd", "doctor"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    captured = capsys.readouterr()
    line = captured.err.strip().splitlines()[-1]
    assert line.startswith("asd: asd cannot run here: ")
    assert "timm is missing: pip install 'timm>=" in line
    assert "typer 0.1.0 is too old" in line
    assert "torchvision cannot be imported (operator torchvision::nms does not exist)" in line
    assert "data root" in captured.out  # the rest is told all the same


def test_shown_to_a_person() -> None:
    shown = CliRunner().invoke(app, ["doctor"], catch_exceptions=False)
    assert shown.exit_code == 0
    for words in ("torch", "CPU", "precision of the student", "data root", "/dev/shm", "next: asd demo"):
        assert words in shown.stdout


@pytest.mark.parametrize(("text", "cores"), [("150000 100000\n", 1.5), ("max 100000\n", None), ("", None)])
def test_the_share_of_a_container(text: str, cores: float | None, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert doctor._quota(tmp_path / "cpu.max") == cores
    assert doctor._quota(tmp_path / "none") is None


def test_versions_are_compared_by_number() -> None:
    assert doctor._numbers("2.10.0+cpu") > doctor._numbers("2.6")
    assert doctor._numbers("1.0.15") == (1, 0, 15)
    match = doctor._NEED.match('vl-convert-python>=1.7; extra == "report"')
    assert match is not None
    assert match.groups() == ("vl-convert-python", "1.7", "report")
    assert os.path.exists(doctor.__file__)
