"""Shell completion and asd list: names offered are names that exist, found without torch; each has its line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
from typer.testing import CliRunner

from antishortcut.cli import app, complete
from antishortcut.cli.lists import KINDS
from antishortcut.cli.options import MEASURED
from antishortcut.data import AUGMENTS, DATASETS
from antishortcut.data.sources import WITH_PATH
from antishortcut.methods import METHODS
from antishortcut.models.zoo import DEEPLAB, FAMILIES, IMAGENET
from antishortcut.run import shipped_recipes
from antishortcut.suites import SUITES

PRESS = """
import contextlib, io, json, os, sys
from antishortcut.cli import app
found = {}
for line in json.loads(sys.argv[1]):
    os.environ |= {"_ASD_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        app(prog_name="asd")
    found[line] = said.getvalue().split()
heavy = sorted({"torch", "numpy", "timm", "lightning_fabric", "PIL", "rich.table"} & set(sys.modules))
print(json.dumps([found, heavy]))
"""


def press_tab(*lines: str, at: Path | None = None) -> tuple[dict[str, list[str]], list[str]]:
    """What is offered at the end of each line, and which heavy modules that took."""
    done = subprocess.run(
        [sys.executable, "-c", PRESS, json.dumps(lines)], check=True, capture_output=True, text=True, cwd=at
    )
    found, heavy = json.loads(done.stdout)
    return found, heavy


def test_names_are_offered_without_torch(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "images").mkdir()
    wanted = {
        "asd distill cues --method contr": ["contrast", "contrast+tc"],
        "asd distill P1": ["P1", "P10", "P11", "P12", "P13"],
        "asd distill m": ["mine.toml"],
        "asd teach ./": ["./images/", "./mine.toml"],
        "asd distill P2 --via wrn-40": ["wrn-40-2", "wrn-40-1"],
        "asd audit --model tim": [*(name for name in IMAGENET if name.startswith("timm")), "timm:"],
        "asd distill --student timm:mobilenetv3_small_0": [f"timm:mobilenetv3_small_0{width}" for width in (50, 75)],
        "asd distill --teacher torchvision:resnet5": ["torchvision:resnet50"],
        "asd evaluate runs --on clean,sc": ["clean,scenes"],
        "asd bench --methods kd,rk": ["kd,rkd"],
        "asd check ci": ["cifar100"],
        "asd check i": ["imagenet100", "images/"],
        "asd corrupt folder:i": ["folder:images/"],
        "asd list me": ["methods"],
        "asd doc": ["doctor"],
        "asd distill cues --meth": ["--method"],
    }
    found, heavy = press_tab(*wanted, at=tmp_path)
    assert found == wanted
    assert heavy == []


def test_suites_are_offered_without_torch() -> None:
    found, heavy = press_tab("asd suite run desk")
    assert found == {"asd suite run desk": [name for name in SUITES if name.startswith("desk")]}
    assert not {"torch", "numpy"} & set(heavy)


def test_names_read_from_files_are_those_of_the_tables() -> None:
    assert complete.names("methods") == tuple(METHODS)
    assert complete.names("models") == (*FAMILIES, *DEEPLAB, *IMAGENET)
    assert complete.names("datasets") == tuple(DATASETS)
    assert complete.names("augmentations") == tuple(AUGMENTS)
    assert complete.shipped() == list(shipped_recipes())
    assert complete.models("timm:") == [f"timm:{name}" for name in sorted(timm.list_models())]
    assert complete.WITH_PATH == WITH_PATH
    assert complete.listed(lambda: ["kd", "asd"])("asd,") == ["asd,kd"]


@pytest.mark.parametrize(("shell", "file"), [
    ("bash", ".bash_completions/asd.sh"), ("zsh", ".zfunc/_asd"), ("fish", ".config/fish/completions/asd.fish"),
])  # fmt: skip
def test_completion_is_shown_and_installed(shell: str, file: str, tmp_path: Path) -> None:
    env = os.environ | {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    code = "import sys; from antishortcut.cli import main; sys.argv[0] = 'asd'; main()"
    for word in ("--show-completion", "--install-completion"):
        done = subprocess.run(
            [sys.executable, "-c", code, word, shell], capture_output=True, text=True, env=env, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "_ASD_COMPLETE" in done.stdout or "installed" in done.stdout
    assert "_ASD_COMPLETE" in (tmp_path / file).read_text()


def asd(*words: str) -> Any:
    result = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_list_alone_counts() -> None:
    rows = {row["what"]: row for row in asd("list")}
    assert list(rows) == list(KINDS)
    for name, row in rows.items():
        assert row["there are"] == len(asd("list", name)), name
        assert row["shown by"] == f"asd list {name}"
        assert row["used by"].startswith("asd ")
    assert asd("list", "data") == asd("list", "datasets")
    assert {row["name"] for row in asd("list", "evaluations")} == set(MEASURED)


@pytest.mark.parametrize("what", KINDS)
def test_everything_has_its_line(what: str) -> None:
    for row in asd("list", what):
        told = row.get("what", row.get("family", ""))
        assert len(told) >= 10 or told == AUGMENTS["none"], row
        assert "\n" not in told


def test_variants_of_a_method_are_told_apart() -> None:
    rows = asd("list", "methods")
    assert len({row["what"] for row in rows}) == len(rows)
    assert next(row["what"] for row in rows if row["name"] == "at+kd").endswith("with kd = 1.0")


def test_list_alone_needs_no_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from antishortcut.cli import app\n"
        "result = CliRunner().invoke(app, ['list']); assert 'asd list methods' in result.output, result.output\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("words", "near"), [
    (["distil"], "'distill'"), (["distill", "cues", "--metod", "kd"], "--method"), (["list", "sutes"], "'suites'"),
    (["suite", "show", "dexk"], "'desk'"), (["distill", "cuse"], "'cues'"), (["check", "camvod"], "'camvid'"),
    (["evaluate", "x", "--at", "cleen=."], "'clean'"), (["distill", "cues", "--set", "data.augmet=none"], "'augment'"),
    (["distill", "cues", "--set", "data.name=cue"], "'cues'"),
    (["bench", "--pair", "cnn16:cnn-8-64", "--rounds", "1"], "'cnn-16'"),
])  # fmt: skip
def test_a_slip_is_answered_with_the_near_name(
    words: list[str], near: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from antishortcut.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["asd", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert near in capsys.readouterr().err.strip().splitlines()[-1]
