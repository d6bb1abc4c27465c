"""Processes that share a run, before they have met."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys

import pytest

from antishortcut.fabric import STARTER, make_fabric
from antishortcut.run import Execution

SECOND = """
from antishortcut import fabric
from antishortcut.run import Execution

fabric.ALONE = 0.5
fabric.make_fabric(Execution(accelerator="cpu", devices=2, precision="32-true", threads=1))
"""


def test_others_that_are_started_later_are_not_tied_to_this_one() -> None:
    """They would take themselves for processes of a run that has ended, and end."""
    make_fabric(Execution(accelerator="cpu", precision="32-true", threads=1))
    assert STARTER not in os.environ


def test_the_precision_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    made = logging.getLogger("lightning_fabric.utilities.rank_zero")
    made.addHandler(caplog.handler)
    try:
        make_fabric(Execution(accelerator="cpu", precision="bf16-mixed", threads=1))
        assert not caplog.records
        made.info("other news")
        assert set(caplog.messages) == {"other news"}
    finally:
        made.removeHandler(caplog.handler)


def test_a_process_whose_first_was_killed_before_they_met_ends() -> None:
    """Torch looks for the first one for half an hour."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    place |= {"MASTER_PORT": str(port), STARTER: str(gone.pid)}
    ended = subprocess.run(
        [sys.executable, "-c", SECOND], env=os.environ | place, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2, ended.stderr
    assert "asd: another process of this run has ended" in ended.stderr
    assert "Traceback" not in ended.stderr
