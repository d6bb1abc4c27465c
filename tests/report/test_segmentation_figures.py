"""Runs of segmentation, made up: mIoU as the headline, classes, scenes side by side, and what is damaged among them."""

import base64
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from antishortcut.config.recipe import DataSettings, ModelSettings
from antishortcut.experiments.paper import PAIRS
from antishortcut.report import build
from antishortcut.report.collect import collect
from antishortcut.report.first_screen import FirstScreen, first_screen
from antishortcut.report.mechanism_figures import embedding_figures
from antishortcut.report.notes import subtitle
from antishortcut.report.page import make_figures, render
from antishortcut.report.paper_comparison import compare_with_paper
from antishortcut.report.reader import PICTURE, Notes
from antishortcut.report.segmentation_figures import (
    Gallery,
    class_tables,
    draw_page,
    galleries,
)
from antishortcut.report.table import ResultTable
from antishortcut.report.text import Report
from antishortcut.run_dir import RunDir, write_json
from tests.browser.fake_runs import SCRIPT, begun, score

CLASSES = ("background", "A", SCRIPT, "K")
COLOURS = ("#f28585", "#3e60b2", "#528013", "#a9b23e")
VOID = 255
MIOU = {"ce": (0.30, 0.34), "kd": (0.40, 0.42), "asd": (0.50, 0.51)}
WIDE, HIGH = 12, 8


def dense(place: Path, name: str, seed: int, miou: float, **more: Any) -> RunDir:
    """A finished student of 24 iterations, which are three epochs."""
    settings = {"suite": "cues-seg", "data": DataSettings(name="cues-seg"), "model": ModelSettings(name="dense-4-16")}
    length = {"epochs": 0, "iterations": 24, "teacher": "0" * 16, "method": "kd"}
    folder = begun(place, name, seed, **(settings | length | more))
    for step in (8, 16, 24):
        scores = {"accuracy": 0.8, "miou": miou * step / 24, "images": 40}
        folder.log({"step": step, "epoch": step / 8, "lr": 0.1, "loss": 1.0, "terms": {"task": 24 / step}})
        folder.log({"step": step, "epoch": step / 8, "set": "iid", "scores": scores})
    last = {"accuracy": 0.8, "miou": miou, "images": 40, "epoch": 3}
    folder.finish(
        {"set": "iid", "primary_metric": "miou", "last": last, "best": last | {"miou": miou + 0.01}, "seconds": 1.5}
    )
    return folder


def mask(path: Path, cells: list[int], colours: tuple[str, ...] = COLOURS) -> None:
    """A mask of vertical stripes, one for each cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("P", (WIDE, HIGH))
    image.putpalette([int(c[at : at + 2], 16) for c in colours for at in (1, 3, 5)] + [0] * (768 - 3 * len(colours)))
    for at in range(WIDE):
        image.paste(cells[at * len(cells) // WIDE], (at, 0, at + 1, HIGH))
    image.save(path)


def pictures(
    folder: RunDir,
    guess: int = 1,
    count: int = 16,
    classes: tuple[str, ...] = CLASSES,
    colours: tuple[str, ...] = COLOURS,
    of: str = "iid",
) -> Path:
    """artifacts/scenes.json and its pictures; the student takes the right half for `guess`."""
    place = folder.path / "artifacts" / ("scenes" if of == "iid" else f"scenes-{of}")
    for at in range(count):
        mask(place / f"{at:02d}-truth.png", [0, at % 4, VOID], colours)
        mask(place / f"{at:02d}-teacher.png", [0, at % 4], colours)
        mask(place / f"{at:02d}-student.png", [0, guess], colours)
        Image.new("RGB", (WIDE, HIGH), (10 * at, 90, 120)).save(place / f"{at:02d}-input.jpg")
    label = [at % min(len(classes), 50) for at in range(60)]
    points = [[round(0.37 * at % 5, 2), at / 10] for at in range(60)]
    plane = {"method": "t-SNE", "label": label, "classes": list(classes[:50]), "teacher": points, "student": points}
    tree = {"set": of, "classes": list(classes), "colours": list(colours), "scenes": count, "embedding": plane}
    write_json(place.with_suffix(".json"), tree)
    return place


def many(count: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names and colours of so many classes."""
    return tuple(f"class {at}" for at in range(count)), tuple(f"#{at:02x}8040" for at in range(count))


