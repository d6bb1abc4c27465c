"""Run folders written by hand, without training, and the tables and the page a report makes of them."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from antishortcut.config.recipe import ModelSettings, OptimSettings
from antishortcut.errors import UserError
from antishortcut.report import build, make_report
from antishortcut.report.collect import collect
from antishortcut.report.model_cost import size_table
from antishortcut.report.notes import teacher_notes, warnings
from antishortcut.report.stats import paired
from antishortcut.report.table import ResultTable
from antishortcut.report.text import fit
from antishortcut.run_dir import RunDir, write_json
from tests.browser.fake_runs import TEACHER, directions, score, student, teacher_run

LAST = {"ce": (0.50, 0.52), "kd": (0.60, 0.64), "asd": (0.65, 0.67)}


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Three methods, two seeds, one unfinished and three damaged runs; and the report on them."""
    root = tmp_path_factory.mktemp("runs") / "P2"
    for name, values in LAST.items():
        for seed, last in enumerate(values, start=1):
            folder = student(root / f"{name}-s{seed}", name, seed, last)
            score(folder, "conflict", {"accuracy": last / 2, "by_shape": 0.1, "shape_bias": last / 4})
            view = {"cos_final": 0.9, "cos_early": 0.5, "projection": 0.3, "projection_random": 0.25}
            score(folder, "mechanism", {"aligned": view, "raw": view | {"cos_final": 0.8}})
    (student(root / "kd-s3", "kd", 3, 0.1).path / "result.json").unlink()
    (student(root / "kd-s4", "kd", 4, 0.1).path / "run.json").write_text("{")
    write_json(student(root / "kd-s5", "kd", 5, 0.1).path / "run.json", {"schema": 99})
    student(root / "kd-s6", "kd", 6, 0.1).finish({"set": "iid"})
    return root, make_report(root)


def test_rows(suite: tuple[Path, dict[str, Any]]) -> None:
    _, built = suite
    assert json.loads(json.dumps(built, allow_nan=False)) == built
    assert built["runs"] == 6
    assert [row["method"] for row in built["rows"]] == ["ce", "kd", "asd"]
    kd, asd = built["rows"][1:]
    assert kd["seeds"] == 2
    assert kd["last"] == pytest.approx(0.62)
    assert kd["last ±"] == pytest.approx(0.04 / 2**0.5)  # ddof 1
    assert kd["best"] == pytest.approx(0.63)
    assert kd["conflict accuracy"] == pytest.approx(0.31)
    assert kd["conflict shape_bias"] == pytest.approx(0.155)
    assert kd["mechanism aligned cos_final"] == pytest.approx(0.9)  # one ruler for all methods
    assert "mechanism raw cos_final" not in kd
    assert kd["mechanism aligned projection_random"] == 0.25
    assert "conflict by_shape" not in kd
    assert kd["vs kd"] is None
    assert asd["vs kd"] == pytest.approx(0.04)  # differences 0.05 and 0.03; t(0.975; 1) = 12.7062, s/√2 = 0.01
    assert asd["vs kd low"] == pytest.approx(0.04 - 0.127062, abs=1e-6)
    assert asd["vs kd high"] == pytest.approx(0.04 + 0.127062, abs=1e-6)


def test_unfinished_and_damaged_runs_are_listed(suite: tuple[Path, dict[str, Any]]) -> None:
    root, built = suite
    states = {entry["run"]: entry["state"] for entry in built["unfinished"]}
    assert set(states) == {"kd-s3", "kd-s4", "kd-s5", "kd-s6"}
    assert states["kd-s3"] == "unfinished, epoch 2 of 2"
    assert states["kd-s4"].startswith("damaged: ")
    assert "schema 99" in states["kd-s5"]
    assert states["kd-s6"].endswith("result.json: damaged (no last accuracy); restore it or remove its folder")
    page = (root / "report.html").read_text()
    assert "kd-s4" in page
    assert re.search(r'<progress max="2" value="2.0".*?<polyline points="[0-9., ]+"', page, re.DOTALL)  # kd-s3


