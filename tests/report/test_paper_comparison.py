"""How runs of the paper's pairs were made, and what the folder of their teacher holds of the printed numbers."""

from pathlib import Path
from typing import Any

import pytest

from antishortcut.config.recipe import Run, rewind_run, teach_run
from antishortcut.experiments.paper import MARK, PAIRS, TABLES, desk_recipe
from antishortcut.methods import method_options
from antishortcut.report import build
from antishortcut.report.paper_comparison import EPOCHS
from antishortcut.report.paper_pairs import DEFAULTS, DESK, unlike
from antishortcut.run_dir import RunDir, write_json
from tests.browser.fake_runs import score
from tests.report.test_printed_tables import line, made, opened, run, runs


def teacher(root: Path, suite: str = "P1", **more: Any) -> RunDir:
    """A pair's finished teacher beside the suites, with what a mechanism score leaves there."""
    recipe = PAIRS[suite.removesuffix(MARK)].recipe()
    own = teach_run(desk_recipe(recipe) if suite.endswith(MARK) else recipe, "f").model_copy(update=more)
    folder = RunDir(root / "teachers" / own.hash)
    folder.begin(own, {}, {})
    scores = {"accuracy": 0.8, "epoch": own.epochs}
    folder.finish({"set": "test", "last": scores, "best": scores, "seconds": 1.0, "parameters": 21_328_292})
    energy = {epoch: 0.3 - abs(epoch - 90) / 1000 for epoch in (*EPOCHS, 36)}
    write_json(
        folder.path / "artifacts" / "directions-15.json",
        {
            "early": "15%", "count": 5000, "width": 512, "K": 4,
            "spectrum": {
                "uncentred": [5.0, 2.0, 1.9, 1.0, 0.9], "centred": [2.0, 1.8, 1.5, 0.9, 0.8],
                "eigengap": {"centred": {"absolute": 0.1, "relative": 0.05}},
            },
            "energy": [
                {"epoch": epoch * own.epochs / 240 - 0.0004, "shortcut": value, "robust": value / 2}
                for epoch, value in sorted(energy.items())
            ],
        },
    )  # fmt: skip
    return folder


def test_known_settings_are_those_of_the_methods() -> None:
    """Without torch a report cannot ask the methods; every method of the paper's rows is there."""
    assert {name: method_options(name, {}) for name in DEFAULTS} == DEFAULTS
    assert DEFAULTS.keys() == {job.method for job in TABLES["paper"].jobs()}


@pytest.mark.parametrize("suite", [*PAIRS, "P1-desk", "P12-desk", "ade20k-resnet18-desk"])
def test_the_papers_rows_are_like_themselves(suite: str) -> None:
    names = {job.name for job in TABLES["paper"].jobs() if job.suite == suite.removesuffix(MARK)} - {"asd-rewind"}
    assert names
    assert {name: unlike(made(suite, name), None) for name in names} == dict.fromkeys(names, "")


def test_every_way_in_which_a_run_is_another(tmp_path: Path) -> None:
    own = made("P1", "asd")
    school = teach_run(PAIRS["P1"].recipe(), "f")
    other = school.model_copy(update={"epochs": 12, "seed": 7})

    def message(taught: Run | None = None, **more: Any) -> str:
        return unlike(own.model_copy(update=more), taught)

    assert message() == ""
    assert message(optim=own.optim.model_copy(update={"batch": 1024})) == "optim.batch 1024 instead of 64"
    assert message(options=own.options | {"directions": 64}) == "options.directions 64 instead of 4"
    assert message(options=own.options | {"warmup": 0.0}) == "options.warmup 0.0 instead of 20.0"
    assert message(roles=own.roles | {"early": "75%"}) == "T_early 75% instead of 15%"
    assert message(roles=own.roles | {"early": "epoch:36"}) == ""  # the same state
    assert message(model=own.model.model_copy(update={"stem": "imagenet"})) == "model.stem imagenet instead of cifar"
    assert message(method="kd") == "method kd instead of asd"
    assert message(other, teacher=other.hash) == "teacher.seed 7 instead of 0, teacher.epochs 12 instead of 240"
    assert message(None, teacher="0" * 16) == "another teacher, whose folder is not here"
    small = school.model_copy(update={"model": school.model.model_copy(update={"name": "resnet14"})})
    assert message(small, teacher=small.hash) == "teacher.model.name resnet14 instead of resnet34"
    desk = made("P1-desk", "asd")
    assert unlike(desk.model_copy(update={"options": desk.options | {"directions": 64}}), None) == (
        "options.directions 64 instead of 4"
    )
    single = made("P1", "ce").model_copy(update={"teacher": "0" * 16})
    assert unlike(single, None) == ""  # learns from none


