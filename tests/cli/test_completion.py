"""Shell completion and asd list: names exist, and each has a description."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from antishortcut.cli import app
from antishortcut.cli.info import KINDS
from antishortcut.cli.options import MEASURED
from antishortcut.data import AUGMENTS
from antishortcut.experiments.suites import SUITES
from antishortcut.models.registry import IMAGENET
from tests.conftest import asd


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("asd distill cues --method contr", ["contrast", "contrast+tc", "contrast+hint", "contrast+ls"]),
        ("asd distill P1", ["P1", "P10", "P11", "P12", "P13"]),
        ("asd distill m", ["mine.toml"]),
        ("asd distill P2 --via wrn-40", ["wrn-40-2", "wrn-40-1"]),
        ("asd audit --model tim", [*(name for name in IMAGENET if name.startswith("timm")), "timm:"]),
        ("asd distill --student timm:mobilenetv3_small_0", [f"timm:mobilenetv3_small_0{size}" for size in (50, 75)]),
        ("asd evaluate runs --on clean,sc", ["clean,scenes"]),
        ("asd evaluate runs --on clean --on gr", ["groups"]),
        ("asd bench --methods kd,rk", ["kd,rkd"]),
        ("asd check i", ["imagenet100", "images/"]),
        ("asd suite run desk", [name for name in SUITES if name.startswith("desk")]),
        ("asd list me", ["methods"]),
        ("asd doc", ["doctor"]),
        ("asd distill cues --meth", ["--method"]),
    ],
)
def test_names_are_completed(
    line: str, offered: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.toml").touch()
    (here / "notes.txt").touch()
    (here / "images").mkdir()
    words = {"_ASD_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        app(prog_name="asd")
    assert capsys.readouterr().out.split() == offered


def test_completion_is_installed(tmp_path: Path) -> None:
    env = os.environ | {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    code = "import sys; from antishortcut.cli import main; sys.argv[0] = 'asd'; main()"
    subprocess.run([sys.executable, "-c", code, "--install-completion", "bash"], env=env, check=True)
    assert "_ASD_COMPLETE" in (tmp_path / ".bash_completions/asd.sh").read_text()


def test_list_without_a_name_lists_the_kinds() -> None:
    assert [row["what"] for row in asd("list")] == list(KINDS)
    assert asd("list", "data") == asd("list", "datasets")
    assert {row["name"] for row in asd("list", "evaluations")} == set(MEASURED)


@pytest.mark.parametrize("what", KINDS)
def test_every_name_has_a_description(what: str) -> None:
    rows = asd("list", what)
    for row in rows:
        line = row.get("what", row.get("family", ""))
        assert len(line) >= 10 or line == AUGMENTS["none"], row
        assert "\n" not in line
    if what == "methods":  # variants are told apart
        assert len({row["what"] for row in rows}) == len(rows)
        assert next(row["what"] for row in rows if row["name"] == "at+kd").endswith("with kd = 1.0")
