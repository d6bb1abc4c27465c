"""asd report --sweep and --scatter on run folders written by hand: every number against one worked out on paper."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr

from antishortcut.config.recipe import DataSettings, ModelSettings, OptimSettings, Run
from antishortcut.errors import UserError
from antishortcut.report import make_report
from antishortcut.report.collect import collect
from antishortcut.report.scatter import ScatterAnalysis
from antishortcut.report.sweep import Sweep, lines_over, sweep_figure
from antishortcut.report.table import ResultTable
from antishortcut.run_dir import RunDir
from tests.browser.fake_runs import HOSTILE, SCRIPT, score

BOTH = {"final": "final", "early": "15%"}


def made(root: Path, name: str, seed: int, last: float, **more: Any) -> RunDir:
    """A finished student; `more` are settings of its run."""
    settings = {"suite": "S", "method": "contrast", "epochs": 2, "data": DataSettings(), "roles": BOTH} | more
    model, optim = ModelSettings(name="cnn-8-64"), OptimSettings()
    run = Run(kind="distill", name=name, seed=seed, fingerprint="f", model=model, **{"optim": optim} | settings)
    folder = RunDir(root / re.sub(r"\W", "_", run.suite) / re.sub(r"[^\w.-]", "_", f"{name}-s{seed}"))
    folder.begin(run, {}, {})
    scores = {"accuracy": last, "epoch": 2}
    folder.finish({"set": "iid", "last": scores, "best": scores, "seconds": 1.0})
    return folder


def contrast(root: Path, strength: float, seed: int, last: float, **more: Any) -> RunDir:
    options = {"strength": strength, "weight": 1.0} | more.pop("options", {})
    return made(root, more.pop("name", f"contrast-{strength:g}"), seed, last, options=options, **more)


def kd(root: Path, seed: int, last: float, **more: Any) -> RunDir:
    return made(root, "kd", seed, last, **{"method": "kd", "options": {"weight": 1.0}, "roles": {}} | more)


def swept(root: Path, key: str = "strength", columns: str = "last") -> Sweep:
    return Sweep(ResultTable(collect(root)).select(columns), key)


def lines(root: Path, key: str = "strength") -> dict[str, list[tuple[float, int]]]:
    """Label → values, and how many seeds each has."""
    runs = collect(root)
    return {
        line.label: [(value, len(runs.groups[method])) for value, method in line.points.items()]
        for line in lines_over(key, runs)
    }


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """KD and two strengths, three seeds; mce falls where accuracy rises."""
    table = {
        None: ((0.50, 0.60, 0.70), (0.30, 0.20, 0.10)),
        0.5: ((0.60, 0.71, 0.80), (0.25, 0.16, 0.05)),  # surely better than KD: +0.10, +0.11, +0.10
        2.0: ((0.40, 0.52, 0.59), (0.35, 0.155, 0.10)),  # surely worse in accuracy; mce +0.05, −0.045, 0
    }
    for strength, (accuracies, errors) in table.items():
        for seed, (last, mce) in enumerate(zip(accuracies, errors, strict=True), start=1):
            folder = kd(tmp_path, seed, last) if strength is None else contrast(tmp_path, strength, seed, last)
            score(folder, "corruptions", {"mce": mce})
    return tmp_path


def test_means_and_marks(suite: Path) -> None:
    sweep = swept(suite, columns="last,corruptions mce")
    assert [method for _, _, method in sweep.rows()] == ["kd", "contrast-0.5", "contrast-2"]
    assert sweep.texts() == [  # mce −0.05, −0.04, −0.05: less is better
        ["S", "kd", "3", "0.600 ± 0.100", "0.200 ± 0.100"],
        ["S contrast", "0.5", "3", "0.703 ± 0.100 ★▲*", "0.153 ± 0.100 ★▲*"],
        ["S contrast", "2", "3", "0.503 ± 0.096 ▼*", "0.202 ± 0.131 ▼"],
    ]


def test_the_figure_has_t_intervals_and_the_baseline(suite: Path) -> None:
    figure = sweep_figure(swept(suite))
    assert figure.key == {"S contrast": "#0072B2", "kd of S (dashed)": "#0072B2"}
    (panel,) = figure.panels
    first, second = panel.data["sweep0"]
    mean, half = 2.11 / 3, 4.302653 * 0.100167 / 3**0.5  # t(0.975; 2) · s / √3
    assert (first["x"], first["seeds"]) == (0.5, 3)
    assert (first["low"], first["high"]) == pytest.approx((mean - half, mean + half), abs=1e-5)
    assert second["x"] == 2.0
    assert panel.data["rules0"] == [{"line": "kd of S", "method": "kd", "value": pytest.approx(0.6), "seeds": 3}]


def test_rows_that_differ_otherwise_are_not_mixed(tmp_path: Path) -> None:
    for seed in (1, 2):
        for strength in (0.5, 1.0):
            contrast(tmp_path, strength, seed, 0.5, teacher=f"{seed:016x}")  # every seed has its teacher
            contrast(tmp_path, strength, seed, 0.6, name=f"no-ce-{strength}", options={"task_weight": 0.0})
            made(tmp_path, f"residual-{strength}", seed, 0.7, method="residual", options={"strength": strength})
        contrast(tmp_path, 1.0, seed, 0.1, name="early-30", roles=BOTH | {"early": "30%"})  # one value, no line
        contrast(tmp_path, 1.0, seed, 0.1, name="other", roles=BOTH | {"early": f"{seed:016x}/15%"})
        contrast(tmp_path, 1.0, seed, 0.1, name="longer", epochs=3)
    assert lines(tmp_path) == {
        "S contrast task_weight=–": [(0.5, 2), (1.0, 2)],
        "S contrast task_weight=0": [(0.5, 2), (1.0, 2)],
        "S residual": [(0.5, 2), (1.0, 2)],
    }
    assert [row["last"] for row in swept(tmp_path).flat()["rows"]] == pytest.approx([0.5, 0.5, 0.6, 0.6, 0.7, 0.7])


def test_another_teacher_is_another_line_and_another_name_is_not(tmp_path: Path) -> None:
    for strength in (1, 2.0):  # an integer is the same number
        contrast(tmp_path, strength, 1, 0.5, teacher="a" * 16)
        contrast(tmp_path, strength, 1, 0.5, teacher="a" * 16, name=f"again-{strength}", options={"weight": 1})
    assert lines(tmp_path) == {"S contrast": [(1.0, 1), (2.0, 1)]}
    for strength in (1.0, 2.0):
        contrast(tmp_path, strength, 1, 0.9, teacher="b" * 16, name=f"large-{strength}")
    assert lines(tmp_path) == {f"S contrast teacher={letter * 16}": [(1.0, 1), (2.0, 1)] for letter in "ab"}


def test_suites_are_not_mixed(tmp_path: Path) -> None:
    for suite in ("P2", "P10"):
        for strength in (1.0, 2.0):
            contrast(tmp_path, strength, 1, 0.5, suite=suite)
        kd(tmp_path, 1, 0.4, suite=suite)
    assert lines(tmp_path) == {f"{suite} contrast": [(1.0, 1), (2.0, 1)] for suite in ("P2", "P10")}
    assert [label for label, _, _ in swept(tmp_path).rows()] == [
        "P2", "P2 contrast", "P2 contrast", "P10", "P10 contrast", "P10 contrast",
    ]  # fmt: skip
    figure = sweep_figure(swept(tmp_path))
    assert list(figure.key) == ["P2 contrast", "P10 contrast", "kd of P2 (dashed)", "kd of P10 (dashed)"]
    assert len(set(figure.key.values())) == 2


def test_a_suite_for_every_value_makes_one_line(tmp_path: Path) -> None:
    """Each point is compared with KD of its own suite, and KD is a line itself."""
    for rho, base in ((0.8, 0.5), (0.95, 0.2)):
        more: dict[str, Any] = {"suite": f"rho{rho}", "data": DataSettings(options={"rho": rho})}
        for seed in (1, 2):
            kd(tmp_path, seed, base, **more)
            contrast(tmp_path, 1.0, seed, base + 0.05, teacher=f"{rho}", **more)
    both = [(0.8, 2), (0.95, 2)]
    assert lines(tmp_path, "data.options.rho") == {"kd": both, "contrast": both}
    sweep = swept(tmp_path, "data.options.rho")
    assert [[row["line"], row["value"], row["last mark"]] for row in sweep.flat()["rows"]] == [
        ["kd", 0.8, ""], ["kd", 0.95, ""], ["contrast", 0.8, "★▲*"], ["contrast", 0.95, "★▲*"],
    ]  # fmt: skip
    assert sweep_figure(sweep).panels[0].data["rules0"] == []


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("strenght", "no run here has 'strenght' as a number; did you mean 'strength'?"),
        ("lr", "did you mean 'optim.lr'?"),
        ("reference", "no run here has 'reference' as a number"),
        ("nesterov", "no run here has 'nesterov' as a number"),
        ("zzz", "known: strength"),  # the only one that varies
        ("seed", "no run here has 'seed'"),
        ("weight", "no two runs differ in nothing but it and their seeds; its values: 1"),
        ("epochs", "its values: 2"),
    ],
)
def test_a_setting_that_draws_nothing_is_one_line(tmp_path: Path, key: str, message: str) -> None:
    for strength in (1.0, 2.0):
        contrast(tmp_path, strength, 1, 0.5, options={"reference": "early"})
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        make_report(tmp_path, sweep=key)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_columns(suite: Path) -> None:
    assert Sweep(ResultTable(collect(suite)), "strength").columns == ["last"]  # more is better; not best, not mce
    score(RunDir(suite / "S" / "kd-s1"), "hard", {"hard_accuracy": 0.5, "balanced_accuracy": 0.6})
    sweep = Sweep(ResultTable(collect(suite)), "strength")
    assert sweep.columns == ["last", "hard hard_accuracy", "hard balanced_accuracy"]
    result = make_report(suite, "mce", sweep="strength")["sweep"]
    assert (result["setting"], result["columns"]) == ("strength", ["corruptions mce"])
    assert result["rows"][1] == {
        "line": "S contrast", "value": 0.5, "method": "contrast-0.5", "label": "", "seeds": 3,
        "corruptions mce": pytest.approx(0.46 / 3), "corruptions mce ±": pytest.approx(0.10017, abs=1e-5),
        "corruptions mce mark": "★▲*",
    }  # fmt: skip


# x and y of three runs a seed
DOTS = {
    "kd": ((0.1, 0.2), (0.1, 0.9)),
    "a": ((0.2, 0.4), (0.3, 0.1)),
    "b": ((0.3, 0.7), (0.2, 0.5)),
}


@pytest.fixture
def dots(tmp_path: Path) -> Path:
    for name, seeds in DOTS.items():
        for seed, (x, y) in enumerate(seeds, start=1):
            folder = made(tmp_path, name, seed, x)
            score(folder, "conflict", {"accuracy": y})
            score(folder, "corruptions", {"mce": 1 - y})
            score(folder, "own", {"thing": x})
    return tmp_path


def scattered(root: Path, columns: str) -> ScatterAnalysis:
    return ScatterAnalysis(ResultTable(collect(root)), columns)


def test_correlation_and_regret_by_hand(dots: Path) -> None:
    result = scattered(dots, "last,conflict accuracy")
    assert (result.x, result.y, len(result.students)) == ("last", "conflict accuracy", 6)
    assert [(c.picked, c.best) for c in result.choices] == [("b", "b"), ("a", "kd")]
    assert [c.regret for c in result.choices] == pytest.approx([0.0, 0.8])
    assert [c.baseline for c in result.choices] == pytest.approx([0.5, 0.0])
    assert (result.regret, result.baseline) == pytest.approx((0.4, 0.25))
    x, y = ([values[seed][at] for values in DOTS.values() for seed in (0, 1)] for at in (0, 1))
    assert result.spearman == pytest.approx(spearmanr(x, y).statistic)  # with ties in x


def test_where_less_is_better_the_least_is_best(dots: Path) -> None:
    """1 − y, of which less is better, says what y says."""
    straight, turned = (scattered(dots, f"last,{y}") for y in ("conflict accuracy", "corruptions mce"))
    assert turned.spearman == pytest.approx(straight.spearman)
    assert (turned.regret, turned.baseline) == pytest.approx((straight.regret, straight.baseline))
    back = scattered(dots, "mce,conflict accuracy")
    assert back.spearman == pytest.approx(1.0)
    assert (back.regret, back.baseline) == pytest.approx((0.0, 0.25))
    assert "corruptions mce: less is better" in back.explanation()
    assert "own thing: no way is better" in scattered(dots, "thing,last").explanation()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("last", "wants two columns"),
        ("last,last", "wants two columns"),
        ("last,best,mce", "wants two columns"),
        ("last,mcee", "--scatter: no column 'mcee' here; did you mean 'mce'?"),
        ("last,nobody accuracy", "--scatter: no column"),
    ],
)
def test_columns_of_a_scatter(dots: Path, columns: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        scattered(dots, columns)


def test_the_page_has_both_sections(suite: Path) -> None:
    result = make_report(suite, sweep="strength", scatter="last,mce")
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    page = (suite / "report.html").read_text()
    assert '<section id="sweep"><h2>How scores depend on strength</h2>' in page
    assert '<section id="scatter"><h2>Choosing by last: does it find the best corruptions mce?</h2>' in page
    assert '<a href="#sweep">How scores depend on strength</a>' in page
    assert page.count("better than kd, the interval leaves zero out</span>") == 4  # in both tables, for both scores
    for name in ("sweep", "scatter"):
        assert (suite / "figures" / f"{name}.svg").read_text().startswith("<svg")
    sheet = (suite / "sweep.md").read_text()
    assert "| line | strength | seeds | last ↑ |\n" in sheet
    assert "| S | kd | 3 | 0.600 ± 0.100 |\n| S contrast | 0.5 | 3 | 0.703 ± 0.100 ★▲* |\n" in sheet
    assert "▲ better, ▼ worse than kd" in sheet
    sheet = (suite / "scatter.md").read_text()
    assert "| regret of choosing by last | 0.002 | 3 groups of one suite and seed |" in sheet  # 0, 0.005, 0
    assert "| S | 1 | 3 | contrast-0.5 | contrast-0.5 | 0.000 | 0.050 |" in sheet
    plain = suite / "plain"
    kd(plain, 1, 0.5)
    make_report(plain)
    assert 'id="sweep"' not in (plain / "report.html").read_text()
    assert not (plain / "sweep.md").exists()


def test_names_in_a_sweep_are_escaped(tmp_path: Path) -> None:
    for strength in (1.0, 2.0):
        options = {f"{HOSTILE}.x": strength, "<b>": HOSTILE}
        folder = made(tmp_path, f"{HOSTILE}{strength}", 1, 0.5, suite=HOSTILE, method=SCRIPT, options=options)
        score(folder, "a<b>|", {"<i>": strength / 3})
    make_report(tmp_path, sweep=f"{HOSTILE}.x", scatter="last,a<b>| <i>")
    for name in ("sweep.md", "scatter.md", "figures/sweep.svg", "figures/scatter.svg", "report.html"):
        assert not re.search("<(b|i)>|<script>alert", (tmp_path / name).read_text())