def test_a_run_made_otherwise_is_labelled_and_has_no_difference(tmp_path: Path) -> None:
    root = runs(tmp_path / "P1", names=("kd",))
    own = made("P1", "asd")
    school = teacher(tmp_path, seed=3)
    changed: dict[str, Any] = {
        "optim": own.optim.model_copy(update={"batch": 1024}),
        "options": own.options | {"directions": 64},
        "roles": own.roles | {"early": "75%"},
        "teacher": school.path.name,
    }
    runs(root, names=("asd",), **changed)
    report = build(root)
    _, sides = opened(root)
    message = "optim.batch 1024 instead of 64, options.directions 64 instead of 4, T_early 75% instead of 15%, "
    label = f"not made as the paper's ({message}teacher.seed 3 instead of 0): compare signs against KD only"
    assert sides[0].labels == [f"asd: {label}"]
    asd = line(sides, "asd", "accuracy")
    assert (asd.difference, asd.agrees, asd.label) == (None, True, label)
    assert line(sides, "kd", "accuracy").difference is not None
    made_ = report.summary(None)
    assert {row["method"]: row["label"] for row in made_["rows"]} == {"kd": "", "asd": label}
    assert {row["label"] for row in made_["printed"][0]["rows"] if row["method"] == "asd"} == {label}


def test_desk_scale_names_its_networks_and_is_labelled_everywhere(tmp_path: Path) -> None:
    root = runs(tmp_path / "P1-desk", suite="P1-desk")
    teacher(tmp_path, "P1-desk")
    report = build(root)
    _, (side,) = opened(root)
    assert side.title == "P1-desk: resnet14 → resnet8, CIFAR-100"
    assert "## Beside the printed numbers: P1-desk: resnet14 → resnet8, CIFAR-100" in (root / "table.md").read_text()
    tex = (root / "table.tex").read_text()
    assert f"% P1-desk: {DESK}.\n" in tex
    assert r"}{\footnotesize P1-desk: desk scale, not the paper's size: compare signs against KD only.} \\" in tex
    assert {row["label"] for row in report.summary(None)["rows"]} == {DESK}
    assert {(one.difference, one.label) for one in side.rows} == {(None, DESK)}
    energy = line([side], "teacher", "shortcut energy, epoch 35")  # at the same share of training
    assert energy.texts()[2:5] == ["0.245 (1)", "0.253", "–"]


def test_what_the_teachers_folder_holds(tmp_path: Path) -> None:
    teacher(tmp_path)
    root = runs(tmp_path / "P1", names=("kd", "asd"))
    _, (side,) = opened(root)

    expected = {
        "accuracy": ["80.00 (1)", "79.91", "+0.09"],
        "eigengap": ["0.100 (1)", "0.059", "+0.041"],
        "eigengap, relative": ["0.050 (1)", "0.029", "+0.021"],
        "λ₁, uncentred": ["5.00 (1)", "4.79", "+0.21"],
        "λ_K+1, centred": ["0.80 (1)", "0.79", "+0.01"],
        "shortcut energy, epoch 35": ["0.245 (1)", "0.253", "−0.008"],
        "robust energy, epoch 240": ["0.075 (1)", "0.106", "−0.031"],
    }
    assert {measure: line([side], "teacher", measure).texts()[2:5] for measure in expected} == expected
    assert {one.agreement for one in side.rows if one.method == "teacher"} == {"–"}
    assert [one.numbers[0].place for one in side.rows if one.method == "teacher"].count("S-Table 2") == 14


def test_evaluations_that_would_measure_more_are_named(tmp_path: Path) -> None:
    for name in ("kd", "asd"):
        view = dict.fromkeys(("cos_final", "cos_early", "closer_final", "signed_cosine", "signed_above"), 0.5)
        view |= dict.fromkeys(("projection", "robust_projection", "infonce_binary", "infonce_full"), 0.5)
        score(run(tmp_path / "P1", name, 1, 0.8), "mechanism", {"raw": view})
    assert opened(tmp_path / "P1")[1][0].missing == ["corruptions", "stylized"]
    teacher(tmp_path)
    next((tmp_path / "teachers").rglob("directions-15.json")).unlink()
    assert opened(tmp_path / "P1")[1][0].missing == ["corruptions", "mechanism", "stylized"]  # for its teacher


def test_a_rewound_reference_is_the_papers() -> None:
    rewound = f"{rewind_run(teach_run(PAIRS['P1'].recipe(), 'f'), 10, 0.05).hash}/final"
    own = made("P1", "asd").model_copy(update={"name": "asd-rewind", "early": rewound})
    assert unlike(own.model_copy(update={"roles": {"final": "final", "early": rewound}}), None) == ""
    assert unlike(own, None) == "T_early 15% instead of rewind"


def test_several_teachers_are_averaged(tmp_path: Path) -> None:
    for seed in (1, 2):
        run(tmp_path / "P1", "asd", seed, 0.8, teacher=teacher(tmp_path, seed=seed).path.name)
    one = line(opened(tmp_path / "P1")[1], "teacher", "accuracy")
    assert (one.texts()[2], one.difference) == ("80.00 ± 0.00 (2)", None)
    assert one.label.startswith("not made as the paper's (teacher.seed 1 instead of 0)")
