"""A report on 500 finished runs of 240 epochs: seconds from the command's start to the written page. Prints JSON.

The folders are made in a temporary place: 10 methods, 50 seeds, 2,880 logged lines each, score files and histograms.
`first` has to draw every figure; `again` finds them drawn, as `asd report --serve` does. Each is a new process.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from antishortcut.folder import Folder, write_json
from antishortcut.run import DataSettings, ModelSettings, OptimSettings, Run

RUNS, EPOCHS, LOGGED = 500, 240, 11  # step lines an epoch
NAMES = ("ce", "kd", "asd", "at", "crd", "dkd", "fitnets", "pkt", "reviewkd", "rkd")
SETS = ("test", "stylized", "imagenet-r", "imagenet-a")
KINDS = ("texture", "noise", "blur", "weather")
CODE = (
    "import sys; from pathlib import Path; from antishortcut.report import make_report; make_report(Path(sys.argv[1]))"
)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "suite"
        chance = random.Random(0)
        for number in range(count):
            make_run(root, NAMES[number % len(NAMES)], number // len(NAMES), chance)
        size = sum(path.stat().st_size for path in root.rglob("*.json*"))
        first, again = measure(root), measure(root)
    print(json.dumps({"runs": count, "epochs": EPOCHS, "megabytes": round(size / 1e6), "first": first, "again": again}))


def measure(root: Path) -> dict[str, float]:
    """Wall seconds, and seconds of all cores: on a shared machine only the latter repeat."""
    begin, used = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-c", CODE, str(root)], check=True)
    after = os.times()
    cores = after.children_user + after.children_system - used.children_user - used.children_system
    return {"seconds": round(time.perf_counter() - begin, 2), "core_seconds": round(cores, 2)}


def make_run(root: Path, name: str, seed: int, chance: random.Random) -> None:
    run = Run(
        kind="distill", suite="suite", name=name, seed=seed, epochs=EPOCHS, data=DataSettings(name="cifar100"),
        fingerprint="f", model=ModelSettings(name="wrn-16-2"), optim=OptimSettings(), method="kd",
    )  # fmt: skip
    folder = Folder(root / f"{name}-s{seed}")
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


def write(folder: Folder, name: str, values: dict[str, Any], **more: Any) -> None:
    kept = {"set": name, "state": "final", "fingerprint": "f", "count": 9, "values": values}
    write_json(folder.path / "scores" / f"{name}.json", kept | more)


def lines(terms: tuple[str, ...], chance: random.Random) -> list[str]:
    rows: list[dict[str, Any]] = []
    for step in range(1, EPOCHS * LOGGED + 1):
        held = {term: 3 * chance.random() * LOGGED / step for term in terms}
        rows.append({"step": step, "epoch": step / LOGGED, "rate": 0.05, "loss": sum(held.values()), "terms": held})
        if step % LOGGED == 0:
            reached = 0.7 * step / (step + 40) + chance.random() / 50
            rows.append({"step": step, "epoch": step / LOGGED, "set": "test", "scores": {"accuracy": reached}})
    return [json.dumps(row) + "\n" for row in rows]


if __name__ == "__main__":
    main()
