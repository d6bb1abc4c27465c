"""A suite on a real Ray cluster of two nodes on this machine, one of which dies."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from antishortcut import __version__
from antishortcut.config.recipe import Execution, load_recipe
from antishortcut.errors import UserError
from antishortcut.experiments import launcher as cluster
from antishortcut.experiments.worker import Place
from antishortcut.run_dir import RunDir

os.environ["RAY_AUTH_MODE"] = "disabled"  # a token in somebody's home would be asked of the second node and not given
NAMES = ("kd", "contrast-1", "asd")
SUITE = [
    "suite", "run", "beyond-cues", "--seeds", "1", "--threads", "1", "--save-every", "0.2",
    *(word for name in NAMES for word in ("--only", f"beyond-cues/{name}")),
    *(
        word
        for text in (
            "epochs=25", "teacher.epochs=1", "teacher.name=cnn-4-16", "student.name=cnn-2-16", "optim.batch=32",
            "data.options.count=256", "data.options.test_count=100",
        )
        for word in ("--set", text)
    ),
]  # fmt: skip


class Nodes:
    """Two nodes of one core each, known by the process group of their start."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address, self._folder = f"127.0.0.1:{port}", folder
        self.head = self._start("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}")
        try:
            self.second = self.more()
        except BaseException:
            self.kill(self.head)
            raise

    def more(self) -> int:
        return self._start(f"--address={self.address}")

    def _start(self, *words: str) -> int:
        ray = Path(sys.executable).parent / "ray"
        usual = ["--node-ip-address=127.0.0.1", "--num-cpus=1", "--object-store-memory=80000000"]
        with (self._folder / "start.log").open("a") as log:
            command = [str(ray), "start", *words, *usual, "--disable-usage-stats"]
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            assert process.wait(timeout=180) == 0, (self._folder / "start.log").read_text()
        return process.pid

    @staticmethod
    def kill(group: int) -> None:
        """As a power cut: the node's own processes and the trainings it started, none asked."""
        for number in members(group):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def members(group: int) -> set[int]:
    """Processes of a group and all that descend from them: Ray's workers have groups of their own."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = (int(fields[1]), int(fields[2]))  # parent, group
    result = {number for number, (_, own) in parents.items() if own == group}
    while more := {number for number, (parent, _) in parents.items() if parent in result} - result:
        result |= more
    return result


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # a short path: sockets lie in it
    there = Nodes(folder)
    yield there
    there.kill(there.second)
    there.kill(there.head)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same runs by a process of this machine."""
    runs = tmp_path_factory.mktemp("local") / "runs"
    subprocess.run([sys.executable, "-m", "antishortcut", *SUITE, "--runs", str(runs)], check=True, timeout=600)
    return runs


def begin(nodes: Nodes, runs: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "antishortcut", *SUITE, "--runs", str(runs)]
    with (runs.parent / "log").open("w") as log:
        where = ["--engine", "ray", "--address", nodes.address, "--json"]
        return subprocess.Popen([*command, *where], stdout=log, stderr=log, start_new_session=True)


def wait_for(found: Callable[[], Path | None], process: subprocess.Popen[bytes], log: Path) -> Path:
    end = time.monotonic() + 300
    while (there := found()) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, f"it does not come to that: {log.read_text()}"
        time.sleep(0.02)
    return there


def saved_by(group: int, runs: Path) -> Path | None:
    """A student with a checkpoint whose lock is held by a process of this node."""
    for link in (link for number in members(group) for link in Path(f"/proc/{number}/fd").glob("*")):
        with suppress(OSError):
            lock = link.readlink()
            if (
                lock.name == ".lock"
                and lock.parent.parent == runs / "beyond-cues"
                and list(lock.parent.glob("resume/*.pt"))
            ):
                return lock.parent
    return None


