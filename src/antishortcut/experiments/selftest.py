"""asd selftest: does everything here work on this device, and how fast is it? One JSON file, for docs/results/gpu too.

terms       every method's terms and gradients against the CPU
precision   teachers and students in reduced precision, teachers compiled, against float32
resume      a training killed by SIGKILL and resumed, against one that was not
processes   every method on two processes: by NCCL on two cards, else by gloo on the CPU; and a training
speed       milliseconds of a step for the paper's pairs, against plain KD; peak memory
loader      images a second

A part that fails says why, and the others still run.
"""

import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from antishortcut.config.recipe import load_recipe
from antishortcut.data import Loader, open_sets, to_device
from antishortcut.errors import UserError, first_line, plural, suggest
from antishortcut.experiments import benchmark
from antishortcut.experiments.cost import architecture, size_of
from antishortcut.experiments.method_check import PAST_WARMUP, Subject, examine, largest_difference, on_two_processes
from antishortcut.hardware import versions, workers
from antishortcut.methods import METHODS
from antishortcut.models import Network, build, tapped_features
from antishortcut.run_dir import RunDir
from antishortcut.tasks import Classification
from antishortcut.teachers.frozen import FrozenModel, InferenceForm, agreement, has_compiler
from antishortcut.training.microbatch import is_out_of_memory
from antishortcut.training.step import DistillationStep
from antishortcut.types import Batch, FileSet, ImageSet, Method

FORMAT = 1  # of the file
TERMS = 1e-3  # largest difference of terms and gradients, relative to the largest of their tensor
LAST_DIGIT = 1e-6  # on a CPU, which would be compared with itself: relative noise on the features
# Largest relative difference of the student's gradient in mixed precision. Twice what a CPU's bfloat16 has on these
# untrained networks (0.07 to 0.15): it notices a wrong cast or an overflow, not a loss of accuracy.
MIXED = 0.3
RESUMED = 0.02  # largest relative difference of weights on a GPU, whose sums have no fixed order; none on a CPU
PAIRS = tuple(f"P{number}" for number in range(1, 12))
TIMED = ("kd", "asd", "contrast", "contrast+hint")
TRAINED = ("asd", "contrast+hint")
SETTINGS = (
    "epochs=6", "data.options.count=512", "data.options.test_count=100", "teacher.name=cnn-4-16",
    "student.name=cnn-2-16", "optim.batch=32", "methods.asd={warmup=1.0, queue=64}",
)  # fmt: skip
CHILD = 600.0  # seconds that a training in another process may take
Result = dict[str, Any]


class Failed(Exception):
    """A part differs; the message says which."""


def selftest(
    device: str, only: Sequence[str] = (), quick: bool = False, say: Callable[[str], None] = lambda line: None
) -> Result:
    """Run the parts, or some of them. quick: fewer pairs, steps and images."""
    for name in only:
        if name not in PARTS:
            raise UserError(f"--only {name}: there is no such part{suggest(name, PARTS)}")
    parts: dict[str, Result] = {}
    for name in PARTS:
        if only and name not in only:
            continue
        start, result = time.monotonic(), Result()
        try:
            with tempfile.TemporaryDirectory(prefix="asd-selftest-") as folder:
                PARTS[name](torch.device(device), quick, Path(folder), result)
            problem = ""
        except Failed as error:
            problem = str(error)
        except Exception as error:  # a device that is new here may raise anything, and the rest is wanted too
            problem = f"{type(error).__name__}: {first_line(error)[:300]}"
        seconds = round(time.monotonic() - start, 1)
        parts[name] = {"passed": not problem, "problem": problem, "seconds": seconds} | result
        say(f"{name}: {problem or 'passed'}, {parts[name]['seconds']:.0f} s")
    facts = benchmark.machine(device) | {"cards": torch.cuda.device_count(), "cuda": torch.version.cuda}
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    return {
        "format": FORMAT, "device": device, "quick": quick, "made": today, "machine": facts, "versions": versions(),
        "passed": all(part["passed"] for part in parts.values()), "parts": parts,
    }  # fmt: skip