@pytest.mark.parametrize(
    ("precisions", "note"),
    [
        (
            {"kd": "float32", "asd": "bfloat16"},
            "Runs were not all computed alike, which changes last digits: "
            "teacher_precision float32 (1 runs), bfloat16 (1 runs).",
        ),
        ({"ce": None, "kd": "bfloat16"}, None),  # ce has no teacher, so no precision of one
        ({"kd": None, "asd": "float32"}, None),  # the default
    ],
)
def test_runs_that_were_not_computed_alike_are_noted(
    tmp_path: Path, precisions: dict[str, str | None], note: str | None
) -> None:
    for name, precision in precisions.items():
        folder = student(tmp_path / name, name, 1, 0.5, roles={} if name == "ce" else {"final": "final"})
        tree = json.loads((folder.path / "run.json").read_text())
        tree["execution"] |= {"teacher_precision": precision} if precision else {}
        del tree["sum"]  # as somebody who edits it must
        write_json(folder.path / "run.json", tree)
    notes = warnings(ResultTable(collect(tmp_path)))
    assert notes == ([note] if note else [])


def test_markdown(suite: tuple[Path, dict[str, Any]]) -> None:
    text = (suite[0] / "table.md").read_text()
    assert text.startswith("# P2\n\n| method | seeds | last ↑ | best ↑ | conflict accuracy ↑ | conflict shape_bias ↑ |")
    assert "| kd | 2 | 0.620 ± 0.028 | 0.630 ± 0.028 | 0.310 ± 0.014 |" in text
    assert "| asd | 2 | **0.660 ± 0.014** ▲ |" in text
    assert "| asd | last | +0.040 | −0.087 … +0.167 | +2.83 | 2 | 4 |" in text  # 4 seeds show a d_z of 2.83
    assert "- kd-s3: unfinished" in text


def test_files(suite: tuple[Path, dict[str, Any]]) -> None:
    root, built = suite
    assert built["page"] == str(root / "report.html")
    names = {path.name for path in (root / "figures").iterdir()}
    figures = ("accuracy", "differences", "losses", "projections", "scores")
    assert names == {f"{name}.{ending}" for name in figures for ending in ("svg", "png")}
    assert all((root / "figures" / name).read_bytes()[:4] == b"\x89PNG" for name in names if name.endswith("png"))
    assert not [path for path in root.iterdir() if path.name.startswith(".")]  # nothing half-written is left


