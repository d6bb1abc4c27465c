"""A run on two real processes (gloo) equals a run on one, for a student without batch statistics."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import same_weights
from tests.processes import asd, free_port

NETWORK = """
from torch import nn

def net(num_classes):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(108, 24), nn.ReLU(), nn.Linear(24, num_classes),
    )
"""


# Batches of 32. Of 257 images the last joins the batch before, split as 17 and 16; of 250 the last 26 are a batch of
# their own, of 265 the last 9, as 5 and 4.
@pytest.mark.parametrize("count", [257, *(pytest.param(count, marks=pytest.mark.slow) for count in (250, 265))])
def test_two_processes_equal_one(tmp_path: Path, tiny: Path, count: int) -> None:
    (tmp_path / "bare.py").write_text(NETWORK)
    settings = [f"data.options.count={count}", "student.name=import:bare:net", "optim.lr=0.02"]
    words = [str(tiny), "--method", "asd", *(word for text in settings for word in ("--set", text))]
    single = json.loads(asd(tmp_path, "distill", *words, "--runs", "one"))
    shutil.copytree(tmp_path / "one" / "teachers", tmp_path / "two" / "teachers")
    double = json.loads(asd(tmp_path, "distill", *words, "--runs", "two", "--devices", "2"))
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
def test_no_process_ends_before_the_state_is_saved(tmp_path: Path, tiny: Path) -> None:
    """On a slow disk: one that ended earlier would have the first one killed while it writes."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW)
    words = ["distill", str(tiny), "--method", "ce", "--threads", "1", "--device", "cpu", "--devices", "2"]
    paths = os.pathsep.join([str(tmp_path / "slow"), os.environ.get("PYTHONPATH", "")])
    run = subprocess.Popen(
        [sys.executable, "-m", "antishortcut", *words, "--set", "epochs=400", "--runs", "runs"],
        cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
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
def test_uneven_batches_are_accumulated_in_as_many_steps_by_both(tmp_path: Path, tiny: Path) -> None:
    """265 images: the last batch of 9 is split as 5 and 4, and both processes split theirs into four."""
    words = ["--set", "data.options.count=265", "--set", "optim.accumulate=4", "--set", "epochs=1", "--method", "kd"]
    assert json.loads(asd(tmp_path, "distill", str(tiny), *words, "--devices", "2"))["steps"] == 9


@pytest.mark.slow
def test_two_machines_equal_two_processes_of_one(tmp_path: Path, tiny: Path) -> None:
    """torchrun on each of two machines, as Slurm starts it; here both are this one."""
    common = ["distill", str(tiny), "--method", "asd", "--set", "epochs=1"]
    here = json.loads(asd(tmp_path, *common, "--runs", "here", "--devices", "2"))
    shutil.copytree(tmp_path / "here" / "teachers", tmp_path / "there" / "teachers")
    run = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    run += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    words = ["-m", "antishortcut", *common, "--threads", "1", "--device", "cpu", "--json", "--runs", "there"]
    words += ["--devices", "1", "--nodes", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    machines = [
        subprocess.Popen([*run, "--node-rank", str(rank), *words], cwd=tmp_path, env=environment, stdout=-1, stderr=-1)
        for rank in range(2)
    ]
    printed = [machine.communicate(timeout=300) for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], printed
    there = tmp_path / "there" / "tiny" / "asd-s1"
    written = json.loads((there / "run.json").read_text())
    assert (written["execution"]["nodes"], written["hash"]) == (2, here["hash"])
    assert same_weights(tmp_path / "here/tiny/asd-s1/student.safetensors", there / "student.safetensors")
