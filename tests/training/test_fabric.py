"""Processes that share a run: before they have met, and as they end."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from antishortcut.config.recipe import Execution
from antishortcut.training.fabric import STARTER, build_fabric

SECOND = """
from antishortcut.training import fabric
from antishortcut.config.recipe import Execution

fabric.GRACE = 0.5
fabric.make_fabric(Execution(accelerator="cpu", devices=2, precision="32-true", threads=1))
"""


ENDING = """
import os, sys, threading, weakref
import torch, torch.distributed as dist
from antishortcut import cli
from antishortcut.distributed import told

store, rank, code, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def work(**_):
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    for thread in map(int, os.listdir("/proc/self/task")):  # gloo's get the processor when nobody else wants it
        if thread != threading.get_native_id():
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    for number in range(20):
        told(number)
    print("done")
    return code

if mode == "world":
    work()
    world = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    assert world() is None, "the world outlives its end"
else:
    cli.app = work
    cli.main()
"""


def ended(store: Path, mode: str, code: int) -> list[tuple[int, str, str]]:
    """How two processes end that share one core: exit code, what they printed, what they complained of."""
    core = {min(os.sched_getaffinity(0))}
    words = [sys.executable, "-c", ENDING, f"file://{store}"]
    both = [
        subprocess.Popen(
            [*words, str(rank), str(code), mode],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, core),
        )
        for rank in range(2)
    ]
    message = [process.communicate(timeout=300) for process in both]
    return [(process.returncode, *words) for process, words in zip(both, message, strict=True)]


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="threads are held up as Linux does it")
@pytest.mark.parametrize("code", [0, 3])
def test_processes_that_were_joined_end_with_their_own_code(tmp_path: Path, code: int) -> None:
    """A thread of gloo that lags behind would have torch abort a process that is done: most of these, before."""
    assert ended(tmp_path / "store", "command", code) == [(code, "done\n", "")] * 2


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="threads are held up as Linux does it")
def test_the_group_of_a_loop_of_ones_own_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """Kept in a memory of ours, its threads would outlive dist.destroy_process_group()."""
    assert ended(tmp_path / "store", "world", 0) == [(0, "done\n", "")] * 2


def test_others_that_are_started_later_are_not_tied_to_this_one() -> None:
    """They would take themselves for processes of a run that has ended, and end."""
    build_fabric(Execution(accelerator="cpu", precision="32-true", threads=1))
    assert STARTER not in os.environ


def test_the_precision_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    built = logging.getLogger("lightning_fabric.utilities.rank_zero")
    built.addHandler(caplog.handler)
    try:
        build_fabric(Execution(accelerator="cpu", precision="bf16-mixed", threads=1))
        assert not caplog.records
        built.info("other news")
        assert set(caplog.messages) == {"other news"}
    finally:
        built.removeHandler(caplog.handler)


def test_a_process_whose_first_was_killed_before_they_met_ends() -> None:
    """Torch looks for the first one for half an hour."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    place |= {"MASTER_PORT": str(port), STARTER: str(gone.pid)}
    second = subprocess.run(
        [sys.executable, "-c", SECOND], env=os.environ | place, capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 2, second.stderr
    assert "asd: another process of this run has ended" in second.stderr
    assert "Traceback" not in second.stderr


WATCH = """
import json, os, subprocess, sys, threading, time
import torch.distributed as dist
from antishortcut.training import fabric

fabric.POLL, fabric.GRACE = 0.05, 0.2
found = []
for known in (True, False):
    for ends in json.loads(sys.argv[1]):
        told, telling = os.pipe()
        if os.fork() == 0:  # a first process, whose only other one ends so
            os.dup2(telling, 2)
            dist.is_initialized = lambda: known
            children = [subprocess.Popen(ends)]
            threading.Thread(target=fabric._end_with, args=(children,), daemon=True).start()
            time.sleep(1)
            os._exit(7)
        os.close(telling)
        code = os.waitstatus_to_exitcode(os.wait()[1])
        found.append([code, os.read(told, 9999).decode()])
print(json.dumps(found))
"""


def test_the_first_ends_as_another_did() -> None:
    """Lightning would kill it at once: a scheduler's signal that was heard before they met ended in 137."""
    gone = "another process of this run has ended"
    ends = {
        ("true",): (7, ""),  # it goes on
        ("false",): (2, gone),
        ("sh", "-c", "exit 143"): (143, "stopped by SIGTERM"),
        ("sh", "-c", "kill -TERM $$"): (143, "stopped by SIGTERM"),
        ("sh", "-c", "kill -KILL $$"): (2, gone),
    }
    words = [sys.executable, "-c", WATCH, json.dumps(list(ends))]
    result = json.loads(subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout)
    for (code, message), (expected, line) in zip(result, [*ends.values()] * 2, strict=True):
        assert code == expected
        assert message.startswith(f"asd: {line}") if line else not message