class Page(HTMLParser):
    """The elements of a page, its scripts, and what it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.scripts: list[str] = []
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [v for k, v in attrs if k in ("src", "href") and v and not v.startswith(("#", "data:"))]
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"] or ""

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts.append(data)


def test_page_stands_alone_and_runs_only_its_own_scripts(suite: tuple[Path, dict[str, Any]]) -> None:
    page = Page((suite[0] / "report.html").read_text())
    assert page.fetched == []
    data, *code = page.scripts
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in code]
    assert len(code) == 2
    assert all(f"'sha256-{known}'" in page.policy for known in hashes)
    assert "default-src 'none'" in page.policy
    assert "unsafe-eval" not in page.policy
    specs = json.loads(data)
    assert specs["methods"] == ["ce", "kd", "asd"]
    assert len(specs["charts"]) == 7  # two differences, conflict, projection, accuracy, two terms
    mean = next(chart["datasets"]["mean"] for chart in specs["charts"] if "mean" in chart["datasets"])
    assert {"method": "kd", "epoch": 2.0, "value": 0.62, "std": 0.0283, "seeds": 2} in mean


def test_suites_are_kept_apart_and_copies_left_out(tmp_path: Path) -> None:
    student(tmp_path / "P1" / "kd-s1", "kd", 1, 0.5, suite="P1")
    student(tmp_path / "P1" / "asd-s1", "asd", 1, 0.75, suite="P1")
    student(tmp_path / "P3" / "asd-s1", "asd", 1, 0.1, suite="P3", epochs=3)
    student(tmp_path / "P3" / "copy", "asd", 1, 0.2, suite="P3")
    built = make_report(tmp_path)
    assert {row["method"]: row["vs kd"] for row in built["rows"]} == {"P1/kd": None, "P1/asd": 0.25, "P3/asd": None}
    assert built["unfinished"] == [
        {"run": "P3/copy", "state": "left out: the same suite, name and seed as P3/asd-s1"},
    ]


def test_seeds_that_differ_in_more_than_the_seed_are_noted(tmp_path: Path) -> None:
    student(tmp_path / "a", "kd", 1, 0.5)
    student(tmp_path / "b", "kd", 2, 0.5, optim=OptimSettings(lr=0.1))
    make_report(tmp_path)
    assert "The seeds of kd differ in more than the seed: optim.lr." in (tmp_path / "report.html").read_text()


def test_seeds_trained_on_different_images_are_noted_wherever_their_mean_is(tmp_path: Path) -> None:
    for seed in (1, 2):
        student(tmp_path / str(seed), "kd", seed, 0.5, fingerprint=f"{seed}")
    report = build(tmp_path)
    line = "The seeds of kd differ in more than the seed: fingerprint."
    assert line in [note for table in report.tables(None) for note in table.below]
    assert line in (tmp_path / "table.md").read_text()
    assert line in report.summary(None)["notes"]
    assert report.sentences[-1] == "Its runs were not all trained on the same images, so their numbers do not compare."


def test_no_finished_student_still_makes_a_page(tmp_path: Path) -> None:
    (student(tmp_path / "kd-s1", "kd", 1, 0.5).path / "result.json").unlink()
    built = make_report(tmp_path)
    assert (built["rows"], built["runs"], len(built["unfinished"])) == ([], 0, 1)
    assert "No finished student yet" in (tmp_path / "report.html").read_text()


def test_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run folder") as caught:
        make_report(tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "photos-a-b").mkdir()
    with pytest.raises(UserError, match=f"did you mean {tmp_path / 'photos-a-b'}"):
        make_report(tmp_path / "photo-a-b")


def test_a_terminal_shows_methods_beside_each_other(suite: tuple[Path, dict[str, Any]]) -> None:
    first, *more = build(suite[0]).tables(None, 200)
    assert list(first.head) == ["method", "ce", "kd", "asd"]
    assert ["last ↑", "0.510 ± 0.014 ▼", "0.620 ± 0.028", "0.660 ± 0.014 ★▲"] in first.rows
    assert "mechanism aligned projection: a random direction has 0.250." in first.below
    assert [each.title for each in more] == ["difference to kd, seed by seed"]


def test_directions_have_names_and_no_empty_columns(tmp_path: Path) -> None:
    student(tmp_path / "P2" / "kd-s1", "kd", 1, 0.5, teacher=TEACHER, roles={"final": "final"}, early="15%")
    teacher_run(tmp_path / "teachers" / TEACHER, 0.9)
    path = directions(tmp_path / "teachers" / TEACHER, ["a"] * 8)
    for factors in (True, False):  # texture and shape of our own images are known, of others not
        if not factors:
            path.write_text(json.dumps(json.loads(path.read_text()) | {"explained": {}}))
        make_report(tmp_path / "P2")
        page = (tmp_path / "P2" / "report.html").read_text()
        assert "is edges (r −0.79); R² 0.70" in page
        assert ("explained by texture" in page) is factors


def test_of_one_seed_a_difference_has_no_interval(tmp_path: Path) -> None:
    for name, value in (("kd", 0.5), ("asd", 0.6)):
        score(student(tmp_path / f"{name}-s1", name, 1, value), "hard", {"hard_accuracy": value})
    first, difference = build(tmp_path).tables(None, 80)
    assert (list(difference.head), list(difference.below)) == (["method", "score", "difference"], [])
    assert ["asd", "last", "+0.100"] in difference.rows
    assert any(line.startswith("hard: hard_accuracy is on those that T_early gets wrong") for line in first.below)


def test_sizes_fit_a_terminal(tmp_path: Path) -> None:
    folder = student(tmp_path / "kd-s1", "kd", 1, 0.5, model=ModelSettings(name="timm:mobilenetv3_small_050"))
    score(folder, "cost", {"parameters": 574_374, "bytes": 2.35e6, "ms": 7.5, "times_faster": 1.2}, machine="a laptop")
    for width in (80, 160):
        *_, sizes = build(tmp_path).tables(None, width)
        columns = zip(sizes.head, *sizes.rows, strict=True)
        assert sum(max(map(len, column)) + 3 for column in columns) < width
    assert sizes.head[0] == "network"
    assert sizes.rows[0][2] == "574,374"


def test_a_teacher_for_every_seed_is_one_row_of_sizes(tmp_path: Path) -> None:
    for seed, teacher in ((1, TEACHER), (2, TEACHER[::-1])):
        teacher_run(tmp_path / "teachers" / teacher)
        folder = student(tmp_path / "P2" / f"kd-s{seed}", "kd", seed, 0.5, teacher=teacher)
        score(folder, "cost", {"parameters": 100, "teacher_parameters": 900, "ms": 2.0, "teacher_ms": 6.0})
    rows = size_table(collect(tmp_path / "P2"))
    assert rows is not None
    assert [(row.network, row.role, row.runs) for row in rows.rows] == [
        ("cnn-32-64", "teacher", 2),
        ("cnn-8-64", "student", 2),
    ]


@pytest.mark.parametrize(("methods", "sets", "count"), [(4, 9, 2), (20, 2, 1), (1, 1, 1)])
def test_a_narrow_terminal_gets_tables_that_fit(methods: int, sets: int, count: int) -> None:
    head = ["method", *(f"a set {at} of scores" for at in range(sets))]
    rows = [[f"method-{at}", *(f"0.{at:02d}{column} ± 0.014" for column in range(sets))] for at in range(methods)]
    tables = fit(head, rows, 60)
    for title, lines in tables:
        wide = [max(len(part) for cell in c for part in cell.split("\n")) for c in zip(title, *lines, strict=True)]
        assert sum(wide) + 3 * len(wide) + 1 <= 60  # with rich's borders
    cells = {cell.replace("\n", " ") for title, lines in tables for line in (title, *lines) for cell in line}
    assert cells == {cell for line in (head, *rows) for cell in line}
    assert len(tables) == count  # 4 methods stand beside each other, 20 below


def test_many_methods(tmp_path: Path) -> None:
    """Tables hold them all; charts those that colours and dashes can tell apart."""
    for suite in range(1, 12):
        for name in ("kd", "at", "crd", "asd"):
            student(tmp_path / f"P{suite}" / name, name, 1, 0.5 + suite / 100, suite=f"P{suite}")
    make_report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "Charts show 20 of 44 methods, those of P1, P2, P3, P4, P5; the tables show all." in page
    assert '<th scope="row">P11/crd</th>' in page
    assert '"method": "P5/crd"' in page
    assert '"method": "P6/crd"' not in page


def test_torch_is_not_loaded(tmp_path: Path) -> None:
    student(tmp_path / "kd-s1", "kd", 1, 0.5)
    code = (
        "import sys, pathlib; from antishortcut.report import make_report; heavy = {'torch', 'altair', 'scipy'}; "
        "assert not heavy & set(sys.modules); make_report(pathlib.Path(sys.argv[1])); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)


def teacher_and_students(root: Path, teacher: float, roles: dict[str, str] | None = None) -> Path:
    """A teacher's run, and three students that saw labels alone."""
    teacher_run(root / "teachers" / TEACHER, teacher)
    for seed, last in enumerate((0.30, 0.34, 0.35), start=1):
        student(root / "P2" / f"ce-s{seed}", "ce", seed, last, teacher=TEACHER, roles=roles or {})
    return root / "P2"