def hung(root: Path) -> tuple[list[Gallery], list[tuple[str, str]]]:
    """Galleries of a folder, and what was noted."""
    result, notes = collect(root), Notes()
    built = galleries(ResultTable(result), notes)
    return built, [(note.run, note.state) for note in notes.skipped]


def filled(root: Path) -> Path:
    """Three methods, two seeds, with all that evaluations write; only the second seed of ce has scenes."""
    for number, (name, values) in enumerate(MIOU.items()):
        for seed, miou in enumerate(values, start=1):
            folder = dense(root / f"{name}-s{seed}", name, seed, miou)
            ious = dict(zip(CLASSES, (miou, miou + 0.1 * seed, None, 0.2), strict=True))
            score(folder, "iid", {"accuracy": 0.8, "miou": miou}, classes=ious)
            torn = {"by_shape": 0.4, "by_texture": 0.4, "shape_bias": 0.5}
            score(folder, "conflict", {"accuracy": 0.5, "miou": miou / 2} | torn, classes=dict.fromkeys(CLASSES, 0.5))
            score(folder, "scenes", {"agreement": 0.9}, of="iid")
            if (name, seed) != ("ce", 1):
                pictures(folder, number + 1)
    (dense(root / "kd-s3", "kd", 3, 0.4).path / "result.json").unlink()
    return root


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report, str]:
    root = filled(tmp_path_factory.mktemp("runs") / "cues-seg")
    report = build(root)
    return root, report, (root / "report.html").read_text()


def test_last_and_best_are_the_headline(suite: tuple[Path, Report, str]) -> None:
    root, report, page = suite
    asd = report.summary(None)["rows"][2]
    assert (asd["last"], asd["best"]) == (pytest.approx(0.505), pytest.approx(0.515))
    assert asd["vs kd"] == pytest.approx(0.095)
    assert report.table.primary_metric == "mIoU"
    assert "last: mIoU after the last epoch" in (root / "table.md").read_text()
    assert "training (mIoU)" in (root / "table.tex").read_text()
    assert "<h3>mIoU on the iid set during training</h3>" in page
    assert "last, best: mIoU." in next(iter(report.tables(None))).below


def test_iterations(suite: tuple[Path, Report, str]) -> None:
    root, report, page = suite
    one = report.table.runs.students[-1]
    assert dict(one.curve) == pytest.approx({1.0: 0.17, 2.0: 0.34, 3.0: 0.51})
    assert [(epoch, value) for epoch, _, value in one.terms] == [(1.0, 3.0), (2.0, 1.5), (3.0, 1.0)]
    assert subtitle(report.table.runs) == "dense-4-16 · cues-seg · 24 iterations · 3 methods · 6 finished runs"
    assert report.summary(None)["unfinished"] == [{"run": "kd-s3", "state": "unfinished, iteration 24 of 24"}]
    assert "- kd-s3: unfinished, iteration 24 of 24" in (root / "table.md").read_text()
    assert '<progress max="24" value="24.0"' in page
    assert "24 of 24 iterations" in page


