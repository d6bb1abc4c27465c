"""The images and bars above the tables."""

import re
from pathlib import Path

import numpy as np

from antishortcut.report import make_report
from antishortcut.report.collect import collect
from antishortcut.report.first_screen import TURNS, FirstScreen, NetworkAnswer, first_screen, turn
from antishortcut.report.glossary import Glossary
from antishortcut.report.reader import Notes
from antishortcut.report.score_figures import leaning_figures
from antishortcut.report.table import ResultTable
from antishortcut.run_dir import RunDir
from tests.browser.fake_runs import HOSTILE, TEACHER, maps, score, student

CLASSES = [HOSTILE, "b", "c"]


def screen(folder: Path, notes: Notes | None = None) -> FirstScreen:
    result = first_screen(ResultTable(collect(folder)), [], notes or Notes())
    assert result is not None
    return result


def suite(root: Path, kd: list[int], asd: list[int], early: list[int], final: list[int]) -> Path:
    for name, own in (("kd", kd), ("asd", asd)):
        folder = student(root / "P2" / name, name, 1, 0.9, teacher=TEACHER, roles={"final": "final"})
        score(folder, "conflict", {"accuracy": 0.25})
        maps(folder, own, CLASSES, early, final)
    return root / "P2"


def test_images_are_chosen_by_rule(tmp_path: Path) -> None:
    """Of six images of class 0, one for every rule and two for the first."""
    folder = suite(tmp_path, [0, 0, 1, 2, 0, 0], [0, 1, 1, 2, 0, 1], early=[0, 0, 0, 2, 1, 1], final=[0, 0, 0, 2, 0, 0])
    cards = screen(folder).cards
    assert [(card.name, card.reason) for card in cards] == [
        ("4", "T_early and T_final disagree"),
        ("1", "students disagree"),
        ("2", "student and T_final disagree"),
        ("3", "all are wrong"),
        ("0", "all agree"),
        ("5", "T_early and T_final disagree"),
    ]
    last = cards[-1].answers
    assert [each.network for each in last] == ["T_early", "T_final", "kd", "asd"]
    assert [each.right for each in last] == [False, True, True, False]
    assert {each.confidence for each in last} == {0.75}


def test_an_audit_says_what_training_made_of_an_image() -> None:
    def said(answer: str, right: bool) -> NetworkAnswer:
        return NetworkAnswer("T", answer, 0.5, right, "", None)

    right, one, two = said("a", True), said("b", False), said("c", False)
    pairs = {(right, one): 0, (one, right): 1, (one, two): 2, (one, one): 3, (right, right): 4}
    assert [turn(pair, []) for pair in pairs] == [TURNS[at] for at in pairs.values()]


def test_names_are_escaped_and_answers_need_no_script(tmp_path: Path) -> None:
    folder = suite(tmp_path, [0], [1], early=[0], final=[0])
    make_report(folder)
    page = (folder / "report.html").read_text()
    strip = page[page.index('class="scroll strip-of"') : page.index('<section id="results">')]
    assert "<b>" not in strip
    assert "&lt;/script&gt;&lt;b&gt;x|" in strip
    assert len(re.findall(r'class="answer"', strip)) == 4
    assert strip.count("✗</span> b") == 1
    assert strip.count("data:image/png;base64,") == 4
    assert 'class="who">kd</span>' in strip[strip.index("sets-of") :]