def test_a_teacher_that_is_ahead_of_training_from_labels(tmp_path: Path) -> None:
    (line,) = teacher_notes(collect(teacher_and_students(tmp_path, 0.5)))
    expected = paired([0.5] * 3, [0.30, 0.34, 0.35])
    assert line == (
        "P2: the teacher has accuracy 0.500 on iid, students trained on labels only 0.330; difference +0.170, "
        f"95 % interval +{expected.low:.3f} … +{expected.high:.3f}."
    )


@pytest.mark.parametrize("last", [0.36, 0.2])
def test_a_teacher_that_is_not_ahead_is_noted_everywhere(tmp_path: Path, last: float) -> None:
    folder = teacher_and_students(tmp_path, last)
    report = build(folder)
    note = "With 3 seeds we cannot tell whether the teacher beats training from labels"
    texts = [(folder / name).read_text() for name in ("table.md", "report.html")]
    assert all(note in text for text in (*texts, *teacher_notes(report.table.runs), str(list(report.tables(None)))))


def test_teacher_and_chance_are_rows_of_every_table(tmp_path: Path) -> None:
    teacher_run(tmp_path / "teachers" / TEACHER, 0.8)
    score(RunDir(tmp_path / "teachers" / TEACHER), "conflict", {"accuracy": 0.4, "shape_bias": 0.3})
    for name, last in (("ce", 0.5), ("kd", 0.6)):
        roles = {"final": "final"} if name == "kd" else {}
        folder = student(tmp_path / "P2" / f"{name}-s1", name, 1, last, teacher=TEACHER, roles=roles)
        write_json(folder.path / "result.json", folder.result() | {"classes": list("abcd")})
        score(folder, "conflict", {"accuracy": last / 2, "shape_bias": 0.2, "by_shape": 0.1})
        score(folder, "corruptions", {"mce": 0.5})
    report = build(tmp_path / "P2", None)
    teacher = {"last": 0.8, "best": 0.81, "conflict accuracy": 0.4, "conflict shape_bias": 0.3}
    chance = {"last": 0.25, "best": 0.25, "conflict accuracy": 0.25, "corruptions mce": 0.75}
    assert report.summary(None)["references"] == [{"row": "teacher"} | teacher, {"row": "chance"} | chance]
    columns = report.table.columns
    for row, values, count in (("teacher", teacher, "1"), ("chance", chance, "–")):
        cells = [f"{values[name]:.3f}" if name in values else "–" for name in columns]
        line = f"| {' | '.join([row, count, *cells])} |"
        assert line in (tmp_path / "P2" / "table.md").read_text()
        (shown, *_) = report.tables(None, width=500)
        assert [row, count, *cells] in [*shown.rows, *map(list, zip(shown.head, *shown.rows, strict=True))]
        page = (tmp_path / "P2" / "report.html").read_text()
        assert f'<th scope="row">{row}</th><td>{count}</td>{"".join(f"<td>{cell}</td>" for cell in cells)}' in page
        tex = (tmp_path / "P2" / "table.tex").read_text().replace("--", "–")
        assert " & ".join([row, count, *cells]) in tex