def _require(differences: dict[str, float], most: float, what: str) -> None:
    wrong = {name: value for name, value in differences.items() if not value <= most}
    if wrong:
        raise Failed(f"{what} differ by more than {most:g}: " + ", ".join(f"{k} {v:.2g}" for k, v in wrong.items()))


# --- terms, precision ---


def _terms(device: torch.device, quick: bool, folder: Path, result: Result) -> None:
    cpu, noise = torch.device("cpu"), LAST_DIGIT if device.type == "cpu" else 0.0
    result |= {"tolerance": TERMS, "against": "noise on features" if noise else "CPU", "differences": {}}
    cudnn: Any = torch.backends.cudnn
    with cudnn.flags(enabled=True, allow_tf32=False):
        for name in METHODS:
            difference = largest_difference(examine(name, cpu), examine(name, device, noise=noise))
            result["differences"][name] = difference
    _require(result["differences"], TERMS, "terms or gradients")


def _precision(device: torch.device, quick: bool, folder: Path, result: Result) -> None:
    images = _images(device)
    torch.manual_seed(0)
    network = _settled(build("resnet8" if quick else "wrn-40-2", 10, image_size=32), images[0])
    reduced = ["bfloat16", *(["float16"] if device.type == "cuda" else [])]
    forms = [InferenceForm(precision) for precision in reduced]
    if has_compiler(device):
        forms += [InferenceForm(precision, compiled=True) for precision in ("float32", reduced[0])[: 1 if quick else 2]]
    result["teachers"], result["students"] = {}, {}
    for form in forms:
        measured = agreement(network, FrozenModel(network, form, 32, images[0].shape), images)
        result["teachers"][str(form)] = str(measured)
        if not measured.enough:
            raise Failed(f"a teacher in {form} differs from float32: {measured}")
    for name in TIMED:
        result["students"][name] = _distance(*(_gradient(name, images[0], dtype) for dtype in (None, torch.bfloat16)))
    result["tolerance"] = MIXED
    _require(result["students"], MIXED, "gradients in bf16-mixed")


def _images(device: torch.device) -> list[Tensor]:
    data = open_sets("cues", None, options={"count": 256, "test_count": 16})
    return [batch.image.to(device) for batch in Loader.in_order(data.train, 64, 32).epoch(0)]


def _settled(network: Network, image: Tensor) -> Network:
    """The network, of random weights, with the batch statistics of these images."""
    network.to(image.device).train()
    with torch.no_grad():
        for _ in range(30):
            network(image)
    return network.requires_grad_(False).eval()


