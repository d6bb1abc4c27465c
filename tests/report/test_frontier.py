"""The frontier of the dial on run folders written by hand."""

from pathlib import Path

from antishortcut.report import make_report
from antishortcut.report.collect import collect
from antishortcut.report.frontier import frontier_figure
from tests.browser.fake_runs import score
from tests.report.test_sweep import kd, made

LEVELS = {"none": (0.0, 0.0), "mild": (0.5, 100.0), "strong": (2.0, 100.0)}  # λ, hint
SCORES = {"none": (0.90, 0.20), "mild": (0.91, 0.40), "strong": (0.88, 0.60)}  # iid, conflict, of seed 1


def dialled(root: Path, name: str, level: str, seed: int) -> None:
    strength, hint = LEVELS[level]
    options = {"strength": strength, "beta": 0.0, "hint": hint}
    folder = made(root, name, seed, 0.5, method="contrast+hint", options=options)
    for test, value in zip(("iid", "conflict"), SCORES[level], strict=True):
        score(folder, test, {"accuracy": value + 0.02 * (seed - 1)})


def test_levels_are_joined_and_the_chosen_one_is_marked(tmp_path: Path) -> None:
    for seed in (1, 2):
        for level in LEVELS:
            dialled(tmp_path, f"contrast+hint-{level}", level, seed)
        dialled(tmp_path, "contrast+hint", "mild", seed)
        baseline = kd(tmp_path, seed, 0.5)
        score(baseline, "iid", {"accuracy": 0.9})
        score(baseline, "conflict", {"accuracy": 0.19})
    figure = frontier_figure(collect(tmp_path))
    (panel,) = figure.panels
    assert panel.title == "conflict accuracy against iid accuracy"
    rows = [
        (row["level"], row["kind"], round(row["x"], 3), round(row["y"], 3), row["seeds"]) for row in panel.data["dots"]
    ]
    assert rows == [
        ("none", "another level", 0.91, 0.21, 2),
        ("mild", "chosen", 0.92, 0.41, 2),
        ("strong", "another level", 0.89, 0.61, 2),
        ("kd", "kd", 0.9, 0.19, 2),
    ]
    assert [row["level"] for row in panel.data["levels"]] == ["none", "mild", "strong"]
    assert "mild (chosen): 0.920, 0.410" in panel.alt
    make_report(tmp_path)
    assert (tmp_path / "figures" / "frontier.png").stat().st_size > 1000
    assert '<section id="frontier">' in (tmp_path / "report.html").read_text()


def test_one_level_alone_has_no_frontier(tmp_path: Path) -> None:
    dialled(tmp_path, "contrast+hint", "mild", 1)
    assert not frontier_figure(collect(tmp_path)).panels
    make_report(tmp_path)
    assert '<section id="frontier">' not in (tmp_path / "report.html").read_text()