@pytest.mark.parametrize("named", [True, False])  # as in the suite, or after their methods
def test_beside_the_printed_numbers(tmp_path: Path, named: bool) -> None:
    recipe = PAIRS["ade20k-resnet18"].recipe()
    built = {"data": recipe.data, "model": recipe.student, "optim": recipe.optim, "iterations": recipe.iterations}
    ours = {"ce": 0.34, "kd": 0.35, "af-dcd": 0.36, "ufd-kd": 0.37, "asd": 0.39}
    for name, miou in ours.items():
        method = {"af-dcd": "afdcd", "ufd-kd": "ufd"}.get(name, name)
        own = name if named else method
        folder = dense(tmp_path / name, own, 1, miou, suite="ade20k-resnet18", method=method, **built)
        score(folder, "val", {"accuracy": miou + 0.4, "miou": miou})
    result = collect(tmp_path)
    (side,) = compare_with_paper(ResultTable(result))
    printed = {} if named else {"afdcd": "af-dcd", "ufd": "ufd-kd"}
    lines = {(line.measure, printed.get(line.method, line.method)): line for line in side.rows}
    assert {name: lines["mIoU", name].numbers[0].mean for name in ours} == {
        "ce": 33.91, "kd": 34.88, "af-dcd": 36.21, "ufd-kd": 36.89, "asd": 38.87,
    }  # fmt: skip
    for name, miou in ours.items():
        assert lines["mIoU", name].difference == pytest.approx(100 * miou - lines["mIoU", name].numbers[0].mean)
    assert lines["pixel accuracy", "asd"].numbers[0].mean == 78.92
    assert lines["mIoU against ufd-kd", "asd"].texts()[2] == "2.00 (1)"
    assert lines["mIoU against student", "asd"].texts()[2] == "5.00 (1)"  # to ce; 3.99 is printed, with a footnote
    assert lines["mIoU against student", "asd"].noted
    assert (side.labels, side.missing) == ([], [])


def test_classes_are_means_over_seeds(suite: tuple[Path, Report, str]) -> None:
    root, report, page = suite
    (table,) = class_tables(report.table.runs)
    assert (table.title, table.methods, table.folded) == ("iid set", ["ce", "kd", "asd"], False)  # not conflict
    rows = {row.name: row for row in table.rows}
    for name, (one, two) in MIOU.items():
        assert rows["background"].means[name] == pytest.approx((one + two) / 2)
        assert rows["A"].means[name] == pytest.approx((one + 0.1 + two + 0.2) / 2)
        assert table.rows[0].means[name] == pytest.approx((one + two) / 2)
    assert (rows["A"].best, rows["K"].best) == ({"asd"}, set())  # where all are the same nobody is best
    assert (rows[SCRIPT].means, rows[SCRIPT].text("kd")) == ({}, "–")
    text = (root / "classes.md").read_text()
    assert "| class | ce | kd | asd |" in text
    assert "| mIoU | 0.320 | 0.410 | **0.505** |" in text
    assert SCRIPT not in text
    assert '<section id="classes">' in page
    assert SCRIPT not in page
    (flat,) = json.loads(json.dumps(report.summary(None), allow_nan=False))["classes"]
    assert flat["classes"][0] == {"class": "background"} | rows["background"].means


def test_the_first_screen_shows_what_every_network_says(tmp_path: Path) -> None:
    """Scene 2 is of classes 0 and 1, its last third without a label; T_early says 0 everywhere, the student 0 and 3."""
    for name in ("kd", "asd"):
        folder = dense(tmp_path / "cues-seg" / name, name, 1, 0.4)
        if name == "kd":
            assert "--on scenes" in first(tmp_path / "cues-seg").command
        place = pictures(folder, 3, count=2)
        mask(place / "01-early.png", [0])
        pictures(folder, 3, count=2, of="conflict")
    screen = first(tmp_path / "cues-seg")
    assert "conflict" in screen.caption  # where the shortcut misleads, if there is such a set
    assert screen.key == dict(zip(CLASSES, COLOURS, strict=True)) | {"no label": "#000000"}
    (folder.path / "artifacts" / "scenes-conflict.json").unlink()
    (tmp_path / "cues-seg/kd/artifacts/scenes-conflict.json").unlink()
    card = next(card for card in first(tmp_path / "cues-seg").cards if card.label == "scene 2")
    assert [(one.network, one.answer, round(one.confidence, 3)) for one in card.answers] == [
        ("labels", "", 1.0),
        ("T_early", "A as background", 0.5),
        ("T_final", "A as background", 0.75),
        ("kd", "A as K", 0.5),  # two columns of A as background, two as K: the first colour of equals
        ("asd", "A as K", 0.5),
    ]


def first(root: Path) -> FirstScreen:
    table, notes = ResultTable(collect(root)), Notes()
    screen = first_screen(table, galleries(table, notes), notes)
    assert screen is not None
    return screen


