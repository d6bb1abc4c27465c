"""All that runs must survive; what was found is kept in docs/results/torture and shown in docs/reliability.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from torture.checks import HERE, PROMISES, Promise, counted
from torture.disk import may_mount
from torture.page import PAGE, PARTS, RESULTS, filled

from tests.test_faults import tortured


def test_the_page_shows_what_was_found() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert filled(text) == text, "python -m torture.page"
    assert {path.stem for path in RESULTS.glob("*.json")} <= set(PARTS)


def test_kept_results_name_no_place_of_the_machine_they_were_made_on() -> None:
    for path in RESULTS.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert "/tmp" not in text, path
        assert str(Path.home()) not in text, path


def test_every_promise_has_its_tests() -> None:
    assert all((HERE / path).is_file() for promise in PROMISES for path in promise.tests)


def test_a_promise_that_is_not_held_is_counted(tmp_path: Path) -> None:
    tests = tmp_path / "test_odd.py"
    tests.write_text("""
import pytest
def test_good(): pass
def test_bad(): assert False
@pytest.mark.skip
def test_elsewhere(): pass
""")
    told = counted(Promise("a", "b", (str(tests),)))
    assert (told["held"], told["failed"], told["skipped"]) == (1, 1, 1)


@pytest.mark.slow
def test_two_hundred_kills() -> None:
    from antishortcut.methods import METHODS

    found = tortured("kills", "--kills", "200", minutes=90)
    assert found["kills"] == 200
    assert found["identical"]
    assert found["fresh_as_forked"]
    assert {case["method"] for case in found["cases"] if case["command"] == "distill"} == set(METHODS)
    assert {case["command"] for case in found["cases"]} == {"teach", "distill", "suite run", "evaluate"}
    assert {"begin", "step", "save", "rename", "cut", "judge", "keep", "end"} <= set(found["moments"])


@pytest.mark.slow
def test_kills_where_files_are_made() -> None:
    found = tortured("writers", "--kills", "2", minutes=30)
    assert found["identical"]
    assert all(case["kills"] >= 2 for case in found["cases"])


@pytest.mark.slow
def test_signals_to_every_command() -> None:
    found = tortured("signalling", minutes=30)
    assert found["identical"]
    assert {case["command"] for case in found["cases"]} == {"teach", "distill", "suite run", "evaluate"}


@pytest.mark.slow
def test_disks_that_fail() -> None:
    faults = tortured("disk", "--places", "12", "--sizes", "8", minutes=45)["faults"]
    assert faults["damaged"]["tries"] == faults["damaged"]["identical"] + faults["damaged"]["refused"] > 50
    if not may_mount():
        pytest.skip("no right to mount a file system: only damaged files were tried")
    assert faults["full"]["identical"] == faults["full"]["tries"] == 8
    assert faults["full"]["refused"] > 0
    for name in ("full for a while", "read-only", "vanished"):
        assert faults[name]["identical"] == 1, name


@pytest.mark.slow
def test_commands_at_the_same_time() -> None:
    found = {each["what"]: each for each in tortured("sharing", minutes=20)["cases"]}
    assert found["the same run twice"]["refused"] == 1
    assert found["two suites"]["identical"]


@pytest.mark.slow
def test_one_of_two_processes_killed() -> None:
    found = tortured("ranks", minutes=20)
    assert found["identical"]
    assert (found["kills"], found["signals"]) == (4, 4)


@pytest.mark.slow
def test_five_thousand_steps_and_a_million_lines() -> None:
    found = tortured("long", "--steps", "5000", "--lines", "1000000", minutes=45)
    assert found["life"]["flat"], found["life"]
    assert found["logs"]["report"]["peak_mb"] < 64
    assert found["logs"]["cut"]["peak_mb"] < 16
