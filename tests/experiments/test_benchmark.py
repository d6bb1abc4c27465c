"""asd bench: every method is timed, its phases add up, and teacher passes are counted."""

import pytest

from antishortcut.errors import UserError
from antishortcut.experiments.benchmark import PHASES, bench, pair_of, ratio_of
from antishortcut.methods import METHODS, method_options, method_roles
from tests.conftest import asd, invoke

NO_COMPILE = ["--teacher-compile", "off"]  # compiling takes half a minute


def test_every_method_is_timed() -> None:
    result = bench(pair_of("cnn-4-16:cnn-4-8"), list(METHODS), batch=8, rounds=1)  # equal channels, for fsp
    cached = {"asd-cached": 0, "contrast+hint-cached": 0}
    assert set(result["ms"]) == {"plain-kd", "contrast-weak", *cached, *METHODS}
    for name, split in result["split"].items():
        assert tuple(split) == PHASES
        assert sum(split.values()) == pytest.approx(result["ms"][name], abs=0.05)  # one round: medians add up
    passes = {name: len(method_roles(name, method_options(name, {}))) for name in METHODS}
    passes |= {"mlld": 2, "mlld+ls": 2}  # two views
    assert result["teacher_passes"] == {"plain-kd": 1, "contrast-weak": 2} | cached | passes
    assert result["teacher_passes"]["contrast"] == result["teacher_passes"]["asd"] == 2


def test_ratios_are_of_the_same_round() -> None:
    assert ratio_of([2.0, 40.0, 6.0], [1.0, 10.0, 3.0]) == 2.0  # 2, 4, 2, although the means are 16 and 4.7


def test_bench_command() -> None:
    words = ["bench", "--pair", "cnn-4-16:cnn-2-16", "--methods", "kd,contrast", "--batch", "4", "--rounds", "2"]
    ratios = {f"{name}/{of}" for name in ("contrast", "contrast-weak") for of in ("plain-kd", "kd")}
    assert set(asd(*words, *NO_COMPILE)["ratio"]) == {"kd/plain-kd"} | ratios
    invoke(*words, *NO_COMPILE)


def test_bench_of_a_recipe() -> None:
    results = asd("bench", "--pair", "cues", "--methods", "kd", "--rounds", "1", *NO_COMPILE)
    assert results["pair"] == "cnn-32-64:cnn-8-64"
    assert results["images"] == {"classes": 10, "count": 8_000, "side": 32}
    assert results["batch"] == 64


def test_pairs_of_other_libraries() -> None:
    for text, names in {
        "timm:resnet18:timm:vit_tiny": ("timm:resnet18", "timm:vit_tiny"),
        "import:mine.nets:big:wrn-16-2": ("import:mine.nets:big", "wrn-16-2"),
        "wrn-40-2:import:mine.nets:small": ("wrn-40-2", "import:mine.nets:small"),
    }.items():
        assert tuple(model.name for model in pair_of(text)) == names
    for wrong in ("timm:resnet18", "wrn-40-2:", ":wrn-16-2", "wrn-40-2:timm", "timm:a:import"):
        with pytest.raises(UserError, match="write TEACHER:STUDENT"):
            pair_of(wrong)


def test_a_network_with_a_fixed_input_size() -> None:
    result = bench(pair_of("cnn-2-16:timm:test_vit"), ["kd"], batch=2, rounds=1)
    assert set(result["ms"]) == {"plain-kd", "kd"}