def test_of_many_runs_one_seed_and_five_students_are_embedded(tmp_path: Path) -> None:
    for name in ("kd", *"abcdefg"):
        for seed in (1, 2):
            folder = student(tmp_path / f"{name}-s{seed}", name, seed, 0.9, teacher=TEACHER)
            maps(folder, [0] * 20, CLASSES, early=[1] * 20, final=[0] * 20)
    cards = screen(tmp_path).cards
    assert len(cards) == 12
    assert all(len(card.answers) == 7 for card in cards)
    make_report(tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 8e6


def test_students_of_another_teacher_or_with_a_damaged_file_are_left_out(tmp_path: Path) -> None:
    folder = suite(tmp_path, [0], [0], early=[0], final=[0])
    other = student(folder / "other", "other", 1, 0.9, teacher="0" * 16, roles={"final": "final"})
    maps(other, [1], CLASSES, early=[1], final=[1])
    (folder / "asd" / "artifacts" / "maps.npz").write_bytes(b"PK\x03\x04 damaged")
    notes = Notes()
    (card,) = screen(folder, notes).cards
    assert [each.network for each in card.answers] == ["T_early", "T_final", "kd"]
    assert [note.run for note in notes.skipped] == ["asd/artifacts/maps.npz"]


def test_a_map_with_nothing_on_it_says_so(tmp_path: Path) -> None:
    folder = suite(tmp_path, [0], [1], early=[0], final=[0])
    path = folder / "kd" / "artifacts" / "maps.npz"
    with np.load(path) as saved:
        arrays = dict(saved)
    arrays["grad_cam"][0] = 0  # of "own"
    np.savez(path, **arrays)
    make_report(folder)
    page = (folder / "report.html").read_text()
    assert page.count("nothing speaks for it</span>") == 1
    assert 'aria-label="kd: </script' not in page
    assert "75 % sure. Nothing it sees speaks for this answer" in page


def test_probes_are_drawn_beside_the_teacher_and_explained_where_they_stand(tmp_path: Path) -> None:
    folder = suite(tmp_path, [0], [0], early=[0], final=[0])
    for name, grey in (("kd", 0.4), ("asd", 0.6)):
        networks = {
            role: {"whole": {"accuracy": 0.9}, "grey-100": {"accuracy": value, "agreement": value + 0.05}}
            for role, value in (("own", grey), ("early", 0.2), ("final", 0.7))
        }
        values = {"needs_colour": 0.9 - grey, "needs_colour_final": 0.2}
        score(RunDir(folder / name), "probes", values, networks=networks)
    (figure,) = (each for each in leaning_figures(ResultTable(collect(folder))) if each.name == "probes")
    panel, stays = figure.panels
    assert (panel.title, stays.title) == ("accuracy", "answers as on the whole image")
    gone = "100 % of the colour gone"
    assert [(row["method"], row["probe"], row["value"]) for row in stays.data["unchanged"]] == [
        ("kd", gone, 0.45), ("asd", gone, 0.65),
    ]  # fmt: skip
    assert [row["value"] for row in stays.data["unchanged_final"]] == [0.75]
    assert {(row["method"], row["probe"]): row["value"] for row in panel.data["probes"]} == {
        ("kd", "as they are"): 0.9, ("kd", "100 % of the colour gone"): 0.4,
        ("asd", "as they are"): 0.9, ("asd", "100 % of the colour gone"): 0.6,
    }  # fmt: skip
    assert [row["value"] for row in panel.data["probes_final"]] == [0.9, 0.7]
    assert [row["value"] for row in panel.data["probes_early"]] == [0.9, 0.2]
    assert all(f"{word}: " in figure.note for word in ("Needs colour", "Texture share", "Surround share"))
    make_report(folder)
    page = (folder / "report.html").read_text()
    assert 'Probes are explained <a href="#leaning">below</a>' in page
    assert (folder / "figures" / "probes.png").stat().st_size > 5_000


def test_without_maps_the_command_is_named(tmp_path: Path) -> None:
    student(tmp_path / "kd-s1", "kd", 1, 0.5)
    make_report(tmp_path)
    assert "/* --on maps</code>" in (tmp_path / "report.html").read_text()


def test_terms_are_explained_where_they_first_stand() -> None:
    explain = Glossary()
    text = explain("kd over 3 seeds <b> beside contrast+hint")
    assert (
        re.sub(r"<span popover.*?</span>|</?button.*?>", "", text) == "kd over 3 seeds &lt;b&gt; beside contrast+hint"
    )
    assert [*re.findall(r'popovertarget="(\w+)"', text)] == [*re.findall(r'popover id="(\w+)"', text)]
    assert text.count("<button") == len(set(re.findall(r'popover id="(\w+)"', text))) == 3
    assert explain("kd, one seed, seeds, kdsvd, contrast+hints") == "kd, one seed, seeds, kdsvd, contrast+hints"


def test_bars_have_every_set_and_chance(tmp_path: Path) -> None:
    folder = suite(tmp_path, [0], [0], early=[0], final=[0])
    for name in ("kd", "asd"):
        place = folder / name / "result.json"
        place.write_text(place.read_text().replace('"seconds"', '"classes": ["a", "b", "c", "d"], "seconds"'))
    bars = screen(folder).bars
    assert [each.title for each in bars] == ["on ordinary images (iid)", "when the texture lies (conflict)"]
    assert [(row.name, row.value) for row in bars[1].rows] == [("kd", 0.25), ("asd", 0.25)]
    assert bars[1].chance == 0.25
