"""The first sentences of a report, on numbers written by hand."""

import re
from pathlib import Path
from typing import Any

import pytest

from antishortcut.config.recipe import DataSettings
from antishortcut.report import make_report, summarise
from antishortcut.report.summary import ONE_SEED
from antishortcut.run_dir import RunDir, read_json, write_json
from tests.browser.fake_runs import TEACHER, score, student, teacher_run

TAUGHT: dict[str, Any] = {"teacher": TEACHER, "roles": {"final": "final"}, "early": "15%"}
TAUGHT["data"] = DataSettings(name="shortcut:cifar100?kind=patch")


def scored(root: Path, name: str, seed: int, iid: float, conflict: float | None = None, **more: Any) -> RunDir:
    folder = student(root / "P2" / f"{name}-s{seed}", name, seed, iid, **(TAUGHT | more))
    score(folder, "iid", {"accuracy": iid}, count=2000)
    if conflict is not None:
        score(folder, "conflict", {"accuracy": conflict}, count=2000)
    return folder


def teacher(root: Path, **accuracies: float) -> None:
    """Scores by set; conflict_early is of the early state."""
    place = root / "teachers" / TEACHER
    teacher_run(place, accuracies.get("iid", 0.95))
    for name, value in accuracies.items():
        score(RunDir(place), name.replace("_early", "@15%"), {"accuracy": value})


def test_one_seed_beside_kd(tmp_path: Path) -> None:
    scored(tmp_path, "kd", 1, 0.92, 0.19)
    scored(tmp_path, "contrast+hint", 1, 0.93, 0.48)
    assert summarise(tmp_path / "P2") == [
        "On ordinary images contrast+hint is right in 93 %, when the shortcut lies in 48 %; kd in 92 % and 19 %.",
        ONE_SEED,
    ]


def test_the_page_has_the_same_sentences(tmp_path: Path) -> None:
    scored(tmp_path, "kd", 1, 0.92, 0.19, data=DataSettings(name="cues"))
    lines = summarise(tmp_path / "P2")
    assert "when the texture lies in 19 %" in lines[0]
    assert make_report(tmp_path / "P2")["sentences"] == lines
    page = (tmp_path / "P2" / "report.html").read_text()
    page = re.sub(r"<span popover.*?</span>|</?button.*?>", "", page)  # the meanings of terms
    assert all(page.index(line.replace(" %", "\u00a0%")) < page.index("<table") for line in lines)


def test_one_student_and_its_teacher(tmp_path: Path) -> None:
    teacher(tmp_path, iid=0.97, conflict=0.56)
    scored(tmp_path, "asd", 1, 0.9, 0.3)
    first, second = summarise(tmp_path / "P2")
    assert first == (
        "On ordinary images asd is right in 90 %, when the shortcut lies in 30 %; its teacher in 97 % and 56 %."
    )
    assert second == ONE_SEED


def test_a_teacher_that_was_scored_on_one_set(tmp_path: Path) -> None:
    teacher_run(tmp_path / "teachers" / TEACHER, 0.97)
    scored(tmp_path, "asd", 1, 0.9, 0.3)
    assert summarise(tmp_path / "P2")[0].endswith("; its teacher in 97 % on ordinary ones.")


@pytest.mark.parametrize(("iid", "chosen"), [((0.80, 0.81, 0.80), "asd"), ((0.92, 0.91, 0.93), "contrast")])
def test_a_method_that_costs_ordinary_accuracy_is_not_chosen(tmp_path: Path, iid: Any, chosen: str) -> None:
    for seed, value in enumerate(iid, start=1):
        scored(tmp_path, "kd", seed, 0.92, 0.2)
        scored(tmp_path, "asd", seed, 0.92, 0.3)
        scored(tmp_path, "contrast", seed, value, 0.6)
        scored(tmp_path, "ce", seed, 0.99, 0.99, roles={})  # learns from no teacher
    assert f"On ordinary images {chosen}" in summarise(tmp_path / "P2")[0]


@pytest.mark.parametrize(("iid", "chosen"), [(0.91, "contrast"), (0.88, "asd")])
def test_of_one_seed_the_number_of_images_says_what_is_below(tmp_path: Path, iid: float, chosen: str) -> None:
    """2,000 images: 1.96 · √(2 · 0.92 · 0.08 / 2000) is about 0.017."""
    scored(tmp_path, "kd", 1, 0.92, 0.2)
    scored(tmp_path, "asd", 1, 0.92, 0.3)
    scored(tmp_path, "contrast", 1, iid, 0.6)
    assert f"On ordinary images {chosen}" in summarise(tmp_path / "P2")[0]


