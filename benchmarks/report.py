"""A report on 500 finished runs of 240 epochs: seconds from the command's start to the written page. Prints JSON.

The folders are made in a temporary place, 2,880 logged lines each, score files and histograms: `seeds` is one suite of
10 methods and 50 seeds, `suites` the shape of a whole paper, 13 suites of 13 methods and 3 seeds.
`first` has to draw every figure; `again` finds them drawn. Each is a new process.

`python benchmarks/report.py runs/demo` instead copies the students of a real folder, with their pictures and their
teacher, as 100 runs of other names and seeds: seconds, and the size of the page.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from antishortcut.config.recipe import DataSettings, ModelSettings, OptimSettings, Run
from antishortcut.report import make_report
from antishortcut.run_dir import RunDir, write_json

EPOCHS, LOGGED = 240, 11  # step lines an epoch
NAMES = ("ce", "kd", "asd", "at", "crd", "dkd", "fitnets", "pkt", "reviewkd", "rkd", "byot", "ckptkd", "snapshot")
SETS = ("test", "stylized", "imagenet-r", "imagenet-a")
KINDS = ("texture", "noise", "blur", "weather")
CODE = (
    "import sys; from pathlib import Path; from antishortcut.report import make_report; make_report(Path(sys.argv[1]))"
)


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(copied(Path(sys.argv[1]))))
        return
    shapes = {
        "seeds": [("suite", name, seed) for name in NAMES[:10] for seed in range(50)],
        "suites": [(f"P{number}", name, seed) for number in range(1, 14) for name in NAMES for seed in range(3)],
    }
    print(json.dumps({"epochs": EPOCHS} | {shape: once(runs) for shape, runs in shapes.items()}))


def once(runs: list[tuple[str, str, int]]) -> dict[str, Any]:
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        for suite, name, seed in runs:
            make_run(Path(place), suite, name, seed, chance)
        size = sum(path.stat().st_size for path in Path(place).rglob("*.json*"))
        first, again = measure(Path(place)), measure(Path(place))
    return {"runs": len(runs), "megabytes": round(size / 1e6), "first": first, "again": again}


def copied(source: Path, count: int = 100) -> dict[str, Any]:
    """20 methods of as many seeds as it takes, all with everything that the copied student has."""
    students = [path.parent for path in sorted(source.glob("*/result.json"))]
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(source.parent / "teachers", Path(place) / "teachers")
        for number in range(count):
            student, seed = RunDir(students[number % 20 % len(students)]), number // 20
            run, _ = student.read()
            method = run.name if number % 20 < len(students) else f"{run.name}-{number % 20}"
            folder = RunDir(Path(place) / source.name / f"{method}-s{seed}")
            folder.begin(run.model_copy(update={"name": method, "seed": seed}), {"accelerator": "cpu"}, {})
            shutil.copytree(student.path, folder.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("run.json"))
        suite = Path(place) / source.name
        first, again = measure(suite), measure(suite)
        page, shown = (suite / "report.html").stat().st_size, make_report(suite)["runs"]
    return {"runs": shown, "first": first, "again": again, "page_megabytes": round(page / 1e6, 2)}


def measure(root: Path) -> dict[str, float]:
    """Wall seconds, and seconds of all cores: on a shared machine only the latter repeat."""
    begin, used = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-c", CODE, str(root)], check=True)
    after = os.times()
    cores = after.children_user + after.children_system - used.children_user - used.children_system
    return {"seconds": round(time.perf_counter() - begin, 2), "core_seconds": round(cores, 2)}


def make_run(root: Path, suite: str, name: str, seed: int, chance: random.Random) -> None:
    run = Run(
        kind="distill", suite=suite, name=name, seed=seed, epochs=EPOCHS, data=DataSettings(name="cifar100"),
        fingerprint="f", model=ModelSettings(name="wrn-16-2"), optim=OptimSettings(), method="kd",
    )  # fmt: skip
    folder = RunDir(root / suite / f"{name}-s{seed}")
    folder.begin(run, {"accelerator": "cpu"}, {"python": "3.11"})
    folder.metrics.write_text("".join(lines(("task", "kd", "tc", "ss")[: 4 if name == "asd" else 2], chance)))
    scores = {"accuracy": 0.7 + chance.random() / 100, "epoch": EPOCHS}
    folder.finish({"set": "test", "last": scores, "best": scores, "seconds": 1.0})
    for each in SETS:
        write(folder, each, {"accuracy": chance.random()})
    errors = {f"c{number}": [chance.random() for _ in range(5)] for number in range(15)}
    write(folder, "corruptions", {key: chance.random() for key in ("mce", "mce_all", *KINDS)}, errors=errors)
    view = {key: chance.random() for key in ("cos_final", "cos_early", "projection", "projection_random")}
    write(folder, "mechanism", {"aligned": view, "raw": view})
    histogram = {"edges": [at / 20 - 1 for at in range(41)], "counts": [chance.randrange(1, 99) for _ in range(40)]}
    views = {key: {"histograms": {"cos_final": histogram, "cos_early": histogram}} for key in ("aligned", "raw")}
    write_json(folder.path / "artifacts" / "mechanism.json", {"views": views})


def write(folder: RunDir, name: str, values: dict[str, Any], **more: Any) -> None:
    saved = {"set": name, "state": "final", "fingerprint": "f", "count": 9, "values": values}
    write_json(folder.path / "scores" / f"{name}.json", saved | more)


def lines(terms: tuple[str, ...], chance: random.Random) -> list[str]:
    rows: list[dict[str, Any]] = []
    for step in range(1, EPOCHS * LOGGED + 1):
        held = {term: 3 * chance.random() * LOGGED / step for term in terms}
        rows.append({"step": step, "epoch": step / LOGGED, "lr": 0.05, "loss": sum(held.values()), "terms": held})
        if step % LOGGED == 0:
            reached = 0.7 * step / (step + 40) + chance.random() / 50
            rows.append({"step": step, "epoch": step / LOGGED, "set": "test", "scores": {"accuracy": reached}})
    return [json.dumps(row) + "\n" for row in rows]


if __name__ == "__main__":
    main()