def test_worst_classes_largest_confusions_and_mistakes_are_on_the_page(tmp_path: Path) -> None:
    names = [f"class {at:02}" for at in range(12)]
    for method, off in (("kd", 0), ("asd", 10)):
        for seed in (1, 2):
            folder = student(tmp_path / "P2" / f"{method}-s{seed}", method, seed, 0.5)
            # of 100 images of class n, so many are taken for the next one
            matrix = {
                name: {name: 50 + 4 * at - off, names[at - 11]: 50 - 4 * at + off} for at, name in enumerate(names)
            }
            mistake = {"image": 7, "class": "class 00", "answer": "<b>", "confidence": 0.987}
            score(folder, "iid", {"accuracy": 0.5}, confusion=matrix, mistakes=[mistake])
            (folder.path / "artifacts").mkdir()
            Image.new("RGB", (48, 48), "red").save(folder.path / "artifacts" / "mistakes-iid.png")
    report = build(tmp_path / "P2", None)
    (answers,) = report.drawn.answers
    assert list(answers.worst) == [(name, name) for name in names[:10]]
    assert answers.worst["class 00", "class 00"] == {"kd": 0.5, "asd": 0.4}
    assert list(answers.confused) == list(pairwise(names[:11]))
    assert answers.confused["class 01", "class 02"] == {"kd": 0.46, "asd": 0.56}
    page = (tmp_path / "P2" / "report.html").read_text()
    for words in ("worst of 12 classes", "class 01 → class 02", "taken for &lt;b&gt; with confidence 0.99"):
        assert words in page
    assert answers.picture is not None
    assert answers.picture.uri in page
    assert "class 11 → class 00" not in page
