"""What columns mean, how they are chosen, and the tables as text."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from antishortcut.errors import UserError
from antishortcut.report.collect import collect
from antishortcut.report.reference_rows import guessed
from antishortcut.report.table import (
    ResultTable,
    arrow,
    best_of_suites,
    better,
    first_columns,
    ordered,
    select_columns,
    split_column,
    view_of,
)
from antishortcut.report.text import tex, write_latex, write_markdown
from antishortcut.run_dir import write_json
from tests.browser.fake_runs import full, score, student


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ResultTable]:
    """Four methods, two seeds, every score there is."""
    place = full(tmp_path_factory.mktemp("runs"))
    return place, ResultTable(collect(place))


@pytest.mark.parametrize(
    ("column", "way"),
    [
        ("last", 1), ("best", 1), ("conflict accuracy", 1), ("cue-conflict shape_bias", 1), ("groups worst_group", 1),
        ("attack 8/255", 1), ("imagenet-r accuracy_overlap", 1), ("corruptions mce", -1), ("corruptions texture", -1),
        ("corruptions noise_all", -1), ("corruptions clean_error", -1), ("stylized gap", -1),
        ("cue-conflict by_texture", 0), ("mechanism aligned projection", 0), ("mechanism raw accuracy", 0),
        ("my set texture", 0), ("folder sketch accuracy", 1), ("folder sketch@15% accuracy_overlap", 1),
    ],
)  # fmt: skip
def test_which_way_is_better(column: str, way: int) -> None:
    assert better(column) == way
    assert arrow(column) == {1: "↑", -1: "↓", 0: ""}[way]


def test_the_best_of_a_column_is_the_highest_or_the_lowest(suite: tuple[Path, ResultTable]) -> None:
    _, table = suite
    for column in ("conflict accuracy", "corruptions mce", "stylized gap", "groups worst_group"):
        means = {method: cells[column].mean for method, cells in table.cells.items()}
        pick = max if better(column) > 0 else min
        assert table.best(column) == {pick(means, key=lambda method: means[method])}
    assert table.best("mechanism aligned projection") == set()
    assert table.best("attack 8/255") == set()  # the same for all: nobody is best


def test_the_first_table_is_short_and_the_sets_have_the_rest(suite: tuple[Path, ResultTable]) -> None:
    _, table = suite
    groups = list(dict.fromkeys(split_column(name)[0] for name in table.columns))
    assert groups[:2] == ["training", "conflict"]
    assert groups[-3:] == ["attack", "probes", "mechanism aligned"]
    assert [name for name in table.columns if name.startswith("corruptions")] == [
        "corruptions mce",
        "corruptions mce_all",
        "corruptions mce_relative",
    ]
    assert "corruptions texture_all" in table.sets()["corruptions"]
    assert set(table.sets()) >= {"mechanism aligned", "mechanism raw", "mechanism projector", "stylized"}
    assert not [name for name in table.columns if "random" in name]
    assert table.random["mechanism raw robust_projection"] == pytest.approx(0.354)


def test_the_view_is_one_for_all() -> None:
    names = ["mechanism raw projection", "mechanism projector projection"]
    assert view_of(names) == "raw"
    assert view_of([*names, "mechanism aligned cos_final"]) == "aligned"
    assert view_of(["mechanism odd x"]) == "odd"
    assert view_of(["last"]) is None
    assert first_columns(ordered(names)) == ["mechanism raw projection"]


def test_the_change_of_the_projection_is_against_kd_of_the_same_seed(tmp_path: Path) -> None:
    for name, seed, value in (("kd", 1, 0.5), ("kd", 2, 0.8), ("asd", 1, 0.4), ("asd", 2, 0.6), ("asd", 3, 0.1)):
        folder = student(tmp_path / f"{name}-s{seed}", name, seed, 0.5)
        score(folder, "mechanism", {"aligned": {"projection": value}})
    result = collect(tmp_path)
    name = "mechanism aligned projection_change"
    assert [s.values.get(name) for s in result.students] == [
        None,
        None,
        pytest.approx(-0.2),
        pytest.approx(-0.25),
        None,
    ]
    mean, spread = ResultTable(result).texts("asd", name)
    assert (mean, spread.partition(" (")[2]) == ("−0.225", "2 of 3)")


def test_columns_by_whole_name_or_by_end() -> None:
    names = ["last", "conflict accuracy", "iid accuracy", "folder rain accuracy", "corruptions mce"]
    assert select_columns(" mce , last,mce", names) == ["corruptions mce", "last"]
    assert select_columns("corruptions error at severity 5 (mCE)", names) == ["corruptions mce"]  # as tables head it
    assert select_columns("rain accuracy", names) == ["folder rain accuracy"]
    for required, text in (
        ("lost", "did you mean 'last'"),
        ("mcee", "did you mean 'mce'"),
        ("accuracy", "'conflict accuracy' or 'iid accuracy' or 'folder rain accuracy'; write it out"),
        ("  , ", "names no column"),
    ):
        with pytest.raises(UserError, match=re.escape(text)):
            select_columns(required, names)


def test_chosen_columns_are_those_of_rows_and_texts(suite: tuple[Path, ResultTable], tmp_path: Path) -> None:
    _, table = suite
    short = table.select("last,conflict accuracy,mce")
    assert set(short.rows()[0]) == {
        *("method", "label", "seeds", "last", "last ±", "conflict accuracy", "conflict accuracy ±", "corruptions mce"),
        *("last mark", "conflict accuracy mark", "corruptions mce mark"),
        *("corruptions mce ±", "vs kd", "vs kd low", "vs kd high"),
    }
    write_markdown(short, tmp_path / "table.md")
    text = (tmp_path / "table.md").read_text()
    assert "| method | seeds | last ↑ | conflict accuracy ↑ | corruptions error at severity 5 (mCE) ↓ |" in text
    assert "corruptions: generated, 900 images." in text
    assert "stylized" not in text


def test_the_best_is_marked_over_the_same_seeds_and_enough_images(tmp_path: Path) -> None:
    """kd has an easy third seed that asd lacks, few a good score on few images."""
    for name, scores in {"kd": (0.4, 0.5, 0.9), "asd": (0.5, 0.6), "few": (0.45, 0.55)}.items():
        for seed, value in enumerate(scores, start=1):
            folder = student(tmp_path / f"{name}-s{seed}", name, seed, value)
            score(folder, "iid", {"accuracy": value})
            score(folder, "cue-conflict", {"accuracy": value}, count=99, source="given")
    table = ResultTable(collect(tmp_path))
    assert table.cells["kd"]["iid accuracy"].mean > table.cells["asd"]["iid accuracy"].mean
    assert {method: str(mark) for method, mark in table.marks("iid accuracy").items()} == {
        "kd": "", "asd": "★▲*", "few": "▲*",
    }  # fmt: skip
    assert table.best("cue-conflict accuracy") == set()
    write_markdown(table, tmp_path / "table.md")
    text = (tmp_path / "table.md").read_text()
    assert "cue-conflict: given, 99 images." in text
    assert "over the seeds in common; ▲ better, ▼ worse than kd" in text
    assert "Below 100 images nothing is marked." in text
    assert {str(mark) for mark in table.marks("cue-conflict accuracy").values()} == {""}


def test_the_score_of_the_training_is_of_enough_images_too(tmp_path: Path) -> None:
    for name, value in (("kd", 0.4), ("asd", 0.5)):
        folder = student(tmp_path / f"{name}-s1", name, 1, value)
        result = json.loads((folder.path / "result.json").read_text())
        write_json(folder.path / "result.json", result | {"last": result["last"] | {"images": 99}})
    table = ResultTable(collect(tmp_path))
    assert table.best("last") == set()
    write_markdown(table, tmp_path / "table.md")
    assert "set: 99 images." in (tmp_path / "table.md").read_text()


def test_the_best_of_a_class_is_over_the_same_seeds_too() -> None:
    """kd has an easy third seed that asd lacks; of another suite are rows of their own."""
    values = {"kd": {1: 0.4, 2: 0.5, 3: 0.9}, "asd": {1: 0.5, 2: 0.6}, "other": {1: 0.9}}
    assert best_of_suites(values, {"kd": "P2", "asd": "P2", "other": "P3"}) == {"asd"}
    assert best_of_suites(values, {"kd": "P2", "asd": "P2", "other": "P3"}, -1) == {"kd"}
    assert best_of_suites({"kd": {1: 0.4}, "asd": {1: 0.4}}, {"kd": "P2", "asd": "P2"}) == set()


def test_what_guessing_scores() -> None:
    assert guessed("corruptions", "mce", {}, 10) == guessed("corruptions", "mce_all", {}, 10) == pytest.approx(0.9)
    assert guessed("iid", "accuracy", {}, 10) == guessed("hard", "hard_accuracy", {}, 10) == pytest.approx(0.1)
    own = {"chance": 0.1, "chance_overlap": 0.25}
    assert [guessed("folder sketch", key, own, 10) for key in ("accuracy", "accuracy_overlap")] == [0.1, 0.25]
    assert guessed("iid", "accuracy", {}, None) is guessed("stylized", "gap", own, 10) is None


def test_latex(suite: tuple[Path, ResultTable], tmp_path: Path) -> None:
    _, table = suite
    write_latex(table.select("last,mce,aligned projection"), tmp_path / "table.tex")
    text = (tmp_path / "table.tex").read_text()
    assert r"\begin{tabular}{lrrrr}" in text
    assert r" &  & \multicolumn{1}{c}{training} & \multicolumn{1}{c}{corruptions (generated, 900)} &" in text
    assert r"\cmidrule(lr){3-3} \cmidrule(lr){4-4} \cmidrule(lr){5-5}" in text
    assert (
        r"method & seeds & last $\uparrow$ & error at severity 5 (mCE) $\downarrow$ & on shortcut directions \\" in text
    )
    assert r"\textless{}script\textgreater{}alert(1)\textless{}/script\textgreater{} & 2 & \textbf{0." in text
    assert "% mechanism aligned projection: a random direction has 0.250" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {len(re.split(r"(?<!\\)&", line)) for line in body} == {5}
    assert "<script>" not in text


@given(st.text(max_size=30))
def test_nothing_from_outside_is_a_command_in_latex(text: str) -> None:
    known = ("textbackslash", "textasciitilde", "textasciicircum", "textless", "textgreater", "textbar", "dots")
    assume(not any(word in text for word in known))
    left = re.sub(
        r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar|dots|`)\{\}", "", tex(text)
    )
    left = re.sub(r"\\[&%$#_{}]|\$(\\pm|-|\\uparrow|\\downarrow)\$|\{\[\}|\{\*\}", "", left)
    assert not set(left) & set("\\&%$#_{}~^[*\n")


def test_the_best_is_of_its_suite(tmp_path: Path) -> None:
    for suite, name, last in (("P2", "kd", 0.5), ("P2", "asd", 0.6), ("P10", "kd", 0.8), ("P10", "asd", 0.7)):
        student(tmp_path / suite / name, name, 1, last, suite=suite)
    table = ResultTable(collect(tmp_path))
    assert list(table.cells) == ["P2/kd", "P2/asd", "P10/kd", "P10/asd"]  # ten after two
    assert table.best("last") == {"P2/asd", "P10/kd"}
