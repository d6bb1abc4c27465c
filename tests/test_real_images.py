"""Every method from the command, on real CIFAR-100, in one table. Skipped where the images are not there."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from antishortcut.methods import METHODS
from tests.conftest import asd, invoke

PAIR = """
epochs = 2
[data]
name = "cifar100"
train_limit = 2000
test_limit = 1000
[teacher]
name = "resnet14"
[student]
name = "resnet8"
[methods.ab]
init = 0.25
[methods.fsp]
init = 0.25
[methods.ft]
init = 0.25
"""


CIFAR = Path(os.environ.get("ANTISHORTCUT_DATA", "data")) / "cifar-100-python" / "train"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CIFAR.exists(), reason="no cifar-100-python in $ANTISHORTCUT_DATA or ./data"),
]


def test_every_method_on_cifar100_in_one_table(tmp_path: Path) -> None:
    recipe, runs = tmp_path / "small.toml", tmp_path / "runs"
    recipe.write_text(PAIR)
    methods = METHODS.keys() - {"dfr+kd", "groupdro+kd"}  # these images have no groups
    for method in methods:
        invoke("distill", recipe, "--method", method, "--runs", runs)
    invoke("evaluate", *sorted((runs / "small").iterdir()))
    rows = {row["method"]: row for row in asd("report", runs / "small")["rows"]}
    assert rows.keys() == methods
    assert all(0 <= row["test accuracy"] <= 1 for row in rows.values())
    table = (runs / "small" / "table.md").read_text()
    assert all(f"| {name} |" in table for name in methods)


CLASSIFIER = """
epochs = 4
[data]
name = "cifar100"
test_limit = 2000
[teacher]
name = "cnn-32-128"
[student]
name = "cnn-32-128"
"""


def test_errors_grow_with_the_severity_of_corruptions(tmp_path: Path) -> None:
    recipe, runs = tmp_path / "clean.toml", tmp_path / "runs"
    recipe.write_text(CLASSIFIER)
    invoke("distill", recipe, "--method", "ce", "--runs", runs)
    shown = asd("evaluate", runs / "clean" / "ce-s1", "--on", "corruptions")
    score = shown["runs"][0]["scores"]["corruptions"]
    assert score["source"] == "generated"
    assert score["values"]["clean_error"] < score["values"]["mce_all"] < score["values"]["mce"]
    assert [name for name, errors in score["errors"].items() if errors[4] <= errors[0]] == []
    noise = 0.01  # of 2,000 images, about one standard deviation
    falls = {n for n, e in score["errors"].items() if any(b < a - noise for a, b in pairwise(e))}
    assert falls <= {"glass_blur", "elastic_transform", "snow", "frost", "motion_blur"}  # docs/results/shifted.md
