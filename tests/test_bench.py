"""asd bench: every method is timed, its parts add up, and passes of the teachers are counted."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from antishortcut.bench import PARTS, _ratio, bench
from antishortcut.cli import app
from antishortcut.errors import UserError
from antishortcut.methods import METHODS, options_of, roles_of


def test_every_method_is_timed() -> None:
    found = bench("cnn-4-16:cnn-2-16", list(METHODS), batch=8, rounds=1)
    assert set(found["ms"]) == {"plain-kd", "asd-cached", *METHODS}
    for name, split in found["split"].items():
        assert tuple(split) == PARTS
        assert sum(split.values()) == pytest.approx(found["ms"][name], abs=0.05)  # one round: medians add up
    passes = {name: len(roles_of(name, options_of(name, {}))) for name in METHODS}
    assert found["teacher_passes"] == {"plain-kd": 1, "asd-cached": 0} | passes
    assert found["teacher_passes"]["contrast"] == found["teacher_passes"]["asd"] == 2


def test_ratios_are_of_the_same_round() -> None:
    assert _ratio([2.0, 40.0, 6.0], [1.0, 10.0, 3.0]) == 2.0  # 2, 4, 2, although the means are 16 and 4.7


def test_the_command() -> None:
    words = ["bench", "--pair", "cnn-4-16:cnn-2-16", "--methods", "kd,contrast", "--batch", "4", "--rounds", "2"]
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found["ratio"]) == {"kd/plain-kd", "contrast/plain-kd", "contrast/kd"}
    assert CliRunner().invoke(app, words).exit_code == 0


@pytest.mark.parametrize(
    "words", [["--pair", "cnn-4"], ["--methods", "kdd"], ["--methods", ","], ["--device", "tpu"], ["--threads", "-1"]]
)
def test_wrong_words(words: list[str]) -> None:
    result = CliRunner().invoke(app, ["bench", "--rounds", "1", "--batch", "2", *words])
    assert isinstance(result.exception, UserError)
