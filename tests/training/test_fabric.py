"""Processes that share a run: before they have met, and as they end."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from antishortcut.config.recipe import Execution
from antishortcut.training.fabric import STARTER, build_fabric
from tests.processes import free_port

ENDING = """
import os, sys, threading, weakref
import torch, torch.distributed as dist
from antishortcut import cli
from antishortcut.distributed import all_gather_int

store, rank, code, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def work(**_):
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    for thread in map(int, os.listdir("/proc/self/task")):  # gloo's get the processor when nobody else wants it
        if thread != threading.get_native_id():
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    for number in range(20):
        all_gather_int(number)
    print("done")
    return code

if mode == "world":
    work()
    world = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    assert world() is None, "the process group outlives its end"
else:
    cli.app = work
    cli.main()
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="threads are held up with a scheduler of Linux")
@pytest.mark.parametrize(
    ("mode", "code"), [pytest.param("command", 0, marks=pytest.mark.slow), ("command", 3), ("world", 0)]
)
def test_joined_processes_end_with_their_own_code(tmp_path: Path, mode: str, code: int) -> None:
    """Two on one core. If a thread of gloo lags, torch would abort a process that is done; and a process group that
    we kept would outlive dist.destroy_process_group()."""
    core, words = {min(os.sched_getaffinity(0))}, [sys.executable, "-c", ENDING, f"file://{tmp_path / 'store'}"]
    both = [
        subprocess.Popen(
            [*words, str(rank), str(code), mode], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, core),
        )
        for rank in range(2)
    ]  # fmt: skip
    printed = [process.communicate(timeout=300) for process in both]
    assert [(process.returncode, *text) for process, text in zip(both, printed, strict=True)] == [
        (code, "done\n", "")
    ] * 2


def test_a_fabric_leaves_no_trace_in_the_log_or_the_environment(caplog: pytest.LogCaptureFixture) -> None:
    """Processes started later would take themselves for processes of a run that has ended."""
    logger = logging.getLogger("lightning_fabric.utilities.rank_zero")
    logger.addHandler(caplog.handler)
    try:
        build_fabric(Execution(accelerator="cpu", precision="bf16-mixed", threads=1))
        logger.info("other news")
        assert set(caplog.messages) == {"other news"}  # and not the precision
    finally:
        logger.removeHandler(caplog.handler)
    assert STARTER not in os.environ


MEETING = """
import os, sys, time

if os.environ.get("LOCAL_RANK") == "1" and len(sys.argv) > 1:
    os.execvp("sh", ["sh", "-c", sys.argv[1]])

from antishortcut.training import fabric
from antishortcut.config.recipe import Execution

fabric.POLL, fabric.GRACE = 0.05, 0.5
fabric.build_fabric(Execution(accelerator="cpu", devices=2, precision="32-true", threads=1))
"""


def test_a_process_whose_starter_was_killed_before_they_met_ends() -> None:
    """Torch would look for it for half an hour."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    place = {"NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    place |= {"MASTER_PORT": str(free_port()), STARTER: str(gone.pid)}
    words = [sys.executable, "-c", MEETING]
    second = subprocess.run(words, env=os.environ | place, capture_output=True, text=True, timeout=300, check=False)
    assert second.returncode == 2, second.stderr
    assert "asd: another process of this run has ended" in second.stderr
    assert "Traceback" not in second.stderr


def test_the_first_process_ends_as_another_did(tmp_path: Path) -> None:
    """Lightning would kill it at once: after a scheduler's signal to the other it would end with 137."""
    ends = {
        "exit 143": (143, "asd: stopped by SIGTERM"),
        "kill -KILL $$": (2, "asd: another process of this run has ended"),
    }
    script = tmp_path / "meet.py"
    script.write_text(MEETING)
    running = [
        subprocess.Popen([sys.executable, str(script), end], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        for end in ends
    ]
    for process, (end, (code, line)) in zip(running, ends.items(), strict=True):
        message = process.communicate(timeout=300)[1]
        assert process.returncode == code, (end, message)
        assert line in message