@pytest.mark.parametrize(
    ("values", "end"),
    [
        ((0.5, 0.52, 0.51), "Over 3 seeds it is 31 points above kd when the shortcut lies; the 95 % interval "
         "(+29 … +33) leaves zero out."),
        ((0.1, 0.3, 0.21), "Over 3 seeds it is 0 points above kd when the shortcut lies; the 95 % interval "
         "(−25 … +25) includes zero: not shown."),
    ],
)  # fmt: skip
def test_several_seeds(tmp_path: Path, values: tuple[float, ...], end: str) -> None:
    for seed, value in enumerate(values, start=1):
        scored(tmp_path, "kd", seed, 0.9, 0.2)
        scored(tmp_path, "asd", seed, 0.9, value)
    assert summarise(tmp_path / "P2")[-1] == end


def test_several_seeds_without_kd(tmp_path: Path) -> None:
    for seed in (1, 2):
        scored(tmp_path, "asd", seed, 0.9, 0.5)
        scored(tmp_path, "contrast", seed, 0.9, 0.4)
    first, last = summarise(tmp_path / "P2")
    assert first.startswith("On ordinary images asd (best of 2) is right in 90 %, when the shortcut lies in 50 %.")
    assert last == "Means over 2 seeds, without a kd to compare with."


def test_no_feared_set(tmp_path: Path) -> None:
    folder = scored(tmp_path, "asd", 1, 0.9)
    first, how, last = summarise(tmp_path / "P2")
    assert first == "On ordinary images asd is right in 90 %."
    assert how.startswith("Nothing is scored yet where a shortcut would fail: asd evaluate RUN --on probes, or --on")
    assert last == ONE_SEED
    score(folder, "hard", {"hard_accuracy": 0.4})
    leans = {"texture_share": 0.49, "needs_colour": 0.5, "surround_share": 0.2}
    score(folder, "probes", leans, count=2000)
    assert "it leans on texture (0.49), needs colour (0.50) and looks at the surround (0.20)." in " ".join(
        summarise(tmp_path / "P2")
    )
    final = {"texture_share_final": 0.46, "needs_colour_final": 0.44, "surround_share_final": 0.3}
    score(folder, "probes", leans | final, count=2000)
    first, probed, _ = summarise(tmp_path / "P2")
    assert first == "On ordinary images asd is right in 90 %, on those that T_early gets wrong in 40 %."
    assert probed == (
        "Beside its teacher it needs colour more (0.50 against 0.44), looks at the surround less (0.20 against 0.30), "
        "leans on texture about as much (0.49 against 0.46)."
    )
    scored(tmp_path, "Ce", 1, 0.9)  # which comes first and has no probes
    known = {"own": {"whole": {"accuracy": 0.9}}, "final": {"whole": {"accuracy": 0.05}}}
    for few, networks in ((25, {}), (1000, known)):
        score(folder, "probes", leans | final, count=few, networks=networks)
        assert summarise(tmp_path / "P2")[1] == (
            f"The probes have only {min(few, 50)} correct answers to go by: too few to say what it relies on."
        )


def test_of_few_images_how_much_is_luck(tmp_path: Path) -> None:
    folder = scored(tmp_path, "asd", 1, 0.5, 0.3)
    for count, said in ((99, "14"), (32, "24")):
        score(folder, "iid", {"accuracy": 0.5}, count=count)
        few = f"Only {count} test images: a difference of less than {said} points may be luck."
        assert summarise(tmp_path / "P2")[1:] == [f"{ONE_SEED} {few}"]
    score(folder, "iid", {"accuracy": 0.5}, count=100)
    assert summarise(tmp_path / "P2")[1:] == [ONE_SEED]


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("folder sketch", {"accuracy": 0.4, "chance": 0.1}, "on sketch in 40 %"),
        ("groups", {"worst_group": 0.4}, "in the worst group in 40 %"),
        ("corruptions", {"mce": 0.6}, "under the strongest corruptions in 40 %"),
        ("without", {"accuracy": 0.4}, "without the shortcut in 40 %"),
    ],
)
def test_which_set_is_feared(tmp_path: Path, name: str, values: dict[str, float], words: str) -> None:
    folder = scored(tmp_path, "asd", 1, 0.9)
    score(folder, name, values)
    score(folder, "hard", {"hard_accuracy": 0.7})  # the last of all
    assert f", {words}." in summarise(tmp_path / "P2")[0]
    score(folder, "conflict", {"accuracy": 0.2})  # before all others
    assert ", when the shortcut lies in 20 %." in summarise(tmp_path / "P2")[0]


