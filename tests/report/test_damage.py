"""Files that are missing, damaged, hostile or of another form: they are noted, and stop nothing."""

import json
import shutil
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from antishortcut.report import build
from antishortcut.report.collect import Collected, collect
from antishortcut.report.page import libraries, make_figures, render
from antishortcut.report.reader import MANY, PICTURE, history, read_object, readable, terms
from antishortcut.report.table import ResultTable
from tests.browser.fake_runs import TEACHER, directions, full, score, student

FILES = (
    "P2/kd-s1/scores/corruptions.json", "P2/kd-s1/scores/groups.json", "P2/kd-s1/scores/mechanism.json",
    "P2/kd-s1/scores/conflict.json", "P2/kd-s1/artifacts/mechanism.json",
    f"teachers/{TEACHER}/artifacts/directions-a1b2.json",
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with everything."""
    root = tmp_path_factory.mktemp("whole")
    full(root, ("kd", "asd"))
    return root


@pytest.fixture
def runs(whole: Path, tmp_path: Path) -> Path:
    """A copy of them, to damage."""
    return Path(shutil.copytree(whole, tmp_path / "runs"))


def shown(runs: Collected) -> str:
    """The page, whose JSON must hold."""
    table = ResultTable(runs)
    page = render(table, make_figures(table))
    data = page.partition('id="specs">')[2].partition("</script>")[0]
    json.loads(data, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    return page


def test_another_value_at_any_key_stops_nothing(runs: Path) -> None:
    saved = {name: json.loads((runs / name).read_text()) for name in FILES}
    values = cycle([None, "x", [], {"x": 3}, [1, float("inf")]])
    for at in range(max(len(tree) for tree in saved.values())):
        for name, tree in saved.items():
            (runs / name).write_text(json.dumps(tree | {list(tree)[at % len(tree)]: next(values)}))
        table = ResultTable(collect(runs / "P2"))
        drawn = make_figures(table)
        assert {row["method"] for row in table.rows()} == {"kd", "asd"}
        json.dumps([table.rows(), *(panel.data for figure in drawn.all() for panel in figure.panels)], allow_nan=False)


def test_text_that_no_picture_can_have_is_spelled_out(tmp_path: Path) -> None:
    """Whatever way it stands in a file; files without any are read without a look at every value."""
    path = tmp_path / "scores.json"
    for content in (
        b'{"plain": 1, "a": [0.5, {"b": "c d"}]}', b'{"\\u0001": ["\\ud800"]}', b'{"a\x7f": "\x7f"}',
        b'{"a": "\\n\\t"}', '{"a": "\ufffe\u202e"}'.encode(), '{"a": "\u2028"}'.encode("utf-16-be"),
    ):  # fmt: skip
        path.write_bytes(content)
        found = read_object(path)
        assert found == readable(json.loads(content))
        texts = "".join(f"{key}{value}" for key, value in found.items())
        assert texts.isprintable()


@pytest.mark.parametrize("content", [b"{", b"null", b"\xff\xfe", b'{"values": 3}', b"[" * 100_000])
def test_files_that_are_something_else_are_noted(runs: Path, content: bytes) -> None:
    place = runs / "P2"
    hurt = [place / "kd-s1" / "scores" / name for name in ("conflict.json", "mechanism.json", "corruptions.json")]
    hurt += [place / "kd-s1" / "artifacts" / "mechanism.json"]
    hurt += [runs / "teachers" / TEACHER / "artifacts" / "directions-a1b2.json"]
    for file in hurt:
        file.write_bytes(content)
    result = collect(place)
    assert len(result.students) == 4
    noted = {note.run for note in result.notes}
    assert {"kd-s1/scores/conflict.json", "kd-s1/scores/mechanism.json", "kd-s1/scores/corruptions.json"} <= noted
    assert f"teachers/{TEACHER}/artifacts/directions-a1b2.json" in noted
    assert result.directions == ()
    assert all("\n" not in note.state and len(note.state) < 300 for note in result.notes)
    if content == b"{":
        assert "kd-s1/scores/conflict.json" in shown(result)


def test_what_is_not_there_needs_no_note(tmp_path: Path) -> None:
    student(tmp_path / "kd-s1", "kd", 1, 0.5, teacher=TEACHER)
    result = collect(tmp_path)
    assert (result.notes, result.aside, result.directions) == ((), (), ())
    assert "Mechanism" not in shown(result)


def test_pictures_that_cannot_be_shown_are_noted_unless_missing(runs: Path) -> None:
    artifacts = runs / "teachers" / TEACHER / "artifacts"
    good = (artifacts / "directions-a1b2" / "displaced-1-high.png").read_bytes()
    (artifacts / "text.png").write_text("no picture at all, only text")
    (artifacts / "large.png").write_bytes(good + b"\0" * PICTURE)
    file = artifacts / "directions-a1b2.json"
    tree = json.loads(file.read_text())
    for direction, name in zip(tree["directions"]["displaced"], ("text.png", "large.png", "gone.png", 7), strict=True):
        direction["high"] = name
    file.write_text(json.dumps(tree))
    result = collect(runs / "P2")
    assert [set(each.ends) for each in result.directions[0].each[:4]] == [{"low"}] * 4
    states = [note.state for note in result.notes]
    assert len(states) == 3
    for why in ("no JPEG or PNG, or damaged", "larger than 1 MB", "TypeError"):
        assert sum(why in state for state in states) == 1


def test_pictures_beyond_the_room_of_a_page_are_left_out(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antishortcut.report.reader.PICTURES", 1)
    result = collect(runs / "P2")
    assert all(each.ends == {} for each in result.directions[0].each)
    assert all("of a page" in note.state for note in result.notes)


def test_of_several_files_for_one_early_state_the_newest_counts(runs: Path) -> None:
    teacher = runs / "teachers" / TEACHER
    later = directions(teacher, ["a"] * 8, key="zz")
    tree = json.loads(later.read_text()) | {"count": 77}
    later.write_text(json.dumps(tree))
    directions(teacher, ["a"] * 8, key="other", early="20%")
    result = collect(runs / "P2")
    assert [held.facts["count"] for held in result.directions] == [77]
    assert result.notes == ()


def test_runs_scored_on_different_images_are_told_apart(tmp_path: Path) -> None:
    for name, source, fingerprint in (("kd", "official", "one"), ("asd", "generated", "two")):
        folder = student(tmp_path / name, name, 1, 0.5)
        score(folder, "stylized", {"accuracy": 0.5}, source=source, fingerprint=fingerprint)
    page = shown(collect(tmp_path))
    assert "The images of stylized come from different places for all runs" in page
    assert "The images of stylized are not the same for all runs" in page
    assert "official / generated, 900 images" in page


def test_long_logs_are_read_in_part_and_evaluations_whole(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    rows: list[dict[str, Any]] = []
    for step in range(1, 3 * MANY + 1):
        rows.append({"step": step, "epoch": step / 100, "terms": {"task": 1.0}})
        if step % 100 == 0:
            rows.append({"step": step, "epoch": step / 100, "set": "iid", "scores": {"accuracy": 0.5}})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = history(file)
    assert len(read) < MANY
    assert sum("scores" in row for row in read) == 3 * MANY // 100
    assert read[-1] == rows[-1]
    assert read == history(file)
    assert {value for _, _, value in terms(read, 60)} == {1.0}
    whole = file.read_text()
    for damaged in ('{"step": 9, "ep', "[" * 100_000):
        file.write_text(whole + damaged)
        assert history(file)[-1]["epoch"] > 59


def test_of_many_runs_deviations_are_drawn_instead_of_single_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antishortcut.report.charts.SINGLE", 2)
    for seed in (1, 2, 3):
        student(tmp_path / f"kd-s{seed}", "kd", seed, seed / 10)
    build(tmp_path)
    (panel,) = make_figures(ResultTable(collect(tmp_path))).training[0].panels
    assert list(panel.data) == ["mean"]
    assert panel.data["mean"][-1] == {"method": "kd", "epoch": 2.0, "value": 0.2, "std": 0.1, "seeds": 3}


def test_figures_are_drawn_again_only_when_they_change(tmp_path: Path) -> None:
    folder = student(tmp_path / "kd-s1", "kd", 1, 0.5)
    build(tmp_path)
    figure = tmp_path / "figures" / "scores.svg"
    first = figure.stat().st_ino, (tmp_path / "figures" / "scores.png").stat().st_ino
    build(tmp_path)
    assert (figure.stat().st_ino, (tmp_path / "figures" / "scores.png").stat().st_ino) == first
    score(folder, "iid", {"accuracy": 0.25})
    build(tmp_path)
    assert figure.stat().st_ino != first[0]


def test_the_bundle_of_scripts_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def bundle(code: str) -> str:
        calls.append(code)
        return "a</script>b<!--c\r\n"

    monkeypatch.setattr("vl_convert.javascript_bundle", bundle)
    for cache, count in (("cache", 1), ("cache", 1), ("file", 2)):  # the last cannot be written
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        assert libraries.__wrapped__() == "a<\\/script>b<\\!--c\r\n"
        assert len(calls) == count
