"""The outside reference for speed: a KD step in torchdistill beside steps of ours, same pair, batch and threads.

`python benchmarks/torchdistill_reference.py [--pair wrn-40-2:wrn-16-2] [--rounds 20] [--threads 2] [--venv PATH]`; the
other pair is resnet32x4:resnet8x4. CPU, CIFAR-100's shapes, random images. Prints JSON: median milliseconds of a step
without its data (`data_ms` has the wait for a batch: ours are made ahead, its loader has no workers), ratios, what
either side was made of. The first time it makes a venv (a few minutes, a few GB, under ~/.cache/antishortcut) with
torchdistill and the torch of constraints.txt; it refuses to compare different torches.

torchdistill is driven as its examples drive it, by torchdistill_step.py in a process of that venv that knows nothing
of our package: get_distillation_box on a dict of settings, KDLoss, SGD, its data loader over PIL images; a step is
forward_process and post_forward_process. The Wide ResNets are torchdistill's own. It has no ResNet-32×4 and 8×4:
these are put together there from torchvision's BasicBlock, which its own ResNets use. Parameters are counted on both
sides and must agree. Float32 and the default layout, as it comes. Its teacher is put into eval mode first: since 1.0
torchdistill leaves that to the caller. KD means it so, and in training mode the step would be slower.

Ours are those of `asd bench`, normalisation included, which torchdistill leaves to the data. The two sides take turns
and one sleeps while the other works. Each turn begins with a step that is not counted, and ratios are of turns that
follow each other. Measure on an idle machine: where cores are shared, two threads mostly wait for each other, and the
times are of waiting (OMP_WAIT_POLICY=PASSIVE, which reaches both sides, or --threads 1 then say more).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antishortcut.experiments.benchmark import TimedMethod
    from antishortcut.types import Batch

TORCHDISTILL = "1.1.5"
PAIRS = ("wrn-40-2:wrn-16-2", "resnet32x4:resnet8x4")
THEIRS, METHODS = "torchdistill-kd", ("kd", "asd")
HERE = Path(__file__).resolve().parent
PACKAGES = ("torch", "torchvision", "numpy", "pillow")


def usual_place() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "antishortcut" / f"torchdistill-{TORCHDISTILL}"


def environment(place: Path) -> Path:
    """The interpreter of a venv with torchdistill, made unless it is there."""
    python, whole = place / "bin" / "python", place / f"torchdistill-{TORCHDISTILL}-installed"
    if not whole.exists():
        _run(sys.executable, "-m", "venv", str(place))
        names = (f"torchdistill=={TORCHDISTILL}", "torch", "torchvision")
        _run(str(python), "-m", "pip", "install", "--quiet", "-c", str(HERE.parent / "constraints.txt"), *names)
        whole.touch()
    return python


def _run(*command: str) -> None:
    print(" ".join(command), file=sys.stderr)
    subprocess.run(command, check=True, stdout=sys.stderr)


class Other:
    """torchdistill in a process of its own, which sleeps until it is asked for steps."""

    def __init__(self, python: Path, pair: str, batch: int, threads: int) -> None:
        command = [str(python), "-I", str(HERE / "torchdistill_step.py"), pair, str(batch), str(threads)]
        # -I: our package is not found there, whatever PYTHONPATH says
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.facts = self._hear()
        self.step: list[float] = []
        self.data: list[float] = []

    def turn(self) -> None:
        """A step to wake up, and one that counts."""
        inputs = self._pipe(self.process.stdin)
        inputs.write("go 2\n")
        inputs.flush()
        message = self._hear()
        self.step.append(message["step"][-1])
        self.data.append(message["data"][-1])

    def end(self) -> None:
        self._pipe(self.process.stdin).close()
        self.process.wait()

    def _hear(self) -> dict[str, Any]:
        line = self._pipe(self.process.stdout).readline()
        if not line:
            raise SystemExit("torchdistill's process ended early; its error is above")
        message: dict[str, Any] = json.loads(line)
        return message

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


def our_turn(runs: dict[str, TimedMethod], batch: Batch, data: float) -> None:
    """A step to wake up, and one of every method that counts."""
    first = next(iter(runs.values()))
    first.turn(batch)
    first.rounds.pop()
    for run in runs.values():
        run.turn(batch, data)


def check(theirs: dict[str, Any], parameters: list[int]) -> None:
    there, here = theirs["versions"]["torch"], version("torch")
    if there.partition("+")[0] != here.partition("+")[0]:
        raise SystemExit(f"torch {there} there, {here} here: install the one of constraints.txt here, or give --venv")
    if theirs["parameters"] != parameters:
        raise SystemExit(f"parameters of teacher and student: {theirs['parameters']} there, {parameters} here")


def compare(pair: str, rounds: int, batch: int, threads: int, compile: str, python: Path) -> dict[str, Any]:
    import torch

    from antishortcut.experiments.benchmark import (
        CACHED,
        CIFAR,
        PLAIN,
        WARM,
        BenchSetup,
        machine,
        median,
        now,
        pair_of,
        ratio_of,
    )

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    other = Other(python, pair, batch, threads)
    with tempfile.TemporaryDirectory() as place:
        maker = BenchSetup(pair_of(pair), CIFAR, batch, torch.device("cpu"), compile, Path(place))
        runs = {PLAIN: maker.plain()} | {name: maker.ours(name) for name in METHODS}
        runs["asd" + CACHED] = maker.ours("asd", cached=True)
        networks = (maker.teachers["final"], runs["kd"].student)
        check(other.facts, [sum(values.numel() for values in network.parameters()) for network in networks])
        batches = maker.batches()
        for number in range(WARM + rounds):
            other.turn()
            start = now()
            here = next(batches)
            our_turn(runs, here, now() - start)
            print(f"round {number + 1} of {WARM + rounds}", file=sys.stderr)
    other.end()
    data = {THEIRS: other.data[WARM:], "ours": [pieces["data"] for pieces in runs["kd"].rounds[WARM:]]}
    times = {
        name: [sum(pieces.values()) - pieces["data"] for pieces in run.rounds[WARM:]] for name, run in runs.items()
    } | {THEIRS: other.step[WARM:]}
    versions = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    return {
        "pair": pair,
        "machine": machine("cpu") | _circumstances(),
        "versions": {"ours": versions, "torchdistill": other.facts["versions"]},
        "ms": {name: median(values) for name, values in times.items()},
        "data_ms": {name: median(values) for name, values in data.items()},
        "ratio": {f"{name}/{THEIRS}": ratio_of(times[name], times[THEIRS]) for name in runs},
        "how": {
            "rounds": rounds,
            "batch": batch,
            "threads": {"ours": torch.get_num_threads(), "torchdistill": other.facts["threads"]},
            "parameters": other.facts["parameters"],
            "ours": maker.precision,
            "torchdistill": "DistillationBox, KDLoss, SGD, float32, default layout, teacher in eval mode",
            "networks": "torchdistill's own" if pair.startswith("wrn") else "of torchvision's BasicBlock",
        },
    }


def _circumstances() -> dict[str, Any]:
    """What else bears on the times: how busy the machine was, how threads wait."""
    load = [round(value, 1) for value in os.getloadavg()]
    return {"load": load, "wait_policy": os.environ.get("OMP_WAIT_POLICY", "default")}


def main() -> None:
    parser = argparse.ArgumentParser(description="A KD step in torchdistill beside steps of ours.")
    parser.add_argument("--pair", choices=PAIRS, default=PAIRS[0])
    parser.add_argument("--rounds", type=int, default=20, help="steps of each that are counted")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--teacher-compile", choices=("on", "off", "auto"), default="off", help="of our teachers")
    parser.add_argument("--venv", type=Path, default=usual_place(), help="torchdistill's; made unless it is there")
    requested = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(requested.threads)  # before torch is imported, here and there
    python = environment(requested.venv)
    result = compare(
        requested.pair, requested.rounds, requested.batch, requested.threads, requested.teacher_compile, python
    )
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
