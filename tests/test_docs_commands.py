"""The commands that README and docs show do run, in the order of their page, on small stand-ins.

Words are typed as they stand there. What differs: large networks are stood in for by timm's small ones, one epoch is
trained, and folders, weights and CIFAR-100 are made up. What is not run here is listed with its reason, so that a new
page has to choose.
"""

from __future__ import annotations

import re
import shlex
from glob import glob
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from antishortcut.cli import app
from antishortcut.snapshots import Snapshots
from tests.data.official import make_cifar
from tests.test_docs import IDS, PAGES, ROOT, blocks

RUN = ("README.md", "docs/contrast.md", "docs/own-data.md", "docs/own-model.md", "docs/quickstart.md", "docs/runs.md",
       "docs/suites.md", "docs/your-loop.md")  # fmt: skip
ELSEWHERE = {
    "docs/audit.md": "tests/test_audit.py runs each of its forms",
    "docs/beyond.md": "hours; its suites are tried by tests/test_suites.py",
    "docs/cluster.md": "several machines; tests/test_cluster.py",
    "docs/corruptions.md": "tests/data/test_corruptions_files.py",
    "docs/dense.md": "hours; tests/test_dense_runs.py",
    "docs/desk.md": "hours; tests/test_suites.py",
    "docs/export.md": "tests/test_export.py runs every block",
    "docs/report.md": "tests/test_report.py, test_report_sweep.py and test_report_serve.py",
    "docs/reproduce.md": "days; tests/test_suites.py",
    "docs/results.md": "hours; tests/test_cli.py runs the demo",
    "docs/segmentation.md": "hours; tests/test_dense_runs.py",
    "docs/shifts.md": "data sets to download; tests/test_evaluate_shifted.py",
    "docs/speed.md": "measures this machine; tests/test_bench.py",
    "docs/stylized.md": "hours; tests/test_stylize.py",
}
# lines of pages that are run; a word that they hold → why they are not
NOT = {
    "make ": "this is what runs the tests",
    "examples/": "tests/test_examples.py",
    "suite run": "hours",
    "report runs/beyond-cues": "of what those hours made",
    "--measure": "measures this machine",
}
SMALL = {
    "resnet50": "test_resnet",
    "mobilenetv3_small_100": "test_efficientnet",
    "~/data": "data",
    "path/to/images": "photos",
}
FEW = {
    "cues": ["epochs=1", "teacher.epochs=2", "data.options.count=512", "data.options.test_count=32"],
    "P2": ["epochs=1", "teacher.epochs=1", "teacher.name=cnn-8", "student.name=cnn-8-16"],
    "recipe.toml": ["epochs=1", "teacher.epochs=1", "data.image_size=32", "student.name=timm:test_efficientnet"],
    "--data": ["epochs=1", "teacher.epochs=1", "data.image_size=32"],
}


def lines(page: Path) -> list[str]:
    return [line for line in "\n".join(blocks(page, "sh")).splitlines() if line.strip()]


def small(text: str) -> str:
    for word, other in SMALL.items():
        text = text.replace(word, other)
    return text


def words_of(line: str) -> list[str]:
    """The words of a line as a shell would give them, with one epoch of what it trains."""
    words = [each for word in shlex.split(small(line), comments=True)[1:] for each in (sorted(glob(word)) or [word])]
    if words[0] in ("teach", "distill"):
        words += [word for each in FEW[words[1]] for word in ("--set", each)]
    return words


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages speak of."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("ape", "bee", "cat"):
        (folder := tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            Image.fromarray(rng.integers(0, 256, (40, 36, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    make_cifar(tmp_path / "data", per_class=1)
    teacher: nn.Module = timm.create_model("test_resnet", num_classes=3)
    states = Snapshots(tmp_path / "teacher-states", total_steps=100)
    for step, file in ((15, "epoch5.pt"), (100, "last.pt")):
        with torch.no_grad():
            for weight in teacher.parameters():
                weight.add_(0.02 * torch.randn_like(weight))
        torch.save({"state_dict": teacher.state_dict()}, file)
        states(teacher, step)
    return tmp_path


def test_every_page_with_commands_is_run_or_says_why_not() -> None:
    shown = {name for name, page in zip(IDS, PAGES, strict=True) if lines(page)}
    assert shown == {*RUN, *ELSEWHERE}
    for why in ELSEWHERE.values():
        assert all(
            (ROOT / "tests" / Path(file).relative_to("tests")).exists() for file in re.findall(r"tests/\S+\.py", why)
        )


@pytest.mark.parametrize("name", RUN)
def test_commands_run_as_they_are_shown(name: str, place: Path) -> None:
    page, ran = ROOT / name, 0
    if name == "docs/own-model.md":  # whose Python writes the network
        exec(compile(blocks(page, "python")[0], name, "exec"), {})
    if "recipe.toml" in page.read_text(encoding="utf-8"):
        assert CliRunner().invoke(app, ["init"]).exit_code == 0
        recipe = Path("recipe.toml")
        recipe.write_text(small(recipe.read_text(encoding="utf-8")), encoding="utf-8")
    for line in lines(page):
        if any(word in line for word in NOT):
            continue
        if "runs/mine" in line and not Path("runs/mine").exists():
            for strength in ("0.5", "1.0"):
                asked = f"distill cues --method contrast --suite mine --name by-{strength} --set data.val_fraction=0.1"
                few = [word for each in (*FEW["cues"], f"method.strength={strength}") for word in ("--set", each)]
                assert CliRunner().invoke(app, [*asked.split(), *few]).exit_code == 0
        teachers = sorted(Path("runs/teachers").glob("*"))
        done = CliRunner().invoke(app, words_of(line.replace("HASH", teachers[0].name if teachers else "")))
        assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"
        ran += 1
    assert ran or all(any(word in line for word in NOT) for line in lines(page))