def test_a_teacher_with_nothing_to_hand_down(tmp_path: Path) -> None:
    teacher(tmp_path, iid=0.97, conflict=0.12)
    folder = scored(tmp_path, "asd", 1, 0.9, 0.3)
    assert len(summarise(tmp_path / "P2")) == 2  # the number of classes is not known
    result = read_json(folder.path / "result.json")
    write_json(folder.path / "result.json", result | {"classes": list("ABCDEFGHIJ")})
    assert "Its teacher is hardly better than chance there (10 %): nothing can be handed down." in summarise(
        tmp_path / "P2"
    )


def test_a_teacher_near_chance_is_said_of_ordinary_images_and_of_every_feared_set(tmp_path: Path) -> None:
    teacher(tmp_path, iid=0.12, conflict=0.5, uncorrelated=0.11)
    folder = scored(tmp_path, "asd", 1, 0.9, 0.3)
    score(folder, "uncorrelated", {"accuracy": 0.3})
    write_json(folder.path / "result.json", read_json(folder.path / "result.json") | {"classes": list("ABCDEFGHIJ")})
    lines = [line for line in summarise(tmp_path / "P2") if "nothing can be handed down" in line]
    assert lines == [
        "Its teacher is hardly better than chance on ordinary images (10 %): nothing can be handed down.",
        "Its teacher is hardly better than chance when the shortcut is random (10 %): nothing can be handed down.",
    ]


def test_a_teacher_whose_states_are_one(tmp_path: Path) -> None:
    teacher(tmp_path, iid=0.97, conflict=0.56, iid_early=0.968, conflict_early=0.558)
    scored(tmp_path, "asd", 1, 0.9, 0.3)
    assert "T_early and T_final score the same: there is nothing early to keep away from." in summarise(tmp_path / "P2")


def test_an_early_state_that_guesses(tmp_path: Path) -> None:
    """Where the shortcut lies it should; on ordinary images it knows no easy cue."""
    line = "T_early is hardly better than chance (10 %): it has no easy cues to show yet."
    for at, (iid, roles, said) in enumerate(
        ((0.14, {"early": "15%"}, True), (0.4, {"early": "15%"}, False), (0.14, {}, False))
    ):
        home = tmp_path / str(at)
        teacher(home, iid=0.97, conflict=0.56, iid_early=iid, conflict_early=0.02)
        folder = scored(home, "asd", 1, 0.9, 0.3, roles={"final": "final"} | roles)
        result = read_json(folder.path / "result.json")
        write_json(folder.path / "result.json", result | {"classes": list("ABCDEFGHIJ")})
        assert (line in summarise(home / "P2")) == said


def test_several_suites_say_where_their_teachers_know_nothing(tmp_path: Path) -> None:
    teacher(tmp_path, iid=0.97, conflict=0.12)
    folder = scored(tmp_path, "asd", 1, 0.9, 0.3)
    write_json(folder.path / "result.json", read_json(folder.path / "result.json") | {"classes": list("ABCDEFGHIJ")})
    student(tmp_path / "P9" / "kd-s1", "kd", 1, 0.5, suite="P9")
    line = next(line for line in summarise(tmp_path) if line.startswith("P2: "))
    assert line.endswith("Its teacher is hardly better than chance there (10 %): nothing can be handed down.")


def test_the_best_of_few_images_is_not_called_so(tmp_path: Path) -> None:
    for count, words in ((99, "asd (of 3, on few images) is right"), (100, "asd (best of 3) is right")):
        home = tmp_path / str(count)
        for method, value in (("kd", 0.2), ("asd", 0.3), ("ce", 0.1), ("dkd", 0.1)):
            folder = student(home / f"{method}-s1", method, 1, 0.9)
            score(folder, "iid", {"accuracy": 0.9})
            score(folder, "conflict", {"accuracy": value}, count=count)
        assert words in summarise(home)[0]


def test_other_scores_and_several_suites(tmp_path: Path) -> None:
    for suite, last in (("P1", 0.5), ("P2", 0.6)):
        folder = student(tmp_path / suite / "kd-s1", "kd", 1, last, suite=suite)
        scores = {"accuracy": last, "miou": last / 2, "epoch": 2}
        folder.finish({"set": "val", "primary_metric": "miou", "last": scores, "best": scores})
    assert summarise(tmp_path / "P1")[:2] == [
        "On ordinary images kd has mIoU 0.25.",
        "Nothing is scored yet where a shortcut would fail.",
    ]
    assert summarise(tmp_path) == [
        "P1: On ordinary images kd has mIoU 0.25.",
        "P2: On ordinary images kd has mIoU 0.30.",
    ]