def first_steps(folder: Path) -> list[int]:
    """The first step that each start of a training wrote to TensorBoard, in order; 0 of one killed before it did."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    files = (folder / "tensorboard").glob("events*")
    return sorted(next((e.step for e in EventFileLoader(str(file)).Load() if e.step), 0) for file in files)


def same(runs: Path, others: Path) -> None:
    for name in NAMES:
        one, two = (RunDir(place / "beyond-cues" / f"{name}-s1") for place in (runs, others))
        weights, expected = load_file(one.student), load_file(two.student)
        assert all(torch.equal(weights[key], expected[key]) for key in expected)
        assert one.history() == two.history()
        assert one.scores() == two.scores()
        assert not (one.path / "resume").exists()


def test_missing_ray_is_one_line(tmp_path: Path) -> None:
    words = [*SUITE, "--engine", "ray", "--runs", str(tmp_path / "runs")]
    code = "import sys; sys.modules['ray'] = None\nfrom antishortcut.cli import main\nmain()"
    message = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    expected = "asd: --engine ray needs the extra: pip install 'antishortcut[cluster]'\n"
    assert (message.returncode, message.stderr) == (2, expected)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "999.1.1.1:5", "ray://127.0.0.1:1", "auto"])
def test_an_address_without_a_cluster_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    ray = ModuleType("ray")
    ray.init = lambda **_: pytest.fail("Ray would try for ever")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UserError, match=r"start one: ray start --head"):
        cluster._connect(address)


def test_a_run_takes_as_many_gpus_as_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    requested = dict[str, Any]()

    def remote(**needs: Any) -> Any:
        requested.update(needs)
        return lambda work: work

    resources = {"CPU": 8.0, "GPU": 4.0}
    nodes = [{"Alive": True, "Resources": resources}]
    ray = SimpleNamespace(cluster_resources=lambda: resources, nodes=lambda: nodes, remote=remote)
    monkeypatch.setattr(cluster, "_connect", lambda address: ray)
    place = Place(tmp_path, execution=Execution(accelerator="cuda", devices=4, threads=2))
    cluster.RayEngine(place, "auto")
    assert (requested["num_gpus"], requested["num_cpus"]) == (4.0, 8)
    with pytest.raises(UserError, match=r"--cards 0\.5: a run over --devices 4 takes 4 GPUs or none"):
        cluster.RayEngine(place, "auto", gpus=0.5)
    with pytest.raises(UserError, match="no node of the cluster has 8 cores and 5 GPUs for a run"):  # at once
        cluster.RayEngine(place, "auto", gpus=5)
    cluster.RayEngine(Place(tmp_path, execution=Execution(accelerator="cpu", devices=2)), "auto")
    assert (requested["num_gpus"], requested["num_cpus"]) == (0.0, 2)


@pytest.mark.slow
def test_a_node_dies_and_every_run_ends_once(nodes: Nodes, local: Path, tmp_path: Path) -> None:
    runs, log = tmp_path / "runs", tmp_path / "log"
    process = begin(nodes, runs)
    lost = wait_for(lambda: saved_by(nodes.second, runs), process, log)
    nodes.kill(nodes.second)
    (state,) = list(lost.glob("resume/*.pt"))[-1:]
    reached = int(state.name[:9])
    try:
        assert process.wait(timeout=400) == 0, log.read_text()
    finally:
        nodes.second = nodes.more()
    assert '"done": 3' in log.read_text()
    same(runs, local)
    for name in NAMES:
        folder = runs / "beyond-cues" / f"{name}-s1"
        starts = first_steps(folder)
        if folder == lost:
            assert len(starts) == 2
            assert starts[1] > reached > 0  # it went on, and did not begin again
        else:
            assert len(starts) == 1
    assert not list(runs.glob(".cluster*"))


@pytest.mark.slow
def test_ctrl_c_saves_the_states_and_the_same_command_goes_on(nodes: Nodes, local: Path, tmp_path: Path) -> None:
    runs, log = tmp_path / "runs", tmp_path / "log"
    shutil.copytree(local / "teachers", runs / "teachers")
    process = begin(nodes, runs)
    wait_for(lambda: saved_by(nodes.second, runs), process, log)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=200) == 130, log.read_text()
    assert "stopping: runs save their state" in log.read_text()
    assert "Traceback" not in log.read_text()
    saved = list(runs.glob("beyond-cues/*/resume/*.pt"))
    assert saved
    again = begin(nodes, runs)
    assert again.wait(timeout=400) == 0, log.read_text()
    same(runs, local)


def test_a_node_that_sees_other_files_or_another_version_says_so(tmp_path: Path) -> None:
    place, recipe, mark = Place(tmp_path / "runs"), load_recipe("cues"), tmp_path / ".cluster-1"
    message = cluster._run_on_node(place, recipe, mark, __version__, tmp_path)["error"]
    assert message.endswith(f"does not see {tmp_path / 'runs'}: --runs must be a path that all nodes share")
    message = cluster._run_on_node(place, recipe, mark, "9", tmp_path)["error"]
    assert message.endswith("the suite was started with 9")


def test_a_place_on_the_cluster_depends_on_no_process(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTISHORTCUT_DATA", "images")
    result = cluster._absolute(Place(Path("runs"), at={"stylized": Path("s")}))
    assert (result.runs, result.root, result.at) == (here / "runs", here / "images", {"stylized": here / "s"})
    assert cluster._absolute(Place(Path("runs"), Path("mine"))).root == here / "mine"


def test_a_run_waits_for_its_lost_process_to_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = [{"error": "in use", "busy": True}, {"error": "in use", "busy": True}, {"score": "val accuracy 0.5"}]
    command = SimpleNamespace(result=lambda: results.pop(0))
    monkeypatch.setattr(cluster, "Command", lambda *words, **more: command)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    (tmp_path / "mark").touch()
    words = (Place(tmp_path), load_recipe("cues"), tmp_path / "mark", __version__, tmp_path)
    assert cluster._run_on_node(*words, patience=0.0) == {"error": "in use", "busy": True}
    assert cluster._run_on_node(*words) == {"score": "val accuracy 0.5"}
