"""A whole run on two real processes (gloo) ends where one process ends, for a student without batch statistics."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

NETWORK = """
from torch import nn

def net(num_classes):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(108, 24), nn.ReLU(), nn.Linear(24, num_classes),
    )
"""


def asd(here: Path, *words: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "antishortcut", *words],
        cwd=here, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# Batches of 32. Of 257 images the last is alone and joins the batch before, shared as 17 and 16; of 250 the last 26 are
# a batch of their own, of 265 the last 9, as 5 and 4.
@pytest.mark.parametrize("count", [257, *(pytest.param(count, marks=pytest.mark.slow) for count in (250, 265))])
def test_two_processes_end_where_one_does(tmp_path: Path, tiny: Path, count: int) -> None:
    (tmp_path / "bare.py").write_text(NETWORK)
    common = [
        "--set",
        f"data.options.count={count}",
        "--set",
        "student.name=import:bare:net",
        "--set",
        "optim.lr=0.02",
    ]
    common += ["--threads", "1", "--device", "cpu", "--json"]
    asd(tmp_path, "teach", str(tiny), *common, "--runs", "one")
    shutil.copytree(tmp_path / "one" / "teachers", tmp_path / "two" / "teachers")
    single = json.loads(asd(tmp_path, "distill", str(tiny), *common, "--runs", "one"))
    double = json.loads(asd(tmp_path, "distill", str(tiny), *common, "--runs", "two", "--devices", "2"))
    assert single["hash"] == double["hash"]
    assert single["last"] == pytest.approx(double["last"], abs=0.021)  # every test image counts once
    for name in ("student", "method"):
        one, two = (load_file(tmp_path / runs / f"tiny/asd-s1/{name}.safetensors") for runs in ("one", "two"))
        for key, value in one.items():
            assert torch.allclose(value.float(), two[key].float(), atol=2e-4, rtol=1e-3), key
    assert torch.equal(one["loss.queue_index"], two["loss.queue_index"])


SLOW = """
import os, time

sync = os.fsync

def slowly(file):
    number = file if isinstance(file, int) else file.fileno()
    if "/resume/" in os.readlink(f"/proc/self/fd/{number}"):
        time.sleep(8)
    sync(file)

os.fsync = slowly
"""


@pytest.mark.slow
def test_none_ends_before_the_state_is_saved(tmp_path: Path, tiny: Path) -> None:
    """A disk may be slow: who ended before would have had the first one killed while it writes."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW)
    words = ["distill", str(tiny), "--method", "ce", "--threads", "1", "--device", "cpu", "--devices", "2"]
    run = subprocess.Popen(
        [sys.executable, "-m", "antishortcut", *words, "--set", "epochs=400", "--runs", "runs"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path / "slow")},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    folder = tmp_path / "runs" / "tiny" / "ce-s1"
    while not (folder / "metrics.jsonl").exists() or len((folder / "metrics.jsonl").read_text().splitlines()) < 10:
        assert run.poll() is None
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGTERM)
    message = run.communicate(timeout=120)[1]
    assert run.returncode == 143, message
    assert message.count("stopped after step") == 1
    assert [*(folder / "resume").glob("*.pt")]


@pytest.mark.slow
def test_uneven_shares_in_parts_do_not_wait_for_each_other(tmp_path: Path, tiny: Path) -> None:
    """265 images: the last batch, 9, is shared as 5 and 4, and both processes cut their share into four parts."""
    words = ["--set", "data.options.count=265", "--set", "optim.accumulate=4", "--set", "epochs=1", "--method", "kd"]
    built = json.loads(
        asd(tmp_path, "distill", str(tiny), *words, "--threads", "1", "--device", "cpu", "--devices", "2", "--json")
    )
    assert built["steps"] == 9


@pytest.mark.slow
def test_two_machines_end_where_two_processes_of_one_do(tmp_path: Path, tiny: Path) -> None:
    """torchrun on each of two machines, as Slurm would start it; here both are this one."""
    common = ["distill", str(tiny), "--set", "epochs=1", "--threads", "1", "--device", "cpu", "--json"]
    here = json.loads(asd(tmp_path, *common, "--runs", "here", "--devices", "2"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shutil.copytree(tmp_path / "here" / "teachers", tmp_path / "there" / "teachers")
    run = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    run += ["--master-addr", "127.0.0.1", "--master-port", port]
    words = ["-m", "antishortcut", *common, "--runs", "there", "--devices", "1", "--nodes", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    machines = [
        subprocess.Popen([*run, "--node-rank", str(rank), *words], cwd=tmp_path, env=environment, stdout=-1, stderr=-1)
        for rank in range(2)
    ]
    message = [machine.communicate(timeout=300) for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], message
    there = tmp_path / "there" / "tiny" / "asd-s1"
    assert json.loads((there / "run.json").read_text())["execution"]["nodes"] == 2
    assert json.loads((there / "run.json").read_text())["hash"] == here["hash"]
    one, two = (load_file(tmp_path / runs / "tiny/asd-s1/student.safetensors") for runs in ("here", "there"))
    assert all(torch.equal(one[key], two[key]) for key in one)