def test_scenes_stand_side_by_side(suite: tuple[Path, Report, str]) -> None:
    root, report, page = suite
    (gallery,) = report.drawn.scenes
    assert [column.title for column in gallery.columns] == ["input", "truth", "teacher", "ce", "kd", "asd"]
    assert gallery.pages == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    names = {path.name for path in (root / "figures").iterdir()}
    assert {"miou.svg", "scores-miou.svg", "scores.svg", *(f"scenes-{n}.png" for n in range(1, 5))} <= names
    assert not {"accuracy.svg", "scenes-5.png"} & names
    assert gallery.seeds == "seeds: ce 2, kd 1, asd 1"
    for role, name, end in (("input", "input", "jpg"), ("teacher", "teacher", "png"), ("kd", "student", "png")):
        data = (root / "kd-s1" / "artifacts" / "scenes" / f"07-{name}.{end}").read_bytes()
        column = next(column for column in gallery.columns if column.title == role)
        assert column.shots[7].data == data
        kind = "jpeg" if end == "jpg" else "png"
        assert f"data:image/{kind};base64,{base64.b64encode(data).decode()}" in page
    assert len(re.findall('<img[^>]* src="data:image/', page)) == 8 + 16 * 6  # the first screen has eight of the inputs
    assert page.count('<table class="scenes">') == 4
    assert 'alt="Scene 2, truth: background, A"' in page
    assert 'alt="Scene 2, kd: background, &lt;script&gt;alert(1)&lt;/script&gt;"' in page
    assert page.count('class="mask"') == 16 * 5
    assert page.count('<a href="#scenes">Scenes</a>') == 1
    assert page.count('aria-label="Colours of the classes"') == 2  # here, and of the overlays above the tables
    assert page.index('aria-label="Colours of the classes"') < page.index('<section id="results">')


def test_of_many_rows_a_few_come_first(tmp_path: Path) -> None:
    levels = {"ce": 0.1, "kd": 0.2, "asd": 0.5, "at": 0.3, "crd": 0.9, "dkd": 0.4, "fitnets": 0.3}
    for name, miou in levels.items():
        pictures(dense(tmp_path / name, name, 1, miou))
    (gallery,), notes = hung(tmp_path)
    assert [column.title for column in gallery.first[3:]] == ["kd", "asd", "crd"]
    assert [column.title for column in gallery.more] == ["ce", "at", "dkd", "fitnets"]
    assert notes == []
    assert draw_page(gallery, gallery.pages[0]).size[0] < 7 * 240  # six columns, not ten
    result = collect(tmp_path)
    page = render(ResultTable(result), make_figures(ResultTable(result)))
    assert page.count('<td class="more"') == 16 * 4
    assert re.search(r'<input type="checkbox" class="asked" id="asked1"><label for="asked1"> more: ce, at,', page)


def test_other_sets_teachers_and_suites_do_not_mix(tmp_path: Path) -> None:
    settings: dict[str, dict[str, Any]] = {
        "kd": {}, "asd": {}, "at": {"fingerprint": "other"}, "crd": {"teacher": "1" * 16}, "dkd": {"suite": "other"},
    }  # fmt: skip
    for name, more in settings.items():
        pictures(dense(tmp_path / name, name, 1, 0.4, **more))
    pictures(dense(tmp_path / "half", "half", 1, 0.4), count=8)
    held, notes = hung(tmp_path)
    together = {tuple(c.method.rpartition("/")[2] for c in gallery.columns if c.method) for gallery in held}
    assert together == {("kd", "asd"), ("at",), ("crd",), ("dkd",), ("half",)}
    assert notes == []


