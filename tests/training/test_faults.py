"""Killed without warning, or asked to stop, the same command ends where the uninterrupted one ends, bit for bit.

What is done to commands is `torture`'s; here a little of it, in test_torture.py all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from antishortcut.config.recipe import load_recipe, teach_run
from antishortcut.config.schema import Execution
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir
from antishortcut.training.checkpoint import (
    drop_later_checkpoints,
    load_checkpoint,
    require_disk,
    save_checkpoint,
    saved_step,
    try_save_checkpoint,
)

ROOT = Path(__file__).parents[2]


def tortured(part: str, *words: str, minutes: float = 10) -> dict[str, Any]:
    """What a part of the torture found; it fails where a promise does not hold."""
    command = [sys.executable, "-m", f"torture.{part}", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60 * minutes, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout))


def test_five_kills() -> None:
    result = tortured("kills", "--kills", "5", "--only", "teach,kd,asd", "--forked-only")
    assert result["kills"] == 5
    assert result["identical"]
    assert {case["method"] for case in result["cases"]} == {"", "kd", "asd"}


def test_signals_save_and_say_so() -> None:
    result = tortured("signalling", "--few")
    codes = {(case["command"], case["signal"]): case["code"] for case in result["cases"]}
    assert codes["distill", "SIGTERM"] == 143
    assert codes["distill", "SIGINT"] == 130
    assert codes["distill", "SIGUSR1"] == 138
    assert codes["distill", "SIGHUP"] == 129
    assert codes["teach", "SIGTERM"] == codes["evaluate", "SIGTERM"] == 143


def test_a_flipped_bit_anywhere_in_a_state_leads_to_the_one_before(tmp_path: Path) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, step, {"model": torch.full((64,), float(step))})
    newest = sorted(tmp_path.glob("*.pt"))[-1]
    data = newest.read_bytes()
    for at in range(0, len(data), 7):
        newest.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        result = load_checkpoint(tmp_path)
        assert result is not None
        assert result[0] == 1
    for at in range(0, len(data), 101):
        newest.write_bytes(data[:at])
        result = load_checkpoint(tmp_path)
        assert result is not None
        assert result[0] == 1
    newest.write_bytes(data)
    result = load_checkpoint(tmp_path)
    assert result is not None
    assert result[0] == 2


def test_a_state_that_cannot_be_saved_is_told_and_the_last_one_stays(tmp_path: Path) -> None:
    folder, text = RunDir(tmp_path), list[str]()
    with folder.locked():
        try_save_checkpoint(folder, 1, {"a": 1}, text.append)
        (tmp_path / "resume").rename(tmp_path / "aside")
        (tmp_path / "resume").write_text("a file where the states should be")
        folder.log({"step": 2})
        try_save_checkpoint(folder, 2, {"a": 2}, text.append)
        (tmp_path / "resume").unlink()
        (tmp_path / "aside").rename(tmp_path / "resume")
        try_save_checkpoint(folder, 3, {"a": 3}, text.append)
    assert len(text) == 1
    assert text[0].startswith("step 2 could not be saved (")
    assert load_checkpoint(tmp_path / "resume") == (3, {"a": 3})
    assert saved_step(folder) == "the state after step 3 is kept"


def test_a_folder_that_is_not_there_any_more_is_not_made_anew(tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    with folder.locked():
        folder.log({"step": 1})
        folder.path.rename(tmp_path / "elsewhere")
        folder.log({"step": 2})  # kept in mind
        with pytest.raises(UserError, match="No such file"), require_disk(folder):
            pytest.fail("nothing may be written")
        assert not folder.path.exists()
        (tmp_path / "elsewhere").rename(folder.path)
        folder.settle()
    assert [row["step"] for row in folder.history()] == [1, 2]


def test_a_flipped_bit_anywhere_in_the_settings_is_told(tmp_path: Path) -> None:
    folder, run = RunDir(tmp_path), teach_run(load_recipe("cues"), "fingerprint")
    folder.begin(run, Execution(threads=1).model_dump(mode="json"), {"torch": "2"})
    path, there, kinds = tmp_path / "run.json", folder.read(), set[str]()
    data = path.read_bytes()
    for at in range(0, 8 * len(data), 41):
        path.write_bytes(data[: at // 8] + bytes([data[at // 8] ^ (1 << at % 8)]) + data[at // 8 + 1 :])
        try:
            assert folder.read() == there
            kinds.add("of no matter")
        except UserError as error:
            kinds.add(str(error).partition("damaged (")[2][:12])
    assert {"of no matter", "its settings"} <= kinds


def test_a_state_that_cannot_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "000000001-0.pt").symlink_to("/proc/self/mem")  # opens, and gives an I/O error
    with pytest.raises(UserError, match=r"000000001-0.pt: cannot be read \("):
        load_checkpoint(tmp_path)


def test_a_state_of_another_run_leads_to_the_own_one_before_or_is_told(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 3, {"run": "this"})
    save_checkpoint(tmp_path, 4, {"run": "that"})
    assert load_checkpoint(tmp_path, run="this") == (3, {"run": "this"})
    with pytest.raises(UserError, match="a state of another run"):
        load_checkpoint(tmp_path, run="third")
    save_checkpoint(tmp_path, 5, {"older": "versions do not say"})
    assert load_checkpoint(tmp_path, run="this") == (5, {"older": "versions do not say"})


def test_a_state_under_the_name_of_another_step_leads_to_the_one_before_or_is_told(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 3, {"step": 3})
    save_checkpoint(tmp_path, 4, {"step": 4})
    newest = sorted(tmp_path.glob("*.pt"))[-1]
    newest.rename(tmp_path / newest.name.replace("000000004", "000000009"))
    assert load_checkpoint(tmp_path) == (3, {"step": 3})
    next(tmp_path.glob("000000003*")).unlink()
    with pytest.raises(UserError, match="every saved state is damaged"):
        load_checkpoint(tmp_path)


def test_states_after_the_one_gone_on_from_do_not_count(tmp_path: Path) -> None:
    for step in (3, 8, 9):
        save_checkpoint(tmp_path, step, {})
    drop_later_checkpoints(tmp_path, 8)
    assert [path.name[:9] for path in tmp_path.glob("*.pt")] == ["000000008"]