def _gradient(name: str, image: Tensor, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Of the student in one step on these images, in mixed precision or in float32."""
    subject, device = Subject(name, len(image)), image.device
    step = DistillationStep(subject.student, subject.method, Classification()).to(device)
    taps = cast(Method, subject.method).taps
    with torch.no_grad():
        teachers = {role: _settled(network, image) for role, network in subject.teachers.items()}
        targets = {role: tapped_features(network, image, taps).float32(taps) for role, network in teachers.items()}
    batch = Batch(image, subject.batch.label.to(device), subject.batch.index.to(device))
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        losses = step(batch, targets, PAST_WARMUP)
    torch.autograd.backward(torch.stack(list(losses.values())).sum())
    return {key: value.grad.cpu() for key, value in subject.student.named_parameters() if value.grad is not None}


# --- resume, processes ---


def _asd(folder: Path, *words: str) -> subprocess.Popen[str]:
    settings = [word for text in SETTINGS for word in ("--set", text)]
    command = [sys.executable, "-P", "-m", "antishortcut", "distill", "cues", *settings, "--runs", str(folder), *words]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def _train(folder: Path, *words: str) -> None:
    process = _asd(folder, *words)
    try:
        _, error = process.communicate(timeout=CHILD)
    except subprocess.TimeoutExpired:
        _kill(process)
        raise Failed(f"a training did not end within {CHILD:.0f} s") from None
    if process.returncode:
        last = (error.strip().splitlines() or ["without a word"])[-1]
        raise Failed(f"a training ended with code {process.returncode}: {last[:300]}")


def _kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the process and its children, a session of their own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _resume(device: torch.device, quick: bool, folder: Path, result: Result) -> None:
    result |= {"tolerance": 0.0 if device.type == "cpu" else RESUMED, "differences": {}, "killed_after_step": {}}
    for method in TRAINED[:1] if quick else TRAINED:
        words = ("--device", device.type, "--method", method)
        _train(folder, *words, "--name", "whole")
        step = _killed(folder, *words, "--save-every", "0", "--name", "parts")
        _train(folder, *words, "--save-every", "0", "--name", "parts")
        one, two = (load_file(RunDir(folder / "cues" / f"{name}-s1").student) for name in ("whole", "parts"))
        result["differences"][method], result["killed_after_step"][method] = _distance(one, two), step
        for name in ("whole", "parts"):
            (folder / "cues" / f"{name}-s1").rename(folder / f"{method}-{name}")
    _require(result["differences"], result["tolerance"], "weights after a kill")


def _killed(folder: Path, *words: str) -> int:
    """Start a training, kill it when it has saved the state of its fifth step or a later one, and say of which."""
    process, run_dir = _asd(folder, *words), RunDir(folder / "cues" / "parts-s1")
    deadline = time.monotonic() + CHILD
    while not (saved := run_dir.checkpoints) or _step(saved[-1]) < 5:
        if process.poll() is not None or time.monotonic() > deadline:
            _kill(process)
            raise Failed("a training ended, or hung, before it could be killed")
        time.sleep(0.005)
    _kill(process)
    if (run_dir.path / "result.json").exists():
        raise Failed("a training ended before it could be killed")
    return _step(run_dir.checkpoints[-1])


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.partition("-")[0])


def _distance(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """Of all tensors together, relative."""
    if one.keys() != two.keys():
        return math.inf
    first, second = (torch.cat([values[key].double().flatten() for key in one]) for values in (one, two))
    return float((first - second).norm() / first.norm())


def _processes(device: torch.device, quick: bool, folder: Path, result: Result) -> None:
    cards = torch.cuda.device_count() if device.type == "cuda" else 0
    backend, here = ("nccl", "cuda") if cards > 1 else ("gloo", "cpu")
    cpu, names = torch.device("cpu"), TIMED if quick else tuple(METHODS)
    result |= {"backend": backend, "tolerance": TERMS}
    both = on_two_processes(names, backend, folder)
    result["differences"] = {name: largest_difference(examine(name, cpu), both[name]) for name in names}
    _require(result["differences"], TERMS, "terms or gradients of two processes")
    result["devices"] = max(cards, 2)
    short = ("--set", "epochs=2") if quick else ()
    _train(folder, *short, "--device", here, "--devices", str(result["devices"]), "--method", TRAINED[0])
    result["accuracy"] = RunDir(folder / "cues" / f"{TRAINED[0]}-s1").result()["last"]["accuracy"]


# --- speed, loader ---


def _speed(device: torch.device, quick: bool, folder: Path, result: Result) -> None:
    result["pairs"] = {}
    for name in ("P2",) if quick else PAIRS:
        recipe = load_recipe(name)
        pair, size = (architecture(recipe.teacher), architecture(recipe.student)), size_of(recipe.data)
        batch = 8 if quick else recipe.optim.batch
        while True:
            try:
                result["pairs"][name] = benchmark.bench(
                    pair, TIMED, batch=batch, rounds=2 if quick else 10, device=device.type, images=size
                )
                break
            except Exception as error:
                if not is_out_of_memory(error) or batch < 4:
                    raise
            torch.cuda.empty_cache()
            batch //= 2  # all methods are on the device at once
    result["memory_mb"] = _memory(device, quick)


def _memory(device: torch.device, quick: bool) -> dict[str, float]:
    """Peak of three steps by method; on a CPU, of this process so far."""
    if device.type != "cuda":
        return {"process": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}
    recipe, peaks = load_recipe("P2"), dict[str, float]()
    pair, batch = (architecture(recipe.teacher), architecture(recipe.student)), 8 if quick else recipe.optim.batch
    for name in TIMED:
        with tempfile.TemporaryDirectory() as folder:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            setup = benchmark.BenchSetup(pair, benchmark.CIFAR, batch, device, "off", Path(folder))
            run, batches = setup.ours(name), setup.batches()
            for _ in range(3):
                run.turn(next(batches))
            peaks[name] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
            del run, setup
    return peaks


def _loader(device: torch.device, quick: bool, folder: Path, result: Result) -> None:
    count, files = (2_000, 32) if quick else (50_000, 512)
    rng = np.random.default_rng(0)
    raw = torch.from_numpy(rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8))
    paths = []
    for number in range(files):
        rough = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        paths.append(folder / f"{number:04}.jpg")
        rough.resize((500, 375), Image.Resampling.BICUBIC).save(paths[-1], quality=90)
    memory = Loader(ImageSet(raw, torch.zeros(count, dtype=torch.int64)), batch=64, seed=0, image_size=32)
    jpeg = FileSet(tuple(paths), torch.zeros(files, dtype=torch.int64))
    disk = Loader(jpeg, batch=64, seed=0, image_size=224, augment="imagenet", workers=workers())
    result["workers"] = workers()
    result["images_a_second"] = {"32 x 32 in memory": _rate(memory, device), "JPEG to 224 x 224": _rate(disk, device)}


def _rate(loader: Loader, device: torch.device) -> float:
    """Of the second epoch: the first one starts the workers."""
    for epoch in (0, 1):
        start, images = benchmark.now(), 0
        for batch in to_device(loader.epoch(epoch), device):
            images += len(batch.image)
        seconds = benchmark.now() - start
    return round(images / seconds, 1)


PARTS: dict[str, Callable[[torch.device, bool, Path, Result], None]] = {
    "terms": _terms,
    "precision": _precision,
    "resume": _resume,
    "processes": _processes,
    "speed": _speed,
    "loader": _loader,
}


def rows(result: Result) -> list[tuple[str, str, str]]:
    """The file as a table: part, passed or not, and its numbers in a line each."""
    table: list[tuple[str, str, str]] = []
    for name, part in result["parts"].items():
        lines = [part["problem"]] if part["problem"] else []
        if differences := part.get("differences"):
            worst = max(differences, key=lambda key: differences[key])
            ways = {"processes": f" by {part.get('backend')}", "terms": f" against {part.get('against')}"}
            where = ways.get(name, "")
            most = f"largest difference {differences[worst]:.1g} ({worst}), allowed {part['tolerance']:g}"
            lines.append(f"{plural(len(differences), 'method')}{where}: {most}")
        lines += [f"teacher in {form}: {text}" for form, text in part.get("teachers", {}).items()]
        lines += [
            f"{method} in bf16-mixed: gradient differs by {v:.1%}" for method, v in part.get("students", {}).items()
        ]
        for pair, one in part.get("pairs", {}).items():
            times = ", ".join(f"{key} {one['ms'][key]:.1f}" for key in (benchmark.PLAIN, *TIMED))
            ratios = ", ".join(f"{key} {one['ratio'][f'{key}/{benchmark.PLAIN}']:.2f}" for key in TIMED)
            lines.append(f"{pair} {one['pair']}, batch {one['batch']}, ms a step: {times}; of plain KD: {ratios}")
        if peaks := part.get("memory_mb"):
            lines.append("peak memory, MB: " + ", ".join(f"{key} {value:.0f}" for key, value in peaks.items()))
        lines += [f"{kind}: {rate:,.0f} images a second" for kind, rate in part.get("images_a_second", {}).items()]
        table += [(name, "passed" if part["passed"] else "failed", line) for line in lines]
    return table