def test_the_conflict_set_has_a_gallery_of_its_own(tmp_path: Path) -> None:
    for suite in ("a", "b"):
        for name in ("kd", "asd"):
            folder = dense(tmp_path / suite / name, name, 1, 0.4, suite=suite)
            pictures(folder, count=4)
            if suite == "a":
                pictures(folder, guess=3, count=4, of="conflict")
    report = build(tmp_path)
    one, lying, other = report.drawn.scenes
    assert [gallery.title for gallery in (one, lying, other)] == [
        "a, iid set", "a, conflict set, where the shortcut says another class", "b, iid set",
    ]  # fmt: skip
    assert [column.title for column in lying.columns] == ["input", "truth", "teacher", "a/kd", "a/asd"]
    shown = (tmp_path / "a" / "kd" / "artifacts" / "scenes-conflict" / "02-student.png").read_bytes()
    assert lying.columns[3].shots[2].data == shown != one.columns[3].shots[2].data
    page = (tmp_path / "report.html").read_text()
    assert "<h3>a, conflict set, where the shortcut says another class" in page
    assert len(re.findall('<img[^>]* src="data:image/', page)) == 4 + 3 * 4 * 5
    names = {path.name for path in (tmp_path / "figures").glob("scenes*")}
    assert names == {"scenes-1.png", "scenes-2-1.png", "scenes-3-1.png"}


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)  # reading one waits for ever


DAMAGE: dict[str, Callable[[Path], Any]] = {  # what the note says → how a picture is hurt
    "damaged": lambda path: path.write_bytes(path.read_bytes()[:-30]),
    "no JPEG or PNG": lambda path: Image.new("RGB", (4, 4)).save(path, format="GIF"),
    "larger than": lambda path: path.write_bytes(path.read_bytes() + bytes(PICTURE)),
    "not a plain file": piped,
    "": Path.unlink,  # a missing picture needs no note
}


@pytest.mark.parametrize("why", DAMAGE)
def test_a_damaged_picture_is_noted_and_the_rest_is_shown(tmp_path: Path, why: str) -> None:
    for name in ("kd", "asd"):
        pictures(dense(tmp_path / name, name, 1, 0.4), count=4)
    for role in ("truth", "student"):
        DAMAGE[why](tmp_path / "kd" / "artifacts" / "scenes" / f"01-{role}.png")
    (gallery,), notes = hung(tmp_path)
    held = {column.title: set(column.shots) for column in gallery.columns}
    assert held.pop("kd") == {0, 2, 3}
    assert all(shots == {0, 1, 2, 3} for shots in held.values())  # asd's own truth stands in
    assert [name for name, _ in notes] == [f"kd/artifacts/scenes/01-{role}.png" for role in ("student", "truth") if why]
    assert all(note.startswith("skipped: ") and why in note for _, note in notes)
    draw_page(gallery, gallery.pages[0])


@pytest.mark.parametrize(
    "change",
    [
        b"", b"{", b"[]", b"\xff\xfe", {"colours": [*COLOURS[:3], "red; background: url(//x)"]},
        {"colours": COLOURS[:3]}, {"colours": None}, {"classes": []}, {"classes": 3}, {"scenes": "x"},
    ],
)  # fmt: skip
def test_an_artifact_of_another_form_is_noted_once(tmp_path: Path, change: bytes | dict[str, Any]) -> None:
    path = pictures(dense(tmp_path / "kd", "kd", 1, 0.4), count=1).with_suffix(".json")
    path.write_bytes(
        change if isinstance(change, bytes) else json.dumps(json.loads(path.read_text()) | change).encode()
    )
    built, notes = hung(tmp_path)
    assert built == []
    assert [name for name, _ in notes] == ["kd/artifacts/scenes.json"]


def test_features_in_the_plane(tmp_path: Path) -> None:
    names, colours = many(60)
    for name in ("ce", "kd", "asd", "at"):
        pictures(dense(tmp_path / name, name, 1, 0.4), count=1, classes=names, colours=colours)
    drawn = embedding_figures(collect(tmp_path), Notes())
    assert [(figure.method, figure.opened) for figure in drawn] == [
        ("ce", False), ("kd", True), ("asd", True), ("at", False),
    ]  # fmt: skip
    figure = drawn[2]
    assert figure.key == dict(zip(names[:50], colours[:50], strict=True))
    assert [panel.title for panel in figure.panels] == ["teacher", "asd"]
    assert figure.panels[0].alt == "60 locations in the images of 50 classes"
    assert "the same locations in the images, seed 1" in figure.note
