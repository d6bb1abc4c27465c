"""The promises of docs/reliability.md, tried on whole commands; a quick version of two parts is in test_faults.py."""

import pytest
from torture.disk import may_mount

from tests.training.test_faults import tortured


@pytest.mark.slow
def test_sixty_kills() -> None:
    from antishortcut.methods import METHODS

    result = tortured("kills", minutes=30)
    assert result["kills"] == 60
    assert result["identical"]
    assert result["fresh_as_forked"]
    assert {case["method"] for case in result["cases"] if case["command"] == "distill"} == set(METHODS)
    assert {case["command"] for case in result["cases"]} == {"teach", "distill", "suite run", "evaluate"}
    assert {"begin", "step", "save", "rename", "cut", "evaluate", "snapshot", "end"} <= set(result["moments"])


@pytest.mark.slow
def test_kills_where_files_are_made() -> None:
    result = tortured("writers", minutes=30)
    assert result["identical"]
    assert all(case["kills"] >= 2 for case in result["cases"])


@pytest.mark.slow
def test_signals_to_every_command() -> None:
    result = tortured("signalling", minutes=30)
    assert result["identical"]
    assert {case["command"] for case in result["cases"]} == {"teach", "distill", "suite run", "evaluate"}


@pytest.mark.slow
def test_disks_that_fail() -> None:
    faults = tortured("disk", minutes=30)["faults"]
    assert faults["damaged"]["tries"] == faults["damaged"]["identical"] + faults["damaged"]["refused"] > 50
    if not may_mount():
        pytest.skip("no right to mount a file system: only damaged files were tried")
    assert faults["full"]["identical"] == faults["full"]["tries"] == 4
    assert faults["full"]["refused"] > 0
    for name in ("full for a while", "read-only", "vanished"):
        assert faults[name]["identical"] == 1, name


@pytest.mark.slow
def test_commands_at_the_same_time() -> None:
    result = {each["what"]: each for each in tortured("sharing", minutes=20)["cases"]}
    assert result["the same run twice"]["refused"] == 1
    assert result["two suites"]["identical"]


@pytest.mark.slow
def test_one_of_two_processes_killed() -> None:
    result = tortured("ranks", minutes=20)
    assert result["identical"]
    assert (result["kills"], result["signals"]) == (4, 3)
